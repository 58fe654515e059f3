//! `[export]`: the static tree that `towpath serve` keeps current.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{check_base_url, duration};

/// `[export]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// Where the tree is: a folder, or an address such as `s3://bucket/prefix`.
    pub to: String,
    /// The address that the tree's readers use; the server's where absent.
    pub base_url: Option<String>,
    /// The shortest time between two exports.
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

    /// Folders are relative to the configuration's.
    pub(super) fn resolve(&mut self, folder: &std::path::Path) {
        if !self.to.contains("://") {
            self.to = folder.join(PathBuf::from(&self.to)).display().to_string();
        }
    }
}
