//! Node names: a feed in an order ("XMPP Pull/Push": "If the feed defines additional parameters, they are to
//! be appended to the node name in a query string-like format").

use super::error::StanzaError;
use crate::feed_id::FeedId;
use crate::smart::query::{PullLimits, PullQuery, QueryError};
use crate::smart::spec::FeedOrder;

/// Maximum length of a node name, in bytes.
pub const MAX_NODE: usize = 1024;

/// Node name, `{feed}?order=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// Name as received, which responses repeat.
    pub text: String,
    /// Feed.
    pub feed: FeedId,
    /// Order of the items; [`FeedOrder::MODIFIED`] without a parameter.
    pub order: FeedOrder,
    /// Query after the question mark.
    base_query: String,
}

/// Error of parsing a node name. The sender's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The name is longer than [`MAX_NODE`].
    #[error("the node's name is longer than {MAX_NODE} bytes")]
    TooLong,
    /// The part before the question mark is not a feed id.
    #[error("there is no such node")]
    Unknown,
    /// The query is malformed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The name holds a range, which belongs into the request.
    #[error("the range is asked for by result set management, not in the node's name")]
    Range,
}

impl NodeName {
    /// Parses a name.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub fn parse(text: &str) -> Result<Self, NodeError> {
        if text.len() > MAX_NODE {
            return Err(NodeError::TooLong);
        }
        // XMPP servers treat node names as opaque, so the query needs no encoding.
        let (feed, query) = text.split_once('?').unwrap_or((text, ""));
        let feed = FeedId::new(feed).map_err(|_| NodeError::Unknown)?;
        let query = PullQuery::parse(query, &PullLimits::default())?;
        // A range in the name would contradict the range of result set management.
        if query.since.is_some()
            || query.until.is_some()
            || query.requested_max.is_some()
            || query.callback.is_some()
        {
            return Err(NodeError::Range);
        }
        Ok(Self { text: text.to_owned(), feed, order: query.order, base_query: query.base_query })
    }

    /// Returns the name of a feed's node in an order.
    pub fn of(feed: &FeedId, order: FeedOrder) -> String {
        format!("{feed}?order={order}")
    }

    /// Returns a query of the node's feed for at most `max` items, without waiting.
    pub fn query(&self, max: usize) -> PullQuery {
        PullQuery { base_query: self.base_query.clone(), ..PullQuery::at_once(self.order, max) }
    }
}

impl From<NodeError> for StanzaError {
    fn from(error: NodeError) -> Self {
        match error {
            // XEP-0060, 6.5.9.11: an unknown node is item-not-found.
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
        assert_eq!(NodeName::of(&feed, FeedOrder::MODIFIED), "comments?order=modified");
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
