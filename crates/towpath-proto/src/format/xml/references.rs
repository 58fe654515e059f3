//! References, and values of attributes.

use std::borrow::Cow;

use super::characters::is_xml_char;
use super::reader::XmlReader;
use super::token::Reference;
use crate::format::error::FormatError;
use crate::format::html;
use crate::format::position::{line_and_column, shortened};

/// Treatment of line ends in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnds {
    /// They were normalized before, as white space of an attribute's value.
    Keep,
    /// Each becomes a line feed (XML 1.0, section 2.11).
    Normalize,
}

impl<'i> XmlReader<'i> {
    /// Normalizes an attribute's value (XML 1.0, section 3.3.3): references resolved, white space as spaces.
    pub(crate) fn attribute_value(&mut self, raw: &'i str) -> Result<Cow<'i, str>, FormatError> {
        // The common case has nothing to normalize, and stays borrowed.
        let spaced: Cow<'i, str> = match raw.bytes().any(|b| matches!(b, b'\t' | b'\n' | b'\r')) {
            true => Cow::Owned(raw.replace("\r\n", " ").replace(['\t', '\n', '\r'], " ")),
            false => Cow::Borrowed(raw),
        };
        let offset = self.open.last().copied().unwrap_or_default();
        match spaced {
            Cow::Borrowed(text) => self.unescape(text, offset, LineEnds::Keep),
            Cow::Owned(text) => Ok(Cow::Owned(self.unescape(&text, offset, LineEnds::Keep)?.into_owned())),
        }
    }

    /// Resolves the references in `raw`, at `offset`.
    pub(super) fn unescape<'t>(
        &mut self,
        raw: &'t str,
        offset: usize,
        line_ends: LineEnds,
    ) -> Result<Cow<'t, str>, FormatError> {
        // Carriage returns are looked for once per document, not in every text.
        let normalizes = line_ends == LineEnds::Normalize;
        let raw: Cow<'t, str> = match normalizes && self.has_carriage_returns && raw.contains('\r') {
            true => Cow::Owned(raw.replace("\r\n", "\n").replace('\r', "\n")),
            false => Cow::Borrowed(raw),
        };
        let Some(mut next) = memchr::memchr(b'&', raw.as_bytes()) else { return Ok(raw) };
        let mut text = String::with_capacity(raw.len());
        let mut rest: &str = &raw;
        loop {
            text.push_str(&rest[..next]);
            rest = &rest[next + 1..];
            let at = offset + (raw.len() - rest.len() - 1);
            // A bare ampersand is found before the next one, not at the end of the text.
            let Some(end) =
                memchr::memchr2(b';', b'&', rest.as_bytes()).filter(|n| rest.as_bytes()[*n] == b';')
            else {
                return Err(self.malformed(at, "a bare & that is not a reference (write &amp;)"));
            };
            match self.reference(&rest[..end], at)? {
                Reference::Text(found) => text.push_str(&found),
                Reference::Character(found) => text.push(found),
            }
            rest = &rest[end + 1..];
            match memchr::memchr(b'&', rest.as_bytes()) {
                Some(n) => next = n,
                None => break,
            }
        }
        text.push_str(rest);
        Ok(Cow::Owned(text))
    }

    /// Resolves `&name;`.
    pub(super) fn reference(&mut self, name: &str, offset: usize) -> Result<Reference, FormatError> {
        Ok(match name {
            "lt" => Reference::Text(Cow::Borrowed("<")),
            "gt" => Reference::Text(Cow::Borrowed(">")),
            "amp" => Reference::Text(Cow::Borrowed("&")),
            "quot" => Reference::Text(Cow::Borrowed("\"")),
            "apos" => Reference::Text(Cow::Borrowed("'")),
            _ => match name.strip_prefix('#') {
                Some(number) => Reference::Character(self.character(number, offset)?),
                None => Reference::Text(self.entity(name, offset)?),
            },
        })
    }

    fn character(&mut self, number: &str, offset: usize) -> Result<char, FormatError> {
        let code = match number.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        // The parsers of integers accept a sign, XML does not.
        let signed = number.contains('+');
        match code {
            Ok(code) if !signed => match char::from_u32(code).filter(|c| is_xml_char(*c)) {
                Some(character) => Ok(character),
                None => {
                    // A forbidden character is replaced: refusing the document would lose the whole feed.
                    self.problem(offset, format_args!("&#{number}; is not allowed in XML"));
                    Ok(char::REPLACEMENT_CHARACTER)
                }
            },
            _ => Err(self.malformed(offset, format!("&#{}; is not a character", shortened(number)))),
        }
    }

    fn entity(&self, name: &str, offset: usize) -> Result<Cow<'static, str>, FormatError> {
        // HTML's entities are undeclared in XML, but common in feeds.
        if let Some(text) = html::entity(name) {
            return Ok(text);
        }
        let name = shortened(name);
        // Declared entities are never expanded: nested ones grow exponentially.
        if self.declares_entities {
            let (line, column) = line_and_column(self.text.as_bytes(), offset);
            let reason = format!("entity &{name}; of a DTD at line {line}, column {column}");
            return Err(FormatError::Limit(reason));
        }
        Err(self.malformed(offset, format!("unknown entity &{name};")))
    }
}
