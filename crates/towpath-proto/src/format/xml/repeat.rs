//! Repetition of a document's parts within its budget, above all of base URLs.

use super::reader::XmlReader;
use crate::format::budget::Budget;
use crate::format::error::FormatError;
use crate::format::iri::has_scheme;
use crate::format::position::line_and_column;

impl XmlReader<'_> {
    /// Resolves a relative URL against `xml:base` and the document's URL, if these are known. An absolute URL
    /// stays unchanged, to the letter.
    pub(crate) fn resolve(&mut self, address: &str) -> Result<String, FormatError> {
        let address = address.trim();
        let base = self.bases.last().and_then(|(_, base)| base.as_ref());
        let Some(base) = base.filter(|_| !has_scheme(address)) else {
            return Ok(address.to_owned());
        };
        let length = base.as_str().len();
        let resolved = base.join(address).map_or_else(|_| address.to_owned(), String::from);
        self.spend(length, "the base is too long for so many relative addresses")?;
        Ok(resolved)
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
