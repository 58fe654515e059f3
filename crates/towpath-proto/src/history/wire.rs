//! What both ends share: syntaxes, and what a document says of its place in a feed's history.

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

    /// What it is called in addresses: `atom`, `rss` or `json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atom => "atom",
            Self::Rss => "rss",
            Self::JsonFeed => "json",
        }
    }

    /// The media type of its documents.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Atom => "application/atom+xml",
            Self::Rss => "application/rss+xml",
            Self::JsonFeed => "application/feed+json",
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
