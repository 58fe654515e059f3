//! Nodes that go with their feed.

use super::{Component, PendingReply, StoreRequest};
use crate::feed_id::FeedId;
use crate::push::xmpp::wire::pubsub;

impl Component {
    /// Ends the subscriptions to a feed that is not served any more, and tells the subscribers (XEP-0060, 8.4.2).
    ///
    /// Does nothing without a stream, when nobody can be told. Call it again after
    /// [`ComponentEvent::Connected`](super::ComponentEvent::Connected).
    pub fn handle_removed(&mut self, feed: &FeedId, reason: &str) {
        if !self.connection.is_ready() {
            return;
        }
        for subscription in self.fanout.of_feed(feed) {
            self.fanout.remove(&subscription.jid, &subscription.node);
            pubsub::deletion(&subscription.node, reason)
                .with("from", subscription.from.as_str())
                .with("to", subscription.jid.as_str())
                .write(&mut self.output, "");
            let request = StoreRequest::Forget(subscription.clone());
            self.send_store_request(request, PendingReply::Forget(None, subscription));
        }
    }
}
