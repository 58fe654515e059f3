//! Nodes: which feed in which order ("XMPP Pull/Push": "If the feed defines additional parameters, they are to be
//! appended to the node name in a query string-like format").

use super::error::StanzaError;
use crate::feed_id::FeedId;
use crate::smart::query::{Limits, PullQuery, QueryError};
use crate::smart::spec::Order;

/// The longest node, in bytes.
pub const MAX_NODE: usize = 1024;

/// A node's name, `{feed}?order=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// As it was written; what is answered with.
    pub text: String,
    /// The feed.
    pub feed: FeedId,
    /// Its order, [`Order::MODIFIED`] where the name says none.
    pub order: Order,
    /// What the name says after its question mark.
    base_query: String,
}

/// Why a text is no node's name. The sender's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Longer than [`MAX_NODE`].
    #[error("the node's name is longer than {MAX_NODE} bytes")]
    TooLong,
    /// What stands before the question mark is no feed's name.
    #[error("there is no such node")]
    Unknown,
    /// What stands after it cannot be read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Ranges are asked for beside the name.
    #[error("the range is asked for by result set management, not in the node's name")]
    Range,
}

impl NodeName {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub fn parse(text: &str) -> Result<Self, NodeError> {
        if text.len() > MAX_NODE {
            return Err(NodeError::TooLong);
        }
        let (feed, query) = text.split_once('?').unwrap_or((text, ""));
        let feed = FeedId::new(feed).map_err(|_| NodeError::Unknown)?;
        let query = PullQuery::parse(query, &Limits::default())?;
        if query.since.is_some()
            || query.until.is_some()
            || query.asked_max.is_some()
            || query.callback.is_some()
        {
            return Err(NodeError::Range);
        }
        Ok(Self { text: text.to_owned(), feed, order: query.order, base_query: query.base_query })
    }

    /// The name of a feed in this order.
    pub fn of(feed: &FeedId, order: Order) -> String {
        format!("{feed}?order={order}")
    }

    /// A query of the node's feed for as much as there is, at once.
    pub fn query(&self, max: usize) -> PullQuery {
        PullQuery {
            order: self.order,
            since: None,
            until: None,
            max,
            asked_max: None,
            timeout: std::time::Duration::ZERO,
            callback: None,
            base_query: self.base_query.clone(),
        }
    }
}

impl From<NodeError> for StanzaError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Unknown => Self::ITEM_NOT_FOUND.because(error.to_string()),
            NodeError::TooLong | NodeError::Query(_) | NodeError::Range => {
                Self::BAD_REQUEST.because(error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_a_query_and_kept_as_it_is() {
        for (text, order) in [
            ("comments?order=created", "created"),
            ("comments", "modified"),
            ("comments?", "modified"),
            ("comments?lang=e%6E&order=-modified&x", "-modified"),
        ] {
            let node = NodeName::parse(text).unwrap();
            assert_eq!((node.text.as_str(), node.feed.as_str()), (text, "comments"));
            assert_eq!(node.order.to_string(), order, "{text}");
        }
        let feed = FeedId::new("comments").unwrap();
        assert_eq!(NodeName::of(&feed, Order::MODIFIED), "comments?order=modified");
    }

    #[test]
    fn what_is_no_node() {
        let error = |text: &str| StanzaError::from(NodeName::parse(text).unwrap_err()).condition;
        for unknown in ["", "Comments", "a/b?order=created", "?order=created", "_global"] {
            assert_eq!(error(unknown), "item-not-found", "{unknown}");
        }
        let long = format!("comments?{}", "x".repeat(MAX_NODE));
        for bad in ["comments?order=random", "comments?order=created&order=created", "comments?max=5", &long]
        {
            assert_eq!(error(bad), "bad-request", "{bad:.40}");
        }
    }
}
