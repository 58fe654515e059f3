//! What is kept of pages beside the log, and reading and writing such records.

use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::replication::pages::{Cleanup, LetGo, PageSpan};
use towpath_store::{Store, StoreError, Table};

use crate::engine::record;
use crate::engine::replication::table::Made;
use crate::engine::scan::Scan;

/// How many records are removed at a time.
pub(in crate::engine) const RECORDS: usize = 1000;

/// The record of a sealed page: its stretch of the log, and what the headers of its page of Data Replication say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct Sealed {
    pub(in crate::engine) span: PageSpan,
    pub(in crate::engine) made: Made,
}

/// What retention did and has still to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct Tidied {
    pub(in crate::engine) cleanup: Cleanup,
    pub(in crate::engine) pending: Vec<LetGo>,
}

/// Where the last sealed page is.
pub(in crate::engine) fn last_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/last").into_bytes()
}

pub(in crate::engine) fn page_key(feed: &FeedId, number: u64) -> Vec<u8> {
    format!("replication/{feed}/page/{number:020}").into_bytes()
}

pub(in crate::engine) fn tidied_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/retention").into_bytes()
}

/// The same keys without their last number.
pub(in crate::engine) fn prefix(key: &[u8]) -> &[u8] {
    &key[..key.len() - 20]
}

/// The records of sealed pages from a number on, oldest first.
pub(in crate::engine) async fn sealed_from(
    store: &dyn Store,
    feed: &FeedId,
    number: u64,
) -> Result<Vec<PageSpan>, StoreError> {
    let before = page_key(feed, number.saturating_sub(1));
    let mut spans = Vec::new();
    let mut scan = Scan::after(store, Table::Chains, prefix(&before), before.clone());
    while let Some(records) = scan.next().await? {
        for (key, value) in &records {
            spans.push(record::parse::<Sealed>(key, value)?.span);
        }
    }
    Ok(spans)
}

/// The record of a page, once it is sealed.
pub(in crate::engine) async fn sealed(
    store: &dyn Store,
    feed: &FeedId,
    number: u64,
) -> Result<Option<Sealed>, StoreError> {
    record::load(store, &page_key(feed, number)).await
}
