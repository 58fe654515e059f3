//! Copies of a whole store: reading one while it is written to, and building a folder from one.
//!
//! A copy has the entries of every keyspace as they are stored, at one moment. So it is bound to the version of the
//! format, [`COPY_FORMAT`], and a folder that is built from it is the same store.

use std::fs;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Keyspace, PersistMode, Readable as _, Snapshot};
use sha2::{Digest as _, Sha256};

use super::engine_error::{engine_reason, read_error};
use super::folder::{DataFolder, FORMAT_VERSION, remove_folder};
use super::keys;
use super::record::bytes_of;
use super::storage_engine::StorageEngine;
use super::{EmbeddedOptions, EmbeddedStore};
use crate::error::ReadTarget;
use crate::{OpenError, ReadError, WriteError};

/// Folder in which the replacement of a store is built.
const REPLACEMENT: &str = "towpath.replacement";

/// Version of the format of a copy's entries. A folder can be built from those of earlier versions, too.
pub const COPY_FORMAT: u32 = FORMAT_VERSION;

/// Part of a copy: a keyspace of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopySection {
    /// Feeds and their heads.
    Feeds,
    /// All changes.
    Log,
    /// Items by id.
    Ids,
    /// Items by time of their last change.
    Modified,
    /// Items by time of their creation.
    Created,
    /// Positions by time.
    Times,
    /// Tables beside the log.
    Tables,
    /// Documents.
    Documents,
}

impl CopySection {
    /// All sections, in the order in which a copy has them.
    pub const ALL: [Self; 8] = [
        Self::Feeds,
        Self::Log,
        Self::Ids,
        Self::Modified,
        Self::Created,
        Self::Times,
        Self::Tables,
        Self::Documents,
    ];

    /// Returns the name of the section in a copy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Feeds => "feeds",
            Self::Log => "log",
            Self::Ids => "ids",
            Self::Modified => "modified",
            Self::Created => "created",
            Self::Times => "times",
            Self::Tables => "tables",
            Self::Documents => "documents",
        }
    }

    /// Returns the section of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    fn keyspace(self, engine: &StorageEngine) -> &Keyspace {
        match self {
            Self::Feeds => &engine.feeds,
            Self::Log => &engine.log,
            Self::Ids => &engine.ids,
            Self::Modified => &engine.modified,
            Self::Created => &engine.created,
            Self::Times => &engine.times,
            Self::Tables => &engine.tables,
            Self::Documents => &engine.documents,
        }
    }
}

/// Key and value of a section.
pub type CopyEntry = (Bytes, Bytes);

/// A store at one moment. Writes go on beside it; what they replace stays on disk until the copy is dropped.
pub struct StoreCopy {
    engine: Arc<StorageEngine>,
    snapshot: Snapshot,
}

impl StoreCopy {
    /// Returns a value of a replica's metadata.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`] where the engine finds its files damaged.
    pub fn metadata(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.value(&keys::metadata(key))
    }

    /// Returns the feature level of a replica's cluster.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`] where the engine finds its files damaged.
    pub fn level(&self) -> Result<u8, ReadError> {
        let value = self.value(keys::LEVEL)?;
        keys::read_level(value.as_deref()).map_err(|e| e.of(ReadTarget::Everything))
    }

    /// Returns the SHA-256 of all entries, in the layout of the first format. Replicas that have applied the same messages
    /// have equal digests, also where one of them is of an earlier version.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`] where the engine finds its files damaged.
    pub fn digest(&self) -> Result<[u8; 32], ReadError> {
        let mut digest = Sha256::new();
        for section in CopySection::ALL {
            digest.update(section.name());
            for entry in self.snapshot.iter(section.keyspace(&self.engine)) {
                let entry = entry.into_inner();
                let (key, value) = entry.map_err(|e| read_error(&e).of(ReadTarget::Everything))?;
                // Commits are counted by each folder, and names by numbers repeat the feeds.
                let is_local = key == keys::COMMIT || key.starts_with(keys::FEED_NAMES);
                if section == CopySection::Tables && is_local {
                    continue;
                }
                let row = (section == CopySection::Feeds).then(|| keys::without_empty_horizon(&value));
                for part in [&key[..], row.unwrap_or(&value)] {
                    // The length separates key and value: without it, bytes moved from one to the other would
                    // give the same digest.
                    digest.update((part.len() as u64).to_be_bytes());
                    digest.update(part);
                }
            }
        }
        Ok(digest.finalize().into())
    }

    fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let value = self.snapshot.get(&self.engine.tables, key);
        Ok(value.map_err(|e| read_error(&e).of(ReadTarget::Everything))?.map(bytes_of))
    }

    /// Returns the entries of a section after a key, in ascending order, up to about `bytes` bytes and at least one.
    /// None are left if it returns none.
    ///
    /// # Errors
    ///
    /// [`ReadError::Damaged`] where the engine finds its files damaged.
    pub fn read(
        &self,
        section: CopySection,
        after: Option<&[u8]>,
        bytes: usize,
    ) -> Result<Vec<CopyEntry>, ReadError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (from, Bound::Unbounded);
        let (mut entries, mut size) = (Vec::new(), 0);
        for entry in self.snapshot.range::<&[u8], _>(section.keyspace(&self.engine), range) {
            let entry = entry.into_inner();
            let (key, value) = entry.map_err(|e| read_error(&e).of(ReadTarget::Everything))?;
            // Counted before the check, so that one entry above the limit is still returned and the copy goes
            // on.
            size += key.len() + value.len();
            entries.push((bytes_of(key), bytes_of(value)));
            if size >= bytes {
                break;
            }
        }
        Ok(entries)
    }
}

impl EmbeddedStore {
    /// Returns a copy of the store as it is now.
    ///
    /// # Errors
    ///
    /// If the store is closed.
    pub fn copy_now(&self) -> Result<StoreCopy, ReadError> {
        let engine = self.engine()?;
        let snapshot = engine.db.snapshot();
        Ok(StoreCopy { engine, snapshot })
    }
}

/// Replaces the store of a folder by one that `build` makes, given the path of a folder that does not exist.
///
/// Nobody may have the folder open. It is created if needed. If anything fails, it is as it was.
///
/// # Errors
///
/// The error of `build`, and that the folder cannot be locked or written.
pub fn replace_store<E: From<OpenError>>(
    folder: &Path,
    build: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let locked = DataFolder::open(folder)?;
    // Within it: a rename is atomic only within a file system, and the folder may be one of its own.
    let building = folder.join(REPLACEMENT);
    let clear = || {
        let refuse =
            |e: io::Error| OpenError { folder: building.display().to_string(), reason: e.to_string() };
        remove_folder(&building).map_err(refuse)
    };
    // Left behind by a process that was killed.
    clear()?;
    if let Err(e) = build(&building) {
        drop(clear());
        return Err(e);
    }
    Ok(locked.replace(&building)?)
}

/// Builds a data folder from the entries of a copy.
pub struct StoreBuilder {
    engine: StorageEngine,
}

impl StoreBuilder {
    /// Creates the folder. Remove it if building fails: it is a data folder from the start.
    ///
    /// # Errors
    ///
    /// If it holds anything already, or cannot be written to.
    pub fn create(folder: &Path) -> Result<Self, OpenError> {
        let refuse = |reason: String| OpenError { folder: folder.display().to_string(), reason };
        match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Err(refuse("it is not empty".into())),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(refuse(e.to_string())),
            _ => {}
        }
        let engine = StorageEngine::open(DataFolder::open(folder)?, &EmbeddedOptions::default())?;
        Ok(Self { engine })
    }

    /// Loads a whole section, in ascending order of its keys. Returns the number of entries.
    ///
    /// # Errors
    ///
    /// The error of an entry, or of the engine, as text.
    pub fn load(
        &self,
        section: CopySection,
        entries: impl Iterator<Item = Result<CopyEntry, String>>,
    ) -> Result<u64, String> {
        let failed = |e: fjall::Error| engine_reason(&e);
        let mut entries = entries.peekable();
        // The engine has no table without entries.
        if entries.peek().is_none() {
            return Ok(0);
        }
        let mut loading = section.keyspace(&self.engine).start_ingestion().map_err(failed)?;
        let (mut count, mut last) = (0, None);
        for entry in entries {
            let (key, value) = entry?;
            // The engine panics on keys out of order.
            if last.as_ref().is_some_and(|last| *last >= key) {
                return Err(format!("the section {} is not in the order of its keys", section.name()));
            }
            loading.write(key.to_vec(), value.to_vec()).map_err(failed)?;
            last = Some(key);
            count += 1;
        }
        loading.finish().map_err(failed)?;
        Ok(count)
    }

    /// Makes the folder durable and closes it.
    ///
    /// # Errors
    ///
    /// [`WriteError::Storage`] if the disk fails.
    pub fn finish(self) -> Result<(), WriteError> {
        // The entries may be those of an earlier format.
        self.engine.migrate().map_err(|reason| WriteError::Storage { reason })?;
        let persisted = self.engine.db.persist(PersistMode::SyncAll);
        persisted.map_err(|e| WriteError::Storage { reason: engine_reason(&e) })
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::feed_id::FeedId;
    use towpath_proto::item::{Content, Item};

    use super::*;
    use crate::{Expected, ReadLimit, Store as _, Table, TableWrite};

    fn put(id: &str) -> NewChange {
        NewChange::put(Item { content: Some(Content::new("text/plain", id.to_owned())), ..Item::new(id) })
    }

    fn build(copy: &StoreCopy, folder: &Path, page: usize) {
        let builder = StoreBuilder::create(folder).unwrap();
        for section in CopySection::ALL {
            let mut entries = Vec::new();
            loop {
                let after = entries.last().map(|(key, _): &CopyEntry| key.clone());
                let read = copy.read(section, after.as_deref(), page).unwrap();
                if read.is_empty() {
                    break;
                }
                entries.extend(read);
            }
            builder.load(section, entries.into_iter().map(Ok)).unwrap();
        }
        builder.finish().unwrap();
    }

    /// Appends after the copy are not in it, and the copied store takes further ones.
    #[tokio::test]
    async fn a_folder_from_a_copy_is_the_store_of_that_moment() {
        let folders = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folders.path().join("a"), EmbeddedOptions::default()).unwrap();
        let feed = FeedId::new("notes").unwrap();
        for id in ["a", "b", "a"] {
            store.append(&feed, Expected::Any, vec![put(id), NewChange::delete("b")]).await.ok();
            store.append(&feed, Expected::Any, vec![put(id)]).await.unwrap();
        }
        let row = TableWrite { table: Table::Subscriptions, key: b"k".to_vec(), value: Some("v".into()) };
        store.write(vec![row], Vec::new()).await.unwrap();
        let copy = store.copy_now().unwrap();
        let head = store.head(&feed).await.unwrap();
        store.append(&feed, Expected::Any, vec![put("later")]).await.unwrap();
        for page in [1, 100_000] {
            let path = folders.path().join(page.to_string());
            build(&copy, &path, page);
            let copied = EmbeddedStore::open(&path, EmbeddedOptions::default()).unwrap();
            assert_eq!(copied.head(&feed).await.unwrap(), head);
            let all = ReadLimit { items: 100, bytes: 1 << 20 };
            let changes = copied.read(&feed, 0, all).await.unwrap();
            assert_eq!(changes, store.read(&feed, 0, all).await.unwrap()[..changes.len()]);
            assert_eq!(copied.get(Table::Subscriptions, b"k").await.unwrap().as_deref(), Some(&b"v"[..]));
            assert!(copied.verify().await.unwrap().is_sound());
            let next = copied.append(&feed, Expected::Any, vec![put("next")]).await.unwrap();
            assert_eq!(next.first, head.seq + 1);
            copied.close().await;
            drop(copied);
            // The journal's mark fits the built folder after writes, too.
            let again = EmbeddedStore::open(&path, EmbeddedOptions::default()).unwrap();
            assert_eq!(again.head(&feed).await.unwrap().seq, head.seq + 1);
            assert!(StoreBuilder::create(&path).is_err());
        }
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let builder = StoreBuilder::create(folder.path()).unwrap();
        let entry = |key: &'static str| Ok((Bytes::from(key), Bytes::new()));
        let refused = builder.load(CopySection::Tables, [entry("b"), entry("a")].into_iter());
        assert!(refused.unwrap_err().contains("not in the order"));
        let failed = [entry("a"), Err("torn".to_owned())].into_iter();
        assert_eq!(builder.load(CopySection::Feeds, failed).unwrap_err(), "torn");
    }

    #[test]
    fn sections_have_names() {
        for section in CopySection::ALL {
            assert_eq!(CopySection::of_name(section.name()), Some(section));
        }
    }
}
