//! Multipart bodies (RFC 2046, section 5.1): a streaming parser and a writer.
//!
//! To parse, [`ContentType::parse`] finds the boundary. [`Parser::push`] takes the body in pieces of any
//! size, and [`Parser::poll_token`] returns the parts without copying their bodies. [`Parser::finish`] marks
//! the end. [`EntityReader`] assembles whole entities on top of that, each up to a limit.
//!
//! Lines may end in CRLF, in a bare LF, or in a mixture; preamble and epilogue are skipped. Memory is bounded
//! by the limits on a part's headers, for any body.

mod content_type;
mod entity;
mod error;
mod header_block;
mod headers;
mod parser;
mod writer;

pub use content_type::{ContentType, ContentTypeError, HeaderFieldValue, MalformedValue};
pub use entity::{Entity, EntityError, EntityReader, LargeBody, LargePiece};
pub use error::{HeaderLimits, MultipartError};
pub use headers::Headers;
pub use parser::{MultipartToken, Parser};
pub use writer::{Boundary, BoundaryError, close_len, entity_len, write_close, write_entity};

#[cfg(test)]
mod tests;
