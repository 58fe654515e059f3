//! A sink whose checkpoints and dead letters are in the server's store.

use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use towpath_client::sink::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_store::{Table, TableWrite};
use tracing::Instrument as _;

use super::letters::LetterBox;
use crate::engine::Engine;
use crate::engine::roles::{self, Lease, conditions};
use crate::engine::sinks::SinkEntry;
use crate::spans::span;
use crate::store_error::StoreError;

/// Sink under a lease: it keeps nothing that another node would have to know in this process.
pub(super) struct StoredSink {
    pub(super) inner: Box<dyn Sink>,
    pub(super) engine: Arc<Engine>,
    pub(super) sink: Arc<SinkEntry>,
    pub(super) letters: LetterBox,
    pub(super) lease: Lease,
    /// Events that the destination has taken, while their checkpoint is not saved yet.
    pub(super) applied: Option<Arc<Vec<SinkEvent>>>,
}

impl StoredSink {
    /// Returns the key of a source's checkpoint. Hashed, because sources may be long URLs.
    fn key(&self, source: &str) -> Vec<u8> {
        self.sink.key(&format!("at/{}", hex::encode(&Sha256::digest(source)[..16])))
    }

    fn failed(&self, what: &str, error: &StoreError) -> SinkError {
        let message = format!("cannot {what} of sink {}: {error}", self.sink.config.name);
        // Another node has the role now. It goes on from what is stored.
        if error.is_conflict() || error.is_closed() {
            SinkError::refused(message)
        } else {
            SinkError::unavailable(message)
        }
    }
}

#[async_trait]
impl Sink for StoredSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let kept = self.inner.open(source).await?;
        if self.inner.keeps_checkpoint() {
            return Ok(kept);
        }
        let stored = self.engine.store.get(Table::Chains, &self.key(source)).await;
        let stored = stored.map_err(|e| self.failed("read the position", &e.into()))?;
        Ok(stored.map(|value| value.to_vec()))
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        // No precondition guards the destination itself.
        roles::check(&self.lease).map_err(|e| self.failed("deliver the changes", &e))?;
        // Sent once, however often the store refuses the checkpoint.
        if !self.applied.as_ref().is_some_and(|applied| Arc::ptr_eq(applied, &batch.events)) {
            let span = span!(
                "sink",
                sink = self.sink.config.name,
                source = %towpath_client::redact::url(&batch.source),
                changes = batch.events.len(),
            );
            self.inner.apply(batch).instrument(span).await?;
        }
        let Some(checkpoint) = batch.checkpoint.as_ref().filter(|_| !self.inner.keeps_checkpoint()) else {
            return Ok(());
        };
        self.applied = Some(batch.events.clone());
        let value = Some(checkpoint.to_vec().into());
        let write = TableWrite { table: Table::Chains, key: self.key(&batch.source), value };
        let written = self.engine.store.write(vec![write], conditions(&self.lease)).await;
        written.map_err(|e| self.failed("save the position", &e.into()))?;
        self.applied = None;
        Ok(())
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        if self.letters.is_full() {
            let (name, record) = (&self.sink.config.name, self.sink.record());
            return Err(SinkError::unavailable(format!(
                "the destination refuses item {:?}: {reason}; {} items of {} MiB are kept aside already: mend the cause, \
                 then run `towpath sink resend {name}` or `towpath sink drop {name}`",
                change.item.id,
                record.dead_letters,
                record.dead_letter_bytes >> 20,
            )));
        }
        let kept = self.letters.keep(source, change, reason).await;
        kept.map(|()| true).map_err(|e| self.failed("keep an item", &e))
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.inner.close().await
    }
}
