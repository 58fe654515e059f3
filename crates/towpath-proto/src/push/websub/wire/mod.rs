//! Messages between hub and subscriber, and discovery of the hub.

pub mod discover;
pub mod form;
pub mod request;
pub mod signature;
mod topic_url;

pub use self::topic_url::decode_unreserved;

/// Protocol version that a subscription uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Dialect {
    /// PubSubHubbub 0.3: `hub.verify`, `hub.verify_token`, SHA-1, refreshing by the hub.
    #[serde(rename = "0.3")]
    PubSubHubbub,
    /// WebSub, and PubSubHubbub 0.4 as far as a hub can tell.
    #[serde(rename = "1")]
    WebSub,
}

/// Action that a request to a hub, and its verification, is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Creates or renews a subscription.
    Subscribe,
    /// Ends a subscription.
    Unsubscribe,
}

impl Mode {
    /// Value of `hub.mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
        }
    }
}
