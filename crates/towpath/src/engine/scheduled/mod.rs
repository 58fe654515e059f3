//! Changes that are published at a time to come (`publish_at`).
//!
//! A scheduled change is a row of its item, and an empty row in an index by time. One node at a time appends what is
//! due ([`run`]). A later change of the item marks the row before it is appended, and removes it afterwards (`cancel`).
//! The task appends only on the version that it saw before it read the row: so a scheduled change never replaces a later
//! one.

mod cancel;
mod row;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use towpath_proto::line::Line;
use towpath_proto::{Change, FeedId, NewChange, Op};
use towpath_store::{AppendError, Expected, Precondition, Store, Table, WriteError};
use tracing::Instrument as _;

pub(crate) use self::cancel::{Cancellation, cancel};
use self::cancel::{RowUpdate, contended, update};
use self::row::{
    ScheduledRow, TIMES, damaged, item_key, parse, parse_time_key, set, time_key, whole_milliseconds,
};
use self::state::{Scheduled, TRIES};
use super::Engine;
use super::attachments;
use super::item_versions::changes_nothing;
use super::roles::{self, Lease};
use super::table_scan::TableScan;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Longest time between two looks at the index.
// The wall clock may be set meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Time until a failed round is tried again.
const RETRY: Duration = Duration::from_secs(5);

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

/// Wakes the task after another node has scheduled a change. Runs on the store's thread.
pub(crate) fn on_table_write(engine: &Arc<Engine>, table: Table, key: &[u8]) {
    if table == Table::Sources && key.starts_with(TIMES) {
        Scheduled::of(engine).changed.notify_one();
    }
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
        let mut line = Line::new(change.op, &change.item, change.patch.as_ref());
        line.modified = change.modified;
        (change.item.id, ScheduledRow::new(whole_milliseconds(at), line))
    };
    // Of several for one item the last counts, as it would if all were published.
    let rows: HashMap<String, ScheduledRow> = changes.into_iter().map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    // Before the write: whoever sees its rows must not take the tables for empty.
    Scheduled::of(engine).set_present();
    for _ in 0..TRIES {
        let (mut writes, mut conditions) = (Vec::new(), Vec::new());
        for (id, row) in &rows {
            let key = item_key(feed, id);
            let before = engine.store.get(Table::Sources, &key).await?;
            if let Some(before) = &before {
                writes.extend(parse(&key, before)?.removal(feed));
            }
            writes.extend([set(time_key(row.at, feed, id), Some(Vec::new())), row.write(feed)?]);
            conditions.push(Precondition { table: Table::Sources, key, value: before });
        }
        match engine.store.write(writes, conditions).await {
            Ok(()) => {
                Scheduled::of(engine).changed.notify_one();
                return Ok(());
            }
            Err(WriteError::Precondition { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(contended())
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
    let mut changes = Vec::new();
    for (key, value) in store.scan(Table::Sources, &item_key(feed, ""), None, limit).await? {
        let row = parse(&key, &value)?;
        let latest = if row.is_marked() { store.latest(feed, &row.line.id).await? } else { None };
        if !row.is_cancelled(store, feed, latest.as_ref()).await? {
            let ScheduledRow { at, line, .. } = row;
            changes.push(ScheduledChange { id: line.id, op: line.op, publish_at: at });
        }
    }
    Ok(changes)
}

/// Publishes what is due, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    loop {
        let round = publish_due(&engine, &lease).await;
        // The time may have come since: no wait then.
        let until =
            |next: Timestamp| Duration::try_from(next.duration_since(engine.now())).unwrap_or_default();
        let wait = round.next.map_or(LONGEST_WAIT, until);
        let wait = wait.min(if round.failures > 0 { RETRY } else { LONGEST_WAIT });
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = Scheduled::of(&engine).changed.notified() => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Result of looking for what is due.
#[derive(Debug, Default)]
struct PublishRound {
    /// Time of the next change.
    next: Option<Timestamp>,
    /// Number of due changes that could not be published.
    failures: usize,
}

/// Publishes what is due.
async fn publish_due(engine: &Engine, lease: &Lease) -> PublishRound {
    let mut round = PublishRound::default();
    let mut scan = TableScan::new(engine.store.as_ref(), Table::Sources, TIMES);
    loop {
        let page = match scan.next().await {
            Ok(Some(page)) => page,
            Ok(None) => return round,
            Err(e) => {
                tracing::warn!(error = %e, "cannot read the index of scheduled changes, and try again");
                return PublishRound { failures: round.failures + 1, ..round };
            }
        };
        for (key, _) in page {
            let Some((at, feed, id)) = parse_time_key(&key) else { continue };
            if at > engine.now() {
                return PublishRound { next: Some(at), ..round };
            }
            let Err(e) = publish_one(engine, lease, &key, at, &feed, &id).await else { continue };
            round.failures += 1;
            tracing::warn!(%feed, item = id, error = %e, "cannot publish what is due, and try again");
            // One damaged row must not keep the others from being published. Other failures are those of all rows.
            if !e.is_damage() {
                return round;
            }
        }
    }
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
        // Before the row: a change that cancels it is appended after its mark, and so on a later version.
        let latest = engine.store.latest(feed, id).await?;
        let row = engine.store.get(Table::Sources, &row_key).await?;
        let row = row.map(|value| parse(&row_key, &value)).transpose()?;
        let Some(row) = row.filter(|row| row.at == at) else { return remove_index(engine, lease, key).await };
        roles::check(lease)?;
        if row.is_cancelled(engine.store.as_ref(), feed, latest.as_ref()).await?
            || append_scheduled(engine, feed, &row, latest).await?
        {
            // A mark that came meanwhile does not matter: the change is published, or will never be.
            let decide = |found: ScheduledRow| match found.is_same(&row) {
                true => RowUpdate::Remove(found),
                false => RowUpdate::Keep,
            };
            return update(engine, feed, &[id.to_owned()], Some(lease), decide).await.map(drop);
        }
    }
    Ok(())
}

/// Appends a scheduled change on the latest version of its item. Returns false if the item changed meanwhile.
async fn append_scheduled(
    engine: &Engine,
    feed: &FeedId,
    row: &ScheduledRow,
    latest: Option<Change>,
) -> Result<bool, StoreError> {
    let (id, latest) = (&row.line.id, latest.filter(|latest| latest.op != Op::Delete));
    let change = row.line.clone().into_change().map_err(|e| damaged(&item_key(feed, id), e))?;
    let mut change = change.not_after(engine.now());
    // What a crash has published already is not published again.
    let is_done = match &latest {
        Some(latest) => changes_nothing(latest, &mut change),
        None => change.op != Op::Put,
    };
    let gone: Vec<String> = Some(id.clone()).filter(|_| change.op == Op::Delete).into_iter().collect();
    if !is_done {
        let version = Expected::Version(latest.map(|latest| latest.seq));
        let span = crate::spans::span!("append", feed = %feed, changes = 1);
        match engine.store.append(feed, version, vec![change]).instrument(span).await {
            Ok(_) => {}
            Err(AppendError::ItemConflict { .. }) => return Ok(false),
            Err(e @ (AppendError::Patch { .. } | AppendError::Invalid { .. })) => {
                // It will not be possible later, either.
                tracing::error!(%feed, item = id, error = %e, "cannot publish what was scheduled, and drop it");
                return Ok(true);
            }
            Err(e) => return Err(e.into()),
        }
    }
    // Also after a crash in front of this.
    attachments::forget(engine, feed, &gone).await?;
    Ok(true)
}

/// Removes a row of the index whose change is not there any more, in the role.
async fn remove_index(engine: &Engine, lease: &Lease, key: &[u8]) -> Result<(), StoreError> {
    match engine.store.write(vec![set(key.to_vec(), None)], roles::conditions(lease)).await {
        Ok(()) | Err(WriteError::Precondition { .. }) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
