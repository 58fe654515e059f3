//! RSS 0.9x, 1.0 and 2.0: reading, and writing 2.0.
//!
//! Atom's elements hold everything that RSS cannot express; many readers understand them in RSS. The rest is
//! written as in [`super::atom`]. What only RSS's own elements can show to readers is written there too, marked by
//! `tp:assigned`; `tp:form` on `content:encoded` marks a text that was written as HTML, and `tp:media` has a
//! media type that says more.

mod read;
mod write;

pub(crate) use read::read;
pub use write::write;
