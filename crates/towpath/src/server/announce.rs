//! What every response for a feed says, whatever the protocol: where it is told that the feed moved (Simple
//! Update Protocol, sections 6.1 and 6.3).

use std::collections::HashSet;

use http::header::LINK;
use http::{HeaderMap, HeaderValue};
use towpath_proto::FeedId;
use towpath_proto::sup::discovery::{SupLink, X_SUP_ID};
use towpath_proto::sup::id::SupId;

use super::route::feed_in;

/// Knows each feed's SUP link, and adds it to what is served of the feed: here and nowhere else.
#[derive(Debug, Default)]
pub struct Announcer {
    base_url: String,
    /// What the links to the SUP document end in.
    query: &'static str,
    /// Feeds that not everybody may read.
    private: HashSet<FeedId>,
    secret: String,
}

impl Announcer {
    /// For a server that readers find at `base_url`. What is told of the `private` feeds' moves can be tied to
    /// them only by who was told their links, for their SUP IDs are made with the `secret`.
    pub fn new(base_url: &str, private: HashSet<FeedId>, secret: &str) -> Self {
        Self { base_url: base_url.to_owned(), query: "?seconds=60", private, secret: secret.to_owned() }
    }

    /// The same for a static tree at another address, where no query counts.
    pub fn for_tree(&self, base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            query: "",
            private: self.private.clone(),
            secret: self.secret.clone(),
        }
    }

    /// The address of the SUP document, without its query.
    pub fn document_url(&self) -> String {
        format!("{}/sup.json", self.base_url)
    }

    /// A feed's SUP ID: one for all of its documents (section 4).
    pub fn sup_id(&self, feed: &FeedId) -> SupId {
        SupId::of(&self.named(feed))
    }

    /// Where a feed's moves are told of.
    pub fn link(&self, feed: &FeedId) -> SupLink {
        SupLink::new(&format!("{}{}", self.document_url(), self.query), &self.named(feed))
    }

    fn named(&self, feed: &FeedId) -> String {
        let address = format!("{}/feeds/{feed}", self.base_url);
        if self.private.contains(feed) { format!("{address}#{}", self.secret) } else { address }
    }

    /// Adds a feed's link to the headers of a response for it, unless it is there already.
    pub fn announce(&self, feed: &FeedId, headers: &mut HeaderMap) {
        if headers.contains_key(X_SUP_ID) {
            return;
        }
        let link = self.link(feed);
        // An address that cannot stand in a header was refused with the configuration.
        if let Ok(address) = HeaderValue::from_str(&link.href()) {
            headers.insert(X_SUP_ID, address);
        }
        if let Ok(link) = HeaderValue::from_str(&link.link_header()) {
            headers.append(LINK, link);
        }
    }

    /// The same by the path of the request; nothing where it is no feed's.
    pub fn announce_at(&self, path: &str, headers: &mut HeaderMap) {
        if let Some(feed) = at(path).and_then(|name| FeedId::new(name).ok()) {
            self.announce(&feed, headers);
        }
    }

    /// Whether a path belongs to a feed that not everybody may read. One with encoded characters might.
    pub fn is_private(&self, path: &str) -> bool {
        if self.private.is_empty() {
            return false;
        }
        let name = at(path);
        path.split(['?', '#']).next().is_some_and(|path| path.contains('%'))
            || name.is_some_and(|name| self.private.iter().any(|feed| feed.as_str() == name))
    }
}

/// The name that stands in a path where feeds' names do.
fn at(path: &str) -> Option<&str> {
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
        let announcer = Announcer::new("https://a.example", HashSet::new(), "s");
        for path in
            ["/feeds/kev/items?max=1", "/diff/kev/head.json", "/diff/source/kev/head.json", "/archive/kev/x"]
        {
            let mut headers = HeaderMap::new();
            headers.append(LINK, HeaderValue::from_static("<x>; rel=self"));
            announcer.announce_at(path, &mut headers);
            announcer.announce_at(path, &mut headers);
            assert_eq!(headers.get_all(LINK).iter().count(), 2, "{path}");
            let found = discover(&headers, &[], None);
            assert_eq!((found.links, found.warnings), (vec![announcer.link(&id("kev"))], vec![]), "{path}");
        }
        assert_eq!(announcer.link(&id("kev")).id, announcer.sup_id(&id("kev")).to_string());
        for path in ["/", "/diff/head.json", "/archive/_global/index.json", "/sup.json", "/feeds"] {
            let mut headers = HeaderMap::new();
            announcer.announce_at(path, &mut headers);
            assert!(headers.is_empty(), "{path}");
        }
    }

    #[test]
    fn nobody_can_work_out_the_id_of_a_private_feed() {
        let private = HashSet::from([id("own")]);
        let one = Announcer::new("https://a.example", private.clone(), "1");
        let other = Announcer::new("https://a.example", private, "2");
        assert_ne!(one.sup_id(&id("own")), other.sup_id(&id("own")));
        assert_eq!(one.sup_id(&id("news")), other.sup_id(&id("news")));
        assert!(one.is_private("/feeds/own/items?a=%") && one.is_private("/feeds/%6fwn"));
        assert!(!one.is_private("/feeds/news?a=%"));
    }
}
