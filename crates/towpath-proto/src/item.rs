//! Items: entries of a feed, of any format, carried by any protocol.

use std::fmt;

use crate::format::media_type;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Maximum length of an item id, in bytes.
pub const MAX_ID_BYTES: usize = 2048;

/// Maximum length of a published media type, in bytes.
pub const MAX_MEDIA_TYPE_BYTES: usize = 1024;

/// Entry of a feed. Raw content of any media type and parsed entries share this type: raw content has no
/// title.
///
/// A protocol may lose only the fields that it cannot express; all others come back identical.
///
/// ```
/// use towpath_proto::{Content, Item};
///
/// let item = Item {
///     title: Some("Ten boats".into()),
///     content: Some(Content::new("text/plain", "They went by.")),
///     ..Item::new("first")
/// };
/// assert_eq!(item.check(), Ok(()));
/// // Equal items have equal hashes, whatever they were read from.
/// assert_eq!(item.content_hash(), item.clone().content_hash());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Unique within the feed, opaque, compared exactly. 1 to [`MAX_ID_BYTES`] bytes of any characters.
    pub id: String,
    /// URL of the item's subject, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Plain text or HTML as in the source, shorter than the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Content of the item. Serialization leaves it out: bytes are no JSON, and a line of the change format has it beside the
    /// item, as `content`, `content_base64` or `json`.
    #[serde(skip)]
    pub content: Option<Content>,
    /// Authors, in the source's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<Author>,
    /// Categories, in the source's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Date of publication, as given by the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Timestamp>,
    /// Date of the last change, as given by the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<Timestamp>,
    /// Data without a field above, by format. `"xml"` is a list of elements as text, each with its own
    /// namespace declarations; `"json_feed"` is an object of remaining members.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Bytes of an item with their media type.
///
/// ```
/// use towpath_proto::Content;
///
/// let content = Content::new("text/plain; charset=utf-8", "Ten boats");
/// assert_eq!((content.essence().as_str(), content.text()), ("text/plain", Some("Ten boats")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Media type as in a `Content-Type` header, with parameters.
    pub media_type: String,
    /// Bytes, text or not.
    pub bytes: Bytes,
}

/// Person or program that wrote an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "AuthorForm")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Author {
    /// Display name.
    pub name: String,
    /// E-mail address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// URL of a page about the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// An author is written as an object; a bare name is accepted as well.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum AuthorForm {
    /// Display name.
    Name(String),
    /// Name and addresses.
    Whole {
        /// Display name.
        #[serde(default)]
        name: String,
        /// E-mail address.
        email: Option<String>,
        /// URL of a page about the author.
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
    /// Creates an author with only a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), email: None, url: None }
    }

    /// Returns what formats show that require a name: the name, or else one of the addresses.
    pub(crate) fn shown_name(&self) -> &str {
        let addresses = [self.email.as_deref(), self.url.as_deref()].into_iter().flatten();
        let named = Some(self.name.as_str()).filter(|name| !name.is_empty());
        named.or_else(|| addresses.into_iter().find(|address| !address.is_empty())).unwrap_or_default()
    }
}

impl Content {
    /// Creates content of a media type.
    pub fn new(media_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { media_type: media_type.into(), bytes: bytes.into() }
    }

    /// Checks a media type chosen by a publisher: 1 to [`MAX_MEDIA_TYPE_BYTES`] printable ASCII characters.
    /// Media types from sources and other feeds are stored unchanged.
    pub fn check_type(&self) -> Result<(), ItemError> {
        // A publisher's media type is sent in headers, where a line end would be an injection.
        let is_short = (1..=MAX_MEDIA_TYPE_BYTES).contains(&self.media_type.len());
        // A line end would let a publisher write headers of its own (response splitting).
        if is_short && self.media_type.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return Ok(());
        }
        Err(ItemError::MediaType { start: self.media_type.chars().take(60).collect() })
    }

    /// Returns the media type without parameters, in lower case: `text/html; charset=utf-8` gives
    /// `text/html`.
    pub fn essence(&self) -> String {
        media_type::essence(&self.media_type).to_ascii_lowercase()
    }

    /// Returns the form in which feed readers show the content, with its text. `None` if it is not text for
    /// people: bytes, an XML document, a character set other than UTF-8.
    pub fn shown(&self) -> Option<(ContentForm, &str)> {
        let shown = match self.media_type.as_str() {
            "text/html" => ContentForm::Html,
            "text/plain" => ContentForm::Text,
            _ if !self.is_utf8() => return None,
            _ => match self.essence().as_str() {
                "text/html" | "application/xhtml+xml" => ContentForm::Html,
                // XML is data, not text for people, except for XHTML.
                essence if essence.ends_with("/xml") => return None,
                essence if essence.starts_with("text/") || is_json(essence) => ContentForm::Text,
                _ => return None,
            },
        };
        Some((shown, self.text()?))
    }

    /// Returns the media type, if it says more than the form.
    pub(crate) fn type_beyond(&self, shown: ContentForm) -> Option<&str> {
        Some(self.media_type.as_str()).filter(|own| *own != shown.media_type())
    }

    /// Returns `true` if the media type has no character set, or UTF-8 or a subset of it.
    fn is_utf8(&self) -> bool {
        let parameters = self.media_type.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
        // Names of parameters ignore case (RFC 9110, section 5.6.6).
        parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset")).all(|(_, value)| {
            let value = value.trim().trim_matches('"');
            ["utf-8", "utf8", "us-ascii"].iter().any(|name| value.eq_ignore_ascii_case(name))
        })
    }

    /// Returns the bytes as text, if they are UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// Returns `true` for JSON and its `+json` subtypes.
    pub fn is_json(&self) -> bool {
        is_json(&self.essence())
    }
}

fn is_json(essence: &str) -> bool {
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

/// Form in which content is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// HTML.
    Html,
    /// Plain text.
    Text,
}

impl ContentForm {
    /// Returns the media type of exactly this form.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Html => "text/html",
            Self::Text => "text/plain",
        }
    }
}

/// Error: an item cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// The id is empty.
    #[error("an item's id is empty")]
    EmptyId,
    /// The id is longer than [`MAX_ID_BYTES`].
    #[error("an item's id has {length} bytes, over the limit of {MAX_ID_BYTES}: {start:?}…")]
    LongId {
        /// Length in bytes.
        length: usize,
        /// First characters.
        start: String,
    },
    /// The media type is empty, longer than [`MAX_MEDIA_TYPE_BYTES`], or not valid in a header.
    #[error("a content type is 1 to {MAX_MEDIA_TYPE_BYTES} printable ASCII characters, and not {start:?}…")]
    MediaType {
        /// First characters.
        start: String,
    },
}

impl Item {
    /// Creates an item with only an id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// Checks the requirements of every feed: an id of 1 to [`MAX_ID_BYTES`] bytes.
    pub fn check(&self) -> Result<(), ItemError> {
        check_id(&self.id)
    }

    /// Returns the SHA-256 of the item's canonical form. Equal semantic content gives an equal hash.
    ///
    /// The canonical form is JSON with sorted keys and no white space (RFC 8785 for the types used here) of
    /// all present fields. With content, a zero byte and the content's bytes follow.
    pub fn content_hash(&self) -> ContentHash {
        self.content_hash_in(&mut Vec::with_capacity(256))
    }

    /// Returns [`Self::content_hash`]. `text` is memory for the canonical form, which many items share.
    pub(crate) fn content_hash_in(&self, text: &mut Vec<u8>) -> ContentHash {
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
        // Whole before it is hashed: the serializer writes a few bytes at a time, which a hasher would copy into its block
        // one by one. All keys of the form are text, so writing cannot fail.
        text.clear();
        let written = serde_json::to_writer(&mut *text, &form);
        debug_assert!(written.is_ok());
        let mut hasher = Sha256::new();
        if let Some(content) = &self.content {
            // The separator cannot occur in JSON text, so form and content cannot be confused.
            text.push(0);
            hasher.update(&*text);
            hasher.update(&content.bytes);
        } else {
            hasher.update(&*text);
        }
        ContentHash(hasher.finalize().into())
    }
}

/// Checks an item id: 1 to [`MAX_ID_BYTES`] bytes.
pub fn check_id(id: &str) -> Result<(), ItemError> {
    match id.len() {
        0 => Err(ItemError::EmptyId),
        length if length > MAX_ID_BYTES => {
            Err(ItemError::LongId { length, start: id.chars().take(60).collect() })
        }
        _ => Ok(()),
    }
}

/// Fields of an item in alphabetical order, so that serialization is canonical.
#[derive(Serialize)]
struct CanonicalItem<'a> {
    // Absent fields are left out, so a field that is added later keeps the old hashes.
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

/// SHA-256 of an item's canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

/// Writes a SHA-256 as `sha256:` and 64 lower-case hex digits.
pub(crate) fn write_sha256(f: &mut fmt::Formatter<'_>, hash: &[u8; 32]) -> fmt::Result {
    // Not `hex::encode`: it pushes one character after the other to a new string, and each item has several hashes.
    let mut digits = [0; 64];
    hex::encode_to_slice(hash, &mut digits).map_err(|_| fmt::Error)?;
    f.write_str("sha256:")?;
    f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
}

impl fmt::Display for ContentHash {
    /// Formats as `sha256:` and 64 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_sha256(f, &self.0)
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
            assert_eq!(shown(html), Some(ContentForm::Html), "{html}");
        }
        for text in ["text/plain", "text/plain; Charset=\"US-ASCII\"", "text/markdown", "application/ld+json"]
        {
            assert_eq!(shown(text), Some(ContentForm::Text), "{text}");
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
        // The same text in another field is another item.
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
        // Any characters, also those that neither URLs nor XML can hold.
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
