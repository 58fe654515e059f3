//! States of the sinks that the server keeps running, for pages, metrics and commands.
//!
//! The task of a sink, in `crate::sink`, changes them. In a cluster another node may run it; then its stored record is
//! what this node shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use towpath_config::SinkConfig;
use towpath_proto::diffdelta::discovery::SinkCounts;

/// Activity of a sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SinkState {
    /// No node runs it yet.
    #[default]
    Idle,
    /// The destination is being opened, or the first changes are on their way.
    Starting,
    /// The last batch was taken.
    Running,
    /// The destination takes nothing now; the same batch is tried again.
    Waiting,
    /// An operator paused it, or it stopped by itself and has to be resumed.
    Paused,
}

/// Time in which a destination takes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SinkOutage {
    /// Failure, its reason, and what to do.
    pub message: String,
    /// Time of the first failure in a row.
    pub since: Timestamp,
    /// True if the destination takes nothing; false if the source, or the server itself, is in the way.
    #[serde(default)]
    pub of_destination: bool,
    /// Failed attempts in a row.
    pub attempts: u32,
    /// Time of the next attempt, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
}

/// Order of an operator, or of the server itself, about a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkControl {
    /// True while nothing is to be delivered.
    pub paused: bool,
    /// Reason why the server paused it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Number of orders to send dead letters again.
    #[serde(default)]
    pub resends: u64,
}

/// Record of a sink: the part that is stored for other nodes and the next start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkRecord {
    /// Activity.
    pub state: SinkState,
    /// Failure that the sink waits for, or was stopped by.
    pub error: Option<SinkOutage>,
    /// Positions of the last changes that the destination took, by feed.
    pub positions: BTreeMap<String, String>,
    /// Number of changes that the destination took since the process started.
    pub delivered: u64,
    /// Number of items that the destination refused and that are kept aside.
    pub dead_letters: u64,
    /// Size of those items in the store, in bytes.
    #[serde(default)]
    pub dead_letter_bytes: u64,
    /// Time of the last batch that was taken.
    pub last_delivery: Option<Timestamp>,
    /// True once all feeds that were there at the first start are known to the destination: later ones are new to it.
    #[serde(default)]
    pub has_begun: bool,
    /// Number of the last order to send dead letters again that was carried out.
    #[serde(default)]
    pub resends: u64,
}

/// Counters of all sinks, by name.
#[derive(Debug, Clone, Default)]
pub struct SinkMetrics {
    /// 1 while the destination takes batches.
    pub up: Family<[(&'static str, String); 1], Gauge>,
    /// Changes that are not delivered yet.
    pub lag: Family<[(&'static str, String); 1], Gauge>,
    /// Age of the oldest change that is not delivered yet, in seconds.
    pub lag_seconds: Family<[(&'static str, String); 1], Gauge>,
    /// Changes that were delivered.
    pub delivered: Family<[(&'static str, String); 1], Counter>,
    /// Attempts that failed.
    pub failed: Family<[(&'static str, String); 1], Counter>,
    /// Items that are kept aside.
    pub dead_letters: Family<[(&'static str, String); 1], Gauge>,
    /// 1 while an operator, or the server itself, has the sink paused.
    pub paused: Family<[(&'static str, String); 1], Gauge>,
    /// Time of the last batch that was taken, in seconds since 1970.
    pub last_delivery: Family<[(&'static str, String); 1], Gauge>,
}

impl SinkMetrics {
    /// Registers the counters.
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("sink_up", "1 while the destination of a sink takes batches", metrics.up.clone());
        registry.register("sink_lag", "Changes that a sink has not delivered yet", metrics.lag.clone());
        registry.register(
            "sink_lag_seconds",
            "Age of the oldest change that a sink has not delivered yet",
            metrics.lag_seconds.clone(),
        );
        registry.register("sink_delivered", "Changes that a sink has delivered", metrics.delivered.clone());
        registry.register("sink_failed", "Attempts of a sink that failed", metrics.failed.clone());
        let letters = metrics.dead_letters.clone();
        registry.register(
            "sink_dead_letters",
            "Items that a sink's destination refused, kept aside",
            letters,
        );
        registry.register("sink_paused", "1 while a sink is paused", metrics.paused.clone());
        registry.register(
            "sink_last_delivery_timestamp_seconds",
            "Time of the last batch that a sink's destination took",
            metrics.last_delivery.clone(),
        );
        metrics
    }

    /// Sets the gauges of a sink that this node runs.
    fn show(&self, name: &str, record: &SinkRecord) {
        let label = [("sink", name.to_owned())];
        // A sink that starts counts as up, or each restart would set off alerts on `sink_up`.
        let is_up =
            matches!(record.state, SinkState::Running | SinkState::Starting) && record.error.is_none();
        self.up.get_or_create_owned(&label).set(i64::from(is_up));
        let letters = i64::try_from(record.dead_letters).unwrap_or(i64::MAX);
        self.dead_letters.get_or_create_owned(&label).set(letters);
        let is_paused = record.state == SinkState::Paused;
        self.paused.get_or_create_owned(&label).set(i64::from(is_paused));
        if let Some(time) = record.last_delivery {
            self.last_delivery.get_or_create_owned(&label).set(time.as_second());
        }
    }

    /// Removes the gauges of a sink that another node runs now. Left as they were, they would tell of a failure for ever.
    fn hide(&self, name: &str) {
        let label = [("sink", name.to_owned())];
        for gauges in
            [&self.up, &self.lag, &self.lag_seconds, &self.dead_letters, &self.paused, &self.last_delivery]
        {
            gauges.remove(&label);
        }
    }
}

/// The sinks of the configuration. A reload replaces them.
pub struct Sinks {
    current: ArcSwap<Vec<Arc<SinkEntry>>>,
    /// Changes with each replacement.
    replaced: watch::Sender<u64>,
    metrics: SinkMetrics,
}

/// A sink of the configuration, with its state in this process.
pub struct SinkEntry {
    /// Configuration.
    pub config: SinkConfig,
    record: Mutex<SinkRecord>,
    /// True while this node runs the sink.
    // A watch keeps the last value for a task that is busy when it changes.
    pub(super) is_here: watch::Sender<bool>,
    /// Changes with each order, so that the sink's task reads it.
    orders: watch::Sender<u64>,
    pub(super) metrics: SinkMetrics,
}

/// Names of sinks that a reload adds, changes and removes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SinkChanges {
    /// Sinks that begin.
    pub added: Vec<String>,
    /// Sinks that begin again with new settings, where they were.
    pub changed: Vec<String>,
    /// Sinks that end. Their positions stay.
    pub removed: Vec<String>,
}

impl Sinks {
    /// Makes the sinks of a configuration.
    pub(super) fn new(configs: &[SinkConfig], metrics: &SinkMetrics) -> Self {
        let entries = configs.iter().map(|config| SinkEntry::new(config, metrics)).collect();
        let (current, replaced) = (ArcSwap::from_pointee(entries), watch::Sender::new(0));
        Self { current, replaced, metrics: metrics.clone() }
    }

    /// Returns all sinks, in the order of the configuration.
    pub fn all(&self) -> Arc<Vec<Arc<SinkEntry>>> {
        self.current.load_full()
    }

    /// Returns the sink of a name.
    pub fn get(&self, name: &str) -> Option<Arc<SinkEntry>> {
        self.current.load().iter().find(|sink| sink.config.name == name).cloned()
    }

    /// Returns a receiver that changes with each replacement.
    pub(crate) fn replacements(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// Replaces the sinks by those of another configuration. Unchanged ones go on undisturbed.
    pub(crate) fn replace(&self, configs: &[SinkConfig]) -> SinkChanges {
        let (old, mut changes) = (self.all(), SinkChanges::default());
        let mut entries = Vec::with_capacity(configs.len());
        for config in configs {
            let known = old.iter().find(|sink| sink.config.name == config.name);
            entries.push(match known {
                Some(known) if known.config == *config => known.clone(),
                Some(known) => {
                    changes.changed.push(config.name.clone());
                    let entry = SinkEntry::new(config, &self.metrics);
                    // The counter of the metrics goes on, and what is added to it is a difference to this. Nobody else
                    // has the new entry yet, so holding both locks is safe.
                    entry.record.lock().delivered = known.record.lock().delivered;
                    entry
                }
                None => {
                    changes.added.push(config.name.clone());
                    SinkEntry::new(config, &self.metrics)
                }
            });
        }
        let is_removed =
            |sink: &&Arc<SinkEntry>| !entries.iter().any(|new| new.config.name == sink.config.name);
        changes.removed = old.iter().filter(is_removed).map(|sink| sink.config.name.clone()).collect();
        self.current.store(Arc::new(entries));
        // A reload of other keys must not wake the supervisor.
        if changes != SinkChanges::default() {
            self.replaced.send_modify(|number| *number += 1);
        }
        changes
    }

    /// Counts the sinks that this node runs; `None` if the configuration has none.
    pub fn counts(&self) -> Option<SinkCounts> {
        let mut counts = SinkCounts::default();
        let sinks = self.current.load();
        for sink in sinks.iter().filter(|sink| *sink.is_here.borrow()) {
            let record = sink.record.lock();
            counts.total += 1;
            counts.failing += usize::from(record.error.is_some());
            counts.paused += usize::from(record.state == SinkState::Paused);
            counts.dead_letters += record.dead_letters;
        }
        (!sinks.is_empty()).then_some(counts)
    }

    /// Returns what fails, one text for each sink.
    pub fn problems(&self) -> Vec<String> {
        let problem = |sink: &Arc<SinkEntry>| {
            let record = sink.record.lock();
            let error = record.error.as_ref()?;
            Some(format!("sink {}: {}", sink.config.name, error.message))
        };
        self.current.load().iter().filter_map(problem).collect()
    }
}

impl SinkEntry {
    fn new(config: &SinkConfig, metrics: &SinkMetrics) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            record: Mutex::default(),
            is_here: watch::Sender::new(false),
            orders: watch::Sender::new(0),
            metrics: metrics.clone(),
        })
    }

    /// Returns a copy of what this process knows.
    pub fn record(&self) -> SinkRecord {
        self.record.lock().clone()
    }

    /// Changes the state, and the metrics with it.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SinkRecord)) {
        let mut record = self.record.lock();
        let before = record.delivered;
        change(&mut record);
        // Under the lock: two updates at once must not leave the gauges of the older one.
        self.metrics.show(&self.config.name, &record);
        let delivered = self.metrics.delivered.get_or_create_owned(&[("sink", self.config.name.clone())]);
        delivered.inc_by(record.delivered.saturating_sub(before));
    }

    /// Counts a failed attempt.
    pub(crate) fn count_failure(&self) {
        self.metrics.failed.get_or_create_owned(&[("sink", self.config.name.clone())]).inc();
    }

    /// Marks the sink as run by this node, or not.
    pub(crate) fn set_here(&self, is_here: bool) {
        self.is_here.send_replace(is_here);
        if !is_here {
            self.metrics.hide(&self.config.name);
        }
    }

    /// Removes the counters of a sink that left the configuration.
    pub(crate) fn forget_metrics(&self) {
        let label = [("sink", self.config.name.clone())];
        self.metrics.delivered.remove(&label);
        self.metrics.failed.remove(&label);
    }

    /// Wakes the sink's task, which then reads its orders.
    pub(crate) fn wake(&self) {
        self.orders.send_modify(|number| *number += 1);
    }

    /// Returns a receiver that changes with each order.
    pub(crate) fn orders(&self) -> watch::Receiver<u64> {
        self.orders.subscribe()
    }

    /// Returns the key of the sink's orders.
    pub(crate) fn control_key(&self) -> Vec<u8> {
        self.key("control")
    }

    /// Returns the key of the record for other nodes.
    pub(crate) fn record_key(&self) -> Vec<u8> {
        self.key("record")
    }

    /// Returns a key of the sink in the table of chains.
    pub(crate) fn key(&self, part: &str) -> Vec<u8> {
        // By name only: a sink with another address or filter goes on at its position.
        format!("sink/{}/{part}", self.config.name).into_bytes()
    }
}
