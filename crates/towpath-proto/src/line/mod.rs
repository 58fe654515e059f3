//! Line format: a change as one line of JSON, wherever towpath tells of a change or is told of one.
//!
//! `docs/change-format.md` describes it for users, `docs/change.schema.json` for programs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_path_to_error::Segment;

use crate::change::{Change, NewChange, Op};
use crate::item::{Content, Item, ItemError};
use crate::patch::MERGE_PATCH;

mod content;
mod item;
mod json_text;
mod reset;
#[cfg(test)]
mod tests;

use content::ContentFields;
pub use content::LinePatch;
pub use item::LineItem;
pub use json_text::JsonText;
pub use reset::ResetLine;

/// Change as a line of JSON.
///
/// A put has the whole item. So has a patch, if the writer knows the item after it. A deletion has neither content
/// nor `item`.
///
/// ```
/// use towpath_proto::line::Line;
///
/// let line = Line::parse(br#"{"id":"first","json":{"boats":10},"item":{"title":"Ten boats"}}"#)?;
/// let change = line.into_change()?;
/// assert_eq!(change.item.title.as_deref(), Some("Ten boats"));
/// assert_eq!(change.item.content.unwrap().media_type, "application/json");
/// # Ok::<(), towpath_proto::line::LineError>(())
/// ```
// Unknown keys are refused: a misspelled one would lose its value in silence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Name of the feed, or its URL where the name is unknown. Ignored when read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<String>,
    /// Operation.
    #[serde(default = "put")]
    pub op: Op,
    /// Id of the item.
    pub id: String,
    /// Position of the change at the publisher, from which following can resume. Ignored when read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Time of the change, as given by the publisher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<Timestamp>,
    /// Media type of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Content, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Content in Base 64 (RFC 4648, section 4), if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Content, if it is JSON. JSON with line ends or deep nesting is written as `content`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json_text::present")]
    pub json: Option<JsonText>,
    /// Other fields of the item. A line that has them has the whole item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<LineItem>,
    /// Patch by which the item changed. A reader that has seen every version may apply it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<LinePatch>,
    /// Time at which a server is to publish the change. Only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_at: Option<Timestamp>,
}

fn put() -> Op {
    Op::Put
}

/// Error: a line is not a change.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is not JSON, or has another form.
    #[error("not a line of the item format: {}{reason}", if pointer.is_empty() { String::new() } else { format!("{pointer}: ") })]
    Json {
        /// JSON Pointer (RFC 6901) of the member that cannot be read; empty for the line itself.
        pointer: String,
        /// Error of the parser.
        reason: serde_json::Error,
    },
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
    /// The line has more than one form of content.
    #[error("item {0:?} has more than one of content, content_base64 and json")]
    TwoContents(String),
    /// The content is given as `json`, with a media type that is not JSON's.
    #[error("item {id:?} has json, and the content_type {media_type:?}, which is not JSON")]
    JsonType {
        /// Id of the item.
        id: String,
        /// Its media type.
        media_type: String,
    },
    /// The patch is missing.
    #[error("the patch of item {0:?} has no content")]
    EmptyPatch(String),
}

impl Line {
    /// Creates the line of a change. A patch's line has the item too, if `item` is whole.
    pub fn new(op: Op, item: &Item, patch: Option<&Content>) -> Self {
        let is_whole = match op {
            Op::Put => true,
            // A patched item has JSON content. Without content it is only the id that a follower of patches knows.
            Op::Patch => item.content.is_some(),
            Op::Delete => false,
        };
        let content = item.content.as_ref().filter(|_| is_whole);
        let ContentFields { content_type, content, content_base64, json } =
            content.map(ContentFields::of).unwrap_or_default();
        Self {
            feed: None,
            op,
            id: item.id.clone(),
            position: None,
            modified: None,
            content_type,
            content,
            content_base64,
            json,
            item: is_whole.then(|| LineItem::of(item)),
            patch: patch.filter(|_| op == Op::Patch).map(LinePatch::of),
            publish_at: None,
        }
    }

    /// Creates the line of an entry of a log, for a reader who need not have seen the entries before it.
    ///
    /// It has no patch: that reader's item may be older than the one that was patched.
    pub fn of_state(feed: &str, change: &Change, position: String) -> Self {
        Self {
            feed: Some(feed.to_owned()),
            position: Some(position),
            modified: Some(change.modified),
            ..Self::new(change.op, &change.item, None)
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    ///
    /// Text that is not JSON, members that a line does not have, and values of other types.
    pub fn parse(text: &[u8]) -> Result<Self, LineError> {
        serde_json::from_slice(text)
            .map_err(|reason| LineError::Json { pointer: failing_member(text), reason })
    }

    /// Returns the change of the line. Ignores `feed`, `position` and `publish_at`.
    pub fn into_change(self) -> Result<NewChange, LineError> {
        crate::item::check_id(&self.id)?;
        let Self { op, id, item, patch, modified, .. } = self;
        let (content_type, content, content_base64) = (self.content_type, self.content, self.content_base64);
        let fields = ContentFields { content_type, content, content_base64, json: self.json };
        let content = fields.into_content(&id)?;
        let patch = patch.map_or(Ok(None), |patch| ContentFields::from(patch).into_content(&id))?;
        let mut change = match (op, content, patch) {
            (Op::Put, content, _) => NewChange::put(item.unwrap_or_default().into_item(id, content)),
            (Op::Patch, _, Some(patch)) => NewChange::patch(id, patch),
            (Op::Patch, Some(content), None) => match item.filter(|_| content.essence() != MERGE_PATCH) {
                // The item after a patch that the line does not tell.
                Some(item) => NewChange::put(item.into_item(id, Some(content))),
                // Lines of towpath 0.1 had a patch as their content.
                None => NewChange::patch(id, content),
            },
            (Op::Patch, None, None) => return Err(LineError::EmptyPatch(id)),
            (Op::Delete, ..) => NewChange::delete(id),
        };
        change.modified = modified;
        Ok(change)
    }
}

/// Returns the JSON Pointer of the member that cannot be read. The line is read once more, as only few lines fail.
fn failing_member(text: &[u8]) -> String {
    let mut json = serde_json::Deserializer::from_slice(text);
    let Err(error) = serde_path_to_error::deserialize::<_, Line>(&mut json) else { return String::new() };
    let tokens = error.path().iter().map_while(|segment| match segment {
        Segment::Seq { index } => Some(format!("/{index}")),
        // RFC 6901, section 3.
        Segment::Map { key } => Some(format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    tokens.collect()
}
