//! The health of a source: its last failure and its last success (section 5).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::diffdelta::wire::{FetchStatus, StatusError};

/// The outcome of a source's last fetches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHealth {
    /// Failure of the last fetch; cleared by the next success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    /// True if the source is no longer fetched.
    #[serde(default)]
    pub disabled: bool,
    /// Time of the last successful fetch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ok_at: Option<Timestamp>,
}

impl SourceHealth {
    /// Records a successful fetch.
    pub fn succeeded(&mut self, now: Timestamp) {
        (self.error, self.disabled, self.last_ok_at) = (None, false, Some(now));
    }

    /// Records a failed fetch. `code` is one of `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR` and the like.
    pub fn failed(&mut self, code: impl Into<String>, http_status: Option<u16>) {
        // The schema allows 100 to 599 only; servers send other numbers.
        let http_status = http_status.filter(|s| (100..600).contains(s));
        self.error = Some(StatusError { code: code.into(), http_status });
    }

    /// Returns the status (section 5). A source is in error until its first successful fetch.
    pub fn status(&self) -> FetchStatus {
        match (self.disabled, &self.error, self.last_ok_at) {
            (true, ..) => FetchStatus::Disabled,
            (false, Some(_), _) | (false, None, None) => FetchStatus::Error,
            (false, None, Some(_)) => FetchStatus::Ok,
        }
    }
}
