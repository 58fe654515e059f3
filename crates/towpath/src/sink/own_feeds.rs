//! Copies own feeds into a sink, straight from the log.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use towpath_client::sink::{SinkEvent, SinkFailure, SinkOpener};
use towpath_config::SinkStart;
use towpath_proto::change::Seq;
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Change, FeedId, Op};
use towpath_store::ReadLimit;

use super::health::SinkHealth;
use crate::engine::Engine;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::sinks::SinkEntry;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Limit of one read from a log. Several of them may wait for a destination that is away.
const PAGE: ReadLimit = ReadLimit { items: 1000, bytes: 1 << 20 };
/// Number of reads from one feed before the next one has its turn.
const TURN: usize = 16;

/// Position in a feed's log, as a sink keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LogCheckpoint {
    seq: Seq,
    /// Horizon of the log when what is before it was read; zero behind it.
    #[serde(default, skip_serializing_if = "is_zero")]
    horizon: Seq,
    /// Identity of the log: another log under the same name is another feed.
    log: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(seq: &Seq) -> bool {
    *seq == 0
}

/// Position up to which a feed was sent, and the horizon with which it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SentPosition {
    seq: Seq,
    horizon: Seq,
}

impl SentPosition {
    /// Returns true if deletions after the position may have been let go: then the feed is copied anew.
    fn is_behind(self, horizon: Seq) -> bool {
        // One that began at the start after the horizon moved there misses nothing.
        self.seq > 0 && self.seq < horizon && self.horizon != horizon
    }
}

/// Reason why nothing more is copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error(transparent)]
    Sink(#[from] SinkFailure),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reader of own feeds on behalf of a sink.
pub(super) struct OwnFeeds {
    pub(super) engine: Arc<Engine>,
    pub(super) sink: Arc<SinkEntry>,
    pub(super) opener: SinkOpener,
    pub(super) health: SinkHealth,
    pub(super) changes: Arc<ChangedFeeds>,
    /// Last positions that were sent, of the feeds that were opened.
    pub(super) sent: HashMap<FeedId, SentPosition>,
}

impl OwnFeeds {
    /// Copies until `stop` is set.
    pub(super) async fn copy(&mut self, stop: &Stop) -> Result<(), CopyError> {
        let changes = self.changes.clone();
        // Before the feeds are listed: an append in between is collected. An order drops this in the midst.
        let _collecting = changes.collect();
        let mut reloads = self.engine.feed_changes();
        self.add_unsent();
        tokio::select! {
            // Interrupted wherever it is: what was not applied is read again.
            copied = self.copy_changes(&mut reloads) => copied,
            () = stopped(stop) => Ok(()),
        }
    }

    /// Adds the feeds of which nothing was sent in this attempt.
    fn add_unsent(&self) {
        let feeds = self.engine.feeds().into_iter().filter(|feed| !feed.is_filter());
        let ours = feeds.map(|feed| feed.id().clone()).filter(|id| self.sink.config.has_feed(id.as_str()));
        self.changes.mark(ours.filter(|id| !self.sent.contains_key(id)));
    }

    async fn copy_changes(&mut self, reloads: &mut watch::Receiver<u64>) -> Result<(), CopyError> {
        let mut has_caught_up = false;
        loop {
            let mut has_more = false;
            for feed in self.changes.take() {
                if self.copy_feed(&feed).await? {
                    // After the other feeds: a long log must not hold them up.
                    self.changes.mark([feed]);
                    has_more = true;
                }
            }
            if !has_more && !has_caught_up {
                // A sink that has nothing to deliver works, although no batch says so.
                self.opener.flush().await?;
                self.health.caught_up();
                self.sink.update(|record| record.has_begun = true);
                has_caught_up = true;
            }
            tokio::select! {
                () = self.changes.changed() => {}
                // A feed that came with a log may never be appended to.
                _ = reloads.changed() => self.add_unsent(),
                // The destination may fail for good while nothing is written to it.
                failure = self.opener.failed() => return Err(failure.into()),
            }
        }
    }

    /// Sends the changes of a feed. Returns true if there are more.
    async fn copy_feed(&mut self, feed: &FeedId) -> Result<bool, CopyError> {
        let source = source(&self.sink, feed);
        let mut sent = match self.sent.get(feed) {
            Some(sent) => *sent,
            None => self.open(feed, &source).await?,
        };
        for _ in 0..TURN {
            let page = self.engine.store.read(feed, sent.seq, PAGE).await.map_err(StoreError::from)?;
            // After the page: retention may have let go of a part of it.
            let horizon = self.engine.store.head(feed).await.map_err(StoreError::from)?.horizon;
            if sent.is_behind(horizon) {
                self.reset(feed, &source, "the log no longer has its deletions since then").await?;
                sent = SentPosition::default();
                continue;
            }
            let Some(last) = page.last() else {
                self.sent.insert(feed.clone(), sent);
                return Ok(false);
            };
            sent.seq = last.seq;
            sent.horizon = if sent.seq < horizon { horizon } else { 0 };
            let events = page.into_iter().map(|change| event(feed, change)).collect();
            self.opener.write(&source, events, Some(self.checkpoint(feed, sent))).await?;
            self.sent.insert(feed.clone(), sent);
        }
        Ok(true)
    }

    /// Opens a feed in the sink, and returns the position after which it goes on.
    async fn open(&self, feed: &FeedId, source: &Arc<str>) -> Result<SentPosition, CopyError> {
        let head = self.engine.store.head(feed).await.map_err(StoreError::from)?.seq;
        // The destination keeps the position, with the changes in one transaction where it has those.
        let Some(kept) = self.opener.open(source).await? else {
            let record = self.sink.record();
            // A feed that was made after the sink has nothing from before it.
            let is_new = record.has_begun && !record.positions.contains_key(feed.as_str());
            if self.sink.config.from == SinkStart::Beginning || is_new {
                return Ok(SentPosition::default());
            }
            self.health.record_position(feed, head);
            let head = SentPosition { seq: head, horizon: 0 };
            // Kept at once: what is published before the first batch is not to be left out after a restart.
            self.opener.write(source, Vec::new(), Some(self.checkpoint(feed, head))).await?;
            return Ok(head);
        };
        let kept: LogCheckpoint = serde_json::from_slice(&kept).map_err(|e| {
            SinkFailure::Refused(format!(
                "the position that the destination keeps for {source} is damaged: {e}"
            ))
        })?;
        if kept.seq <= head && kept.log == self.log_identity(feed) {
            // The record may be older: it is saved every few seconds.
            self.health.record_position(feed, kept.seq);
            return Ok(SentPosition { seq: kept.seq, horizon: kept.horizon });
        }
        // A data folder that was lost, or brought back from an older copy.
        self.reset(feed, source, "the log began anew").await?;
        Ok(SentPosition::default())
    }

    /// Tells the destination that a feed is copied again from the start of its log.
    async fn reset(&self, feed: &FeedId, source: &Arc<str>, reason: &str) -> Result<(), CopyError> {
        tracing::warn!(sink = %self.sink.config.name, %feed, reason, "the feed is copied again from its beginning");
        let reset = FeedReset { feed: feed.to_string(), reason: reason.into() };
        self.opener.write(source, vec![SinkEvent::Reset(reset)], None).await?;
        // Also for an empty log, whose first change may be long in coming.
        let start = self.checkpoint(feed, SentPosition::default());
        self.opener.write(source, Vec::new(), Some(start)).await?;
        Ok(())
    }

    fn checkpoint(&self, feed: &FeedId, sent: SentPosition) -> Vec<u8> {
        let SentPosition { seq, horizon } = sent;
        // Numbers and text into memory: this cannot fail.
        serde_json::to_vec(&LogCheckpoint { seq, horizon, log: self.log_identity(feed) }).unwrap_or_default()
    }

    /// Returns the identity of a log. Hashed, because the data folder's own identity is a secret.
    fn log_identity(&self, feed: &FeedId) -> String {
        let digest =
            Sha256::new_with_prefix(&self.engine.identity).chain_update([0]).chain_update(feed.as_str());
        // 64 bits tell logs apart by chance, not against an attacker, whom nothing here would serve.
        hex::encode(&digest.finalize()[..8])
    }
}

/// Returns the name under which a sink keeps its position in an own feed.
pub(super) fn source(sink: &SinkEntry, feed: &FeedId) -> Arc<str> {
    format!("{}/{feed}", sink.config.name).into()
}

/// Makes the event of a change of the log. A patch is sent as the item that it made: a destination needs no earlier one.
fn event(feed: &FeedId, change: Change) -> SinkEvent {
    let Change { seq, op, item, modified, entry_id, .. } = change;
    let op = if op == Op::Patch { Op::Put } else { op };
    let (feed, position) = (feed.to_string(), seq.to_string());
    SinkEvent::Change(Box::new(Followed {
        feed,
        op,
        item,
        patch: None,
        modified: Some(modified),
        position,
        entry_id,
    }))
}
