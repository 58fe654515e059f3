//! Changes that are published at a time to come (`publish_at`).
//!
//! A scheduled change is a row of its item, and an empty row in an index by time. One node at a time appends what is
//! due ([`run`]). A later change of the item removes the rows before it is appended, and puts them back if it is refused.
//! The task appends only on the version that it saw before it read the row: so a scheduled change never replaces a later
//! one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use towpath_proto::line::Line;
use towpath_proto::{FeedId, NewChange, Op};
use towpath_store::{AppendError, Expected, Precondition, Store, Table, TableWrite, WriteError};
use tracing::Instrument as _;

use super::Engine;
use super::attachments;
use super::roles::{self, Lease};
use super::table_scan::TableScan;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Rows of items: `publish-at/item/{feed}/{id}`.
const ITEMS: &str = "publish-at/item/";
/// Index by time: `publish-at/time/`, milliseconds as eight bytes, `{feed}/{id}`.
const TIMES: &[u8] = b"publish-at/time/";
/// Longest time between two looks at the index.
// The wall clock may be set meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Time until a failed round is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Attempts of a write that races with others.
const TRIES: usize = 20;

/// Scheduled change, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct ScheduledRow {
    at: Timestamp,
    line: Line,
}

/// Scheduled change, as the status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ScheduledChange {
    /// Id of the item.
    pub id: String,
    /// Operation.
    #[schemars(schema_with = "op_schema")]
    pub op: Op,
    /// Time at which it is published.
    pub publish_at: Timestamp,
}

/// Schema of an operation on an item.
pub(crate) fn op_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "enum": ["put", "patch", "delete"] })
}

/// Wakes the task after a change was scheduled, and knows whether any change can be.
#[derive(Default)]
struct Scheduled {
    changed: Notify,
    presence: AtomicU8,
}

/// Values of [`Scheduled::presence`]: it was not looked yet, nothing is scheduled, and something was.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

impl Scheduled {
    fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Returns true if no feed has a scheduled change.
    ///
    /// Most servers never schedule one. Each change of theirs would pay for a scan of the store.
    async fn is_empty(&self, engine: &Engine) -> Result<bool, StoreError> {
        match self.presence.load(Ordering::Acquire) {
            NONE => return Ok(true),
            // Other nodes schedule changes, too.
            UNKNOWN if !engine.is_shared() => {}
            _ => return Ok(false),
        }
        let is_empty = engine.store.scan(Table::Sources, ITEMS.as_bytes(), None, 1).await?.is_empty();
        let presence = if is_empty { NONE } else { SOME };
        // Fails where a change was scheduled since the load: the scan may have come before it.
        let _ = self.presence.compare_exchange(UNKNOWN, presence, Ordering::AcqRel, Ordering::Acquire);
        Ok(is_empty)
    }
}

/// Wakes the task after another node has scheduled a change. Runs on the store's thread.
pub(crate) fn on_table_write(engine: &Arc<Engine>, table: Table, key: &[u8]) {
    if table == Table::Sources && key.starts_with(TIMES) {
        Scheduled::of(engine).changed.notify_one();
    }
}

/// Rounds a time up to what the index has, so that a change never comes before its time.
fn whole_milliseconds(at: Timestamp) -> Timestamp {
    let rest = at.subsec_nanosecond().rem_euclid(1_000_000);
    let millis = at.as_millisecond() + i64::from(rest != 0 && at.as_nanosecond() > 0);
    Timestamp::from_millisecond(millis).unwrap_or(at)
}

fn item_key(feed: &FeedId, id: &str) -> Vec<u8> {
    format!("{ITEMS}{feed}/{id}").into_bytes()
}

fn time_key(at: Timestamp, feed: &FeedId, id: &str) -> Vec<u8> {
    // Offset, so that times before 1970 sort before later ones.
    let millis = at.as_millisecond().wrapping_sub(i64::MIN).cast_unsigned();
    [TIMES, &millis.to_be_bytes(), feed.as_str().as_bytes(), b"/", id.as_bytes()].concat()
}

/// Returns the time, feed and id of a key of the index.
fn parse_time_key(key: &[u8]) -> Option<(Timestamp, FeedId, String)> {
    let (millis, rest) = key.strip_prefix(TIMES)?.split_first_chunk::<8>()?;
    let millis = u64::from_be_bytes(*millis).cast_signed().wrapping_add(i64::MIN);
    // Ids of feeds have no slash; those of items may.
    let (feed, id) = std::str::from_utf8(rest).ok()?.split_once('/')?;
    Some((Timestamp::from_millisecond(millis).ok()?, FeedId::new(feed).ok()?, id.to_owned()))
}

fn set(key: Vec<u8>, value: Option<Vec<u8>>) -> TableWrite {
    TableWrite { table: Table::Sources, key, value: value.map(Into::into) }
}

fn parse(key: &[u8], value: &[u8]) -> Result<ScheduledRow, StoreError> {
    let error = |e| StoreError::Damaged(format!("{}: {e}", String::from_utf8_lossy(key)));
    serde_json::from_slice(value).map_err(error)
}

/// Scheduled changes that were cancelled.
#[derive(Debug, Default)]
pub(crate) struct Cancelled(Vec<(String, ScheduledRow)>);

impl Cancelled {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Schedules them again, since what came instead was refused. What was scheduled for their items meanwhile stays.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store refuses a row.
    pub(crate) async fn restore(self, engine: &Engine, feed: &FeedId) -> Result<(), StoreError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Scheduled::of(engine).presence.store(SOME, Ordering::Release);
        for (id, row) in self.0 {
            let key = item_key(feed, &id);
            let value = serde_json::to_vec(&row).map_err(|e| StoreError::Encode(e.to_string()))?;
            let writes =
                vec![set(time_key(row.at, feed, &id), Some(Vec::new())), set(key.clone(), Some(value))];
            let absent = Precondition { table: Table::Sources, key, value: None };
            match engine.store.write(writes, vec![absent]).await {
                Ok(()) | Err(WriteError::Precondition { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Scheduled::of(engine).changed.notify_one();
        Ok(())
    }
}

/// Replaces the scheduled changes of items: by new ones, or by nothing. Returns those that there were.
///
/// # Errors
///
/// [`StoreError`] if a row cannot be read or written, or others wrote it at each of the tries.
async fn replace(
    engine: &Engine,
    feed: &FeedId,
    changes: &HashMap<String, Option<ScheduledRow>>,
) -> Result<Cancelled, StoreError> {
    let store = engine.store.as_ref();
    if changes.values().any(Option::is_some) {
        // Before the write: whoever sees its rows must not take the tables for empty.
        Scheduled::of(engine).presence.store(SOME, Ordering::Release);
    }
    for _ in 0..TRIES {
        let (mut writes, mut conditions, mut before) = (Vec::new(), Vec::new(), Cancelled::default());
        for (id, row) in changes {
            let key = item_key(feed, id);
            let old = store.get(Table::Sources, &key).await?;
            if let Some(old) = &old {
                let row = parse(&key, old)?;
                writes.push(set(time_key(row.at, feed, id), None));
                before.0.push((id.clone(), row));
            } else if row.is_none() {
                continue;
            }
            if let Some(row) = row {
                writes.push(set(time_key(row.at, feed, id), Some(Vec::new())));
            }
            let value = row.as_ref().map(|row| serde_json::to_vec(row).unwrap_or_default());
            writes.push(set(key.clone(), value));
            conditions.push(Precondition { table: Table::Sources, key, value: old });
        }
        if writes.is_empty() {
            return Ok(Cancelled::default());
        }
        match store.write(writes, conditions).await {
            Ok(()) => {
                Scheduled::of(engine).changed.notify_one();
                return Ok(before);
            }
            Err(WriteError::Precondition { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(StoreError::View("others keep scheduling this item; try again".into()))
}

/// Schedules changes, each instead of one that was scheduled for its item before.
///
/// # Errors
///
/// [`StoreError`] if a row cannot be read or written, or others wrote it at each of the tries.
pub(crate) async fn schedule(
    engine: &Engine,
    feed: &FeedId,
    changes: Vec<(NewChange, Timestamp)>,
) -> Result<(), StoreError> {
    let row = |(change, at): (NewChange, Timestamp)| {
        let at = whole_milliseconds(at);
        let mut line = Line::new(change.op, &change.item, change.patch.as_ref());
        line.modified = change.modified;
        (change.item.id, Some(ScheduledRow { at, line }))
    };
    // Of several for one item the last counts, as it would if all were published.
    replace(engine, feed, &changes.into_iter().map(row).collect()).await.map(drop)
}

/// Cancels what is scheduled for items, before what replaces it is appended. Returns it: a refused append restores it.
///
/// # Errors
///
/// [`StoreError`] if a row cannot be read or removed, or others wrote it at each of the tries.
pub(crate) async fn cancel(
    engine: &Engine,
    feed: &FeedId,
    ids: impl Iterator<Item = &str>,
) -> Result<Cancelled, StoreError> {
    if Scheduled::of(engine).is_empty(engine).await? {
        return Ok(Cancelled::default());
    }
    let prefix = item_key(feed, "");
    // Most feeds have none: a batch of thousands then costs one read.
    if engine.store.scan(Table::Sources, &prefix, None, 1).await?.is_empty() {
        return Ok(Cancelled::default());
    }
    replace(engine, feed, &ids.map(|id| (id.to_owned(), None)).collect()).await
}

/// Lists what is scheduled in a feed, at most `limit` changes, by id.
///
/// # Errors
///
/// [`StoreError`] if the rows cannot be read, or one is damaged.
pub(crate) async fn list(
    store: &dyn Store,
    feed: &FeedId,
    limit: usize,
) -> Result<Vec<ScheduledChange>, StoreError> {
    let rows = store.scan(Table::Sources, &item_key(feed, ""), None, limit).await?;
    let change = |(key, value): &(bytes::Bytes, bytes::Bytes)| {
        let ScheduledRow { at, line } = parse(key, value)?;
        Ok(ScheduledChange { id: line.id, op: line.op, publish_at: at })
    };
    rows.iter().map(change).collect()
}

/// Publishes what is due, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    loop {
        let wait = match publish_due(&engine, &lease).await {
            // The time may have come since: no wait then.
            Ok(Some(next)) => Duration::try_from(next.duration_since(engine.now())).unwrap_or_default(),
            Ok(None) => LONGEST_WAIT,
            Err(e) => {
                tracing::warn!(error = %e, "cannot publish what is due, and try again");
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait.min(LONGEST_WAIT)) => {}
            () = Scheduled::of(&engine).changed.notified() => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Publishes what is due. Returns the time of the next change.
async fn publish_due(engine: &Engine, lease: &Lease) -> Result<Option<Timestamp>, StoreError> {
    let mut scan = TableScan::new(engine.store.as_ref(), Table::Sources, TIMES);
    while let Some(page) = scan.next().await? {
        for (key, _) in page {
            let Some((at, feed, id)) = parse_time_key(&key) else { continue };
            if at > engine.now() {
                return Ok(Some(at));
            }
            publish_one(engine, lease, &key, at, &feed, &id).await?;
        }
    }
    Ok(None)
}

async fn publish_one(
    engine: &Engine,
    lease: &Lease,
    key: &[u8],
    at: Timestamp,
    feed: &FeedId,
    id: &str,
) -> Result<(), StoreError> {
    // A feed that left the configuration keeps its rows, until it is back.
    if engine.feed_to_publish(feed).is_none() {
        return Ok(());
    }
    let row_key = item_key(feed, id);
    for _ in 0..TRIES {
        // Before the row: a change that cancels it is appended after its removal, and so on a later version.
        let latest = engine.store.latest(feed, id).await?.filter(|latest| latest.op != Op::Delete);
        let Some(value) = engine.store.get(Table::Sources, &row_key).await? else {
            return remove(engine, lease, vec![set(key.to_vec(), None)], None).await;
        };
        let row = parse(&row_key, &value)?;
        if row.at != at {
            return remove(engine, lease, vec![set(key.to_vec(), None)], None).await;
        }
        roles::check(lease)?;
        let rows = vec![set(key.to_vec(), None), set(row_key.clone(), None)];
        let condition = Precondition { table: Table::Sources, key: row_key.clone(), value: Some(value) };
        let mut change = match row.line.into_change() {
            Ok(change) => change.not_after(engine.now()),
            Err(e) => return Err(StoreError::Damaged(format!("{}: {e}", String::from_utf8_lossy(&row_key)))),
        };
        // What a crash has published already is not published again.
        let is_done = match change.op {
            Op::Put => latest.as_ref().is_some_and(|latest| latest.hash == change.content_hash()),
            Op::Delete | Op::Patch => latest.is_none(),
        };
        let gone: Vec<String> = Some(id.to_owned()).filter(|_| change.op == Op::Delete).into_iter().collect();
        if is_done {
            // Also after a crash in front of this.
            attachments::forget(engine, feed, &gone).await?;
            return remove(engine, lease, rows, Some(condition)).await;
        }
        let version = Expected::Version(latest.map(|latest| latest.seq));
        let span = crate::spans::span!("append", feed = %feed, changes = 1);
        match engine.store.append(feed, version, vec![change]).instrument(span).await {
            Ok(_) => {
                attachments::forget(engine, feed, &gone).await?;
                return remove(engine, lease, rows, Some(condition)).await;
            }
            Err(AppendError::ItemConflict { .. }) => {}
            Err(e @ (AppendError::Patch { .. } | AppendError::Invalid { .. })) => {
                // It will not be possible later, either.
                tracing::error!(%feed, item = id, error = %e, "cannot publish what was scheduled, and drop it");
                return remove(engine, lease, rows, Some(condition)).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Removes rows in the role. A row that was replaced meanwhile stays.
async fn remove(
    engine: &Engine,
    lease: &Lease,
    rows: Vec<TableWrite>,
    condition: Option<Precondition>,
) -> Result<(), StoreError> {
    let conditions = roles::conditions(lease).into_iter().chain(condition).collect();
    match engine.store.write(rows, conditions).await {
        Ok(()) | Err(WriteError::Precondition { .. }) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use towpath_proto::Item;
    use towpath_store::memory::MemoryStore;

    use super::*;
    use crate::config::Config;

    /// An engine that knows of no scheduled changes looks no more, until it schedules one itself.
    #[tokio::test]
    async fn what_is_scheduled_after_the_first_look_is_cancelled() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
        let config = Config::parse("[[feed]]\nid = \"f1\"\n", Path::new("towpath.toml")).unwrap();
        let feed = FeedId::new("f1").unwrap();
        let later = |id: &str| vec![(NewChange::put(Item::new(id)), "3000-01-01T00:00:00Z".parse().unwrap())];
        let (engine, _) = Engine::open(config.clone(), store.clone()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(cancel(&engine, &feed, ["a"].into_iter()).await.unwrap().count(), 0);
        }
        schedule(&engine, &feed, later("a")).await.unwrap();
        assert_eq!(cancel(&engine, &feed, ["a"].into_iter()).await.unwrap().count(), 1);
        schedule(&engine, &feed, later("b")).await.unwrap();
        // After a restart, the store is what tells.
        let (engine, _) = Engine::open(config, store).await.unwrap();
        assert_eq!(cancel(&engine, &feed, ["b"].into_iter()).await.unwrap().count(), 1);
    }

    /// The row and the index must have the same time: the task compares them.
    #[test]
    fn times_are_those_of_the_index() {
        let feed = FeedId::new("orders").unwrap();
        for time in [
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.000000001Z",
            "2026-01-01T00:00:00.0019Z",
            "1969-01-01T00:00:00.9999Z",
        ] {
            let asked: Timestamp = time.parse().unwrap();
            let kept = whole_milliseconds(asked);
            assert_eq!(parse_time_key(&time_key(kept, &feed, "a")).unwrap().0, kept, "{time}");
            assert!(kept >= asked || asked < Timestamp::UNIX_EPOCH, "{time}");
        }
    }

    #[test]
    fn the_index_is_in_the_order_of_time() {
        let feed = FeedId::new("orders").unwrap();
        let times = [
            "-000001-01-01T00:00:00Z",
            "1969-01-01T00:00:00Z",
            "1970-01-01T00:00:00Z",
            "2026-01-01T00:00:00.5Z",
        ];
        let mut before = Vec::new();
        for time in times.map(|time| time.parse::<Timestamp>().unwrap()) {
            let key = time_key(time, &feed, "a/b\u{e9}");
            assert!(before < key);
            assert_eq!(parse_time_key(&key), Some((time, feed.clone(), "a/b\u{e9}".into())));
            before = key;
        }
        assert_eq!(parse_time_key(b"publish-at/time/short"), None);
    }
}
