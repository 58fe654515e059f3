//! What is kept of a fan-out over restarts: who is sent what, and where each topic stands.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ITEMS;
use crate::feed_id::FeedId;
use crate::smart::pull::{FeedSettings, Page};
use crate::smart::query::PullQuery;
use crate::smart::spec::{By, Order, Spec};

/// What a restart begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Who is sent what.
    pub subscriptions: Vec<Subscription>,
    /// Up to where each topic was sent. Of one that is not there the next push begins at the end of its feed.
    pub places: Vec<(Topic, Place)>,
    /// When the stream was last known to be open.
    pub seen: Option<Timestamp>,
}

/// Who is sent what, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Whom it is sent to, normalised.
    pub jid: String,
    /// The node's name, as it was subscribed to.
    pub node: String,
    /// Whom it is sent from: the address that was asked.
    pub from: String,
}

/// A feed in one order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topic {
    /// The feed.
    pub feed: FeedId,
    /// The order. Subscribers of both directions are sent the same.
    pub by: By,
}

/// Where a topic stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Not known yet; looked for backwards from this cursor, or from the end.
    Unknown(Option<String>),
    /// Known.
    At {
        /// The cursor after which the next push begins; the feed's beginning where there is none.
        since: Option<String>,
        /// The cursor of the last item before it, as readers are given it.
        previous: Option<String>,
    },
}

impl Place {
    /// What to ask: what comes after it, or where the end is.
    pub fn query(&self, by: By) -> PullQuery {
        let (descending, since, max) = match self {
            Self::Unknown(since) => (true, since, 1),
            Self::At { since, .. } => (false, since, ITEMS),
        };
        PullQuery {
            order: Order { by, descending },
            since: since.clone().map(Spec::Cursor),
            until: None,
            max,
            asked_max: None,
            timeout: std::time::Duration::ZERO,
            callback: None,
            base_query: String::new(),
        }
    }

    /// The place after the last item of a feed, from what [`Self::query`] of an unknown place was answered.
    pub fn of_end(feed: &FeedSettings, by: By, page: &Page) -> Self {
        match page.changes.first() {
            Some(change) => Self::At {
                since: Some(feed.tag.cursor(by, by.position(change))),
                previous: page.last_cursor.clone(),
            },
            None if page.more => Self::Unknown(page.last_cursor.clone()),
            None => Self::At { since: None, previous: None },
        }
    }
}
