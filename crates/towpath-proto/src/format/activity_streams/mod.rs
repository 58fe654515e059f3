//! ActivityStreams 1.0 objects and collections (JSON Activity Streams 1.0, sections 3 and 4).
//!
//! An item is written as an object. Its title is the `displayName`. Its text content is the `content`; AS1
//! requires HTML there, so other text is escaped. Its times are `published` and `updated`. The extension
//! member `towpath` holds everything that AS1 cannot express, so that a written item reads back identically.
//! A deleted item has `"deleted": true`.

mod read;
mod write;

pub use read::{ObjectError, ReadObject, read_object};
pub use write::ActivityObject;

#[cfg(test)]
mod tests;
