//! WebSub, and PubSubHubbub 0.3 and 0.4 before it: subscriptions of Smart Feeds, from both sides.
//!
//! | module | what | the texts |
//! |---|---|---|
//! | [`form`] | what is posted to a hub, parameter by parameter | WebSub 5.1 |
//! | [`request`] | what a subscriber asks of a hub | WebSub 5.1, PubSubHubbub 0.3 section 6.1 |
//! | [`verify`] | the hub asks the subscriber whether it meant it | WebSub 5.3, 0.3 sections 6.2 and 6.3 |
//! | [`subscription`] | a subscription as it is kept | WebSub 5.1 |
//! | [`delivery`] | when one subscriber is sent what | Smart Feeds "Push Interface", WebSub 7 |
//! | [`dispatch`] | the same for all of them, with fair shares | |
//! | [`signature`] | who may be believed | WebSub 7.1, 0.3 section 7.4 |
//! | [`discover`] | which hub a topic has | WebSub 4, 0.3 section 5 |
//! | [`subscriber`] | the other side of a subscription | WebSub 5, Smart Feeds "HTTP Push" |
//! | [`check`] | whether a hub does all this | |
//! | [`follow`] | a follower that is pushed to | Smart Feeds "Updates/Synchronization via Push" |
//!
//! Which text a subscription goes by is told by `hub.verify`: PubSubHubbub 0.3 demands it, the later texts do not
//! know it.

pub mod check;
pub mod delivery;
pub mod discover;
pub mod dispatch;
pub mod follow;
pub mod form;
pub mod request;
pub mod signature;
pub mod subscriber;
pub mod subscription;
pub mod verify;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod dispatch_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod simulation;

/// Which text a subscription goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Dialect {
    /// PubSubHubbub 0.3: `hub.verify`, `hub.verify_token`, SHA-1, refreshing by the hub.
    #[serde(rename = "0.3")]
    PubSubHubbub,
    /// WebSub, and PubSubHubbub 0.4 as far as a hub can tell.
    #[serde(rename = "1")]
    WebSub,
}

/// What a request to a hub, and the hub's question, is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To begin or renew a subscription.
    Subscribe,
    /// To end it.
    Unsubscribe,
}

impl Mode {
    /// The value of `hub.mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
        }
    }
}
