//! Group commit: one thread takes all waiting requests, decides them as one group, applies the group with one
//! sync, notifies, and acknowledges.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use towpath_proto::change::{Change, Seq};
use towpath_proto::feed_id::FeedId;

use super::apply::ApplyMode;
use super::commit_stats::CommitStats;
use super::decide::{CommitGroup, DecidedGroup, Lookup, PreparedChange};
use super::keys::{FeedNumber, FeedRow, IdRow};
use super::let_go::LetGoError;
use super::notifier::Notifier;
use super::slot::{EngineSlot, GroupInDoubt};
use super::storage_engine::{DiskNeed, StorageEngine};
use crate::error::{ReadTarget, StorageError};
use crate::{
    AppendError, Appended, Expected, LogHead, Precondition, Table, TableWrite, WallClock, WriteError,
};

/// Capacity of the queue of waiting requests. Callers wait for room beyond it.
pub(crate) const QUEUE: usize = 1024;

/// Changes of a group at which it is committed.
const GROUP_CHANGES: usize = 4096;
/// Bytes of a group at which it is committed.
const GROUP_BYTES: usize = 16 << 20;

/// Bytes of values up to which a table write needs little of the disk.
const SMALL_WRITE: usize = 16 << 10;

/// Request to the commit thread, with the channel of its reply.
pub(crate) enum CommitRequest {
    Append {
        feed: FeedId,
        expected: Expected,
        changes: Vec<PreparedChange>,
        reply: oneshot::Sender<Result<Appended, AppendError>>,
    },
    Replicate {
        feed: FeedId,
        changes: Vec<Change>,
        reply: oneshot::Sender<Result<Appended, AppendError>>,
    },
    Write {
        writes: Vec<TableWrite>,
        conditions: Vec<Precondition>,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
    LetGo {
        feed: FeedId,
        horizon: Seq,
        reply: oneshot::Sender<Result<LogHead, WriteError>>,
    },
}

impl CommitRequest {
    /// Returns what the request takes of the disk.
    fn need(&self) -> DiskNeed {
        let is_small = match self {
            Self::Append { changes, .. } => changes.iter().all(PreparedChange::is_delete),
            // A removal comes with rows that note it.
            Self::Write { .. } => self.size().1 <= SMALL_WRITE,
            Self::LetGo { .. } => true,
            Self::Replicate { .. } => false,
        };
        if is_small { DiskNeed::Little } else { DiskNeed::Much }
    }

    /// Returns the approximate number of changes and bytes.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Append { changes, .. } => (changes.len(), changes.iter().map(PreparedChange::bytes).sum()),
            Self::Replicate { changes, .. } => {
                let content = changes.iter().filter_map(|change| change.item.content.as_ref());
                (changes.len(), content.map(|content| content.bytes.len()).sum())
            }
            Self::LetGo { .. } => (1, 0),
            Self::Write { writes, .. } => {
                (writes.len(), writes.iter().filter_map(|w| w.value.as_ref()).map(bytes::Bytes::len).sum())
            }
        }
    }
}

/// Commit thread.
pub(crate) struct Committer {
    pub(crate) slot: Arc<EngineSlot>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) clock: WallClock,
    pub(crate) stats: Arc<CommitStats>,
}

/// Acknowledgement of a decided request, due once its group is durable.
enum PendingAck {
    Append(FeedId, Appended, oneshot::Sender<Result<Appended, AppendError>>),
    Write(oneshot::Sender<Result<(), WriteError>>),
}

impl Committer {
    /// Runs until the queue is closed and empty.
    pub(crate) fn run(self, mut queue: mpsc::Receiver<CommitRequest>) {
        while let Some(first) = queue.blocking_recv() {
            let requests = gather(first, &mut queue);
            // Before anything is decided: a full disk refuses whole groups, and reads continue.
            match self.slot.writable(DiskNeed::Much) {
                Ok(engine) => self.commit(&engine, requests),
                Err(reason) => self.commit_small(requests, &reason),
            }
        }
    }

    /// Commits the requests that need little, and refuses the others.
    fn commit_small(&self, requests: Vec<CommitRequest>, reason: &str) {
        let (small, others): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| matches!(request.need(), DiskNeed::Little));
        others.into_iter().for_each(|request| refuse(request, reason));
        if small.is_empty() {
            return;
        }
        match self.slot.writable(DiskNeed::Little) {
            Ok(engine) => self.commit(&engine, small),
            Err(reason) => small.into_iter().for_each(|request| refuse(request, &reason)),
        }
    }

    fn commit(&self, engine: &Arc<StorageEngine>, requests: Vec<CommitRequest>) {
        let (retention, requests): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| matches!(request, CommitRequest::LetGo { .. }));
        // Before retention, whose reads the callers of these requests would otherwise wait for.
        self.commit_group(engine, requests);
        for request in retention {
            if let CommitRequest::LetGo { feed, horizon, reply } = request {
                answer(reply, self.let_go(engine, &feed, horizon));
            }
        }
    }

    /// Lets go of old versions of a feed, in a batch of its own.
    fn let_go(&self, engine: &Arc<StorageEngine>, name: &FeedId, to: Seq) -> Result<LogHead, WriteError> {
        // Asked again: the group just before may have failed since `writable` was asked.
        if engine.has_failed() {
            return Err(WriteError::Storage { reason: "a write before it failed".into() });
        }
        let feed = self.notifier.feed(name, || engine.feed(name));
        let Some(feed) = feed.map_err(|e| e.of(ReadTarget::Feed(name.clone())))? else {
            return Ok(LogHead::EMPTY);
        };
        let end = StorageEngine::end_of_step(feed.head, to);
        if end <= feed.head.horizon {
            return Ok(feed.head);
        }
        // Before the records go: who reads the log and then its horizon must not take a log with holes for whole.
        let ahead = FeedRow { head: LogHead { horizon: end, ..feed.head }, ..feed };
        self.notifier.set_head(name, ahead);
        let feed = engine.let_go(name, feed, end).map_err(|error| {
            self.notifier.set_head(name, feed);
            if let LetGoError::Write(reason) = &error {
                // The step is whole or not there, and the next opening reads which.
                self.slot.fail(reason.clone(), None);
            }
            error.of(name)
        })?;
        self.notifier.set_head(name, feed);
        Ok(feed.head)
    }

    fn commit_group(&self, engine: &Arc<StorageEngine>, requests: Vec<CommitRequest>) {
        let engine = Arc::clone(engine);
        let state = CachedState { engine, notifier: Arc::clone(&self.notifier) };
        let mut group = CommitGroup::new(&state, (self.clock)());
        let pending: Vec<_> =
            requests.into_iter().filter_map(|request| decide(&mut group, request)).collect();
        let decided = group.finish();
        // A group of empty appends and refused requests needs no sync.
        if !decided.is_empty()
            && let Err(reason) = self.apply(&state.engine, &decided, pending.len())
        {
            // Its reference to the engine would keep the slot from opening it again.
            drop(state);
            let appended = pending.iter().filter_map(PendingAck::appended);
            let appended = appended.map(|(feed, appended)| (feed.clone(), *appended)).collect();
            self.slot.fail(reason.clone(), Some(GroupInDoubt { decided, appended }));
            // Heads stay as they are: readers never see a batch whose sync failed.
            pending.into_iter().for_each(|request| request.fail(&reason));
            return;
        }
        // Before the acknowledgement: a caller that has it must read its own write on every path.
        self.notifier.publish(&decided, pending.iter().filter_map(PendingAck::appended));
        pending.into_iter().for_each(PendingAck::acknowledge);
    }
}

impl Committer {
    /// Writes and syncs a group, and counts it.
    fn apply(&self, engine: &StorageEngine, decided: &DecidedGroup, requests: usize) -> Result<(), String> {
        let begun = Instant::now();
        let applied = engine.apply(decided, &[], ApplyMode::Synced);
        self.stats.add(requests, begun.elapsed(), applied.is_ok());
        applied
    }
}

/// Takes the requests that wait behind `first`, up to the size of one group.
///
/// It never waits for more: while one group syncs, the next one gathers by itself.
fn gather(first: CommitRequest, queue: &mut mpsc::Receiver<CommitRequest>) -> Vec<CommitRequest> {
    let (mut changes, mut bytes) = first.size();
    let mut requests = vec![first];
    // Bounded, so that one group does not delay its callers by seconds.
    while changes < GROUP_CHANGES && bytes < GROUP_BYTES {
        let Ok(next) = queue.try_recv() else { break };
        let size = next.size();
        changes += size.0;
        bytes += size.1;
        requests.push(next);
    }
    requests
}

/// Decides one request. A refused one is answered at once and leaves the group as it was.
fn decide(group: &mut CommitGroup<'_, CachedState>, request: CommitRequest) -> Option<PendingAck> {
    let (feed, decided, reply) = match request {
        CommitRequest::Append { feed, expected, changes, reply } => {
            let decided = group.append(&feed, expected, changes);
            (feed, decided, reply)
        }
        CommitRequest::Replicate { feed, changes, reply } => {
            let decided = group.replicate(&feed, &changes);
            (feed, decided, reply)
        }
        // Done after the group.
        CommitRequest::LetGo { .. } => return None,
        CommitRequest::Write { writes, conditions, reply } => {
            return match group.write(writes, conditions) {
                Ok(()) => Some(PendingAck::Write(reply)),
                Err(error) => {
                    answer(reply, Err(error));
                    None
                }
            };
        }
    };
    match decided {
        Ok(appended) => Some(PendingAck::Append(feed, appended, reply)),
        Err(error) => {
            answer(reply, Err(error));
            None
        }
    }
}

impl PendingAck {
    /// Returns the feed and what was appended, unless the append was empty.
    fn appended(&self) -> Option<(&FeedId, &Appended)> {
        match self {
            // An empty batch changes no head, so it runs no hook.
            Self::Append(name, appended, _) if appended.head.seq >= appended.first => Some((name, appended)),
            _ => None,
        }
    }

    fn acknowledge(self) {
        match self {
            Self::Append(_, appended, reply) => answer(reply, Ok(appended)),
            Self::Write(reply) => answer(reply, Ok(())),
        }
    }

    fn fail(self, reason: &str) {
        let reason = reason.to_owned();
        match self {
            Self::Append(feed, _, reply) => answer(reply, Err(AppendError::Storage { feed, reason })),
            Self::Write(reply) => answer(reply, Err(WriteError::Storage { reason })),
        }
    }
}

fn refuse(request: CommitRequest, reason: &str) {
    let reason = reason.to_owned();
    match request {
        CommitRequest::Append { feed, reply, .. } | CommitRequest::Replicate { feed, reply, .. } => {
            answer(reply, Err(AppendError::Storage { feed, reason }));
        }
        CommitRequest::Write { reply, .. } => answer(reply, Err(WriteError::Storage { reason })),
        CommitRequest::LetGo { reply, .. } => answer(reply, Err(WriteError::Storage { reason })),
    }
}

/// Sends a reply. The caller may have dropped its future, which is no error.
fn answer<T>(reply: oneshot::Sender<T>, answer: T) {
    drop(reply.send(answer));
}

/// Stored state, with heads from the notifier's cache.
pub(crate) struct CachedState {
    pub(crate) engine: Arc<StorageEngine>,
    pub(crate) notifier: Arc<Notifier>,
}

impl Lookup for CachedState {
    fn feed(&self, feed: &FeedId) -> Result<Option<FeedRow>, StorageError> {
        self.notifier.feed(feed, || self.engine.feed(feed))
    }

    fn next_feed(&self) -> Result<FeedNumber, StorageError> {
        self.engine.next_feed()
    }

    fn version(&self, key: &[u8]) -> Result<Option<IdRow>, StorageError> {
        self.engine.version(key)
    }

    fn record(&self, feed: FeedNumber, seq: u64) -> Result<bytes::Bytes, StorageError> {
        self.engine.record(feed, seq)
    }

    fn level(&self) -> Result<u8, StorageError> {
        self.engine.level()
    }

    fn value(&self, table: Table, key: &[u8]) -> Result<Option<bytes::Bytes>, StorageError> {
        self.engine.value(table, key)
    }
}
