//! Atom pages as the client reads them ("HTTP Pull").

use jiff::Timestamp;
use serde_json::Value;

use super::collection::{Collection, CollectionError};
use crate::format::activity_streams::ReadObject;
use crate::format::xml::{FANOUT, TOMBSTONES, TOWPATH, XmlReader, XmlToken};
use crate::format::{self, DocumentLimits, Format, ReadOptions, SmartHead};
use crate::item::Item;

/// Key of [`Item::extra`] that holds foreign XML elements.
pub(in crate::smart) const EXTRA: &str = "xml";

impl Collection {
    /// Parses an Atom document that was fetched from `url`.
    pub fn from_atom(body: &[u8], url: &str) -> Result<Self, CollectionError> {
        Self::from_atom_within(body, url, DocumentLimits::default())
    }

    /// Parses an Atom document as [`Self::from_atom`] does, within limits.
    pub fn from_atom_within(body: &[u8], url: &str, limits: DocumentLimits) -> Result<Self, CollectionError> {
        let options =
            ReadOptions { format: Some(Format::Atom), base_url: Some(url), limits, ..ReadOptions::default() };
        let feed = format::read(body, &options).map_err(|error| CollectionError::Atom(error.to_string()))?;
        let link = |rel: &str| feed.link(rel).map(str::to_owned);
        let (url, next) = (link("self"), link("next"));
        let mut items: Vec<ReadObject> = feed.items.into_iter().map(read_entry).collect();
        // Other publishers put tombstones beside the entries.
        items.extend(feed.deleted.into_iter().map(|gone| ReadObject {
            item: Item::new(gone.id),
            deleted: true,
            modified: gone.when,
            cursor: None,
        }));
        let smart = feed.smart;
        let SmartHead { total, last_cursor, prev_cursor } = smart;
        let (problems, left_out) = (feed.problems, feed.counts.left_out);
        Ok(Self { items, last_cursor, prev_cursor, total, count: None, url, next, problems, left_out })
    }
}

/// Returns the index, from 0, of the first entry without `fo:id` ("Each entry also MUST have a fo:id value").
pub(in crate::smart) fn entry_without_id(body: &[u8]) -> Option<usize> {
    let mut xml = XmlReader::new(std::str::from_utf8(body).ok()?, None);
    let (mut entries, mut in_entry, mut has_id) = (0, false, false);
    loop {
        let at_end = in_entry && xml.depth() == 2;
        match xml.next().ok()? {
            XmlToken::Start(tag) if xml.depth() == 2 => (in_entry, has_id) = (tag.local == "entry", false),
            XmlToken::Start(tag) if xml.depth() == 3 => {
                has_id |= tag.local == "id" && xml.bound_to(prefix(tag.name)) == FANOUT;
            }
            XmlToken::End if at_end && !has_id => return Some(entries),
            XmlToken::End if at_end => {
                entries += 1;
                in_entry = false;
            }
            XmlToken::Eof => return None,
            _ => {}
        }
    }
}

/// Moves the elements that describe the change out of the item.
fn read_entry(mut item: Item) -> ReadObject {
    let (updated, published) = (item.updated, item.published);
    let (mut deleted, mut change) = (false, ChangeElement::default());
    if let Some(Value::Array(elements)) = item.extra.get_mut(EXTRA) {
        // The publisher appends its elements last; those before them belong to the item.
        if let Some(last) = elements.last().and_then(Value::as_str).and_then(ChangeElement::parse) {
            change = last;
            elements.pop();
        }
        if elements.last().and_then(Value::as_str).is_some_and(is_tombstone) {
            deleted = true;
            elements.pop();
        }
        // An item without foreign elements comes back identical, without an empty list.
        if elements.is_empty() && (change.alone || deleted) {
            item.extra.remove(EXTRA);
        }
    }
    ReadObject { item, deleted, modified: change.modified.or(updated).or(published), cursor: change.cursor }
}

/// The `tp:change` element: the last element of an entry that towpath publishes.
#[derive(Default)]
struct ChangeElement {
    /// Cursor of the item in the order of the page.
    cursor: Option<String>,
    /// Time at which the log appended this version.
    modified: Option<Timestamp>,
    /// True if the item itself has no foreign elements.
    alone: bool,
}

impl ChangeElement {
    fn parse(element: &str) -> Option<Self> {
        let mut xml = XmlReader::new(element, None);
        let Ok(XmlToken::Start(tag)) = xml.next() else { return None };
        if tag.local != "change" || xml.bound_to(prefix(tag.name)) != TOWPATH {
            return None;
        }
        let mut attribute = |name| xml.attribute(name).ok().flatten().map(std::borrow::Cow::into_owned);
        Some(Self {
            cursor: attribute("cursor"),
            modified: attribute("modified").and_then(|text| text.parse().ok()),
            alone: attribute("alone").is_some(),
        })
    }
}

fn is_tombstone(element: &str) -> bool {
    let mut xml = XmlReader::new(element, None);
    let Ok(XmlToken::Start(tag)) = xml.next() else { return false };
    tag.local == "deleted-entry" && xml.bound_to(prefix(tag.name)) == TOMBSTONES
}

fn prefix(name: &str) -> Option<&str> {
    name.split_once(':').map(|(prefix, _)| prefix)
}
