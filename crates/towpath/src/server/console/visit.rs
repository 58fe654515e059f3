//! A request for a page: who looks, at what, with which rights.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use jiff::Timestamp;
use url::Url;

use super::query::Query;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::access::{Access, may_read, may_see_details, readable};
use crate::engine::request::no_feed;
use crate::engine::tokens::TokenSet;
use crate::engine::{Engine, Feed};
use crate::server::session::{Session, Sessions};

/// A request for a page.
pub(super) struct Visit {
    pub(super) engine: Arc<Engine>,
    pub(super) peer: SocketAddr,
    pub(super) request: Request<()>,
    pub(super) query: Query,
    /// Path of the base URL, without a slash at its end: links and assets begin with it.
    pub(super) root: String,
    pub(super) now: Timestamp,
    /// Session of a signed-in reader.
    pub(super) session: Option<Arc<Session>>,
    tokens: Arc<TokenSet>,
}

impl Visit {
    pub(super) fn new(engine: Arc<Engine>, peer: SocketAddr, request: Request<()>) -> Self {
        let tokens = engine.tokens.load_full();
        // A token that was withdrawn ends its sessions.
        let session = Sessions::of(&engine).find(request.headers());
        let session = session.filter(|session| tokens.name_of(session.token()).is_some());
        Self {
            query: Query::parse(request.uri().query()),
            root: root_of(&engine.base_url),
            now: engine.now(),
            engine,
            peer,
            request,
            session,
            tokens,
        }
    }

    /// Returns the name of the token that the reader signed in with.
    pub(super) fn reader(&self) -> Option<Arc<str>> {
        self.session.as_ref().and_then(|session| self.tokens.name_of(session.token()))
    }

    /// Returns true if the reader's token has a right to a feed.
    pub(super) fn may(&self, right: TokenRight, feed: &str) -> bool {
        let session = self.session.as_ref();
        session
            .and_then(|session| self.tokens.find(session.token()))
            .is_some_and(|token| token.may(right, feed))
    }

    /// Returns true if the reader has signed in with a token that may publish somewhere.
    pub(super) fn is_publisher(&self) -> bool {
        let session = self.session.as_ref();
        session.and_then(|session| self.tokens.find(session.token())).is_some_and(|token| token.may_publish())
    }

    /// Returns true if the reader may know why something failed.
    pub(super) fn sees_details(&self, feed: &str) -> bool {
        may_see_details(&self.tokens, feed, self.peer, &self.request)
    }

    /// Returns true if the reader may know what is wrong with the server.
    pub(super) fn sees_server(&self) -> bool {
        // The pattern of a token for all feeds matches any name.
        self.sees_details("any")
    }

    /// Returns true if the reader may see where changes are copied to.
    pub(super) fn sees_sinks(&self) -> bool {
        // Of no feed: a token for some feeds only must not see all destinations.
        self.may(TokenRight::Admin, "") || (self.session.is_none() && self.sees_details(""))
    }

    /// Returns the feeds that the reader may read.
    pub(super) fn feeds(&self) -> Vec<(Arc<Feed>, Access)> {
        let feeds = self.engine.feeds();
        readable(feeds, &self.tokens, self.peer, &self.request).unwrap_or_default()
    }

    /// Returns true if the reader may follow a feed by a stream.
    pub(super) fn may_stream(&self, feed: &Feed) -> bool {
        may_read(feed, &self.tokens, self.request.headers()).is_ok()
    }

    /// Returns a feed that the reader may read as a whole.
    ///
    /// # Errors
    ///
    /// A feed that is absent or hidden: the two look the same. A reader of a part of a feed learns what is open.
    pub(super) fn feed(&self, id: &str) -> Result<Arc<Feed>, RouteError> {
        let absent = || {
            let shown: String = id.chars().take(64).collect();
            RouteError::not_found(format!(
                "There is no feed {shown:?} here, or reading it needs a token that you have not signed in with."
            ))
        };
        // A removed private feed must look like any absent one.
        let is_known_gone = self.engine.removed_feed(id).is_some_and(|removed| removed.is_public);
        let removed = || if is_known_gone { no_feed(&self.engine, id) } else { absent() };
        let feed = self.engine.feed(id).ok_or_else(removed)?;
        let is_local = || self.tokens.is_open() && self.sees_details(id);
        match may_read(&feed, &self.tokens, self.request.headers()) {
            Ok(Access::Whole) => Ok(feed),
            Ok(Access::Reader(_)) => Err(RouteError::forbidden(format!(
                "Your token reads a part of {shown:?}. That part is at /feeds/{shown}/items and /feeds/{shown}/events, \
                 for programs; pages show whole feeds only.",
                shown = feed.id().as_str()
            ))),
            Err(_) if is_local() => Ok(feed),
            Err(_) => Err(absent()),
        }
    }

    /// Returns the path of a feed's page.
    pub(super) fn feed_path(&self, feed: &Feed) -> String {
        format!("{}/feeds/{}", self.root, feed.id())
    }

    /// Returns the path of an item's page.
    pub(super) fn item_path(&self, feed: &str, id: &str) -> String {
        let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
        format!("{}/feeds/{feed}/items/{id}", self.root)
    }
}

/// Returns the path of a base URL. Links are relative to the host: a page may be read by another of its names.
fn root_of(base_url: &str) -> String {
    let url = Url::parse(base_url).ok();
    url.map(|url| url.path().trim_end_matches('/').to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_begin_below_the_base_url() {
        assert_eq!(root_of("http://127.0.0.1:8080"), "");
        assert_eq!(root_of("https://a.example/feeds/x/"), "/feeds/x");
    }
}
