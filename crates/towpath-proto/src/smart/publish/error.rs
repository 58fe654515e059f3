//! Errors of a pull request.

use super::query::QueryError;
use crate::change::Seq;

/// Error of a pull request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The client's fault: 400.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The client's fault: 404.
    #[error("the feed has no item {0:?} to use as a position")]
    UnknownId(String),
    /// Nobody's fault: another replica of the log has issued the cursor, and this one does not have its position yet.
    /// 503.
    #[error("this node does not have position {0} of the log yet")]
    Behind(Seq),
    /// Our fault: the result belongs to another read than the one that was requested.
    #[error("internal error: the result of a log read does not match the read that was requested")]
    UnexpectedResult,
}
