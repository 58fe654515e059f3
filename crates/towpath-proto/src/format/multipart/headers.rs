//! Headers of a part.

use std::ops::Range;

/// Headers of a part, in order.
///
/// Holds a single text and ranges of it, so that a part costs two allocations for any number of headers.
#[derive(Clone, Default)]
pub struct Headers {
    pub(super) text: String,
    pub(super) fields: Vec<HeaderField>,
}

/// Ranges in the text; `u32` because the limit of headers is far below 4 GiB.
#[derive(Debug, Clone)]
pub(super) struct HeaderField {
    pub(super) name: Range<u32>,
    pub(super) value: Range<u32>,
}

impl Headers {
    /// Creates empty headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a header.
    pub fn push(&mut self, name: &str, value: &str) {
        let start = self.text.len() as u32;
        self.text.push_str(name);
        let between = self.text.len() as u32;
        self.text.push_str(value);
        self.fields.push(HeaderField { name: start..between, value: between..self.text.len() as u32 });
    }

    /// Returns the number of headers.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns `true` without headers.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|f| (self.at(&f.name), self.at(&f.value)))
    }

    fn at(&self, place: &Range<u32>) -> &str {
        &self.text[place.start as usize..place.end as usize]
    }

    /// Returns the first value of a name, compared without case.
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
