//! Uploads: files that are still arriving, and what is left to do for those that have arrived.
//!
//! A row tells how far an upload came. It is written together with the chunks, so it never tells of bytes that are not
//! there. Each write names the row that it replaces, so of two writers of one upload, on one node or two, one fails.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::digest::common::hazmat::SerializableState as _;
use sha2::{Digest as _, Sha256};
use towpath_client::random::unguessable;
use towpath_proto::FeedId;
use towpath_store::{Precondition, Store, Table, TableWrite};

use super::chunks::{self, CHUNK, ChunkedFile};
use super::save::describe;
use super::{Attachment, bytes_row, chunked_record, name_row};
use crate::store_error::StoreError;

/// Time after its last write at which an upload that nobody ended is removed.
pub(crate) const LIFETIME: SignedDuration = SignedDuration::from_hours(24);

const UPLOADS: &[u8] = b"uploads/";

/// Stage of an upload: what is still to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// Bytes arrive.
    Receiving,
    /// The file with this key is kept, and its item is still to be appended.
    Stored {
        key: String,
        /// The chunks became the file's. Otherwise the item had the same file before.
        is_new: bool,
    },
    /// The item was appended. The row is left for clients that ask once more.
    Done,
    /// Its chunks are being removed.
    Removing,
}

/// Parameters of a resumable upload, as it was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resumable {
    /// Title of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<String>,
    /// The header, as the client sent it.
    pub(crate) metadata: String,
}

/// Parameters of a mirror's download of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Download {
    /// SHA-256 of the whole file, in hex, as the publisher describes it.
    pub(crate) sha256: String,
    /// Strong entity tag of the file that the stored bytes are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
}

/// State of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadRow {
    /// Id of the item.
    pub(crate) item: String,
    /// Name of the file.
    pub(crate) name: String,
    pub(crate) media_type: String,
    /// Length of the whole file; `None` if the sender did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<u64>,
    /// Bytes that are stored.
    pub(crate) offset: u64,
    /// State of SHA-256 after these bytes, in hex.
    pub(super) digest: String,
    /// Bytes up to which there may be chunks, stored and counted or not.
    pub(super) reached: u64,
    /// Number of writes of the row.
    // Two writers that read equal rows must not both write.
    writes: u64,
    pub(crate) expires: Timestamp,
    pub(crate) stage: Stage,
    /// `None` for a single request, which nobody resumes, and for a download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resumable: Option<Resumable>,
    /// Set for a download, which the mirror of the feed resumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) download: Option<Download>,
    /// Run of the server that receives a single request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) run: String,
}

/// An upload with the row that was read.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) feed: FeedId,
    pub(crate) id: String,
    pub(crate) row: UploadRow,
    /// The row as the store has it; `None` before the first write.
    stored: Option<Bytes>,
}

impl Upload {
    /// Begins an upload. Nothing is stored before [`Self::save`].
    pub(crate) fn new(feed: &FeedId, item: &str, name: String, media_type: String, now: Timestamp) -> Self {
        let row = UploadRow {
            item: item.to_owned(),
            name,
            media_type,
            length: None,
            offset: 0,
            digest: hex::encode(Sha256::new().serialize()),
            reached: 0,
            writes: 0,
            expires: expiry(now),
            stage: Stage::Receiving,
            resumable: None,
            download: None,
            run: String::new(),
        };
        // Unguessable: whoever knows the id of a resumable upload may write to it.
        Self { feed: feed.clone(), id: hex::encode(unguessable().to_be_bytes()), row, stored: None }
    }

    /// Reads an upload.
    pub(crate) async fn load(store: &dyn Store, feed: &FeedId, id: &str) -> Result<Option<Self>, StoreError> {
        // From an address: a slash in it would lead to the row of another feed.
        if id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let value = store.get(Table::Chains, &row_key(feed, id)).await?;
        value.map(|value| Self::parse(feed.clone(), id.to_owned(), value)).transpose()
    }

    fn parse(feed: FeedId, id: String, value: Bytes) -> Result<Self, StoreError> {
        let row = serde_json::from_slice(&value)
            .map_err(|e| StoreError::Damaged(format!("upload {id} of feed {feed}: {e}")))?;
        Ok(Self { feed, id, row, stored: Some(value) })
    }

    /// Reads an upload of a scan.
    pub(super) fn of_entry(key: &[u8], value: Bytes) -> Result<Self, StoreError> {
        let name = String::from_utf8_lossy(&key[UPLOADS.len().min(key.len())..]).into_owned();
        let parts =
            name.split_once('/').and_then(|(feed, id)| Some((FeedId::new(feed).ok()?, id.to_owned())));
        let (feed, id) =
            parts.ok_or_else(|| StoreError::Damaged(format!("the name {name:?} of an upload")))?;
        Self::parse(feed, id, value)
    }

    /// Compares the bytes that are stored with what the row says of them. Returns what differs.
    pub(super) async fn problem(&self, store: &dyn Store) -> Option<String> {
        let (mut digest, mut left) = (Sha256::new(), self.row.offset);
        for index in 0..chunks::count(self.row.offset) {
            let size = left.min(CHUNK as u64);
            // More may stand behind what counts.
            match chunks::checked(store, &self.feed, &self.id, index, |found| found >= size).await {
                Ok(bytes) => digest.update(&bytes[..size as usize]),
                Err(problem) => return Some(problem),
            }
            left -= size;
        }
        let is_same = hex::encode(digest.serialize()) == self.row.digest;
        (!is_same).then(|| "its bytes have another SHA-256".to_owned())
    }

    fn key(&self) -> Vec<u8> {
        row_key(&self.feed, &self.id)
    }

    fn unchanged(&self) -> Precondition {
        Precondition { table: Table::Chains, key: self.key(), value: self.stored.clone() }
    }

    /// Writes the row with other rows, if no other writer came first.
    pub(super) async fn write(
        &mut self,
        store: &dyn Store,
        mut rows: Vec<TableWrite>,
        also: Option<Precondition>,
    ) -> Result<(), StoreError> {
        let row = UploadRow { writes: self.row.writes + 1, ..self.row.clone() };
        let value: Bytes = serde_json::to_vec(&row).map_err(|e| StoreError::Encode(e.to_string()))?.into();
        rows.push(TableWrite { table: Table::Chains, key: self.key(), value: Some(value.clone()) });
        store.write(rows, also.into_iter().chain([self.unchanged()]).collect()).await?;
        // After the write only: a failed one leaves what the next write must name as its precondition.
        (self.row, self.stored) = (row, Some(value));
        Ok(())
    }

    /// Returns an upload of the same file that has nothing yet.
    pub(super) fn anew(&self, now: Timestamp) -> Self {
        let UploadRow { item, name, media_type, .. } = &self.row;
        let mut upload = Self::new(&self.feed, item, name.clone(), media_type.clone(), now);
        upload.row.length = self.row.length;
        upload.row.download.clone_from(&self.row.download);
        upload
    }

    /// Returns true if there is a row of it.
    pub(super) fn is_saved(&self) -> bool {
        self.stored.is_some()
    }

    /// Returns the time of its last write.
    pub(super) fn last_write(&self) -> Timestamp {
        self.row.expires.checked_sub(LIFETIME).unwrap_or(Timestamp::MIN)
    }

    /// Returns the digest of the bytes that are stored.
    pub(crate) fn digest(&self) -> Result<Sha256, StoreError> {
        digest(&self.row)
    }

    /// Stores the row, and postpones the removal of an upload that nobody continues.
    pub(crate) async fn touch(&mut self, store: &dyn Store, now: Timestamp) -> Result<(), StoreError> {
        self.row.expires = expiry(now);
        self.save(store).await
    }

    /// Stores the row.
    pub(crate) async fn save(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.write(store, Vec::new(), None).await
    }

    /// Removes the row.
    pub(crate) async fn forget(&self, store: &dyn Store) -> Result<(), StoreError> {
        let gone = TableWrite { table: Table::Chains, key: self.key(), value: None };
        Ok(store.write(vec![gone], vec![self.unchanged()]).await?)
    }

    /// Removes the upload with the chunks that are of no file. A writer that is still at it fails from then on.
    pub(crate) async fn remove(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.row.stage == Stage::Receiving {
            // First a mark, then the chunks: after a crash the row says what is left to remove.
            self.row.stage = Stage::Removing;
            self.save(store).await?;
        }
        self.remove_chunks(store).await?;
        self.forget(store).await
    }

    /// Removes the chunks, if they are of no file.
    async fn remove_chunks(&self, store: &dyn Store) -> Result<(), StoreError> {
        match self.row.stage {
            Stage::Receiving | Stage::Stored { is_new: true, .. } | Stage::Done => Ok(()),
            Stage::Removing | Stage::Stored { is_new: false, .. } => {
                chunks::remove(store, &self.feed, &self.id, chunks::count(self.row.reached)).await
            }
        }
    }

    /// Keeps what has arrived as a file of its item, which is still to be appended. Does nothing if that was done before.
    pub(crate) async fn keep(&mut self, store: &dyn Store) -> Result<Attachment, StoreError> {
        let sha256 = hex::encode(digest(&self.row)?.finalize());
        let file = Attachment::of_digest(&self.row.item, self.row.name.clone(), &sha256);
        if self.row.stage == Stage::Receiving {
            self.keep_as(store, &file).await?;
        }
        self.remove_chunks(store).await?;
        Ok(file)
    }

    async fn keep_as(&mut self, store: &dyn Store, file: &Attachment) -> Result<(), StoreError> {
        let record = bytes_row(&self.feed, &file.key);
        let before = self.row.clone();
        if store.get(Table::Documents, &record).await?.is_none() {
            let chunked = ChunkedFile::new(self.row.media_type.clone(), self.row.offset, self.id.clone());
            let write = |key, value| TableWrite { table: Table::Documents, key, value: Some(value) };
            let rows = vec![
                write(record.clone(), chunked_record(&chunked)?),
                write(name_row(&self.feed, &file.key), Bytes::copy_from_slice(file.name.as_bytes())),
            ];
            self.row.stage = Stage::Stored { key: file.key.clone(), is_new: true };
            // Another upload of the same file may end at the same time: its chunks would be lost track of.
            let absent = Precondition { table: Table::Documents, key: record.clone(), value: None };
            match self.write(store, rows, Some(absent)).await {
                Err(e) if e.is_conflict() && store.get(Table::Documents, &record).await?.is_some() => {}
                written => return written,
            }
        }
        // The item has the same file already, so these chunks are not needed.
        let described = describe(store, &self.feed, file, &self.row.media_type).await?;
        self.row = UploadRow { stage: Stage::Stored { key: file.key.clone(), is_new: false }, ..before };
        self.write(store, described.unwrap_or_default(), None).await
    }

    /// Removes a file with its chunks, as an upload that is being removed: a crash in between leaves its row.
    pub(super) async fn remove_file(
        store: &dyn Store,
        feed: &FeedId,
        file: ChunkedFile,
        rows: Vec<TableWrite>,
    ) -> Result<(), StoreError> {
        // A made-up row, with a time at which it is due: a crash in between leaves it to the next clean-up.
        let mut upload = Self::new(feed, "", String::new(), file.media_type, Timestamp::UNIX_EPOCH);
        upload.id = file.upload;
        // The row of a resumable upload may be there still.
        upload.stored = store.get(Table::Chains, &upload.key()).await?;
        upload.row.stage = Stage::Removing;
        upload.row.reached = file.size;
        upload.write(store, rows, None).await?;
        upload.remove(store).await
    }

    /// Marks the upload as done: the item was appended.
    pub(crate) async fn finish(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.row.resumable.is_none() {
            return self.forget(store).await;
        }
        self.row.stage = Stage::Done;
        self.save(store).await
    }

    /// Removes an upload whose item was not appended, with its file.
    pub(crate) async fn discard(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        match &self.row.stage {
            // The row goes with the chunks.
            Stage::Stored { key, is_new: true } => super::remove_file(store, &self.feed, key).await,
            _ => self.remove(store).await,
        }
    }
}

fn row_key(feed: &FeedId, id: &str) -> Vec<u8> {
    [UPLOADS, feed.as_str().as_bytes(), b"/", id.as_bytes()].concat()
}

/// Returns the first part of the keys of a feed's uploads, or of all uploads.
pub(super) fn prefix(feed: Option<&FeedId>) -> Vec<u8> {
    feed.map_or_else(|| UPLOADS.to_vec(), |feed| row_key(feed, ""))
}

pub(super) fn expiry(now: Timestamp) -> Timestamp {
    now.checked_add(LIFETIME).unwrap_or(now)
}

/// Returns the digest of the bytes that an upload has.
pub(super) fn digest(row: &UploadRow) -> Result<Sha256, StoreError> {
    let damaged = || StoreError::Damaged("the digest of an upload".to_owned());
    let state = hex::decode(&row.digest).map_err(|_| damaged())?;
    let state = state.as_slice().try_into().map_err(|_| damaged())?;
    Sha256::deserialize(state).map_err(|_| damaged())
}
