//! Errors and skipped problems of a document, with positions.

use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::attributes::AttrError;
use quick_xml::name::NamespaceError;

use super::reader::XmlReader;
use super::token::XmlToken;
use crate::format::error::FormatError;
use crate::format::position::{line_and_column, malformed, shortened, truncated};
use crate::format::problems::Problems;

impl<'i> XmlReader<'i> {
    /// Records a problem at `offset` that leaves out no item.
    pub(crate) fn problem(&mut self, offset: usize, what: impl std::fmt::Display) {
        self.problems.warn(|| place(self.text, offset, what));
    }

    /// Records an item at `offset` that was left out.
    pub(crate) fn left_out(&mut self, offset: usize, what: impl std::fmt::Display) {
        self.problems.leave_out(|| place(self.text, offset, what));
    }

    /// Returns the recorded problems.
    pub(crate) fn into_problems(self) -> Problems {
        self.problems
    }

    /// Returns the error for a malformed document at `offset`.
    pub(crate) fn malformed(&self, offset: usize, reason: impl Into<String>) -> FormatError {
        malformed(self.text.as_bytes(), offset, reason)
    }

    pub(super) fn end_of_input(&self) -> Result<XmlToken<'i>, FormatError> {
        match self.open.last() {
            None => Ok(XmlToken::Eof),
            Some(&start) => {
                let (line, column) = line_and_column(self.text.as_bytes(), start);
                let name: String =
                    self.text[start..].chars().take_while(|c| !c.is_whitespace() && *c != '>').collect();
                let reason = format!("{}> of line {line}, column {column} is not closed", shortened(&name));
                Err(truncated(self.text.as_bytes(), self.text.len(), reason))
            }
        }
    }

    pub(super) fn syntax_error(&self, error: &Error) -> FormatError {
        let at = usize::try_from(self.reader.error_position()).unwrap_or(usize::MAX);
        let text = self.text.as_bytes();
        // A cut document has an error of its own: the transfer is the likely cause, not the publisher.
        let cut_off = match error {
            Error::Syntax(_) => true,
            // quick-xml reports an `&` at the very end and before markup by an identical error.
            Error::IllFormed(IllFormedError::UnclosedReference) => {
                memchr::memchr3(b'<', b';', b' ', text.get(at..).unwrap_or_default()).is_none()
            }
            _ => false,
        };
        match error {
            Error::Namespace(error) => self.namespace_error(error, at),
            _ if cut_off => truncated(text, at, error.to_string()),
            Error::IllFormed(IllFormedError::UnclosedReference) => {
                malformed(text, at, "a bare & that is not a reference (write &amp;)")
            }
            _ => malformed(text, at, error.to_string()),
        }
    }

    pub(super) fn namespace_error(&self, error: &NamespaceError, offset: usize) -> FormatError {
        match error {
            // The parser's own words name its functions.
            NamespaceError::TooManyBindings(most) => FormatError::Limit(format!(
                "more than {most} namespaces are declared at once, at {}",
                place_of(self.text, offset)
            )),
            NamespaceError::TooDeeplyNested(_) => FormatError::Limit(format!(
                "elements nested too deeply for namespaces, at {}",
                place_of(self.text, offset)
            )),
            _ => self.malformed(offset, error.to_string()),
        }
    }

    pub(super) fn attribute_error(&self, error: &AttrError, offset: usize) -> FormatError {
        self.malformed(offset, format!("an attribute of this element is wrong: {error}"))
    }
}

/// Returns a problem with its line and column.
pub(super) fn place(text: &str, offset: usize, what: impl std::fmt::Display) -> String {
    format!("{}: {what}", place_of(text, offset))
}

fn place_of(text: &str, offset: usize) -> String {
    let (line, column) = line_and_column(text.as_bytes(), offset);
    format!("line {line}, column {column}")
}
