//! Building a snapshot: its pages, then its index.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use towpath_proto::Op;
use towpath_proto::change::Seq;
use towpath_proto::replication::entity;
use towpath_proto::replication::publish::MultipartPage;
use towpath_proto::replication::snapshot::{SnapshotWriter, floor_to_second};
use towpath_store::{ItemOrder, LogHead, Precondition, SeqRange, Table};

use super::kept::{drop_old, list, remove_unfinished};
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::{PageHeaders, READ, limits, page_at};
use crate::protocols::replication::documents;
use crate::protocols::replication::stored::{self, Snapshot, SnapshotPageRecord};
use crate::store_error::StoreError;

/// Held while a feed's snapshot is made.
#[derive(Default)]
struct SnapshotLock(tokio::sync::Mutex<()>);

/// Position of the log at which the snapshot was begun that is being made.
#[derive(Default)]
pub(super) struct SnapshotBase(parking_lot::Mutex<Option<Seq>>);

impl SnapshotBase {
    /// Returns the position, while a snapshot is being made.
    pub(super) fn get(&self) -> Option<Seq> {
        *self.0.lock()
    }
}

/// Clears the [`SnapshotBase`] when a snapshot is made, or was given up.
struct BaseGuard<'a>(&'a SnapshotBase);

impl Drop for BaseGuard<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

/// Makes a snapshot, and drops the oldest ones beyond the configured number. Returns `None` while another one is made.
///
/// # Errors
///
/// [`StoreError`] if the log cannot be read or the pages cannot be written; a conflict if `conditions` do not hold at
/// the begin.
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
    let feed_goes_on = continuation(engine, feed, head.seq).await?;
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
async fn continuation(
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
                    records.push(pages.end_page(&page));
                }
                pages.add(change.seq);
            }
            (writer, pages, records)
        })
        .await?;
        (writer, pages) = (kept, written);
        store_pages(engine, feed, id, records, goes_on).await?;
    }
    if let Some(page) = blocking(move || writer.finish()).await? {
        let record = pages.end_page(&page);
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
    fn add(&mut self, seq: Seq) {
        self.items += 1;
        match self.places.last_mut() {
            // Consecutive positions as one run: items that never changed take a few bytes together.
            Some((first, count)) if *first + *count == seq => *count += 1,
            _ => self.places.push((seq, 1)),
        }
    }

    fn end_page(&mut self, page: &MultipartPage) -> (u64, SnapshotPageRecord) {
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
