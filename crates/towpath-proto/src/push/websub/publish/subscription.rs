//! Subscriptions in their stored form (WebSub 5.1: "unique key is the tuple (Topic URL, Subscriber Callback
//! URL)").

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::address_block::AddressBlock;
use crate::push::websub::wire::request::{SubscriptionRequest, VerifyMode};
use crate::push::websub::wire::{Dialect, Mode};

/// Maximum size of a stored subscription, in bytes.
pub const MAX_KEPT: usize = 1000;

/// A verified subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubSubscription {
    // Keys have one letter each: a hub may hold a million of these rows.
    /// Key of the topic, in the publisher's own short form.
    // One letter for each key: a hub may hold a million of these rows.
    #[serde(rename = "t")]
    pub topic: Box<str>,
    /// URL that deliveries are posted to.
    #[serde(rename = "c")]
    pub callback: Box<str>,
    /// Key that deliveries are signed with.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Box<str>>,
    /// Protocol version of the subscription.
    #[serde(rename = "d")]
    pub dialect: Dialect,
    /// Token that a PubSubHubbub 0.3 subscriber expects to be echoed.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub verify_token: Option<Box<str>>,
    /// End of the lease, in seconds since the Unix epoch.
    #[serde(rename = "e")]
    pub ends: i64,
    /// Length of the lease, in seconds.
    #[serde(rename = "l")]
    pub lease: u32,
    /// Reader whose access rights apply, for a topic that is not public.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub reader: Option<Box<str>>,
    /// Address that confirmed the subscription, unless the callback names it.
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Box<str>>,
}

/// Error: a subscription would be larger than [`MAX_KEPT`]. The subscriber's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("callback, secret and token together are longer than a subscription may be")]
pub struct SubscriptionTooLarge;

impl HubSubscription {
    /// Creates the subscription of a verified request.
    ///
    /// # Errors
    ///
    /// [`SubscriptionTooLarge`].
    pub fn new(
        request: &SubscriptionRequest,
        topic: &str,
        lease: Duration,
        ends: Timestamp,
        reader: Option<&str>,
    ) -> Result<Self, SubscriptionTooLarge> {
        // Boxed strings have no spare capacity: a hub holds many subscriptions.
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
            address: None,
        };
        if made.to_bytes().len() > MAX_KEPT { Err(SubscriptionTooLarge) } else { Ok(made) }
    }

    /// Returns the unique id of a subscription: a digest of topic and callback.
    pub fn id(topic: &str, callback: &str) -> u128 {
        let mut hasher = Sha256::new();
        // The length keeps the boundary: without it, moving letters from topic to callback gives an equal
        // digest.
        hasher.update((topic.len() as u64).to_be_bytes());
        hasher.update(topic);
        hasher.update(callback);
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize()[..16]);
        u128::from_be_bytes(id)
    }

    /// Returns the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A struct of strings and numbers always serializes.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses the stored form; `None` if the bytes are not a subscription.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Returns the end of the lease.
    pub fn end(&self) -> Timestamp {
        Timestamp::from_second(self.ends).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns the time before the end to verify again: "Before a subscription expires … Hubs MUST recheck with
    /// subscribers" (0.3 section 6.3). Subscribers of later versions renew by themselves.
    pub fn refresh_before(&self) -> Option<Duration> {
        // A quarter of the lease leaves time for retries.
        let before = Duration::from_secs(u64::from(self.lease / 4));
        (self.dialect == Dialect::PubSubHubbub).then_some(before)
    }

    /// Returns the request for that verification: "This request MUST match the original verification
    /// request".
    pub fn renewal(&self, topic: &str) -> SubscriptionRequest {
        SubscriptionRequest {
            mode: Mode::Subscribe,
            dialect: self.dialect,
            topic: topic.to_owned(),
            callback: self.callback.to_string(),
            lease_seconds: Some(u64::from(self.lease)),
            secret: self.secret.as_deref().map(str::to_owned),
            verify: VerifyMode::Async,
            verify_token: self.verify_token.as_deref().map(str::to_owned),
        }
    }

    /// Notes the address that confirmed the subscription.
    #[must_use]
    pub fn confirmed_by(self, address: Option<AddressBlock>) -> Self {
        // An address in the callback needs no second copy in each row.
        let address = address.filter(|_| AddressBlock::of_url(&self.callback).is_none());
        Self { address: address.map(|address| address.to_string().into()), ..self }
    }

    /// Returns the callback's host and port: the key of circuit breakers.
    pub fn host(&self) -> String {
        host_of(&self.callback)
    }

    /// Returns the callback's address, as far as it is known: the key of limits.
    pub fn address(&self) -> String {
        self.address.as_deref().map_or_else(|| address_of(&self.callback), str::to_owned)
    }
}

/// Returns the host and port of a URL.
pub fn host_of(url: &str) -> String {
    let url = url::Url::parse(url).ok();
    let host = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    // A stored callback is valid, so the fallback is for damaged rows only.
    host.map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
}

/// Returns the address block of a URL, or its host's name without a port.
pub fn address_of(url: &str) -> String {
    let name = || url::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    AddressBlock::of_url(url).map_or_else(|| name().unwrap_or_default(), |block| block.to_string())
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
            verify: VerifyMode::Sync,
            verify_token: Some("token".into()),
        }
    }

    fn subscription(callback: &str, secret: &str) -> Result<HubSubscription, SubscriptionTooLarge> {
        let ends = Timestamp::from_second(1_000_000).unwrap();
        HubSubscription::new(&request(callback, secret), "a m", Duration::from_secs(4000), ends, Some("x"))
    }

    #[test]
    fn what_is_kept_comes_back() {
        let made = subscription("http://s.example:81/push?é", "geheim\"").unwrap();
        assert_eq!(HubSubscription::from_bytes(&made.to_bytes()), Some(made.clone()));
        assert_eq!(made.host(), "s.example:81");
        assert_eq!(host_of("https://S.example/"), "s.example:443");
        assert_eq!(HubSubscription::from_bytes(b"{}"), None);
    }

    /// Ports, names and spellings of one address count as one host.
    #[test]
    fn limits_count_by_address() {
        let block = AddressBlock::of([203, 0, 113, 9].into());
        let named = subscription("http://s.example:81/", "s").unwrap();
        assert_eq!(named.address(), "s.example");
        let confirmed = named.confirmed_by(Some(block));
        assert_eq!(confirmed.address(), "203.0.113.9");
        assert_eq!(HubSubscription::from_bytes(&confirmed.to_bytes()), Some(confirmed));
        let literal = subscription("http://203.0.113.9:4242/", "s").unwrap().confirmed_by(Some(block));
        assert_eq!((literal.address(), literal.address), ("203.0.113.9".to_owned(), None));
    }

    #[test]
    fn none_takes_more_than_a_kilobyte() {
        let callback = format!("http://s.example/{}", "a".repeat(600));
        assert!(subscription(&callback, &"s".repeat(199)).unwrap().to_bytes().len() <= MAX_KEPT);
        assert_eq!(
            subscription(&format!("{callback}{}", "b".repeat(200)), &"s".repeat(199)),
            Err(SubscriptionTooLarge)
        );
        assert_eq!(subscription(&callback, &"\u{1}".repeat(199)), Err(SubscriptionTooLarge));
    }

    /// WebSub 1: the key is topic and callback.
    #[test]
    fn topic_and_callback_are_the_key() {
        let id = HubSubscription::id;
        assert_eq!(id("a", "b"), id("a", "b"));
        assert_ne!(id("a", "bc"), id("ab", "c"));
        assert_ne!(id("a", "b"), id("b", "a"));
    }

    /// 0.3 section 6.3: the hub asks before the end, with the original request.
    #[test]
    fn an_old_subscription_is_refreshed() {
        let made = subscription("http://s.example/", "secret").unwrap();
        assert_eq!(made.refresh_before(), Some(Duration::from_secs(1000)));
        let again = made.renewal("http://example.com/feeds/a/items?order=modified");
        let original = request("http://s.example/", "secret");
        let expected =
            SubscriptionRequest { lease_seconds: Some(4000), verify: VerifyMode::Async, ..original };
        assert_eq!(again, expected);
        let new = HubSubscription { dialect: Dialect::WebSub, ..made };
        assert_eq!(new.refresh_before(), None);
    }
}
