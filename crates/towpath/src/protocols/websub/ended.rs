//! Subscriptions that end with their feed.

use std::sync::Arc;

use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_proto::push::websub::verify::denial;

use crate::engine::{Engine, Feed};
use crate::protocols::websub::request::removal_reason;
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::topic::Topic;
use crate::protocols::websub::verifier::notify_denial;

/// Has the task that delivers end the subscriptions to a feed that was removed.
pub(crate) fn on_removed(engine: &Engine, feed: &Arc<Feed>) {
    let hub = HubState::of(engine);
    if hub.delivers() {
        hub.removed.lock().push(feed.clone());
        hub.wake.notify_one();
    }
}

/// Ends the subscriptions to feeds that were removed, and tells the subscribers.
pub(super) fn end_removed(engine: &Arc<Engine>) {
    let hub = HubState::of(engine);
    let removed = std::mem::take(&mut *hub.removed.lock());
    for feed in removed {
        for (id, subscriber) in hub.subscribers_of(&feed) {
            let subscription = &subscriber.subscription;
            tracing::info!(
                callback = subscription.callback,
                topic = subscription.topic,
                "a subscription ended with its feed"
            );
            deny(engine, subscription);
            hub.end(id);
        }
    }
}

/// WebSub 5.2: "If (and when) the subscription is denied, the hub MUST inform the subscriber".
pub(super) fn deny(engine: &Arc<Engine>, subscription: &HubSubscription) {
    let reason = removal_reason(engine, Topic::feed_of_key(&subscription.topic));
    let topic = Topic::url_of_key(engine, &subscription.topic);
    notify_denial(engine, denial(&subscription.callback, &topic, &reason));
}
