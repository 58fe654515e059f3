//! Persistent state of a fan-out: subscriptions, and the position of each topic.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::feed_id::FeedId;
use crate::smart::pull::{FeedSettings, PullPage};
use crate::smart::query::PullQuery;
use crate::smart::spec::{FeedOrder, OrderBy, PositionSpec};

/// Maximum items of a push.
const ITEMS: usize = 200;

/// State to restart from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersistedFanout {
    /// Subscriptions.
    pub subscriptions: Vec<NodeSubscription>,
    /// Position of each topic. A topic without one begins at the end of its feed.
    pub places: Vec<(FanoutTopic, PushPosition)>,
    /// Last time at which the stream was open.
    pub seen: Option<Timestamp>,
}

/// Subscription in its stored form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSubscription {
    /// Normalized address of the subscriber.
    pub jid: String,
    /// Node name as subscribed to.
    pub node: String,
    /// Address that the request was sent to: the sender of pushes.
    pub from: String,
}

/// A feed in an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FanoutTopic {
    /// Feed.
    pub feed: FeedId,
    /// Order. Subscribers of both directions receive the same pushes.
    pub by: OrderBy,
}

/// Position of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushPosition {
    /// Unknown: searched backwards from this cursor, or from the end.
    Unknown(Option<String>),
    /// Known.
    At {
        /// Cursor after which the next push begins; `None` for the feed's beginning.
        since: Option<String>,
        /// Cursor of the last item before that, as given to readers.
        previous: Option<String>,
    },
}

impl PushPosition {
    /// Returns the query for the items after the position, or for the end of the feed.
    pub fn query(&self, by: OrderBy) -> PullQuery {
        let (descending, since, max) = match self {
            Self::Unknown(since) => (true, since, 1),
            Self::At { since, .. } => (false, since, ITEMS),
        };
        let since = since.clone().map(PositionSpec::Cursor);
        PullQuery { since, ..PullQuery::at_once(FeedOrder { by, descending }, max) }
    }

    /// Returns the position after the last item, from the response to [`Self::query`] of an unknown position.
    pub fn of_end(feed: &FeedSettings, by: OrderBy, page: &PullPage) -> Self {
        match page.changes.first() {
            Some(change) => Self::At {
                since: Some(page.cursor(&feed.tag, by, change)),
                previous: page.last_cursor.clone(),
            },
            None if page.more => Self::Unknown(page.last_cursor.clone()),
            None => Self::At { since: None, previous: None },
        }
    }
}
