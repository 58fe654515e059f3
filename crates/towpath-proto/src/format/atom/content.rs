//! An entry's content (RFC 4287, section 4.1.3), in both directions.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::format::FormatError;
use crate::format::draft::Draft;
use crate::format::xml::{Ns, Tag, Token, XmlReader};
use crate::item::Content;

/// How Atom holds content of a media type (section 4.1.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Character data.
    Text,
    /// One element.
    Xml,
    /// Base 64.
    Binary,
}

impl Form {
    pub(super) fn of(media_type: &str) -> Self {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if essence.ends_with("+xml") || essence.ends_with("/xml") {
            Self::Xml
        } else if essence.starts_with("text/") {
            Self::Text
        } else {
            Self::Binary
        }
    }
}

/// Reads the content element just started.
pub(super) fn read<'i>(xml: &mut XmlReader<'i>, tag: Tag<'i>, draft: &mut Draft) -> Result<(), FormatError> {
    // Content that stands elsewhere (section 4.1.3.2) is none of the item's bytes.
    if xml.attribute("src")?.is_some() {
        return draft.keep_element(xml, tag);
    }
    if let Some(media_type) = xml.attribute_in(Ns::Towpath, "type")?.map(Cow::into_owned) {
        let text = xml.text()?;
        draft.item.content = Some(binary(xml, tag, media_type, text));
        return Ok(());
    }
    let given = xml.attribute("type")?.map(Cow::into_owned);
    let base64 = xml.attribute("mode")?.is_some_and(|m| m == "base64"); // Atom 0.3
    let content = match given.as_deref() {
        None => Some(text(xml, "text/plain")?).filter(|c| !c.bytes.is_empty()),
        Some("text" | "TEXT") => Some(text(xml, "text/plain")?),
        Some("html" | "HTML") => Some(text(xml, "text/html")?),
        Some("xhtml" | "XHTML") => Some(element(xml, "application/xhtml+xml")?),
        Some(media_type) => Some(match Form::of(media_type) {
            _ if base64 => {
                let text = xml.text()?;
                binary(xml, tag, media_type.to_owned(), text)
            }
            Form::Text => text(xml, media_type)?,
            Form::Xml => element(xml, media_type)?,
            Form::Binary => {
                let text = xml.text()?;
                binary(xml, tag, media_type.to_owned(), text)
            }
        }),
    };
    draft.item.content = content;
    Ok(())
}

fn text(xml: &mut XmlReader<'_>, media_type: &str) -> Result<Content, FormatError> {
    Ok(Content::new(media_type, xml.text()?.into_owned()))
}

/// The element within as text that stands on its own, or the character data where there is no element.
fn element(xml: &mut XmlReader<'_>, media_type: &str) -> Result<Content, FormatError> {
    let mut found: Option<String> = None;
    let mut around = String::new();
    loop {
        match xml.next()? {
            Token::Start(child) if found.is_none() => found = Some(xml.capture(child)?),
            Token::Start(_) => xml.skip()?,
            Token::Text(text) => around.push_str(&text),
            Token::End | Token::Eof => break,
        }
    }
    Ok(Content::new(media_type, found.unwrap_or(around)))
}

/// Base 64 (section 4.1.3.3, item 6), white space ignored. Where it is none, the text itself is the content:
/// many publishers put JSON there as it is.
fn binary(xml: &mut XmlReader<'_>, tag: Tag<'_>, media_type: String, text: Cow<'_, str>) -> Content {
    let compact: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let bytes = match STANDARD.decode(&compact) {
        Ok(bytes) => Bytes::from(bytes),
        Err(_) => {
            xml.problem(tag.offset, format_args!("content of type {media_type:?} is not Base 64"));
            Bytes::from(text.into_owned())
        }
    };
    Content::new(media_type, bytes)
}
