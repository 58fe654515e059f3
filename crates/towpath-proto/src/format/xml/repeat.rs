//! What is repeated of a document, within its budget: base addresses above all.

use super::place::place;
use super::reader::XmlReader;
use crate::format::budget::Budget;
use crate::format::{FormatError, has_scheme};

impl XmlReader<'_> {
    /// An address, made absolute by `xml:base` and the document's address where it is relative and these
    /// are known. An absolute address stays as it is, to the letter.
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

    /// What may still be repeated of this document.
    pub(crate) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Takes what a repetition costs, or refuses it, saying where.
    pub(super) fn spend(&mut self, bytes: usize, reason: &str) -> Result<(), FormatError> {
        let (text, offset) = (self.text, self.offset());
        self.budget.spend(bytes, || {
            let (line, column) = place(text.as_bytes(), offset);
            format!("line {line}, column {column}: {reason}")
        })
    }
}
