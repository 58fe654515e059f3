//! Writing Atom documents.

use std::borrow::Cow;

use serde_json::Value;

use super::content;
use crate::attachment;
use crate::format::document::{DocumentEntry, DocumentHead, EntryIds, encoded_id};
use crate::format::error::FormatError;
use crate::format::feed_document::DeletedEntry;
use crate::format::html;
use crate::format::iri::{encoded, is_iri};
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
    xml.attribute("tp:addresses", "kept").optional_attribute("xml:lang", head.lang);
    xml.line().element("id", head.id).line().element("title", head.title);
    if let Some(description) = head.description {
        text_construct(xml.line(), "subtitle", description);
    }
    xml.line().element("updated", &head.updated.to_string());
    match head.author {
        // The mark keeps it from our reader's items: they have no authors of their own.
        Some(author) => person_with(xml.line(), ["author", "name", "email", "uri"], author, Some("feed")),
        // Section 4.1.1: a feed must have an author unless all of its entries do.
        None => feed_author(xml.line(), head.title),
    }
    xml.line().element("generator", "towpath");
    if let Some(image) = head.image {
        xml.line().element("logo", &encoded(image));
    }
    if let Some(home) = head.home {
        xml.line().start("link").attribute("rel", "alternate").attribute("href", &encoded(home)).end();
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
        xml.line().start("entry").optional_attribute("xml:base", content_base(entry.item, head.items_page()));
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
    if let Some(base) = content_base(entry.item, None) {
        xml.attribute("tp:addresses", "kept").attribute("xml:base", base);
    }
    // A standalone entry has no feed element that could name the author.
    if entry.item.authors.is_empty() {
        feed_author(&mut xml, title);
    }
    entry_elements(&mut xml, entry, ids);
    xml.finish()
}

/// Base of relative addresses that lead nowhere. A reader must not look for them beside our document.
pub(crate) const NOWHERE: &str = "about:invalid";

/// Returns the base of relative addresses in an item's texts, if it has any: the item's page, or the feed's.
pub fn content_base<'a>(item: &'a Item, home: Option<&'a str>) -> Option<&'a str> {
    let text = item.content.as_ref().and_then(|content| content.shown()).map(|(_, text)| text);
    let is_needed = [text, item.summary.as_deref()].into_iter().flatten().any(html::has_relative);
    is_needed.then(|| page(item, home).unwrap_or(NOWHERE))
}

/// Returns the page that an item is a part of: its own, or the feed's.
pub(crate) fn page<'a>(item: &'a Item, home: Option<&'a str>) -> Option<&'a str> {
    let is_page = |url: &&str| is_iri(url) && url.starts_with("http");
    item.url.as_deref().filter(is_page).or(home.filter(is_page))
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
fn deleted_entry(xml: &mut XmlWriter, head: &DocumentHead<'_>, deleted: &DeletedEntry) {
    start_deleted_entry(xml, head, deleted, &head.ids.iri(&deleted.id));
    own_id_element(xml, &deleted.id, &head.ids);
    xml.end();
}

/// Starts a tombstone of the entry that the document calls `name`.
pub(crate) fn start_deleted_entry(
    xml: &mut XmlWriter,
    head: &DocumentHead<'_>,
    deleted: &DeletedEntry,
    name: &str,
) {
    // RFC 6721, section 3, requires the date.
    let when = deleted.when.unwrap_or(head.updated);
    xml.line().start("at:deleted-entry").attribute("ref", name).attribute("when", &when.to_string());
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

/// Writes the item's URL if it differs from the entry's link, which is an IRI.
pub(crate) fn own_url_element(xml: &mut XmlWriter, url: &str) {
    if encoded(url) != url {
        xml.element("tp:url", &encoded_id(url));
    }
}

/// Marks a field that the item has as an empty text. Both formats require some elements, and readers take an empty one
/// for none.
// Not an attribute of the element: JavaScript parsers take an element with one for an object. The mark makes earlier
// versions skip it.
pub(crate) fn empty_field(xml: &mut XmlWriter, name: &str, text: Option<&str>) {
    if text.is_some_and(str::is_empty) {
        xml.start("tp:empty").attribute("tp:assigned", "1").text(name).end();
    }
}

fn entry_elements(xml: &mut XmlWriter, entry: &DocumentEntry<'_>, ids: &EntryIds<'_>) {
    let item = entry.item;
    xml.element("id", &ids.iri(&item.id));
    own_id_element(xml, &item.id, ids);
    xml.element("title", item.title.as_deref().unwrap_or_default());
    empty_field(xml, "title", item.title.as_deref());
    match item.updated {
        Some(updated) => xml.element("updated", &updated.to_string()),
        // Beside the date, not on it: readers take an element with an attribute for an object, not a date.
        None => xml.element("updated", &entry.modified.to_string()).element("tp:assigned", "updated"),
    };
    if entry.tells_modified && item.updated.is_some() {
        // Not "modified": parsers that ignore namespaces take that for the date of Atom 0.3.
        xml.element("tp:changed", &entry.modified.to_string());
    }
    if let Some(published) = item.published {
        xml.element("published", &published.to_string());
    }
    if let Some(url) = &item.url {
        xml.start("link").attribute("rel", "alternate").attribute("href", &encoded(url)).end();
        own_url_element(xml, url);
    }
    for author in &item.authors {
        person(xml, ["author", "name", "email", "uri"], author);
    }
    texts(xml, item);
    let form = ElementForm {
        fits: &|element| fits(element, item),
        write: &|element| Cow::Borrowed(element),
        category: &|element| category(element, Ns::Atom),
        tag: &|xml, tag| match tag {
            "" => empty_field(xml, "tag", Some(tag)),
            tag => drop(xml.start("category").attribute("term", tag).end()),
        },
        shows: &|element| attachment::of_element(element).map(|found| found.url),
    };
    let shown = extras(xml, item, &form);
    for attachment in attachment::attachments(item).iter().filter(|one| !shown.contains(&one.url)) {
        // The mark keeps it from our reader's items, which hold it elsewhere.
        xml.start("link").attribute("rel", "enclosure").attribute("tp:assigned", "1");
        xml.optional_attribute("type", attachment.media_type.as_deref());
        xml.attribute("href", &encoded(&attachment.url));
        xml.optional_attribute("length", attachment.size.map(|size| size.to_string()).as_deref());
        xml.optional_attribute("title", attachment.title.as_deref()).end();
    }
    derived_image(xml, item, !shown.is_direct);
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
        text_construct(xml, "summary", summary.unwrap_or_default());
    }
    empty_field(xml, "summary", item.summary.as_deref());
    match &item.content {
        Some(content) => content::write(xml, "content", content),
        // An entry without an alternate link must have content, even if empty.
        None if item.url.is_none() && !has_source => {
            xml.start("content").end();
        }
        None => {}
    }
}

/// Writes a text construct (section 3.1): plain text or HTML, as its characters tell.
fn text_construct(xml: &mut XmlWriter, name: &'static str, text: &str) {
    xml.start(name);
    if html::looks_like_html(text) {
        xml.attribute("type", "html");
    }
    xml.text_attributes(text).text(text).end();
}

/// Writes a person (section 3.2). Values that Atom does not allow are written in our namespace.
pub(crate) fn person(xml: &mut XmlWriter, names: [&'static str; 4], author: &Author) {
    person_with(xml, names, author, None);
}

fn person_with(xml: &mut XmlWriter, names: [&'static str; 4], author: &Author, mark: Option<&str>) {
    let [element, name, email, uri] = names;
    // Atom's three elements allow no attributes, not even `xml:space`.
    let shown = author.shown_name().trim();
    xml.start(element).optional_attribute("tp:assigned", mark).start(name).text(shown).end();
    if shown != author.name {
        xml.element("tp:name", &author.name);
    }
    if let Some(address) = &author.email {
        let valid = address.trim().len() == address.len()
            && address.split_once('@').is_some_and(|(local, host)| !local.is_empty() && !host.is_empty());
        xml.element(if valid { email } else { "tp:email" }, address);
    }
    if let Some(address) = &author.url {
        let is_good = is_iri(address) && encoded(address) == *address;
        xml.element(if is_good { uri } else { "tp:uri" }, address);
    }
    xml.end();
}

/// Iterates over the stored elements of an item.
fn kept(item: &Item) -> impl Iterator<Item = &str> {
    let elements = item.extra.get(EXTRA).and_then(Value::as_array);
    elements.into_iter().flatten().filter_map(Value::as_str)
}

/// Writes an image that no stored element shows as a thumbnail of Media RSS.
pub(crate) fn derived_image(xml: &mut XmlWriter, item: &Item, elements_are_hidden: bool) {
    let is_shown = !elements_are_hidden && kept(item).any(|e| attachment::image_of_element(e).is_some());
    let Some(image) = attachment::image(item).filter(|_| !is_shown) else { return };
    xml.start("media:thumbnail").attribute("xmlns:media", attachment::MEDIA_RSS);
    xml.attribute("url", &encoded(&image)).attribute("tp:assigned", "1").end();
}

/// Form of stored elements and tags in a format.
pub(crate) struct ElementForm<'a> {
    /// Returns `true` if the element reads back identically.
    pub(crate) fits: &'a dyn Fn(&str) -> bool,
    /// Returns the element as the format writes it.
    pub(crate) write: &'a dyn for<'e> Fn(&'e str) -> Cow<'e, str>,
    /// Returns the tag of an element that is a category of the format.
    pub(crate) category: &'a dyn Fn(&str) -> Option<String>,
    /// Writes a tag as a category.
    pub(crate) tag: &'a dyn Fn(&mut XmlWriter, &str),
    /// Returns the URL of the attachment that readers of the format see in the element.
    pub(crate) shows: &'a dyn Fn(&str) -> Option<String>,
}

/// Stored elements that a document shows.
pub(crate) struct ShownElements {
    /// `true` if they were written as elements.
    pub(crate) is_direct: bool,
    /// Attachments in them.
    attachments: Vec<String>,
}

impl ShownElements {
    pub(crate) fn contains(&self, url: &str) -> bool {
        self.attachments.iter().any(|shown| shown == url)
    }
}

/// Writes the tags and the rest of the item. Stored elements are written directly if all of them read back
/// identically, in the document's own form; everything else is written as JSON.
pub(crate) fn extras(xml: &mut XmlWriter, item: &Item, form: &ElementForm<'_>) -> ShownElements {
    let elements = item.extra.get(EXTRA).and_then(Value::as_array);
    let is_direct = elements.is_some_and(|list| {
        !list.is_empty() && list.iter().all(|element| element.as_str().is_some_and(form.fits))
    });
    let stored: Vec<&str> = if is_direct { kept(item).collect() } else { Vec::new() };
    categories_and_elements(xml, item, &stored, form);
    let mut rest = item.extra.clone();
    if is_direct {
        rest.remove(EXTRA);
    }
    if !rest.is_empty() {
        xml.element("tp:extra", &Value::Object(rest).to_string());
    }
    ShownElements {
        is_direct,
        attachments: stored.iter().filter_map(|element| (form.shows)(element)).collect(),
    }
}

/// Writes tags and stored elements, each in their order. A tag whose stored category comes next is that one:
/// readers must not find it twice.
fn categories_and_elements(xml: &mut XmlWriter, item: &Item, stored: &[&str], form: &ElementForm<'_>) {
    let mut rest = stored;
    for tag in &item.tags {
        let next = rest.iter().position(|element| (form.category)(element).is_some());
        match next.filter(|at| (form.category)(rest[*at]).as_ref() == Some(tag)) {
            Some(at) => {
                rest[..=at].iter().for_each(|element| {
                    xml.raw(&(form.write)(element));
                });
                rest = &rest[at + 1..];
            }
            None => (form.tag)(xml, tag),
        }
    }
    rest.iter().for_each(|element| {
        xml.raw(&(form.write)(element));
    });
}

/// Returns the tag of a stored element that is a category of a format.
pub(crate) fn category(element: &str, format: Ns) -> Option<String> {
    // Most elements are none, and parsing costs more than this.
    element.contains("category").then_some(())?;
    let mut xml = XmlReader::new(element, None);
    let Ok(XmlToken::Start(tag)) = xml.next() else { return None };
    if (tag.ns, tag.local) != (format, "category") {
        return None;
    }
    let text = match format {
        Ns::Atom => xml.attribute("term").ok()??.into_owned(),
        _ => xml.trimmed_text().ok()?,
    };
    Some(text).filter(|text| !text.is_empty())
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
