//! Feed elements with equal meaning in Atom and RSS: links, Feed History, tombstones, cursors.

use super::date;
use super::error::FormatError;
use super::feed_document::{DeletedEntry, FeedDocument, FeedLink, relation};
use super::iri;
use super::item_builder::{address, is_own_id, own_id, some_text};
use super::xml::{Ns, Tag, XmlReader, XmlToken};

/// Reads an element of the feed, or skips an unknown one.
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

/// Reads a link of the feed (RFC 4287, section 4.2.7). The first alternate that is a page is the feed's home.
fn link(xml: &mut XmlReader<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    let rel = xml.attribute("rel")?.unwrap_or("alternate".into());
    let media_type = xml.attribute("type")?.map(|t| t.into_owned());
    if let Some(href) = xml.attribute("href")? {
        let href = iri::encode(xml.resolve(&href)?);
        let rel = relation(&rel).into_owned();
        let is_page = media_type.as_deref().is_none_or(|t| t.contains("html"));
        if rel == "alternate" && is_page && feed.home.is_none() {
            feed.home = Some(href.clone());
            xml.found_home(Some(&href));
        }
        let texts = rel.len() + href.len() + media_type.as_ref().map_or(0, String::len);
        xml.budget().store(size_of::<FeedLink>() + texts)?;
        feed.links.push(FeedLink { rel, href, media_type });
    }
    xml.skip()
}

/// Reads an element of Feed History: the flag of -00 (section 3), or an element of the later drafts and RFC
/// 5005.
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
        // The drafts -01 to -04 use an element, RFC 5005 a link.
        "prev" => {
            if let Some(href) = address(xml)? {
                xml.budget().store(size_of::<FeedLink>() + href.len())?;
                feed.links.push(FeedLink { rel: "prev-archive".into(), href, media_type: None });
            }
            Ok(())
        }
        _ => xml.skip(),
    }
}

/// Reads a tombstone: the entry in `ref` is deleted (RFC 6721, section 3). Our own documents add the item's
/// id.
fn deleted_entry(xml: &mut XmlReader<'_>, tag: Tag<'_>, feed: &mut FeedDocument) -> Result<(), FormatError> {
    let reference = xml.attribute("ref")?.map(|r| r.into_owned());
    let when = xml.attribute("when")?;
    let date = when.as_deref().and_then(date::parse);
    if date.is_none() {
        let when = when.unwrap_or_default();
        xml.problem(tag.offset, format_args!("the date of a deleted entry is invalid: {when:?}"));
    }
    let mut id = None;
    loop {
        match xml.next()? {
            XmlToken::Start(child) if is_own_id(child) => id = own_id(xml, child)?,
            XmlToken::Start(_) => xml.skip()?,
            XmlToken::Text(_) => {}
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    match id.or(reference) {
        Some(id) => {
            xml.budget().deleted(&id)?;
            feed.deleted.push(DeletedEntry { id, when: date });
        }
        None => xml.left_out(tag.offset, "a deleted entry without ref was left out"),
    }
    Ok(())
}
