//! Attachments and images of items, in whatever form an item has them.
//!
//! An item keeps what its format gave in [`Item::extra`]: links and elements of Atom, RSS and their modules,
//! members of JSON Feed, or `attachments` and `image` of a published line. Each writer shows them in its own form.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::format::relation;
use crate::format::xml::{Ns, Tag, XmlReader, XmlToken};
use crate::item::Item;

/// Keys of [`Item::extra`] for what a line gives.
pub(crate) const ATTACHMENTS: &str = "attachments";
pub(crate) const IMAGE: &str = "image";

/// Modules of RSS with images and other media.
pub(crate) const MEDIA_RSS: &str = "http://search.yahoo.com/mrss/";
pub(crate) const ITUNES: &str = "http://www.itunes.com/dtds/podcast-1.0.dtd";

/// File that belongs to an item, such as the sound of a podcast.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Absolute URL.
    pub url: String,
    /// Media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// SHA-256 of its bytes, as 64 hex digits in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_sha256")]
    pub sha256: Option<String>,
}

/// Reads a digest. One that no file can have is an error, not a file that nobody can check.
fn read_sha256<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let is_digest =
        text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_digest.then_some(Some(text)).ok_or_else(|| D::Error::custom("sha256 is 64 hex digits in lower case"))
}

/// Returns the attachments of an item, each address once.
pub fn attachments(item: &Item) -> Vec<Attachment> {
    let published = item.extra.get(ATTACHMENTS).and_then(Value::as_array);
    let published = published.into_iter().flatten().filter_map(|one| Attachment::deserialize(one).ok());
    each_once(published.chain(of_formats(&item.extra)))
}

/// Returns the attachments that a source gave in the form of its format, of an item's `extra`.
pub(crate) fn source_attachments(extra: &Map<String, Value>) -> Vec<Attachment> {
    each_once(of_formats(extra))
}

fn of_formats(extra: &Map<String, Value>) -> impl Iterator<Item = Attachment> {
    let members = extra.get("json_feed").and_then(|feed| feed.get("attachments")).and_then(Value::as_array);
    let members = members.into_iter().flatten().filter_map(of_json_feed);
    members.chain(elements(extra).filter_map(of_element))
}

fn each_once(attachments: impl Iterator<Item = Attachment>) -> Vec<Attachment> {
    let mut found: Vec<Attachment> = Vec::new();
    for attachment in attachments {
        if found.iter().all(|known| known.url != attachment.url) {
            found.push(attachment);
        }
    }
    found
}

/// Returns the URL of an item's image.
pub fn image(item: &Item) -> Option<String> {
    let published = item.extra.get(IMAGE).and_then(Value::as_str).map(str::to_owned);
    published.or_else(|| source_image(&item.extra))
}

/// Returns the URL of the image that a source gave in the form of its format, of an item's `extra`.
pub(crate) fn source_image(extra: &Map<String, Value>) -> Option<String> {
    let member = |name: &str| extra.get("json_feed")?.get(name)?.as_str().map(str::to_owned);
    member("image").or_else(|| member("banner_image")).or_else(|| elements(extra).find_map(image_of_element))
}

/// Iterates over the stored elements of an item.
fn elements(extra: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let stored = extra.get("xml").and_then(Value::as_array);
    stored.into_iter().flatten().filter_map(Value::as_str)
}

fn of_json_feed(member: &Value) -> Option<Attachment> {
    let text = |name: &str| member.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(Attachment {
        url: text("url")?,
        media_type: text("mime_type"),
        size: member.get("size_in_bytes").and_then(Value::as_u64),
        title: text("title"),
        sha256: None,
    })
}

/// Returns what the first fitting tag of a stored element gives: the element's own, or one within Media RSS's groups and
/// files.
fn first<T>(element: &str, find: impl Fn(&mut XmlReader<'_>, Tag<'_>, &str) -> Option<T>) -> Option<T> {
    let mut xml = XmlReader::new(element, None);
    let mut is_root = true;
    loop {
        let tag = match xml.next().ok()? {
            XmlToken::Start(tag) => tag,
            XmlToken::Text(_) | XmlToken::End => continue,
            XmlToken::Eof => return None,
        };
        let namespace = xml.bound_to(Some(tag.prefix()).filter(|prefix| !prefix.is_empty()));
        let found = find(&mut xml, tag, &namespace);
        let holds_others = namespace == MEDIA_RSS && matches!(tag.local, "group" | "content");
        if found.is_some() || (is_root && !holds_others) {
            return found;
        }
        is_root = false;
    }
}

fn value(xml: &mut XmlReader<'_>, name: &str) -> Option<String> {
    xml.attribute(name).ok().flatten().map(std::borrow::Cow::into_owned).filter(|value| !value.is_empty())
}

/// Returns the attachment that an element links to: Atom's enclosure, or a sound or film of Media RSS. Files of a group
/// are forms of the same, so the first stands for all.
pub(crate) fn of_element(element: &str) -> Option<Attachment> {
    first(element, |xml, tag, namespace| {
        let (url, size) = match (tag.ns, tag.local) {
            (Ns::Atom, "link") if value(xml, "rel").is_some_and(|rel| relation(&rel) == "enclosure") => {
                ("href", "length")
            }
            (Ns::Other, "content") if namespace == MEDIA_RSS && !is_image(xml) => ("url", "fileSize"),
            _ => return None,
        };
        Some(Attachment {
            url: value(xml, url)?,
            media_type: value(xml, "type"),
            size: value(xml, size).and_then(|size| size.trim().parse().ok()),
            title: value(xml, "title"),
            sha256: None,
        })
    })
}

/// Returns the image that an element leads to.
pub(crate) fn image_of_element(element: &str) -> Option<String> {
    first(element, |xml, tag, namespace| match (namespace, tag.local) {
        (MEDIA_RSS, "thumbnail") => value(xml, "url"),
        (MEDIA_RSS, "content") if is_image(xml) => value(xml, "url"),
        (ITUNES, "image") => value(xml, "href"),
        _ => None,
    })
}

fn is_image(xml: &mut XmlReader<'_>) -> bool {
    value(xml, "medium").is_some_and(|medium| medium == "image")
        || value(xml, "type").is_some_and(|media_type| media_type.starts_with("image/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_media_have_a_file_and_an_image() {
        let group = |inner: &str| {
            format!(
                "<media:group xmlns:media=\"{MEDIA_RSS}\"><media:title>T</media:title>{inner}</media:group>"
            )
        };
        let film = "<media:content url=\"https://a.example/1.mp4\" type=\"video/mp4\" fileSize=\"9\"/>";
        let other = "<media:content url=\"https://a.example/1.webm\" type=\"video/webm\"/>";
        let thumbnail = "<media:thumbnail url=\"https://a.example/1.png\"/>";
        let found = of_element(&group(&[thumbnail, film, other].concat())).unwrap();
        assert_eq!((found.url.as_str(), found.size), ("https://a.example/1.mp4", Some(9)));
        assert_eq!(found.media_type.as_deref(), Some("video/mp4"));
        let image = image_of_element(&group(&[film, thumbnail].concat()));
        assert_eq!(image.as_deref(), Some("https://a.example/1.png"));
        let within = format!(
            "<m:content xmlns:m=\"{MEDIA_RSS}\" url=\"https://a.example/2.mp4\"><m:thumbnail url=\"/2.png\"/></m:content>"
        );
        assert_eq!(image_of_element(&within).as_deref(), Some("/2.png"));
        assert_eq!(of_element(&group(thumbnail)), None);
        // Other elements are not looked into.
        let foreign = format!("<x xmlns=\"urn:x\" xmlns:media=\"{MEDIA_RSS}\">{thumbnail}</x>");
        assert_eq!(image_of_element(&foreign), None);
    }
}
