//! Uploaded files: rows beside the log, for the server that takes and serves them and for exports.

use bytes::{BufMut as _, Bytes, BytesMut};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use towpath_proto::{Content, FeedId};
use towpath_store::{Store, Table, TableWrite};

use super::table_scan::TableScan;
use crate::store_error::StoreError;

/// Bytes of the digest of an item's id.
const ID_DIGEST: usize = 8;

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
        Self { key: format!("{}{}", of_item(id), hex::encode(Sha256::digest(bytes))), name }
    }

    /// Returns the SHA-256 of its bytes, in hex.
    pub(crate) fn sha256(&self) -> &str {
        self.key.get(2 * ID_DIGEST..).unwrap_or_default()
    }

    /// Returns the path of its address.
    pub(crate) fn path(&self, feed: &FeedId) -> String {
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        format!("/feeds/{feed}/attachments/{}/{name}", self.key)
    }
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

/// Returns the writes that keep a file.
pub(crate) fn keep(feed: &FeedId, file: &Attachment, media_type: &str, bytes: &[u8]) -> Vec<TableWrite> {
    let mut value = BytesMut::with_capacity(2 + media_type.len() + bytes.len());
    // Callers check it: a media type has at most 1024 bytes.
    value.put_u16(u16::try_from(media_type.len()).unwrap_or_default());
    value.put_slice(media_type.as_bytes());
    value.put_slice(bytes);
    let write = |key, value| TableWrite { table: Table::Documents, key, value: Some(value) };
    let name = Bytes::copy_from_slice(file.name.as_bytes());
    vec![write(bytes_row(feed, &file.key), value.freeze()), write(name_row(feed, &file.key), name)]
}

/// Reads a file; `None` if there is none with the key.
pub(crate) async fn load(store: &dyn Store, feed: &FeedId, key: &str) -> Result<Option<Content>, StoreError> {
    if !key.bytes().all(|b| b.is_ascii_hexdigit()) || key.len() != 2 * (ID_DIGEST + 32) {
        return Ok(None);
    }
    let Some(value) = store.get(Table::Documents, &bytes_row(feed, key)).await? else { return Ok(None) };
    let damaged = || StoreError::View(format!("the record of the file {key} of feed {feed} is damaged"));
    let (length, _) = value.split_first_chunk::<2>().ok_or_else(damaged)?;
    let end = 2 + usize::from(u16::from_be_bytes(*length));
    let media_type = value.get(2..end).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(damaged)?;
    Ok(Some(Content::new(media_type, value.slice(end..))))
}

/// Lists the files of a feed, by their keys.
pub(crate) async fn list(store: &dyn Store, feed: &FeedId) -> Result<Vec<Attachment>, StoreError> {
    let prefix = name_row(feed, "");
    let mut scan = TableScan::new(store, Table::Documents, &prefix);
    let mut files = Vec::new();
    while let Some(page) = scan.next().await? {
        let file = |(key, name): &(Bytes, Bytes)| Attachment {
            key: String::from_utf8_lossy(&key[prefix.len()..]).into_owned(),
            name: String::from_utf8_lossy(name).into_owned(),
        };
        files.extend(page.iter().map(file));
    }
    Ok(files)
}

/// Removes the files of deleted items.
pub(crate) async fn forget(store: &dyn Store, feed: &FeedId, ids: &[String]) -> Result<(), StoreError> {
    // Most feeds have no files: then deleting thousands of items costs one read.
    if ids.is_empty() || store.scan(Table::Documents, &bytes_row(feed, ""), None, 1).await?.is_empty() {
        return Ok(());
    }
    for id in ids {
        for prefix in [bytes_row(feed, &of_item(id)), name_row(feed, &of_item(id))] {
            let mut files = TableScan::new(store, Table::Documents, &prefix);
            while let Some(page) = files.next().await? {
                let gone = |(key, _): (Bytes, Bytes)| TableWrite {
                    table: Table::Documents,
                    key: key.into(),
                    value: None,
                };
                store.write(page.into_iter().map(gone).collect(), Vec::new()).await?;
            }
        }
    }
    Ok(())
}
