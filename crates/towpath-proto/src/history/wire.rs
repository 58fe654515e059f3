//! Data of both ends: syntaxes, link relations, and a document's link to older entries.

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
    /// All syntaxes.
    pub const ALL: [Self; 3] = [Self::Atom, Self::Rss, Self::JsonFeed];

    /// Returns the syntax's name in URLs: `atom`, `rss` or `feed.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atom => "atom",
            Self::Rss => "rss",
            Self::JsonFeed => "feed.json",
        }
    }

    /// Returns the syntax with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|syntax| syntax.name() == name)
    }

    /// Returns the media type of the syntax.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Atom => "application/atom+xml",
            Self::Rss => "application/rss+xml",
            Self::JsonFeed => "application/feed+json",
        }
    }

    /// Returns the `Content-Type` of published documents.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Atom => "application/atom+xml; charset=utf-8",
            Self::Rss => "application/rss+xml; charset=utf-8",
            Self::JsonFeed => "application/feed+json; charset=utf-8",
        }
    }
}

/// Relation of a document's own permanent URL (-00, section 4).
pub const THIS: &str = "this";
/// Relation of the document before this one (-00, section 4).
pub const PREV: &str = "prev";
/// Relation of the archive document before this one (RFC 5005, section 4).
pub const PREV_ARCHIVE: &str = "prev-archive";
/// Relation of the archive document after this one (RFC 5005, section 4).
pub const NEXT_ARCHIVE: &str = "next-archive";
/// Relation of the document with the newest entries (RFC 5005, section 4).
pub const CURRENT: &str = "current";
/// Relation of the SUP document that lists a feed's updates, with the feed's SUP ID as its fragment.
pub const SUP: &str = "http://api.friendfeed.com/2008/03#sup";

/// Location of older entries, according to a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predecessor {
    /// None exist: the document is the whole feed (-00, section 3: flag 0; RFC 5005, section 2). Its links are ignored.
    Complete,
    /// In the document at this URL, which never changes.
    Archive(String),
    /// In the document at this URL, whose content moves when entries are added (RFC 5005, section 3; JSON Feed's
    /// `next_url`).
    Page(String),
    /// None exist: the feed has a history, and this document begins it.
    Beginning,
    /// None exist: this is the last of several pages.
    LastPage,
    /// Unknown: the feed has no history.
    Unknown,
}

impl Predecessor {
    /// Returns the location of older entries according to a document.
    ///
    /// -00 has links `prev`, the drafts -01 to -04 `fh:prev`, RFC 5005 `prev-archive`. Without the flag a `prev` counts
    /// only beside a `this`: otherwise it is the previous page of a paged feed, which has newer entries.
    pub fn of(feed: &FeedDocument) -> Self {
        // First: "previous entries SHOULD NOT be considered part of the feed" (-00, section 3), whatever the links say.
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
    fn every_draft_links_to_older_entries() {
        let predecessor = |stateful, links: &[(&str, &str)]| Predecessor::of(&feed(stateful, links));
        let archive = Predecessor::Archive("a".into());
        assert_eq!(predecessor(Some(true), &[("prev", "a")]), archive, "the flag alone is enough");
        assert_eq!(predecessor(None, &[("prev", "a"), ("this", "t")]), archive);
        assert_eq!(
            predecessor(None, &[("prev", "a")]),
            Predecessor::LastPage,
            "a paged feed's prev is newer"
        );
        assert_eq!(predecessor(None, &[("prev", "b"), ("prev-archive", "a")]), archive);
        assert_eq!(
            predecessor(Some(false), &[("prev", "a"), ("this", "t")]),
            Predecessor::Complete,
            "links are ignored"
        );
        assert_eq!(predecessor(None, &[("next", "p"), ("prev-archive", "a")]), archive);
        assert_eq!(predecessor(None, &[("next", "p")]), Predecessor::Page("p".into()));
        assert_eq!(predecessor(Some(true), &[]), Predecessor::Beginning);
        assert_eq!(predecessor(None, &[("current", "c")]), Predecessor::Beginning);
        assert_eq!(predecessor(None, &[("self", "s"), ("alternate", "h")]), Predecessor::Unknown);
    }
}
