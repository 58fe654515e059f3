//! Reading RSS documents.

use std::borrow::Cow;

use crate::Timestamp;
use crate::attachment::ITUNES;
use crate::format::error::FormatError;
use crate::format::feed_document::FeedDocument;
use crate::format::item_builder::{ItemBuilder, address, date_element, some_text};
use crate::format::xml::{ATOM, Ns, Tag, XmlReader, XmlToken, escape_attribute};
use crate::format::{atom, feed_head, html, iri};
use crate::item::{Author, Content, ContentForm, Item};

/// Reads the feed whose root element (`rss`, or RDF's) was just started.
pub(crate) fn read<'i>(
    xml: &mut XmlReader<'i>,
    _root: Tag<'i>,
    feed: &mut FeedDocument,
) -> Result<(), FormatError> {
    feed.lang = xml.attribute("xml:lang")?.map(Cow::into_owned);
    xml.keeps_addresses = xml.attribute_in(Ns::Towpath, "addresses")?.is_some();
    loop {
        match xml.next()? {
            XmlToken::Start(tag) => match (tag.ns, name_of(tag)) {
                (Ns::Rss, "channel") => channel(xml, feed)?,
                // RSS 0.90 and 1.0 place the items beside the channel.
                (Ns::Rss, "item") => {
                    let read = item(xml, tag)?;
                    feed.push(read, xml.budget())?;
                }
                _ => feed_head::read(xml, tag, feed)?,
            },
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => return Ok(()),
        }
    }
}

/// Returns the name of an element. Some writers have the names of RSS in another case, and readers take them.
fn name_of<'i>(tag: Tag<'i>) -> &'i str {
    const NAMES: [&str; 16] = [
        "item",
        "title",
        "link",
        "description",
        "guid",
        "pubDate",
        "category",
        "author",
        "enclosure",
        "channel",
        "image",
        "url",
        "language",
        "managingEditor",
        "lastBuildDate",
        "ttl",
    ];
    if tag.ns != Ns::Rss || NAMES.contains(&tag.local) {
        return tag.local;
    }
    NAMES.into_iter().find(|name| name.eq_ignore_ascii_case(tag.local)).unwrap_or(tag.local)
}

fn channel(xml: &mut XmlReader<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    // Podcasts name their author and image in Apple's module, and seldom in RSS's own elements.
    let mut podcast_author = None;
    loop {
        match xml.next()? {
            XmlToken::Start(tag) => match (tag.ns, name_of(tag)) {
                (Ns::Rss, "item") => {
                    let read = item(xml, tag)?;
                    feed.push(read, xml.budget())?;
                }
                (Ns::Rss, "title") => feed.title = title(xml)?,
                (Ns::Rss, "link") => {
                    feed.home = address(xml)?.or(feed.home.take());
                    xml.found_home(feed.home.as_deref());
                }
                (Ns::Rss, "description") => feed.description = some_text(xml)?,
                (Ns::Rss, "image") => image(xml, feed)?,
                (Ns::Rss, "managingEditor") => feed.authors.extend(some_text(xml)?.map(|t| author(&t))),
                (Ns::DublinCore, "creator") => feed.authors.extend(some_text(xml)?.map(Author::named)),
                (Ns::Rss, "language") | (Ns::DublinCore, "language") => {
                    feed.lang = some_text(xml)?.or(feed.lang.take());
                }
                (Ns::Rss, "ttl") => feed.ttl = xml.trimmed_text()?.parse().ok(),
                (Ns::Rss, "lastBuildDate") => feed.updated = date_element(xml, tag)?,
                (Ns::Other, "image") if is_of_itunes(xml, tag) => {
                    let url = xml.attribute("href")?.map(|href| xml.resolve(&href)).transpose()?;
                    feed.image = feed.image.take().or(url.map(iri::encode));
                    xml.skip()?;
                }
                (Ns::Other, "author") if is_of_itunes(xml, tag) => podcast_author = some_text(xml)?,
                (Ns::Atom, "id") => feed.id = some_text(xml)?,
                (Ns::Atom, "updated") => feed.updated = date_element(xml, tag)?.or(feed.updated),
                _ => feed_head::read(xml, tag, feed)?,
            },
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    if feed.authors.is_empty() {
        feed.authors.extend(podcast_author.map(Author::named));
    }
    // RSS 2.0 requires a description: without one, publishers repeat the title.
    feed.description = feed.description.take().filter(|text| Some(text) != feed.title.as_ref());
    Ok(())
}

fn is_of_itunes(xml: &XmlReader<'_>, tag: Tag<'_>) -> bool {
    let prefix = tag.prefix();
    xml.bound_to(Some(prefix).filter(|prefix| !prefix.is_empty())) == ITUNES
}

/// Reads the image of a channel.
fn image(xml: &mut XmlReader<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    loop {
        match xml.next()? {
            XmlToken::Start(tag) if tag.ns == Ns::Rss && name_of(tag) == "url" => {
                feed.image = address(xml)?.or(feed.image.take());
            }
            XmlToken::Start(_) => xml.skip()?,
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => return Ok(()),
        }
    }
}

/// Elements of an item that take precedence over others.
#[derive(Default)]
struct SeenElements {
    pub_date: bool,
}

fn item<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
) -> Result<Option<(Item, Option<Timestamp>)>, FormatError> {
    let mut builder = ItemBuilder::default();
    builder.format_id = xml.attribute_in(Ns::Rdf, "about")?.map(Cow::into_owned);
    let mut seen = SeenElements::default();
    xml.prefers_home = true;
    loop {
        match xml.next()? {
            XmlToken::Start(tag) if tag.ns == Ns::Rss => element(xml, tag, &mut builder, &mut seen)?,
            XmlToken::Start(tag) => module_element(xml, tag, &mut builder, &seen)?,
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    xml.prefers_home = false;
    Ok(builder.finish(xml, root.offset))
}

/// Returns `true` if the reader stores the element unchanged and derives nothing else from it.
pub(super) fn keeps(kept: &str, item: &Item) -> bool {
    atom::is_kept(kept, item, |xml, tag, builder| match tag.ns {
        Ns::Rss => element(xml, tag, builder, &mut SeenElements::default()),
        _ => module_element(xml, tag, builder, &SeenElements::default()),
    })
}

/// Returns `true` for our writer's form of something that the item holds elsewhere, or not at all.
fn is_derived(xml: &mut XmlReader<'_>) -> Result<bool, FormatError> {
    Ok(xml.attribute_in(Ns::Towpath, "assigned")?.is_some_and(|mark| mark == "1"))
}

/// Reads an element of RSS itself.
fn element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    builder: &mut ItemBuilder,
    seen: &mut SeenElements,
) -> Result<(), FormatError> {
    if is_derived(xml)? {
        return xml.skip();
    }
    match name_of(tag) {
        "title" => builder.item.title = title(xml)?,
        "link" => {
            let url = some_text(xml)?.map(|text| xml.resolve(&text)).transpose()?;
            builder.item.url = url.or(builder.item.url.take());
        }
        "description" => {
            let base = xml.content_base();
            let text = some_text(xml)?;
            builder.item.summary = text.map(|text| xml.resolve_html(text, base.as_ref())).transpose()?;
        }
        "guid" => {
            // RSS 2.0: a guid is a permalink unless isPermaLink is false.
            let is_permalink = xml.attribute("isPermaLink")?.is_none_or(|p| p.trim() != "false");
            builder.format_id = some_text(xml)?.or(builder.format_id.take());
            builder.id_is_address = is_permalink;
        }
        "pubDate" => {
            seen.pub_date = true;
            builder.item.published = builder.item.published.or(date_element(xml, tag)?);
        }
        "author" => builder.item.authors.extend(some_text(xml)?.map(|t| author(&t))),
        "category" => {
            let has_more = xml.raw_attributes().iter().any(|(name, _)| *name == "domain");
            if has_more {
                let kept = xml.capture(tag)?;
                builder.tag_of_stored_element(captured_text(&kept));
                builder.keep(xml, kept)?;
            } else {
                builder.tag(xml.trimmed_text()?);
            }
        }
        "enclosure" => {
            let link = enclosure(xml)?;
            builder.keep(xml, link)?;
            xml.skip()?;
        }
        _ => builder.keep_element(xml, tag)?,
    }
    Ok(())
}

/// Reads an element of a module: content, Dublin Core, Atom.
fn module_element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    builder: &mut ItemBuilder,
    seen: &SeenElements,
) -> Result<(), FormatError> {
    // Marked for earlier versions, which would store it.
    if (tag.ns, tag.local) != (Ns::Towpath, "empty") && is_derived(xml)? {
        return xml.skip();
    }
    match (tag.ns, tag.local) {
        // The writer's mark stands after the date.
        (Ns::Towpath, "assigned") => {
            if xml.text()?.trim() == "published" {
                builder.item.published = None;
            }
        }
        (Ns::Content, "encoded") => {
            let is_text = xml.attribute_in(Ns::Towpath, "form")?.is_some_and(|form| form == "text");
            let usual = if is_text { ContentForm::Text } else { ContentForm::Html }.media_type();
            // Earlier versions wrote `tp:type`.
            let stated = match xml.attribute_in(Ns::Towpath, "media")? {
                Some(stated) => Some(stated),
                None => xml.attribute_in(Ns::Towpath, "type")?,
            };
            let media_type = stated.map_or(usual.to_owned(), Cow::into_owned);
            let base = xml.content_base();
            let text = xml.text()?.into_owned();
            if is_text {
                let text = html::unescape(&text);
                builder.item.content = Some(Content::new(media_type, text));
                return Ok(());
            }
            builder.item.content = Some(Content::new(media_type, xml.resolve_html(text, base.as_ref())?));
        }
        (Ns::DublinCore, "creator") => builder.item.authors.extend(some_text(xml)?.map(Author::named)),
        (Ns::DublinCore, "subject") => builder.tag(xml.trimmed_text()?),
        (Ns::DublinCore, "date") => {
            let date = date_element(xml, tag)?;
            // pubDate is RSS's own date and wins, in whatever order the elements come.
            if !seen.pub_date {
                builder.item.published = date.or(builder.item.published);
            }
        }
        _ => atom::element(xml, tag, builder)?,
    }
    Ok(())
}

/// Reads a title. Most publishers write HTML, which the text (RSS 2.0.11) neither asks for nor forbids; ours is plain.
fn title(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    let is_own = xml.keeps_addresses;
    Ok(some_text(xml)?.map(|title| if is_own { title } else { html::plain_title(title) }))
}

/// Returns the text of a stored element without children.
fn captured_text(element: &str) -> String {
    let inner = element.strip_suffix('>').and_then(|e| e.rsplit_once("</"));
    let text = inner.and_then(|(e, _)| e.rsplit_once('>')).map_or("", |(_, text)| text);
    quick_xml::escape::unescape(text.trim()).map_or_else(|_| text.to_owned(), Cow::into_owned)
}

/// Parses an author. RSS 2.0 specifies `mail@example.com (Name)`; either part alone is common.
fn author(text: &str) -> Author {
    let (email, name) = match text.split_once('(') {
        Some((email, name)) => (email.trim(), name.trim_end().trim_end_matches(')').trim()),
        None if text.contains('@') && !text.contains(' ') => (text, ""),
        None => ("", text),
    };
    let email = Some(email.to_owned()).filter(|e| e.contains('@'));
    match (email, name) {
        (None, _) => Author::named(text),
        (email, name) => Author { name: name.to_owned(), email, url: None },
    }
}

/// Returns the enclosure as Atom's equivalent link, so that every format can write it.
fn enclosure(xml: &mut XmlReader<'_>) -> Result<String, FormatError> {
    let url = xml.attribute("url")?.unwrap_or_default();
    let url = iri::encode(xml.resolve(&url)?);
    let mut link = format!("<link xmlns=\"{ATOM}\" rel=\"enclosure\" href=\"{}\"", escape_attribute(&url));
    // RSS requires these; our writer names the ones that the item does not have.
    let assigned = xml.attribute_in(Ns::Towpath, "assigned")?.map(Cow::into_owned).unwrap_or_default();
    for name in ["type", "length"].into_iter().filter(|name| !assigned.split(' ').any(|one| one == *name)) {
        if let Some(value) = xml.attribute(name)?.filter(|value| !value.trim().is_empty()) {
            link.push_str(&format!(" {name}=\"{}\"", escape_attribute(&value)));
        }
    }
    link.push_str("/>");
    Ok(link)
}
