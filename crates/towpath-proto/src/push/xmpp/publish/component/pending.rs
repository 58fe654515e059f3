//! Requests that wait for the store.

use super::index_walk::IndexWalk;
use crate::feed_id::FeedId;
use crate::push::xmpp::publish::fanout::{FanoutTopic, NodeSubscription, PushPosition};
use crate::push::xmpp::wire::node::NodeName;
use crate::push::xmpp::wire::rsm::RsmPlan;
use crate::push::xmpp::wire::stanza::write_attribute;
use crate::smart::query::PullQuery;

/// Addresses and id of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplyAddress {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) id: String,
}

/// Continuation of a request, once the store has responded.
#[derive(Debug)]
pub(super) enum PendingReply {
    Items(ReplyAddress, NodeName, RsmPlan),
    Index(ReplyAddress, NodeName, IndexWalk),
    Single(ReplyAddress, NodeName),
    Info(ReplyAddress, NodeName),
    List(ReplyAddress, Option<FeedId>),
    Begin(ReplyAddress, NodeName, NodeSubscription),
    Keep(ReplyAddress, NodeName, NodeSubscription, PushPosition),
    Forget(Option<ReplyAddress>, NodeSubscription),
    Read(FanoutTopic, PullQuery),
}

impl ReplyAddress {
    pub(super) fn write(&self, out: &mut String, kind: &str) {
        out.push_str("<iq");
        write_attribute(out, "type", kind);
        write_attribute(out, "from", &self.from);
        write_attribute(out, "to", &self.to);
        if !self.id.is_empty() {
            write_attribute(out, "id", &self.id);
        }
        out.push('>');
    }

    pub(super) fn weight(&self) -> usize {
        self.from.len() + self.to.len() + self.id.len()
    }
}

impl PendingReply {
    pub(super) fn reply(self) -> Option<ReplyAddress> {
        match self {
            Self::Items(reply, ..)
            | Self::Index(reply, ..)
            | Self::Single(reply, _)
            | Self::Info(reply, _)
            | Self::List(reply, _)
            | Self::Begin(reply, ..)
            | Self::Keep(reply, ..) => Some(reply),
            Self::Forget(reply, _) => reply,
            Self::Read(..) => None,
        }
    }
}
