//! `[hub]`: how much is pushed at once, and to how many.

use serde::Deserialize;
use towpath_proto::push::websub::dispatch::Limits;

/// `[hub]`: pushing to subscribers.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HubConfig {
    /// Deliveries under way at the same time.
    pub connections: usize,
    /// Of these, to one host.
    pub host_connections: usize,
    /// Subscriptions in all.
    pub subscribers: usize,
    /// Subscriptions of one topic.
    pub topic_subscribers: usize,
    /// Subscriptions whose callbacks are on one host.
    pub host_subscribers: usize,
    /// The most bytes of one delivery's body. An item that is larger is not pushed: the next delivery's previous cursor
    /// shows that it is missing.
    pub push_bytes: usize,
}

impl Default for HubConfig {
    fn default() -> Self {
        let Limits { connections, host_connections, subscribers, topic_subscribers, host_subscribers } =
            Limits::default();
        let push_bytes = 1 << 20;
        Self { connections, host_connections, subscribers, topic_subscribers, host_subscribers, push_bytes }
    }
}

impl From<HubConfig> for Limits {
    fn from(config: HubConfig) -> Self {
        let HubConfig {
            connections, host_connections, subscribers, topic_subscribers, host_subscribers, ..
        } = config;
        Self { connections, host_connections, subscribers, topic_subscribers, host_subscribers }
    }
}
