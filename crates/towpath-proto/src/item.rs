//! The item: one entry of a feed, whatever format it came from and whichever protocol carries it.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The longest item id, in bytes.
pub const MAX_ID_BYTES: usize = 2048;

/// The longest media type that can be published, in bytes.
pub const MAX_MEDIA_TYPE_BYTES: usize = 1024;

/// One entry of a feed. Raw content (any media type) and parsed entries are the same type: raw content
/// simply has no title.
///
/// What one protocol cannot carry is lost only in that protocol; what it can carry comes back identical.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Unique within the feed, opaque, compared exactly. 1 to [`MAX_ID_BYTES`] bytes of any characters.
    pub id: String,
    /// The address of what the item is about, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Plain text or HTML as the source had it, shorter than the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The item itself.
    #[serde(skip)]
    pub content: Option<Content>,
    /// Who wrote it, in the source's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<Author>,
    /// Categories, in the source's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// When the source says it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Timestamp>,
    /// When the source says it was last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<Timestamp>,
    /// What the fields above have no place for, by format: `"xml"` is a list of elements as text, each with
    /// its own namespace declarations; `"json_feed"` is an object of the keys that were left over.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// The bytes of an item and what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// As in a `Content-Type` header, parameters included.
    pub media_type: String,
    /// Any bytes, text or not.
    pub bytes: Bytes,
}

/// A person or a program that wrote an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "AuthorForm")]
pub struct Author {
    /// The name to show.
    pub name: String,
    /// An e-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// A page about the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// An author is written as an object; a bare name is accepted too.
#[derive(Deserialize)]
#[serde(untagged)]
enum AuthorForm {
    Name(String),
    Whole {
        #[serde(default)]
        name: String,
        email: Option<String>,
        url: Option<String>,
    },
}

impl From<AuthorForm> for Author {
    fn from(form: AuthorForm) -> Self {
        match form {
            AuthorForm::Name(name) => Self { name, email: None, url: None },
            AuthorForm::Whole { name, email, url } => Self { name, email, url },
        }
    }
}

impl Author {
    /// An author of whom only the name is known.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), email: None, url: None }
    }
}

impl Content {
    /// Content of a media type.
    pub fn new(media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { media_type: media_type.into(), bytes: bytes.into() }
    }

    /// Checks what is published with a media type of the publisher's choice: 1 to [`MAX_MEDIA_TYPE_BYTES`]
    /// printable characters of ASCII. What comes from sources and other feeds is kept as it is.
    pub fn check_type(&self) -> Result<(), ItemError> {
        let is_short = (1..=MAX_MEDIA_TYPE_BYTES).contains(&self.media_type.len());
        if is_short && self.media_type.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return Ok(());
        }
        Err(ItemError::MediaType { start: self.media_type.chars().take(60).collect() })
    }

    /// The media type without parameters, in lower case: `text/html; charset=utf-8` gives `text/html`.
    pub fn essence(&self) -> String {
        let essence = self.media_type.split(';').next().unwrap_or_default();
        essence.trim().to_ascii_lowercase()
    }

    /// How programs that read feeds show it, and the text that they show. `None` where it is no text for people: bytes,
    /// an XML document, another character set than UTF-8.
    pub fn shown(&self) -> Option<(Shown, &str)> {
        let shown = match self.media_type.as_str() {
            "text/html" => Shown::Html,
            "text/plain" => Shown::Text,
            _ if !self.is_utf8() => return None,
            _ => match self.essence().as_str() {
                "text/html" | "application/xhtml+xml" => Shown::Html,
                essence if essence.ends_with("/xml") => return None,
                essence if essence.starts_with("text/") || is_json(essence) => Shown::Text,
                _ => return None,
            },
        };
        Some((shown, self.text()?))
    }

    /// The media type, where it says more than how the content is shown.
    pub(crate) fn type_beyond(&self, shown: Shown) -> Option<&str> {
        Some(self.media_type.as_str()).filter(|own| *own != shown.media_type())
    }

    /// Whether the media type names no character set, or UTF-8 or a part of it.
    fn is_utf8(&self) -> bool {
        let parameters = self.media_type.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
        parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset")).all(|(_, value)| {
            let value = value.trim().trim_matches('"');
            ["utf-8", "utf8", "us-ascii"].iter().any(|name| value.eq_ignore_ascii_case(name))
        })
    }

    /// The bytes as text, where they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// Whether the media type is JSON or one of its `+json` descendants.
    pub fn is_json(&self) -> bool {
        is_json(&self.essence())
    }
}

fn is_json(essence: &str) -> bool {
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

/// How content is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// As HTML.
    Html,
    /// As it is.
    Text,
}

impl Shown {
    /// The media type that says this and no more.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Html => "text/html",
            Self::Text => "text/plain",
        }
    }
}

/// Why an item cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// The id is the empty text.
    #[error("an item's id is empty")]
    EmptyId,
    /// The id is longer than [`MAX_ID_BYTES`].
    #[error("an item's id has {length} bytes, over the limit of {MAX_ID_BYTES}: {start:?}…")]
    LongId {
        /// Its length in bytes.
        length: usize,
        /// Its first characters.
        start: String,
    },
    /// The media type is empty, longer than [`MAX_MEDIA_TYPE_BYTES`], or cannot stand in a header.
    #[error("a content type is 1 to {MAX_MEDIA_TYPE_BYTES} printable ASCII characters, and not {start:?}…")]
    MediaType {
        /// Its first characters.
        start: String,
    },
}

impl Item {
    /// An item of which only the id is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Checks what every feed demands of an item: an id of 1 to [`MAX_ID_BYTES`] bytes.
    pub fn check(&self) -> Result<(), ItemError> {
        check_id(&self.id)
    }

    /// The SHA-256 of the item's canonical form, which is the same for the same semantic content.
    ///
    /// The form is JSON with sorted keys and no white space (RFC 8785 for the types used here) of the fields
    /// that are present, followed by a zero byte and the content's bytes where there is content.
    pub fn content_hash(&self) -> ContentHash {
        let form = CanonicalItem {
            authors: &self.authors,
            content_type: self.content.as_ref().map(|c| c.media_type.as_str()),
            extra: &self.extra,
            id: &self.id,
            published: self.published,
            summary: self.summary.as_deref(),
            tags: &self.tags,
            title: self.title.as_deref(),
            updated: self.updated,
            url: self.url.as_deref(),
        };
        let mut hasher = HashWriter(Sha256::new());
        // Writing to a hasher cannot fail, and the form has no map with keys other than text.
        let written = serde_json::to_writer(&mut hasher, &form);
        debug_assert!(written.is_ok());
        if let Some(content) = &self.content {
            hasher.0.update([0]);
            hasher.0.update(&content.bytes);
        }
        ContentHash(hasher.0.finalize().into())
    }
}

/// Checks an item's id: 1 to [`MAX_ID_BYTES`] bytes.
pub fn check_id(id: &str) -> Result<(), ItemError> {
    match id.len() {
        0 => Err(ItemError::EmptyId),
        length if length > MAX_ID_BYTES => {
            Err(ItemError::LongId { length, start: id.chars().take(60).collect() })
        }
        _ => Ok(()),
    }
}

/// The fields of an item in the order of their names, so that serialising them is canonical.
#[derive(Serialize)]
struct CanonicalItem<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    authors: &'a [Author],
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: &'a Map<String, Value>,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
}

struct HashWriter(Sha256);

impl std::io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The SHA-256 of an item's canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    /// `sha256:` and 64 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_content_is_shown() {
        let shown = |media_type: &str| Content::new(media_type, "x").shown().map(|(shown, _)| shown);
        for html in ["text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "text/html; a=b"] {
            assert_eq!(shown(html), Some(Shown::Html), "{html}");
        }
        for text in ["text/plain", "text/plain; Charset=\"US-ASCII\"", "text/markdown", "application/ld+json"]
        {
            assert_eq!(shown(text), Some(Shown::Text), "{text}");
        }
        for none in ["text/html; charset=latin1", "application/atom+xml", "text/xml", "image/png", ""] {
            assert_eq!(shown(none), None, "{none}");
        }
        assert!(Content::new("text/plain", vec![0xFF]).shown().is_none());
    }

    #[test]
    fn the_hash_covers_every_field_and_nothing_else() {
        let base = Item { title: Some("t".into()), ..Item::new("a") };
        assert_eq!(base.content_hash(), {
            let same = Item { title: Some("t".into()), ..Item::new("a") };
            same.content_hash()
        });
        let mut variants = vec![base.clone()];
        variants.push(Item { id: "b".into(), ..base.clone() });
        variants.push(Item { url: Some("t".into()), title: None, ..base.clone() });
        variants.push(Item { summary: Some("t".into()), ..base.clone() });
        variants.push(Item { content: Some(Content::new("text/plain", "t")), ..base.clone() });
        variants.push(Item { content: Some(Content::new("text/html", "t")), ..base.clone() });
        variants.push(Item { authors: vec![Author::named("t")], ..base.clone() });
        variants.push(Item { tags: vec!["t".into()], ..base.clone() });
        variants.push(Item { published: Some(Timestamp::UNIX_EPOCH), ..base.clone() });
        variants.push(Item { updated: Some(Timestamp::UNIX_EPOCH), ..base.clone() });
        let mut extra = Map::new();
        extra.insert("k".into(), Value::from(1));
        variants.push(Item { extra, ..base });
        let mut hashes: Vec<_> = variants.iter().map(Item::content_hash).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), variants.len());
    }

    #[test]
    fn ids_have_a_length_limit() {
        assert_eq!(Item::new("").check(), Err(ItemError::EmptyId));
        assert_eq!(Item::new("é\n\"/😀").check(), Ok(()));
        assert!(Item::new("x".repeat(MAX_ID_BYTES)).check().is_ok());
        let error = Item::new("x".repeat(MAX_ID_BYTES + 1)).check().unwrap_err();
        assert!(error.to_string().contains("2049 bytes"), "{error}");
    }

    #[test]
    fn media_types_are_short_and_fit_a_header() {
        let check = |media_type: &str| Content::new(media_type, "").check_type();
        assert!(check("text/html; charset=\"utf-8\"").is_ok());
        assert!(check(&"x".repeat(MAX_MEDIA_TYPE_BYTES)).is_ok());
        for bad in ["", "a\nb", "text/\u{7f}", "text/ä", &"x".repeat(MAX_MEDIA_TYPE_BYTES + 1)] {
            assert!(matches!(check(bad), Err(ItemError::MediaType { .. })), "{bad:?}");
        }
    }

    #[test]
    fn an_author_may_be_a_bare_name() {
        let authors: Vec<Author> =
            serde_json::from_str(r#"["Ann", {"name":"Bob","url":"http://b"}]"#).unwrap();
        assert_eq!(authors[0], Author::named("Ann"));
        assert_eq!(authors[1].url.as_deref(), Some("http://b"));
    }
}
