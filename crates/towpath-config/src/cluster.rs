//! `[cluster]`: the cluster that a node belongs to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::check::SECOND;
use super::durations::{duration, one_day};
use super::problems::Problems;
use super::schema::ByteSize;
use super::sizes::some_bytes;

/// The cluster that a node belongs to, beside its address in `[server] cluster`. Equal on every node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// Highest feature level to which the nodes raise the cluster. Nodes of an earlier version cannot join after a raise,
    /// so a lower level keeps the way back open for a while after an upgrade.
    #[schemars(example = 1, extend("x-default" = "the highest that all nodes support"))]
    pub max_level: Option<u8>,
    /// Snapshots of the nodes' replicas, from which new nodes begin. Without them the log keeps every message.
    pub snapshots: Option<ClusterSnapshotsConfig>,
}

/// Snapshots of the nodes' replicas, from which new nodes begin. The log then loses messages that they cover.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSnapshotsConfig {
    /// Place of the snapshots, the same for every node: a URL such as `s3://bucket/prefix`, or a shared folder.
    #[schemars(example = "s3://bucket/prefix")]
    pub to: String,
    /// Minimum time between two snapshots.
    #[serde(default = "six_hours", deserialize_with = "duration")]
    pub every: Duration,
    /// Time for which the log keeps messages that a snapshot covers. A node that was away for longer begins from a
    /// snapshot.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub keep: Duration,
    /// Size of the log in bytes that is aimed at. A longer log gets snapshots earlier, and keeps messages for less than
    /// `keep`, but never loses one that a running node still needs.
    #[serde(default, deserialize_with = "some_bytes")]
    #[schemars(with = "Option<ByteSize>", example = "10 GiB", extend("x-default" = "no limit"))]
    pub max_stream_bytes: Option<u64>,
}

fn six_hours() -> Duration {
    Duration::from_secs(6 * 3600)
}

impl ClusterConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        problems.ensure(self.max_level != Some(0), "max_level", "max_level must be at least 1");
        let Some(snapshots) = &self.snapshots else { return };
        problems.ensure(!snapshots.to.is_empty(), "snapshots", "snapshots: to is empty");
        let message = "snapshots: every is below one second";
        problems.ensure(snapshots.every >= SECOND, "snapshots", message);
    }

    /// Resolves a relative folder against the configuration's folder.
    pub(super) fn resolve(&mut self, folder: &Path) {
        // Object storage is addressed by URL, which is never relative.
        if let Some(snapshots) = self.snapshots.as_mut().filter(|snapshots| !snapshots.to.contains("://")) {
            snapshots.to = folder.join(PathBuf::from(&snapshots.to)).display().to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn snapshots_have_a_place_and_intervals() {
        let parse = |text: &str| Config::parse(text, Path::new("/etc/towpath/towpath.toml"));
        assert_eq!(parse("").unwrap().cluster, ClusterConfig::default());
        let text = "[cluster]\nmax_level = 1\n[cluster.snapshots]\nto = \"shared\"\nkeep = \"2d\"\nmax_stream_bytes = \"1 GiB\"\n";
        let cluster = parse(text).unwrap().cluster;
        let snapshots = cluster.snapshots.unwrap();
        assert_eq!((cluster.max_level, snapshots.to.as_str()), (Some(1), "/etc/towpath/shared"));
        assert_eq!((snapshots.every, snapshots.keep), (six_hours(), one_day() * 2));
        assert_eq!(snapshots.max_stream_bytes, Some(1 << 30));
        let storage = parse("[cluster.snapshots]\nto = \"s3://b/p\"\n").unwrap().cluster.snapshots.unwrap();
        assert_eq!((storage.to.as_str(), storage.max_stream_bytes), ("s3://b/p", None));
        for (bad, reason) in [
            ("[cluster]\nmax_level = 0\n", "max_level must be at least 1"),
            ("[cluster.snapshots]\nevery = \"1d\"\n", "to"),
            ("[cluster.snapshots]\nto = \"\"\n", "to is empty"),
            ("[cluster.snapshots]\nto = \"x\"\nevery = 0\n", "every is below one second"),
            ("[cluster.snapshots]\nto = \"x\"\nkeep = \"soon\"\n", "keep"),
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{bad}: {error}");
        }
    }
}
