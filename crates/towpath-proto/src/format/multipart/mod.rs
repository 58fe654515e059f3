//! Multipart bodies (RFC 2046, section 5.1): a streaming parser and a writer.
//!
//! Reading, in this order: [`ContentType::parse`] finds the boundary; [`Parser::push`] takes the body in
//! pieces of any size and [`Parser::poll_token`] gives the parts back, without copying their bodies;
//! [`Parser::finish`] says that the body ended. [`EntityReader`] puts whole entities together on top of that,
//! one at a time and each up to a limit.
//!
//! Lines may end in CRLF, in a bare LF, or in both by turns; preamble and epilogue are passed over. Memory is
//! bounded by the limits on a part's headers, whatever the body does.

mod content_type;
mod entity;
mod parser;
mod writer;

pub use content_type::{ContentType, ContentTypeError, HeaderFieldValue, MalformedValue};
pub use entity::{Entity, EntityError, EntityReader};
pub use parser::{HeaderLimits, MultipartError, Parser, Token};
pub use writer::{Boundary, BoundaryError, close_len, entity_len, write_close, write_entity};

use std::ops::Range;

#[cfg(test)]
mod tests;

/// The headers of one part, in their order.
///
/// One text and the places in it, so that a part costs two allocations however many headers it has.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    text: String,
    fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Eq)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header after the others.
    pub fn push(&mut self, name: &str, value: &str) {
        if self.fields.is_empty() {
            // What the headers of an entity usually take.
            self.fields.reserve(8);
            self.text.reserve(256);
        }
        let start = self.text.len();
        self.text.push_str(name);
        let between = self.text.len();
        self.text.push_str(value);
        self.fields.push(Field { name: start..between, value: between..self.text.len() });
    }

    /// Goes on with the last header's value on a further line (RFC 5322, section 2.2.3).
    fn unfold(&mut self, more: &str) {
        if let Some(last) = self.fields.last_mut() {
            self.text.push(' ');
            self.text.push_str(more);
            last.value.end = self.text.len();
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|f| (&self.text[f.name.clone()], &self.text[f.value.clone()]))
    }

    /// The first value under this name, compared without regard to case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Headers {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(pairs: T) -> Self {
        let mut headers = Self::new();
        for (name, value) in pairs {
            headers.push(name.as_ref(), value.as_ref());
        }
        headers
    }
}
