//! Limits of reading a document.

/// Limits of reading a document, against small documents that would fill the memory.
///
/// The memory of the result is limited too: see [`DocumentLimits::memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentLimits {
    /// Maximum number of items, deleted entries included.
    pub items: usize,
    /// Maximum nesting depth of elements, or of an item's JSON values. JSON is limited to 128 in any case.
    pub depth: usize,
    /// Maximum number of members of an object, or of attributes of an element.
    pub members: usize,
    /// Maximum length of a text, in bytes.
    pub string: usize,
    /// Memory that any document may take, in bytes. A larger document may take [`MEMORY_TIMES`] its size.
    pub memory: usize,
}

/// Memory of a read document, its own text included, as a multiple of its size.
pub const MEMORY_TIMES: usize = 4;

impl Default for DocumentLimits {
    /// A text may be 96 MiB long: a content of 64 MiB, which our server takes, has 85.4 MiB in Base64.
    fn default() -> Self {
        Self { items: 500_000, depth: 256, members: 10_000, string: 96 << 20, memory: 32 << 20 }
    }
}
