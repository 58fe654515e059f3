//! `[server.access_log]`: log lines of requests.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::durations::duration;
use super::problems::Problems;

/// Log lines of requests. Without this table there are none.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLogConfig {
    /// Share of the requests that are logged, from 0 to 1.
    #[schemars(example = 0.01)]
    pub sample: f64,
    /// Time to the head of a response from which a request is logged whatever the sample, as are those that fail here
    /// (a status of 500 or more). Long polls are exempt.
    #[serde(deserialize_with = "duration")]
    pub slow: Duration,
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self { sample: 1.0, slow: Duration::from_secs(1) }
    }
}

impl AccessLogConfig {
    /// Returns true if a request is in the sample, by a random number from 0 to 1.
    pub fn takes(&self, random: f64) -> bool {
        random < self.sample
    }

    pub(super) fn check(&self, problems: &mut Problems) {
        let is_share = (0.0..=1.0).contains(&self.sample);
        problems.ensure(is_share, "access_log.sample", "access_log.sample is not between 0 and 1");
    }
}
