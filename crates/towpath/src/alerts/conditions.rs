//! Rules: what of a server's state is an event. Pure functions of observations and time.

use std::time::Duration;

use jiff::Timestamp;

use super::book::Condition;
use super::kind::AlertKind;
use crate::config::AlertsConfig;
use crate::engine::export_health::ExportFailure;
use crate::plural::counted;

/// Age of a replica from which it is behind, as `/readyz` has it.
const STALE_REPLICA: u64 = 60;
/// Fewest pauses from which a feed's usual pause is known.
const MIN_PAUSES: usize = 8;

/// Time for which exports must fail: object storage is away for minutes at times.
const EXPORT_FAILING: Duration = Duration::from_secs(15 * 60);

/// State of a server at a moment: what may be wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Observation {
    pub(super) failing_sources: Vec<FailingSource>,
    pub(super) quiet_feeds: Vec<QuietFeed>,
    pub(super) sinks: Vec<ObservedSink>,
    /// Feeds that cannot be published, with reasons.
    pub(super) unpublished: Vec<(String, String)>,
    /// Trees whose exports fail.
    pub(super) exports: Vec<(String, ExportFailure)>,
    pub(super) free_disk: Option<u64>,
    pub(super) certificate_end: Option<Timestamp>,
    /// Failure of the store, or damage in it.
    pub(super) store_failure: Option<String>,
    /// Age of the replica in a cluster; `Some(None)` if it is unknown.
    pub(super) replica_age: Option<Option<u64>>,
}

#[derive(Debug, Clone)]
pub(super) struct FailingSource {
    pub(super) feed: String,
    pub(super) since: Option<Timestamp>,
    pub(super) code: String,
    pub(super) message: String,
}

#[derive(Debug, Clone)]
pub(super) struct QuietFeed {
    pub(super) feed: String,
    pub(super) last_change: Timestamp,
    /// Longest of its recent pauses, if it had enough of them.
    pub(super) usual: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ObservedSink {
    pub(super) name: String,
    pub(super) lag: u64,
    pub(super) last_delivery: Option<Timestamp>,
    /// Begin and message of an outage.
    pub(super) outage: Option<(Timestamp, String)>,
    /// Reason why the server itself stopped it.
    pub(super) stopped: Option<String>,
}

/// Returns what is wrong. `is_open` tells whether an event was there before, so that its end has a margin.
pub(super) fn conditions(
    observed: Observation,
    config: &AlertsConfig,
    now: Timestamp,
    is_open: impl Fn(AlertKind, &str) -> bool,
) -> Vec<Condition> {
    let mut found = Vec::new();
    let mut add = |kind, subject: &str, since, hold, message: String| {
        found.push(Condition { kind, subject: subject.to_owned(), since, hold, message });
    };
    for FailingSource { feed, since, code, message } in observed.failing_sources {
        let message = format!("{code}: {message}");
        // Not a failure that may pass: the source would have removed most items, and an operator decides.
        if code == "GUARD" {
            add(AlertKind::GuardRefused, &feed, since, Duration::ZERO, message);
        } else if !config.source_failing.is_zero() {
            add(AlertKind::SourceFailing, &feed, since, config.source_failing, message);
        }
    }
    for QuietFeed { feed, last_change, usual } in observed.quiet_feeds {
        let Some(usual) = usual.filter(|_| !config.feed_silent.is_zero()) else { continue };
        // A feed that pauses every weekend is not silent on Sunday: twice its own longest pause is beyond its habit.
        let limit = config.feed_silent.max(usual.saturating_mul(2));
        if since(last_change, now) >= limit {
            let message = format!("its longest recent pause was {}", counted(usual.as_secs() / 60, "minute"));
            add(AlertKind::FeedSilent, &feed, Some(last_change), Duration::ZERO, message);
        }
    }
    for sink in observed.sinks.iter().filter(|_| !config.sink_behind.is_zero()) {
        if let Some((begin, hold, message)) = sink_problem(sink, config.sink_behind, now) {
            add(AlertKind::SinkBehind, &sink.name, begin, hold, message);
        }
    }
    for (feed, reason) in observed.unpublished {
        add(AlertKind::PublishingFailed, &feed, None, Duration::ZERO, reason);
    }
    for (tree, failure) in observed.exports {
        add(AlertKind::ExportFailing, &tree, Some(failure.since), EXPORT_FAILING, failure.message);
    }
    if let Some(free) = observed.free_disk {
        // A tenth more until it is over: a value near the limit must not cause a message a minute.
        let margin = if is_open(AlertKind::DiskLow, "") { config.disk_free_mib / 10 } else { 0 };
        if free >> 20 < config.disk_free_mib + margin {
            add(AlertKind::DiskLow, "", None, Duration::ZERO, format!("{} MiB are free", free >> 20));
        }
    }
    if let Some(end) = observed.certificate_end {
        let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        if left < config.certificate {
            let message = format!("it is valid until {end:.0}");
            add(AlertKind::CertificateExpiring, "", None, Duration::ZERO, message);
        }
    }
    if let Some(reason) = observed.store_failure {
        add(AlertKind::StoreFailed, "", None, Duration::ZERO, reason);
    }
    if let Some(age) = observed.replica_age.filter(|age| age.is_none_or(|age| age > STALE_REPLICA)) {
        let message = replica_age_text(age);
        // It must last as well: a replica that has just started knows no age for a moment.
        add(AlertKind::ReplicaBehind, "", None, Duration::from_secs(STALE_REPLICA), message);
    }
    found
}

fn replica_age_text(age: Option<u64>) -> String {
    age.map_or("it was never current".into(), |age| format!("it is {} old", counted(age, "second")))
}

/// Returns the begin of a sink's problem, the time for which it must last to be one, and its message.
fn sink_problem(
    sink: &ObservedSink,
    limit: Duration,
    now: Timestamp,
) -> Option<(Option<Timestamp>, Duration, String)> {
    let ObservedSink { lag, last_delivery, outage, stopped, .. } = sink;
    if let Some(reason) = stopped {
        return Some((None, Duration::ZERO, format!("it was stopped: {reason}")));
    }
    if let Some((begin, message)) = outage {
        return Some((Some(*begin), limit, message.clone()));
    }
    let is_stuck = *lag > 0 && last_delivery.is_none_or(|last| since(last, now) >= limit);
    let wait = if *lag == 1 { "waits" } else { "wait" };
    is_stuck.then(|| (None, limit, format!("{} {wait}", counted(*lag, "change"))))
}

/// Returns the longest pause between changes at these times, if there are enough of them. Changes of one batch are one.
pub(super) fn usual_pause(times: &[Timestamp]) -> Option<Duration> {
    let pauses: Vec<Duration> = times
        .windows(2)
        .filter_map(|pair| Duration::try_from(pair[1].duration_since(pair[0])).ok())
        .filter(|pause| pause.as_secs() > 0)
        .collect();
    // From few changes no habit can be known, and every new feed would alarm.
    if pauses.len() < MIN_PAUSES { None } else { pauses.into_iter().max() }
}

fn since(begin: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(begin)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds as i64).unwrap()
    }

    /// Kinds, subjects and holds of what is wrong at second 100,000.
    fn found(observed: Observation) -> Vec<(AlertKind, String, u64)> {
        let config = AlertsConfig::default();
        let found = conditions(observed, &config, at(100_000), |_, _| false);
        found.into_iter().map(|one| (one.kind, one.subject, one.hold.as_secs())).collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_well_server() {
        let observed = Observation {
            free_disk: Some(1 << 40),
            certificate_end: Some(at(100_000 + 60 * 86_400)),
            replica_age: Some(Some(1)),
            sinks: vec![ObservedSink {
                name: "db".into(),
                lag: 5,
                last_delivery: Some(at(99_999)),
                ..ObservedSink::default()
            }],
            ..Observation::default()
        };
        assert_eq!(found(observed), []);
    }

    #[test]
    fn failing_sources_and_refused_listings() {
        let source = |feed: &str, code: &str| FailingSource {
            feed: feed.into(),
            since: Some(at(0)),
            code: code.into(),
            message: "no".into(),
        };
        let observed = Observation {
            failing_sources: vec![source("aa", "TIMEOUT"), source("bb", "GUARD")],
            ..Observation::default()
        };
        assert_eq!(
            found(observed),
            [(AlertKind::SourceFailing, "aa".into(), 3600), (AlertKind::GuardRefused, "bb".into(), 0)]
        );
    }

    #[test]
    fn a_feed_is_silent_by_its_own_measure() {
        let quiet = |last: u64, usual: Option<u64>| Observation {
            quiet_feeds: vec![QuietFeed {
                feed: "aa".into(),
                last_change: at(last),
                usual: usual.map(Duration::from_secs),
            }],
            ..Observation::default()
        };
        let hours = |hours: u64| 100_000 - hours * 3600;
        assert_eq!(found(quiet(hours(5), Some(10 * MINUTE))), []);
        assert_eq!(found(quiet(hours(6), Some(10 * MINUTE))).len(), 1);
        assert_eq!(found(quiet(hours(6), Some(4 * 3600))), [], "twice its longest pause is more");
        assert_eq!(found(quiet(hours(8), Some(4 * 3600))).len(), 1);
        assert_eq!(found(quiet(hours(20), None)), [], "too young to have a habit");
    }

    #[test]
    fn the_usual_pause_is_the_longest_of_enough() {
        let regular: Vec<Timestamp> = (0..10).map(|n| at(n * 60)).collect();
        assert_eq!(usual_pause(&regular), Some(Duration::from_secs(60)));
        assert_eq!(usual_pause(&regular[..5]), None);
        let batch = vec![at(5); 100];
        assert_eq!(usual_pause(&batch), None);
        let mut gap = regular;
        gap.push(at(5000));
        assert_eq!(usual_pause(&gap).unwrap().as_secs(), 5000 - 540);
    }

    #[test]
    fn sinks_that_are_stopped_failing_or_stuck() {
        let sink = |name: &str| ObservedSink { name: name.into(), ..ObservedSink::default() };
        let sinks = vec![
            ObservedSink { stopped: Some("refused".into()), ..sink("stopped") },
            ObservedSink { outage: Some((at(99_000), "down".into())), ..sink("failing") },
            ObservedSink { lag: 3, last_delivery: Some(at(90_000)), ..sink("stuck") },
            ObservedSink { lag: 3, last_delivery: None, ..sink("new") },
            sink("idle"),
        ];
        let names: Vec<_> = found(Observation { sinks, ..Observation::default() })
            .into_iter()
            .map(|(_, name, hold)| (name, hold))
            .collect();
        let expected = [("stopped", 0), ("failing", 900), ("stuck", 900), ("new", 900)];
        assert_eq!(names, expected.map(|(name, hold)| (name.to_owned(), hold)));
    }

    #[test]
    fn parts_of_the_node() {
        let observed = Observation {
            free_disk: Some(100 << 20),
            certificate_end: Some(at(100_000 + 86_400)),
            store_failure: Some("the disk is full".into()),
            replica_age: Some(None),
            unpublished: vec![("aa".into(), "cannot publish".into())],
            exports: vec![(
                "https://cdn.example".into(),
                ExportFailure { message: "tree: the disk is full".into(), since: at(99_000) },
            )],
            ..Observation::default()
        };
        let kinds: Vec<_> = found(observed).into_iter().map(|(kind, ..)| kind).collect();
        let expected = [
            AlertKind::PublishingFailed,
            AlertKind::ExportFailing,
            AlertKind::DiskLow,
            AlertKind::CertificateExpiring,
            AlertKind::StoreFailed,
            AlertKind::ReplicaBehind,
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn the_end_of_a_low_disk_has_a_margin() {
        let config = AlertsConfig::default();
        let at_limit = || Observation { free_disk: Some(1050 << 20), ..Observation::default() };
        assert!(conditions(at_limit(), &config, at(0), |_, _| false).is_empty());
        assert_eq!(conditions(at_limit(), &config, at(0), |_, _| true).len(), 1);
    }
}
