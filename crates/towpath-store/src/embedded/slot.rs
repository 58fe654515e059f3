//! The slot of the storage engine: readers borrow the engine here, and it is opened again after a failed write.
//!
//! The engine accepts no write after one that failed, because it cannot know how much of it is on disk. Opening it
//! again reads the journal and drops a batch that is not whole. Until then reads go on with the old engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use towpath_proto::feed_id::FeedId;

use super::EmbeddedOptions;
use super::decide::{DecidedGroup, Lookup as _};
use super::folder::DataFolder;
use super::notifier::Notifier;
use super::open_journal::wait_until_closed;
use super::storage_engine::{DiskNeed, StorageEngine, low_space};
use crate::error::{ReadTarget, StorageError};
use crate::{Appended, ReadError, StoreFailure};

/// Pause before the first attempt to open the engine again.
// The cause, such as too many open files, has a chance to pass.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time that a read waits for the engine while it is opened again.
// A thread that serves many clients must not stand still for longer.
const READ_WAIT: Duration = Duration::from_secs(2);
/// Time that the engine may take to become unused before it is opened again.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without an engine after which the process has to be restarted.
const GIVE_UP: Duration = Duration::from_secs(60);

/// Slot of the engine of one data folder.
pub(crate) struct EngineSlot {
    /// `None` once closed, and while the engine cannot be opened again.
    engine: RwLock<Option<Arc<StorageEngine>>>,
    notifier: Arc<Notifier>,
    folder: PathBuf,
    options: EmbeddedOptions,
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    is_closed: bool,
    /// Reason of the failed write, until the engine is open again.
    failure: Option<String>,
    /// The group whose write failed.
    in_doubt: Option<GroupInDoubt>,
    /// Time since which there is no engine, because it could not be opened.
    without_engine: Option<Instant>,
    /// Pause before the next attempt.
    pause: Option<Duration>,
    /// Last time at which the engine was opened again.
    opened: Option<Instant>,
}

/// Group whose write failed. It may be in the journal all the same, whole.
pub(crate) struct GroupInDoubt {
    pub(crate) decided: DecidedGroup,
    pub(crate) appended: Vec<(FeedId, Appended)>,
}

impl EngineSlot {
    pub(crate) fn new(
        engine: Arc<StorageEngine>,
        notifier: Arc<Notifier>,
        folder: PathBuf,
        options: EmbeddedOptions,
    ) -> Self {
        let (engine, state) = (RwLock::new(Some(engine)), Mutex::default());
        Self { engine, notifier, folder, options, state }
    }

    /// Returns the engine.
    pub(crate) fn engine(&self) -> Result<Arc<StorageEngine>, ReadError> {
        let engine = self.engine.try_read_for(READ_WAIT);
        engine.and_then(|engine| engine.clone()).ok_or_else(|| match self.state.lock().is_closed {
            true => ReadError::Closed,
            false => ReadError::Storage {
                target: ReadTarget::Everything,
                reason: "it is being opened again after a failed write; retry in some seconds".into(),
            },
        })
    }

    /// Returns the engine for a write. Fails while an earlier write has failed, and where this one would.
    pub(crate) fn writable(&self, need: DiskNeed) -> Result<Arc<StorageEngine>, String> {
        if let Some(failure) = &self.state.lock().failure {
            return Err(format!(
                "an earlier write failed ({failure}); the store is opened again in some seconds"
            ));
        }
        let engine = self.engine().map_err(|e| e.to_string())?;
        engine.check_writable(need)?;
        Ok(engine)
    }

    /// Returns the failure of writing, if there is one. Also finds a failed flush that no write has met yet.
    pub(crate) fn failure(self: &Arc<Self>) -> Option<StoreFailure> {
        if self.state.lock().failure.is_none() {
            // Not waiting: health checks ask this, and while the engine is opened again there is no new failure
            // to find.
            let engine = self.engine.try_read()?.clone()?;
            let Some(reason) = engine.background_failure() else {
                let reason = engine.full_disk()?;
                return Some(StoreFailure { reason, is_final: false, is_full: true });
            };
            // Its reference to the engine would keep the slot from opening it again.
            drop(engine);
            self.fail(reason, None);
        }
        let state = self.state.lock();
        let reason = state.failure.clone()?;
        let is_final = state.without_engine.is_some_and(|since| since.elapsed() >= GIVE_UP);
        // A write may have met the end of the disk before the reserve was seen to be used up.
        let is_full = low_space(&self.folder, self.options.reserve).is_some();
        Some(StoreFailure { reason, is_final, is_full })
    }

    /// Refuses writes from now on, and has the engine opened again. Drop all references to the engine before.
    pub(crate) fn fail(self: &Arc<Self>, reason: String, in_doubt: Option<GroupInDoubt>) {
        let mut state = self.state.lock();
        if in_doubt.is_some() {
            // Kept also if a look at the engine has found the failure before the commit thread reports it.
            state.in_doubt = in_doubt;
        }
        // Several writes may fail for one reason. Only the first starts a recovery: two would open one folder
        // at once.
        if state.is_closed || state.failure.is_some() {
            return;
        }
        // A disk that fails each time is not tried every two seconds for ever.
        let is_repeated = state.opened.is_some_and(|opened| opened.elapsed() < 2 * LONGEST_PAUSE);
        let pause = state.pause.filter(|_| is_repeated).map_or(FIRST_PAUSE, |pause| pause * 2);
        state.pause = Some(pause.min(LONGEST_PAUSE));
        tracing::error!(
            reason,
            retry_seconds = FIRST_PAUSE.as_secs(),
            "the store cannot write and is opened again"
        );
        state.failure = Some(reason);
        drop(state);
        let slot = Arc::clone(self);
        // A thread of its own: closing the old engine joins threads, and opening it reads the journal.
        let recovery = std::thread::Builder::new().name("towpath-recover".into());
        if let Err(e) = recovery.spawn(move || slot.recover()) {
            tracing::error!(error = %e, "cannot start the thread that opens the store again, restart the process");
        }
    }

    /// Tries to open the engine again until it is open, or the slot is closed.
    fn recover(&self) {
        loop {
            let pause = self.state.lock().pause.unwrap_or(FIRST_PAUSE);
            std::thread::sleep(pause);
            let resumed = match self.reopen() {
                Ok(Some(engine)) => self.resume(&engine),
                Ok(None) => return,
                Err(reason) => Err(reason),
            };
            let Err(reason) = resumed else { return };
            let pause = (pause * 2).min(LONGEST_PAUSE);
            self.state.lock().pause = Some(pause);
            tracing::error!(reason, retry_seconds = pause.as_secs(), "cannot open the store again");
        }
    }

    /// Replaces the engine by a new one on the same folder. Returns `None` if the slot is closed.
    fn reopen(&self) -> Result<Option<Arc<StorageEngine>>, String> {
        // Held until the new engine is there: a read that began now would keep the old one in use.
        let mut slot = self.engine.write();
        if self.state.lock().is_closed {
            return Ok(None);
        }
        if let Some(engine) = slot.take()
            && let Err(engine) = drop_unused(engine)
        {
            // Put back, so that reads go on with it until the next attempt.
            *slot = Some(engine);
            return Err(format!("reads have been running for {} s", DRAIN_TIMEOUT.as_secs()));
        }
        // A thread of the old engine may write yet what is left of the write that failed.
        if !wait_until_closed(&self.folder, DRAIN_TIMEOUT) {
            return Err(format!("its journal has not been closed for {} s", DRAIN_TIMEOUT.as_secs()));
        }
        // Only now: the old engine held the folder's lock until it was dropped.
        let opened = DataFolder::open(&self.folder).and_then(|f| StorageEngine::open(f, &self.options));
        let mut state = self.state.lock();
        match opened {
            Ok(engine) => {
                let engine = Arc::new(engine);
                // What failed may be stored. No read uses the old engine any more, so none caches an old head again.
                self.notifier.forget_heads();
                *slot = Some(Arc::clone(&engine));
                (state.without_engine, state.opened) = (None, Some(Instant::now()));
                Ok(Some(engine))
            }
            Err(e) => {
                state.without_engine.get_or_insert_with(Instant::now);
                Err(e.reason)
            }
        }
    }

    /// Accepts writes again. A group in doubt that turns out to be stored is announced before.
    fn resume(&self, engine: &StorageEngine) -> Result<(), String> {
        let in_doubt = self.state.lock().in_doubt.take();
        if let Some(group) = in_doubt {
            match is_stored(engine, &group.decided) {
                // Its callers were told that the outcome shows after the next opening; readers must learn of it.
                Ok(true) => {
                    let appended = group.appended.iter().map(|(feed, appended)| (feed, appended));
                    self.notifier.publish_late(&group.decided, appended);
                }
                Ok(false) => {}
                Err(e) => {
                    self.state.lock().in_doubt = Some(group);
                    return Err(format!("cannot read if the write that failed is stored: {e}"));
                }
            }
        }
        // Last: with the failure gone writes begin, whose heads must not be overtaken by those of the group in
        // doubt.
        self.state.lock().failure = None;
        tracing::info!("the store was opened again and accepts writes");
        Ok(())
    }

    /// Closes the slot: returns the engine, which nobody else gets from now on.
    pub(crate) fn close(&self) -> Option<Arc<StorageEngine>> {
        // Before the engine is taken: a recovery that has the write lock next must find the slot closed.
        self.state.lock().is_closed = true;
        self.engine.write().take()
    }
}

/// Drops the engine once nobody reads from it. Returns it if that takes too long.
fn drop_unused(mut engine: Arc<StorageEngine>) -> Result<(), Arc<StorageEngine>> {
    let end = Instant::now() + DRAIN_TIMEOUT;
    loop {
        match Arc::try_unwrap(engine) {
            Ok(unused) => {
                drop(unused);
                return Ok(());
            }
            Err(used) if Instant::now() >= end => return Err(used),
            Err(used) => engine = used,
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns true if a group is stored. Groups are atomic, so one row of each kind would be enough.
fn is_stored(engine: &StorageEngine, group: &DecidedGroup) -> Result<bool, StorageError> {
    // A row has the end of its log, which the group has moved. So the row from before the group differs.
    for (name, row) in &group.feeds {
        if engine.feed(name)? != Some(*row) {
            return Ok(false);
        }
    }
    for ((table, key), value) in &group.values {
        if engine.value(*table, key)? != *value {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use jiff::Timestamp;
    use towpath_proto::change::NewChange;
    use towpath_proto::item::Item;

    use super::*;
    use crate::embedded::EmbeddedStore;
    use crate::embedded::apply::ApplyMode;
    use crate::embedded::commit::CachedState;
    use crate::embedded::decide::{CommitGroup, prepare};
    use crate::{Expected, Precondition, Store as _, Table, TableWrite};

    const LIMIT: Duration = Duration::from_secs(60);
    const KEY: &[u8] = b"a row";

    fn put(id: &str) -> NewChange {
        NewChange::put(Item::new(id))
    }

    fn open(folder: &std::path::Path) -> (EmbeddedStore, FeedId) {
        let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
        (EmbeddedStore::open(folder, options).unwrap(), FeedId::new("f1").unwrap())
    }

    /// Waits until the store takes writes again.
    async fn reopened(store: &EmbeddedStore) {
        let end = Instant::now() + LIMIT;
        while store.failure().is_some() {
            assert!(Instant::now() < end, "the store is not opened again");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Decides a group with an append and a table write; applies it if it is to be there, and reports its failure.
    ///
    /// The look at the engine that runs each second finds the failure before the commit thread reports it.
    fn fail_group(store: &EmbeddedStore, feed: &FeedId, is_stored: bool) {
        let engine = store.slot.engine().unwrap();
        let state = CachedState { engine: Arc::clone(&engine), notifier: Arc::clone(&store.notifier) };
        let mut group = CommitGroup::new(&state, Timestamp::now());
        let changes = prepare(feed, vec![put("b")]).unwrap();
        let appended = group.append(feed, Expected::Any, changes).unwrap();
        let value = Some(Bytes::from_static(b"1"));
        let write = TableWrite { table: Table::Chains, key: KEY.to_vec(), value };
        group.write(vec![write], Vec::<Precondition>::new()).unwrap();
        let decided = group.finish();
        if is_stored {
            engine.apply(&decided, &[], ApplyMode::Synced).unwrap();
        }
        drop((state, engine));
        store.slot.fail("found by a look".into(), None);
        let appended = vec![(feed.clone(), appended)];
        store.slot.fail("the sync failed".into(), Some(GroupInDoubt { decided, appended }));
    }

    #[tokio::test]
    async fn a_group_in_doubt_is_announced_if_it_is_stored() {
        for is_stored in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (store, feed) = open(folder.path());
            store.append(&feed, Expected::Any, vec![put("a")]).await.unwrap();
            let (appends, writes) =
                (Arc::<Mutex<Vec<u64>>>::default(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
            let (told, late) = (Arc::clone(&appends), Arc::clone(&writes));
            store.on_append(Arc::new(move |_, appended| told.lock().push(appended.head.seq)));
            store.on_late_write(Arc::new(move |_, key| late.lock().push(key.to_vec())));
            fail_group(&store, &feed, is_stored);
            assert_eq!(store.head(&feed).await.unwrap().seq, 1);
            reopened(&store).await;
            let (seqs, keys): (&[u64], &[&[u8]]) = if is_stored { (&[2], &[KEY]) } else { (&[], &[]) };
            assert_eq!(*appends.lock(), seqs);
            assert_eq!(*writes.lock(), keys);
            let end = 1 + u64::from(is_stored);
            assert_eq!(store.head(&feed).await.unwrap().seq, end);
            let next = store.append(&feed, Expected::Any, vec![put("c")]).await.unwrap();
            assert_eq!(next.first, end + 1);
            let value = Some(Bytes::from_static(b"2"));
            let write = TableWrite { table: Table::Chains, key: KEY.to_vec(), value };
            store.write(vec![write], Vec::new()).await.unwrap();
            assert_eq!(*writes.lock(), keys, "a write whose caller knows of it is not late");
            let found = store.verify().await.unwrap();
            assert!(found.is_sound(), "{found:?}");
        }
    }

    /// A step of retention failed and is stored all the same. Under the old head, it would be done again on a log with
    /// holes, and an append would write that head back.
    #[tokio::test]
    async fn a_step_of_retention_in_doubt_is_seen_after_the_opening() {
        for appends_first in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let (store, feed) = open(folder.path());
            let batch = vec![put("a"), put("b"), NewChange::delete("b"), NewChange::delete("a"), put("c")];
            store.append(&feed, Expected::Any, batch).await.unwrap();
            let engine = store.slot.engine().unwrap();
            let row = store.feed(&engine, &feed).unwrap().unwrap();
            assert!(engine.let_go(&feed, row, 3).is_ok());
            drop(engine);
            store.notifier.set_head(&feed, row);
            store.slot.fail("the sync failed".into(), None);
            reopened(&store).await;
            assert_eq!(store.head(&feed).await.unwrap().horizon, 3);
            if appends_first {
                store.append(&feed, Expected::Any, vec![put("d")]).await.unwrap();
            }
            store.let_go(&feed, 4).await.unwrap();
            let head = store.head(&feed).await.unwrap();
            assert_eq!((head.horizon, head.items), (4, 1 + u64::from(appends_first)));
            let found = store.verify().await.unwrap();
            assert!(found.is_sound(), "{found:?}");
        }
    }
}
