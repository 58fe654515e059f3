//! Cancellation of scheduled changes by later ones.
//!
//! A cancellation and its append are two writes, and the process may end between them. So the rows are only marked
//! before the append. A mark counts once the item has a newer version.

use std::collections::BTreeSet;

use towpath_proto::FeedId;
use towpath_store::{Precondition, Table, TableWrite, WriteError};

use super::row::{ScheduledRow, item_key, parse};
use super::state::{Scheduled, TRIES};
use crate::engine::Engine;
use crate::engine::roles::{self, Lease};
use crate::store_error::StoreError;

/// Scheduled changes that are cancelled once what replaces them is appended.
///
/// Dropped without [`Self::confirm`] or [`Self::withdraw`], it leaves the decision to the log: that is right for an append
/// whose outcome is unknown.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    /// Number in the marks.
    number: u64,
    /// Ids of the items whose rows have the mark.
    ids: Vec<String>,
}

impl Cancellation {
    /// Returns the number of changes that it cancels.
    pub(crate) fn count(&self) -> usize {
        self.ids.len()
    }

    /// Removes the changes, since what replaces them is appended. What was scheduled meanwhile stays. Returns the number.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a row cannot be read or written, or others wrote it at each of the tries.
    pub(crate) async fn confirm(self, engine: &Engine, feed: &FeedId) -> Result<usize, StoreError> {
        let decide = |mut row: ScheduledRow| match row.unmark(self.number) {
            true => RowUpdate::Remove(row),
            false => RowUpdate::Keep,
        };
        update(engine, feed, &self.ids, None, decide).await
    }

    /// Keeps the changes, since what would have replaced them was refused.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a row cannot be read or written, or others wrote it at each of the tries.
    pub(crate) async fn withdraw(self, engine: &Engine, feed: &FeedId) -> Result<(), StoreError> {
        let decide = |mut row: ScheduledRow| match row.unmark(self.number) {
            true => RowUpdate::Write(row),
            false => RowUpdate::Keep,
        };
        update(engine, feed, &self.ids, None, decide).await.map(drop)
    }
}

/// Begins to cancel what is scheduled for items, before what replaces it is appended.
///
/// # Errors
///
/// [`StoreError`] if a row cannot be read or written, or others wrote it at each of the tries.
pub(crate) async fn cancel(
    engine: &Engine,
    feed: &FeedId,
    ids: impl Iterator<Item = &str>,
) -> Result<Cancellation, StoreError> {
    if Scheduled::of(engine).is_empty(engine).await? {
        return Ok(Cancellation::default());
    }
    let prefix = item_key(feed, "");
    // Most feeds have none: a batch of thousands then costs one read.
    if engine.store.scan(Table::Sources, &prefix, None, 1).await?.is_empty() {
        return Ok(Cancellation::default());
    }
    let (ids, number) = (ids.collect::<BTreeSet<&str>>(), fastrand::u64(..));
    for _ in 0..TRIES {
        if let Some(ids) = mark(engine, feed, &ids, number).await? {
            return Ok(Cancellation { number, ids });
        }
    }
    Err(contended())
}

/// Marks the rows of items. Returns the ids of those that have one; `None` if a row changed meanwhile.
async fn mark(
    engine: &Engine,
    feed: &FeedId,
    ids: &BTreeSet<&str>,
    number: u64,
) -> Result<Option<Vec<String>>, StoreError> {
    let store = engine.store.as_ref();
    let (mut writes, mut conditions, mut marked) = (Vec::new(), Vec::new(), Vec::new());
    for id in ids {
        let key = item_key(feed, id);
        let Some(value) = store.get(Table::Sources, &key).await? else { continue };
        let mut row = parse(&key, &value)?;
        // After the row: a row must not seem older than the version that it was scheduled on.
        let latest = store.latest(feed, id).await?;
        if row.is_cancelled(store, feed, latest.as_ref()).await? {
            writes.extend(row.removal(feed));
        } else {
            row.mark(number, latest.as_ref());
            writes.push(row.write(feed)?);
            marked.push((*id).to_owned());
        }
        conditions.push(Precondition { table: Table::Sources, key, value: Some(value) });
    }
    Ok(write(engine, writes, conditions).await?.then_some(marked))
}

/// Change of a row.
pub(super) enum RowUpdate {
    Keep,
    Write(ScheduledRow),
    Remove(ScheduledRow),
}

/// Changes rows of items, in a role if a lease is given. Returns the number of changed rows.
pub(super) async fn update(
    engine: &Engine,
    feed: &FeedId,
    ids: &[String],
    lease: Option<&Lease>,
    decide: impl Fn(ScheduledRow) -> RowUpdate,
) -> Result<usize, StoreError> {
    for _ in 0..TRIES {
        let mut conditions = lease.map(roles::conditions).unwrap_or_default();
        let (mut writes, mut count) = (Vec::new(), 0);
        for id in ids {
            let key = item_key(feed, id);
            let Some(value) = engine.store.get(Table::Sources, &key).await? else { continue };
            match decide(parse(&key, &value)?) {
                RowUpdate::Keep => continue,
                RowUpdate::Write(row) => writes.push(row.write(feed)?),
                RowUpdate::Remove(row) => writes.extend(row.removal(feed)),
            }
            conditions.push(Precondition { table: Table::Sources, key, value: Some(value) });
            count += 1;
        }
        if write(engine, writes, conditions).await? {
            return Ok(count);
        }
    }
    Err(contended())
}

/// Writes rows, if there are any. Returns false if a condition does not hold.
async fn write(
    engine: &Engine,
    writes: Vec<TableWrite>,
    conditions: Vec<Precondition>,
) -> Result<bool, StoreError> {
    if writes.is_empty() {
        return Ok(true);
    }
    match engine.store.write(writes, conditions).await {
        Ok(()) => Ok(true),
        Err(WriteError::Precondition { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns the error of a row that changes again and again.
pub(super) fn contended() -> StoreError {
    StoreError::Contended("others keep scheduling this item")
}
