//! Snapshots: a feed's live items at some time, as pages under an index.
//!
//! A snapshot is walked in the order in which items were created, which does not move, one page at a time in
//! memory. Its index is written last: before that nobody sees it, and what a crash left of it is removed when the
//! next one is made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use towpath_proto::Op;
use towpath_proto::change::Seq;
use towpath_proto::format::http_date;
use towpath_proto::replication::entity;
use towpath_proto::replication::publish::{self, MultipartPage, PageBuilder};
use towpath_proto::replication::snapshot::{Continuation, SnapshotIndex, SnapshotWriter, floor_to_second};
use towpath_store::{ItemOrder, LogHead, Precondition, SeqRange, Table, WriteError};

use crate::document::prebuilt::{Document, Valid};
use crate::engine::roles::{Lease, conditions};
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::table::{self, RECORDS};
use crate::protocols::pages::{PageHeaders, READ, limits, page_at, read_range, report};
use crate::protocols::replication::documents::{self, PageLookup};
use crate::protocols::replication::stored::{self, SnapshotPageRecord};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

pub use crate::protocols::replication::stored::Snapshot;

/// Longest time between two rounds.
const LONGEST: Duration = Duration::from_secs(60);
/// Time without a further page after which a snapshot counts as left by a crash.
const UNFINISHED: SignedDuration = SignedDuration::from_secs(8);
/// Time until the next round while another node may still write a snapshot.
const RETRY: Duration = Duration::from_secs(1);

/// Held while a feed's snapshot is made.
#[derive(Default)]
struct SnapshotLock(tokio::sync::Mutex<()>);

/// Position of the log at which the snapshot was begun that is being made.
#[derive(Default)]
struct SnapshotBase(parking_lot::Mutex<Option<Seq>>);

/// Clears the [`SnapshotBase`] when a snapshot is made, or was given up.
struct BaseGuard<'a>(&'a SnapshotBase);

impl Drop for BaseGuard<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

/// Makes the configured snapshots when they are due, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    let (engine, lease) = (&engine, &lease);
    let every = |feed: &Arc<Feed>| feed.config.snapshots.every;
    let mut changes = engine.feed_changes();
    while !*stop.borrow() {
        changes.mark_unchanged();
        let feeds: Vec<(Arc<Feed>, Duration)> =
            engine.feeds().into_iter().filter_map(|feed| Some((feed.clone(), every(&feed)?))).collect();
        let Some(shortest) = feeds.iter().map(|(_, every)| *every).min() else {
            tokio::select! {
                _ = changes.changed() => continue,
                () = stopped(&stop) => return,
            }
        };
        let mut wait = (shortest / 4).min(LONGEST);
        for (feed, every) in &feeds {
            tokio::select! {
                done = make_if_due(engine, lease, feed, *every) => match done {
                    Ok(true) => report(engine, feed, "make a snapshot", Ok(())),
                    Ok(false) => wait = wait.min(RETRY),
                    Err(e) => report(engine, feed, "make a snapshot", Err(e)),
                },
                // An incomplete snapshot is removed and begun again after the restart.
                () = stopped(&stop) => return,
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = changes.changed() => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Makes a snapshot if it is due and the feed changed since the last. Returns false if another node makes one.
async fn make_if_due(
    engine: &Arc<Engine>,
    lease: &Lease,
    feed: &Arc<Feed>,
    every: Duration,
) -> Result<bool, StoreError> {
    let head = engine.store.head(feed.id()).await?;
    let last = list(engine, feed).await?.pop();
    let every = SignedDuration::try_from(every).unwrap_or(SignedDuration::MAX);
    let is_due = last.is_none_or(|last| head.seq > last.seq && age(engine, last.id) >= every);
    if head.seq > 0 && is_due {
        return Ok(make(engine, feed, conditions(lease)).await?.is_some());
    }
    Ok(true)
}

/// Makes a snapshot, and drops the oldest ones beyond the configured number. Returns `None` while another one is made.
///
/// # Errors
///
/// The store's; a conflict if `conditions` do not hold at the begin.
pub async fn make(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    conditions: Vec<Precondition>,
) -> Result<Option<Snapshot>, StoreError> {
    // `try_lock`: a second request gets 503 instead of a second walk over the feed.
    let Ok(_making) = feed.extensions.get_or_insert_with(SnapshotLock::default).0.try_lock() else {
        return Ok(None);
    };
    let store = engine.store.as_ref();
    if !remove_unfinished(engine, feed).await? {
        return Ok(None);
    }
    let head = engine.store.head(feed.id()).await?;
    // Before the first item is read: retention of the log leaves what is read from here on.
    let base = feed.extensions.get_or_insert_with(SnapshotBase::default);
    *base.0.lock() = Some(head.seq);
    let _base = BaseGuard(base);
    let feed_goes_on = goes_on(engine, feed, head.seq).await?;
    let created_at = creation_time(engine, feed, head).await?;
    let last = list(engine, feed).await?.last().map_or(0, |last| last.id + 1);
    // Above the last id even if the clock was set back: ids are the order of the snapshots.
    let id = u64::try_from(engine.now().as_microsecond()).unwrap_or(0).max(last);
    let begun = stored::begun_key(feed.id(), id);
    let write = json_record::put(begun.clone(), &engine.now());
    // Holds as long as no other node takes the snapshot for one that a crash left.
    let mut goes_on = Precondition { table: Table::Chains, key: begun.clone(), value: write.value.clone() };
    store.write(vec![write], conditions).await?;
    let (pages, items) = write_pages(engine, feed, id, head.seq, &mut goes_on).await?;
    let snapshot = Snapshot { id, created_at, pages, items, seq: head.seq, goes_on: feed_goes_on };
    let index = json_record::put(stored::snapshot_key(feed.id(), id), &snapshot);
    // In one batch: a crash leaves either the mark or a complete snapshot.
    store.write(vec![index, json_record::remove(begun)], vec![goes_on]).await?;
    drop_old(engine, feed).await?;
    Ok(Some(snapshot))
}

/// Returns the snapshot's time: every change that the snapshot may lack is at that time or later.
///
/// That is the time of the last change, because times never decrease along the log. The clock would be wrong: a mirror
/// appends changes with its publisher's times, which are earlier. If the whole feed was published within that second,
/// no older change proves to a reader that it enters the feed early enough. Then it is the clock's next second, except
/// for a mirror.
async fn creation_time(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    head: LogHead,
) -> Result<Timestamp, StoreError> {
    let is_mirror = feed.config.source.as_ref().is_some_and(|source| source.follow.is_some());
    let second = floor_to_second(head.modified);
    let oldest = documents::oldest(engine, feed).await?;
    if head.seq > 0 && (is_mirror || oldest.is_some_and(|oldest| oldest < second)) {
        return Ok(head.modified);
    }
    let now = engine.now();
    // To the next full second, since Last-Modified has no finer unit.
    let wait = SignedDuration::from_secs(1) - now.duration_since(floor_to_second(now));
    if floor_to_second(now) <= second
        && let Ok(wait) = Duration::try_from(wait)
    {
        tokio::time::sleep(wait).await;
    }
    Ok(engine.now())
}

/// Returns the page of the position `last` and the Content-ID there. An empty feed continues on its first page.
async fn goes_on(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    last: Seq,
) -> Result<Option<(u64, Option<String>)>, StoreError> {
    if last == 0 {
        return Ok(Some((1, None)));
    }
    let Some(page) = page_at(engine, feed, last).await? else { return Ok(None) };
    let change = engine.store.change(feed.id(), last).await?;
    Ok(change.map(|change| (page, Some(entity::content_id(feed.id(), &change)))))
}

/// Writes the items that existed at the position `last`, in their latest versions. Returns the numbers of pages and items.
async fn write_pages(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    id: u64,
    last: Seq,
    goes_on: &mut Precondition,
) -> Result<(u64, u64), StoreError> {
    let mut pages = SnapshotPages { number: 0, items: 0, places: Vec::new() };
    let mut writer = SnapshotWriter::new(&id.to_string(), limits(feed));
    // Items created after the head that the index names come with the pages, not with the snapshot.
    let mut along = SeqRange { before: Some(last + 1), ..SeqRange::default() };
    loop {
        let changes = engine.store.items(feed.id(), ItemOrder::Created, along, READ).await?;
        let Some(reached) = changes.last() else { break };
        along.after = Some(reached.first_seq);
        // Hashing and writing a page takes milliseconds: not where requests are served.
        let (kept, written, records) = blocking(move || {
            let mut records = Vec::new();
            for change in changes.iter().filter(|change| change.op != Op::Delete) {
                if let Some(page) = writer.push(change) {
                    records.push(pages.turn(&page));
                }
                pages.place(change.seq);
            }
            (writer, pages, records)
        })
        .await?;
        (writer, pages) = (kept, written);
        store_pages(engine, feed, id, records, goes_on).await?;
    }
    if let Some(page) = blocking(move || writer.finish()).await? {
        let record = pages.turn(&page);
        store_pages(engine, feed, id, vec![record], goes_on).await?;
    }
    Ok((pages.number, pages.items))
}

/// Records of a snapshot's pages, while they are built.
struct SnapshotPages {
    number: u64,
    items: u64,
    places: Vec<(Seq, u64)>,
}

impl SnapshotPages {
    fn place(&mut self, seq: Seq) {
        self.items += 1;
        match self.places.last_mut() {
            // Consecutive positions as one run: items that never changed take a few bytes together.
            Some((first, count)) if *first + *count == seq => *count += 1,
            _ => self.places.push((seq, 1)),
        }
    }

    fn turn(&mut self, page: &MultipartPage) -> (u64, SnapshotPageRecord) {
        let record =
            SnapshotPageRecord { places: std::mem::take(&mut self.places), made: PageHeaders::of(page) };
        self.number += 1;
        (self.number - 1, record)
    }
}

/// Stores records of pages, and the time as a sign that the snapshot goes on.
async fn store_pages(
    engine: &Engine,
    feed: &Feed,
    id: u64,
    records: Vec<(u64, SnapshotPageRecord)>,
    goes_on: &mut Precondition,
) -> Result<(), StoreError> {
    if records.is_empty() {
        return Ok(());
    }
    let key = |number| stored::snapshot_page_key(feed.id(), id, number);
    let begun = json_record::put(goes_on.key.clone(), &engine.now());
    let value = begun.value.clone();
    let pages = records.iter().map(|(number, record)| json_record::put(key(*number), record));
    engine.store.write(pages.chain([begun]).collect(), vec![goes_on.clone()]).await?;
    goes_on.value = value;
    Ok(())
}

/// Returns every complete snapshot, oldest first.
///
/// # Errors
///
/// The store's.
pub async fn list(engine: &Engine, feed: &Feed) -> Result<Vec<Snapshot>, StoreError> {
    let key = stored::snapshot_key(feed.id(), 0);
    let records = engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await?;
    records.iter().map(|(key, value)| json_record::parse(key, value)).collect()
}

async fn drop_old(engine: &Engine, feed: &Feed) -> Result<(), StoreError> {
    let all = list(engine, feed).await?;
    let surplus = all.len().saturating_sub(feed.config.snapshots.keep);
    for old in &all[..surplus] {
        remove(engine, feed, old).await?;
    }
    Ok(())
}

/// Removes a snapshot.
async fn remove(engine: &Engine, feed: &Feed, old: &Snapshot) -> Result<(), StoreError> {
    // The index is removed first: it must not lead to removed pages.
    let index = json_record::remove(stored::snapshot_key(feed.id(), old.id));
    engine.store.write(vec![index], Vec::new()).await?;
    engine.documents.forget(&index_path(feed, old.id));
    for number in 0..old.pages {
        engine.documents.forget(&page_path(feed, old.id, number));
    }
    remove_pages(engine, feed, old.id).await
}

/// Returns the position up to which no snapshot needs the log: what comes after replaces a version that one has.
///
/// Removes snapshots from which nobody can go on, because the page at their end is `gone`.
///
/// # Errors
///
/// The store's.
pub(crate) async fn needed_after(engine: &Engine, feed: &Feed, gone: Seq) -> Result<Seq, StoreError> {
    // Before the list: a snapshot that is complete by then is in it.
    let base = *feed.extensions.get_or_insert_with(SnapshotBase::default).0.lock();
    let mut needed = base.unwrap_or(Seq::MAX);
    for snapshot in list(engine, feed).await? {
        if gone > 0 && snapshot.seq <= gone {
            remove(engine, feed, &snapshot).await?;
        } else {
            needed = needed.min(snapshot.seq);
        }
    }
    Ok(needed)
}

/// Removes pages of snapshots that a crash left incomplete. Returns false if another node may still write one.
async fn remove_unfinished(engine: &Engine, feed: &Feed) -> Result<bool, StoreError> {
    let key = stored::begun_key(feed.id(), 0);
    for (key, value) in engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await? {
        let id = std::str::from_utf8(&key[key.len() - 20..]).ok().and_then(|digits| digits.parse().ok());
        let last: Option<Timestamp> = serde_json::from_slice(&value).ok();
        let goes_on = |last| engine.now().duration_since(last) < UNFINISHED;
        // A single process holds the lock of `make`, so there any mark is a crash's.
        if engine.is_shared() && last.is_some_and(goes_on) {
            return Ok(false);
        }
        // A node that still writes it after all fails at its next write, because the row is another one.
        let as_read = Precondition { table: Table::Chains, key: key.to_vec(), value: Some(value) };
        match engine.store.write(vec![json_record::put(key.to_vec(), &engine.now())], vec![as_read]).await {
            Err(WriteError::Precondition { .. }) => return Ok(false),
            written => written?,
        }
        if let Some(id) = id {
            remove_pages(engine, feed, id).await?;
        }
        engine.store.write(vec![json_record::remove(key.to_vec())], Vec::new()).await?;
    }
    Ok(true)
}

/// Returns the time since a snapshot was begun.
fn age(engine: &Engine, id: u64) -> SignedDuration {
    let begun = i64::try_from(id).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    begun.map_or(SignedDuration::MAX, |begun| engine.now().duration_since(begun))
}

async fn remove_pages(engine: &Engine, feed: &Feed, id: u64) -> Result<(), StoreError> {
    let key = stored::snapshot_page_key(feed.id(), id, 0);
    loop {
        let records = engine.store.scan(Table::Chains, table::prefix(&key), None, RECORDS).await?;
        if records.is_empty() {
            return Ok(());
        }
        let writes = records.into_iter().map(|(key, _)| json_record::remove(key.to_vec())).collect();
        engine.store.write(writes, Vec::new()).await?;
    }
}

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
/// The store's.
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

/// Looks up a page of a snapshot; with `only_head`, its headers.
///
/// # Errors
///
/// The store's.
pub(crate) async fn page(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    id: u64,
    number: u64,
    only_head: bool,
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
    if only_head {
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

const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// Path of a snapshot's index.
pub fn index_path(feed: &Feed, id: u64) -> String {
    format!("/feeds/{}/snapshots/{id}", feed.id())
}

fn page_path(feed: &Feed, id: u64, number: u64) -> String {
    format!("{}/pages/{number}", index_path(feed, id))
}
