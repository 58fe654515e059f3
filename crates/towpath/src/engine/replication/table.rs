//! What is kept of pages and snapshots beside the log.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::replication::pages::{Cleanup, LetGo, PageSpan};
use towpath_proto::replication::publish::{Page, PageLinks};
use towpath_store::{Store, StoreError, Table, Write};

/// How many records are read or removed at a time.
pub(super) const RECORDS: usize = 1000;

/// All that a page's headers say, so that HEAD needs no body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    content_type: String,
    last_modified: Timestamp,
    digest: [u8; 32],
    /// The body's length in bytes.
    pub(super) length: u64,
}

impl Made {
    pub(super) fn of(page: &Page) -> Self {
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

    pub(super) fn headers(&self) -> HeaderMap {
        self.without_body().headers()
    }

    pub(super) fn feed_headers(&self, links: &PageLinks) -> HeaderMap {
        self.without_body().feed_headers(links)
    }
}

/// The record of a sealed page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sealed {
    pub(super) span: PageSpan,
    pub(super) made: Made,
}

/// What retention did and has still to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tidied {
    pub(super) cleanup: Cleanup,
    pub(super) pending: Vec<LetGo>,
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
}

/// The record of a snapshot's page: where in the log its items stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotPage {
    /// Runs of places that follow each other: the first, and how many.
    pub(super) places: Vec<(Seq, u64)>,
    pub(super) made: Made,
}

/// Where the last sealed page is.
pub(super) fn last_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/last").into_bytes()
}

pub(super) fn page_key(feed: &FeedId, number: u64) -> Vec<u8> {
    format!("replication/{feed}/page/{number:020}").into_bytes()
}

pub(super) fn tidied_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/retention").into_bytes()
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

/// The same keys without their last number.
pub(super) fn prefix(key: &[u8]) -> &[u8] {
    &key[..key.len() - 20]
}

/// A record of a key, where there is one.
pub(super) async fn load<T: DeserializeOwned>(
    store: &dyn Store,
    key: &[u8],
) -> Result<Option<T>, StoreError> {
    let value = store.get(Table::Chains, key).await?;
    value.map(|value| parse(key, &value)).transpose()
}

pub(super) fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    let error = |e| StoreError::Damaged(format!("{}: {e}", String::from_utf8_lossy(key)));
    serde_json::from_slice(value).map_err(error)
}

/// The records of sealed pages from a number on, oldest first.
pub(super) async fn sealed_from(
    store: &dyn Store,
    feed: &FeedId,
    number: u64,
) -> Result<Vec<PageSpan>, StoreError> {
    let mut after = page_key(feed, number.saturating_sub(1));
    let mut spans = Vec::new();
    loop {
        let records = store.scan(Table::Chains, prefix(&page_key(feed, 0)), Some(&after), RECORDS).await?;
        for (key, value) in &records {
            spans.push(parse::<Sealed>(key, value)?.span);
        }
        match records.last() {
            Some((key, _)) if records.len() == RECORDS => after = key.to_vec(),
            _ => return Ok(spans),
        }
    }
}

/// The write of a record. Records are types of ours, which serialise always.
pub(super) fn put(key: Vec<u8>, record: &impl Serialize) -> Write {
    let value = serde_json::to_vec(record).unwrap_or_default();
    Write { table: Table::Chains, key, value: Some(value.into()) }
}

pub(super) fn remove(key: Vec<u8>) -> Write {
    Write { table: Table::Chains, key, value: None }
}
