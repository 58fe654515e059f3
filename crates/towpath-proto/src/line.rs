//! Line format: a change as a JSON object, printed by `follow` and read by `import` and `POST …/items`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attachment::{self, Attachment};
use crate::change::{NewChange, Op};
use crate::item::{Author, Content, Item, ItemError};

/// Change as a line of JSON.
///
/// For a patch `content` is the patch. A deletion has neither content nor `item`.
///
/// ```
/// use towpath_proto::line::Line;
///
/// let line = Line::parse(br#"{"id":"first","item":{"title":"Ten boats"}}"#)?;
/// let change = line.into_change()?;
/// assert_eq!(change.item.title.as_deref(), Some("Ten boats"));
/// # Ok::<(), towpath_proto::line::LineError>(())
/// ```
// Unknown keys are refused: a misspelled one would lose its value in silence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Id or URL of the feed. Ignored when read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<String>,
    /// Operation.
    #[serde(default = "put")]
    pub op: Op,
    /// Id of the item.
    pub id: String,
    /// Time of the change, as given by the publisher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Timestamp>,
    /// Position of the change at the publisher. Ignored when read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Media type of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Content, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Content in Base 64 (RFC 4648, section 4), if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Other fields of the item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<LineItem>,
}

/// Fields of a line's `item`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineItem {
    /// See [`Item::title`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// See [`Item::url`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// See [`Item::summary`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// See [`Item::published`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Timestamp>,
    /// See [`Item::updated`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<Timestamp>,
    /// See [`Item::authors`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<Author>,
    /// See [`Item::tags`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Files that belong to the item. Only read: they are part of `extra` when written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// URL of an image. Only read, like `attachments`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// See [`Item::extra`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Line that says that a feed began anew: its items so far are void, and those that it has follow.
///
/// ```
/// use towpath_proto::line::ResetLine;
///
/// let line = serde_json::to_string(&ResetLine::new("http://example.com/".into()))?;
/// assert_eq!(line, r#"{"feed":"http://example.com/","op":"reset"}"#);
/// assert!(ResetLine::is(line.as_bytes()) && !ResetLine::is(br#"{"op":"delete","id":"reset"}"#));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetLine {
    /// Id or URL of the feed.
    #[serde(default)]
    pub feed: String,
    op: ResetOp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResetOp {
    Reset,
}

impl ResetLine {
    /// Creates the line of a feed.
    pub fn new(feed: String) -> Self {
        Self { feed, op: ResetOp::Reset }
    }

    /// Returns whether a line says so.
    pub fn is(line: &[u8]) -> bool {
        // Most lines are changes, and large: the search costs less than a parse.
        memchr::memmem::find(line, br#""reset""#).is_some() && serde_json::from_slice::<Self>(line).is_ok()
    }
}

fn put() -> Op {
    Op::Put
}

/// Error: a line is not a change.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is not JSON, or has another form.
    #[error("not a line of the item format: {0}")]
    Json(#[from] serde_json::Error),
    /// The id or media type is invalid.
    #[error(transparent)]
    Item(#[from] ItemError),
    /// `content_base64` is not Base 64.
    #[error("content_base64 of item {id:?} is not Base 64: {reason}")]
    Base64 {
        /// Id of the item.
        id: String,
        /// Error of the decoder.
        reason: String,
    },
    /// The line has both forms of content.
    #[error("item {0:?} has both content and content_base64")]
    TwoContents(String),
    /// The patch is missing.
    #[error("the patch of item {0:?} has no content")]
    EmptyPatch(String),
}

impl Line {
    /// Creates the line of a change: `item` with its content for a put, `patch` for a patch.
    pub fn new(op: Op, item: &Item, patch: Option<&Content>) -> Self {
        let content = match op {
            Op::Put => item.content.as_ref(),
            Op::Patch => patch,
            Op::Delete => None,
        };
        let text = content.and_then(Content::text);
        Self {
            feed: None,
            op,
            id: item.id.clone(),
            modified: None,
            position: None,
            content_type: content.map(|c| c.media_type.clone()),
            content: text.map(str::to_owned),
            content_base64: content.filter(|_| text.is_none()).map(|c| STANDARD.encode(&c.bytes)),
            item: (op == Op::Put).then(|| LineItem::of(item)),
        }
    }

    /// Parses a line.
    pub fn parse(text: &[u8]) -> Result<Self, LineError> {
        Ok(serde_json::from_slice(text)?)
    }

    /// Returns the change of the line. Ignores `feed` and `position`.
    pub fn into_change(self) -> Result<NewChange, LineError> {
        crate::item::check_id(&self.id)?;
        let content = match (self.content, self.content_base64) {
            // Two contents would leave the choice to the reader's implementation.
            (Some(_), Some(_)) => return Err(LineError::TwoContents(self.id)),
            (Some(text), None) => Some((text.into_bytes(), "text/plain; charset=utf-8")),
            (None, Some(text)) => match STANDARD.decode(&text) {
                Ok(bytes) => Some((bytes, "application/octet-stream")),
                Err(e) => return Err(LineError::Base64 { id: self.id, reason: e.to_string() }),
            },
            (None, None) => None,
        };
        let media_type = self.content_type;
        let content =
            // A line without a type gets the one that its form implies.
            content.map(|(bytes, usual)| Content::new(media_type.unwrap_or_else(|| usual.into()), bytes));
        // Checked here: later the type would break every response that has it as a header.
        content.as_ref().map_or(Ok(()), Content::check_type)?;
        let mut change = match (self.op, content) {
            (Op::Put, content) => NewChange::put(self.item.unwrap_or_default().into_item(self.id, content)),
            (Op::Patch, Some(patch)) => NewChange::patch(self.id, patch),
            (Op::Patch, None) => return Err(LineError::EmptyPatch(self.id)),
            (Op::Delete, _) => NewChange::delete(self.id),
        };
        change.modified = self.modified;
        Ok(change)
    }
}

impl LineItem {
    fn of(item: &Item) -> Self {
        Self {
            title: item.title.clone(),
            url: item.url.clone(),
            summary: item.summary.clone(),
            published: item.published,
            updated: item.updated,
            authors: item.authors.clone(),
            tags: item.tags.clone(),
            attachments: Vec::new(),
            image: None,
            extra: item.extra.clone(),
        }
    }

    fn into_item(mut self, id: String, content: Option<Content>) -> Item {
        if let Some(image) = self.image {
            self.extra.insert(attachment::IMAGE.into(), image.into());
        }
        if !self.attachments.is_empty() {
            let attachments = serde_json::to_value(self.attachments).unwrap_or_default();
            self.extra.insert(attachment::ATTACHMENTS.into(), attachments);
        }
        Item {
            id,
            url: self.url,
            title: self.title,
            summary: self.summary,
            content,
            authors: self.authors,
            tags: self.tags,
            published: self.published,
            updated: self.updated,
            extra: self.extra,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(change: &NewChange) {
        let line = Line::new(change.op, &change.item, change.patch.as_ref());
        let text = serde_json::to_vec(&line).unwrap();
        // Lines are separated by line ends, so a line must not have one.
        assert!(!text.contains(&b'\n'));
        assert_eq!(&Line::parse(&text).unwrap().into_change().unwrap(), change);
    }

    #[test]
    fn every_kind_of_change_comes_back() {
        there_and_back(&NewChange::delete("a\n\"/😀"));
        there_and_back(&NewChange::patch("a", Content::new("application/merge-patch+json", "{}")));
        let mut item = Item::new("a");
        there_and_back(&NewChange::put(item.clone()));
        // Not UTF-8, so it must be written in Base 64.
        item.content = Some(Content::new("image/png", vec![0x89, 0xff]));
        item.authors = vec![Author::named("Ann")];
        item.published = Some("2024-01-01T00:00:00.123Z".parse().unwrap());
        there_and_back(&NewChange::put(item));
    }

    #[test]
    fn op_defaults_to_put_and_feed_and_position_are_ignored() {
        let line = Line::parse(br#"{"id":"a","feed":"f","position":"9","content":"x"}"#).unwrap();
        let change = line.into_change().unwrap();
        assert_eq!(change.op, Op::Put);
        assert_eq!(change.item.content.unwrap().media_type, "text/plain; charset=utf-8");
    }

    #[test]
    fn bad_lines_name_the_item() {
        let error = |text: &str| match Line::parse(text.as_bytes()) {
            Ok(line) => line.into_change().unwrap_err().to_string(),
            Err(e) => e.to_string(),
        };
        assert!(error(r#"{"id":"a","content_base64":"*"}"#).contains("\"a\""));
        assert!(error(r#"{"id":"a","op":"patch"}"#).contains("no content"));
        assert!(error(r#"{"id":"","content":"x"}"#).contains("empty"));
        let long = format!(r#"{{"id":"a","content":"x","content_type":"{}"}}"#, "x".repeat(70_000));
        assert!(error(&long).contains("content type is 1 to 1024"));
        assert!(error(r#"{"id":"a","content":"x","content_type":"a\nb"}"#).contains("a\\nb"));
        assert!(error(r#"{"id":"a","op":"shove"}"#).contains("shove"));
        // Dropped in silence, a misspelled key would be lost data.
        assert!(error(r#"{"id":"a","titel":"x"}"#).contains("titel"));
        assert!(error(r#"{"id":"a","item":{"titel":"x"}}"#).contains("titel"));
        assert!(error(r#"{"id":"a","content":"#).contains("EOF"));
    }
}
