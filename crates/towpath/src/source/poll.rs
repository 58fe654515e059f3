//! A single poll of a source: load, apply, and save the state.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use towpath_client::{Fetcher, Validators};

use super::apply::{AppliedDocument, DocumentReader, apply};
use super::document::digest;
use super::load::{LoadedDocument, LoadedSource, load};
use super::metrics::SourceMetrics;
use super::poll_error::PollError;
use super::poll_log::{self, PollRecord};
pub use super::poll_summary::PollSummary;
use super::pushed::interval;
use super::state::SourceState;
pub(crate) use super::state::fingerprint;
use super::waits::{next_poll, next_read, pause};
use crate::config::{SourceConfig, local_path};
use crate::engine::feed_about;
use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::{Run, publish};
use crate::protocols::history::documents;
use crate::store_error::StoreError;

/// Maximum number of problems of a document, or of a mirrored feed, that are saved.
pub(super) const SAVED_PROBLEMS: usize = 10;
/// Failed polls after which a source that moved is asked for at its configured address again.
const LOST_AFTER: u32 = 3;

/// Result of a successful attempt.
struct PollSuccess {
    polled: PollSummary,
    document: Option<DocumentState>,
}

/// Saved state of a document that was loaded.
struct DocumentState {
    body: String,
    validators: Validators,
    url: Option<String>,
    moved_to: Option<String>,
}

/// Polls a feed's source once, appends the changes, and publishes.
///
/// An error never deletes anything: it is saved in the source's state, and items and cursor stay as they were.
pub async fn poll(
    engine: &Arc<Engine>,
    fetcher: &Fetcher,
    lease: &Lease,
    feed: &Arc<Feed>,
) -> Result<PollSummary, StoreError> {
    let Some((source, address)) = feed.config.polled() else { return Ok(PollSummary::default()) };
    let mut state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await?;
    // Both clocks: dates are stored, and durations are measured by the monotonic one.
    let (now, began) = (engine.now(), Instant::now());
    let result = attempt(engine, fetcher, (feed, lease), source, address, &state, now).await;
    state.last_attempt = Some(now);
    let (mut polled, retry_after) = match result {
        Ok(success) => (record_success(&mut state, success, now), None),
        Err(error) => {
            let retry_after = error.retry_after();
            (record_failure(&mut state, &error), retry_after)
        }
    };
    let wait = match local_path(address) {
        Some(_) => next_read(source.every()),
        None if state.failures == 0 => {
            next_poll(interval(engine, feed.id(), source.every()), 0, None, fastrand::u64(..))
        }
        None => next_poll(source.every(), state.failures, retry_after, fastrand::u64(..)),
    };
    let elapsed = began.elapsed();
    // The saved date serves the next start only. Until then the schedule runs on monotonic time.
    polled.next = pause(wait, elapsed, state.failures);
    let next = jiff::SignedDuration::try_from(elapsed.saturating_add(polled.next)).unwrap_or_default();
    let next = now.checked_add(next).ok();
    state.next = next.filter(|_| !state.ended);
    polled.ended = state.ended;
    let record = PollRecord::new(now, elapsed.as_millis(), &polled);
    let record = poll_log::added(engine, feed, record).await?;
    // After the append: a crash between the two repeats the poll, which then finds nothing new.
    state.save_with(engine.store.as_ref(), lease, feed.id(), Some(record)).await?;
    SourceMetrics::record(feed, &state);
    SourceMetrics::record_time(feed, began.elapsed());
    let run = match &state.error {
        None => Run::Polled,
        Some(error) => Run::Failed { code: error.code.clone(), http_status: error.http_status },
    };
    // Counted after the save: a poll whose result is lost will be repeated.
    let counter = if state.error.is_none() { &engine.metrics.polls_ok } else { &engine.metrics.polls_failed };
    counter.inc();
    publish(engine, feed, run).await?;
    Ok(polled)
}

fn record_success(state: &mut SourceState, success: PollSuccess, now: Timestamp) -> PollSummary {
    state.last_ok = Some(now);
    state.failures = 0;
    state.error = None;
    state.ended = false;
    if let Some(document) = success.document {
        state.body = Some(document.body);
        state.validators = document.validators;
        state.validated_url = document.url;
        state.moved_to = document.moved_to;
        // After a 304 the earlier problems still hold, so they are replaced with a document only.
        state.problems = success.polled.problems.iter().take(SAVED_PROBLEMS).cloned().collect();
    }
    success.polled
}

fn record_failure(state: &mut SourceState, error: &PollError) -> PollSummary {
    let error = error.to_source_error();
    state.failures = state.failures.saturating_add(1);
    state.error = Some(error.clone());
    let is_lost = matches!(error.http_status, Some(404 | 410)) || state.failures >= LOST_AFTER;
    if is_lost && state.moved_to.take().is_some() {
        // The address that it moved to is gone, or its owner is. The configured one may lead elsewhere by now.
        state.validators = Validators::default();
    } else {
        // 410 is for good (RFC 9110, section 15.5.11), where 404 may be a publisher's mistake of an hour.
        state.ended = error.http_status == Some(410);
    }
    PollSummary { error: Some(error), ..PollSummary::default() }
}

async fn attempt(
    engine: &Arc<Engine>,
    fetcher: &Fetcher,
    own: (&Arc<Feed>, &Lease),
    source: &SourceConfig,
    address: &str,
    state: &SourceState,
    now: Timestamp,
) -> Result<PollSuccess, PollError> {
    let loaded = load(fetcher, source, address, &engine.config.folder, state, now).await?;
    let LoadedSource::Document(document) = loaded else {
        return Ok(PollSuccess { polled: PollSummary::default(), document: None });
    };
    let LoadedDocument { pages, has_more, validators, url, moved_to } = document;
    let body = hex::encode(digest(&pages));
    let length = pages.iter().map(|page| page.bytes.len()).sum();
    let saved = DocumentState { body, validators, url, moved_to };
    // Identical bytes need no parsing. After an error they do: the failed poll may not have appended its changes.
    if state.error.is_none() && state.body.as_ref() == Some(&saved.body) {
        let polled = PollSummary { bytes: Some(length as u64), ..PollSummary::default() };
        return Ok(PollSuccess { polled, document: Some(saved) });
    }
    // A parsed document takes many times its bytes. Without this, a hundred polls at once would add up.
    let reading = fetcher.memory().reading(length, source.limits.memory()).await;
    let read = DocumentReader { source, address, pages: &pages, has_more };
    let AppliedDocument { mut polled, about } = apply(engine, own, &read).await?;
    polled.bytes = Some(length as u64);
    // Before anything is written, which may wait for a sync.
    drop((reading, pages));
    // The documents show the description, and no append need come with a new one.
    if feed_about::save(engine, own.1, own.0, &about).await? {
        documents::forget_newest(engine, own.0);
    }
    Ok(PollSuccess { polled, document: Some(saved) })
}
