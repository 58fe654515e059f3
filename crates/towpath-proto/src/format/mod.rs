//! The formats that items come in and go out in.

pub mod activity_streams;
pub mod atom;
pub mod html;
pub mod http_date;
pub mod jcs;
pub mod json_feed;
pub mod json_pointers;
pub mod link;
pub mod multipart;
pub mod rss;
pub mod sniff;
pub mod xml;

use jiff::Timestamp;

use crate::item::Item;

/// A format that a source may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// RSS 0.9x, 1.0 or 2.0.
    Rss,
    /// Atom 1.0 (and 0.3, read as such).
    Atom,
    /// JSON Feed 1.0 or 1.1.
    JsonFeed,
    /// Any JSON, through pointers.
    Json,
}

/// A feed document that was read, whatever its format.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedDocument {
    /// What it was read as.
    pub format: Format,
    /// The feed's title, plain text.
    pub title: Option<String>,
    /// The page that the feed belongs to, absolute.
    pub home: Option<String>,
    /// The feed's language tag.
    pub lang: Option<String>,
    /// The items in the document's order.
    pub items: Vec<Item>,
    /// Entries that the document says are deleted (RFC 6721 `at:deleted-entry`).
    pub deleted: Vec<DeletedEntry>,
    /// Links of the feed itself, absolute: `self`, `hub`, `prev`, `prev-archive`, `next`, …
    pub links: Vec<FeedLink>,
    /// Feed History's stateful flag, where it is there.
    pub stateful: Option<bool>,
    /// RFC 5005 `fh:complete`: the document is the whole feed.
    pub complete: bool,
    /// RFC 5005 `fh:archive`: the document is an archive document.
    pub archive: bool,
    /// What could not be read and was left out: dates that are none, entries without an id. Each says where.
    pub problems: Vec<String>,
}

/// An entry that is deleted, as the document tells (RFC 6721).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedEntry {
    /// The entry's id.
    pub id: String,
    /// When it was deleted.
    pub when: Option<Timestamp>,
}

/// A link of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedLink {
    /// The relation, in the document's letters (`alternate` where none is given).
    pub rel: String,
    /// The target, absolute where the base is known.
    pub href: String,
    /// The target's media type, where given.
    pub media_type: Option<String>,
}

impl FeedDocument {
    /// A document without anything in it yet.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            title: None,
            home: None,
            lang: None,
            items: Vec::new(),
            deleted: Vec::new(),
            links: Vec::new(),
            stateful: None,
            complete: false,
            archive: false,
            problems: Vec::new(),
        }
    }

    /// Whether the document shows every item there is, so that absence means removal: Feed History's flag 0
    /// (section 3) or RFC 5005's `fh:complete`.
    pub fn is_complete(&self) -> bool {
        self.complete || self.stateful == Some(false)
    }

    /// The target of the first link with this relation.
    pub fn link(&self, rel: &str) -> Option<&str> {
        self.links.iter().find(|l| l.rel == rel).map(|l| l.href.as_str())
    }
}

/// Why a document could not be read. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is none of the formats asked for.
    #[error("not a feed: {0}")]
    Unknown(String),
    /// It ends too early.
    #[error("cut off at line {line}, column {column}: {reason}")]
    Truncated {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What was open.
        reason: String,
    },
    /// It is not well-formed, or not of its format.
    #[error("line {line}, column {column}: {reason}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// It asks for more than a document may: nesting, entities.
    #[error("refused: {0}")]
    Limit(String),
    /// It is well-formed JSON, and the pointers find nothing there.
    #[error("{place}: {reason}")]
    Mapping {
        /// The pointer, and the item's index where there is one.
        place: String,
        /// What is there instead.
        reason: String,
    },
}

/// How a document is to be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadOptions<'a> {
    /// The format; decided by content where it is `None`. [`Format::Json`] needs `mapping`.
    pub format: Option<Format>,
    /// The `Content-Type` header, for the character set (RFC 7303, section 3) and as a hint.
    pub content_type: Option<&'a str>,
    /// The address that the document came from: what relative addresses are resolved against.
    pub base_url: Option<&'a str>,
    /// Where any JSON has what.
    pub mapping: Option<&'a json_pointers::Mapping>,
}
