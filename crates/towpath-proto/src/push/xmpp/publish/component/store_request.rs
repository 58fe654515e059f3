//! Settings, store requests and events of the component.

use super::super::entry::MIN_ROOM;
use super::super::fanout::{FanoutTopic, NodeSubscription, PushPosition};
use crate::feed_id::FeedId;
use crate::push::xmpp::wire::error::StanzaError;
use crate::smart::pull::{FeedSettings, PullError, PullPage};
use crate::smart::query::PullQuery;

/// Settings of a component.
#[derive(Debug, Clone)]
pub struct ComponentSettings {
    /// Domain name of the component: its address.
    pub jid: String,
    /// Secret shared with the server.
    pub secret: String,
    /// Maximum size of a sent stanza; must be within the server's limit.
    pub stanza_bytes: usize,
    /// Maximum number of subscriptions.
    pub subscriptions: usize,
    /// Maximum number of subscriptions of an account.
    pub account_subscriptions: usize,
}

/// Maximum size of the id and addresses of a request, in bytes.
pub(super) const MAX_ADDRESSING: usize = 8 << 10;
/// Minimum of [`ComponentSettings::stanza_bytes`].
pub const MIN_STANZA_BYTES: usize = MIN_ROOM + MAX_ADDRESSING;

/// Id of a store request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreRequestId(pub u64);

/// Request of the component to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreRequest {
    /// Reads a page of a public feed: [`StoreResponse::Page`].
    Page(FeedId, PullQuery),
    /// Reads items of a public feed by their ids: [`StoreResponse::Page`] with those that exist. The query asks for
    /// the total only.
    Items(FeedId, PullQuery, Vec<String>),
    /// Lists public feeds in the order of their ids, after this one, up to a maximum:
    /// [`StoreResponse::Feeds`].
    Feeds(Option<FeedId>, usize),
    /// Persists a subscription, and the topic's position if it is the topic's first:
    /// [`StoreResponse::Written`].
    Keep(NodeSubscription, Option<(FanoutTopic, PushPosition)>),
    /// Deletes a subscription, identified by address and node: [`StoreResponse::Written`].
    Forget(NodeSubscription),
}

/// Result of a store request.
#[derive(Debug)]
pub enum StoreResponse<'a> {
    /// Feed and page, for [`StoreRequest::Page`] and [`StoreRequest::Items`].
    Page(Result<(&'a FeedSettings, PullPage), StoreRequestError>),
    /// Ids with titles, and the total number, for [`StoreRequest::Feeds`].
    Feeds(Vec<(FeedId, String)>, u64),
    /// Result of [`StoreRequest::Keep`] and [`StoreRequest::Forget`], once it is on disk.
    Written(Result<(), StoreRequestError>),
}

/// Error of a store request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreRequestError {
    /// The feed does not exist.
    #[error("there is no such node")]
    NoFeed,
    /// The feed was removed: the reason.
    #[error("{0}")]
    Removed(String),
    /// The feed is not public.
    #[error("this feed is not open to everybody")]
    Forbidden,
    /// The query is invalid.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The store failed. The text is for the operator's log only.
    #[error("the log cannot be read or written")]
    Store(String),
}

impl From<StoreRequestError> for StanzaError {
    fn from(reason: StoreRequestError) -> Self {
        let text = reason.to_string();
        match reason {
            // Statuses follow XEP-0060; the store's own error is only logged.
            StoreRequestError::NoFeed
            | StoreRequestError::Removed(_)
            | StoreRequestError::Pull(PullError::UnknownId(_)) => Self::ITEM_NOT_FOUND.because(text),
            StoreRequestError::Forbidden => Self::FORBIDDEN.because(text),
            StoreRequestError::Pull(PullError::Query(_)) => Self::BAD_REQUEST.because(text),
            StoreRequestError::Pull(PullError::UnexpectedResult | PullError::Behind(_))
            | StoreRequestError::Store(_) => Self::INTERNAL.because(text),
        }
    }
}

/// Event for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ComponentEvent {
    /// The server has accepted the component.
    Connected,
    /// The stream is down, with the reason. Reported once while the reason stays the same.
    Down(String),
    /// A request was refused: its sender and the error.
    Refused(String, StanzaError),
}
