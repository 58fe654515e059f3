//! Errors of the query of a pull request.

use super::jsonp::JsonpCallbackError;
use super::query::{AS, MAX_QUERY, MAX_VALUE};
use crate::smart::wire::spec::{FeedOrder, PositionSpecError};

/// Error of parsing a query. The client's fault; names the parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The value is longer than [`MAX_VALUE`].
    #[error("{parameter} is longer than {MAX_VALUE} bytes")]
    ValueTooLong {
        /// Which parameter.
        parameter: &'static str,
    },
    /// The query is longer than [`MAX_QUERY`].
    #[error("the query is longer than {MAX_QUERY} bytes")]
    QueryTooLong,
    /// The parameter is given more than once.
    #[error("{parameter} is given twice")]
    Twice {
        /// Which parameter.
        parameter: &'static str,
    },
    /// The decoded bytes are not UTF-8.
    #[error("{parameter} is not UTF-8")]
    Encoding {
        /// Which parameter.
        parameter: &'static str,
    },
    /// The value is not a position spec.
    #[error("{parameter}: {source}")]
    Spec {
        /// `since` or `until`.
        parameter: &'static str,
        /// The parse error.
        source: PositionSpecError,
    },
    /// `id:` in an order in which items move ("Pull Interface": only makes sense where items don't change position).
    #[error("{parameter}: in an order by modification items move, so a position cannot be an id")]
    IdMoves {
        /// `since` or `until`.
        parameter: &'static str,
    },
    /// The order is unknown.
    #[error("order {0:?} is unknown; created, modified, -created and -modified are known")]
    Order(String),
    /// The order is not available for a stream of events.
    #[error("events come in the order modified, and not in {0}")]
    EventsOrder(FeedOrder),
    /// The value is not a number of the required kind.
    #[error("{parameter} must be {needed}, and is {value:?}")]
    Number {
        /// `max`, `last` or `timeout`.
        parameter: &'static str,
        /// Description of a valid value.
        needed: &'static str,
        /// The value as sent.
        value: String,
    },
    /// `last` and another start, or an order that ends with the first items.
    #[error("last={0} begins with the latest items: it goes without since, until and a descending order")]
    LastAndRange(usize),
    /// The form of the items is unknown.
    #[error("as={0:?} is unknown; line is known")]
    As(String),
    /// The callback is not a valid function name.
    #[error("callback: {0}")]
    Callback(#[from] JsonpCallbackError),
}

impl QueryError {
    /// Returns the invalid parameter; `query` if the query as a whole is invalid.
    pub fn parameter(&self) -> &'static str {
        match self {
            Self::ValueTooLong { parameter }
            | Self::Twice { parameter }
            | Self::Encoding { parameter }
            | Self::Spec { parameter, .. }
            | Self::IdMoves { parameter }
            | Self::Number { parameter, .. } => parameter,
            Self::QueryTooLong => "query",
            Self::LastAndRange(_) => "last",
            Self::As(_) => AS,
            Self::Order(_) | Self::EventsOrder(_) => "order",
            Self::Callback(_) => "callback",
        }
    }
}
