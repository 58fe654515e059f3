//! Documents of a snapshot: its index and its pages, made from the log when they are asked for.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use towpath_proto::format::http_date;
use towpath_proto::replication::entity;
use towpath_proto::replication::publish::{self, PageBuilder};
use towpath_proto::replication::snapshot::{Continuation, SnapshotIndex};

use super::kept::{index_path, list, page_path};
use crate::document::prebuilt::{Document, Valid};
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::read_range;
use crate::protocols::replication::documents::{self, PageLookup, PagePart};
use crate::protocols::replication::stored::{self, Snapshot, SnapshotPageRecord};
use crate::store_error::StoreError;

const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// Drops the index of a snapshot, or one of its pages, from the cache after a write to its key: another node may have
/// removed it.
pub(crate) fn on_snapshot_written(engine: &Engine, feed: &str, id: &str, number: Option<&str>) {
    let Some((feed, id)) = engine.feed(feed).zip(id.parse().ok()) else { return };
    let path = match number {
        None => Some(index_path(&feed, id)),
        Some(number) => number.parse().ok().map(|number| page_path(&feed, id, number)),
    };
    path.inspect(|path| engine.documents.forget(path));
}

/// Returns the index of a snapshot, or of the newest one if `id` is `None`.
///
/// # Errors
///
/// [`StoreError`] if the snapshot's record cannot be read.
pub async fn index(
    engine: &Engine,
    feed: &Feed,
    id: Option<u64>,
) -> Result<Option<Arc<Document>>, StoreError> {
    let snapshot = match id {
        Some(id) => json_record::load(engine.store.as_ref(), &stored::snapshot_key(feed.id(), id)).await?,
        None => list(engine, feed).await?.pop(),
    };
    let Some(snapshot) = snapshot else { return Ok(None) };
    let snapshot: Snapshot = snapshot;
    let body = Bytes::from(index_of(engine, feed, &snapshot).to_json());
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let etag = format!("\"{}\"", hex::encode(&Sha256::digest(&body)[..16]));
    for (name, value) in [(ETAG, etag), (LAST_MODIFIED, http_date::write(snapshot.created_at))] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    let cache = HeaderValue::from_static(if id.is_some() { IMMUTABLE } else { "no-cache" });
    headers.insert(CACHE_CONTROL, cache);
    let document = Document::new(body, headers, Valid::Immutable).dated_by_its_changes();
    Ok(Some(match id {
        Some(id) => engine.documents.put(&index_path(feed, id), document),
        None => Arc::new(document),
    }))
}

/// Makes a snapshot's index.
pub fn index_of(engine: &Engine, feed: &Feed, snapshot: &Snapshot) -> SnapshotIndex {
    let url = |number| format!("{}{}", engine.base_url, page_path(feed, snapshot.id, number));
    let address = documents::address(engine, feed);
    let goes_on = snapshot.goes_on.clone();
    SnapshotIndex {
        id: snapshot.id.to_string(),
        created_at: snapshot.created_at,
        pages: (0..snapshot.pages).map(url).collect(),
        continuation: goes_on
            .map(|(page, after)| Continuation { page: publish::page_url(&address, page), after }),
        feed: Some(address),
    }
}

/// Looks up a page of a snapshot; of it [`PagePart::Head`] only for a HEAD request.
///
/// # Errors
///
/// [`StoreError`] if the snapshot's records or the log cannot be read.
pub(crate) async fn page(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    id: u64,
    number: u64,
    part: PagePart,
) -> Result<PageLookup, StoreError> {
    let store = engine.store.as_ref();
    let is_complete: Option<Snapshot> =
        json_record::load(store, &stored::snapshot_key(feed.id(), id)).await?;
    let page: Option<SnapshotPageRecord> =
        json_record::load(store, &stored::snapshot_page_key(feed.id(), id, number)).await?;
    // Pages of an unfinished snapshot exist, but must not be seen.
    let (Some(_), Some(SnapshotPageRecord { places, made })) = (is_complete, page) else {
        return Ok(PageLookup::NotFound);
    };
    let immutable = |mut headers: HeaderMap| {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(IMMUTABLE));
        headers
    };
    if part == PagePart::Head {
        return Ok(PageLookup::Head(immutable(made.headers()), made.length));
    }
    let mut changes = Vec::new();
    for (first, count) in places {
        changes.extend(read_range(engine, feed, first, first + count - 1).await?);
    }
    let page = blocking(move || {
        let mut builder = PageBuilder::new(&format!("{id}/{number}"));
        for change in &changes {
            builder.push(entity::snapshot_entity(change), change.modified);
        }
        builder.finish()
    });
    let Some(page) = page.await? else { return Ok(PageLookup::NotFound) };
    let headers = immutable(page.headers());
    let document = Document::new(page.body, headers, Valid::Immutable);
    Ok(PageLookup::Page(engine.documents.put(&page_path(feed, id, number), document)))
}
