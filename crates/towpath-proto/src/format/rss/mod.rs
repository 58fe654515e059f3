//! RSS 0.9x, 1.0 and 2.0: reading, and writing 2.0.
//!
//! What RSS has no place for is written with Atom's elements (which many readers know in RSS), and what Atom
//! has no place for as [`super::atom`] has it.

mod read;
mod write;

pub(crate) use read::read;
pub use write::write;
