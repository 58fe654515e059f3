//! Atom pages.
use super::pull::{FeedSettings, Page};
use super::query::PullQuery;
pub(super) fn write(_feed: &FeedSettings, _query: &PullQuery, _page: &Page) -> Vec<u8> {
    Vec::new()
}
