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
use super::storage_engine::StorageEngine;
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
    pub(crate) fn writable(&self) -> Result<Arc<StorageEngine>, String> {
        if let Some(failure) = &self.state.lock().failure {
            return Err(format!(
                "an earlier write failed ({failure}); the store is opened again in some seconds"
            ));
        }
        let engine = self.engine().map_err(|e| e.to_string())?;
        engine.check_writable()?;
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
        Some(StoreFailure { reason, is_final, is_full: false })
    }

    /// Refuses writes from now on, and has the engine opened again. Drop all references to the engine before.
    pub(crate) fn fail(self: &Arc<Self>, reason: String, in_doubt: Option<GroupInDoubt>) {
        let mut state = self.state.lock();
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
        (state.failure, state.in_doubt) = (Some(reason), in_doubt);
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
            match self.reopen() {
                Ok(Some(engine)) => return self.resume(&engine),
                Ok(None) => return,
                Err(reason) => {
                    let mut state = self.state.lock();
                    let pause = (pause * 2).min(LONGEST_PAUSE);
                    state.pause = Some(pause);
                    tracing::error!(reason, retry_seconds = pause.as_secs(), "cannot open the store again");
                }
            }
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
        // Only now: the old engine held the folder's lock until it was dropped.
        let opened = DataFolder::open(&self.folder).and_then(|f| StorageEngine::open(f, &self.options));
        let mut state = self.state.lock();
        match opened {
            Ok(engine) => {
                let engine = Arc::new(engine);
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
    fn resume(&self, engine: &StorageEngine) {
        let in_doubt = self.state.lock().in_doubt.take();
        if let Some(GroupInDoubt { decided, appended }) = in_doubt {
            match is_stored(engine, &decided) {
                // Its callers were told that the outcome shows after the next opening; readers must learn of it.
                Ok(true) => {
                    self.notifier.publish_late(&decided, appended.iter().map(|(feed, appended)| (feed, appended)));
                }
                Ok(false) => {}
                Err(e) => tracing::error!(error = %e, "cannot read the store after it was opened again"),
            }
        }
        // Last: with the failure gone writes begin, whose heads must not be overtaken by those of the group in
        // doubt.
        self.state.lock().failure = None;
        tracing::info!("the store was opened again and accepts writes");
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
