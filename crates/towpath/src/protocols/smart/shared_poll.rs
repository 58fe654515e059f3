//! Shared polls of Smart Feeds: requests that wait for the same page get one response.

use towpath_proto::FeedId;
use towpath_proto::smart::query::PullQuery;

use crate::document::route_error::RouteError;
use crate::engine::access::Access;
use crate::protocols::smart::wait_registry;

/// Registry of the requests that wait for a page.
pub type PullWaitRegistry = wait_registry::WaitRegistry<PollKey, SharedResponse>;
/// A request in the registry.
pub type PullWaiter = wait_registry::PollWaiter<PollKey, SharedResponse>;
/// Handle to a shared poll of the registry.
pub type PullPollHandle = wait_registry::SharedPollHandle<PollKey, SharedResponse>;

/// Key of a shared poll: everything that its response depends on, except the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PollKey {
    pub(super) feed: FeedId,
    pub(super) access: Access,
    pub(super) query: PullQuery,
    pub(super) format: SharedFormat,
}

/// Format of a shared response. Responses in different formats are never shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedFormat {
    /// A page as JSON.
    Json,
    /// A page as an Atom document.
    Atom,
    /// A page as lines of JSON.
    Lines,
    /// A page as server-sent events.
    Events,
    /// A page as server-sent events whose data are lines.
    LineEvents,
}

/// A response that is built once and sent to any number of clients.
#[derive(Debug)]
pub struct SharedResponse {
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body.
    pub body: bytes::Bytes,
    /// Error instead of a page, for which the body is empty: the feed was removed.
    pub error: Option<Box<RouteError>>,
    /// Cursor of the page's last item, from which the next request continues.
    pub cursor: Option<String>,
    /// Head and, unless it is large, body in the bytes of HTTP/1.1; filled by the first parked connection that sends
    /// them.
    pub http1: std::sync::OnceLock<bytes::Bytes>,
}

impl SharedResponse {
    /// Makes the response of a poll that has no page.
    pub(super) fn of_error(error: RouteError) -> Self {
        let (headers, body) = Default::default();
        Self { headers, body, error: Some(Box::new(error)), cursor: None, http1: Default::default() }
    }
}
