//! Content of an entry (RFC 4287, section 4.1.3): reading and writing.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::format::error::FormatError;
use crate::format::item_builder::ItemBuilder;
use crate::format::media_type;
use crate::format::xml::{Ns, Tag, XmlReader, XmlToken, XmlWriter, is_xml_text};
use crate::item::{Content, ContentForm};

/// Representation of a media type's content in Atom (section 4.1.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// Character data.
    Text,
    /// A single element.
    Xml,
    /// Base 64.
    Binary,
}

impl TextForm {
    pub(super) fn of(media_type: &str) -> Self {
        let essence = media_type::essence(media_type).to_ascii_lowercase();
        // RFC 4287, section 4.1.3.3, items 4 to 6: the suffix decides before the type.
        if essence.ends_with("+xml") || essence.ends_with("/xml") {
            Self::Xml
        } else if essence.starts_with("text/") {
            Self::Text
        } else {
            Self::Binary
        }
    }
}

/// Reads the content element that was just started.
pub(super) fn read<'i>(
    xml: &mut XmlReader<'i>,
    tag: Tag<'i>,
    builder: &mut ItemBuilder,
) -> Result<(), FormatError> {
    // Out-of-line content (section 4.1.3.2) has no bytes here; the element is stored as it is.
    if xml.attribute("src")?.is_some() {
        return builder.keep_element(xml, tag);
    }
    let given = xml.attribute("type")?.map(Cow::into_owned);
    // Our own attribute names the exact type, where Atom allows only a general one.
    if let Some(media_type) = xml.attribute_in(Ns::Towpath, "type")?.map(Cow::into_owned) {
        let text = xml.text()?;
        builder.item.content = Some(match given.as_deref() {
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
        Some(media_type) => Some(match TextForm::of(media_type) {
            // Atom 0.3 marks Base 64 by an attribute, whatever the type.
            _ if base64 => {
                let text = xml.text()?;
                binary(xml, tag, media_type.to_owned(), text)
            }
            TextForm::Text => text(xml, media_type)?,
            TextForm::Xml => document(xml, tag, media_type)?,
            TextForm::Binary => {
                let text = xml.text()?;
                binary(xml, tag, media_type.to_owned(), text)
            }
        }),
    };
    builder.item.content = content;
    Ok(())
}

fn text(xml: &mut XmlReader<'_>, media_type: &str) -> Result<Content, FormatError> {
    let is_html = Content::new(media_type, "").essence() == "text/html";
    let base = xml.content_base().filter(|_| is_html);
    let text = xml.text()?.into_owned();
    Ok(Content::new(media_type, xml.resolve_html(text, base.as_ref())?))
}

/// Returns an XML document: the child element, with what our writer keeps apart from it.
fn document(xml: &mut XmlReader<'_>, tag: Tag<'_>, media_type: &str) -> Result<Content, FormatError> {
    let mut own = |name| Ok::<_, FormatError>(xml.attribute_in(Ns::Towpath, name)?.map(Cow::into_owned));
    let (before, after, plain, exact) = (own("before")?, own("after")?, own("plain")?, own("base64")?);
    if let Some(exact) = exact {
        xml.skip()?;
        return Ok(binary(xml, tag, media_type.to_owned(), exact.into()));
    }
    let read = element(xml, media_type)?;
    if before.is_none() && after.is_none() && plain.is_none() {
        return Ok(read);
    }
    let text = read.text().unwrap_or_default();
    let text = if plain.is_some() { text.replacen(DECLARATION, "", 1) } else { text.to_owned() };
    Ok(Content::new(media_type, [before.unwrap_or_default(), text, after.unwrap_or_default()].concat()))
}

/// Returns the child element as a standalone text, or the character data if there is no element.
fn element(xml: &mut XmlReader<'_>, media_type: &str) -> Result<Content, FormatError> {
    let mut found: Option<String> = None;
    let mut around = String::new();
    loop {
        match xml.next()? {
            // Only the first element is content (section 4.1.3.3, item 3); further ones are malformed.
            XmlToken::Start(child) if found.is_none() => found = Some(xml.capture(child)?),
            XmlToken::Start(_) => xml.skip()?,
            XmlToken::Text(text) => around.push_str(&text),
            XmlToken::End | XmlToken::Eof => break,
        }
    }
    Ok(Content::new(media_type, found.unwrap_or(around)))
}

/// Decodes Base 64 (section 4.1.3.3, item 6), ignoring white space. If it is malformed, the text itself is
/// the content: many publishers write JSON there directly.
fn binary(xml: &mut XmlReader<'_>, tag: Tag<'_>, media_type: String, text: Cow<'_, str>) -> Content {
    // Base 64 in feeds is commonly wrapped or indented.
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

/// Writes `content` as an element called `name`.
pub(crate) fn write(xml: &mut XmlWriter, name: &'static str, content: &Content) {
    let media_type = content.media_type.as_str();
    // XML cannot hold every character, not even as a reference.
    let text = content.text().filter(|t| is_xml_text(t));
    xml.start(name);
    match text.and_then(|text| inline_form(content, text).map(|form| (form, text))) {
        Some((Inline::Shown(shown), text)) => {
            let type_name = match shown {
                ContentForm::Html => "html",
                ContentForm::Text => "text",
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
        Some((Inline::Document(document), text)) => {
            xml.attribute("type", media_type);
            document.write(xml, text);
        }
        None if is_binary_type(media_type) => {
            xml.attribute("type", media_type).text(&STANDARD.encode(&content.bytes));
        }
        None => {
            // Atom has no place for a composite or malformed type; our attribute holds it.
            xml.attribute("type", "application/octet-stream").attribute("tp:type", media_type);
            xml.text(&STANDARD.encode(&content.bytes));
        }
    }
    xml.end();
}

/// Returns `true` if [`write`] encodes this content, so that RFC 4287 requires a summary (section 4.1.2).
pub(super) fn needs_summary(content: &Content) -> bool {
    let text = content.text().filter(|t| is_xml_text(t));
    text.and_then(|text| inline_form(content, text)).is_none()
}

/// Unencoded representation of text content, with its `type`.
enum Inline<'a> {
    /// `html` or `text`, with `tp:type` if the media type says more.
    Shown(ContentForm),
    Text(&'a str),
    Element(&'a str),
    Document(EmbeddedDocument),
}

fn inline_form<'a>(content: &'a Content, text: &str) -> Option<Inline<'a>> {
    let media_type = content.media_type.as_str();
    if let Some((shown, _)) = content.shown()
        // A type with a parameter is written as the general type, and exactly in our attribute.
        && (shown.media_type() == media_type || shown.media_type() == content.essence())
    {
        return Some(Inline::Shown(shown));
    }
    match media_type {
        "application/xhtml+xml" if stands_alone(text, (Ns::Xhtml, "div")) => Some(Inline::Element("xhtml")),
        // Anything else in `type` would make the document invalid.
        _ if !is_media_type(media_type) => None,
        _ => match TextForm::of(media_type) {
            TextForm::Text => Some(Inline::Text(media_type)),
            TextForm::Xml => EmbeddedDocument::of(text).map(Inline::Document),
            TextForm::Binary => None,
        },
    }
}

/// Returns `true` if Atom allows this type as Base 64: neither XML nor text nor composite (section 4.1.3.1).
fn is_binary_type(media_type: &str) -> bool {
    let start = media_type.to_ascii_lowercase();
    is_media_type(media_type)
        && TextForm::of(media_type) == TextForm::Binary
        && !start.starts_with("multipart/")
        && !start.starts_with("message/")
}

fn is_media_type(text: &str) -> bool {
    let valid = |part: &str| !part.is_empty() && part.bytes().all(|b| (b' '..0x7F).contains(&b));
    text.split_once('/').is_some_and(|(kind, rest)| valid(kind) && valid(rest))
}

/// Returns `true` if `text` is a single element in exactly the form that the reader stores, so that it reads
/// back to the byte.
fn stands_alone(text: &str, root: (Ns, &str)) -> bool {
    let mut xml = XmlReader::new(text, None);
    let Ok(XmlToken::Start(tag)) = xml.next() else { return false };
    // A fragment that parses but captures differently would not read back to the byte.
    root == (tag.ns, tag.local)
        && xml.capture(tag).is_ok_and(|captured| captured == text)
        && xml.finish().is_ok()
}

/// Declaration that an element without a namespace needs within an entry.
const DECLARATION: &str = " xmlns=\"\"";

/// XML document as the child of a content element (section 4.1.3.3, item 4). Readers see the element; our own
/// attributes hold the rest of the bytes.
struct EmbeddedDocument {
    /// The element in the form that the reader stores.
    element: String,
    /// Bytes before the element, such as the XML declaration, and their number after it.
    before: usize,
    after: usize,
    /// Differences of the element's bytes from those of the document.
    difference: Difference,
}

#[derive(PartialEq)]
enum Difference {
    None,
    /// By [`DECLARATION`] only.
    Declaration,
    /// In any other way, such as quotes or comments. The whole document is repeated in Base 64.
    Other,
}

impl EmbeddedDocument {
    /// Parses a document. `None` if it is not well-formed.
    fn of(text: &str) -> Option<Self> {
        let mut xml = XmlReader::new(text, None);
        let tag = loop {
            match xml.next().ok()? {
                XmlToken::Start(tag) => break tag,
                XmlToken::Text(text) if text.trim().is_empty() => {}
                _ => return None,
            }
        };
        let element = xml.capture(tag).ok()?;
        let end = xml.end_of_token();
        xml.finish().ok()?;
        let own = text.get(tag.offset..end)?;
        let difference = match element.replacen(DECLARATION, "", 1) {
            _ if element == own => Difference::None,
            plain if plain == own => Difference::Declaration,
            _ => Difference::Other,
        };
        Some(Self { element, before: tag.offset, after: text.len() - end, difference })
    }

    fn write(&self, xml: &mut XmlWriter, text: &str) {
        match self.difference {
            Difference::Other => {
                xml.attribute("tp:base64", &STANDARD.encode(text));
            }
            Difference::None | Difference::Declaration => {
                let part = |part: &str| Some(part.to_owned()).filter(|part| !part.is_empty());
                xml.optional_attribute("tp:before", part(&text[..self.before]).as_deref());
                xml.optional_attribute("tp:after", part(&text[text.len() - self.after..]).as_deref());
            }
        }
        if self.difference == Difference::Declaration {
            xml.attribute("tp:plain", "1");
        }
        xml.raw(&self.element);
    }
}
