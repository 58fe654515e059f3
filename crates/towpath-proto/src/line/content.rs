//! Content in a line: as JSON, as text or in Base 64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::json_text::{self, JsonText};
use super::{LineError, MERGE_PATCH};
use crate::item::Content;

/// Patch of a line, with the members that content has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinePatch {
    /// Media type of the patch; `application/merge-patch+json` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Patch, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Patch in Base 64, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Patch, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json_text::present")]
    pub json: Option<JsonText>,
}

impl LinePatch {
    pub(super) fn of(patch: &Content) -> Self {
        let ContentFields { content_type, content, content_base64, json } = ContentFields::of(patch);
        Self { content_type, content, content_base64, json }
    }
}

/// Members of a line, or of its patch, that say what the content is.
#[derive(Debug, Default)]
pub(super) struct ContentFields {
    pub(super) content_type: Option<String>,
    pub(super) content: Option<String>,
    pub(super) content_base64: Option<String>,
    pub(super) json: Option<JsonText>,
}

impl From<LinePatch> for ContentFields {
    fn from(patch: LinePatch) -> Self {
        let LinePatch { content_type, content, content_base64, json } = patch;
        Self { content_type: content_type.or(Some(MERGE_PATCH.into())), content, content_base64, json }
    }
}

impl ContentFields {
    /// Writes content in the first form that gives its bytes back.
    pub(super) fn of(content: &Content) -> Self {
        let mut fields = Self { content_type: Some(content.media_type.clone()), ..Self::default() };
        let text = content.text();
        fields.json = text.filter(|_| content.is_json()).and_then(JsonText::of_line);
        if fields.json.is_some() {
            return fields;
        }
        match text {
            Some(text) => fields.content = Some(text.to_owned()),
            None => fields.content_base64 = Some(STANDARD.encode(&content.bytes)),
        }
        fields
    }

    /// Returns the content; `None` if there is none. `id` is the item's, for errors.
    pub(super) fn into_content(self, id: &str) -> Result<Option<Content>, LineError> {
        let (bytes, usual) = match (self.content, self.content_base64, self.json) {
            (None, None, None) => return Ok(None),
            (Some(text), None, None) => (text.into_bytes(), "text/plain; charset=utf-8"),
            (None, Some(text), None) => match STANDARD.decode(&text) {
                Ok(bytes) => (bytes, "application/octet-stream"),
                Err(e) => return Err(LineError::Base64 { id: id.to_owned(), reason: e.to_string() }),
            },
            (None, None, Some(json)) => {
                let media_type = self.content_type.as_deref().unwrap_or("application/json");
                if !Content::new(media_type, "").is_json() {
                    let media_type = media_type.chars().take(60).collect();
                    return Err(LineError::JsonType { id: id.to_owned(), media_type });
                }
                (json.as_str().as_bytes().to_vec(), "application/json")
            }
            // Two contents would leave the choice to the reader's implementation.
            _ => return Err(LineError::TwoContents(id.to_owned())),
        };
        // A line without a type gets the one that its form implies.
        let content = Content::new(self.content_type.unwrap_or_else(|| usual.to_owned()), bytes);
        // Checked here: later the type would break every response that has it as a header.
        content.check_type()?;
        Ok(Some(content))
    }
}
