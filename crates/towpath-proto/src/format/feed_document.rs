//! Parsed feed document of any format.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::error::FormatError;
use super::problems::ProblemCounts;
use crate::item::{Author, Item};

/// Format of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// RSS 0.9x, 1.0 or 2.0.
    Rss,
    /// Atom 1.0, or 0.3.
    Atom,
    /// JSON Feed 1.0 or 1.1.
    JsonFeed,
    /// Any JSON, mapped by pointers.
    Json,
    /// A JSON value per line, mapped by pointers.
    Ndjson,
    /// An HTML page, mapped by selectors.
    Html,
}

/// Parsed feed document of any format.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedDocument {
    /// Format that was detected.
    pub format: Format,
    /// Title of the feed, plain text.
    pub title: Option<String>,
    /// Id of the feed, if the format has one.
    pub id: Option<String>,
    /// Time of the feed's last change.
    pub updated: Option<Timestamp>,
    /// URL of the feed's page, absolute.
    pub home: Option<String>,
    /// Language tag of the feed.
    pub lang: Option<String>,
    /// Description of the feed.
    pub description: Option<String>,
    /// URL of the feed's image, absolute.
    pub image: Option<String>,
    /// Authors of the feed.
    pub authors: Vec<Author>,
    /// Items in document order.
    pub items: Vec<Item>,
    /// Times of the last change in the feed, if our writer gave them apart from the items' own dates: index
    /// in `items`, ascending, and time.
    pub modified: Vec<(usize, Timestamp)>,
    /// Deleted entries (RFC 6721 `at:deleted-entry`).
    pub deleted: Vec<DeletedEntry>,
    /// Links of the feed, absolute: `self`, `hub`, `prev`, `prev-archive`, `next`, …
    pub links: Vec<FeedLink>,
    /// Feed History's stateful flag, if present.
    pub stateful: Option<bool>,
    /// RFC 5005 `fh:complete`: the document is the whole feed.
    pub complete: bool,
    /// RFC 5005 `fh:archive`: the document is an archive document.
    pub archive: bool,
    /// Minutes for which the document may be cached (RSS 2.0 `ttl`).
    pub ttl: Option<u32>,
    /// Cursors of a Smart Feed's range.
    pub smart: SmartHead,
    /// Parts that were skipped as malformed, such as dates, or entries without an id. Each names its
    /// position. Those of items that were left out come first.
    pub problems: Vec<String>,
    /// Numbers of all problems, beyond the listed ones too.
    pub counts: ProblemCounts,
}

/// Description of a feed as a whole, as a source gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeedAbout {
    /// URL of the feed's page, absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Language tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lang: Option<String>,
    /// Plain text or HTML, as in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// URL of an image, absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The first author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Author>,
}

/// Elements of Smart Feeds in the head of an Atom document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmartHead {
    /// `fo:total`: number of items in the feed.
    pub total: Option<u64>,
    /// `fo:last_cursor`: cursor of the last item in the document.
    pub last_cursor: Option<String>,
    /// `fo:prev_cursor`: cursor before the first item in the document.
    pub prev_cursor: Option<String>,
}

/// Deleted entry (RFC 6721).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedEntry {
    /// Id of the entry.
    pub id: String,
    /// Time of the deletion.
    pub when: Option<Timestamp>,
}

/// Link of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedLink {
    /// Relation as written (`alternate` by default).
    pub rel: String,
    /// Target, absolute if the base is known.
    pub href: String,
    /// Media type of the target, if given.
    pub media_type: Option<String>,
}

impl FeedDocument {
    /// Creates an empty document.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            title: None,
            id: None,
            updated: None,
            home: None,
            lang: None,
            description: None,
            image: None,
            authors: Vec::new(),
            items: Vec::new(),
            modified: Vec::new(),
            deleted: Vec::new(),
            links: Vec::new(),
            stateful: None,
            complete: false,
            archive: false,
            ttl: None,
            smart: SmartHead::default(),
            problems: Vec::new(),
            counts: ProblemCounts::default(),
        }
    }

    /// Appends a parsed item, with the time of its last change in the feed if given.
    pub(crate) fn push(
        &mut self,
        read: Option<(Item, Option<Timestamp>)>,
        budget: &mut Budget,
    ) -> Result<(), FormatError> {
        let Some((item, modified)) = read else { return Ok(()) };
        budget.item(&item)?;
        self.modified.extend(modified.map(|time| (self.items.len(), time)));
        self.items.push(item);
        Ok(())
    }

    /// Gives the feed's authors to entries without authors (RFC 4287, section 4.2.1; JSON Feed 1.1,
    /// "authors").
    pub(crate) fn inherit_authors(
        &mut self,
        authors: &[Author],
        budget: &mut Budget,
    ) -> Result<(), FormatError> {
        let text = |author: &Author| {
            let lengths = [&author.email, &author.url].map(|text| text.as_ref().map_or(0, String::len));
            author.name.len() + lengths.iter().sum::<usize>()
        };
        // Every entry gets a copy, so each one costs the budget the whole list.
        let size = size_of_val(authors) + authors.iter().map(text).sum::<usize>();
        for item in self.items.iter_mut().filter(|item| item.authors.is_empty()) {
            budget.spend(size, || {
                format!("too many entries without authors for the feed's {} authors", authors.len())
            })?;
            item.authors = authors.to_vec();
        }
        Ok(())
    }

    /// Returns `true` if the document lists every item, so that absence means removal: Feed History's flag 0
    /// (section 3) or RFC 5005's `fh:complete`.
    pub fn is_complete(&self) -> bool {
        // A window of the latest items must never be taken for the whole feed.
        self.complete || self.stateful == Some(false)
    }

    /// Returns the description of the feed as a whole.
    pub fn about(&self) -> FeedAbout {
        FeedAbout {
            home: self.home.clone(),
            lang: self.lang.clone().filter(|lang| is_language_tag(lang)),
            description: self.description.clone(),
            image: self.image.clone(),
            author: self.authors.first().cloned(),
        }
    }

    /// Returns true if every item of the document was read, with a valid id. Otherwise, an absent item may be one that was
    /// left out.
    pub fn is_whole(&self) -> bool {
        self.counts.left_out == 0 && self.items.iter().all(|item| item.check().is_ok())
    }

    /// Leaves of an item that the document both has and marks as deleted (RFC 6721) what is newer.
    pub fn drop_outdated(&mut self) {
        let deleted = self.deleted.iter().map(|entry| (entry.id.clone(), entry.when));
        let deleted: HashMap<String, Option<Timestamp>> = deleted.collect();
        if deleted.is_empty() {
            return;
        }
        let is_deleted = |item: &Item| match (deleted.get(&item.id), item.updated) {
            (Some(Some(when)), Some(updated)) => *when > updated,
            // Without times the item counts: it is there to be read.
            _ => false,
        };
        self.items.retain(|item| !is_deleted(item));
        let listed: HashSet<&str> = self.items.iter().map(|item| item.id.as_str()).collect();
        self.deleted.retain(|entry| !listed.contains(entry.id.as_str()));
    }

    /// Returns the target of the first link with this relation.
    pub fn link(&self, rel: &str) -> Option<&str> {
        self.links.iter().find(|l| l.rel == rel).map(|l| l.href.as_str())
    }
}

/// Returns true for the syntax of a language tag (BCP 47: RFC 5646, section 2.1).
///
/// These are subtags of 1 to 8 letters and digits, joined by hyphens. The first has letters only, and a single
/// letter may not stand alone (`x-klingon`).
pub fn is_language_tag(tag: &str) -> bool {
    let mut subtags = tag.split('-');
    let first = subtags.next().unwrap_or_default();
    let is_subtag = |s: &str| (1..=8).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_alone = tag.len() == first.len();
    first.bytes().all(|b| b.is_ascii_alphabetic())
        && is_subtag(first)
        && !(is_alone && first.len() == 1)
        && subtags.all(is_subtag)
}

/// Returns the name of a link's relation. A registered relation may be written as its IRI, and MUST be taken for the
/// same (RFC 4287, section 4.2.7.2). Its case has no meaning (RFC 8288, section 2.1.1).
pub(crate) fn relation(rel: &str) -> Cow<'_, str> {
    let rel = rel.strip_prefix("http://www.iana.org/assignments/relation/").unwrap_or(rel);
    let is_registered = !rel.contains(':');
    if is_registered && rel.bytes().any(|b| b.is_ascii_uppercase()) {
        return rel.to_ascii_lowercase().into();
    }
    rel.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relation_has_one_form() {
        for (rel, form) in [
            ("prev-archive", "prev-archive"),
            ("Prev-Archive", "prev-archive"),
            ("http://www.iana.org/assignments/relation/self", "self"),
            ("http://api.friendfeed.com/2008/03#SUP", "http://api.friendfeed.com/2008/03#SUP"),
        ] {
            assert_eq!(relation(rel), form);
        }
    }
}
