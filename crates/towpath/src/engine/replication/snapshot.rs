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
use towpath_proto::replication::publish::{self, Page, PageBuilder};
use towpath_proto::replication::snapshot::{GoesOn, SnapshotIndex, SnapshotWriter, floor_to_second};
use towpath_store::{Condition, Head, Order, StoreError, Stretch, Table};

use super::served::{self, Found};
use super::table::{self as kept, Made, SnapshotPage};
use crate::engine::pages::paging::page_at;
use crate::engine::pages::table::{self, RECORDS};
use crate::engine::pages::{READ, limits, report, stretch};
use crate::engine::record;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed, blocking};
use crate::server::document::{Document, Valid};
use crate::stop::{Stop, stopped};

pub use super::table::Snapshot;

/// The longest time between two looks at what is due.
const LONGEST: Duration = Duration::from_secs(60);
/// After how long without a further page another node takes a snapshot for what a crash left.
const UNFINISHED: SignedDuration = SignedDuration::from_secs(8);
/// How soon it is looked at again where another node may still write one.
const AGAIN: Duration = Duration::from_secs(1);

/// Makes the snapshots that the configuration wants, when they are due, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    let (engine, lease) = (&engine, &lease);
    let every = |feed: &Arc<Feed>| feed.config.snapshots.every;
    let feeds: Vec<(Arc<Feed>, Duration)> =
        engine.feeds().into_iter().filter_map(|feed| Some((feed.clone(), every(&feed)?))).collect();
    let Some(shortest) = feeds.iter().map(|(_, every)| *every).min() else { return };
    while !*stop.borrow() {
        let mut wait = (shortest / 4).min(LONGEST);
        for (feed, every) in &feeds {
            tokio::select! {
                done = make_if_due(engine, lease, feed, *every) => match done {
                    Ok(true) => {}
                    Ok(false) => wait = wait.min(AGAIN),
                    Err(e) => report(feed, "make a snapshot", Err(e)),
                },
                // What is not complete when the process ends is begun anew.
                () = stopped(&stop) => return,
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Whether it is made, if it is due: nothing is where nothing changed since the last.
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

/// Makes a snapshot and drops the oldest where there are more than are kept, if it may be begun on some conditions.
/// `None` while another one is made.
pub async fn make(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    conditions: Vec<Condition>,
) -> Result<Option<Snapshot>, StoreError> {
    let Ok(_alone) = feed.pages.snapshot.try_lock() else { return Ok(None) };
    let store = engine.store.as_ref();
    if !remove_unfinished(engine, feed).await? {
        return Ok(None);
    }
    let head = engine.store.head(feed.id()).await?;
    let feed_goes_on = goes_on(engine, feed, head.seq).await?;
    let created_at = creation_time(engine, feed, head).await?;
    let last = list(engine, feed).await?.last().map_or(0, |last| last.id + 1);
    let id = u64::try_from(engine.now().as_microsecond()).unwrap_or(0).max(last);
    let begun = kept::begun_key(feed.id(), id);
    let write = record::put(begun.clone(), &engine.now());
    // As long as nobody takes it for what a crash left.
    let mut goes_on = Condition { table: Table::Chains, key: begun.clone(), value: write.value.clone() };
    store.write(vec![write], conditions).await?;
    let (pages, items) = write_pages(engine, feed, id, head.seq, &mut goes_on).await?;
    let snapshot = Snapshot { id, created_at, pages, items, seq: head.seq, goes_on: feed_goes_on };
    let index = record::put(kept::snapshot_key(feed.id(), id), &snapshot);
    store.write(vec![index, record::remove(begun)], vec![goes_on]).await?;
    drop_old(engine, feed).await?;
    Ok(Some(snapshot))
}

/// The time at which a feed is to be entered after the snapshot: no change that the snapshot may lack is older.
///
/// That is the time of the last change, because times never decrease along the log; the clock says less, for
/// changes may be appended later with earlier times (a mirror has its publisher's). Where the whole feed was
/// published within that second, nothing older proves to a reader that he enters early enough: then it is the
/// clock's next second, except for a mirror.
async fn creation_time(engine: &Arc<Engine>, feed: &Arc<Feed>, head: Head) -> Result<Timestamp, StoreError> {
    let is_mirror = feed.config.source.as_ref().is_some_and(|source| source.follow.is_some());
    let second = floor_to_second(head.modified);
    let oldest = served::oldest(engine, feed).await?;
    if head.seq > 0 && (is_mirror || oldest.is_some_and(|oldest| oldest < second)) {
        return Ok(head.modified);
    }
    let now = engine.now();
    let wait = SignedDuration::from_secs(1) - now.duration_since(floor_to_second(now));
    if floor_to_second(now) <= second
        && let Ok(wait) = Duration::try_from(wait)
    {
        tokio::time::sleep(wait).await;
    }
    Ok(engine.now())
}

/// The page on which the place `last` stands, and its Content-ID. Of an empty feed the first page, and none.
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

/// Every item that was there at the place `last`, in its latest version. Returns how many pages and items.
async fn write_pages(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    id: u64,
    last: Seq,
    goes_on: &mut Condition,
) -> Result<(u64, u64), StoreError> {
    let mut pages = Pages { number: 0, items: 0, places: Vec::new() };
    let mut writer = SnapshotWriter::new(&id.to_string(), limits(feed));
    let mut along = Stretch { before: Some(last + 1), ..Stretch::default() };
    loop {
        let changes = engine.store.items(feed.id(), Order::Created, along, READ).await?;
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
        keep(engine, feed, id, records, goes_on).await?;
    }
    if let Some(page) = blocking(move || writer.finish()).await? {
        let record = pages.turn(&page);
        keep(engine, feed, id, vec![record], goes_on).await?;
    }
    Ok((pages.number, pages.items))
}

/// What of a snapshot's pages is to be kept.
struct Pages {
    number: u64,
    items: u64,
    places: Vec<(Seq, u64)>,
}

impl Pages {
    fn place(&mut self, seq: Seq) {
        self.items += 1;
        match self.places.last_mut() {
            Some((first, count)) if *first + *count == seq => *count += 1,
            _ => self.places.push((seq, 1)),
        }
    }

    fn turn(&mut self, page: &Page) -> (u64, SnapshotPage) {
        let record = SnapshotPage { places: std::mem::take(&mut self.places), made: Made::of(page) };
        self.number += 1;
        (self.number - 1, record)
    }
}

/// Keeps pages, and that the snapshot goes on.
async fn keep(
    engine: &Engine,
    feed: &Feed,
    id: u64,
    records: Vec<(u64, SnapshotPage)>,
    goes_on: &mut Condition,
) -> Result<(), StoreError> {
    if records.is_empty() {
        return Ok(());
    }
    let key = |number| kept::snapshot_page_key(feed.id(), id, number);
    let begun = record::put(goes_on.key.clone(), &engine.now());
    let value = begun.value.clone();
    let pages = records.iter().map(|(number, record)| record::put(key(*number), record));
    engine.store.write(pages.chain([begun]).collect(), vec![goes_on.clone()]).await?;
    goes_on.value = value;
    Ok(())
}

/// Every complete snapshot, oldest first.
pub async fn list(engine: &Engine, feed: &Feed) -> Result<Vec<Snapshot>, StoreError> {
    let key = kept::snapshot_key(feed.id(), 0);
    let records = engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await?;
    records.iter().map(|(key, value)| record::parse(key, value)).collect()
}

async fn drop_old(engine: &Engine, feed: &Feed) -> Result<(), StoreError> {
    let all = list(engine, feed).await?;
    let surplus = all.len().saturating_sub(feed.config.snapshots.keep);
    for old in &all[..surplus] {
        // The index goes first: nobody is sent to pages that are not there.
        let index = record::remove(kept::snapshot_key(feed.id(), old.id));
        engine.store.write(vec![index], Vec::new()).await?;
        engine.documents.forget(&index_path(feed, old.id));
        for number in 0..old.pages {
            engine.documents.forget(&page_path(feed, old.id, number));
        }
        remove_pages(engine, feed, old.id).await?;
    }
    Ok(())
}

/// Removes what a crash left of a snapshot; `false` where it may be that another node still writes it.
async fn remove_unfinished(engine: &Engine, feed: &Feed) -> Result<bool, StoreError> {
    let key = kept::begun_key(feed.id(), 0);
    for (key, value) in engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await? {
        let id = std::str::from_utf8(&key[key.len() - 20..]).ok().and_then(|digits| digits.parse().ok());
        let last: Option<Timestamp> = serde_json::from_slice(&value).ok();
        let goes_on = |last| engine.now().duration_since(last) < UNFINISHED;
        if engine.is_shared() && last.is_some_and(goes_on) {
            return Ok(false);
        }
        // Whoever still writes it after all cannot go on when the row is another.
        let as_read = Condition { table: Table::Chains, key: key.to_vec(), value: Some(value) };
        match engine.store.write(vec![record::put(key.to_vec(), &engine.now())], vec![as_read]).await {
            Err(StoreError::Condition) => return Ok(false),
            written => written?,
        }
        if let Some(id) = id {
            remove_pages(engine, feed, id).await?;
        }
        engine.store.write(vec![record::remove(key.to_vec())], Vec::new()).await?;
    }
    Ok(true)
}

/// How long ago a snapshot was begun.
fn age(engine: &Engine, id: u64) -> SignedDuration {
    let begun = i64::try_from(id).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    begun.map_or(SignedDuration::MAX, |begun| engine.now().duration_since(begun))
}

async fn remove_pages(engine: &Engine, feed: &Feed, id: u64) -> Result<(), StoreError> {
    let key = kept::snapshot_page_key(feed.id(), id, 0);
    loop {
        let records = engine.store.scan(Table::Chains, table::prefix(&key), None, RECORDS).await?;
        if records.is_empty() {
            return Ok(());
        }
        let writes = records.into_iter().map(|(key, _)| record::remove(key.to_vec())).collect();
        engine.store.write(writes, Vec::new()).await?;
    }
}

/// Forgets the index of a snapshot or one of its pages, as its key in the store says: another node may have dropped it.
pub(in crate::engine) fn forget(engine: &Engine, feed: &str, id: &str, number: Option<&str>) {
    let Some((feed, id)) = engine.feed(feed).zip(id.parse().ok()) else { return };
    let path = match number {
        None => Some(index_path(&feed, id)),
        Some(number) => number.parse().ok().map(|number| page_path(&feed, id, number)),
    };
    path.inspect(|path| engine.documents.forget(path));
}

/// The index of a snapshot, or of the newest one where `id` is `None`.
pub async fn index(
    engine: &Engine,
    feed: &Feed,
    id: Option<u64>,
) -> Result<Option<Arc<Document>>, StoreError> {
    let snapshot = match id {
        Some(id) => record::load(engine.store.as_ref(), &kept::snapshot_key(feed.id(), id)).await?,
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
    let cache = HeaderValue::from_static(if id.is_some() { FOR_EVER } else { "no-cache" });
    headers.insert(CACHE_CONTROL, cache);
    let document = Document::new(body, headers, Valid::Immutable).dated_by_its_changes();
    Ok(Some(match id {
        Some(id) => engine.documents.put(&index_path(feed, id), document),
        None => Arc::new(document),
    }))
}

/// A snapshot's index as the text has it.
pub fn index_of(engine: &Engine, feed: &Feed, snapshot: &Snapshot) -> SnapshotIndex {
    let url = |number| format!("{}{}", engine.base_url, page_path(feed, snapshot.id, number));
    let address = served::address(engine, feed);
    let goes_on = snapshot.goes_on.clone();
    SnapshotIndex {
        id: snapshot.id.to_string(),
        created_at: snapshot.created_at,
        pages: (0..snapshot.pages).map(url).collect(),
        goes_on: goes_on.map(|(page, after)| GoesOn { page: publish::page_url(&address, page), after }),
        feed: Some(address),
    }
}

/// A page of a snapshot, or with `only_head` what its headers say.
pub async fn page(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    id: u64,
    number: u64,
    only_head: bool,
) -> Result<Found, StoreError> {
    let store = engine.store.as_ref();
    let is_complete: Option<Snapshot> = record::load(store, &kept::snapshot_key(feed.id(), id)).await?;
    let page: Option<SnapshotPage> =
        record::load(store, &kept::snapshot_page_key(feed.id(), id, number)).await?;
    let (Some(_), Some(SnapshotPage { places, made })) = (is_complete, page) else {
        return Ok(Found::Nothing);
    };
    let for_ever = |mut headers: HeaderMap| {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
        headers
    };
    if only_head {
        return Ok(Found::Head(for_ever(made.headers()), made.length));
    }
    let mut changes = Vec::new();
    for (first, count) in places {
        changes.extend(stretch(engine, feed, first, first + count - 1).await?);
    }
    let page = blocking(move || {
        let mut builder = PageBuilder::new(&format!("{id}/{number}"));
        for change in &changes {
            builder.push(entity::snapshot_entity(change), change.modified);
        }
        builder.finish()
    });
    let Some(page) = page.await? else { return Ok(Found::Nothing) };
    let headers = for_ever(page.headers());
    let document = Document::new(page.body, headers, Valid::Immutable);
    Ok(Found::Page(engine.documents.put(&page_path(feed, id, number), document)))
}

const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Where a snapshot's index is, without the server's address.
pub fn index_path(feed: &Feed, id: u64) -> String {
    format!("/feeds/{}/snapshots/{id}", feed.id())
}

fn page_path(feed: &Feed, id: u64, number: u64) -> String {
    format!("{}/pages/{number}", index_path(feed, id))
}
