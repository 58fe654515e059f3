//! Observation of a server: the parts of its state that alerts are about.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_client::redact;
use towpath_store::ReadLimit;

use super::conditions::{FailingSource, Observation, ObservedSink, QuietFeed, usual_pause};
use super::scope::AlertScope;
use crate::config::{AlertsConfig, EVENTS_FEED};
use crate::engine::certificate::CertificateEnd;
use crate::engine::export_health::ExportHealth;
use crate::engine::sinks::SinkControl;
use crate::engine::{Engine, Feed, json_record};
use crate::source::metrics::SourceMetrics;
use crate::source::poll::fingerprint;
use crate::source::state::SourceState;
use crate::store_error::StoreError;

/// Changes by which a feed's habit is known.
const HABIT: u64 = 40;

/// Usual pause of a feed, at the head for which it was computed.
#[derive(Default)]
struct FeedHabit(Mutex<Option<(u64, Option<Duration>)>>);

/// Observes what a scope covers.
pub(super) async fn observe(
    engine: &Engine,
    config: &AlertsConfig,
    scope: AlertScope,
    now: Timestamp,
) -> Observation {
    let mut observed = Observation::default();
    if scope.has_node() {
        observed.exports = ExportHealth::of(engine).failures();
        observed.free_disk = engine.free_disk();
        observed.certificate_end = engine.extensions.get::<Arc<CertificateEnd>>().and_then(|end| end.get());
        observed.store_failure = store_failure(engine);
        observed.replica_age = engine.replica_age();
    }
    if scope.has_feeds() {
        for feed in engine.feeds() {
            // The feed of events is quiet while all is well, and an alert about it would feed itself.
            if feed.is_filter() || feed.id().as_str() == EVENTS_FEED {
                continue;
            }
            if let Some(source) = failing_source(engine, &feed).await {
                observed.failing_sources.push(source);
            } else if let Some(quiet) = quiet_feed(engine, config, &feed, now).await {
                observed.quiet_feeds.push(quiet);
            }
        }
        // A store that cannot be read is an alert of its own.
        observed.sinks = sinks(engine).await.unwrap_or_default();
        let failed = engine.failures.feeds().into_iter();
        observed.unpublished =
            failed.filter_map(|feed| Some((feed.clone(), engine.failures.of(&feed)?))).collect();
    }
    observed
}

fn store_failure(engine: &Engine) -> Option<String> {
    let failure = engine.store_failure().map(|failure| failure.reason.clone());
    failure.or_else(|| engine.store_damage().map(|damage| damage.first.clone()))
}

/// Returns the failure of a feed's source. In a cluster another node may read it; then its state is in the store.
async fn failing_source(engine: &Engine, feed: &Feed) -> Option<FailingSource> {
    let (source, address) = feed.config.polled().or(feed.config.mirrored())?;
    if !source.enabled {
        return None;
    }
    let shown = |message: &str| redact::text(&message.replace(address, &redact::url(address)));
    if let Some(counts) = SourceMetrics::get(feed) {
        let error = counts.error?;
        let message = shown(&error.message);
        return Some(FailingSource {
            feed: feed.id().to_string(),
            since: counts.failing_since,
            code: error.code,
            message,
        });
    }
    // At the start its state was not read yet, and an event that goes on must not look over.
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await.ok()?;
    let error = state.error?;
    let message = shown(&error.message);
    Some(FailingSource { feed: feed.id().to_string(), since: state.last_ok, code: error.code, message })
}

/// Returns a feed without changes for a while, with its habit. The log is read once for each head.
async fn quiet_feed(
    engine: &Engine,
    config: &AlertsConfig,
    feed: &Feed,
    now: Timestamp,
) -> Option<QuietFeed> {
    // By this machine's clock: changes of a mirror have times of its publisher.
    let last_change = feed.last_append()?;
    let silence = Duration::try_from(now.duration_since(last_change)).unwrap_or_default();
    if config.feed_silent.is_zero() || silence < config.feed_silent {
        return None;
    }
    let head = feed.head.load(Ordering::Acquire);
    let habit = feed.extensions.get_or_insert_with(FeedHabit::default);
    // Kept by head: a feed that is silent for days would otherwise be read again with every pass.
    let known = habit.0.lock().filter(|(at, _)| *at == head);
    let usual = match known {
        Some((_, usual)) => usual,
        None => {
            let changes = engine
                .store
                .read(feed.id(), head.saturating_sub(HABIT), ReadLimit::items(HABIT as usize))
                .await;
            let times: Vec<Timestamp> = changes.ok()?.iter().map(|change| change.modified).collect();
            let usual = usual_pause(&times);
            *habit.0.lock() = Some((head, usual));
            usual
        }
    };
    Some(QuietFeed { feed: feed.id().to_string(), last_change, usual })
}

async fn sinks(engine: &Engine) -> Result<Vec<ObservedSink>, StoreError> {
    let mut observed = Vec::new();
    for sink in engine.sinks.all().iter() {
        let status = engine.sink_status(sink).await?;
        let control: SinkControl =
            json_record::load(engine.store.as_ref(), &sink.control_key()).await?.unwrap_or_default();
        // What an operator paused is no event.
        if status.paused && control.reason.is_none() {
            continue;
        }
        observed.push(ObservedSink {
            name: status.name,
            lag: status.lag,
            last_delivery: status.last_delivery,
            outage: status.error.map(|error| (error.since, error.message)),
            stopped: control.reason.filter(|_| control.paused),
        });
    }
    Ok(observed)
}
