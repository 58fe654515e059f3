//! Pages as Atom documents ("HTTP Pull").
//!
//! Each entry ends with the extension element `tp:change`, which other readers ignore. It holds the item's cursor
//! and the time at which the log appended this version. A deleted item is an entry without content that holds an
//! `at:deleted-entry` (RFC 6721).

use super::links::PullPageLinks;
use super::page::PullPage;
use super::query::PullQuery;
use super::settings::FeedSettings;
use crate::change::{Change, Op};
use crate::format::atom;
use crate::format::document::{DocumentEntry, DocumentHead, EntryIds};
use crate::format::xml::{TOMBSTONES, TOWPATH, XmlWriter};
use crate::format::{FeedLink, SmartHead};
use crate::smart::wire::atom::EXTRA;
use crate::smart::wire::spec::OrderBy;

/// Writes a page as an Atom document.
pub fn write(feed: &FeedSettings, query: &PullQuery, page: &PullPage) -> Vec<u8> {
    write_with(feed, query, page, &PullPageLinks::new(feed, query, page), None)
}

/// Writes a page with the given links and, for a pushed page, the previous cursor.
pub(super) fn write_with(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &PullPage,
    links: &PullPageLinks,
    prev_cursor: Option<&str>,
) -> Vec<u8> {
    let items = format!("{}/", feed.base);
    let mut head = DocumentHead::new(&links.base, &feed.title, page.updated);
    // `always_own_id`: "Each entry also MUST have a fo:id value" ("HTTP Pull"), also if its id is an IRI.
    head.ids = EntryIds { base: &items, always_own_id: true };
    head.links.push(link("self", &links.base));
    head.links.extend(links.next.as_ref().map(|next| link("next", next)));
    head.links.extend_from_slice(&feed.links);
    // The hub belongs to the feed, in every format of its pages (PubSubHubbub 0.3, section 5). But it takes topics only, and
    // the text has the base URL as `rel=self`: where they differ, the headers name both.
    if let Some(hub) = feed.hub.as_ref().filter(|_| query.topic_query() == query.base_query) {
        head.links.push(FeedLink { rel: "hub".into(), href: hub.clone(), media_type: None });
    }
    let prev_cursor = prev_cursor.map(str::to_owned);
    head.smart = SmartHead { total: Some(page.total), last_cursor: page.last_cursor.clone(), prev_cursor };
    let by = query.order.by;
    let elements: Vec<Vec<String>> = page
        .changes
        .iter()
        .map(|change| change_elements(change, &page.cursor(&feed.tag, by, change), &head.ids))
        .collect();
    let entries = page.changes.iter().zip(&elements);
    let entries = entries.map(|(change, elements)| DocumentEntry {
        elements,
        ..DocumentEntry::new(&change.item, change.modified)
    });
    atom::write(&head, entries).into_bytes()
}

/// Writes one item as a standalone entry ("XMPP Pull/Push").
pub fn entry(feed: &FeedSettings, by: OrderBy, change: &Change) -> String {
    let items = format!("{}/", feed.base);
    let ids = EntryIds { base: &items, always_own_id: true };
    let elements = change_elements(change, &feed.tag.cursor(by, by.position(change)), &ids);
    let entry = DocumentEntry { elements: &elements, ..DocumentEntry::new(&change.item, change.modified) };
    atom::write_entry(&entry, &ids, &feed.title)
}

fn link(rel: &str, href: &str) -> FeedLink {
    FeedLink { rel: rel.into(), href: href.into(), media_type: Some("application/atom+xml".into()) }
}

/// Returns the extension elements that describe the change: `at:deleted-entry` and `tp:change`.
fn change_elements(change: &Change, cursor: &str, ids: &EntryIds<'_>) -> Vec<String> {
    let modified = change.modified.to_string();
    let mut elements = Vec::with_capacity(2);
    if change.op == Op::Delete {
        let mut xml = XmlWriter::default();
        xml.start("at:deleted-entry").attribute("xmlns:at", TOMBSTONES);
        xml.attribute("ref", &ids.iri(&change.item.id)).attribute("when", &modified);
        elements.push(xml.finish());
    }
    let mut xml = XmlWriter::default();
    xml.start("tp:change").attribute("xmlns:tp", TOWPATH);
    xml.attribute("cursor", cursor).attribute("modified", &modified);
    if !change.item.extra.contains_key(EXTRA) {
        // Tells the reader that the item has no foreign elements, not even an empty list of them.
        xml.attribute("alone", "1");
    }
    elements.push(xml.finish());
    elements
}
