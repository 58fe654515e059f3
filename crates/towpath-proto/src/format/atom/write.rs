//! Writing Atom documents.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::content;
use crate::format::document::{DocumentEntry, DocumentHead, EntryIds, encoded_id};
use crate::format::error::FormatError;
use crate::format::feed_document::DeletedEntry;
use crate::format::iri::is_iri;
use crate::format::item_builder::{EXTRA, ItemBuilder};
use crate::format::xml::{
    ATOM, FANOUT, HISTORY, Ns, TOMBSTONES, TOWPATH, Tag, XmlReader, XmlToken, XmlWriter, is_xml_text,
};
use crate::item::{Author, Item};

/// Writes a feed document. Valid by RFC 4287 if the ids in `head` are IRIs; deterministic.
pub fn write<'a>(head: &DocumentHead<'_>, entries: impl IntoIterator<Item = DocumentEntry<'a>>) -> String {
    let mut xml = XmlWriter::document();
    xml.start("feed").attribute("xmlns", ATOM);
    xml.attribute("xmlns:fh", HISTORY).attribute("xmlns:at", TOMBSTONES);
    xml.attribute("xmlns:fo", FANOUT).attribute("xmlns:tp", TOWPATH);
    xml.optional_attribute("xml:lang", head.lang);
    xml.line().element("id", head.id).line().element("title", head.title);
    xml.line().element("updated", &head.updated.to_string());
    // Section 4.1.1: a feed must have an author unless all of its entries do.
    feed_author(xml.line(), head.title);
    xml.line().element("generator", "towpath");
    if let Some(home) = head.home {
        xml.line().start("link").attribute("rel", "alternate").attribute("href", home).end();
    }
    // The home was written above as the alternate; a second one would contradict it.
    for link in head.links.iter().filter(|l| l.rel != "alternate" || Some(l.href.as_str()) != head.home) {
        xml.line().start("link").attribute("rel", &link.rel);
        xml.optional_attribute("type", link.media_type.as_deref()).attribute("href", &link.href).end();
    }
    history(&mut xml, head);
    for deleted in &head.deleted {
        deleted_entry(&mut xml, head, deleted);
    }
    for entry in entries {
        xml.line().start("entry");
        entry_elements(&mut xml, &entry, &head.ids);
        xml.end();
    }
    xml.line();
    xml.finish()
}

/// Writes an entry as a standalone element (section 4.1.2), without an XML declaration. An item without an
/// author gets that of its feed, whose title is `title`.
pub fn write_entry(entry: &DocumentEntry<'_>, ids: &EntryIds<'_>, title: &str) -> String {
    let mut xml = XmlWriter::default();
    xml.start("entry").attribute("xmlns", ATOM);
    xml.attribute("xmlns:fo", FANOUT).attribute("xmlns:tp", TOWPATH);
    // A standalone entry has no feed element that could name the author.
    if entry.item.authors.is_empty() {
        feed_author(&mut xml, title);
    }
    entry_elements(&mut xml, entry, ids);
    xml.finish()
}

/// Writes the placeholder author for items without authors.
fn feed_author(xml: &mut XmlWriter, title: &str) {
    xml.start("author").attribute("tp:assigned", "1").start("name").text(title.trim()).end().end();
}

/// Writes the elements of Feed History, RFC 5005 and Smart Feeds.
pub(crate) fn history(xml: &mut XmlWriter, head: &DocumentHead<'_>) {
    if let Some(stateful) = head.stateful {
        xml.line().element("fh:Stateful", if stateful { "1" } else { "0" });
    }
    if head.complete {
        xml.line().start("fh:complete").end();
    }
    if head.archive {
        xml.line().start("fh:archive").end();
    }
    if let Some(total) = head.smart.total {
        xml.line().element("fo:total", &total.to_string());
    }
    if let Some(cursor) = &head.smart.prev_cursor {
        xml.line().element("fo:prev_cursor", cursor);
    }
    if let Some(cursor) = &head.smart.last_cursor {
        xml.line().element("fo:last_cursor", cursor);
    }
}

/// Writes a tombstone (RFC 6721, section 3).
pub(crate) fn deleted_entry(xml: &mut XmlWriter, head: &DocumentHead<'_>, deleted: &DeletedEntry) {
    // RFC 6721, section 3, requires the date.
    let when = deleted.when.unwrap_or(head.updated);
    xml.line().start("at:deleted-entry").attribute("ref", &head.ids.iri(&deleted.id));
    xml.attribute("when", &when.to_string());
    own_id_element(xml, &deleted.id, &head.ids);
    xml.end();
}

/// Writes the item's id if it differs from the entry's IRI. An id that XML cannot hold is percent-encoded in
/// `tp:id`, and `fo:id` is the IRI.
pub(crate) fn own_id_element(xml: &mut XmlWriter, id: &str, ids: &EntryIds<'_>) {
    let is_text = is_xml_text(id);
    if ids.always_own_id || is_text && !is_iri(id) {
        let told = if is_text { id.into() } else { ids.iri(id) };
        xml.element("fo:id", &told);
    }
    if !is_text {
        xml.element("tp:id", &encoded_id(id));
    }
}

fn entry_elements(xml: &mut XmlWriter, entry: &DocumentEntry<'_>, ids: &EntryIds<'_>) {
    let item = entry.item;
    xml.element("id", &ids.iri(&item.id));
    own_id_element(xml, &item.id, ids);
    xml.element("title", item.title.as_deref().unwrap_or_default());
    match item.updated {
        Some(updated) => xml.element("updated", &updated.to_string()),
        None => xml.start("updated").attribute("tp:assigned", "1").text(&entry.modified.to_string()).end(),
    };
    if entry.tells_modified && item.updated.is_some() {
        xml.element("tp:modified", &entry.modified.to_string());
    }
    if let Some(published) = item.published {
        xml.element("published", &published.to_string());
    }
    if let Some(url) = &item.url {
        xml.start("link").attribute("rel", "alternate").attribute("href", url).end();
    }
    for author in &item.authors {
        person(xml, ["author", "name", "email", "uri"], author);
    }
    for tag in &item.tags {
        xml.start("category").attribute("term", tag).end();
    }
    texts(xml, item);
    extras(xml, item, |element| fits(element, item), |element| Cow::Borrowed(element));
    for element in entry.elements {
        xml.raw(element);
    }
}

/// Writes summary and content, and those that section 4.1.2 requires.
fn texts(xml: &mut XmlWriter, item: &Item) {
    let has_source =
        item.content.is_none() && kept(item).any(|e| e.contains(":content ") || e.contains("<content "));
    let summary = item.summary.as_deref().filter(|s| !s.is_empty());
    if summary.is_some() || has_source || item.content.as_ref().is_some_and(content::needs_summary) {
        let summary = summary.unwrap_or_default();
        xml.start("summary");
        if looks_like_html(summary) {
            xml.attribute("type", "html");
        }
        xml.text_attributes(summary).text(summary).end();
    }
    match &item.content {
        Some(content) => content::write(xml, "content", content),
        // An entry without an alternate link must have content, even if empty.
        None if item.url.is_none() && !has_source => {
            xml.start("content").end();
        }
        None => {}
    }
}

/// Returns `true` if a text of unknown type contains tags or references.
fn looks_like_html(text: &str) -> bool {
    let after = |mark| memchr::memchr_iter(mark, text.as_bytes()).filter_map(|n| text.as_bytes().get(n + 1));
    after(b'<').any(|b| b.is_ascii_alphabetic() || *b == b'/')
        || after(b'&').any(|b| b.is_ascii_alphabetic() || *b == b'#')
}

/// Writes a person (section 3.2). Values that Atom does not allow are written in our namespace.
pub(crate) fn person(xml: &mut XmlWriter, names: [&'static str; 4], author: &Author) {
    let [element, name, email, uri] = names;
    // Atom's three elements allow no attributes, not even `xml:space`.
    xml.start(element).start(name).text(author.name.trim()).end();
    if author.name.trim().len() != author.name.len() {
        xml.element("tp:name", &author.name);
    }
    if let Some(address) = &author.email {
        let valid = address.trim().len() == address.len()
            && address.split_once('@').is_some_and(|(local, host)| !local.is_empty() && !host.is_empty());
        xml.element(if valid { email } else { "tp:email" }, address);
    }
    if let Some(address) = &author.url {
        xml.element(if is_iri(address) { uri } else { "tp:uri" }, address);
    }
    xml.end();
}

/// Iterates over the stored elements of an item.
fn kept(item: &Item) -> impl Iterator<Item = &str> {
    let elements = item.extra.get(EXTRA).and_then(Value::as_array);
    elements.into_iter().flatten().filter_map(Value::as_str)
}

/// Writes the rest of the item. Stored elements are written directly if all of them read back identically
/// (`fits`), in the document's own `form`; everything else is written as JSON.
pub(crate) fn extras(
    xml: &mut XmlWriter,
    item: &Item,
    fits: impl Fn(&str) -> bool,
    form: impl Fn(&str) -> Cow<'_, str>,
) {
    if item.extra.is_empty() {
        return;
    }
    let elements = item.extra.get(EXTRA).and_then(Value::as_array);
    let as_elements = elements.is_some_and(|list| {
        !list.is_empty() && list.iter().all(|element| element.as_str().is_some_and(&fits))
    });
    if as_elements {
        kept(item).for_each(|element| {
            xml.raw(&form(element));
        });
    }
    let rest: Map<String, Value> = item
        .extra
        .iter()
        .filter(|(key, _)| !(as_elements && *key == EXTRA))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    if !rest.is_empty() {
        xml.element("tp:extra", &Value::Object(rest).to_string());
    }
}

/// Returns `true` if Atom allows the element in an entry and the reader stores it unchanged.
fn fits(element: &str, item: &Item) -> bool {
    let allowed = |tag: Tag<'_>, element: &str| match (tag.ns, tag.local) {
        (Ns::Atom, "link") => element.contains(" href=\""),
        (Ns::Atom, "content") => item.content.is_none(),
        (Ns::Atom, local) => matches!(local, "category" | "contributor" | "rights" | "source"),
        _ => true,
    };
    is_kept(element, item, |xml, tag, builder| {
        if !allowed(tag, element) {
            return Ok(());
        }
        super::element(xml, tag, builder)
    })
}

/// Returns `true` if a reader of items stores the element unchanged and derives nothing else from it.
pub(crate) fn is_kept(
    element: &str,
    item: &Item,
    read: impl for<'i> Fn(&mut XmlReader<'i>, Tag<'i>, &mut ItemBuilder) -> Result<(), FormatError>,
) -> bool {
    let known = Item { url: item.url.clone(), tags: item.tags.clone(), ..Item::default() };
    let mut builder = ItemBuilder::default();
    builder.item = known.clone();
    let mut xml = XmlReader::new(element, None);
    let Ok(XmlToken::Start(tag)) = xml.next() else { return false };
    read(&mut xml, tag, &mut builder).is_ok() && xml.finish().is_ok() && builder.kept_only(element, &known)
}
