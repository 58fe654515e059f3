//! `[export]`: the static tree that `towpath serve` keeps up to date.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::check::check_base_url;
use super::durations::duration;

/// `[export]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// Destination: a folder, or a URL such as `s3://bucket/prefix`.
    pub to: String,
    /// Public URL of the tree; default: the server's.
    pub base_url: Option<String>,
    /// Minimum time between two exports.
    #[serde(default = "ten_seconds", deserialize_with = "duration")]
    pub every: Duration,
}

pub(crate) fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl ExportConfig {
    pub(super) fn check(&mut self) -> Result<(), String> {
        if self.to.is_empty() {
            return Err("to is empty".into());
        }
        match &mut self.base_url {
            Some(base) => check_base_url(base).map_err(|e| format!("base_url: {e}")),
            None => Ok(()),
        }
    }

    /// Resolves a relative folder against the configuration's folder.
    pub(super) fn resolve(&mut self, folder: &std::path::Path) {
        // Object storage is addressed by URL, which is never relative.
        if !self.to.contains("://") {
            self.to = folder.join(PathBuf::from(&self.to)).display().to_string();
        }
    }
}
