//! What both ends share: syntaxes, and what a document says of its place in a feed's history.

use crate::format::FeedDocument;

/// The syntax of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syntax {
    /// Atom 1.0 (RFC 4287).
    Atom,
    /// RSS 2.0, with the same elements in its channel (RFC 5005, appendix B).
    Rss,
    /// JSON Feed 1.1, where `next_url` leads to older items.
    JsonFeed,
}

impl Syntax {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Atom, Self::Rss, Self::JsonFeed];

    /// What it is called in addresses: `atom`, `rss` or `feed.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atom => "atom",
            Self::Rss => "rss",
            Self::JsonFeed => "feed.json",
        }
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|syntax| syntax.name() == name)
    }

    /// The media type of its documents.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Atom => "application/atom+xml",
            Self::Rss => "application/rss+xml",
            Self::JsonFeed => "application/feed+json",
        }
    }

    /// The `Content-Type` of its documents as they are written here.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Atom => "application/atom+xml; charset=utf-8",
            Self::Rss => "application/rss+xml; charset=utf-8",
            Self::JsonFeed => "application/feed+json; charset=utf-8",
        }
    }
}

/// This very document, for ever (-00, section 4).
pub const THIS: &str = "this";
/// The document before this one (-00, section 4).
pub const PREV: &str = "prev";
/// The archive document before this one (RFC 5005, section 4).
pub const PREV_ARCHIVE: &str = "prev-archive";
/// The archive document after this one (RFC 5005, section 4).
pub const NEXT_ARCHIVE: &str = "next-archive";
/// The document with the newest entries (RFC 5005, section 4).
pub const CURRENT: &str = "current";
/// The SUP document in which a feed is announced, with the feed's SUP ID as its fragment.
pub const SUP: &str = "http://api.friendfeed.com/2008/03#sup";

/// Where older entries are, as a document says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Nowhere: the document is the whole feed (-00, section 3: flag 0; RFC 5005, section 2), and its links do
    /// not count.
    Complete,
    /// In the document at this address, which stays as it is.
    Archive(String),
    /// In the document at this address, which is another when entries are added (RFC 5005, section 3; JSON
    /// Feed's `next_url`).
    Page(String),
    /// Nowhere: the feed's past is told, and this is its beginning.
    Beginning,
    /// Nowhere: this is the last of several pages.
    LastPage,
    /// Nobody knows: the document has no history.
    Unknown,
}

impl Way {
    /// What a document says.
    ///
    /// -00 has links `prev`, the drafts -01 to -04 `fh:prev`, RFC 5005 `prev-archive`. Without the flag a
    /// `prev` counts only beside a `this`: elsewhere it means the page before in a paged feed, which has newer
    /// entries.
    pub fn of(feed: &FeedDocument) -> Self {
        if feed.is_complete() {
            return Self::Complete;
        }
        let has_history = feed.stateful == Some(true) || feed.link(THIS).is_some();
        let prev = feed.link(PREV).filter(|_| has_history);
        if let Some(prev) = feed.link(PREV_ARCHIVE).or(prev) {
            return Self::Archive(prev.to_owned());
        }
        if let Some(next) = feed.link("next") {
            return Self::Page(next.to_owned());
        }
        let has = |rels: &[&str]| rels.iter().any(|rel| feed.link(rel).is_some());
        if has_history || feed.archive || has(&[NEXT_ARCHIVE, CURRENT]) {
            Self::Beginning
        } else if has(&["first", "last", "previous", PREV]) {
            Self::LastPage
        } else {
            Self::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FeedLink, Format};

    fn feed(stateful: Option<bool>, links: &[(&str, &str)]) -> FeedDocument {
        let mut feed = FeedDocument::new(Format::Atom);
        feed.stateful = stateful;
        let link = |(rel, href): &(&str, &str)| FeedLink {
            rel: (*rel).into(),
            href: (*href).into(),
            media_type: None,
        };
        feed.links = links.iter().map(link).collect();
        feed
    }

    /// -00, sections 3 and 4; RFC 5005, sections 2 to 4.
    #[test]
    fn the_way_back() {
        let way = |stateful, links: &[(&str, &str)]| Way::of(&feed(stateful, links));
        let archive = Way::Archive("a".into());
        assert_eq!(way(Some(true), &[("prev", "a")]), archive, "the flag alone is enough");
        assert_eq!(way(None, &[("prev", "a"), ("this", "t")]), archive);
        assert_eq!(way(None, &[("prev", "a")]), Way::LastPage, "a paged feed's prev is newer");
        assert_eq!(way(None, &[("prev", "b"), ("prev-archive", "a")]), archive);
        assert_eq!(way(Some(false), &[("prev", "a"), ("this", "t")]), Way::Complete, "links are ignored");
        assert_eq!(way(None, &[("next", "p"), ("prev-archive", "a")]), archive);
        assert_eq!(way(None, &[("next", "p")]), Way::Page("p".into()));
        assert_eq!(way(Some(true), &[]), Way::Beginning);
        assert_eq!(way(None, &[("current", "c")]), Way::Beginning);
        assert_eq!(way(None, &[("self", "s"), ("alternate", "h")]), Way::Unknown);
    }
}
