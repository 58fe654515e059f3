//! Where a publisher serves its documents.

use super::uri;
use crate::feed_id::FeedId;

/// Where everything is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    base: String,
    path_start: usize,
}

impl Site {
    /// `base_url` is absolute; a final slash does not count.
    pub fn new(base_url: &str) -> Self {
        let base = base_url.trim_end_matches('/').to_owned();
        let authority = base.find("://").map_or(0, |at| at + 3);
        let path_start = base[authority..].find('/').map_or(base.len(), |at| authority + at);
        Self { base, path_start }
    }

    /// The absolute address of a path of ours.
    pub fn absolute(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The same without scheme and host, for links inside documents.
    pub fn link(&self, path: &str) -> String {
        format!("{}{path}", &self.base[self.path_start..])
    }

    /// The address of one item.
    pub fn item_url(&self, feed: &FeedId, id: &str) -> String {
        self.absolute(&format!("/feeds/{feed}/items/{}", uri::segment(id)))
    }
}
