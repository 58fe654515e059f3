//! What is wrong with a document, and where: problems that are passed over, and errors.

use quick_xml::errors::{Error, IllFormedError};
use quick_xml::events::attributes::AttrError;
use quick_xml::name::NamespaceError;

use super::place::{malformed, place, truncated};
use super::reader::{Token, XmlReader};
use crate::format::FormatError;

/// The most problems that one document may list; the rest is only counted.
const MAX_PROBLEMS: usize = 100;

impl<'i> XmlReader<'i> {
    /// Notes what was left out because of what stands at `offset`.
    pub(crate) fn problem(&mut self, offset: usize, what: impl std::fmt::Display) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.unlisted_problems += 1;
            return;
        }
        let (line, column) = place(self.text.as_bytes(), offset);
        self.problems.push(format!("line {line}, column {column}: {what}"));
    }

    /// What [`Self::problem`] noted.
    pub(crate) fn into_problems(mut self) -> Vec<String> {
        if self.unlisted_problems > 0 {
            self.problems.push(format!("and {} more", self.unlisted_problems));
        }
        self.problems
    }

    /// The error that the document is not well-formed, or not of its format, at `offset`.
    pub(crate) fn malformed(&self, offset: usize, reason: impl Into<String>) -> FormatError {
        malformed(self.text.as_bytes(), offset, reason)
    }

    pub(super) fn end_of_input(&self) -> Result<Token<'i>, FormatError> {
        match self.open.last() {
            None => Ok(Token::Eof),
            Some(&start) => {
                let (line, column) = place(self.text.as_bytes(), start);
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
        let cut_off = match error {
            Error::Syntax(_) => true,
            // The same error tells of an `&` at the very end and of one that is followed by markup.
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
            NamespaceError::TooManyBindings(_) | NamespaceError::TooDeeplyNested(_) => {
                FormatError::Limit(error.to_string())
            }
            _ => self.malformed(offset, error.to_string()),
        }
    }

    pub(super) fn attribute_error(&self, error: &AttrError, offset: usize) -> FormatError {
        self.malformed(offset, format!("an attribute of this element is wrong: {error}"))
    }
}

/// The first characters of a name that came from outside.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}
