//! SUP links: every response for a feed names the document that lists its updates (Simple Update Protocol,
//! sections 6.1 and 6.3). Beside the link stands the feed's name, which followers put on its changes.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::LINK;
use http::{HeaderMap, HeaderValue};
use quick_cache::sync::Cache;
use towpath_proto::FeedId;
use towpath_proto::follow::TOWPATH_FEED;
use towpath_proto::sup::discovery::{SupLink, X_SUP_ID};
use towpath_proto::sup::id::SupId;

use crate::document::feed_path::feed_in;

/// Number of feeds whose headers are kept, at about 400 bytes each.
const KEPT_FEEDS: usize = 1000;

/// SUP links of all feeds. Nothing else adds them to responses.
#[derive(Debug)]
pub struct SupLinks {
    base_url: String,
    /// Query of the links to the SUP document.
    query: &'static str,
    /// Feeds that need a token to read.
    private: ArcSwap<HashSet<FeedId>>,
    secret: String,
    /// Headers of feeds that were asked for. Making them was a sixth of the work for a woken long poll.
    headers: Cache<FeedId, Arc<FeedHeaders>>,
}

/// Headers of a feed's responses.
#[derive(Debug)]
struct FeedHeaders {
    /// True if the SUP ID is that of a private feed.
    is_private: bool,
    sup_id: Option<HeaderValue>,
    name: Option<HeaderValue>,
    link: Option<HeaderValue>,
}

impl Default for SupLinks {
    fn default() -> Self {
        Self::new("", HashSet::new(), "")
    }
}

impl SupLinks {
    /// Makes the links of a server at `base_url`.
    ///
    /// SUP IDs of the `private` feeds are derived from the `secret`: only a reader who was sent a feed's link can tell
    /// which updates are that feed's.
    pub fn new(base_url: &str, private: HashSet<FeedId>, secret: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            query: "?seconds=60",
            private: ArcSwap::from_pointee(private),
            secret: secret.to_owned(),
            headers: Cache::new(KEPT_FEEDS),
        }
    }

    /// Returns the links of a static tree at another address. File hosts ignore queries, so the links have none.
    pub fn for_tree(&self, base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            query: "",
            private: ArcSwap::new(self.private.load_full()),
            secret: self.secret.clone(),
            headers: Cache::new(KEPT_FEEDS),
        }
    }

    /// Adds feeds that need a token to read.
    pub fn add_private(&self, feeds: impl IntoIterator<Item = FeedId>) {
        // Copied, because readers take no lock: they run for each response. Feeds seldom become private.
        let mut private = HashSet::clone(&self.private.load());
        private.extend(feeds);
        self.private.store(Arc::new(private));
    }

    /// Address of the SUP document, without its query.
    pub fn document_url(&self) -> String {
        format!("{}/sup.json", self.base_url)
    }

    /// Returns a feed's SUP ID, which all of its documents share (section 4).
    pub fn sup_id(&self, feed: &FeedId) -> SupId {
        SupId::of(&self.id_source(feed))
    }

    /// Returns a feed's link to the SUP document.
    pub fn link(&self, feed: &FeedId) -> SupLink {
        SupLink::new(&format!("{}{}", self.document_url(), self.query), &self.id_source(feed))
    }

    /// Returns the address that the SUP ID is the digest of.
    fn id_source(&self, feed: &FeedId) -> String {
        let address = format!("{}/feeds/{feed}", self.base_url);
        // Without the secret anybody could compute the id of a guessed name, and learn from the document that it
        // exists.
        if self.is_private_feed(feed) { format!("{address}#{}", self.secret) } else { address }
    }

    fn is_private_feed(&self, feed: &FeedId) -> bool {
        self.private.load().contains(feed)
    }

    fn headers_of(&self, feed: &FeedId) -> Arc<FeedHeaders> {
        let is_private = self.is_private_feed(feed);
        // A feed may have become private since: its old id was one that anybody can compute.
        if let Some(known) = self.headers.get(feed).filter(|known| known.is_private == is_private) {
            return known;
        }
        let link = self.link(feed);
        // The configuration check rejects base URLs that cannot be header values.
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let headers = Arc::new(FeedHeaders {
            is_private,
            sup_id: value(&link.href()),
            name: value(feed.as_str()),
            link: value(&link.link_header()),
        });
        self.headers.insert(feed.clone(), headers.clone());
        headers
    }

    /// Adds a feed's link and its name to the headers of a response, unless they are there already.
    pub fn add_to(&self, feed: &FeedId, headers: &mut HeaderMap) {
        // Prebuilt documents carry it from the cache, and routing adds it to all responses.
        if headers.contains_key(X_SUP_ID) {
            return;
        }
        let known = self.headers_of(feed);
        if let Some(address) = &known.sup_id {
            headers.insert(X_SUP_ID, address.clone());
        }
        if let Some(name) = &known.name {
            headers.insert(TOWPATH_FEED, name.clone());
        }
        if let Some(link) = &known.link {
            // Appended: the response has links of its own protocol already.
            headers.append(LINK, link.clone());
        }
    }

    /// Adds the link of the feed that the request's path belongs to, if any.
    pub fn add_by_path(&self, path: &str, headers: &mut HeaderMap) {
        if let Some(feed) = name_in(path).and_then(|name| FeedId::new(name).ok()) {
            self.add_to(&feed, headers);
        }
    }

    /// Returns true for paths of feeds that need a token to read.
    ///
    /// A path with percent-encoded characters counts as private: the check compares undecoded names, so an encoded
    /// name of a private feed must not slip through.
    pub fn is_private(&self, path: &str) -> bool {
        // Most servers have no private feed, and this runs for every document that is cached.
        let private = self.private.load();
        if private.is_empty() {
            return false;
        }
        let name = name_in(path);
        path.split(['?', '#']).next().is_some_and(|path| path.contains('%'))
            || name.is_some_and(|name| private.iter().any(|feed| feed.as_str() == name))
    }
}

/// Returns the feed's name in a path.
fn name_in(path: &str) -> Option<&str> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut segments = path.split('/').skip(1);
    let parts = [segments.next(), segments.next(), segments.next()].map(Option::unwrap_or_default);
    feed_in(&parts)
}

#[cfg(test)]
mod tests {
    use towpath_proto::sup::discovery::discover;

    use super::*;

    fn id(name: &str) -> FeedId {
        FeedId::new(name).unwrap()
    }

    /// Sections 6.1 and 6.3, and section 4: "A single feed MUST always map to a single, stable SUP ID".
    #[test]
    fn sections_4_and_6_one_link_for_all_documents_of_a_feed() {
        let links = SupLinks::new("https://a.example", HashSet::new(), "s");
        for path in
            ["/feeds/kev/items?max=1", "/diff/kev/head.json", "/diff/source/kev/head.json", "/archive/kev/x"]
        {
            let mut headers = HeaderMap::new();
            headers.append(LINK, HeaderValue::from_static("<x>; rel=self"));
            links.add_by_path(path, &mut headers);
            links.add_by_path(path, &mut headers);
            assert_eq!(headers.get_all(LINK).iter().count(), 2, "{path}");
            assert_eq!(headers[TOWPATH_FEED], "kev", "{path}");
            let found = discover(&headers, &[], None);
            assert_eq!((found.links, found.warnings), (vec![links.link(&id("kev"))], vec![]), "{path}");
        }
        assert_eq!(links.link(&id("kev")).id, links.sup_id(&id("kev")).to_string());
        for path in ["/", "/diff/head.json", "/archive/_global/index.json", "/sup.json", "/feeds"] {
            let mut headers = HeaderMap::new();
            links.add_by_path(path, &mut headers);
            assert!(headers.is_empty(), "{path}");
        }
    }

    #[test]
    fn a_feed_that_becomes_private_gets_another_id() {
        let links = SupLinks::new("https://a.example", HashSet::new(), "1");
        let sup_id = || {
            let mut headers = HeaderMap::new();
            links.add_by_path("/feeds/own/items", &mut headers);
            headers[X_SUP_ID].clone()
        };
        let before = sup_id();
        assert_eq!(sup_id(), before);
        links.add_private([id("own")]);
        let after = sup_id();
        assert_ne!(after, before);
        assert_eq!(after, links.link(&id("own")).href());
    }

    #[test]
    fn nobody_can_work_out_the_id_of_a_private_feed() {
        let private = HashSet::from([id("own")]);
        let one = SupLinks::new("https://a.example", private.clone(), "1");
        let other = SupLinks::new("https://a.example", private, "2");
        assert_ne!(one.sup_id(&id("own")), other.sup_id(&id("own")));
        assert_eq!(one.sup_id(&id("news")), other.sup_id(&id("news")));
        assert!(one.is_private("/feeds/own/items?a=%") && one.is_private("/feeds/%6fwn"));
        assert!(!one.is_private("/feeds/news?a=%"));
    }
}
