//! Requests to the hub, with the access of their senders.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use towpath_client::{CallbackError, SetupError};
use towpath_proto::push::websub::dispatch::HubFull;
use towpath_proto::push::websub::request::SubscriptionRequest;
use towpath_proto::push::websub::subscription::{HubSubscription, SubscriptionTooLarge};
use towpath_proto::push::websub::verification_queue::QueueFull;

use crate::engine::Engine;
use crate::engine::access::Access;
use crate::engine::request::gone_feed;
use crate::protocols::websub::topic::Topic;
use crate::store_error::StoreError;

/// Reason why a request is refused at once.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The callback may not be called.
    #[error("hub.callback: {0}")]
    Callback(#[from] CallbackError),
    /// The subscription is too large to store.
    #[error(transparent)]
    TooLarge(#[from] SubscriptionTooLarge),
    /// The limit of subscriptions is reached.
    #[error(transparent)]
    Full(#[from] HubFull),
    /// The limit of verifications is reached.
    #[error(transparent)]
    Busy(#[from] QueueFull),
    /// Others took the place of this verification.
    #[error("not verified: too many subscriptions are being verified")]
    Evicted,
    /// The subscriber, verified synchronously, did not confirm.
    #[error("not verified: {0}")]
    NotVerified(String),
    /// A later request for the subscription was confirmed first.
    #[error("not applied: a later request for this subscription was confirmed first")]
    Overridden,
    /// The feed was removed while the subscriber was asked.
    #[error("{0}")]
    Gone(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The HTTP client cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// Returns the reason why a feed is not there for a subscriber.
pub(super) fn removal_reason(engine: &Engine, feed: &str) -> String {
    // The reason of a private feed is for its readers, and this one may be none any more.
    match engine.removed_feed(feed).filter(|removed| removed.is_public) {
        Some(removed) => gone_feed(feed, &removed).detail,
        None => "the feed is not there for this subscriber any more".to_owned(),
    }
}

/// A request to the hub, with the access of its sender.
#[derive(Debug)]
pub struct SubscribeRequest {
    /// The parsed request.
    pub form: SubscriptionRequest,
    /// The topic.
    pub topic: Topic,
    /// Part of the feed that its sender may read.
    pub access: Access,
    /// Digest of the sender's token, for a feed that needs one.
    pub reader: Option<String>,
    /// Address of its sender; `None` for the hub's own requests.
    pub requester: Option<IpAddr>,
}

impl SubscribeRequest {
    /// Returns the subscription that the request is for.
    pub(super) fn subscription(
        &self,
        lease: Duration,
        ends: Timestamp,
    ) -> Result<HubSubscription, SubscriptionTooLarge> {
        HubSubscription::new(&self.form, &self.topic.key, lease, ends, self.reader.as_deref())
    }
}

/// Result of an accepted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscribeResult {
    /// The subscriber has confirmed: 204 (0.3 section 6.1.2).
    Verified,
    /// The subscriber will be asked: 202.
    Accepted,
}
