//! Metrics of the log of a cluster.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use towpath_store::LogStatus;

/// State of the log, as it was when the metrics were asked for.
#[derive(Debug)]
pub(super) struct ClusterCollector {
    /// `None` for a single server.
    pub(super) log: Option<LogStatus>,
    /// True if this node keeps the log, and failed to.
    pub(super) is_failing: bool,
}

impl Collector for ClusterCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(log) = &self.log else { return Ok(()) };
        let snapshot = log.snapshot;
        for (name, help, value) in [
            ("log_bytes", "Size of the cluster's log in bytes", Some(log.bytes)),
            ("log_messages", "Messages of the cluster's log", Some(log.messages)),
            ("log_first_sequence", "Oldest message that the cluster's log has", Some(log.first)),
            ("log_last_sequence", "Newest message of the cluster's log", Some(log.last)),
            ("log_applied_sequence", "Last message that this node has applied", Some(log.applied)),
            ("level", "Feature level of the cluster", Some(log.level.into())),
            (
                "supported_level",
                "Highest feature level that this node supports",
                Some(log.supported_level.into()),
            ),
            (
                "snapshot_sequence",
                "Last message that the last snapshot covers",
                snapshot.map(|made| made.sequence),
            ),
            (
                "snapshot_timestamp_seconds",
                "Time of the last snapshot since 1970 in seconds",
                snapshot.and_then(|made| made.made.as_second().try_into().ok()),
            ),
            (
                "upkeep_failed",
                "1 where this node keeps the log and the last attempt failed",
                Some(self.is_failing.into()),
            ),
        ] {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let name = format!("cluster_{name}");
            gauge.encode(encoder.encode_descriptor(&name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
