//! The base URL of a publisher.

use crate::diffdelta::wire::uri;
use crate::feed_id::FeedId;

/// The base URL under which all documents are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteUrl {
    base: String,
    path_start: usize,
}

impl SiteUrl {
    /// Creates it from an absolute URL. A final slash is ignored.
    pub fn new(base_url: &str) -> Self {
        let base = base_url.trim_end_matches('/').to_owned();
        let authority = base.find("://").map_or(0, |at| at + 3);
        let path_start = base[authority..].find('/').map_or(base.len(), |at| authority + at);
        Self { base, path_start }
    }

    /// Returns the absolute URL of a path.
    pub fn absolute(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Returns the URL of a path without scheme and host, for links inside documents.
    pub fn link(&self, path: &str) -> String {
        format!("{}{path}", &self.base[self.path_start..])
    }

    /// Returns the URL of one item.
    pub fn item_url(&self, feed: &FeedId, id: &str) -> String {
        self.absolute(&format!("/feeds/{feed}/items/{}", uri::segment(id)))
    }
}
