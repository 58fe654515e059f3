//! Drivers of followers and checks: send their requests and deliver their changes to an output.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use towpath_proto::follow::{Checker, FeedReset, FollowError, Followed, Follower, LargePart, Reply};

use super::clock::{DriverClock, SystemClock};
use super::delivery_batch::DeliveryBatch;
use super::fetch::Fetcher;
use super::large_files::FileStore;
use super::listen::{CallQueue, PendingCall};
use super::request_driver::{ExchangeProgress, RequestDriver};
use super::response_hints::ResponseHints;
use super::route::FollowRoute;
use crate::stop::{Stop, stopped};

/// Interval of progress messages during a long initial sync.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Bytes of a hub's deliveries that are taken during a download, whose changes wait in memory.
const CALLS_DURING_DOWNLOAD: usize = 16 << 20;

/// Destination of a follower's changes.
pub trait Output: Send {
    /// Delivery failure, which ends the follow.
    type Error: Send;

    /// Delivers changes in order, then stores the checkpoint that covers them and all earlier ones.
    ///
    /// Both must be durable when it returns. An output that stores both in one transaction follows exactly once.
    fn deliver(
        &mut self,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Tells that the publisher began anew: what was delivered before is void, and all that it has follows.
    ///
    /// Called in order with the changes, before the checkpoint that covers it. So it may be repeated after a crash.
    fn reset(&mut self, _reset: FeedReset) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns the store of the files that changes name, if it is not their folders.
    fn files(&self) -> Option<Arc<dyn FileStore<Self::Error>>> {
        None
    }

    /// Stores a part of a content that is too large for memory. Returns it if it is for its folder.
    ///
    /// Called in order with the changes, and for all parts of a content or none.
    fn store_part(
        &mut self,
        part: LargePart,
    ) -> impl Future<Output = Result<Option<LargePart>, Self::Error>> + Send {
        std::future::ready(Ok(Some(part)))
    }

    /// Reports a warning or an error to the operator.
    fn notice(&mut self, notice: FollowNotice);

    /// Tells that the feed is at the route's URL, which `page` names: from here on its checkpoints are of that URL.
    ///
    /// Called before anything is delivered, if at all.
    fn located(&mut self, _route: &FollowRoute, _page: &str) {}

    /// Reports how far a long initial pass is.
    fn progress(&mut self, _text: &str) {}

    /// Called when everything that the publisher has was fetched and delivered.
    fn caught_up(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A message about a follow, beside its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowNotice {
    /// A warning; following continues.
    Warning(String),
    /// Items are missing that the publisher no longer has.
    Incomplete(String),
    /// The publisher began anew; see [`Event::Reset`](towpath_proto::follow::Event::Reset).
    Reset(String),
    /// An attempt failed; see [`Event::Failed`](towpath_proto::follow::Event::Failed).
    Failed(FollowError),
}

impl FollowNotice {
    /// Logs the notice. Its kind is the message, and its text a field.
    pub(crate) fn log(&self) {
        let text = |text: &str| crate::redact::credentials(text);
        match self {
            Self::Warning(reason) => tracing::warn!(reason = text(reason), "warning of the feed"),
            Self::Incomplete(reason) => tracing::warn!(reason = text(reason), "items are missing"),
            Self::Reset(reason) => tracing::warn!(reason = text(reason), "the feed began anew"),
            Self::Failed(error) => tracing::warn!(error = text(&error.to_string()), "cannot follow"),
        }
    }
}

impl fmt::Display for FollowNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warning(text) => write!(f, "warning: {text}"),
            Self::Incomplete(text) => write!(f, "incomplete: {text}"),
            Self::Reset(text) => write!(f, "reset: {text}"),
            Self::Failed(FollowError::Usage(text)) => f.write_str(text),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// Result of a follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowSummary {
    /// True if the stop signal ended it.
    pub stopped: bool,
    /// Error of the last failed attempt, if any failed.
    pub failed: Option<FollowError>,
    /// True if items are missing that the publisher no longer has, or if it began anew.
    pub incomplete: bool,
}

/// Runs a follower until it is finished, the stop signal is set, or the output fails.
///
/// Memory is bounded: one batch, and one chunk for each request in flight.
///
/// # Errors
///
/// Errors of [`Output::deliver`].
pub async fn drive<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
) -> Result<FollowSummary, O::Error> {
    drive_with_calls(follower, fetcher, output, stop, CallQueue::none()).await
}

/// Like [`drive`], and passes callback requests to the follower.
///
/// # Errors
///
/// Errors of [`Output::deliver`].
pub async fn drive_with_calls<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
    calls: CallQueue,
) -> Result<FollowSummary, O::Error> {
    let mut requests = RequestDriver::new(fetcher.clone());
    run(&mut requests, follower, output, stop, calls).await
}

/// Like [`drive`], with the timers of a clock. Also returns the hints found in the responses.
pub(super) async fn drive_with_hints<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    clock: Arc<dyn DriverClock>,
    output: &mut O,
    stop: &Stop,
) -> Result<(FollowSummary, ResponseHints), O::Error> {
    let mut requests = RequestDriver::with_clock(fetcher.clone(), clock);
    let summary = run(&mut requests, follower, output, stop, CallQueue::none()).await?;
    Ok((summary, requests.hints))
}

async fn run<F: Follower + ?Sized, O: Output>(
    requests: &mut RequestDriver,
    follower: &mut F,
    output: &mut O,
    stop: &Stop,
    mut calls: CallQueue,
) -> Result<FollowSummary, O::Error> {
    let mut batch = DeliveryBatch::new(output, stop);
    let mut last_progress = Instant::now();
    let (mut has_response, mut is_failing, mut is_resting) = (false, false, false);
    while !*stop.borrow() {
        if last_progress.elapsed() >= PROGRESS_INTERVAL {
            last_progress = Instant::now();
            // A large initial sync may take hours without any checkpoint; the operator should see that it works.
            if let Some(progress) = follower.progress() {
                tracing::info!(done = %progress, "following");
                batch.output.progress(&progress);
            }
        }
        take_events(&mut batch, requests, follower, &mut calls).await?;
        // A failed attempt also sets the timer, which would otherwise look like being up to date. Responses that were
        // on their way do not count either: the next attempt decides.
        is_failing |= std::mem::take(&mut batch.has_failed);
        has_response &= !is_failing;
        if has_response && is_resting && batch.has_changes() {
            // The first changes after a rest: nothing waits behind them for whose sake a batch would be larger.
            is_resting = false;
            batch.deliver().await?;
        }
        if has_response && follower.has_caught_up() {
            (has_response, is_resting) = (false, true);
            // The changes must be durable before the output is told that it is up to date.
            batch.deliver().await?;
            batch.output.caught_up().await;
        }
        is_failing &= !requests.send(follower);
        // Polling for requests may have produced events as well.
        take_events(&mut batch, requests, follower, &mut calls).await?;
        // A stop may leave events in the follower, which is fed nothing more then.
        if follower.is_finished() || batch.abandoned || *stop.borrow() {
            break;
        }
        let due = batch.due();
        tokio::select! {
            progress = requests.next_event(follower) => match progress {
                ExchangeProgress::Advanced => {}
                ExchangeProgress::ResponseComplete => has_response = true,
                ExchangeProgress::Idle => {
                    batch.fail_stuck();
                    break;
                }
            },
            pending = calls.next() => answer(follower, pending),
            // A slow document must not hold back the changes that have already arrived from it.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => batch.deliver().await?,
            () = stopped(stop) => {}
        }
    }
    // The last changes are delivered after a stop too, within the grace period.
    let finished = follower.is_finished();
    batch.deliver().await?;
    Ok(batch.finish(!finished && *stop.borrow()))
}

/// Takes the follower's events, and downloads the files of their contents one after the other.
///
/// Documents that are on their way wait meanwhile, so that memory stays bounded. A hub's calls are answered.
async fn take_events<F: Follower + ?Sized, O: Output>(
    batch: &mut DeliveryBatch<'_, O>,
    requests: &mut RequestDriver,
    follower: &mut F,
    calls: &mut CallQueue,
) -> Result<(), O::Error> {
    loop {
        batch.take_events(follower, &requests.hints).await?;
        if !batch.awaits_file() {
            return Ok(());
        }
        let (fetcher, clock) = (requests.fetcher(), requests.clock());
        answer_during(batch.fetch_file(&fetcher, &*clock), follower, calls).await?;
        // A fleet polls the feed again then.
        requests.hints.retry_after = batch.retry_after.or(requests.hints.retry_after);
    }
}

/// Answers a hub's calls until a download ends.
async fn answer_during<F: Follower + ?Sized, T>(
    fetching: impl Future<Output = T>,
    follower: &mut F,
    calls: &mut CallQueue,
) -> T {
    let mut room = CALLS_DURING_DOWNLOAD;
    tokio::pin!(fetching);
    loop {
        tokio::select! {
            fetched = &mut fetching => return fetched,
            pending = calls.next() => match room.checked_sub(pending.call.body.len()) {
                Some(left) => {
                    room = left;
                    answer(follower, pending);
                }
                // The hub sends it again later.
                None => drop(pending.reply.send(Reply::status(503))),
            },
        }
    }
}

fn answer<F: Follower + ?Sized>(follower: &mut F, pending: PendingCall) {
    let reply = follower.handle_call(SystemClock.now(), &pending.call);
    // An error means that the caller has disconnected.
    let _ = pending.reply.send(reply);
}

/// Runs a check until it is finished or the stop signal is set; returns true if it is finished.
pub async fn drive_check<C: Checker + ?Sized>(
    check: &mut C,
    fetcher: &Fetcher,
    stop: &Stop,
    mut calls: CallQueue,
) -> bool {
    let mut requests = RequestDriver::new(fetcher.clone());
    while !*stop.borrow() {
        requests.send(check);
        if check.is_finished() {
            return true;
        }
        tokio::select! {
            progress = requests.next_event(check) => if progress == ExchangeProgress::Idle { return check.is_finished() },
            pending = calls.next() => {
                let reply = check.handle_call(SystemClock.now(), &pending.call);
                let _ = pending.reply.send(reply);
            }
            () = stopped(stop) => {}
        }
    }
    false
}
