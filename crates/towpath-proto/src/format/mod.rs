//! Formats that items are read from and written to.

pub mod activity_streams;
pub mod atom;
pub(crate) mod budget;
pub mod date;
pub mod document;
mod error;
mod feed_document;
mod feed_head;
mod fill;
pub mod html;
mod html_page;
pub mod http_date;
mod iri;
mod item_builder;
pub mod jcs;
pub(crate) mod json;
pub mod json_feed;
pub(crate) mod json_list;
pub(crate) mod json_lists;
pub(crate) mod json_numbers;
pub mod json_pointers;
mod json_repair;
pub(crate) mod json_value;
pub(crate) mod limits;
pub mod link;
pub mod media_type;
pub mod multipart;
pub mod opml;
mod paging;
pub mod peek;
mod position;
mod preface;
pub(crate) mod problems;
mod read;
pub mod rss;
pub mod sniff;
mod western;
pub mod xml;

pub use error::FormatError;
pub(crate) use feed_document::relation;
pub use feed_document::{
    DeletedEntry, FeedAbout, FeedDocument, FeedLink, Format, SmartHead, is_language_tag,
};
pub use html_page::HtmlMapping;
pub(crate) use iri::is_iri;
pub use limits::{DocumentLimits, MEMORY_TIMES};
pub use paging::{Paging, PagingError};
pub use problems::ProblemCounts;
pub use read::{ReadOptions, read, read_page};
