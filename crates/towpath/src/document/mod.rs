//! Prebuilt documents: bodies, encodings, headers and validity, ready to be sent.
//!
//! The lowest layer that knows HTTP. It knows no feed, no protocol and no server.

pub mod cache;
pub mod cors;
pub mod encoding;
pub(crate) mod etag;
pub(crate) mod feed_path;
mod last_modified;
pub mod prebuilt;
pub(crate) mod respond;
pub mod response_memory;
pub mod route_error;
pub mod sup_links;
