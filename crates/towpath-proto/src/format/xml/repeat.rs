//! Repetition of a document's parts within its budget, above all of base URLs.

use std::borrow::Cow;

use url::Url;

use super::reader::XmlReader;
use crate::format::budget::Budget;
use crate::format::error::FormatError;
use crate::format::html;
use crate::format::iri::{has_scheme, web_page};
use crate::format::position::line_and_column;

impl XmlReader<'_> {
    /// Resolves a relative URL against `xml:base` and the document's URL, if these are known. An absolute URL
    /// stays unchanged, to the letter.
    pub(crate) fn resolve(&mut self, address: &str) -> Result<String, FormatError> {
        let address = address.trim();
        let base = self.base().filter(|_| !has_scheme(address));
        let Some(base) = base else {
            return Ok(address.to_owned());
        };
        let length = base.as_str().len();
        let resolved = base.join(address).map_or_else(|_| address.to_owned(), String::from);
        self.spend(length, "the base is too long for so many relative addresses")?;
        Ok(resolved)
    }

    /// Returns the end of the last token in the text.
    pub(crate) fn end_of_token(&self) -> usize {
        self.offset()
    }

    /// Returns the base of relative addresses, if they are to be resolved.
    ///
    /// This is `xml:base`, then the document's URL (RFC 3986, section 5.1), then the feed's page. In items of RSS,
    /// which has no such rule, the page comes before the document: a feed is often on another host than its pages.
    pub(super) fn base(&self) -> Option<&Url> {
        let own = self.bases.last().and_then(|(_, base)| base.as_ref());
        let base = match self.bases.len() {
            0 | 1 if self.prefers_home => self.home.as_ref().or(own),
            0 | 1 => own.or(self.home.as_ref()),
            _ => own,
        };
        base.filter(|_| !self.keeps_addresses)
    }

    /// Tells the URL of the feed's page.
    pub(crate) fn found_home(&mut self, url: Option<&str>) {
        self.home = url.and_then(web_page).or(self.home.take());
    }

    /// Returns the base at this position, for a text that is read later.
    pub(crate) fn content_base(&self) -> Option<Url> {
        self.base().cloned()
    }

    /// Resolves the relative addresses in a text that may be HTML, against the base of its element.
    pub(crate) fn resolve_html(&mut self, html: String, base: Option<&Url>) -> Result<String, FormatError> {
        let Some(base) = base else { return Ok(html) };
        let resolved = html::resolved(&html, |address| {
            self.spend(base.as_str().len(), "the base is too long for so many relative addresses")?;
            Ok::<_, FormatError>(base.join(address).map_or_else(|_| address.to_owned(), String::from))
        })?;
        let resolved = match resolved {
            Cow::Borrowed(_) => None,
            Cow::Owned(resolved) => Some(resolved),
        };
        Ok(resolved.unwrap_or(html))
    }

    /// Returns the budget of this document.
    pub(crate) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Spends bytes of the budget, or fails with the position.
    pub(super) fn spend(&mut self, bytes: usize, reason: &str) -> Result<(), FormatError> {
        let (text, offset) = (self.text, self.offset());
        self.budget.spend(bytes, || {
            let (line, column) = line_and_column(text.as_bytes(), offset);
            format!("line {line}, column {column}: {reason}")
        })
    }
}
