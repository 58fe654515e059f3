//! Uploaded files: rows beside the log, for the server that takes and serves them and for exports.
//!
//! The files of a form are a row each. What may be large arrives as an upload and is stored in chunks.

mod chunks;
mod cleanup;
mod mirrored;
mod orphans;
mod save;
#[cfg(test)]
mod tests;
mod upload;
mod verify;
mod writer;

use bytes::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use towpath_proto::{Content, FeedId, Item, Op};
use towpath_store::{Store, Table, TableWrite};

pub(crate) use self::chunks::ChunkedFile;
pub(crate) use self::cleanup::{end, finish, finish_late, run, unfinished};
pub(crate) use self::mirrored::{MirroredFile, MirroredPart, OpenedMirror, open as open_mirrored};
#[cfg(test)]
pub(crate) use self::save::keep;
pub(crate) use self::save::{ItemGuard, NewFile, SavedFiles, lock, save};
pub(crate) use self::upload::{Resumable, Stage, Upload, UploadRow};
pub(crate) use self::verify::{repair, verify};
pub(crate) use self::writer::{ByteCounting, UploadWriter};
use super::Engine;
use super::table_scan::TableScan;
use crate::store_error::StoreError;

/// Bytes of the digest of an item's id.
const ID_DIGEST: usize = 8;
/// Longest name of a file, in bytes.
const MAX_NAME: usize = 200;

/// A file of an item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attachment {
    /// Digests of the item's id and of the file's bytes, as hex digits.
    pub(crate) key: String,
    /// Name that it was uploaded with, without folders.
    pub(crate) name: String,
}

impl Attachment {
    /// Names a file by its item and its bytes.
    pub(crate) fn new(id: &str, name: String, bytes: &[u8]) -> Self {
        Self::of_digest(id, name, &hex::encode(Sha256::digest(bytes)))
    }

    /// Names a file by its item and the SHA-256 of its bytes, in hex.
    pub(crate) fn of_digest(id: &str, name: String, sha256: &str) -> Self {
        Self { key: format!("{}{sha256}", of_item(id)), name }
    }

    /// Returns the SHA-256 of its bytes, in hex.
    pub(crate) fn sha256(&self) -> &str {
        self.key.get(2 * ID_DIGEST..).unwrap_or_default()
    }

    /// Returns the attachment by which an item without content names the file as its content.
    pub(crate) fn content(&self, engine: &Engine, feed: &FeedId, media_type: &str, size: u64) -> Value {
        let url = format!("{}{}", engine.base_url, self.path(feed));
        json!({ "url": url, "media_type": media_type, "size": size, "sha256": self.sha256() })
    }

    /// Returns the path of its address.
    pub(crate) fn path(&self, feed: &FeedId) -> String {
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        format!("/feeds/{feed}/attachments/{}/{name}", self.key)
    }
}

/// Returns the name of a file without folders: browsers may send a path, and ids may look like one.
pub(crate) fn file_name(given: &str) -> String {
    let name = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name
        .chars()
        .filter(|c| !c.is_control())
        .scan(0, |length, c| {
            *length += c.len_utf8();
            (*length <= MAX_NAME).then_some(c)
        })
        .collect();
    if name.is_empty() || name == "." || name == ".." { "file".to_owned() } else { name }
}

/// Returns the limit of a file's size in bytes, by the settings that are in effect.
pub(crate) fn max_size(engine: &Engine) -> u64 {
    engine.server.load().large_content_mib.saturating_mul(1 << 20)
}

/// Returns the first part of the keys of an item's files.
fn of_item(id: &str) -> String {
    hex::encode(&Sha256::digest(id)[..ID_DIGEST])
}

fn bytes_row(feed: &FeedId, key: &str) -> Vec<u8> {
    format!("attachments/{feed}/{key}").into_bytes()
}

fn name_row(feed: &FeedId, key: &str) -> Vec<u8> {
    format!("attachment-names/{feed}/{key}").into_bytes()
}

/// Returns the names in a row of names: one a line, for names have no control characters.
fn names(row: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(row).lines().map(str::to_owned).collect()
}

/// Length of a media type that no row has: the rest of the row describes a file in chunks.
const CHUNKED: u16 = u16::MAX;

/// Returns the row of a file in chunks.
fn chunked_record(file: &ChunkedFile) -> Result<Bytes, StoreError> {
    let json = serde_json::to_vec(file).map_err(|e| StoreError::Encode(e.to_string()))?;
    Ok([&CHUNKED.to_be_bytes(), json.as_slice()].concat().into())
}

/// A file as it is stored.
#[derive(Debug)]
pub(crate) enum KeptFile {
    /// In one row.
    Whole(Content),
    /// In chunks.
    Chunked(ChunkedFile),
}

/// Largest file in chunks that is read whole, as the files of forms are.
const READ_WHOLE: u64 = 1 << 20;

/// Reads a file, or the record of a large one; `None` if there is none with the key.
pub(crate) async fn load(
    store: &dyn Store,
    feed: &FeedId,
    key: &str,
) -> Result<Option<KeptFile>, StoreError> {
    let Some(file) = record(store, feed, key).await? else { return Ok(None) };
    match file {
        KeptFile::Chunked(chunked) if chunked.size <= READ_WHOLE => {
            let bytes = chunked.whole(store, feed).await?;
            Ok(Some(KeptFile::Whole(Content::new(chunked.media_type, bytes))))
        }
        file => Ok(Some(file)),
    }
}

/// Returns the size of a file; `None` if there is none with the key.
pub(crate) async fn size(store: &dyn Store, feed: &FeedId, key: &str) -> Result<Option<u64>, StoreError> {
    Ok(record(store, feed, key).await?.map(|file| match file {
        KeptFile::Whole(content) => content.bytes.len() as u64,
        KeptFile::Chunked(file) => file.size,
    }))
}

async fn record(store: &dyn Store, feed: &FeedId, key: &str) -> Result<Option<KeptFile>, StoreError> {
    if !is_key(key) {
        return Ok(None);
    }
    let Some(value) = store.get(Table::Documents, &bytes_row(feed, key)).await? else { return Ok(None) };
    decode(feed, key, &value).map(Some)
}

/// Decodes the row of a file.
fn decode(feed: &FeedId, key: &str, value: &Bytes) -> Result<KeptFile, StoreError> {
    let damaged = || StoreError::Damaged(format!("the record of the file {key} of feed {feed}"));
    let (length, rest) = value.split_first_chunk::<2>().ok_or_else(damaged)?;
    let length = u16::from_be_bytes(*length);
    if length == CHUNKED {
        return serde_json::from_slice(rest).map(KeptFile::Chunked).map_err(|_| damaged());
    }
    let end = 2 + usize::from(length);
    let media_type = value.get(2..end).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(damaged)?;
    Ok(KeptFile::Whole(Content::new(media_type, value.slice(end..))))
}

fn is_key(key: &str) -> bool {
    key.len() == 2 * (ID_DIGEST + 32) && key.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the key of the file that is the content of an item: its first attachment, in its own feed, without a title.
// The files of forms have a title, their name, and are no content. The host does not count: the server's address may be
// another one since.
pub(crate) fn content_key(item: &Item, feed: &FeedId) -> Option<String> {
    let first = item.extra.get("attachments")?.get(0)?;
    let sha256 = first.get("sha256")?.as_str().filter(|_| first.get("title").is_none())?;
    let (_, path) = first.get("url")?.as_str()?.split_once(&format!("/feeds/{feed}/attachments/"))?;
    let (key, _) = path.split_once('/')?;
    let is_own = is_key(key) && key.strip_prefix(of_item(&item.id).as_str()) == Some(sha256);
    is_own.then(|| key.to_owned())
}

/// Returns true if an attachment of an item is the file with a key.
fn is_named(item: &Item, feed: &FeedId, key: &str) -> bool {
    after_path(item, &format!("/feeds/{feed}/attachments/{key}/")).is_some()
}

/// Returns the rest of the first attachment's URL that has these segments of a path.
fn after_path<'a>(item: &'a Item, path: &str) -> Option<&'a str> {
    let attachments = item.extra.get("attachments")?.as_array()?;
    let mut urls = attachments.iter().filter_map(|attachment| attachment.get("url")?.as_str());
    urls.find_map(|url| Some(url.split_once(path)?.1))
}

/// Lists the files of a feed, by their keys. One with several names is there for each, the newest last.
pub(crate) async fn list(store: &dyn Store, feed: &FeedId) -> Result<Vec<Attachment>, StoreError> {
    let prefix = name_row(feed, "");
    let mut scan = TableScan::new(store, Table::Documents, &prefix);
    let mut files = Vec::new();
    while let Some(page) = scan.next().await? {
        files.extend(page.iter().flat_map(|(key, row)| {
            let key = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
            names(row).into_iter().map(move |name| Attachment { key: key.clone(), name })
        }));
    }
    Ok(files)
}

/// Removes the files of those items that are deleted now.
pub(crate) async fn forget(engine: &Engine, feed: &FeedId, ids: &[String]) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    // Most feeds have no files: then deleting thousands of items costs one read.
    if ids.is_empty() || store.scan(Table::Documents, &bytes_row(feed, ""), None, 1).await?.is_empty() {
        return Ok(());
    }
    for id in ids {
        let _held = lock(engine, feed, std::iter::once(id.as_str())).await;
        // It may have come back since, with files.
        if store.latest(feed, id).await?.is_none_or(|change| change.op == Op::Delete) {
            remove_files(store, feed, id).await?;
        }
    }
    Ok(())
}

/// Removes the files of an item.
async fn remove_files(store: &dyn Store, feed: &FeedId, id: &str) -> Result<(), StoreError> {
    let prefix = bytes_row(feed, &of_item(id));
    // One by one: a file in one row may have 16 MiB.
    while let Some((key, _)) = store.scan(Table::Documents, &prefix, None, 1).await?.pop() {
        let key = String::from_utf8_lossy(&key[bytes_row(feed, "").len()..]).into_owned();
        remove_file(store, feed, &key).await?;
    }
    Ok(())
}

/// Removes a file.
async fn remove_file(store: &dyn Store, feed: &FeedId, key: &str) -> Result<(), StoreError> {
    let gone = |key| TableWrite { table: Table::Documents, key, value: None };
    let rows = vec![gone(bytes_row(feed, key)), gone(name_row(feed, key))];
    match record(store, feed, key).await {
        Ok(Some(KeptFile::Chunked(file))) => Upload::remove_file(store, feed, file, rows).await,
        // A damaged record can at least go.
        Ok(_) => Ok(store.write(rows, Vec::new()).await?),
        Err(e) if e.is_damage() => Ok(store.write(rows, Vec::new()).await?),
        // Its chunks would be lost track of.
        Err(e) => Err(e),
    }
}
