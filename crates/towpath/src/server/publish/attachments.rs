//! Files that were uploaded with an item: kept beside the log, and served at an address of their feed.
//!
//! A file's address has digests of the item's id and of its bytes, so its content never changes. Files go with their
//! item: when it is deleted.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use towpath_proto::{Content, FeedId};
use towpath_store::{Table, TableWrite};

use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::route_error::RouteError;
use crate::engine::request::known_feed;
use crate::engine::table_scan::TableScan;
use crate::engine::{Engine, Feed};
use crate::server::item_response::raw;
use crate::store_error::StoreError;

/// Largest file, in bytes.
const MAX_FILE: usize = 16 << 20;
/// Longest name of a file, in bytes.
const MAX_NAME: usize = 200;
/// Bytes of the digest of an item's id.
const ID_DIGEST: usize = 8;

/// File as it was uploaded.
#[derive(Debug)]
pub(super) struct UploadedFile {
    pub(super) name: String,
    pub(super) media_type: Option<String>,
    pub(super) bytes: Bytes,
}

/// File to keep, with its key.
#[derive(Debug)]
pub(super) struct StoredFile {
    key: String,
    pub(super) name: String,
    pub(super) media_type: String,
    pub(super) bytes: Bytes,
}

impl UploadedFile {
    /// Checks the file, and names it by its item and its bytes.
    pub(super) fn store(self, feed: &Feed, id: &str) -> Result<StoredFile, RouteError> {
        let Self { name, media_type, bytes } = self;
        if bytes.len() > MAX_FILE {
            let shown: String = name.chars().take(60).collect();
            return Err(RouteError::too_large(format!(
                "file {shown:?} of feed {} has more than {MAX_FILE} bytes: keep it elsewhere, and give its address as \
                 attachment",
                feed.id()
            )));
        }
        // Browsers may send a path; only its last part is a name.
        let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
        let name: String = name
            .chars()
            .filter(|c| !c.is_control())
            .scan(0, |length, c| {
                *length += c.len_utf8();
                (*length <= MAX_NAME).then_some(c)
            })
            .collect();
        let name = if name.is_empty() || name == "." || name == ".." { "file".to_owned() } else { name };
        let media_type = media_type.unwrap_or_else(|| "application/octet-stream".to_owned());
        Content::new(media_type.as_str(), Bytes::new())
            .check_type()
            .map_err(|e| RouteError::bad_request(format!("file {name:?}: {e}")))?;
        let key = format!("{}{}", of_item(id), hex::encode(Sha256::digest(&bytes)));
        Ok(StoredFile { key, name, media_type, bytes })
    }
}

impl StoredFile {
    /// Returns the file's address.
    pub(super) fn url(&self, engine: &Engine, feed: &Feed) -> String {
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        format!("{}/feeds/{}/attachments/{}/{name}", engine.base_url, feed.id(), self.key)
    }
}

/// Returns the first part of the keys of an item's files.
fn of_item(id: &str) -> String {
    hex::encode(&Sha256::digest(id)[..ID_DIGEST])
}

fn row(feed: &FeedId, key: &str) -> Vec<u8> {
    format!("attachments/{feed}/{key}").into_bytes()
}

/// Keeps files. They are there before the item that names them.
pub(super) async fn save(engine: &Engine, feed: &Feed, files: Vec<StoredFile>) -> Result<(), RouteError> {
    // One by one: each is as large as a batch may be.
    for StoredFile { key, media_type, bytes, .. } in files {
        let mut value = BytesMut::with_capacity(2 + media_type.len() + bytes.len());
        // Checked above: a media type has at most 1024 bytes.
        value.put_u16(u16::try_from(media_type.len()).unwrap_or_default());
        value.put_slice(media_type.as_bytes());
        value.put_slice(&bytes);
        let write =
            TableWrite { table: Table::Documents, key: row(feed.id(), &key), value: Some(value.freeze()) };
        engine.store.write(vec![write], Vec::new()).await.map_err(StoreError::from)?;
    }
    Ok(())
}

/// Removes the files of deleted items.
pub(in crate::server) async fn forget(
    engine: &Engine,
    feed: &Feed,
    ids: &[String],
) -> Result<(), RouteError> {
    let store = engine.store.as_ref();
    // Most feeds have no files: then deleting thousands of items costs one read.
    let all = row(feed.id(), "");
    if ids.is_empty()
        || store.scan(Table::Documents, &all, None, 1).await.map_err(StoreError::from)?.is_empty()
    {
        return Ok(());
    }
    for id in ids {
        let prefix = row(feed.id(), &of_item(id));
        let mut files = TableScan::new(store, Table::Documents, &prefix);
        while let Some(page) = files.next().await? {
            let gone = |(key, _): (Bytes, Bytes)| TableWrite {
                table: Table::Documents,
                key: key.into(),
                value: None,
            };
            let writes: Vec<_> = page.into_iter().map(gone).collect();
            store.write(writes, Vec::new()).await.map_err(StoreError::from)?;
        }
    }
    Ok(())
}

/// Answers `GET /feeds/{feed}/attachments/{key}/{name}`.
pub(in crate::server) async fn get(
    engine: &Engine,
    feed: &str,
    key: &str,
    headers: &HeaderMap,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    let missing = || RouteError::not_found("there is no such file, or its item was deleted");
    if !key.bytes().all(|b| b.is_ascii_hexdigit()) || key.len() != 2 * (ID_DIGEST + 32) {
        return Err(missing());
    }
    let value = engine.store.get(Table::Documents, &row(feed.id(), key)).await.map_err(StoreError::from)?;
    let value = value.ok_or_else(missing)?;
    let damaged = || RouteError::internal("the file's record is damaged");
    let (length, _) = value.split_first_chunk::<2>().ok_or_else(damaged)?;
    let end = 2 + usize::from(u16::from_be_bytes(*length));
    let media_type = value.get(2..end).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(damaged)?;
    let mut answer = raw(&Content::new(media_type, value.slice(end..)));
    debug_assert!(answer.headers.contains_key(CONTENT_TYPE));
    // Its address has its digest.
    let cached = HeaderValue::from_static("public, max-age=31536000, immutable");
    answer.headers.insert(CACHE_CONTROL, cached);
    Ok(Document::new(answer.body, answer.headers, Valid::UntilReplaced).answer_compressing(headers))
}
