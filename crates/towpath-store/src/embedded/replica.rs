//! The embedded store as a replica: it decides and applies commands that another log orders.
//!
//! Nothing is synced: after a crash the lost groups are read from the log again. The engine syncs its journal
//! before it moves anything out of it. So a crash leaves the state after some group, with that group's metadata.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_proto::feed_id::FeedId;

use super::apply::{ApplyMode, MetadataRow};
use super::command::{CommandBody, CommandResult, LogCommand};
use super::commit::CachedState;
use super::damage::DamageLog;
use super::decide::{CommitGroup, Lookup as _};
use super::folder::DataFolder;
use super::notifier::Notifier;
use super::slot::EngineSlot;
use super::storage_engine::{DiskNeed, StorageEngine};
use super::{EmbeddedOptions, EmbeddedStore};
use crate::{AppendError, Appended, OpenError, ReplicaError, WriteError};

/// Bytes of records from which a group is bulk-loaded. Such a group is one of a replica that catches up.
///
/// Loading costs a few syncs and saves the journal and the memtable.
const LOAD_BYTES: usize = 4 << 20;

/// Writing half of a replica. The reading half is an [`EmbeddedStore`] that refuses writes.
///
/// Drop it before closing the reading half, which waits for the engine to be unused.
pub struct ReplicaWriter {
    state: CachedState,
}

impl EmbeddedStore {
    /// Opens the replica in `folder`, which is created if needed. `options.clock` is not used.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedStore::open`], and if the folder holds a store that is not a replica.
    pub fn open_replica(
        folder: impl AsRef<Path>,
        options: &EmbeddedOptions,
    ) -> Result<(Self, ReplicaWriter), OpenError> {
        let path = folder.as_ref();
        let engine = Arc::new(StorageEngine::open_replica(DataFolder::open(path)?, options)?);
        if !engine.opened_as_replica()? && !engine.is_empty().map_err(|e| engine.refuse(&e.to_string()))? {
            return Err(engine.refuse(
                "it holds a store of its own, which the cluster's log does not have; use an empty or new folder",
            ));
        }
        let notifier = Arc::new(Notifier::new(options.heads));
        let replica = ReplicaWriter {
            state: CachedState { engine: Arc::clone(&engine), notifier: Arc::clone(&notifier) },
        };
        // Without a queue the reading half refuses writes, as a closed store does.
        let (queue, committer) = (Mutex::default(), Mutex::default());
        let slot = EngineSlot::new(engine, Arc::clone(&notifier), path.to_owned(), options.clone());
        let damage = Arc::new(DamageLog::new(path.to_owned()));
        Ok((
            Self { slot: Arc::new(slot), stats: Arc::default(), notifier, damage, queue, committer },
            replica,
        ))
    }
}

impl ReplicaWriter {
    /// Returns a value of the metadata that earlier groups wrote.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`] if the replica cannot be read.
    pub fn metadata(&self, key: &[u8]) -> Result<Option<Bytes>, ReplicaError> {
        Ok(self.state.engine.metadata(key)?)
    }

    /// Returns all metadata whose keys begin with `prefix`, ordered by key.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`] if the replica cannot be read.
    pub fn scan_metadata(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, ReplicaError> {
        Ok(self.state.engine.scan_metadata(prefix)?)
    }

    /// Returns the feature level of the cluster, up to the last group.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`] if the replica cannot be read.
    pub fn level(&self) -> Result<u8, ReplicaError> {
        Ok(self.state.level()?)
    }

    /// Checks that a group can be applied.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Write`] if the disk is nearly full, or an earlier write failed.
    pub fn check_writable(&self) -> Result<(), ReplicaError> {
        self.state.engine.check_writable(DiskNeed::Much).map_err(ReplicaError::Write)
    }

    /// Returns true where an earlier write failed: none succeeds until the store is opened again.
    pub fn has_failed(&self) -> bool {
        self.state.engine.has_failed()
    }

    /// Starts an empty group.
    pub fn begin_group(&self) -> ReplicaGroup<'_> {
        // A placeholder: each command brings its own time.
        let group = CommitGroup::new(&self.state, Timestamp::UNIX_EPOCH);
        ReplicaGroup { group, appended: Vec::new(), metadata: BTreeMap::new() }
    }

    /// Applies a group atomically, and notifies readers, hooks and waiters.
    ///
    /// # Errors
    ///
    /// [`ReplicaError::Write`].
    pub fn commit(&self, group: ReplicaGroup<'_>) -> Result<(), ReplicaError> {
        let ReplicaGroup { group, appended, metadata } = group;
        let decided = group.finish();
        let metadata: Vec<MetadataRow> = metadata.into_iter().collect();
        let engine = &self.state.engine;
        let bytes: usize = decided.records.iter().map(|(_, record)| record.bytes()).sum();
        // A small group would pay the syncs of a bulk load for nothing.
        let mode = if bytes < LOAD_BYTES { ApplyMode::Unsynced } else { ApplyMode::Loaded };
        if mode == ApplyMode::Loaded {
            engine.load(&decided.records).map_err(ReplicaError::Write)?;
        }
        // After the load: this batch moves the heads, which makes the loaded records visible.
        engine.apply(&decided, &metadata, mode).map_err(ReplicaError::Write)?;
        self.state.notifier.publish(&decided, appended.iter().map(|(feed, appended)| (feed, appended)));
        Ok(())
    }
}

/// Commands that are applied together. Each is decided as if the ones before it were applied already, so that the
/// grouping makes no difference to the result.
pub struct ReplicaGroup<'a> {
    group: CommitGroup<'a, CachedState>,
    appended: Vec<(FeedId, Appended)>,
    metadata: BTreeMap<Vec<u8>, Option<Bytes>>,
}

impl ReplicaGroup<'_> {
    /// Decides a command that was created at `now`.
    ///
    /// # Errors
    ///
    /// [`ReplicaError`], which is this replica's own: it cannot continue.
    pub fn apply(&mut self, now: Timestamp, command: LogCommand) -> Result<CommandResult, ReplicaError> {
        // The time in the message, not the clock: every replica must decide alike.
        self.group.set_time(now);
        match command.0 {
            CommandBody::Append { feed, expected, changes } => {
                let appended = match self.group.append(&feed, expected, changes) {
                    // Other nodes may have read it and decided otherwise: this one would diverge.
                    Err(AppendError::Read(error)) => return Err(error.into()),
                    other => other,
                };
                if let Ok(appended) = &appended
                    // An empty append moves no head. Announcing it would wake waiters and run hooks for
                    // nothing.
                    && appended.head.seq >= appended.first
                {
                    self.appended.push((feed, *appended));
                }
                Ok(CommandResult::Append(appended))
            }
            CommandBody::RaiseLevel { level } => Ok(CommandResult::Level(self.group.raise_level(level)?)),
            CommandBody::Write { writes, conditions } => match self.group.write(writes, conditions) {
                Ok(()) => Ok(CommandResult::Write(Ok(()))),
                Err(WriteError::Read(error)) => Err(error.into()),
                Err(error) => Ok(CommandResult::Write(Err(error))),
            },
        }
    }

    /// Writes metadata with the group; the last value of a key wins, and `None` removes it.
    pub fn set_metadata(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        self.metadata.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::item::{Content, Item};

    use super::*;
    use crate::{Expected, ReadLimit, Store};

    fn feed() -> FeedId {
        FeedId::new("f1").unwrap()
    }

    fn open(folder: &Path) -> (EmbeddedStore, ReplicaWriter) {
        EmbeddedStore::open_replica(folder, &EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() })
            .unwrap()
    }

    /// Group of `count` changes of 10 kB, to ids of which some exist.
    fn group<'a>(replica: &'a ReplicaWriter, count: usize, mark: &str) -> ReplicaGroup<'a> {
        let content = |n: usize| Some(Content::new("text/plain", format!("{n:04}{mark:1}").repeat(2000)));
        let put =
            |n: usize| NewChange::put(Item { content: content(n), ..Item::new(format!("{}", n % 450)) });
        let mut group = replica.begin_group();
        let command = LogCommand::append(&feed(), Expected::Any, (0..count).map(put).collect()).unwrap();
        let CommandResult::Append(Ok(_)) = group.apply(Timestamp::UNIX_EPOCH, command).unwrap() else {
            panic!()
        };
        group.set_metadata(b"position".to_vec(), Some(Bytes::from_static(b"1")));
        group
    }

    async fn contents(store: &EmbeddedStore) -> Vec<u8> {
        let all = ReadLimit { items: usize::MAX, bytes: usize::MAX };
        let changes = store.read(&feed(), 0, all).await.unwrap();
        assert!((1..).zip(&changes).all(|(seq, change)| change.seq == seq));
        changes.iter().map(|change| change.item.content.as_ref().unwrap().bytes[4]).collect()
    }

    /// A lost power takes any blocks of what was not synced. What follows the first loss is read from the log again.
    #[tokio::test]
    async fn a_replica_goes_on_behind_a_hole_in_its_journal() {
        let folder = tempfile::tempdir().unwrap();
        let (store, replica) = open(folder.path());
        for (number, mark) in ["a", "b", "c"].into_iter().enumerate() {
            let mut next = group(&replica, 20, mark);
            next.set_metadata(b"position".to_vec(), Some(Bytes::from(number.to_string())));
            replica.commit(next).unwrap();
        }
        drop(replica);
        store.close().await;
        let journal = folder.path().join("engine/0.jnl");
        let mut bytes = std::fs::read(&journal).unwrap();
        let second = bytes.windows(5).position(|window| window == b"0010b").unwrap();
        let block = second.next_multiple_of(4096);
        assert_eq!(&bytes[second..second + 10], b"0010b0010b");
        bytes[block..block + 4096].fill(0);
        std::fs::write(&journal, bytes).unwrap();

        let (store, replica) = open(folder.path());
        assert_eq!(contents(&store).await, [b'a'; 20]);
        assert_eq!(replica.metadata(b"position").unwrap().as_deref(), Some(b"0".as_slice()));
        let next = group(&replica, 20, "b");
        replica.commit(next).unwrap();
        assert_eq!(contents(&store).await, [[b'a'; 20], [b'b'; 20]].concat());
        assert!(store.verify().await.unwrap().is_sound());
        drop(replica);
        store.close().await;
    }

    /// Records that were loaded and not applied, because the process died in between, stay invisible. The next records
    /// overwrite them.
    #[tokio::test]
    async fn loaded_records_without_their_batch_are_invisible() {
        let folder = tempfile::tempdir().unwrap();
        let (store, replica) = open(folder.path());
        let first = group(&replica, 500, "a");
        replica.commit(first).unwrap();
        let engine = Arc::clone(&replica.state.engine);
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
        // A small group and a bulk-loaded one.
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
