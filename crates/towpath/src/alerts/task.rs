//! The task of alerts: observes, saves what is told, and sends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::book::{AlertBook, AlertTiming, DeliveryAttempt};
use super::conditions::conditions;
use super::observe::observe;
use super::saved::{load, save};
use super::scope::AlertScope;
use super::send::AlertSenders;
use super::settings::{AlertSettings, LiveAlerts};
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::stop::{Stop, stopped};

/// Interval of looking at the server.
const INTERVAL: Duration = Duration::from_secs(2);
/// Difference of the clocks between two passes that is no jump: time servers slow a clock down, or hurry it.
const SLACK: SignedDuration = SignedDuration::from_secs(1);

/// Watches a part of the server, and tells the destinations what happens, until the server stops. While there is no
/// `[alerts]` it looks at nothing.
pub(crate) async fn run(
    engine: Arc<Engine>,
    alerts: LiveAlerts,
    lease: Option<Lease>,
    scope: AlertScope,
    stop: Stop,
) {
    let mut book = load(&engine, scope).await;
    let mut last_pass = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped(&stop) => break,
        }
        let settings = alerts.borrow().clone();
        let Some(settings) = settings else {
            show_open(&engine, scope, &AlertBook::default());
            continue;
        };
        let before = book.clone();
        let observed_at = (engine.now(), Instant::now());
        if let Some(jump) = last_pass.replace(observed_at).and_then(|last| clock_jump(last, observed_at)) {
            book.shift(jump);
        }
        observe_into(&engine, &settings, scope, &mut book).await;
        if book != before {
            // Before anything is sent: after a crash it is sent again, not told anew.
            save(&engine, lease.as_ref(), scope, &book).await;
        }
        if send_due(&engine, &settings.senders, &mut book).await {
            save(&engine, lease.as_ref(), scope, &book).await;
        }
        show_open(&engine, scope, &book);
    }
    // Another node of the cluster may have the lease now.
    show_open(&engine, scope, &AlertBook::default());
}

/// Returns how far the wall clock went ahead of the monotonic one between two passes, if it jumped.
fn clock_jump(
    (wall_before, before): (Timestamp, Instant),
    (wall, now): (Timestamp, Instant),
) -> Option<SignedDuration> {
    let passed = SignedDuration::try_from(now - before).ok()?;
    let jump = wall.duration_since(wall_before) - passed;
    (jump.abs() > SLACK).then_some(jump)
}

/// Shows the open alerts of a scope in the metrics.
fn show_open(engine: &Engine, scope: AlertScope, book: &AlertBook) {
    for kind in scope.kinds() {
        let open = i64::try_from(book.open(kind)).unwrap_or(i64::MAX);
        engine.metrics.alerts.get_or_create_owned(&[("kind", kind.name().to_owned())]).set(open);
    }
}

async fn observe_into(engine: &Engine, settings: &AlertSettings, scope: AlertScope, book: &mut AlertBook) {
    let AlertSettings { config, senders } = settings;
    let timing = AlertTiming { wait: config.wait, pause: config.pause, repeat: config.repeat };
    let now = engine.now();
    let observed = observe(engine, config, scope, now).await;
    let found = conditions(observed, config, now, |kind, subject| book.has(kind, subject));
    book.observe(now, found, timing, &senders.destinations());
}

/// Sends the messages that are due. Returns true if there were any.
async fn send_due(engine: &Arc<Engine>, senders: &AlertSenders, book: &mut AlertBook) -> bool {
    let due = book.due(engine.now());
    if due.is_empty() {
        return false;
    }
    let sent = due.iter().map(|waiting| senders.send(Some(engine), waiting.destination, &waiting.notice));
    let sent = join_all(sent).await;
    let now = engine.now();
    for (waiting, sent) in due.iter().zip(sent) {
        let destination = waiting.destination.name();
        let outcome = if sent.is_ok() { "ok" } else { "failed" };
        let labels = [("destination", destination.to_owned()), ("outcome", outcome.to_owned())];
        engine.metrics.alert_messages.get_or_create_owned(&labels).inc();
        let attempt = if sent.is_ok() { DeliveryAttempt::Delivered } else { DeliveryAttempt::Failed };
        let is_given_up = book.handle_sent(waiting, attempt, now);
        match sent {
            Ok(()) => tracing::info!(destination, alert = waiting.notice.title(), "told of an alert"),
            Err(error) if is_given_up => tracing::error!(destination, error, "gave up an alert"),
            Err(error) => tracing::warn!(destination, error, "cannot tell of an alert, and try again"),
        }
    }
    true
}
