//! Data that both ends of the protocol read and write: position specs, page formats, URLs and collections.

pub mod accept;
pub(in crate::smart) mod atom;
mod collection;
pub mod spec;
mod url;

pub use self::collection::{Collection, CollectionError};
pub(in crate::smart) use self::url::reversed;
pub use self::url::{base_url, with_parameter, with_since};

/// Content type of a JSON page ("HTTP Pull").
pub const JSON_TYPE: &str = "application/json; charset=utf-8";
/// Content type of an Atom page.
pub const ATOM_TYPE: &str = "application/atom+xml; charset=utf-8";
/// Content type of a JSON-P script.
pub const SCRIPT_TYPE: &str = "application/javascript; charset=utf-8";
