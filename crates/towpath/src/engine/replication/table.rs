//! What is kept of Data Replication's pages and snapshots.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::replication::publish::{Page, PageLinks};

/// All that a page's headers say, so that HEAD needs no body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct Made {
    content_type: String,
    last_modified: Timestamp,
    digest: [u8; 32],
    /// The body's length in bytes.
    pub(in crate::engine) length: u64,
}

impl Made {
    pub(in crate::engine) fn of(page: &Page) -> Self {
        Self {
            content_type: page.content_type.clone(),
            last_modified: page.last_modified,
            digest: page.digest,
            length: page.body.len() as u64,
        }
    }

    fn without_body(&self) -> Page {
        Page {
            body: Bytes::new(),
            content_type: self.content_type.clone(),
            last_modified: self.last_modified,
            digest: self.digest,
        }
    }

    pub(in crate::engine) fn headers(&self) -> HeaderMap {
        self.without_body().headers()
    }

    pub(in crate::engine) fn feed_headers(&self, links: &PageLinks) -> HeaderMap {
        self.without_body().feed_headers(links)
    }
}

/// A snapshot that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name, a number that grows.
    pub id: u64,
    /// When it was begun.
    pub created_at: Timestamp,
    /// How many pages it has.
    pub pages: u64,
    /// How many items.
    pub items: u64,
    /// Where the log ended when it was begun.
    pub seq: Seq,
    /// Where the feed goes on: the number of the page, and the Content-ID there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on: Option<(u64, Option<String>)>,
}

/// The record of a snapshot's page: where in the log its items stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotPage {
    /// Runs of places that follow each other: the first, and how many.
    pub(super) places: Vec<(Seq, u64)>,
    pub(super) made: Made,
}

pub(super) fn snapshot_key(feed: &FeedId, id: u64) -> Vec<u8> {
    format!("replication/{feed}/snapshot/{id:020}").into_bytes()
}

/// Names a snapshot whose pages are being written, until its index is.
pub(super) fn begun_key(feed: &FeedId, id: u64) -> Vec<u8> {
    format!("replication/{feed}/begun/{id:020}").into_bytes()
}

pub(super) fn snapshot_page_key(feed: &FeedId, id: u64, number: u64) -> Vec<u8> {
    format!("replication/{feed}/items/{id:020}/{number:020}").into_bytes()
}
