//! Limits of a hub.

/// Limits of a hub. A host is a network address with all of its ports and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLimits {
    /// Maximum concurrent deliveries.
    pub connections: usize,
    /// Maximum concurrent deliveries to a single host.
    pub host_connections: usize,
    /// Maximum concurrent deliveries to slow hosts, beside `connections`.
    pub slow_connections: usize,
    /// Maximum subscriptions.
    pub subscribers: usize,
    /// Maximum subscriptions of a topic.
    pub topic_subscribers: usize,
    /// Maximum subscriptions with callbacks on the same host.
    pub host_subscribers: usize,
}

impl Default for HubLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            host_connections: 64,
            slow_connections: 128,
            subscribers: 1_000_000,
            topic_subscribers: 100_000,
            host_subscribers: 10_000,
        }
    }
}

/// Error: a limit of subscriptions is reached. The hub's decision: 5xx, or denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HubFull {
    /// Limit of the hub.
    #[error("the hub has reached its limit of {0} subscriptions ([hub] subscribers)")]
    Hub(usize),
    /// Limit of the topic.
    #[error("the topic has reached its limit of {0} subscribers ([hub] topic_subscribers)")]
    Topic(usize),
    /// Limit of the callback's host.
    #[error("the callback's address has reached its limit of {0} subscriptions ([hub] host_subscribers)")]
    Host(usize),
}
