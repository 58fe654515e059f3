//! `[server.rate_limit]`: expensive requests of one client.

use schemars::JsonSchema;
use serde::Deserialize;

use super::problems::Problems;

/// Limits of expensive requests per client. A point is a small page that is made for the request. Pages from memory cost nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimitConfig {
    /// Points per second that a client may spend for long; 0 turns the limit off.
    pub per_second: u32,
    /// Points that a client may spend at once after a pause.
    pub burst: u32,
}

impl Default for RateLimitConfig {
    fn default() -> Self {
        // A page of 1,000 small items costs about 5 points: a follower reads 400,000 items at once, and then 20,000 a
        // second.
        Self { per_second: 100, burst: 2000 }
    }
}

impl RateLimitConfig {
    pub(super) fn check(self, problems: &mut Problems) {
        // A snapshot costs 100 points; with less, none could ever be made.
        let message = "rate_limit.burst is below 100, the cost of a snapshot";
        problems.ensure(self.per_second == 0 || self.burst >= 100, "rate_limit.burst", message);
        let message = "rate_limit.per_second is above 1000000, or burst above 1000000000";
        problems.ensure(self.per_second <= 1_000_000 && self.burst <= 1_000_000_000, "rate_limit", message);
    }
}
