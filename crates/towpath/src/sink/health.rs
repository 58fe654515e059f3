//! Records what a sink does, for status, metrics and the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use towpath_client::sink::{SinkBatch, SinkEvent, SinkNotice, SinkObserver};
use towpath_client::{FollowNotice, redact};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;

use crate::engine::sinks::{SinkEntry, SinkOutage, SinkRecord, SinkState};
use crate::wall_clock;

/// Observer of a sink's writer and of its source. Clones record for the same sink.
#[derive(Clone)]
pub(super) struct SinkHealth {
    sink: Arc<SinkEntry>,
    /// True while dead letters are sent again, whose positions are old ones.
    is_resending: Arc<AtomicBool>,
    /// True while the error is the source's.
    is_source_failing: Arc<AtomicBool>,
}

impl SinkHealth {
    pub(super) fn new(sink: Arc<SinkEntry>) -> Self {
        Self { sink, is_resending: Arc::default(), is_source_failing: Arc::default() }
    }

    pub(super) fn set_resending(&self, is_resending: bool) {
        self.is_resending.store(is_resending, Ordering::Relaxed);
    }

    /// Records a failure of the source or of the server itself, and the wait after it.
    pub(super) fn failed(&self, state: SinkState, message: &str, wait: Option<Duration>) {
        self.record_failure(state, message, wait, false);
    }

    /// Records a failure and the wait after it; logs it unless it is the same as the last one.
    fn record_failure(&self, state: SinkState, message: &str, wait: Option<Duration>, of_destination: bool) {
        let message = redact::text(message);
        let name = &self.sink.config.name;
        let now = wall_clock::now();
        self.sink.count_failure();
        self.sink.update(|record| {
            let same = record.error.as_ref().is_some_and(|error| error.message == message);
            if !same {
                tracing::warn!(sink = %name, error = message, "cannot deliver");
            }
            // The begin of the outage stays, whatever its errors say: alerts and the giving up count from it. A destination
            // is not given up for the time in which its source was away.
            let before = record.error.take().filter(|error| error.of_destination || !of_destination);
            let (since, attempts) = before.as_ref().map_or((now, 0), |error| (error.since, error.attempts));
            let of_destination = of_destination || before.is_some_and(|error| error.of_destination);
            let next = wait.and_then(|wait| now.checked_add(wait).ok());
            let attempts = attempts.saturating_add(1);
            record.error = Some(SinkOutage { message, since, of_destination, attempts, next });
            record.state = state;
        });
    }

    /// Records that the sink works.
    fn works(&self, change: impl FnOnce(&mut SinkRecord)) {
        self.is_source_failing.store(false, Ordering::Relaxed);
        self.sink.update(|record| {
            if record.error.take().is_some() {
                tracing::info!(sink = %self.sink.config.name, "delivering again");
            }
            record.state = SinkState::Running;
            change(record);
        });
    }

    /// Records that everything was delivered.
    pub(super) fn caught_up(&self) {
        self.works(|_| {});
    }

    /// Records up to where the destination has an own feed.
    pub(super) fn record_position(&self, feed: &FeedId, seq: Seq) {
        self.sink.update(|record| {
            record.positions.insert(feed.to_string(), seq.to_string());
        });
    }

    /// Records that the source answers; an error of the destination stays.
    pub(super) fn source_answers(&self) {
        // A source that answers says nothing of the destination, whose error must stay visible.
        let record = self.sink.record();
        let is_idle = record.state == SinkState::Starting && record.error.is_none();
        if is_idle || self.is_source_failing.load(Ordering::Relaxed) {
            self.works(|_| {});
        }
    }

    /// Records a message about the source.
    pub(super) fn follow_notice(&self, notice: FollowNotice) {
        let name = &self.sink.config.name;
        match notice {
            FollowNotice::Warning(text) | FollowNotice::Reset(text) => {
                tracing::warn!(sink = %name, reason = redact::text(&text), "warning of the followed feed");
            }
            FollowNotice::Incomplete(text) => {
                tracing::error!(sink = %name, reason = redact::text(&text), "items are missing");
            }
            FollowNotice::Failed(error) => {
                self.is_source_failing.store(true, Ordering::Relaxed);
                self.failed(SinkState::Waiting, &error.to_string(), None);
            }
            other => {
                tracing::warn!(sink = %name, reason = redact::text(&other.to_string()), "notice of the followed feed");
            }
        }
    }
}

impl SinkObserver for SinkHealth {
    fn notice(&self, _source: &str, notice: SinkNotice) {
        let name = &self.sink.config.name;
        match notice {
            SinkNotice::Unavailable { message, wait } => {
                self.record_failure(SinkState::Waiting, &message, Some(wait), true);
            }
            SinkNotice::Available => self.works(|_| {}),
            SinkNotice::SetAside { feed, id, reason, .. } => {
                let reason = redact::text(&reason);
                tracing::warn!(
                    sink = %name, %feed, item = id, reason,
                    "the destination refuses an item, which is kept here: see `towpath sink letters {name}`"
                );
            }
            other => {
                tracing::warn!(sink = %name, reason = redact::text(&other.to_string()), "notice of the sink");
            }
        }
    }

    fn applied(&self, batch: &SinkBatch) {
        let is_resending = self.is_resending.load(Ordering::Relaxed);
        let changes = batch.events.iter().filter(|event| event.change().is_some()).count();
        self.works(|record| {
            if changes > 0 {
                record.delivered += changes as u64;
                record.last_delivery = Some(wall_clock::now());
            }
            // Old positions would show the sink as having gone back.
            if !is_resending {
                record_positions(&self.sink, batch, record);
            }
        });
    }
}

/// Records the positions that a batch reaches: of an own feed the checkpoint's, else those of the last changes.
fn record_positions(sink: &SinkEntry, batch: &SinkBatch, record: &mut SinkRecord) {
    if sink.config.url.is_none() {
        let feed = batch.source.strip_prefix(&format!("{}/", sink.config.name));
        let kept = batch.checkpoint.as_ref().and_then(|kept| serde_json::from_slice::<Value>(kept).ok());
        if let (Some(feed), Some(seq)) = (feed, kept.and_then(|kept| kept["seq"].as_u64())) {
            record.positions.insert(feed.to_owned(), seq.to_string());
        }
        return;
    }
    // A document over all feeds names hundreds; a batch has few of them.
    for event in batch.events.iter() {
        if let SinkEvent::Change(change) = event {
            // A position of a foreign feed may be a URL, and that may have a password.
            record.positions.insert(event.feed(), redact::credentials(&change.position));
        }
    }
}
