//! Reading RSS.

use std::borrow::Cow;

use crate::Timestamp;
use crate::format::draft::{Draft, address, date_element, some_text};
use crate::format::xml::{ATOM, Ns, Tag, Token, XmlReader, escape_attribute};
use crate::format::{FeedDocument, FormatError, atom, feed_head};
use crate::item::{Author, Content, Item};

/// Reads the feed whose root element (`rss`, or RDF's) was just started.
pub(crate) fn read<'i>(
    xml: &mut XmlReader<'i>,
    _root: Tag<'i>,
    feed: &mut FeedDocument,
) -> Result<(), FormatError> {
    feed.lang = xml.attribute("xml:lang")?.map(Cow::into_owned);
    loop {
        match xml.next()? {
            Token::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Rss, "channel") => channel(xml, feed)?,
                // RSS 0.90 and 1.0 have the items beside the channel.
                (Ns::Rss, "item") => feed.push(item(xml, tag)?),
                _ => feed_head::read(xml, tag, feed)?,
            },
            Token::Text(_) => {}
            Token::End | Token::Eof => return Ok(()),
        }
    }
}

fn channel(xml: &mut XmlReader<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    loop {
        match xml.next()? {
            Token::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Rss, "item") => feed.push(item(xml, tag)?),
                (Ns::Rss, "title") => feed.title = some_text(xml)?,
                (Ns::Rss, "link") => feed.home = address(xml)?,
                (Ns::Rss, "language") | (Ns::DublinCore, "language") => {
                    feed.lang = some_text(xml)?.or(feed.lang.take());
                }
                (Ns::Rss, "ttl") => feed.ttl = xml.trimmed_text()?.parse().ok(),
                (Ns::Rss, "lastBuildDate") => feed.updated = date_element(xml, tag)?,
                (Ns::Atom, "id") => feed.id = some_text(xml)?,
                (Ns::Atom, "updated") => feed.updated = date_element(xml, tag)?.or(feed.updated),
                _ => feed_head::read(xml, tag, feed)?,
            },
            Token::Text(_) => {}
            Token::End | Token::Eof => return Ok(()),
        }
    }
}

/// Which elements of an item were there, where one stands in for another.
#[derive(Default)]
struct Seen {
    pub_date: bool,
}

fn item<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
) -> Result<Option<(Item, Option<Timestamp>)>, FormatError> {
    let mut draft = Draft::default();
    draft.format_id = xml.attribute_in(Ns::Rdf, "about")?.map(Cow::into_owned);
    let mut seen = Seen::default();
    loop {
        match xml.next()? {
            Token::Start(tag) if tag.ns == Ns::Rss => element(xml, tag, &mut draft, &mut seen)?,
            Token::Start(tag) => module_element(xml, tag, &mut draft, &seen)?,
            Token::Text(_) => {}
            Token::End | Token::Eof => break,
        }
    }
    Ok(draft.finish(xml, root.offset))
}

/// Whether an item's reader keeps this element exactly as it is, and makes nothing else of it.
pub(super) fn keeps(kept: &str, item: &Item) -> bool {
    atom::is_kept(kept, item, |xml, tag, draft| match tag.ns {
        Ns::Rss => element(xml, tag, draft, &mut Seen::default()),
        _ => module_element(xml, tag, draft, &Seen::default()),
    })
}

/// An element of RSS itself.
fn element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    draft: &mut Draft,
    seen: &mut Seen,
) -> Result<(), FormatError> {
    match tag.local {
        "title" => draft.item.title = some_text(xml)?,
        "link" => {
            draft.item.url = address(xml)?.or(draft.item.url.take());
        }
        "description" => draft.item.summary = some_text(xml)?,
        "guid" => {
            let is_permalink = xml.attribute("isPermaLink")?.is_none_or(|p| p.trim() != "false");
            draft.format_id = some_text(xml)?.or(draft.format_id.take());
            draft.id_is_address = is_permalink;
        }
        "pubDate" => {
            seen.pub_date = true;
            draft.item.published = draft.item.published.or(date_element(xml, tag)?);
        }
        "author" => draft.item.authors.extend(some_text(xml)?.map(|t| author(&t))),
        "category" => {
            let has_more = xml.raw_attributes().iter().any(|(name, _)| *name == "domain");
            if has_more {
                let kept = xml.capture(tag)?;
                draft.tag(captured_text(&kept), true);
                draft.keep(kept);
            } else {
                draft.tag(xml.trimmed_text()?, false);
            }
        }
        "enclosure" => {
            draft.keep(enclosure(xml)?);
            xml.skip()?;
        }
        _ => draft.keep_element(xml, tag)?,
    }
    Ok(())
}

/// An element of a module: content, Dublin Core, Atom within RSS.
fn module_element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    draft: &mut Draft,
    seen: &Seen,
) -> Result<(), FormatError> {
    match (tag.ns, tag.local) {
        (Ns::Content, "encoded") => {
            let media_type = xml.attribute_in(Ns::Towpath, "type")?.unwrap_or(Cow::Borrowed("text/html"));
            draft.item.content = Some(Content::new(media_type, xml.text()?.into_owned()));
        }
        (Ns::DublinCore, "creator") => draft.item.authors.extend(some_text(xml)?.map(Author::named)),
        (Ns::DublinCore, "subject") => draft.tag(xml.trimmed_text()?, false),
        (Ns::DublinCore, "date") => {
            let date = date_element(xml, tag)?;
            if !seen.pub_date {
                draft.item.published = date.or(draft.item.published);
            }
        }
        _ => atom::element(xml, tag, draft)?,
    }
    Ok(())
}

/// The text of an element that was kept and has no elements in it.
fn captured_text(element: &str) -> String {
    let inner = element.strip_suffix('>').and_then(|e| e.rsplit_once("</"));
    let text = inner.and_then(|(e, _)| e.rsplit_once('>')).map_or("", |(_, text)| text);
    quick_xml::escape::unescape(text.trim()).map_or_else(|_| text.to_owned(), Cow::into_owned)
}

/// RSS 2.0 has `mail@example.com (Name)`, in practice also either alone.
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

/// The enclosure just started as the link that Atom has for it, so that every format can write it.
fn enclosure(xml: &mut XmlReader<'_>) -> Result<String, FormatError> {
    let url = xml.attribute("url")?.unwrap_or_default();
    let url = xml.resolve(&url)?;
    let mut link = format!("<link xmlns=\"{ATOM}\" rel=\"enclosure\" href=\"{}\"", escape_attribute(&url));
    for name in ["type", "length"] {
        if let Some(value) = xml.attribute(name)? {
            link.push_str(&format!(" {name}=\"{}\"", escape_attribute(&value)));
        }
    }
    link.push_str("/>");
    Ok(link)
}
