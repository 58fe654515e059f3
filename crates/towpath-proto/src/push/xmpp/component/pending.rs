//! Answers that are on their way.

use crate::feed_id::FeedId;
use crate::push::xmpp::fanout::{Place, Subscription, Topic};
use crate::push::xmpp::node::NodeName;
use crate::push::xmpp::rsm::Plan;
use crate::push::xmpp::stanza::write_attribute;
use crate::smart::query::PullQuery;

/// Whom an answer goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) id: String,
}

/// What is to be done with an answer.
#[derive(Debug)]
pub(super) enum Pending {
    Items(Reply, NodeName, Plan),
    Info(Reply, NodeName),
    List(Reply, Option<FeedId>),
    Begin(Reply, NodeName, Subscription),
    Keep(Reply, NodeName, Subscription, Place),
    Forget(Option<Reply>, Subscription),
    Read(Topic, PullQuery),
}

impl Reply {
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

impl Pending {
    pub(super) fn reply(self) -> Option<Reply> {
        match self {
            Self::Items(reply, ..)
            | Self::Info(reply, _)
            | Self::List(reply, _)
            | Self::Begin(reply, ..)
            | Self::Keep(reply, ..) => Some(reply),
            Self::Forget(reply, _) => reply,
            Self::Read(..) => None,
        }
    }
}
