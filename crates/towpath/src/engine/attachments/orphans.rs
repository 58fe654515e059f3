//! Chunks that nothing names: those of a file whose record is gone. Its bytes are there, so the record is written anew.

use std::collections::HashSet;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use towpath_proto::{FeedId, Item};
use towpath_store::{ItemOrder, ReadLimit, SeqRange, Store, Table, TableWrite};

use super::upload::{Stage, Upload, prefix};
use super::{
    ChunkedFile, KeptFile, after_path, bytes_row, chunked_record, chunks, content_key, decode, list,
    name_row, record,
};
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Bound of one read of a feed's items.
const READ: ReadLimit = ReadLimit { items: 500, bytes: 16 << 20 };
/// Type of a file whose record had it, where its item does not tell it.
const OCTETS: &str = "application/octet-stream";

/// Chunks of one upload that no record of a file and no upload names.
pub(super) struct OrphanedChunks {
    upload: String,
    count: u64,
    size: u64,
    /// SHA-256 of the bytes, in hex; `None` if a chunk cannot be read.
    sha256: Option<String>,
    /// File that they are of, as far as that is known.
    pub(super) file: Option<OrphanedFile>,
}

/// File without a record.
#[derive(Clone)]
pub(super) struct OrphanedFile {
    pub(super) key: String,
    pub(super) name: String,
    media_type: String,
    /// Id of the item that has it; `None` if only the row with the name tells of the file.
    pub(super) item: Option<String>,
}

impl OrphanedChunks {
    /// Returns the place of the chunks for findings.
    pub(super) fn place(&self) -> String {
        match &self.file {
            Some(OrphanedFile { name, item: Some(item), .. }) => format!("file {name:?} of item {item:?}"),
            Some(OrphanedFile { name, key, .. }) => format!("file {name:?} of an unknown item, {key}"),
            None => format!("{} bytes of an unknown file, upload {}", self.size, self.upload),
        }
    }

    /// Writes the record and the name of the file anew. Returns false if the file is not known, or kept elsewhere.
    pub(super) async fn restore(&self, store: &dyn Store, feed: &FeedId) -> Result<bool, StoreError> {
        let Some(file) = &self.file else { return Ok(false) };
        // The same file may have come again since.
        if matches!(record(store, feed, &file.key).await, Ok(Some(_))) {
            return Ok(false);
        }
        let chunked = ChunkedFile::new(file.media_type.clone(), self.size, self.upload.clone());
        let write = |key, value| TableWrite { table: Table::Documents, key, value: Some(value) };
        let rows = vec![
            write(bytes_row(feed, &file.key), chunked_record(&chunked)?),
            write(name_row(feed, &file.key), Bytes::copy_from_slice(file.name.as_bytes())),
        ];
        store.write(rows, Vec::new()).await?;
        Ok(true)
    }

    /// Removes the chunks.
    pub(super) async fn remove(&self, store: &dyn Store, feed: &FeedId) -> Result<(), StoreError> {
        chunks::remove(store, feed, &self.upload, self.count).await
    }
}

/// Finds the orphaned chunks of a feed, and their files.
pub(super) async fn find(store: &dyn Store, feed: &FeedId) -> Result<Vec<OrphanedChunks>, StoreError> {
    // Behind a row that cannot be read there may be more records, whose chunks must not be taken for orphans.
    let Some(owners) = owners(store, feed).await? else { return Ok(Vec::new()) };
    let all = chunks::prefix(feed);
    let (mut found, mut after) = (Vec::new(), None);
    while let Ok(mut page) = store.scan(Table::Documents, &all, after.as_deref(), 1).await {
        let Some((row, _)) = page.pop() else { break };
        let rest = String::from_utf8_lossy(&row[all.len()..]).into_owned();
        let upload = rest.split('/').next().unwrap_or_default();
        // One of each upload is read: a file may have a million.
        after = Some(chunks::key(feed, upload, u64::MAX));
        if !owners.contains(upload) {
            found.push(measure(store, feed, upload).await);
        }
    }
    if found.iter().any(|orphan| orphan.sha256.is_some()) {
        name_files(store, feed, &mut found).await?;
    }
    Ok(found)
}

/// Returns the uploads whose chunks are known; `None` if a record cannot be read.
async fn owners(store: &dyn Store, feed: &FeedId) -> Result<Option<HashSet<String>>, StoreError> {
    let (mut owners, mut after) = (HashSet::new(), None);
    let records = bytes_row(feed, "");
    loop {
        // One by one: a row may have 16 MiB.
        let Ok(mut page) = store.scan(Table::Documents, &records, after.as_deref(), 1).await else {
            return Ok(None);
        };
        let Some((row, value)) = page.pop() else { break };
        if let Ok(KeptFile::Chunked(file)) = decode(feed, "", &value) {
            owners.insert(file.upload);
        }
        after = Some(row.to_vec());
    }
    let uploads = prefix(Some(feed));
    let mut scan = TableScan::new(store, Table::Chains, &uploads);
    while let Some(page) = scan.next().await? {
        for (row, value) in page {
            // One that is done is a file, whose record has its chunks.
            if !Upload::of_entry(&row, value).is_ok_and(|upload| upload.row.stage == Stage::Done) {
                owners.insert(String::from_utf8_lossy(&row[uploads.len()..]).into_owned());
            }
        }
    }
    Ok(Some(owners))
}

async fn measure(store: &dyn Store, feed: &FeedId, upload: &str) -> OrphanedChunks {
    let (mut digest, mut size, mut is_readable, mut count) = (Sha256::new(), 0, true, 0);
    loop {
        match store.get(Table::Documents, &chunks::key(feed, upload, count)).await {
            Ok(Some(bytes)) => {
                size += bytes.len() as u64;
                digest.update(bytes);
            }
            Ok(None) => {
                let sha256 = is_readable.then(|| hex::encode(digest.finalize()));
                return OrphanedChunks { upload: upload.to_owned(), count, size, sha256, file: None };
            }
            Err(_) => is_readable = false,
        }
        count += 1;
    }
}

/// Finds the files by the SHA-256 in their keys: by the rows with their names, else by the items that have them.
async fn name_files(
    store: &dyn Store,
    feed: &FeedId,
    orphans: &mut [OrphanedChunks],
) -> Result<(), StoreError> {
    let is_of = |orphan: &OrphanedChunks, key: &str| {
        orphan.sha256.as_ref().is_some_and(|sha256| key.ends_with(sha256.as_str()))
    };
    for one in list(store, feed).await? {
        for orphan in orphans.iter_mut().filter(|orphan| is_of(orphan, &one.key)) {
            let (key, name, media_type) = (one.key.clone(), one.name.clone(), OCTETS.to_owned());
            orphan.file = Some(OrphanedFile { key, name, media_type, item: None });
        }
    }
    let mut along = SeqRange::default();
    // What cannot be read stays without an item.
    while let Ok(changes) = store.items(feed, ItemOrder::Created, along, READ).await {
        let Some(last) = changes.last() else { break };
        along.after = Some(last.first_seq);
        for change in &changes {
            let Some(file) = file_of(&change.item, feed) else { continue };
            for orphan in orphans.iter_mut().filter(|orphan| is_of(orphan, &file.key)) {
                orphan.file = Some(file.clone());
            }
        }
    }
    Ok(())
}

/// Returns the file that is an item's content.
fn file_of(item: &Item, feed: &FeedId) -> Option<OrphanedFile> {
    let key = content_key(item, feed)?;
    let name = after_path(item, &format!("/feeds/{feed}/attachments/{key}/"))?;
    let name = percent_decode_str(name).decode_utf8().ok()?.into_owned();
    let media_type = item.extra.get("attachments")?.get(0)?.get("media_type").and_then(|text| text.as_str());
    let media_type = media_type.unwrap_or(OCTETS).to_owned();
    Some(OrphanedFile { key, name, media_type, item: Some(item.id.clone()) })
}
