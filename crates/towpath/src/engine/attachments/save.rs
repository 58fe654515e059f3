//! Files that are saved with their item.
//!
//! A file is there before the item that names it. The deletion of an earlier version of the item must not take it in
//! between, so that both hold the item's lock.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};
use towpath_proto::FeedId;
use towpath_store::{Store, Table, TableWrite};

use super::{
    Attachment, KeptFile, bytes_row, chunked_record, is_named, name_row, names, record, remove_file,
};
use crate::engine::Engine;
use crate::store_error::StoreError;

/// Number of locks. Items share them.
const LOCKS: usize = 64;
/// Most names that a file has. The oldest give way.
const MAX_NAMES: usize = 100;

/// Locks of items, for what one process does to their files.
struct ItemLocks([Arc<Mutex<()>>; LOCKS]);

/// Hold on the files of items: nobody else saves or removes any meanwhile.
#[derive(Debug, Default)]
pub(crate) struct ItemGuard(
    // Released on drop.
    #[expect(dead_code)] Vec<OwnedMutexGuard<()>>,
);

/// Takes hold of the files of items. Whoever has a hold must not ask for a second one.
pub(crate) async fn lock(engine: &Engine, feed: &FeedId, ids: impl Iterator<Item = &str>) -> ItemGuard {
    let locks = engine.extensions.get_or_insert_with(|| ItemLocks(std::array::from_fn(|_| Arc::default())));
    let index = |id: &str| usize::from(Sha256::digest(format!("{feed}/{id}"))[0]) % LOCKS;
    let mut indexes: Vec<usize> = ids.map(index).collect();
    // In one order for all, so that two never wait for each other.
    indexes.sort_unstable();
    indexes.dedup();
    let mut held = Vec::with_capacity(indexes.len());
    for index in indexes {
        held.push(locks.0[index].clone().lock_owned().await);
    }
    ItemGuard(held)
}

/// File that comes with its item.
#[derive(Debug)]
pub(crate) struct NewFile {
    /// Id of the item.
    pub(crate) item: String,
    pub(crate) file: Attachment,
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

/// Files that were saved, with the hold on their items.
#[derive(Debug, Default)]
pub(crate) struct SavedFiles {
    /// Id of the item and key of each file that was not there before.
    new: Vec<(String, String)>,
    _guard: ItemGuard,
}

impl From<ItemGuard> for SavedFiles {
    fn from(guard: ItemGuard) -> Self {
        Self { new: Vec::new(), _guard: guard }
    }
}

/// Saves files. They are there before the items that name them.
pub(crate) async fn save(
    engine: &Engine,
    feed: &FeedId,
    files: Vec<NewFile>,
) -> Result<SavedFiles, StoreError> {
    let guard = lock(engine, feed, files.iter().map(|new| new.item.as_str())).await;
    let store = engine.store.as_ref();
    let mut saved = SavedFiles::from(guard);
    // One by one: each is as large as a batch may be.
    for NewFile { item, file, media_type, bytes } in files {
        let writes = match describe(store, feed, &file, &media_type).await? {
            Some(writes) => writes,
            None => {
                let writes = keep(feed, &file, &media_type, &bytes);
                saved.new.push((item, file.key));
                writes
            }
        };
        if !writes.is_empty() {
            store.write(writes, Vec::new()).await?;
        }
    }
    Ok(saved)
}

impl SavedFiles {
    /// Removes the files that nothing names, since their items were refused.
    pub(crate) async fn refuse(self, store: &dyn Store, feed: &FeedId) -> Result<(), StoreError> {
        for (id, key) in &self.new {
            let latest = store.latest(feed, id).await?;
            if !latest.is_some_and(|latest| is_named(&latest.item, feed, key)) {
                remove_file(store, feed, key).await?;
            }
        }
        Ok(())
    }
}

/// Returns the writes that keep a file.
pub(crate) fn keep(feed: &FeedId, file: &Attachment, media_type: &str, bytes: &[u8]) -> Vec<TableWrite> {
    let name = Bytes::copy_from_slice(file.name.as_bytes());
    vec![
        write(bytes_row(feed, &file.key), whole_record(media_type, bytes)),
        write(name_row(feed, &file.key), name),
    ]
}

/// Returns the writes that give a file a name and a media type which it does not have; `None` if there is no such file.
///
/// The bytes of a file never change, and an item may be published with them again.
pub(super) async fn describe(
    store: &dyn Store,
    feed: &FeedId,
    file: &Attachment,
    media_type: &str,
) -> Result<Option<Vec<TableWrite>>, StoreError> {
    let Some(kept) = record(store, feed, &file.key).await? else { return Ok(None) };
    let mut writes = Vec::new();
    let value = match kept {
        KeptFile::Whole(content) if content.media_type != media_type => {
            Some(whole_record(media_type, &content.bytes))
        }
        KeptFile::Chunked(chunked) if chunked.media_type != media_type => {
            Some(chunked_record(&chunked.with_type(media_type))?)
        }
        _ => None,
    };
    writes.extend(value.map(|value| write(bytes_row(feed, &file.key), value)));
    let row = name_row(feed, &file.key);
    let mut all = names(&store.get(Table::Documents, &row).await?.unwrap_or_default());
    // The newest comes last.
    if all.last() != Some(&file.name) {
        all.retain(|name| *name != file.name);
        all.drain(..all.len().saturating_sub(MAX_NAMES - 1));
        all.push(file.name.clone());
        writes.push(write(row, all.join("\n").into()));
    }
    Ok(Some(writes))
}

fn whole_record(media_type: &str, bytes: &[u8]) -> Bytes {
    let mut value = BytesMut::with_capacity(2 + media_type.len() + bytes.len());
    // Callers check it: a media type has at most 1024 bytes.
    value.put_u16(u16::try_from(media_type.len()).unwrap_or_default());
    value.put_slice(media_type.as_bytes());
    value.put_slice(bytes);
    value.freeze()
}

fn write(key: Vec<u8>, value: Bytes) -> TableWrite {
    TableWrite { table: Table::Documents, key, value: Some(value) }
}
