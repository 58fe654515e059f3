//! Stored records of sealed pages and of retention.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::replication::pages::{Cleanup, PageSpan, UnlinkedPages};
use towpath_proto::replication::publish::{FeedPageLinks, MultipartPage};
use towpath_store::{LogHead, Store, Table};

use crate::engine::json_record;
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Number of records removed in one write.
pub(crate) const RECORDS: usize = 1000;

/// Headers of a page of Data Replication. Stored with the page, so that HEAD needs no body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PageHeaders {
    content_type: String,
    last_modified: Timestamp,
    digest: [u8; 32],
    /// Length of the body in bytes.
    pub(crate) length: u64,
}

impl PageHeaders {
    /// Takes the headers of a page.
    pub(crate) fn of(page: &MultipartPage) -> Self {
        Self {
            content_type: page.content_type.clone(),
            last_modified: page.last_modified,
            digest: page.digest,
            length: page.body.len() as u64,
        }
    }

    fn without_body(&self) -> MultipartPage {
        MultipartPage {
            body: Bytes::new(),
            content_type: self.content_type.clone(),
            last_modified: self.last_modified,
            digest: self.digest,
        }
    }

    /// Returns the headers of a snapshot's page.
    pub(crate) fn headers(&self) -> HeaderMap {
        self.without_body().headers()
    }

    /// Returns the headers of a feed's page.
    pub(crate) fn feed_headers(&self, links: &FeedPageLinks) -> HeaderMap {
        self.without_body().feed_headers(links)
    }
}

/// Record of a sealed page: its range of the log, and the headers of its page of Data Replication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealedPage {
    pub(crate) span: PageSpan,
    pub(crate) made: PageHeaders,
}

/// Removed pages, and pages whose grace period runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RetentionRecord {
    pub(crate) cleanup: Cleanup,
    pub(crate) pending: Vec<UnlinkedPages>,
}

/// Key of the last sealed page's record.
pub(crate) fn last_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/last").into_bytes()
}

pub(crate) fn page_key(feed: &FeedId, number: u64) -> Vec<u8> {
    format!("replication/{feed}/page/{number:020}").into_bytes()
}

pub(crate) fn retention_key(feed: &FeedId) -> Vec<u8> {
    format!("replication/{feed}/retention").into_bytes()
}

/// Returns a key without its last number.
pub(crate) fn prefix(key: &[u8]) -> &[u8] {
    &key[..key.len() - 20]
}

/// Reads the ranges of sealed pages from a number on, oldest first.
pub(crate) async fn sealed_pages_from(
    store: &dyn Store,
    feed: &FeedId,
    number: u64,
) -> Result<Vec<PageSpan>, StoreError> {
    // A scan begins behind its key, so the key before is given.
    let before = page_key(feed, number.saturating_sub(1));
    let mut spans = Vec::new();
    let mut scan = TableScan::after(store, Table::Chains, prefix(&before), before.clone());
    while let Some(records) = scan.next().await? {
        for (key, value) in &records {
            spans.push(json_record::parse::<SealedPage>(key, value)?.span);
        }
    }
    Ok(spans)
}

/// Ends the pages up to the horizon, which are gone from now on. The next page begins behind it.
pub(crate) async fn end_pages(store: &dyn Store, feed: &FeedId, head: LogHead) -> Result<(), StoreError> {
    let mut retention: RetentionRecord =
        json_record::load(store, &retention_key(feed)).await?.unwrap_or_default();
    let last: Option<PageSpan> = json_record::load(store, &last_key(feed)).await?;
    let pages = sealed_pages_from(store, feed, retention.cleanup.gone_below).await?;
    let mut writes = Vec::new();
    let first = match pages.iter().find(|page| page.first > head.horizon) {
        Some(page) => page.number,
        None => {
            let (number, first) = last.map_or((0, 1), |last| (last.number, last.last + 1));
            if first > head.horizon {
                number + 1
            } else {
                // The open page lost changes, too: it ends, and is gone.
                let (oldest, modified) = (head.modified, head.modified);
                let ended =
                    PageSpan { number: number + 1, first, last: head.horizon, bytes: 0, oldest, modified };
                writes.push(json_record::put(last_key(feed), &ended));
                number + 2
            }
        }
    };
    retention.cleanup = Cleanup { first_page: first, gone_below: first };
    retention.pending.clear();
    writes.push(json_record::put(retention_key(feed), &retention));
    Ok(store.write(writes, Vec::new()).await?)
}

/// Returns the position before the first page that is still served: what is after it must stay in the log.
pub(crate) async fn end_of_gone_pages(store: &dyn Store, feed: &FeedId) -> Result<Seq, StoreError> {
    let retention: Option<RetentionRecord> = json_record::load(store, &retention_key(feed)).await?;
    let first = retention.unwrap_or_default().cleanup.gone_below;
    if first <= 1 {
        return Ok(0);
    }
    match sealed_page(store, feed, first).await? {
        Some(page) => Ok(page.span.first.saturating_sub(1)),
        // The last sealed page is gone too. The newest page follows it.
        None => {
            let last: Option<PageSpan> = json_record::load(store, &last_key(feed)).await?;
            Ok(last.filter(|last| last.number < first).map_or(0, |last| last.last))
        }
    }
}

/// Reads the record of a page; `None` before it is sealed.
pub(crate) async fn sealed_page(
    store: &dyn Store,
    feed: &FeedId,
    number: u64,
) -> Result<Option<SealedPage>, StoreError> {
    json_record::load(store, &page_key(feed, number)).await
}
