//! What a feed document is written from, whatever its format.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};

use super::{DeletedEntry, FeedLink, SmartHead, has_scheme};
use crate::Timestamp;
use crate::item::Item;

/// What stays as it is when an id becomes part of an IRI (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What stands in a document beside its entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Head<'a> {
    /// The feed's own id: an IRI that never changes (RFC 4287, section 4.2.6).
    pub id: &'a str,
    /// Plain text.
    pub title: &'a str,
    /// When the document last changed.
    pub updated: Timestamp,
    /// The page that the feed belongs to, absolute.
    pub home: Option<&'a str>,
    /// The feed's language tag.
    pub lang: Option<&'a str>,
    /// Links of the feed, absolute: `self`, `hub`, `this`, `prev-archive`, …
    pub links: Vec<FeedLink>,
    /// Feed History's flag (section 3), where it is to be written.
    pub stateful: Option<bool>,
    /// RFC 5005, section 2: the document is the whole feed.
    pub complete: bool,
    /// RFC 5005, section 4: the document is an archive document.
    pub archive: bool,
    /// What a Smart Feed says of the range shown.
    pub smart: SmartHead,
    /// Entries that are gone (RFC 6721). Without `when`, `updated` is written.
    pub deleted: Vec<DeletedEntry>,
    /// How entries are named.
    pub ids: EntryIds<'a>,
}

impl<'a> Head<'a> {
    /// A head with what every feed needs. Entries are named below the feed's own id.
    pub fn new(id: &'a str, title: &'a str, updated: Timestamp) -> Self {
        Self {
            id,
            title,
            updated,
            home: None,
            lang: None,
            links: Vec::new(),
            stateful: None,
            complete: false,
            archive: false,
            smart: SmartHead::default(),
            deleted: Vec::new(),
            ids: EntryIds { base: id, always_own_id: false },
        }
    }

    /// The target of the first link with this relation.
    pub fn link(&self, rel: &str) -> Option<&str> {
        self.links.iter().find(|l| l.rel == rel).map(|l| l.href.as_str())
    }
}

/// How entries are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryIds<'a> {
    /// What an item's id is appended to, percent-encoded, where it is no IRI itself: an absolute IRI, such as
    /// the address of the feed's items.
    pub base: &'a str,
    /// Write the item's id as `fo:id` even where the entry's id is the same ("Each entry also MUST have a
    /// fo:id value", Smart Feeds, HTTP pull).
    pub always_own_id: bool,
}

impl EntryIds<'_> {
    /// The IRI of the item with this id, unique wherever `base` is (RFC 4287, section 4.2.6): the id itself
    /// where it is an IRI. The same id gives the same IRI for ever.
    pub fn iri<'i>(&self, id: &'i str) -> Cow<'i, str> {
        if is_iri(id) {
            return Cow::Borrowed(id);
        }
        let joint = if self.base.ends_with(['/', ':', '#', '=', '?']) { "" } else { "#" };
        Cow::Owned(format!("{}{joint}{}", self.base, utf8_percent_encode(id, UNRESERVED)))
    }
}

/// An item's id with everything but letters, digits and `-._~` percent-encoded.
pub(crate) fn encoded_id(id: &str) -> String {
    percent_encode(id.as_bytes(), UNRESERVED).to_string()
}

/// One item as an entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry<'a> {
    /// The item.
    pub item: &'a Item,
    /// When it was last changed in the feed: what a reader is shown where the item itself has no such date.
    pub modified: Timestamp,
    /// Further elements, for the XML formats: each well-formed, with its own namespace declarations.
    pub elements: &'a [String],
    /// Say `modified` in our own namespace where the item's own dates do not.
    pub tells_modified: bool,
}

impl<'a> Entry<'a> {
    /// An entry without further elements.
    pub fn new(item: &'a Item, modified: Timestamp) -> Self {
        Self { item, modified, elements: &[], tells_modified: false }
    }
}

/// Whether a text is an absolute IRI (RFC 3987, section 2.2), by the characters it has.
pub(crate) fn is_iri(text: &str) -> bool {
    let allowed = |c: char| {
        !c.is_control()
            && !c.is_whitespace()
            && !matches!(c, '<' | '>' | '"' | '{' | '}' | '|' | '\\' | '^' | '`')
            && super::xml::is_xml_char(c)
            && !('\u{FDD0}'..='\u{FDEF}').contains(&c)
    };
    has_scheme(text) && !text.ends_with(':') && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iris() {
        for good in ["http://a.example/ü?q#f", "tag:a.example,2025:1", "urn:uuid:0-1", "a+b.c-1:x"] {
            assert!(is_iri(good), "{good}");
        }
        for bad in
            ["", "plain", "12:30", "a b:c", "http://a b", "x:", ":x", "http://a\n", "a:{b}", "a:\u{FFFE}"]
        {
            assert!(!is_iri(bad), "{bad}");
        }
    }

    #[test]
    fn ids_that_are_no_iris_get_one_below_the_base() {
        let ids = EntryIds { base: "https://a.example/feeds/x/items/", always_own_id: false };
        assert_eq!(ids.iri("CVE 1/2"), "https://a.example/feeds/x/items/CVE%201%2F2");
        assert_eq!(ids.iri("tag:x,2025:1"), "tag:x,2025:1");
        let ids = EntryIds { base: "https://a.example/feeds/x", ..ids };
        assert_eq!(ids.iri("é"), "https://a.example/feeds/x#%C3%A9");
    }
}
