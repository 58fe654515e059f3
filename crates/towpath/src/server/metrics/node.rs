//! Metrics of the store, the disk, the certificate and the hub, looked up for each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::engine::Engine;
use crate::engine::certificate::CertificateEnd;
use crate::engine::export_health::ExportHealth;
use crate::protocols::websub::HubState;
use crate::protocols::websub::pings::PingHealth;

/// Reads what the store, the system and the hub say.
pub(super) struct NodeCollector(pub(super) Arc<Engine>);

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCollector")
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(engine) = self;
        let mut gauge = |name: &str, help: &str, value: Option<i64>| match value {
            Some(value) => ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?),
            None => Ok(()),
        };
        let free = engine.free_disk().map(signed);
        gauge("disk_free_bytes", "Free space on the disk of the data folder", free)?;
        let end = engine.extensions.get::<Arc<CertificateEnd>>().and_then(|end| end.get());
        let help = "End of the server's certificate since 1970 in seconds";
        gauge("certificate_expiry_timestamp_seconds", help, end.map(|end| end.as_second()))?;
        // Zero without any, so that rules and dashboards have a series from the start.
        let (failing, total) = HubState::of(engine).counts().unwrap_or_default();
        gauge("hub_subscribers", "Subscribers at the hub that this node delivers to", Some(counted(total)))?;
        let help = "Subscribers at the hub behind a failed delivery, which is repeated";
        gauge("hub_subscribers_failing", help, Some(counted(failing)))?;
        let (failing, total) = PingHealth::of(engine).counts().unwrap_or_default();
        gauge("other_hubs", "Hubs of others that this node tells of changes", Some(counted(total)))?;
        let help = "Hubs of others that took no ping the last time";
        gauge("other_hubs_failing", help, Some(counted(failing)))?;
        let (failing, _) = ExportHealth::of(engine).counts().unwrap_or_default();
        let help = "Static trees whose last export from this node failed, or left feeds out";
        gauge("exports_failing", help, Some(counted(failing)))?;
        let stats = engine.store.stats();
        gauge("store_bytes", "Size of the store on disk", stats.map(|stats| signed(stats.bytes)))?;
        let Some(stats) = stats else { return Ok(()) };
        for (name, help, value) in [
            ("store_commits", "Groups of requests that were written, each with one sync", stats.groups),
            ("store_commit_requests", "Appends and writes in these groups", stats.requests),
            ("store_commit_errors", "Groups that could not be written", stats.errors),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let seconds = ConstCounter::new(stats.commit_time.as_secs_f64());
        let help = "Time of writing and syncing groups in seconds";
        seconds.encode(encoder.encode_descriptor("store_commit_seconds", help, None, MetricType::Counter)?)
    }
}

fn counted(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
