//! Pages as Atom documents ("HTTP Pull"), in both directions.
//!
//! Each entry ends with an element of our own, which other readers pass over: the item's own cursor, and when
//! the log took in this version. A deleted item is an entry without content that holds its own RFC 6721
//! `at:deleted-entry`.

use super::publish::PageLinks;
use super::pull::{FeedSettings, Page};
use super::query::PullQuery;
use super::spec::By;
use super::wire::{Collection, CollectionError};
use crate::change::{Change, Op};
use crate::format::activity_streams::ReadObject;
use crate::format::atom;
use crate::format::document::{Entry, EntryIds, Head};
use crate::format::xml::{FANOUT, TOMBSTONES, TOWPATH, Token, XmlReader, XmlWriter};
use crate::format::{self, FeedLink, Format, ReadOptions, SmartHead};
use crate::item::Item;
use jiff::Timestamp;
use serde_json::Value;

/// The key of [`Item::extra`] under which elements are kept.
const EXTRA: &str = "xml";

/// A page as an Atom document.
pub fn write(feed: &FeedSettings, query: &PullQuery, page: &Page) -> Vec<u8> {
    write_with(feed, query, page, &PageLinks::new(feed, query, page), None)
}

/// The same with these links and, of what is pushed, a previous cursor.
pub(super) fn write_with(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &Page,
    links: &PageLinks,
    prev_cursor: Option<&str>,
) -> Vec<u8> {
    let items = format!("{}/", feed.base);
    let mut head = Head::new(&links.base, &feed.title, page.updated);
    head.ids = EntryIds { base: &items, always_own_id: true };
    head.links.push(link("self", &links.base));
    head.links.extend(links.next.as_ref().map(|next| link("next", next)));
    head.links.extend_from_slice(&feed.links);
    if let Some(hub) = &feed.hub {
        // A link of the feed's, whatever it answers with (PubSubHubbub 0.3, section 5).
        head.links.push(FeedLink { rel: "hub".into(), href: hub.clone(), media_type: None });
    }
    let prev_cursor = prev_cursor.map(str::to_owned);
    head.smart = SmartHead { total: Some(page.total), last_cursor: page.last_cursor.clone(), prev_cursor };
    let by = query.order.by;
    let marks: Vec<Vec<String>> = page
        .changes
        .iter()
        .map(|change| marks(change, &feed.tag.cursor(by, by.position(change)), &head.ids))
        .collect();
    let entries = page.changes.iter().zip(&marks);
    let entries =
        entries.map(|(change, elements)| Entry { elements, ..Entry::new(&change.item, change.modified) });
    atom::write(&head, entries).into_bytes()
}

/// One item as an entry that stands on its own ("XMPP Pull/Push").
pub fn entry(feed: &FeedSettings, by: By, change: &Change) -> String {
    let items = format!("{}/", feed.base);
    let ids = EntryIds { base: &items, always_own_id: true };
    let elements = marks(change, &feed.tag.cursor(by, by.position(change)), &ids);
    let entry = Entry { elements: &elements, ..Entry::new(&change.item, change.modified) };
    atom::write_entry(&entry, &ids, &feed.title)
}

fn link(rel: &str, href: &str) -> FeedLink {
    FeedLink { rel: rel.into(), href: href.into(), media_type: Some("application/atom+xml".into()) }
}

/// What an entry says of its change beside the item.
fn marks(change: &Change, cursor: &str, ids: &EntryIds<'_>) -> Vec<String> {
    let modified = change.modified.to_string();
    let mut marks = Vec::with_capacity(2);
    if change.op == Op::Delete {
        let mut xml = XmlWriter::default();
        xml.start("at:deleted-entry").attribute("xmlns:at", TOMBSTONES);
        xml.attribute("ref", &ids.iri(&change.item.id)).attribute("when", &modified);
        marks.push(xml.finish());
    }
    let mut xml = XmlWriter::default();
    xml.start("tp:change").attribute("xmlns:tp", TOWPATH);
    xml.attribute("cursor", cursor).attribute("modified", &modified);
    if !change.item.extra.contains_key(EXTRA) {
        // Nothing but these marks will be found among the item's elements.
        xml.attribute("alone", "1");
    }
    marks.push(xml.finish());
    marks
}

impl Collection {
    /// Reads an Atom document that was fetched from `url`.
    pub fn from_atom(body: &[u8], url: &str) -> Result<Self, CollectionError> {
        let options =
            ReadOptions { format: Some(Format::Atom), base_url: Some(url), ..ReadOptions::default() };
        let feed = format::read(body, &options).map_err(|error| CollectionError::Atom(error.to_string()))?;
        let link = |rel: &str| feed.link(rel).map(str::to_owned);
        let (url, next) = (link("self"), link("next"));
        let mut items: Vec<ReadObject> = feed.items.into_iter().map(read_entry).collect();
        items.extend(feed.deleted.into_iter().map(|gone| ReadObject {
            item: Item::new(gone.id),
            deleted: true,
            modified: gone.when,
            cursor: None,
        }));
        let smart = feed.smart;
        let SmartHead { total, last_cursor, prev_cursor } = smart;
        let problems = feed.problems;
        Ok(Self { items, last_cursor, prev_cursor, total, count: None, url, next, problems })
    }
}

/// The first entry, from 0, that has no `fo:id` ("Each entry also MUST have a fo:id value").
pub(super) fn entry_without_id(body: &[u8]) -> Option<usize> {
    let mut xml = XmlReader::new(std::str::from_utf8(body).ok()?, None);
    let (mut entries, mut in_entry, mut named) = (0, false, false);
    loop {
        let at_end = in_entry && xml.depth() == 2;
        match xml.next().ok()? {
            Token::Start(tag) if xml.depth() == 2 => (in_entry, named) = (tag.local == "entry", false),
            Token::Start(tag) if xml.depth() == 3 => {
                named |= tag.local == "id" && xml.bound_to(prefix(tag.name)) == FANOUT;
            }
            Token::End if at_end && !named => return Some(entries),
            Token::End if at_end => {
                entries += 1;
                in_entry = false;
            }
            Token::Eof => return None,
            _ => {}
        }
    }
}

/// An item with what its elements say of its change, which are taken from it.
fn read_entry(mut item: Item) -> ReadObject {
    let (updated, published) = (item.updated, item.published);
    let (mut deleted, mut mark) = (false, Mark::default());
    if let Some(Value::Array(elements)) = item.extra.get_mut(EXTRA) {
        if let Some(last) = elements.last().and_then(Value::as_str).and_then(Mark::read) {
            mark = last;
            elements.pop();
        }
        if elements.last().and_then(Value::as_str).is_some_and(is_tombstone) {
            deleted = true;
            elements.pop();
        }
        if elements.is_empty() && (mark.alone || deleted) {
            item.extra.remove(EXTRA);
        }
    }
    ReadObject { item, deleted, modified: mark.modified.or(updated).or(published), cursor: mark.cursor }
}

/// The element of our own at an entry's end.
#[derive(Default)]
struct Mark {
    cursor: Option<String>,
    modified: Option<Timestamp>,
    alone: bool,
}

impl Mark {
    fn read(element: &str) -> Option<Self> {
        let mut xml = XmlReader::new(element, None);
        let Ok(Token::Start(tag)) = xml.next() else { return None };
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
    let Ok(Token::Start(tag)) = xml.next() else { return false };
    tag.local == "deleted-entry" && xml.bound_to(prefix(tag.name)) == TOMBSTONES
}

fn prefix(name: &str) -> Option<&str> {
    name.split_once(':').map(|(prefix, _)| prefix)
}
