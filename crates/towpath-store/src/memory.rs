//! A store in memory that keeps nothing but the log and finds everything by going through it: the model that
//! other backends are compared with, and a double for tests of what stands above a store.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;
use towpath_proto::change::{Change, NewChange, Op, Seq};
use towpath_proto::diff::Known;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{ContentHash, Item};
use towpath_proto::patch::{self, PatchError};

use crate::{
    AppendError, Appended, Clock, Condition, EMPTY, Expected, FeedHead, Head, Limit, OnMove, OnWrite, Order,
    Store, StoreError, Stretch, Table, Write,
};

/// See the module's text. What is in it is gone when it is dropped.
pub struct MemoryStore {
    state: RwLock<State>,
    /// Held through a whole append, so that hooks are called in the order of the log.
    appending: Mutex<()>,
    clock: Clock,
    hooks: RwLock<Vec<OnMove>>,
    write_hooks: RwLock<Vec<OnWrite>>,
    moves: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    logs: BTreeMap<FeedId, Vec<Change>>,
    appended: HashMap<FeedId, Timestamp>,
    tables: HashMap<Table, BTreeMap<Vec<u8>, Bytes>>,
    closed: bool,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(clock: Clock) -> Self {
        Self {
            state: RwLock::default(),
            appending: Mutex::default(),
            clock,
            hooks: RwLock::default(),
            write_hooks: RwLock::default(),
            moves: watch::Sender::new(()),
        }
    }

    /// A store with the data of this one, as if it were opened again.
    pub fn reopen(&self, clock: Clock) -> Self {
        let State { logs, appended, tables, .. } = &*self.state.read();
        let (logs, appended, tables) = (logs.clone(), appended.clone(), tables.clone());
        let state = State { logs, appended, tables, closed: false };
        Self { state: RwLock::new(state), ..Self::new(clock) }
    }

    fn state(&self) -> Result<RwLockReadGuard<'_, State>, StoreError> {
        let state = self.state.read();
        if state.closed { Err(StoreError::Closed) } else { Ok(state) }
    }

    fn with_log<T>(&self, feed: &FeedId, read: impl FnOnce(&[Change]) -> T) -> Result<T, StoreError> {
        Ok(read(self.state()?.logs.get(feed).map_or(&[], Vec::as_slice)))
    }
}

/// What a log holds.
fn head(log: &[Change]) -> Head {
    let Some(last) = log.last() else { return EMPTY };
    let live = latest_of_each(log).filter(|change| change.op != Op::Delete).count();
    let items = log.iter().filter(|change| change.previous.is_none()).count();
    Head { seq: last.seq, modified: last.modified, items: items as u64, live: live as u64 }
}

/// The latest version of every item, in the order of the log.
fn latest_of_each(log: &[Change]) -> impl DoubleEndedIterator<Item = &Change> {
    let replaced: std::collections::HashSet<Seq> = log.iter().filter_map(|change| change.previous).collect();
    log.iter().filter(move |change| !replaced.contains(&change.seq))
}

/// What can be said of a change alone.
fn check(index: usize, new: &NewChange) -> Result<(), AppendError> {
    let invalid = |reason: String| AppendError::Invalid { index, reason };
    new.item.check().map_err(|e| invalid(e.to_string()))?;
    if new.op == Op::Patch && new.patch.is_none() {
        return Err(invalid("it is a patch, and has none".into()));
    }
    Ok(())
}

/// Adds one checked change to a log.
fn add(log: &mut Vec<Change>, new: NewChange, now: Timestamp, index: usize) -> Result<(), AppendError> {
    let known = log.iter().rev().find(|change| change.item.id == new.item.id);
    let (item, hash, patch) = match new.op {
        Op::Put => {
            let hash = new.hash.unwrap_or_else(|| new.item.content_hash());
            (new.item, hash, None)
        }
        Op::Patch => {
            let live = known.filter(|change| change.op != Op::Delete);
            let item = live
                .ok_or(PatchError::NoItem(new.item.id))
                .and_then(|live| {
                    new.patch.as_ref().map_or(Ok(live.item.clone()), |p| patch::apply(&live.item, p))
                })
                .map_err(|source| AppendError::Patch { index, source })?;
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

/// As many changes as the limit allows. What a change counts is its content.
fn page<'a>(changes: impl Iterator<Item = &'a Change>, limit: Limit) -> Vec<Change> {
    let mut bytes = 0;
    let size = |change: &Change| change.item.content.as_ref().map_or(0, |content| content.bytes.len());
    let fits = changes.take(limit.items.max(1)).enumerate().take_while(|(index, change)| {
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
        let mut log = self.with_log(feed, <[Change]>::to_vec)?;
        changes.iter().enumerate().try_for_each(|(index, new)| check(index, new))?;
        let actual = log.len() as Seq;
        if let Expected::Last(expected) = expected
            && expected != actual
        {
            return Err(AppendError::Conflict { expected, actual });
        }
        let now = (self.clock)();
        for (index, change) in changes.into_iter().enumerate() {
            add(&mut log, change, now, index)?;
        }
        let appended = Appended { first: actual + 1, head: head(&log) };
        if appended.head.seq > actual {
            let mut state = self.state.write();
            state.logs.insert(feed.clone(), log);
            state.appended.insert(feed.clone(), now);
            drop(state);
            self.hooks.read().iter().for_each(|hook| hook(feed, appended.head));
            self.moves.send_replace(());
        }
        Ok(appended)
    }

    async fn head(&self, feed: &FeedId) -> Result<Head, StoreError> {
        self.with_log(feed, head)
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, StoreError> {
        Ok(self.state()?.logs.keys().cloned().collect())
    }

    async fn heads(&self) -> Result<Vec<FeedHead>, StoreError> {
        let state = self.state()?;
        let listed = |(feed, log): (&FeedId, &Vec<Change>)| {
            let head = head(log);
            let appended = state.appended.get(feed).copied().unwrap_or(head.modified);
            FeedHead { feed: feed.clone(), head, appended }
        };
        Ok(state.logs.iter().map(listed).collect())
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: Limit) -> Result<Vec<Change>, StoreError> {
        self.with_log(feed, |log| page(log.iter().filter(|change| change.seq > after), limit))
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, StoreError> {
        self.with_log(feed, |log| log.iter().find(|change| change.seq == seq).cloned())
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, StoreError> {
        self.with_log(feed, |log| log.iter().rev().find(|change| change.item.id == id).cloned())
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, StoreError> {
        self.with_log(feed, |log| log.partition_point(|change| change.modified < time) as Seq)
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: Order,
        stretch: Stretch,
        limit: Limit,
    ) -> Result<Vec<Change>, StoreError> {
        let position = |change: &Change| match order {
            Order::Created => change.first_seq,
            Order::Modified => change.seq,
        };
        let within = |change: &&Change| {
            stretch.after.is_none_or(|after| position(change) > after)
                && stretch.before.is_none_or(|before| position(change) < before)
        };
        self.with_log(feed, |log| {
            let mut items: Vec<&Change> = latest_of_each(log).filter(within).collect();
            items.sort_by_key(|change| position(change));
            if stretch.descending {
                items.reverse();
            }
            page(items.into_iter(), limit)
        })
    }

    async fn known(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<Known, StoreError> {
        let wanted = |change: &&Change| ids.is_none_or(|ids| ids.contains(&change.item.id));
        let hash = |change: &Change| (change.op != Op::Delete).then_some(change.hash);
        self.with_log(feed, |log| {
            let latest = latest_of_each(log).filter(wanted);
            latest.map(|change| (change.item.id.clone(), hash(change))).collect()
        })
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<Head, StoreError> {
        let mut moves = self.moves.subscribe();
        loop {
            let head = self.head(feed).await?;
            if head.seq > after {
                return Ok(head);
            }
            moves.changed().await.map_err(|_| StoreError::Closed)?;
        }
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let state = self.state()?;
        Ok(state.tables.get(&table).and_then(|table| table.get(key)).cloned())
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let state = self.state()?;
        let entries = state.tables.get(&table).into_iter().flatten();
        let wanted = entries
            .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| key.as_slice() > after));
        Ok(wanted.take(limit).map(|(key, value)| (key.clone().into(), value.clone())).collect())
    }

    async fn write(&self, writes: Vec<Write>, conditions: Vec<Condition>) -> Result<(), StoreError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(StoreError::Closed);
        }
        let holds = |condition: &Condition| {
            let table = state.tables.get(&condition.table);
            table.and_then(|table| table.get(&condition.key)) == condition.value.as_ref()
        };
        if !conditions.iter().all(holds) {
            return Err(StoreError::Condition);
        }
        let written: Vec<_> = writes.iter().map(|write| (write.table, write.key.clone())).collect();
        for Write { table, key, value } in writes {
            let table = state.tables.entry(table).or_default();
            match value {
                Some(value) => drop(table.insert(key, value)),
                None => drop(table.remove(&key)),
            }
        }
        drop(state);
        for (table, key) in written {
            self.write_hooks.read().iter().for_each(|hook| hook(table, &key));
        }
        Ok(())
    }

    fn on_move(&self, hook: OnMove) {
        self.hooks.write().push(hook);
    }

    fn on_write(&self, hook: OnWrite) {
        self.write_hooks.write().push(hook);
    }

    async fn close(&self) {
        self.state.write().closed = true;
        self.moves.send_replace(());
    }
}
