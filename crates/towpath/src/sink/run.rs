//! The task of a sink: attempts to deliver, waits between them, pauses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use towpath_client::Fetcher;
use towpath_client::sink::{OnRefusedItem, SinkFailure, SinkOpener, SinkOptions, SinkQueue, SinkWriter};
use towpath_config::DestinationKind;
use towpath_proto::follow::Backoff;

use super::destination;
use super::foreign_feed::{self, ForeignError};
use super::health::SinkHealth;
use super::letters::{self, LetterBox, ResendError};
use super::orders;
use super::own_feeds::{CopyError, OwnFeeds};
use super::stored_sink::StoredSink;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::roles::{Lease, conditions};
use crate::engine::sinks::{SinkControl, SinkEntry, SinkRecord, SinkState};
use crate::engine::{Engine, json_record};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Waits between attempts after the destination refused for good, or the source did not answer.
// A person has to mend it, and should not have to restart the server then.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(300));
/// Time that a destination has to finish a batch when the sink is stopped.
const GRACE: Duration = Duration::from_secs(5);
/// Interval at which the state is saved for other nodes, if it has changed.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which a paused sink reads its orders, beside being woken.
const ORDERS_INTERVAL: Duration = Duration::from_secs(30);

/// A sink with everything that its task needs.
#[derive(Clone)]
pub(super) struct SinkTask {
    pub(super) engine: Arc<Engine>,
    pub(super) sink: Arc<SinkEntry>,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) changes: Arc<ChangedFeeds>,
}

/// Result of an attempt.
enum AttemptEnd {
    /// The stop signal, or an order.
    Stopped,
    /// The destination wants nothing more, or a refused item stops it: an operator has to resume it.
    Pause(String),
    /// A failure after which the next attempt follows.
    Failed(String),
}

impl SinkTask {
    /// Name of the role.
    pub(super) fn role(&self) -> String {
        format!("sink/{}", self.sink.config.name)
    }

    /// Delivers until `stop` is set.
    pub(super) async fn run(self, lease: Lease, stop: Stop) {
        match json_record::load::<SinkRecord>(self.engine.store.as_ref(), &self.sink.record_key()).await {
            // Of another node, or of the last run.
            Ok(record) => self.sink.update(|kept| {
                *kept = SinkRecord { delivered: kept.delivered, ..record.unwrap_or_default() };
            }),
            Err(e) => {
                tracing::error!(sink = %self.sink.config.name, error = %e, "cannot read the state of the sink");
            }
        }
        // After the record was read: from here on this process's record is what all pages show.
        self.sink.set_here(true);
        tokio::select! {
            () = self.attempts(&lease, &stop) => {}
            // Never ends by itself: the attempts end both.
            () = self.save_while_changing(&lease) => {}
        }
        // Once more, whatever was saved: the next holder of the role begins with it.
        self.save(&lease, &mut None).await;
        self.sink.set_here(false);
    }

    async fn attempts(&self, lease: &Lease, stop: &Stop) {
        let mut orders = self.sink.orders();
        let mut failures = 0_u32;
        let mut was_paused = false;
        while !*stop.borrow() {
            // Before the orders are read: one that comes meanwhile is then a change, and read again.
            orders.borrow_and_update();
            let control = match orders::load(&self.engine, &self.sink).await {
                Ok(control) => control,
                Err(e) => {
                    SinkHealth::new(self.sink.clone()).failed(SinkState::Waiting, &e.to_string(), None);
                    store_pause(stop).await;
                    continue;
                }
            };
            if control.paused {
                self.sink.update(|record| {
                    record.state = SinkState::Paused;
                    if control.reason.is_none() {
                        // Paused by an operator: nothing fails any more.
                        record.error = None;
                    }
                });
                tokio::select! {
                    _ = orders.changed() => {}
                    () = sleep(ORDERS_INTERVAL) => {}
                    () = stopped(stop) => {}
                }
                // Somebody who resumes a sink does not want to wait for the longest backoff.
                (failures, was_paused) = (0, true);
                continue;
            }
            if std::mem::take(&mut was_paused) {
                // Resumed by somebody who has mended it: the time until it is given up begins anew.
                self.sink.update(|record| record.error = None);
            }
            match self.attempt(lease, &mut orders, stop, control.resends).await {
                AttemptEnd::Stopped => failures = 0,
                AttemptEnd::Pause(reason) => self.pause(lease, &control, &reason, stop).await,
                AttemptEnd::Failed(reason) => {
                    failures = failures.saturating_add(1);
                    let wait = BACKOFF.jittered(failures, fastrand::u64(..));
                    SinkHealth::new(self.sink.clone()).failed(SinkState::Waiting, &reason, Some(wait));
                    tokio::select! {
                        () = sleep(wait) => {}
                        _ = orders.changed() => {}
                        () = stopped(stop) => {}
                    }
                }
            }
        }
    }

    /// Pauses the sink by itself, until an operator resumes it. An order since `control` was read comes first.
    async fn pause(&self, lease: &Lease, control: &SinkControl, reason: &str, stop: &Stop) {
        let name = &self.sink.config.name;
        let reason = format!("{reason}; once that is mended, `towpath sink resume {name}` goes on");
        SinkHealth::new(self.sink.clone()).failed(SinkState::Paused, &reason, None);
        let paused = orders::pause(&self.engine, &self.sink, control, reason, conditions(lease)).await;
        if let Err(e) = paused {
            tracing::error!(sink = %name, error = %e, "cannot save that the sink is stopped");
            store_pause(stop).await;
        }
    }

    /// Delivers until an order comes, `stop` is set, or the destination fails for good.
    async fn attempt(
        &self,
        lease: &Lease,
        orders: &mut watch::Receiver<u64>,
        stop: &Stop,
        resends: u64,
    ) -> AttemptEnd {
        self.sink.update(|record| record.state = SinkState::Starting);
        let (end, ending) = watch::channel(false);
        let (queue, health) = match self.open(lease, ending.clone()).await {
            Ok(opened) => opened,
            Err(reason) => return AttemptEnd::Failed(reason),
        };
        let opener = queue.opener();
        let fed = async {
            let (all, has_letters) =
                (self.sink.record().resends < resends, self.sink.record().dead_letters > 0);
            if all || has_letters {
                health.set_resending(true);
                let resent = letters::resend(&self.engine, &self.sink, &opener, lease, all).await;
                health.set_resending(false);
                match resent {
                    Ok(()) => self.sink.update(|record| record.resends = resends),
                    Err(ResendError::Sink(failure)) => return Err(FeedError::Sink(failure)),
                    Err(ResendError::Store(e)) => return Err(FeedError::Other(e.to_string())),
                }
            }
            self.feed(opener.clone(), health.clone(), &ending).await
        };
        let fed = {
            let mut fed = std::pin::pin!(fed.boxed());
            tokio::select! {
                fed = &mut fed => fed,
                () = ordered(orders, stop) => {
                    end.send_replace(true);
                    Ok(())
                }
            }
        };
        end.send_replace(true);
        // The queue finishes once nobody can add to it.
        drop(opener);
        // What is under way is finished: a batch that is cut off is sent twice, which a webhook's receiver sees.
        let finished = timeout(GRACE, queue.finish()).await;
        match (fed, finished) {
            (Err(FeedError::Sink(failure)), _) | (_, Ok(Err(failure))) => self.judge(failure),
            (Err(FeedError::Other(reason)), _) => AttemptEnd::Failed(reason),
            // A destination that hangs: what it has taken or not shows when it is opened again.
            (Ok(()), _) => AttemptEnd::Stopped,
        }
    }

    async fn open(&self, lease: &Lease, ending: Stop) -> Result<(SinkQueue, SinkHealth), String> {
        // By the wall clock: the process that it failed in first may have been another one.
        let outage = self.sink.record().error.filter(|error| error.of_destination);
        let since = outage.map(|error| self.engine.now().duration_since(error.since));
        // A webhook that has failed for days is given up after them, also over restarts.
        let failing_for = since.and_then(|time| Duration::try_from(time).ok()).unwrap_or_default();
        let inner = destination::open(&self.engine.config, &self.sink.config, failing_for, &self.fetcher)?;
        let letters = LetterBox::open(self.engine.clone(), self.sink.clone(), lease.clone()).await;
        let stored = StoredSink {
            inner,
            engine: self.engine.clone(),
            sink: self.sink.clone(),
            letters: letters.map_err(|e| e.to_string())?,
            lease: lease.clone(),
            applied: None,
        };
        let health = SinkHealth::new(self.sink.clone());
        let on_refused_item =
            if self.sink.config.stop_at_refused { OnRefusedItem::Stop } else { OnRefusedItem::SetAside };
        let options = SinkOptions::default().with_on_refused_item(on_refused_item);
        let writer = SinkWriter::new(Box::new(stored), options, Arc::new(health.clone()), ending);
        Ok((SinkQueue::start(writer), health))
    }

    async fn feed(&self, opener: SinkOpener, health: SinkHealth, stop: &Stop) -> Result<(), FeedError> {
        if let Some(url) = &self.sink.config.url {
            let followed = foreign_feed::follow(&self.sink, url, &self.fetcher, opener, health, stop).await;
            return followed.map_err(|e| match e {
                ForeignError::Sink(failure) => FeedError::Sink(failure),
                other => FeedError::Other(other.to_string()),
            });
        }
        let (engine, sink, changes) = (self.engine.clone(), self.sink.clone(), self.changes.clone());
        let mut feeds = OwnFeeds { engine, sink, opener, health, changes, sent: HashMap::new() };
        feeds.copy(stop).await.map_err(|e| match e {
            CopyError::Sink(failure) => FeedError::Sink(failure),
            CopyError::Store(e) => FeedError::Other(e.to_string()),
        })
    }

    fn judge(&self, failure: SinkFailure) -> AttemptEnd {
        match failure {
            SinkFailure::Stopped(_) => AttemptEnd::Stopped,
            SinkFailure::ItemRefused { .. } => AttemptEnd::Pause(failure.to_string()),
            // A webhook retries by itself what may get better: it refuses after days, or because the receiver said so.
            SinkFailure::Refused(reason) if self.sink.config.kind() == Some(DestinationKind::Webhook) => {
                AttemptEnd::Pause(reason)
            }
            failure => AttemptEnd::Failed(failure.to_string()),
        }
    }

    async fn save_while_changing(&self, lease: &Lease) {
        let mut saved = None;
        loop {
            sleep(SAVE_INTERVAL).await;
            self.save(lease, &mut saved).await;
        }
    }

    /// Saves the state for other nodes and the next start, if it has changed.
    async fn save(&self, lease: &Lease, saved: &mut Option<SinkRecord>) {
        let record = self.sink.record();
        if saved.as_ref() == Some(&record) {
            return;
        }
        let write = json_record::put(self.sink.record_key(), &record);
        match self.engine.store.write(vec![write], conditions(lease)).await.map_err(StoreError::from) {
            Ok(()) => *saved = Some(record),
            // The next holder of the role writes its own.
            Err(e) if e.is_conflict() || e.is_closed() => {}
            Err(e) => {
                tracing::warn!(sink = %self.sink.config.name, error = %e, "cannot save the state of the sink");
            }
        }
    }
}

/// Reason why nothing more comes to the destination.
enum FeedError {
    Sink(SinkFailure),
    Other(String),
}

/// Waits before the store is asked again, unless `stop` is set.
async fn store_pause(stop: &Stop) {
    tokio::select! {
        () = sleep(BACKOFF.wait(3)) => {}
        () = stopped(stop) => {}
    }
}

/// Returns once an order came or `stop` is set.
async fn ordered(orders: &mut watch::Receiver<u64>, stop: &Stop) {
    tokio::select! {
        _ = orders.changed() => {}
        () = stopped(stop) => {}
    }
}
