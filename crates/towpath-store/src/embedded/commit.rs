//! The thread that writes: it takes all requests that wait, decides them as one group, applies the group
//! with one sync, tells, and acknowledges.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use towpath_proto::change::Change;
use towpath_proto::feed_id::FeedId;

use super::apply::{Engine, How};
use super::decide::{Group, Lookup, Prepared};
use super::keys::{Feed, FeedNumber, Version};
use super::tell::Tell;
use crate::{AppendError, Appended, Clock, Condition, Expected, Head, StoreError, Table, Write};

/// How many requests may wait before those who bring more are held up.
pub(crate) const QUEUE: usize = 1024;

/// At which size a group takes no more requests, in changes and in bytes.
const GROUP_CHANGES: usize = 4096;
const GROUP_BYTES: usize = 16 << 20;

/// What is to be written.
pub(crate) enum Request {
    Append {
        feed: FeedId,
        expected: Expected,
        changes: Vec<Prepared>,
        reply: oneshot::Sender<Result<Appended, AppendError>>,
    },
    Replicate {
        feed: FeedId,
        changes: Vec<Change>,
        reply: oneshot::Sender<Result<Appended, AppendError>>,
    },
    Write {
        writes: Vec<Write>,
        conditions: Vec<Condition>,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

impl Request {
    /// Changes and bytes, about.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Append { changes, .. } => (changes.len(), changes.iter().map(Prepared::bytes).sum()),
            Self::Replicate { changes, .. } => {
                let content = changes.iter().filter_map(|change| change.item.content.as_ref());
                (changes.len(), content.map(|content| content.bytes.len()).sum())
            }
            Self::Write { writes, .. } => {
                (writes.len(), writes.iter().filter_map(|w| w.value.as_ref()).map(bytes::Bytes::len).sum())
            }
        }
    }
}

/// The writing thread.
pub(crate) struct Committer {
    pub(crate) known: Known,
    pub(crate) clock: Clock,
}

/// A request that was decided and waits for the group to be durable.
enum Waiting {
    Append(FeedId, Appended, oneshot::Sender<Result<Appended, AppendError>>),
    Write(oneshot::Sender<Result<(), StoreError>>),
}

impl Committer {
    /// Runs until nobody can bring requests any more.
    pub(crate) fn run(self, mut queue: mpsc::Receiver<Request>) {
        while let Some(first) = queue.blocking_recv() {
            let requests = gather(first, &mut queue);
            match self.known.engine.check_writable() {
                Ok(()) => self.commit(requests),
                Err(reason) => requests.into_iter().for_each(|request| refuse(request, &reason)),
            }
        }
    }

    fn commit(&self, requests: Vec<Request>) {
        let mut group = Group::new(&self.known, (self.clock)());
        let waiting: Vec<_> =
            requests.into_iter().filter_map(|request| decide(&mut group, request)).collect();
        let decided = group.finish();
        if !decided.is_empty()
            && let Err(reason) = self.known.engine.apply(&decided, &[], How::Synced)
        {
            tracing::error!(reason, "the store cannot write");
            waiting.into_iter().for_each(|waiting| waiting.fail(&reason));
            return;
        }
        self.known.tell.all(&decided, waiting.iter().filter_map(Waiting::moved));
        waiting.into_iter().for_each(Waiting::acknowledge);
    }
}

/// The requests that wait behind `first`, as many as make one group.
fn gather(first: Request, queue: &mut mpsc::Receiver<Request>) -> Vec<Request> {
    let (mut changes, mut bytes) = first.size();
    let mut requests = vec![first];
    while changes < GROUP_CHANGES && bytes < GROUP_BYTES {
        let Ok(next) = queue.try_recv() else { break };
        let size = next.size();
        changes += size.0;
        bytes += size.1;
        requests.push(next);
    }
    requests
}

/// Decides one request; one that is refused is answered at once and disturbs no other.
fn decide(group: &mut Group<'_, Known>, request: Request) -> Option<Waiting> {
    let (feed, decided, reply) = match request {
        Request::Append { feed, expected, changes, reply } => {
            let decided = group.append(&feed, expected, changes);
            (feed, decided, reply)
        }
        Request::Replicate { feed, changes, reply } => {
            let decided = group.replicate(&feed, &changes);
            (feed, decided, reply)
        }
        Request::Write { writes, conditions, reply } => {
            return match group.write(writes, conditions) {
                Ok(()) => Some(Waiting::Write(reply)),
                Err(error) => {
                    answer(reply, Err(error));
                    None
                }
            };
        }
    };
    match decided {
        Ok(appended) => Some(Waiting::Append(feed, appended, reply)),
        Err(error) => {
            answer(reply, Err(error));
            None
        }
    }
}

impl Waiting {
    /// The feed that it moved, and where to.
    fn moved(&self) -> Option<(&FeedId, Head)> {
        match self {
            Self::Append(name, appended, _) if appended.head.seq >= appended.first => {
                Some((name, appended.head))
            }
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
        let error = StoreError::Write(reason.to_owned());
        match self {
            Self::Append(_, _, reply) => answer(reply, Err(error.into())),
            Self::Write(reply) => answer(reply, Err(error)),
        }
    }
}

fn refuse(request: Request, reason: &str) {
    let error = StoreError::Write(reason.to_owned());
    match request {
        Request::Append { reply, .. } | Request::Replicate { reply, .. } => answer(reply, Err(error.into())),
        Request::Write { reply, .. } => answer(reply, Err(error)),
    }
}

/// Answers one who may have stopped listening.
fn answer<T>(reply: oneshot::Sender<T>, answer: T) {
    drop(reply.send(answer));
}

/// What is stored, with the heads from memory.
pub(crate) struct Known {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tell: Arc<Tell>,
}

impl Lookup for Known {
    fn feed(&self, feed: &FeedId) -> Result<Option<Feed>, StoreError> {
        self.tell.feed(feed, || self.engine.feed(feed))
    }

    fn next_feed(&self) -> Result<FeedNumber, StoreError> {
        self.engine.next_feed()
    }

    fn version(&self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        self.engine.version(key)
    }

    fn record(&self, feed: FeedNumber, seq: u64) -> Result<bytes::Bytes, StoreError> {
        self.engine.record(feed, seq)
    }

    fn value(&self, table: Table, key: &[u8]) -> Result<Option<bytes::Bytes>, StoreError> {
        self.engine.value(table, key)
    }
}
