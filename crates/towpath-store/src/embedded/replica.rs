//! The embedded store as a replica: what another log orders, decided and applied by the same code.
//!
//! Nothing is synced: what a crash takes is read from the log again. The engine syncs its journal before it moves
//! anything out of it, so that what a crash leaves is the state after some group, with the notes of that group.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_proto::feed_id::FeedId;

use super::apply::{Engine, How, Note};
use super::command::{Command, Outcome, Request};
use super::commit::Known;
use super::decide::Group;
use super::folder::Folder;
use super::tell::Tell;
use super::{EmbeddedStore, Options};
use crate::{AppendError, Head, StoreError};

/// From which size on the records of a group, which is one of a replica that catches up, are loaded in bulk: that costs
/// a few syncs, and saves the way through the journal.
const LOAD_BYTES: usize = 4 << 20;

/// The writing half of a replica. The reading half is an [`EmbeddedStore`] that takes no writes of its own; to
/// close that, this is to be dropped.
pub struct Replica {
    known: Known,
}

impl EmbeddedStore {
    /// Opens the replica in `folder`, which is made where it is not there. `options.clock` is not used.
    ///
    /// Fails with [`StoreError::Open`] as [`EmbeddedStore::open`] does, and where the folder holds a store that
    /// is no replica.
    pub fn open_replica(folder: impl AsRef<Path>, options: &Options) -> Result<(Self, Replica), StoreError> {
        let engine = Arc::new(Engine::open(Folder::open(folder.as_ref())?, options)?);
        if !engine.is_replica()? && !engine.is_empty()? {
            return Err(engine.refuse(
                "it holds a store of its own, which the cluster's log does not have; name an empty or new one",
            ));
        }
        let tell = Arc::new(Tell::new(options.heads));
        let replica = Replica { known: Known { engine: Arc::clone(&engine), tell: Arc::clone(&tell) } };
        let (queue, committer) = (Mutex::default(), Mutex::default());
        Ok((Self { engine: Mutex::new(Some(engine)), tell, queue, committer }, replica))
    }
}

impl Replica {
    /// A note that was kept with an earlier group.
    pub fn note(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.known.engine.note(key)
    }

    /// All notes whose keys begin with `prefix`, in the order of their keys.
    pub fn notes(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, StoreError> {
        self.known.engine.notes(prefix)
    }

    /// Fails where a group could not be applied: the disk is nearly full, or an earlier write failed.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        self.known.engine.check_writable().map_err(StoreError::Write)
    }

    /// Whether an earlier write failed, so that none succeeds until the store is opened again.
    pub fn has_failed(&self) -> bool {
        self.known.engine.has_failed()
    }

    /// Begins a group.
    pub fn begin(&self) -> Applying<'_> {
        let group = Group::new(&self.known, Timestamp::UNIX_EPOCH);
        Applying { group, moved: Vec::new(), notes: BTreeMap::new() }
    }

    /// Applies a group, whole, and tells of it.
    pub fn commit(&self, applying: Applying<'_>) -> Result<(), StoreError> {
        let Applying { group, moved, notes } = applying;
        let decided = group.finish();
        let notes: Vec<Note> = notes.into_iter().collect();
        let engine = &self.known.engine;
        let bytes: usize = decided.records.iter().map(|(_, record)| record.bytes()).sum();
        let how = if bytes < LOAD_BYTES { How::Unsynced } else { How::Loaded };
        if how == How::Loaded {
            engine.load(&decided.records).map_err(StoreError::Write)?;
        }
        engine.apply(&decided, &notes, how).map_err(StoreError::Write)?;
        self.known.tell.all(&decided, moved.iter().map(|(feed, head)| (feed, *head)));
        Ok(())
    }
}

/// Commands that are applied together, each decided as if the ones before it were applied already: how they are
/// grouped makes no difference.
pub struct Applying<'a> {
    group: Group<'a, Known>,
    moved: Vec<(FeedId, Head)>,
    notes: BTreeMap<Vec<u8>, Option<Bytes>>,
}

impl Applying<'_> {
    /// Decides a command, made at `now`. An error is this replica's own: it cannot go on.
    pub fn apply(&mut self, now: Timestamp, command: Command) -> Result<Outcome, StoreError> {
        self.group.at(now);
        match command.0 {
            Request::Append { feed, expected, changes } => {
                let appended = match self.group.append(&feed, expected, changes) {
                    Err(AppendError::Store(error)) => return Err(error),
                    other => other,
                };
                if let Ok(appended) = &appended
                    && appended.head.seq >= appended.first
                {
                    self.moved.push((feed, appended.head));
                }
                Ok(Outcome::Append(appended))
            }
            Request::Write { writes, conditions } => match self.group.write(writes, conditions) {
                Ok(()) => Ok(Outcome::Write(Ok(()))),
                Err(StoreError::Condition) => Ok(Outcome::Write(Err(StoreError::Condition))),
                Err(error) => Err(error),
            },
        }
    }

    /// Keeps a note with the group, of several under one key the last; `None` removes it.
    pub fn keep(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        self.notes.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::item::{Content, Item};

    use super::*;
    use crate::{Expected, Limit, Store};

    fn feed() -> FeedId {
        FeedId::new("f1").unwrap()
    }

    fn open(folder: &Path) -> (EmbeddedStore, Replica) {
        EmbeddedStore::open_replica(folder, &Options { reserve: 0, ..Options::default() }).unwrap()
    }

    /// A group of `count` changes of 10 kB to ids that some of the earlier ones had.
    fn group<'a>(replica: &'a Replica, count: usize, mark: &str) -> Applying<'a> {
        let content = |n: usize| Some(Content::new("text/plain", format!("{n:04}{mark:1}").repeat(2000)));
        let put =
            |n: usize| NewChange::put(Item { content: content(n), ..Item::new(format!("{}", n % 450)) });
        let mut group = replica.begin();
        let command = Command::append(&feed(), Expected::Any, (0..count).map(put).collect()).unwrap();
        let Outcome::Append(Ok(_)) = group.apply(Timestamp::UNIX_EPOCH, command).unwrap() else { panic!() };
        group.keep(b"position".to_vec(), Some(Bytes::from_static(b"1")));
        group
    }

    async fn contents(store: &EmbeddedStore) -> Vec<u8> {
        let all = Limit { items: usize::MAX, bytes: usize::MAX };
        let changes = store.read(&feed(), 0, all).await.unwrap();
        assert!((1..).zip(&changes).all(|(seq, change)| change.seq == seq));
        changes.iter().map(|change| change.item.content.as_ref().unwrap().bytes[4]).collect()
    }

    /// Entries that were loaded and not applied, since the process died in between, are read by nobody, and the next
    /// ones take their places.
    #[tokio::test]
    async fn what_a_crash_left_loaded_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let (store, replica) = open(folder.path());
        let first = group(&replica, 500, "a");
        replica.commit(first).unwrap();
        let engine = Arc::clone(&replica.known.engine);
        assert!(engine.log.table_count() > 0, "the group was not loaded");
        let lost = group(&replica, 600, "b").group.finish();
        engine.load(&lost.records).unwrap();
        assert_eq!(contents(&store).await, [b'a'; 500]);
        assert_eq!(store.change(&feed(), 501).await.unwrap(), None);
        drop((engine, replica));
        store.close().await;

        let (store, replica) = open(folder.path());
        assert_eq!(contents(&store).await, [b'a'; 500]);
        assert!(store.verify().await.unwrap().is_sound());
        for count in [20, 700] {
            let next = group(&replica, count, "c");
            replica.commit(next).unwrap();
        }
        assert_eq!(contents(&store).await, [[b'a'; 500].as_slice(), &[b'c'; 720]].concat());
        let found = store.verify().await.unwrap();
        assert!(found.is_sound() && found.changes == 1220, "{found:?}");
        drop(replica);
        store.close().await;
    }
}
