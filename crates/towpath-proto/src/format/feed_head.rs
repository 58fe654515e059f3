//! Elements of a feed's own that mean the same in Atom and RSS: links, Feed History, tombstones, cursors.

use super::draft::{address, some_text};
use super::xml::{Ns, Tag, Token, XmlReader};
use super::{DeletedEntry, FeedDocument, FeedLink, FormatError};

/// What the registered relations began with before RFC 8288.
const IANA_RELATION: &str = "http://www.iana.org/assignments/relation/";

/// Reads an element of the feed's own, or passes over it where its meaning is unknown.
pub(crate) fn read(
    xml: &mut XmlReader<'_>,
    tag: Tag<'_>,
    feed: &mut FeedDocument,
) -> Result<(), FormatError> {
    match (tag.ns, tag.local) {
        (Ns::Atom, "link") => link(xml, feed),
        (Ns::History, _) => history(xml, tag, feed),
        (Ns::Tombstones, "deleted-entry") => deleted_entry(xml, tag, feed),
        (Ns::Fanout, "total") => {
            feed.smart.total = xml.text()?.trim().parse().ok();
            Ok(())
        }
        (Ns::Fanout, "last_cursor") => {
            feed.smart.last_cursor = some_text(xml)?;
            Ok(())
        }
        (Ns::Fanout, "prev_cursor") => {
            feed.smart.prev_cursor = some_text(xml)?;
            Ok(())
        }
        _ => xml.skip(),
    }
}

/// A link of the feed (RFC 4287, section 4.2.7). The first alternate that is a page is the feed's home.
fn link(xml: &mut XmlReader<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    let rel = xml.attribute("rel")?.unwrap_or("alternate".into());
    let media_type = xml.attribute("type")?.map(|t| t.into_owned());
    if let Some(href) = xml.attribute("href")? {
        let href = xml.resolve(&href)?;
        let rel = rel.strip_prefix(IANA_RELATION).unwrap_or(&rel).to_owned();
        let is_page = media_type.as_deref().is_none_or(|t| t.contains("html"));
        if rel == "alternate" && is_page && feed.home.is_none() {
            feed.home = Some(href.clone());
        }
        feed.links.push(FeedLink { rel, href, media_type });
    }
    xml.skip()
}

/// Feed History: -00's flag (section 3) and the elements of the later drafts and of RFC 5005.
fn history(xml: &mut XmlReader<'_>, tag: Tag<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    match tag.local {
        "Stateful" | "stateful" | "incremental" => {
            let text = xml.text()?;
            // "Whitespace in its content MUST be ignored by processors" (-00, section 3).
            let flag: String = text.chars().filter(|c| !c.is_whitespace()).take(8).collect();
            match flag.as_str() {
                "1" | "true" => feed.stateful = Some(true),
                "0" | "false" => feed.stateful = Some(false),
                _ => xml.problem(tag.offset, format_args!("<{}> is neither 0 nor 1: {flag:?}", tag.name)),
            }
            Ok(())
        }
        "complete" => {
            feed.complete = true;
            xml.skip()
        }
        "archive" => {
            feed.archive = true;
            xml.skip()
        }
        // The drafts -01 to -04 had an element where RFC 5005 has a link.
        "prev" => {
            if let Some(href) = address(xml)? {
                feed.links.push(FeedLink { rel: "prev-archive".into(), href, media_type: None });
            }
            Ok(())
        }
        _ => xml.skip(),
    }
}

/// RFC 6721, section 3: the entry that `ref` names is deleted. Our own documents say the item's id besides.
fn deleted_entry(xml: &mut XmlReader<'_>, tag: Tag<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    let reference = xml.attribute("ref")?.map(|r| r.into_owned());
    let when = xml.attribute("when")?;
    let date = when.as_deref().and_then(super::date::parse);
    if date.is_none() {
        let when = when.unwrap_or_default();
        xml.problem(tag.offset, format_args!("the date of a deleted entry is none: {when:?}"));
    }
    let mut own_id = None;
    loop {
        match xml.next()? {
            Token::Start(child) if super::atom::is_own_id(child) => own_id = super::atom::own_id(xml, child)?,
            Token::Start(_) => xml.skip()?,
            Token::Text(_) => {}
            Token::End | Token::Eof => break,
        }
    }
    match own_id.or(reference) {
        Some(id) => feed.deleted.push(DeletedEntry { id, when: date }),
        None => xml.problem(tag.offset, "a deleted entry without ref was left out"),
    }
    Ok(())
}
