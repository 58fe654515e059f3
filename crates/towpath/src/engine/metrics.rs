//! Counters and gauges for `/metrics`.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use crate::engine::sinks::SinkMetrics;

/// The counters of one towpath, since it started.
pub struct Metrics {
    /// Requests answered from prebuilt documents.
    pub fast: Counter,
    /// Requests that took routing.
    pub routed: Counter,
    /// Routed requests that the request cache parked again without parsing.
    pub rearmed: Counter,
    /// Requests answered with a status of 400 or more.
    pub refused: Counter,
    /// Batches appended to the log.
    pub appends: Counter,
    /// Polls of sources that succeeded.
    pub polls_ok: Counter,
    /// Polls of sources that failed.
    pub polls_failed: Counter,
    /// DiffDelta documents minted.
    pub mints: Counter,
    /// SUP documents made.
    pub sup_documents: Counter,
    /// Feeds with updates within the longest SUP window.
    pub sup_feeds: Gauge,
    /// Deliveries of changes, by the way that they took.
    pub deliveries: DeliveryCounters,
    /// Deliveries that subscribers took.
    pub pushes_ok: Counter,
    /// Deliveries that subscribers refused, or that did not reach them.
    pub pushes_failed: Counter,
    /// Pings that hubs of others took.
    pub hub_pings_ok: Counter,
    /// Pings that hubs of others refused, or that did not reach them.
    pub hub_pings_failed: Counter,
    /// Exports that came to their end.
    pub exports_ok: Counter,
    /// Exports that did not.
    pub exports_failed: Counter,
    /// Documents that exports put.
    pub export_documents: Counter,
    /// Connections of clients that are open.
    pub connections: Gauge,
    /// Connections that were refused because of a limit.
    pub connections_refused: Counter,
    /// 1 while the store takes no writes: an earlier one failed, or the disk is full.
    pub store_failed: Gauge,
    /// 1 while less disk space is free than is reserved.
    pub disk_full: Gauge,
    /// Reads that met damaged data since the start.
    pub damaged_reads: Gauge,
    /// Feeds' documents that could not be published last time.
    pub publish_failed: Gauge,
    /// Clients that wait for a feed to move.
    pub waiters: Gauge,
    /// Roles that this node holds among those of its cluster.
    pub roles: Gauge,
    /// Roles by name: 1 for each held role.
    pub held: Family<[(&'static str, String); 1], Gauge>,
    /// Age of the replica in seconds.
    pub replica_age: Gauge,
    /// Events that operators were told of and that go on, by kind.
    pub alerts: Family<[(&'static str, String); 1], Gauge>,
    /// Messages about events, by destination and outcome.
    pub alert_messages: Family<[(&'static str, String); 2], Counter>,
    /// Counters of sinks, by name.
    pub sinks: SinkMetrics,
    registry: Registry,
}

/// Deliveries of changes to those who wait or subscribed, by kind.
// Resolved once: counting one is an addition, on whatever path.
pub struct DeliveryCounters {
    /// Long polls that were answered after an append.
    pub long_polls: Counter,
    /// Pages of changes that were sent into event streams.
    pub events: Counter,
    /// Deliveries that subscribers at the WebSub hub took.
    pub websub: Counter,
    /// Notifications that were sent over XMPP.
    pub xmpp: Counter,
}

impl DeliveryCounters {
    fn registered(registry: &mut Registry) -> Self {
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        registry.register("deliveries", "Deliveries of changes by kind", family.clone());
        let kind = |kind| family.get_or_create_owned(&[("kind", kind)]);
        Self {
            long_polls: kind("long_poll"),
            events: kind("events"),
            websub: kind("websub"),
            xmpp: kind("xmpp"),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        // Names are what dashboards query: a changed one is a breaking change.
        let mut all = Registry::with_prefix("towpath");
        // Fields are in the order of registration, which is the order of the output.
        Self {
            waiters: gauge(&mut all, "waiters", "Clients that wait for a feed to move"),
            sup_feeds: gauge(&mut all, "sup_feeds", "Feeds that moved within the longest SUP window"),
            store_failed: gauge(
                &mut all,
                "store_failed",
                "1 while the store takes no writes: an earlier one failed, or the disk is full",
            ),
            disk_full: gauge(&mut all, "disk_full", "1 while less disk space is free than is reserved"),
            damaged_reads: gauge(&mut all, "damaged_reads", "Reads that met damaged data"),
            publish_failed: gauge(
                &mut all,
                "publish_failed",
                "Publishing work that failed last time, such as a feed's documents",
            ),
            connections: gauge(&mut all, "connections", "Connections of clients that are open"),
            held: registered(&mut all, "role_held", "Whether this node holds a role"),
            roles: gauge(&mut all, "roles", "Roles that this node holds in its cluster"),
            replica_age: gauge(
                &mut all,
                "replica_age_seconds",
                "How old what is read here may be; 0 where it is current",
            ),
            alerts: registered(&mut all, "alerts", "Events that operators were told of and that go on"),
            alert_messages: registered(&mut all, "alert_messages", "Attempts to tell of events"),
            sinks: SinkMetrics::registered(&mut all),
            deliveries: DeliveryCounters::registered(&mut all),
            fast: counter(&mut all, "requests_fast", "Requests answered from prebuilt documents"),
            routed: counter(&mut all, "requests_routed", "Requests that took routing"),
            rearmed: counter(
                &mut all,
                "requests_rearmed",
                "Requests that were known, and waited as others did",
            ),
            refused: counter(&mut all, "requests_refused", "Requests answered with a status of 400 or more"),
            appends: counter(&mut all, "appends", "Batches appended to the log"),
            polls_ok: counter(&mut all, "polls_ok", "Polls of sources that succeeded"),
            polls_failed: counter(&mut all, "polls_failed", "Polls of sources that failed"),
            mints: counter(&mut all, "diffdelta_mints", "DiffDelta documents minted"),
            sup_documents: counter(&mut all, "sup_documents", "SUP documents made"),
            pushes_ok: counter(&mut all, "pushes_ok", "Deliveries that subscribers took"),
            pushes_failed: counter(&mut all, "pushes_failed", "Deliveries that failed"),
            hub_pings_ok: counter(&mut all, "hub_pings_ok", "Pings that hubs of others took"),
            hub_pings_failed: counter(&mut all, "hub_pings_failed", "Pings to hubs of others that failed"),
            exports_ok: counter(&mut all, "exports_ok", "Exports that came to their end"),
            exports_failed: counter(&mut all, "exports_failed", "Exports that failed"),
            export_documents: counter(&mut all, "export_documents", "Documents that exports put"),
            connections_refused: counter(
                &mut all,
                "connections_refused",
                "Connections refused because of a limit",
            ),
            registry: all,
        }
    }
}

/// Registers a metric of its type's default value.
fn registered<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    registered(registry, name, help)
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    registered(registry, name, help)
}

impl Metrics {
    /// All counters in the OpenMetrics text format, without its end mark.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &self.registry);
        text
    }
}
