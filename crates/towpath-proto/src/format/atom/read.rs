//! Reading Atom.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::content;
use crate::Timestamp;
use crate::format::draft::{Draft, address, date_element, some_text};
use crate::format::xml::{Ns, Tag, Token, XmlReader};
use crate::format::{FeedDocument, FormatError, feed_head, html};
use crate::item::{Author, Item};

/// Reads the feed whose root element was just started, or the one entry where that is the root.
pub(crate) fn read<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
    feed: &mut FeedDocument,
) -> Result<(), FormatError> {
    feed.lang = xml.attribute("xml:lang")?.map(Cow::into_owned);
    if root.local == "entry" {
        feed.push(entry(xml, root)?);
        return Ok(());
    }
    let mut authors = Vec::new();
    loop {
        match xml.next()? {
            Token::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Atom, "entry") => feed.push(entry(xml, tag)?),
                (Ns::Atom, "id") => feed.id = some_text(xml)?,
                (Ns::Atom, "title") => feed.title = text_construct(xml)?.filter(|t| !t.is_empty()),
                (Ns::Atom, "updated" | "modified") => feed.updated = date_element(xml, tag)?,
                (Ns::Atom, "author") => {
                    let is_ours = xml.attribute_in(Ns::Towpath, "assigned")?.is_some();
                    let author = person(xml)?;
                    authors.extend(author.filter(|_| !is_ours));
                }
                _ => feed_head::read(xml, tag, feed)?,
            },
            Token::Text(_) => {}
            Token::End | Token::Eof => break,
        }
    }
    feed.inherit_authors(&authors, xml.budget())
}

fn entry<'i>(
    xml: &mut XmlReader<'i>,
    root: Tag<'i>,
) -> Result<Option<(Item, Option<Timestamp>)>, FormatError> {
    let mut draft = Draft::default();
    loop {
        match xml.next()? {
            Token::Start(tag) if tag.ns == Ns::Atom && tag.local == "id" => {
                draft.format_id = some_text(xml)?;
            }
            Token::Start(tag) => element(xml, tag, &mut draft)?,
            Token::Text(_) => {}
            Token::End | Token::Eof => break,
        }
    }
    Ok(draft.finish(xml, root.offset))
}

/// Reads an element of an entry, which may be an item of RSS.
pub(crate) fn element<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    draft: &mut Draft,
) -> Result<(), FormatError> {
    if is_own_id(tag) {
        draft.own_id = own_id(xml, tag)?;
        return Ok(());
    }
    match (tag.ns, tag.local) {
        (Ns::Atom, "title") => draft.item.title = text_construct(xml)?.filter(|t| !t.is_empty()),
        (Ns::Atom, "link") => link(xml, tag, draft)?,
        (Ns::Atom, "summary") => draft.item.summary = summary(xml)?.filter(|t| !t.is_empty()),
        (Ns::Atom, "content") => content::read(xml, tag, draft)?,
        (Ns::Atom, "author") => {
            let is_ours = xml.attribute_in(Ns::Towpath, "assigned")?.is_some();
            draft.item.authors.extend(person(xml)?.filter(|_| !is_ours));
        }
        (Ns::Atom, "category") => category(xml, tag, draft)?,
        (Ns::Atom, "published" | "issued" | "created") => {
            draft.item.published = date_element(xml, tag)?.or(draft.item.published);
        }
        (Ns::Atom, "updated" | "modified") => updated(xml, tag, draft)?,
        (Ns::Towpath, "modified") => draft.modified = date_element(xml, tag)?,
        (Ns::Towpath, "extra") => {
            let text = xml.text()?;
            if !draft.extra_json(&text) {
                xml.problem(tag.offset, format_args!("<{}> is not a JSON object", tag.name));
            }
        }
        _ => draft.keep_element(xml, tag)?,
    }
    Ok(())
}

/// Whether the element says an item's id as its publisher has it.
pub(crate) fn is_own_id(tag: Tag<'_>) -> bool {
    matches!(tag.ns, Ns::Fanout | Ns::Towpath) && tag.local == "id"
}

/// The id that the element just started says; ours is percent-encoded, so that it can be any text.
pub(crate) fn own_id(xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<Option<String>, FormatError> {
    let text = some_text(xml)?;
    if tag.ns == Ns::Fanout {
        return Ok(text);
    }
    Ok(text.map(|t| percent_decode_str(&t).decode_utf8_lossy().into_owned()))
}

/// RFC 4287, section 4.2.15. Where a writer of ours had no date to write, it says so, and writes when the item
/// was last changed in its feed.
fn updated(xml: &mut XmlReader<'_>, tag: Tag<'_>, draft: &mut Draft) -> Result<(), FormatError> {
    if xml.attribute_in(Ns::Towpath, "assigned")?.is_some() {
        draft.modified = date_element(xml, tag)?.or(draft.modified);
        return Ok(());
    }
    draft.item.updated = date_element(xml, tag)?;
    Ok(())
}

/// The first alternate is the item's address; all other links are kept.
fn link<'i>(xml: &mut XmlReader<'i>, tag: Tag<'i>, draft: &mut Draft) -> Result<(), FormatError> {
    let rel = xml.attribute("rel")?;
    let is_address = draft.item.url.is_none() && rel.is_none_or(|r| r == "alternate");
    let Some(href) = xml.attribute("href")?.filter(|_| is_address) else {
        return draft.keep_element(xml, tag);
    };
    draft.item.url = Some(xml.resolve(&href)?).filter(|u| !u.is_empty());
    xml.skip()
}

/// A category's term is a tag; one with more than a term is kept besides.
fn category<'i>(xml: &mut XmlReader<'i>, tag: Tag<'i>, draft: &mut Draft) -> Result<(), FormatError> {
    let term = xml.attribute("term")?.unwrap_or_default().into_owned();
    let has_more = xml.raw_attributes().iter().any(|(name, _)| matches!(*name, "scheme" | "label"));
    draft.tag(term, has_more);
    match has_more {
        true => draft.keep_element(xml, tag),
        false => xml.skip(),
    }
}

/// A person (section 3.2); `None` where nothing is known of it.
fn person(xml: &mut XmlReader<'_>) -> Result<Option<Author>, FormatError> {
    let mut author = Author::default();
    loop {
        match xml.next()? {
            Token::Start(tag) => match (tag.ns, tag.local) {
                (Ns::Atom | Ns::Towpath, "name") => author.name = xml.trimmed_text()?,
                (Ns::Atom | Ns::Towpath, "email") => author.email = some_text(xml)?,
                (Ns::Atom, "uri" | "url") => author.url = address(xml)?,
                (Ns::Towpath, "uri") => author.url = some_text(xml)?,
                _ => xml.skip()?,
            },
            Token::Text(_) => {}
            Token::End | Token::Eof => break,
        }
    }
    Ok(Some(author).filter(|a| *a != Author::default()))
}

/// A text (section 3.1) as plain text.
fn text_construct(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    let is_html = xml.attribute("type")?.is_some_and(|t| matches!(t.as_ref(), "html" | "text/html"));
    let text = xml.trimmed_text()?;
    Ok(Some(if is_html { html::to_text(&text, text.len()) } else { text }))
}

/// A text (section 3.1) as it stands there: plain text, HTML, or the `div` of XHTML.
fn summary(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    if xml.attribute("type")?.is_none_or(|t| t != "xhtml") {
        return Ok(Some(xml.trimmed_text()?));
    }
    let mut found = None;
    loop {
        match xml.next()? {
            Token::Start(child) => found = Some(xml.capture(child)?),
            Token::Text(_) => {}
            Token::End | Token::Eof => return Ok(found),
        }
    }
}
