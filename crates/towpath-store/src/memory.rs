//! A store in memory without indexes: every read scans the log.
//!
//! The conformance suite compares other backends with it. Tests of code above the store use it as a double.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;
use towpath_proto::change::{Change, NewChange, Op, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{ContentHash, Item};
use towpath_proto::patch::{self, PatchError};

use crate::{
    AppendError, AppendHook, Appended, Expected, FeedSummary, ItemOrder, LogHead, Precondition, ReadError,
    ReadLimit, SeqRange, Store, Table, TableHook, TableWrite, WallClock, WriteError,
};

/// Store in memory. Its data is lost when it is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use towpath_store::memory::MemoryStore;
/// use towpath_store::{LogHead, Store};
///
/// let store = MemoryStore::new(std::sync::Arc::new(jiff::Timestamp::now));
/// let head = store.head(&towpath_proto::feed_id::FeedId::new("orders")?).await?;
/// assert_eq!(head, LogHead::EMPTY);
/// # Ok(())
/// # }
/// ```
pub struct MemoryStore {
    state: RwLock<MemoryState>,
    /// Held during a whole append, so that hooks run in the order of the log.
    appending: Mutex<()>,
    clock: WallClock,
    append_hooks: RwLock<Vec<AppendHook>>,
    table_hooks: RwLock<Vec<TableHook>>,
    /// Signalled after every append, to all waiters of all feeds.
    appends: watch::Sender<()>,
}

#[derive(Default)]
struct MemoryState {
    logs: BTreeMap<FeedId, Vec<Change>>,
    appended: HashMap<FeedId, Timestamp>,
    tables: HashMap<Table, BTreeMap<Vec<u8>, Bytes>>,
    closed: bool,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(clock: WallClock) -> Self {
        Self {
            state: RwLock::default(),
            appending: Mutex::default(),
            clock,
            append_hooks: RwLock::default(),
            table_hooks: RwLock::default(),
            appends: watch::Sender::new(()),
        }
    }

    /// Creates a store with the data of this one, as if it were closed and opened again.
    pub fn reopen(&self, clock: WallClock) -> Self {
        let MemoryState { logs, appended, tables, .. } = &*self.state.read();
        let (logs, appended, tables) = (logs.clone(), appended.clone(), tables.clone());
        let state = MemoryState { logs, appended, tables, closed: false };
        Self { state: RwLock::new(state), ..Self::new(clock) }
    }

    fn state(&self) -> Result<RwLockReadGuard<'_, MemoryState>, ReadError> {
        let state = self.state.read();
        if state.closed { Err(ReadError::Closed) } else { Ok(state) }
    }

    fn with_log<T>(&self, feed: &FeedId, read: impl FnOnce(&[Change]) -> T) -> Result<T, ReadError> {
        Ok(read(self.state()?.logs.get(feed).map_or(&[], Vec::as_slice)))
    }
}

/// Computes the head of a log.
fn head(log: &[Change]) -> LogHead {
    let Some(last) = log.last() else { return LogHead::EMPTY };
    // Counted anew for each head: slow, and independent of the counters under test.
    let live = latest_of_each(log).filter(|change| change.op != Op::Delete).count();
    // Only the first version of an id has no previous one.
    let items = log.iter().filter(|change| change.previous.is_none()).count();
    LogHead { seq: last.seq, modified: last.modified, items: items as u64, live: live as u64, horizon: 0 }
}

/// Latest version of every item, in the order of the log.
fn latest_of_each(log: &[Change]) -> impl DoubleEndedIterator<Item = &Change> {
    let replaced: std::collections::HashSet<Seq> = log.iter().filter_map(|change| change.previous).collect();
    log.iter().filter(move |change| !replaced.contains(&change.seq))
}

/// Checks a change by itself.
fn check(feed: &FeedId, index: usize, new: &NewChange) -> Result<(), AppendError> {
    let invalid = |reason: String| AppendError::Invalid { feed: feed.clone(), index, reason };
    new.item.check().map_err(|e| invalid(e.to_string()))?;
    if new.op == Op::Patch && new.patch.is_none() {
        return Err(invalid("the operation is a patch, but the change has no patch".into()));
    }
    Ok(())
}

/// Appends one checked change to a log.
fn add(log: &mut Vec<Change>, new: NewChange, now: Timestamp) -> Result<(), PatchError> {
    let known = log.iter().rev().find(|change| change.item.id == new.item.id);
    let (item, hash, patch) = match new.op {
        Op::Put => {
            let hash = new.hash.unwrap_or_else(|| new.item.content_hash());
            (new.item, hash, None)
        }
        Op::Patch => {
            let live = known.filter(|change| change.op != Op::Delete);
            let item = live.ok_or(PatchError::NoItem(new.item.id)).and_then(|live| {
                new.patch.as_ref().map_or(Ok(live.item.clone()), |p| patch::apply(&live.item, p))
            })?;
            let hash = item.content_hash();
            (item, hash, new.patch)
        }
        Op::Delete => {
            let known = known.map(|change| &change.item);
            let (published, updated) = known.map_or((None, None), |item| (item.published, item.updated));
            (Item { published, updated, ..Item::new(new.item.id) }, ContentHash::default(), None)
        }
    };
    let modified = new.modified.unwrap_or(now);
    // Times never fall along a log, even if the clock is set back: readers search it by time.
    let modified = log.last().map_or(modified, |last| last.modified.max(modified));
    let seq = log.len() as Seq + 1;
    let change = Change {
        seq,
        op: new.op,
        modified,
        created: known.map_or(modified, |change| change.created),
        first_seq: known.map_or(seq, |change| change.first_seq),
        previous: known.map(|change| change.seq),
        item,
        patch,
        entry_id: new.entry_id,
        hash,
    };
    log.push(change);
    Ok(())
}

/// Returns as many changes as the limit allows. The size of a change is that of its content.
fn page<'a>(changes: impl Iterator<Item = &'a Change>, limit: ReadLimit) -> Vec<Change> {
    let mut bytes = 0;
    let size = |change: &Change| change.item.content.as_ref().map_or(0, |content| content.bytes.len());
    let fits = changes.take(limit.items.max(1)).enumerate().take_while(|(index, change)| {
        // At least one change, whatever its size: an empty page would look like the end.
        bytes += size(change);
        *index == 0 || bytes <= limit.bytes
    });
    fits.map(|(_, change)| change.clone()).collect()
}

#[async_trait]
impl Store for MemoryStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        let _appending = self.appending.lock();
        // A copy, so that a refused batch leaves no trace.
        let mut log = self.with_log(feed, <[Change]>::to_vec)?;
        // Before the position is compared: `Invalid` comes before `Conflict`.
        changes.iter().enumerate().try_for_each(|(index, new)| check(feed, index, new))?;
        let actual = log.len() as Seq;
        if let Expected::Last(expected) = expected
            && expected != actual
        {
            return Err(AppendError::Conflict { feed: feed.clone(), expected, actual });
        }
        if let (Expected::Version(expected), Some(first)) = (expected, changes.first()) {
            let id = &first.item.id;
            let latest = log.iter().rev().find(|change| change.item.id == *id);
            let actual = latest.filter(|latest| latest.op != Op::Delete).map(|latest| latest.seq);
            if actual != expected {
                return Err(AppendError::ItemConflict { feed: feed.clone(), id: id.clone(), actual });
            }
        }
        let now = (self.clock)();
        let ops = changes.iter().map(|change| change.op).collect();
        for (index, change) in changes.into_iter().enumerate() {
            let id = change.item.id.clone();
            add(&mut log, change, now).map_err(|source| AppendError::Patch {
                feed: feed.clone(),
                index,
                id,
                source,
            })?;
        }
        let appended = Appended { first: actual + 1, head: head(&log), ops };
        if appended.head.seq > actual {
            let mut state = self.state.write();
            state.logs.insert(feed.clone(), log);
            state.appended.insert(feed.clone(), now);
            // Hooks read the store: the lock must be free.
            drop(state);
            self.append_hooks.read().iter().for_each(|hook| hook(feed, &appended));
            // After the hooks, as in the embedded store.
            self.appends.send_replace(());
        }
        Ok(appended)
    }

    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError> {
        self.with_log(feed, head)
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError> {
        Ok(self.state()?.logs.keys().cloned().collect())
    }

    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError> {
        let state = self.state()?;
        let listed = |(feed, log): (&FeedId, &Vec<Change>)| {
            let head = head(log);
            let appended = state.appended.get(feed).copied().unwrap_or(head.modified);
            FeedSummary { feed: feed.clone(), head, appended }
        };
        Ok(state.logs.iter().map(listed).collect())
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError> {
        self.with_log(feed, |log| page(log.iter().filter(|change| change.seq > after), limit))
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError> {
        self.with_log(feed, |log| log.iter().find(|change| change.seq == seq).cloned())
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError> {
        self.with_log(feed, |log| log.iter().rev().find(|change| change.item.id == id).cloned())
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError> {
        self.with_log(feed, |log| log.partition_point(|change| change.modified < time) as Seq)
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError> {
        let position = |change: &Change| match order {
            ItemOrder::Created => change.first_seq,
            ItemOrder::Modified => change.seq,
        };
        let within = |change: &&Change| {
            range.after.is_none_or(|after| position(change) > after)
                && range.before.is_none_or(|before| position(change) < before)
        };
        self.with_log(feed, |log| {
            let mut items: Vec<&Change> = latest_of_each(log).filter(within).collect();
            items.sort_by_key(|change| position(change));
            if range.descending {
                items.reverse();
            }
            page(items.into_iter(), limit)
        })
    }

    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError> {
        let wanted = |change: &&Change| ids.is_none_or(|ids| ids.contains(&change.item.id));
        let hash = |change: &Change| (change.op != Op::Delete).then_some(change.hash);
        self.with_log(feed, |log| {
            let latest = latest_of_each(log).filter(wanted);
            latest.map(|change| (change.item.id.clone(), hash(change))).collect()
        })
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError> {
        // Before the head is read: an append between the two is not missed.
        let mut appends = self.appends.subscribe();
        loop {
            let head = self.head(feed).await?;
            if head.seq > after {
                return Ok(head);
            }
            appends.changed().await.map_err(|_| ReadError::Closed)?;
        }
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let state = self.state()?;
        Ok(state.tables.get(&table).and_then(|table| table.get(key)).cloned())
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let state = self.state()?;
        let entries = state.tables.get(&table).into_iter().flatten();
        let wanted = entries
            .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| key.as_slice() > after));
        Ok(wanted.take(limit).map(|(key, value)| (key.clone().into(), value.clone())).collect())
    }

    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(WriteError::Closed);
        }
        let holds = |condition: &Precondition| {
            let table = state.tables.get(&condition.table);
            table.and_then(|table| table.get(&condition.key)) == condition.value.as_ref()
        };
        if let Some(failed) = conditions.iter().find(|condition| !holds(condition)) {
            return Err(WriteError::Precondition { table: failed.table, key: failed.key.clone() });
        }
        let written: Vec<_> = writes.iter().map(|write| (write.table, write.key.clone())).collect();
        for TableWrite { table, key, value } in writes {
            let table = state.tables.entry(table).or_default();
            match value {
                Some(value) => drop(table.insert(key, value)),
                None => drop(table.remove(&key)),
            }
        }
        // As in `append`: hooks read the store.
        drop(state);
        for (table, key) in written {
            self.table_hooks.read().iter().for_each(|hook| hook(table, &key));
        }
        Ok(())
    }

    fn on_append(&self, hook: AppendHook) {
        self.append_hooks.write().push(hook);
    }

    fn on_table_write(&self, hook: TableHook) {
        self.table_hooks.write().push(hook);
    }

    async fn close(&self) {
        // Data stays, so that `reopen` can take it.
        self.state.write().closed = true;
        // Wakes all waiters, whose next look at the head fails as closed.
        self.appends.send_replace(());
    }
}
