//! Reading Atom documents.

use std::borrow::Cow;

use super::content;
use crate::Timestamp;
use crate::format::error::FormatError;
use crate::format::feed_document::{FeedDocument, relation};
use crate::format::item_builder::{
    ItemBuilder, address, date_element, is_own_id, own_id, own_text, some_text,
};
use crate::format::xml::{Ns, Tag, XmlReader, XmlToken};
use crate::format::{feed_head, html};
use crate::item::{Author, Item};

/// Reads the feed whose root element was just started, or the single entry if that is the root.
pub(crate) fn read<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
    feed: &mut FeedDocument,
) -> Result<(), FormatError> {
    feed.lang = xml.attribute("xml:lang")?.map(Cow::into_owned);
    xml.keeps_addresses = xml.attribute_in(Ns::Towpath, "addresses")?.is_some();
    if root.local == "entry" {
        let read = entry(xml, root)?;
        return feed.push(read, xml.budget());
    }
    let mut authors = Vec::new();
    loop {
        match xml.next()? {
            XmlToken::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Atom, "entry") => {
                    let read = entry(xml, tag)?;
                    feed.push(read, xml.budget())?;
                }
                (Ns::Atom, "id") => feed.id = some_text(xml)?,
                (Ns::Atom, "title") => feed.title = text_construct(xml)?.filter(|t| !t.is_empty()),
                (Ns::Atom, "updated" | "modified") => feed.updated = date_element(xml, tag)?,
                (Ns::Atom, "author") => {
                    // Our writer marks a placeholder, which RFC 4287 requires, and an author of the feed alone.
                    let mark = xml.attribute_in(Ns::Towpath, "assigned")?.map(Cow::into_owned);
                    let author = person(xml)?;
                    feed.authors.extend(author.clone().filter(|_| mark.as_ref().is_none_or(|m| m == "feed")));
                    authors.extend(author.filter(|_| mark.is_none()));
                }
                (Ns::Atom, "subtitle" | "tagline") => {
                    feed.description = summary(xml)?.filter(|t| !t.is_empty());
                }
                (Ns::Atom, "logo") => feed.image = address(xml)?.or(feed.image.take()),
                (Ns::Atom, "icon") => feed.image = feed.image.take().or(address(xml)?),
                _ => feed_head::read(xml, tag, feed)?,
            },
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    feed.inherit_authors(&authors, xml.budget())
}

fn entry<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
) -> Result<Option<(Item, Option<Timestamp>)>, FormatError> {
    let mut builder = ItemBuilder::default();
    loop {
        match xml.next()? {
            XmlToken::Start(tag) if tag.ns == Ns::Atom && tag.local == "id" => {
                builder.format_id = some_text(xml)?;
            }
            XmlToken::Start(tag) => element(xml, tag, &mut builder)?,
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    Ok(builder.finish(xml, root.offset))
}

/// Reads a child element of an entry or of an RSS item.
pub(crate) fn element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    builder: &mut ItemBuilder,
) -> Result<(), FormatError> {
    if is_own_id(tag) {
        builder.own_id = own_id(xml, tag)?;
        return Ok(());
    }
    match (tag.ns, tag.local) {
        (Ns::Atom, "title") => builder.item.title = text_construct(xml)?.filter(|t| !t.is_empty()),
        (Ns::Atom, "link") => link(xml, tag, builder)?,
        (Ns::Atom, "summary") => builder.item.summary = summary(xml)?.filter(|t| !t.is_empty()),
        (Ns::Atom, "content") => content::read(xml, tag, builder)?,
        (Ns::Atom, "author") => {
            let is_ours = xml.attribute_in(Ns::Towpath, "assigned")?.is_some();
            builder.item.authors.extend(person(xml)?.filter(|_| !is_ours));
        }
        (Ns::Atom, "category") => category(xml, tag, builder)?,
        (Ns::Atom, "published" | "issued" | "created") => {
            builder.item.published = date_element(xml, tag)?.or(builder.item.published);
        }
        (Ns::Atom, "updated" | "modified") => updated(xml, tag, builder)?,
        // Earlier documents have the second name.
        (Ns::Towpath, "changed" | "modified") => builder.modified = date_element(xml, tag)?,
        (Ns::Towpath, "url") => builder.own_url = own_text(xml)?,
        (Ns::Towpath, "assigned") => builder.has_assigned_date |= xml.text()?.trim() == "updated",
        (Ns::Towpath, "empty") => {
            let name = xml.trimmed_text()?;
            builder.empty_field(&name);
        }
        (Ns::Towpath, "extra") => {
            let text = xml.text()?;
            if !builder.extra_json(&text, xml.budget())? {
                xml.problem(tag.offset, format_args!("<{}> is not a JSON object", tag.name));
            }
        }
        // Our writer's form of something that the item holds elsewhere.
        _ if xml.attribute_in(Ns::Towpath, "assigned")?.is_some() => xml.skip()?,
        _ => builder.keep_element(xml, tag)?,
    }
    Ok(())
}

/// Reads `updated` (RFC 4287, section 4.2.15). Our writer marks a date that the item does not have; it then
/// holds the time of the last change in the feed. Earlier documents have the mark as an attribute.
fn updated(xml: &mut XmlReader<'_>, tag: Tag<'_>, builder: &mut ItemBuilder) -> Result<(), FormatError> {
    if xml.attribute_in(Ns::Towpath, "assigned")?.is_some() {
        builder.modified = date_element(xml, tag)?.or(builder.modified);
        return Ok(());
    }
    builder.item.updated = date_element(xml, tag)?;
    Ok(())
}

/// Reads a link. The first alternate is the item's URL; all other links are stored as elements.
fn link<'i>(xml: &mut XmlReader<'i>, tag: Tag<'i>, builder: &mut ItemBuilder) -> Result<(), FormatError> {
    // Our writer's form of an attachment that the item holds elsewhere.
    if xml.attribute_in(Ns::Towpath, "assigned")?.is_some() {
        return xml.skip();
    }
    let rel = xml.attribute("rel")?;
    let is_address = builder.item.url.is_none() && rel.is_none_or(|rel| relation(&rel) == "alternate");
    let Some(href) = xml.attribute("href")?.filter(|_| is_address) else {
        return builder.keep_element(xml, tag);
    };
    builder.item.url = Some(xml.resolve(&href)?).filter(|u| !u.is_empty());
    xml.skip()
}

/// Reads a category. The term becomes a tag; a category with a scheme or label is also stored as an element.
fn category<'i>(xml: &mut XmlReader<'i>, tag: Tag<'i>, builder: &mut ItemBuilder) -> Result<(), FormatError> {
    let term = xml.attribute("term")?.unwrap_or_default().into_owned();
    let has_more = xml.raw_attributes().iter().any(|(name, _)| matches!(*name, "scheme" | "label"));
    if !has_more {
        builder.tag(term);
        return xml.skip();
    }
    builder.tag_of_stored_element(term);
    builder.keep_element(xml, tag)
}

/// Reads a person (section 3.2); `None` if it is empty.
fn person(xml: &mut XmlReader<'_>) -> Result<Option<Author>, FormatError> {
    let mut author = Author::default();
    loop {
        match xml.next()? {
            XmlToken::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Atom | Ns::Towpath, "name") => author.name = xml.trimmed_text()?,
                (Ns::Atom | Ns::Towpath, "email") => author.email = some_text(xml)?,
                (Ns::Atom, "uri" | "url") => author.url = address(xml)?,
                (Ns::Towpath, "uri") => author.url = some_text(xml)?,
                _ => xml.skip()?,
            },
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    Ok(Some(author).filter(|a| *a != Author::default()))
}

/// Reads a text construct (section 3.1) as plain text.
fn text_construct(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    let is_html = xml.attribute("type")?.is_some_and(|t| matches!(t.as_ref(), "html" | "text/html"));
    let text = xml.trimmed_text()?;
    Ok(Some(if is_html { html::to_text(&text, text.len()) } else { text }))
}

/// Reads a text construct (section 3.1) unchanged: plain text, HTML, or the `div` of XHTML.
fn summary(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    let kind = xml.attribute("type")?;
    if kind.as_ref().is_none_or(|t| t != "xhtml") {
        let is_html = kind.is_some_and(|t| matches!(t.as_ref(), "html" | "text/html"));
        let base = xml.content_base().filter(|_| is_html);
        let text = xml.trimmed_text()?;
        return Ok(Some(xml.resolve_html(text, base.as_ref())?));
    }
    let mut found = None;
    loop {
        match xml.next()? {
            XmlToken::Start(child) => found = Some(xml.capture(child)?),
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => return Ok(found),
        }
    }
}
