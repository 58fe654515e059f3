//! `[hub]`: limits of the WebSub hub.

use schemars::JsonSchema;
use serde::Deserialize;
use towpath_proto::push::websub::dispatch::HubLimits;
use towpath_proto::push::websub::verification_queue::VerificationLimits;

use super::problems::Problems;
use super::schema::ByteSize;
use super::sizes::bytes;

/// Limits of the WebSub hub. A host is a network address with all of its ports and names; of IPv6, a /64 network.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HubConfig {
    /// Maximum number of concurrent deliveries.
    pub connections: usize,
    /// Maximum number of concurrent deliveries to one host.
    pub host_connections: usize,
    /// Maximum number of concurrent deliveries to hosts that answer slowly, beside `connections`.
    pub slow_connections: usize,
    /// Maximum number of subscriptions.
    pub subscribers: usize,
    /// Maximum number of subscriptions to one topic.
    pub topic_subscribers: usize,
    /// Maximum number of subscriptions with callbacks on one host.
    pub host_subscribers: usize,
    /// Maximum number of subscriptions that are being verified, or wait for that.
    pub verifications: usize,
    /// Maximum number of them that one client asked for, by its address.
    pub client_verifications: usize,
    /// Maximum number of them that wait for one host.
    pub host_verifications: usize,
    /// Maximum number of requests a minute to one host that it does not confirm.
    pub host_requests: u32,
    /// Maximum size in bytes of a delivery's body. Larger items are not pushed; the next delivery's previous cursor
    /// shows the gap, and subscribers pull.
    #[serde(deserialize_with = "bytes")]
    #[schemars(with = "ByteSize")]
    pub push_bytes: usize,
}

impl Default for HubConfig {
    fn default() -> Self {
        let (limits, verifying) = (HubLimits::default(), VerificationLimits::default());
        Self {
            connections: limits.connections,
            host_connections: limits.host_connections,
            slow_connections: limits.slow_connections,
            subscribers: limits.subscribers,
            topic_subscribers: limits.topic_subscribers,
            host_subscribers: limits.host_subscribers,
            verifications: verifying.pending,
            client_verifications: verifying.requester_pending,
            host_verifications: verifying.address_pending,
            host_requests: verifying.address_requests,
            push_bytes: 1 << 20,
        }
    }
}

impl HubConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        for (key, value) in [
            ("connections", self.connections),
            ("host_connections", self.host_connections),
            ("slow_connections", self.slow_connections),
            ("verifications", self.verifications),
            ("client_verifications", self.client_verifications),
            ("host_verifications", self.host_verifications),
        ] {
            problems.ensure(value > 0, key, format!("{key} must be at least 1"));
        }
        problems.ensure(self.host_requests >= 2, "host_requests", "host_requests must be at least 2");
        problems.ensure(self.push_bytes >= 1000, "push_bytes", "push_bytes is below 1000");
    }
}

impl From<HubConfig> for HubLimits {
    fn from(config: HubConfig) -> Self {
        Self {
            connections: config.connections,
            host_connections: config.host_connections,
            slow_connections: config.slow_connections,
            subscribers: config.subscribers,
            topic_subscribers: config.topic_subscribers,
            host_subscribers: config.host_subscribers,
        }
    }
}

impl From<HubConfig> for VerificationLimits {
    fn from(config: HubConfig) -> Self {
        Self {
            pending: config.verifications,
            requester_pending: config.client_verifications,
            address_pending: config.host_verifications,
            address_requests: config.host_requests,
            ..Self::default()
        }
    }
}
