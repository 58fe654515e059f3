//! Settings of a published feed.

use super::cursor::{CursorKind, LogTag};
use super::query::PullLimits;
use crate::format::FeedLink;

/// Settings of a feed that its clients can observe.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    /// Name of the feed, as its lines have it.
    pub name: String,
    /// The absolute URL of the feed's items, without a query.
    pub base: String,
    /// The feed's title.
    pub title: String,
    /// Identity of the log in its cursors.
    pub tag: LogTag,
    /// Kind of cursor that is issued.
    pub kind: CursorKind,
    /// Limits of a request.
    pub limits: PullLimits,
    /// Further links of the feed in its Atom documents.
    pub links: Vec<FeedLink>,
    /// URL of the hub for subscriptions, if any ("HTTP Push": "the hub URL is defined by the feed").
    pub hub: Option<String>,
}
