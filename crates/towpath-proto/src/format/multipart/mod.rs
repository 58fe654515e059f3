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
mod header_block;
mod parser;
mod writer;

pub use content_type::{ContentType, ContentTypeError, HeaderFieldValue, MalformedValue};
pub use entity::{Entity, EntityError, EntityReader};
pub use header_block::HeaderLimits;
pub use parser::{MultipartError, Parser, Token};
pub use writer::{Boundary, BoundaryError, close_len, entity_len, write_close, write_entity};

use std::ops::Range;

#[cfg(test)]
mod tests;

/// The headers of one part, in their order.
///
/// One text and the places in it, so that a part costs two allocations however many headers it has.
#[derive(Clone, Default)]
pub struct Headers {
    text: String,
    fields: Vec<Field>,
}

/// Places in the text. Headers are far below 4 GiB.
#[derive(Debug, Clone)]
struct Field {
    name: Range<u32>,
    value: Range<u32>,
}

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header after the others.
    pub fn push(&mut self, name: &str, value: &str) {
        let start = self.text.len() as u32;
        self.text.push_str(name);
        let between = self.text.len() as u32;
        self.text.push_str(value);
        self.fields.push(Field { name: start..between, value: between..self.text.len() as u32 });
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
        self.fields.iter().map(|f| (self.at(&f.name), self.at(&f.value)))
    }

    fn at(&self, place: &Range<u32>) -> &str {
        &self.text[place.start as usize..place.end as usize]
    }

    /// The first value under this name, compared without regard to case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

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
