//! Subscribers over XMPP as operators see them, from what the component has stored.

use std::collections::HashMap;

use towpath_proto::push::xmpp::fanout::{FanoutTopic, PushPosition};
use towpath_proto::push::xmpp::wire::node::NodeName;
use towpath_proto::smart::cursor::{self, ParsedCursor};
use towpath_proto::smart::spec::OrderBy;

use super::stored;
use crate::engine::{Engine, Feed};
use crate::protocols::smart::settings;
use crate::store_error::StoreError;

/// A subscriber to a node of a feed.
#[derive(Debug)]
pub(crate) struct XmppSubscriber {
    /// Address.
    pub(crate) jid: String,
    /// Name of the node, as subscribed to.
    pub(crate) node: String,
    /// Position up to which the node's subscribers were sent items; `None` if it is not known.
    pub(crate) position: Option<u64>,
}

/// Returns the first subscribers of a feed, and the number of all.
pub(crate) async fn of_feed(
    engine: &Engine,
    feed: &Feed,
    most: usize,
) -> Result<(Vec<XmppSubscriber>, usize), StoreError> {
    if engine.config.xmpp.is_none() {
        return Ok((Vec::new(), 0));
    }
    let kept = stored::load(engine.store.as_ref()).await?;
    let places: HashMap<FanoutTopic, PushPosition> = kept.places.into_iter().collect();
    let position = |by: OrderBy| {
        let Some(PushPosition::At { since, .. }) = places.get(&FanoutTopic { feed: feed.id().clone(), by })
        else {
            return None;
        };
        let Some(since) = since else { return Some(0) };
        match cursor::read(since, &settings(engine, feed).tag, by) {
            Some(ParsedCursor::Sequence(seq)) => Some(seq),
            _ => None,
        }
    };
    let (mut subscribers, mut total) = (Vec::new(), 0);
    for subscription in kept.subscriptions {
        let Ok(node) = NodeName::parse(&subscription.node) else { continue };
        if node.feed != *feed.id() {
            continue;
        }
        total += 1;
        if subscribers.len() < most {
            let position = position(node.order.by);
            subscribers.push(XmppSubscriber { jid: subscription.jid, node: subscription.node, position });
        }
    }
    Ok((subscribers, total))
}
