//! Entries of a copy: pages of a section, and their encoding in pieces and streams.
//!
//! ```text
//! entry: key length (4 bytes), value length (4 bytes), key, value
//! ```
//!
//! Numbers are big-endian.

use std::io;

use bytes::Bytes;

use crate::embedded::copy::{CopyEntry, CopySection, StoreCopy};

/// Bytes of entries in a page.
const PAGE: usize = 1 << 20;

/// Failure to read a copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The stream broke: the server ended, or its process was killed.
    #[error("the copy of the store was cut off: {0}")]
    Broken(#[from] io::Error),
    /// The stream is not one of this version.
    #[error("the running server is of another version: {0}")]
    Version(String),
    /// The store cannot be read.
    #[error("{0}")]
    Store(String),
}

/// Entries of one section, in the order of their keys.
#[derive(Debug)]
pub struct CopyPage {
    /// The section.
    pub section: CopySection,
    /// The entries, at least one.
    pub entries: Vec<CopyEntry>,
}

/// Source of a copy: pages, section by section.
pub trait CopySource {
    /// Returns the next page; `None` at the end of the copy.
    fn next(&mut self) -> Result<Option<CopyPage>, CopyError>;
}

/// Copy of a store that this process has open.
pub struct LocalCopy {
    copy: StoreCopy,
    sections: std::slice::Iter<'static, CopySection>,
    current: Option<(CopySection, Option<Bytes>)>,
}

impl LocalCopy {
    /// Creates the source of a whole copy.
    pub fn new(copy: StoreCopy) -> Self {
        Self { copy, sections: CopySection::ALL.iter(), current: None }
    }
}

impl CopySource for LocalCopy {
    fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
        loop {
            let (section, after) = match self.current.take() {
                Some(current) => current,
                None => match self.sections.next() {
                    Some(section) => (*section, None),
                    None => return Ok(None),
                },
            };
            let read = self.copy.read(section, after.as_deref(), PAGE);
            let entries = read.map_err(|e| CopyError::Store(e.to_string()))?;
            if let Some((last, _)) = entries.last() {
                self.current = Some((section, Some(last.clone())));
                return Ok(Some(CopyPage { section, entries }));
            }
        }
    }
}

/// Encodes the length of a key or a value.
pub fn encode_length(bytes: usize) -> [u8; 4] {
    // The store holds no entry of 4 GiB.
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// Appends an entry as streams and pieces have it.
pub fn push_entry(out: &mut Vec<u8>, (key, value): &CopyEntry) {
    out.extend_from_slice(&encode_length(key.len()));
    out.extend_from_slice(&encode_length(value.len()));
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Splits bytes into their entries; `None` if the last one is cut.
pub fn split_entries(bytes: &Bytes) -> Option<Vec<CopyEntry>> {
    let mut entries = Vec::new();
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        if rest.len() < 8 {
            return None;
        }
        let head = rest.split_to(8);
        let (key, value) = head.split_at(4);
        let size = |bytes: &[u8]| bytes.try_into().map(|bytes| u32::from_be_bytes(bytes) as usize);
        let (key, value) = (size(key).ok()?, size(value).ok()?);
        if rest.len() < key.checked_add(value)? {
            return None;
        }
        let key = rest.split_to(key);
        entries.push((key, rest.split_to(value)));
    }
    Some(entries)
}
