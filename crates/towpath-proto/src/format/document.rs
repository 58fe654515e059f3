//! Input of the writers of feed documents, for any format.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};

use super::feed_document::{DeletedEntry, FeedLink, SmartHead};
use super::iri::is_iri;
use crate::Timestamp;
use crate::item::{Author, Item};

/// Characters that stay unencoded when an id becomes part of an IRI (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Contents of a document beside its entries.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentHead<'a> {
    /// Id of the feed: an IRI that never changes (RFC 4287, section 4.2.6).
    pub id: &'a str,
    /// Plain text.
    pub title: &'a str,
    /// Time of the document's last change.
    pub updated: Timestamp,
    /// URL of the feed's page, absolute.
    pub home: Option<&'a str>,
    /// Language tag of the feed.
    pub lang: Option<&'a str>,
    /// Description of the feed.
    pub description: Option<&'a str>,
    /// URL of the feed's image, absolute.
    pub image: Option<&'a str>,
    /// Author of the feed. Items without authors stay without.
    pub author: Option<&'a Author>,
    /// Links of the feed, absolute: `self`, `hub`, `this`, `prev-archive`, …
    pub links: Vec<FeedLink>,
    /// Feed History's flag (section 3), if it is to be written.
    pub stateful: Option<bool>,
    /// RFC 5005, section 2: the document is the whole feed.
    pub complete: bool,
    /// RFC 5005, section 4: the document is an archive document.
    pub archive: bool,
    /// Cursors of a Smart Feed's range.
    pub smart: SmartHead,
    /// Deleted entries (RFC 6721). `updated` is written in place of an absent `when`.
    pub deleted: Vec<DeletedEntry>,
    /// Naming of entries.
    pub ids: EntryIds<'a>,
}

impl<'a> DocumentHead<'a> {
    /// Creates a head with the required members. Entry ids begin with the feed's id.
    pub fn new(id: &'a str, title: &'a str, updated: Timestamp) -> Self {
        Self {
            id,
            title,
            updated,
            home: None,
            lang: None,
            description: None,
            image: None,
            author: None,
            links: Vec::new(),
            stateful: None,
            complete: false,
            archive: false,
            smart: SmartHead::default(),
            deleted: Vec::new(),
            ids: EntryIds { base: id, always_own_id: false },
        }
    }

    /// Returns the target of the first link with this relation.
    pub fn link(&self, rel: &str) -> Option<&str> {
        self.links.iter().find(|l| l.rel == rel).map(|l| l.href.as_str())
    }

    /// Returns the page that items without a URL are parts of. A feed without a page of its own has ours as its home,
    /// where their relative addresses lead nowhere.
    pub(crate) fn items_page(&self) -> Option<&'a str> {
        self.home.filter(|home| *home != self.id)
    }
}

/// Naming of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryIds<'a> {
    /// Prefix of the percent-encoded item id, unless that is an IRI itself. An absolute IRI, such as the URL
    /// of the feed's items.
    pub base: &'a str,
    /// Writes the item's id as `fo:id` even if it equals the entry's id ("Each entry also MUST have a fo:id
    /// value", Smart Feeds, HTTP pull).
    pub always_own_id: bool,
}

impl EntryIds<'_> {
    /// Returns the IRI of an item: its id if that is an IRI, else unique as long as `base` is (RFC 4287,
    /// section 4.2.6). An id always gives an identical IRI.
    pub fn iri<'i>(&self, id: &'i str) -> Cow<'i, str> {
        if is_iri(id) {
            return Cow::Borrowed(id);
        }
        // A base that ends in a delimiter needs no other.
        let joint = if self.base.ends_with(['/', ':', '#', '=', '?']) { "" } else { "#" };
        // The id is encoded, so that two ids never give the same IRI.
        Cow::Owned(format!("{}{joint}{}", self.base, utf8_percent_encode(id, UNRESERVED)))
    }
}

/// Percent-encodes everything in an id but letters, digits and `-._~`.
pub(crate) fn encoded_id(id: &str) -> String {
    percent_encode(id.as_bytes(), UNRESERVED).to_string()
}

/// Item to write as an entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DocumentEntry<'a> {
    /// Item.
    pub item: &'a Item,
    /// Time of the last change in the feed, shown if the item itself has no such date.
    pub modified: Timestamp,
    /// Additional elements for the XML formats: well-formed, with their own namespace declarations.
    pub elements: &'a [String],
    /// Writes `modified` in our namespace if the item's own dates do not show it.
    pub tells_modified: bool,
}

impl<'a> DocumentEntry<'a> {
    /// Creates an entry without additional elements.
    pub fn new(item: &'a Item, modified: Timestamp) -> Self {
        Self { item, modified, elements: &[], tells_modified: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_no_iris_get_one_below_the_base() {
        let ids = EntryIds { base: "https://a.example/feeds/x/items/", always_own_id: false };
        assert_eq!(ids.iri("CVE 1/2"), "https://a.example/feeds/x/items/CVE%201%2F2");
        assert_eq!(ids.iri("tag:x,2025:1"), "tag:x,2025:1");
        let ids = EntryIds { base: "https://a.example/feeds/x", ..ids };
        assert_eq!(ids.iri("é"), "https://a.example/feeds/x#%C3%A9");
    }
}
