//! The task of alerts: observes, saves what is told, and sends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::book::{AlertBook, AlertTiming};
use super::conditions::conditions;
use super::kind::AlertKind;
use super::observe::observe;
use super::saved::{load, save};
use super::scope::AlertScope;
use super::send::AlertSenders;
use crate::config::AlertsConfig;
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::stop::{Stop, stopped};

/// Interval of looking at the server.
const INTERVAL: Duration = Duration::from_secs(2);

/// Watches a part of the server, and tells the destinations what happens, until the server stops.
pub(crate) async fn run(
    engine: Arc<Engine>,
    senders: Arc<AlertSenders>,
    lease: Option<Lease>,
    scope: AlertScope,
    stop: Stop,
) {
    let Some(config) = &engine.config.alerts else { return };
    let timing = AlertTiming { wait: config.wait, pause: config.pause, repeat: config.repeat };
    let mut book = load(&engine, scope).await;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped(&stop) => return,
        }
        let before = book.clone();
        look(&engine, config, &senders, scope, timing, &mut book).await;
        if book != before {
            // Before anything is sent: after a crash it is sent again, not told anew.
            save(&engine, lease.as_ref(), scope, &book).await;
        }
        if send_due(&engine, &senders, &mut book).await {
            save(&engine, lease.as_ref(), scope, &book).await;
        }
        for kind in AlertKind::ALL {
            let open = i64::try_from(book.open(kind)).unwrap_or(i64::MAX);
            engine.metrics.alerts.get_or_create_owned(&[("kind", kind.name().to_owned())]).set(open);
        }
    }
}

async fn look(
    engine: &Engine,
    config: &AlertsConfig,
    senders: &AlertSenders,
    scope: AlertScope,
    timing: AlertTiming,
    book: &mut AlertBook,
) {
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
        let is_given_up = book.handle_sent(waiting, sent.is_ok(), now);
        match sent {
            Ok(()) => tracing::info!(destination, alert = waiting.notice.title(), "told of an alert"),
            Err(error) if is_given_up => tracing::error!(destination, error, "gave up an alert"),
            Err(error) => tracing::warn!(destination, error, "cannot tell of an alert, and try again"),
        }
    }
    true
}
