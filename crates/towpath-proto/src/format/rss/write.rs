//! Writing RSS 2.0 documents.

use std::borrow::Cow;

use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;

use crate::Timestamp;
use crate::attachment;
use crate::format::document::{DocumentEntry, DocumentHead, EntryIds};
use crate::format::feed_document::DeletedEntry;
use crate::format::iri::encoded;
use crate::format::xml::{
    ATOM, CONTENT, DUBLIN_CORE, FANOUT, HISTORY, Ns, TOMBSTONES, TOWPATH, XmlReader, XmlToken, XmlWriter,
    escape_attribute, is_xml_text,
};
use crate::format::{atom, html};
use crate::item::{Author, Content, ContentForm, Item};

/// Type of an enclosure of unknown type.
const OCTETS: &str = "application/octet-stream";
/// Names of Atom's person elements in these documents.
const PERSON: [&str; 4] = ["atom:author", "atom:name", "atom:email", "atom:uri"];

/// Writes a feed document (RSS 2.0.11); deterministic.
pub fn write<'a>(head: &DocumentHead<'_>, entries: impl IntoIterator<Item = DocumentEntry<'a>>) -> String {
    let mut xml = XmlWriter::document();
    xml.start("rss").attribute("version", "2.0");
    xml.attribute("xmlns:atom", ATOM).attribute("xmlns:content", CONTENT).attribute("xmlns:dc", DUBLIN_CORE);
    xml.attribute("xmlns:fh", HISTORY).attribute("xmlns:at", TOMBSTONES);
    xml.attribute("xmlns:fo", FANOUT).attribute("xmlns:tp", TOWPATH).attribute("tp:addresses", "kept");
    xml.line().start("channel");
    // RSS 2.0 requires title, link and description.
    xml.line().element("title", head.title);
    // The link is required; the id is at least unique.
    let home = encoded(head.home.or(head.link("self")).unwrap_or(head.id));
    xml.line().element("link", &home);
    xml.line().element("description", head.description.unwrap_or(head.title));
    channel_author(&mut xml, head.author);
    if let Some(image) = head.image {
        // "title" and "link" should have the same value as the channel's.
        xml.line()
            .start("image")
            .element("url", &encoded(image))
            .element("title", head.title)
            .element("link", &home)
            .end();
    }
    if let Some(lang) = head.lang {
        xml.line().element("language", lang);
    }
    if let Some(date) = rfc822(head.updated) {
        xml.line().element("lastBuildDate", &date);
    }
    xml.line().element("generator", "towpath");
    xml.line().element("atom:id", head.id).line().element("atom:updated", &head.updated.to_string());
    for link in &head.links {
        xml.line().start("atom:link").attribute("rel", &link.rel);
        xml.optional_attribute("type", link.media_type.as_deref()).attribute("href", &link.href).end();
    }
    atom::history(&mut xml, head);
    for deleted in &head.deleted {
        deleted_entry(&mut xml, head, deleted);
    }
    for entry in entries {
        xml.line()
            .start("item")
            .optional_attribute("xml:base", atom::content_base(entry.item, head.items_page()));
        item_elements(&mut xml, &entry, &head.ids);
        xml.end();
    }
    xml.line().end().line();
    xml.finish()
}

/// Writes the channel's author. RSS's own element requires an e-mail address.
fn channel_author(xml: &mut XmlWriter, author: Option<&Author>) {
    let Some(author) = author else { return };
    match author.email.as_deref().filter(|email| email.contains('@')) {
        Some(email) if author.name.is_empty() => xml.line().element("managingEditor", email),
        Some(email) => xml.line().element("managingEditor", &format!("{email} ({})", author.name)),
        None => xml.line().element("dc:creator", &author.name),
    };
}

fn item_elements(xml: &mut XmlWriter, entry: &DocumentEntry<'_>, ids: &EntryIds<'_>) {
    let item = entry.item;
    let title = item.title.as_deref().filter(|t| !t.is_empty());
    // "At least one of title or description must be present."
    if title.is_some() || item.summary.is_none() {
        xml.element("title", title.unwrap_or_default());
    }
    atom::empty_field(xml, "title", item.title.as_deref());
    if let Some(url) = &item.url {
        xml.element("link", &encoded(url));
        atom::own_url_element(xml, url);
    }
    guid(xml, item, ids);
    dates(xml, item, entry.modified);
    if entry.tells_modified {
        xml.element("tp:changed", &entry.modified.to_string());
    }
    for author in &item.authors {
        match (&author.email, &author.url) {
            // RSS's own author element requires an e-mail address.
            (None, None) => {
                xml.element("dc:creator", &author.name);
            }
            _ => {
                atom::person(xml, PERSON, author);
                // Most readers of RSS know no other element for an author.
                xml.start("dc:creator").attribute("tp:assigned", "1").text(author.shown_name()).end();
            }
        }
    }
    if let Some(summary) = &item.summary {
        xml.element("description", summary);
        atom::empty_field(xml, "summary", Some(summary));
    }
    if let Some(content) = &item.content {
        write_content(xml, content);
    }
    let form = atom::ElementForm {
        fits: &|element| super::read::keeps(element, item),
        write: &for_rss,
        category: &|element| atom::category(element, Ns::Rss),
        tag: &|xml, tag| match tag {
            "" => atom::empty_field(xml, "tag", Some(tag)),
            tag => drop(xml.element("category", tag)),
        },
        shows: &|element| {
            enclosure(element).and_then(|_| attachment::of_element(element)).map(|found| found.url)
        },
    };
    let shown = atom::extras(xml, item, &form);
    for one in attachment::attachments(item).iter().filter(|one| !shown.contains(&one.url)) {
        // RSS requires all three; the mark keeps them from our reader's items.
        xml.start("enclosure").attribute("url", &encoded(&one.url));
        xml.attribute("length", &one.size.unwrap_or_default().to_string());
        xml.attribute("type", one.media_type.as_deref().unwrap_or(OCTETS))
            .attribute("tp:assigned", "1")
            .end();
    }
    atom::derived_image(xml, item, !shown.is_direct);
    for element in entry.elements {
        xml.raw(element);
    }
}

/// Writes the item's id, or its IRI if XML cannot hold the id. It is a permalink only if it equals the item's
/// URL.
fn guid(xml: &mut XmlWriter, item: &Item, ids: &EntryIds<'_>) {
    let guid = guid_text(&item.id, ids);
    // Readers follow a permalink, so it must be a URL.
    let is_address =
        item.url.as_ref() == Some(&item.id) && item.id.starts_with("http") && encoded(&item.id) == item.id;
    xml.start("guid").attribute("isPermaLink", if is_address { "true" } else { "false" });
    xml.text_attributes(&guid).text(&guid).end();
    if !is_guid(&item.id) || ids.always_own_id {
        atom::own_id_element(xml, &item.id, ids);
    }
}

/// Returns the text of an item's guid.
fn guid_text<'i>(id: &'i str, ids: &EntryIds<'_>) -> Cow<'i, str> {
    if is_guid(id) { Cow::Borrowed(id) } else { ids.iri(id) }
}

/// Returns `true` if a guid can have an id. It is any text, but XML cannot hold every character, and readers take spaces
/// alone for nothing.
fn is_guid(id: &str) -> bool {
    is_xml_text(id) && !id.trim().is_empty()
}

/// Writes a tombstone, which names the item's guid.
fn deleted_entry(xml: &mut XmlWriter, head: &DocumentHead<'_>, deleted: &DeletedEntry) {
    atom::start_deleted_entry(xml, head, deleted, &guid_text(&deleted.id, &head.ids));
    if !is_guid(&deleted.id) || head.ids.always_own_id {
        atom::own_id_element(xml, &deleted.id, &head.ids);
    }
    xml.end();
}

/// Writes the dates. RSS has whole seconds; Atom's elements hold the fraction. Readers of RSS show `pubDate` only, so an
/// item without one gets the time of its last change, marked.
fn dates(xml: &mut XmlWriter, item: &Item, modified: Timestamp) {
    if let Some(published) = item.published {
        let date = rfc822(published);
        if let Some(date) = &date {
            xml.element("pubDate", date);
        }
        // RFC 822 has no fractions of a second.
        if date.is_none() || published.subsec_nanosecond() != 0 {
            xml.element("atom:published", &published.to_string());
        }
    }
    let shown = Some(item.updated.unwrap_or(modified)).filter(|_| item.published.is_none());
    if let Some(date) = shown.and_then(rfc822) {
        // Not an attribute: parsers lose a date that has one.
        xml.element("pubDate", &date).element("tp:assigned", "published");
    }
    if let Some(updated) = item.updated {
        xml.element("atom:updated", &updated.to_string());
    }
}

fn rfc822(time: Timestamp) -> Option<String> {
    rfc2822::to_string(&time.to_zoned(TimeZone::UTC)).ok()
}

/// Writes the content. Readers of RSS show HTML only, so other text is written as HTML that shows it.
fn write_content(xml: &mut XmlWriter, content: &Content) {
    let Some((shown, text)) = content.shown().filter(|(_, text)| is_xml_text(text)) else {
        return atom::write_content(xml, "atom:content", content);
    };
    // A type that says more than the form is held in our attribute. It is not `tp:type`: feedparser drops the prefix, and
    // does not sanitise what is of a type with a parameter.
    xml.start("content:encoded").optional_attribute("tp:media", content.type_beyond(shown));
    match shown {
        ContentForm::Html => xml.text(text).end(),
        ContentForm::Text => xml.attribute("tp:form", "text").text(&html::escape(text)).end(),
    };
}

/// Returns a stored element in RSS's form: without a redundant declaration, and enclosures as RSS's own.
fn for_rss(element: &str) -> Cow<'_, str> {
    if let Some(enclosure) = enclosure(element) {
        return Cow::Owned(enclosure);
    }
    match element.split_once(" xmlns=\"\"") {
        Some((start, rest)) if start[1..].bytes().all(|b| b.is_ascii_alphanumeric()) => {
            Cow::Owned(format!("{start}{rest}"))
        }
        _ => Cow::Borrowed(element),
    }
}

/// Returns the enclosure that the reader turns into exactly this link.
fn enclosure(element: &str) -> Option<String> {
    let mut xml = XmlReader::new(element, None);
    let Ok(XmlToken::Start(_)) = xml.next() else { return None };
    let names: Vec<&str> = xml.raw_attributes().iter().map(|(name, _)| *name).collect();
    let given = ["type", "length"].into_iter().filter(|name| names.contains(name));
    // Exactly the attributes that the reader writes; any other link stays as it is.
    if !names.iter().copied().eq(["xmlns", "rel", "href"].into_iter().chain(given))
        || xml.attribute("xmlns").ok()?? != ATOM
        || xml.attribute("rel").ok()?? != "enclosure"
    {
        return None;
    }
    let mut enclosure = "<enclosure".to_owned();
    let mut assigned = Vec::new();
    for (name, source, usual) in [("url", "href", ""), ("length", "length", "0"), ("type", "type", OCTETS)] {
        let value = xml.attribute(source).ok()?;
        let fits = |value: &str| match name {
            // Read as absent: RSS has no enclosure without them.
            "length" => !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()),
            _ => !value.trim().is_empty(),
        };
        match &value {
            Some(value) if !fits(value) => return None,
            Some(_) => {}
            None => assigned.push(name),
        }
        let value = value.unwrap_or(Cow::Borrowed(usual));
        enclosure.push_str(&format!(" {name}=\"{}\"", escape_attribute(&value)));
    }
    if !assigned.is_empty() {
        enclosure.push_str(&format!(" tp:assigned=\"{}\"", assigned.join(" ")));
    }
    enclosure.push_str("/>");
    Some(enclosure)
}
