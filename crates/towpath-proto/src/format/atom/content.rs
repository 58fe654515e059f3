//! An entry's content (RFC 4287, section 4.1.3), in both directions.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::format::FormatError;
use crate::format::draft::Draft;
use crate::format::xml::{Ns, Tag, Token, XmlReader, XmlWriter, is_xml_text};
use crate::item::{Content, Shown};

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
    let given = xml.attribute("type")?.map(Cow::into_owned);
    if let Some(media_type) = xml.attribute_in(Ns::Towpath, "type")?.map(Cow::into_owned) {
        let text = xml.text()?;
        draft.item.content = Some(match given.as_deref() {
            Some("text" | "html") => Content::new(media_type, text.into_owned()),
            _ => binary(xml, tag, media_type, text),
        });
        return Ok(());
    }
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

/// Writes `content` as a content element, `name` being how that is called here.
pub(crate) fn write(xml: &mut XmlWriter, name: &'static str, content: &Content) {
    let media_type = content.media_type.as_str();
    let text = content.text().filter(|t| is_xml_text(t));
    xml.start(name);
    match text.and_then(|text| inline_form(content, text).map(|form| (form, text))) {
        Some((Inline::Shown(shown), text)) => {
            let type_name = match shown {
                Shown::Html => "html",
                Shown::Text => "text",
            };
            xml.attribute("type", type_name)
                .optional_attribute("tp:type", content.type_beyond(shown))
                .text(text);
        }
        Some((Inline::Text(type_name), text)) => {
            xml.attribute("type", type_name).text(text);
        }
        Some((Inline::Element(type_name), text)) => {
            xml.attribute("type", type_name).raw(text);
        }
        None if is_binary_type(media_type) => {
            xml.attribute("type", media_type).text(&STANDARD.encode(&content.bytes));
        }
        None => {
            xml.attribute("type", "application/octet-stream").attribute("tp:type", media_type);
            xml.text(&STANDARD.encode(&content.bytes));
        }
    }
    xml.end();
}

/// Whether [`write`] encodes this content, or refers to it, so that RFC 4287 demands a summary (4.1.2).
pub(super) fn needs_summary(content: &Content) -> bool {
    let text = content.text().filter(|t| is_xml_text(t));
    text.and_then(|text| inline_form(content, text)).is_none()
}

/// How text content is written without encoding it, and the `type` that says so.
enum Inline<'a> {
    /// `html` or `text`, with the exact type beside it where that says more.
    Shown(Shown),
    Text(&'a str),
    Element(&'a str),
}

fn inline_form<'a>(content: &'a Content, text: &str) -> Option<Inline<'a>> {
    let media_type = content.media_type.as_str();
    if let Some((shown, _)) = content.shown()
        && (shown.media_type() == media_type || shown.media_type() == content.essence())
    {
        return Some(Inline::Shown(shown));
    }
    match media_type {
        "application/xhtml+xml" if stands_alone(text, Some((Ns::Xhtml, "div"))) => {
            Some(Inline::Element("xhtml"))
        }
        _ if !is_media_type(media_type) => None,
        _ => match Form::of(media_type) {
            Form::Text => Some(Inline::Text(media_type)),
            Form::Xml if stands_alone(text, None) => Some(Inline::Element(media_type)),
            Form::Xml | Form::Binary => None,
        },
    }
}

/// Whether Atom has content of this type as Base 64: no XML, no text, not composite (section 4.1.3.1).
fn is_binary_type(media_type: &str) -> bool {
    let start = media_type.to_ascii_lowercase();
    is_media_type(media_type)
        && Form::of(media_type) == Form::Binary
        && !start.starts_with("multipart/")
        && !start.starts_with("message/")
}

fn is_media_type(text: &str) -> bool {
    let valid = |part: &str| !part.is_empty() && part.bytes().all(|b| (b' '..0x7F).contains(&b));
    text.split_once('/').is_some_and(|(kind, rest)| valid(kind) && valid(rest))
}

/// Whether `text` is one element exactly as the reader keeps them, so that it comes back to the byte.
fn stands_alone(text: &str, root: Option<(Ns, &str)>) -> bool {
    let mut xml = XmlReader::new(text, None);
    let Ok(Token::Start(tag)) = xml.next() else { return false };
    root.is_none_or(|root| root == (tag.ns, tag.local))
        && xml.capture(tag).is_ok_and(|captured| captured == text)
        && xml.finish().is_ok()
}
