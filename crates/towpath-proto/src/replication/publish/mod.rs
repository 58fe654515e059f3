//! From a feed's log to multipart pages and snapshots.

mod page;
pub mod pages;
pub mod snapshot;

pub use super::wire::{EMPTY_FEED, empty_feed};
pub use page::{FeedPageLinks, MultipartPage, PageBuilder, PageKind, page, page_url};
