//! A subscription as it is kept (WebSub 5.1: "unique key is the tuple (Topic URL, Subscriber Callback URL)").

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::request::{SubscriptionRequest, Verify};
use super::{Dialect, Mode};

/// The most bytes that a subscription takes as it is kept.
pub const MAX_KEPT: usize = 1000;

/// A subscription that was verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Which of the publisher's topics, in as few letters as the publisher needs.
    #[serde(rename = "t")]
    pub topic: Box<str>,
    /// Where deliveries go.
    #[serde(rename = "c")]
    pub callback: Box<str>,
    /// What they are signed with.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Box<str>>,
    /// Which text it goes by.
    #[serde(rename = "d")]
    pub dialect: Dialect,
    /// What a PubSubHubbub 0.3 subscriber wants to hear again.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub verify_token: Option<Box<str>>,
    /// When it ends, in seconds since the Unix epoch.
    #[serde(rename = "e")]
    pub ends: i64,
    /// For how many seconds it was given.
    #[serde(rename = "l")]
    pub lease: u32,
    /// As whom its owner may read the topic, where not everybody may.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub reader: Option<Box<str>>,
}

/// A subscription takes more room than [`MAX_KEPT`]. The subscriber's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("callback, secret and token together are longer than a subscription may be")]
pub struct TooLarge;

impl Subscription {
    /// The subscription that a verified request makes.
    ///
    /// # Errors
    ///
    /// [`TooLarge`].
    pub fn new(
        request: &SubscriptionRequest,
        topic: &str,
        lease: Duration,
        ends: Timestamp,
        reader: Option<&str>,
    ) -> Result<Self, TooLarge> {
        let boxed = |text: &String| text.as_str().into();
        let made = Self {
            topic: topic.into(),
            callback: boxed(&request.callback),
            secret: request.secret.as_ref().map(boxed),
            dialect: request.dialect,
            verify_token: request.verify_token.as_ref().map(boxed),
            ends: ends.as_second(),
            lease: u32::try_from(lease.as_secs()).unwrap_or(u32::MAX),
            reader: reader.map(Into::into),
        };
        if made.to_bytes().len() > MAX_KEPT { Err(TooLarge) } else { Ok(made) }
    }

    /// What tells it from all others: the same for every request with this topic and this callback.
    pub fn id(topic: &str, callback: &str) -> u128 {
        let mut hasher = Sha256::new();
        hasher.update((topic.len() as u64).to_be_bytes());
        hasher.update(topic);
        hasher.update(callback);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize()[..16]);
        u128::from_be_bytes(id)
    }

    /// As it is kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Neither maps nor writers here that could fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What was kept; `None` where these are not the bytes of a subscription.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// When it ends.
    pub fn end(&self) -> Timestamp {
        Timestamp::from_second(self.ends).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// When to ask the subscriber whether it wants to go on: "Before a subscription expires … Hubs MUST recheck with
    /// subscribers" (0.3 section 6.3). Subscribers of the later texts ask again by themselves.
    pub fn refresh(&self) -> Option<Timestamp> {
        let before = SignedDuration::from_secs(i64::from(self.lease / 4));
        (self.dialect == Dialect::PubSubHubbub)
            .then(|| self.end().saturating_sub(before).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// The request to verify anew for that: "This request MUST match the original verification request".
    pub fn renewal(&self, topic: &str) -> SubscriptionRequest {
        SubscriptionRequest {
            mode: Mode::Subscribe,
            dialect: self.dialect,
            topic: topic.to_owned(),
            callback: self.callback.to_string(),
            lease_seconds: Some(u64::from(self.lease)),
            secret: self.secret.as_deref().map(str::to_owned),
            verify: Verify::Async,
            verify_token: self.verify_token.as_deref().map(str::to_owned),
        }
    }

    /// The host that deliveries go to, with its port: what limits and circuit breakers go by.
    pub fn host(&self) -> String {
        host_of(&self.callback)
    }
}

/// The host of an address, with its port.
pub fn host_of(url: &str) -> String {
    let url = url::Url::parse(url).ok();
    let host = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    host.map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(callback: &str, secret: &str) -> SubscriptionRequest {
        SubscriptionRequest {
            mode: Mode::Subscribe,
            dialect: Dialect::PubSubHubbub,
            topic: "http://example.com/feeds/a/items?order=modified".into(),
            callback: callback.into(),
            lease_seconds: None,
            secret: Some(secret.into()),
            verify: Verify::Sync,
            verify_token: Some("token".into()),
        }
    }

    fn subscription(callback: &str, secret: &str) -> Result<Subscription, TooLarge> {
        let ends = Timestamp::from_second(1_000_000).unwrap();
        Subscription::new(&request(callback, secret), "a m", Duration::from_secs(4000), ends, Some("x"))
    }

    #[test]
    fn what_is_kept_comes_back() {
        let made = subscription("http://s.example:81/push?é", "geheim\"").unwrap();
        assert_eq!(Subscription::from_bytes(&made.to_bytes()), Some(made.clone()));
        assert_eq!(made.host(), "s.example:81");
        assert_eq!(host_of("https://S.example/"), "s.example:443");
        assert_eq!(Subscription::from_bytes(b"{}"), None);
    }

    #[test]
    fn none_takes_more_than_a_kilobyte() {
        let callback = format!("http://s.example/{}", "a".repeat(600));
        assert!(subscription(&callback, &"s".repeat(199)).unwrap().to_bytes().len() <= MAX_KEPT);
        assert_eq!(subscription(&format!("{callback}{}", "b".repeat(200)), &"s".repeat(199)), Err(TooLarge));
        assert_eq!(subscription(&callback, &"\u{1}".repeat(199)), Err(TooLarge));
    }

    /// WebSub 1: the key is topic and callback.
    #[test]
    fn topic_and_callback_are_the_key() {
        let id = Subscription::id;
        assert_eq!(id("a", "b"), id("a", "b"));
        assert_ne!(id("a", "bc"), id("ab", "c"));
        assert_ne!(id("a", "b"), id("b", "a"));
    }

    /// 0.3 section 6.3: the hub asks before the end, with the original request.
    #[test]
    fn an_old_subscription_is_refreshed() {
        let made = subscription("http://s.example/", "secret").unwrap();
        assert_eq!(made.refresh(), Timestamp::from_second(999_000).ok());
        let again = made.renewal("http://example.com/feeds/a/items?order=modified");
        let original = request("http://s.example/", "secret");
        let expected = SubscriptionRequest { lease_seconds: Some(4000), verify: Verify::Async, ..original };
        assert_eq!(again, expected);
        let new = Subscription { dialect: Dialect::WebSub, ..made };
        assert_eq!(new.refresh(), None);
    }
}
