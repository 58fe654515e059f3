//! `[export]`: the static tree that `towpath serve` keeps up to date.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::check::{check_base_url, check_hubs};
use super::durations::duration;
use super::problems::Problems;

/// A static tree of every feed, which the server keeps up to date. Without this table there is none.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// Destination: a folder, or a URL such as `s3://bucket/prefix`.
    #[schemars(example = "s3://bucket/prefix")]
    pub to: String,
    /// Public URL of the tree.
    #[schemars(example = "https://static.example.com", extend("x-default" = "the server's"))]
    pub base_url: Option<String>,
    /// Minimum time between two exports.
    #[serde(default = "ten_seconds", deserialize_with = "duration")]
    pub every: Duration,
    /// URLs of WebSub hubs that the tree's Atom, RSS and JSON Feed documents name, and that are told of its changes. A tree
    /// has no hub of its own.
    #[schemars(example = ["https://hub.example/"], extend("x-default" = "those of each feed"))]
    pub hubs: Option<Vec<String>>,
}

/// Returns the pause between two updates of a static tree, unless the configuration says otherwise.
pub fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl ExportConfig {
    pub(super) fn check(&mut self, problems: &mut Problems) {
        problems.ensure(!self.to.is_empty(), "to", "to is empty");
        if let Some(base) = &mut self.base_url {
            problems.check("base_url", check_base_url(base));
        }
        problems.check("hubs", check_hubs(self.hubs.as_deref().unwrap_or_default()));
    }

    /// Resolves a relative folder against the configuration's folder.
    pub(super) fn resolve(&mut self, folder: &std::path::Path) {
        // Object storage is addressed by URL, which is never relative.
        if !self.to.contains("://") {
            self.to = folder.join(PathBuf::from(&self.to)).display().to_string();
        }
    }
}
