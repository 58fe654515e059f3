//! Writers of uploads: they store bytes in groups of chunks, each with one sync.

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use sha2::digest::common::hazmat::SerializableState as _;
use sha2::{Digest as _, Sha256};
use towpath_store::{Store, Table, TableWrite};

use super::chunks::{self, CHUNK};
use super::upload::{Upload, digest, expiry};
use crate::blocking::blocking;
use crate::store_error::StoreError;

/// Bytes that are written with one sync.
// The larger, the more bytes share a sync; but each upload holds a group in memory.
const GROUP: usize = 4 << 20;
/// Groups after which the store is to have them out of memory.
const FLUSHED_TOGETHER: u32 = 4;

/// Time at which written bytes count in an upload's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteCounting {
    /// With each write, so that an upload that breaks off goes on from there.
    AtOnce,
    /// Once the last byte is written and checked.
    AtEnd,
}

/// Writer of an upload's bytes.
pub(crate) struct UploadWriter<'a> {
    store: &'a dyn Store,
    upload: &'a mut Upload,
    buffer: UploadBuffer,
}

impl<'a> UploadWriter<'a> {
    /// Goes on with an upload where it ended. Held bytes count only once [`Self::end`] is called.
    pub(crate) async fn open(
        store: &'a dyn Store,
        upload: &'a mut Upload,
        counting: ByteCounting,
    ) -> Result<Self, StoreError> {
        let buffer = UploadBuffer::open(store, upload, counting).await?;
        Ok(Self { store, upload, buffer })
    }

    /// Takes bytes, and stores them if they are enough for a write. Slow syncs hold the sender back.
    pub(crate) async fn push(&mut self, bytes: Bytes, now: Timestamp) -> Result<(), StoreError> {
        self.buffer.push(self.store, self.upload, bytes, now).await
    }

    /// Stores what was given, also the part of a chunk.
    pub(crate) async fn end(self, now: Timestamp) -> Result<(), StoreError> {
        self.buffer.end(self.store, self.upload, now).await
    }
}

/// Bytes of an upload on their way into the store.
pub(crate) struct UploadBuffer {
    /// Bytes from the begin of the last unfinished chunk on.
    pending: BytesMut,
    /// Number of those that are stored, and in the digest.
    stored: usize,
    digest: Sha256,
    /// Bytes that were written, counted in the row or not.
    position: u64,
    /// Groups since the store was last asked to flush.
    unflushed: u32,
    /// The row tells of written bytes only in the end, once they were checked.
    is_held: bool,
}

impl UploadBuffer {
    /// As [`UploadWriter::open`].
    pub(crate) async fn open(
        store: &dyn Store,
        upload: &mut Upload,
        counting: ByteCounting,
    ) -> Result<Self, StoreError> {
        let position = upload.row.offset;
        let (last, stored) = (position / CHUNK as u64, (position % CHUNK as u64) as usize);
        let mut pending = BytesMut::new();
        if stored > 0 {
            let chunk = store.get(Table::Documents, &chunks::key(&upload.feed, &upload.id, last)).await?;
            // Held bytes of an attempt that failed may stand behind those that count.
            let chunk = chunk.filter(|chunk| chunk.len() >= stored);
            let missing = || StoreError::Damaged(format!("chunk {last} of upload {} is missing", upload.id));
            pending.extend_from_slice(&chunk.ok_or_else(missing)?[..stored]);
        }
        let is_held = counting == ByteCounting::AtEnd;
        if is_held {
            // Before anything is written: another writer that holds its bytes would write the same chunks.
            upload.save(store).await?;
        }
        let digest = digest(&upload.row)?;
        Ok(Self { pending, stored, digest, position, unflushed: 0, is_held })
    }

    /// As [`UploadWriter::push`].
    pub(crate) async fn push(
        &mut self,
        store: &dyn Store,
        upload: &mut Upload,
        mut bytes: Bytes,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            // Groups begin at the begin of a chunk, so that a chunk is written once, and not at each piece.
            let taken = bytes.split_to(bytes.len().min(GROUP - self.pending.len()));
            self.pending.extend_from_slice(&taken);
            if self.pending.len() == GROUP {
                self.flush(store, upload, now).await?;
                self.stored = 0;
            }
        }
        Ok(())
    }

    /// As [`UploadWriter::end`].
    pub(crate) async fn end(
        mut self,
        store: &dyn Store,
        upload: &mut Upload,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.is_held = false;
        self.flush(store, upload, now).await
    }

    async fn flush(
        &mut self,
        store: &dyn Store,
        upload: &mut Upload,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let bytes = self.pending.split().freeze();
        let fresh = bytes.slice(self.stored..);
        let first = (self.position - self.stored as u64) / CHUNK as u64;
        let mut digest = std::mem::take(&mut self.digest);
        self.position += fresh.len() as u64;
        // Megabytes of SHA-256 take milliseconds: not on a thread that serves.
        let hashed = blocking(move || {
            digest.update(&fresh);
            digest
        });
        self.digest = hashed.await.map_err(|e| StoreError::Encode(e.to_string()))?;
        let Upload { feed, id, row, .. } = &mut *upload;
        let chunk = |index: u64, from: usize| TableWrite {
            table: Table::Documents,
            key: chunks::key(feed, id, first + index),
            value: Some(bytes.slice(from..bytes.len().min(from + CHUNK))),
        };
        let rows =
            (0..).zip((0..bytes.len()).step_by(CHUNK)).map(|(index, from)| chunk(index, from)).collect();
        // Also for bytes that do not count yet: their chunks are to be removed as well.
        row.reached = row.reached.max(self.position);
        row.expires = expiry(now);
        if !self.is_held {
            row.offset = self.position;
            row.digest = hex::encode(self.digest.serialize());
        }
        upload.write(store, rows, None).await?;
        self.unflushed += 1;
        if self.unflushed == FLUSHED_TOGETHER {
            self.unflushed = 0;
            store.flush_documents().await;
        }
        Ok(())
    }
}
