//! The `source_payload` of our delta items: the parts of an item that the schema's own fields cannot hold.
//!
//! With it, a follower restores the identical item. Free JSON ([`Item::extra`]) is stored as a string, so that
//! no foreign number or key is covered by a cursor. Implementations of canonical_v1 differ on those.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::item::{Author, Content, Item};

/// Value of `profile` that marks a payload of this form.
pub(in crate::diffdelta) const PROFILE: &str = "towpath-item-1";
/// The parts of an item that the schema's fields do not hold. Fields are in the order of their names.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::diffdelta) struct Payload<'a> {
    /// Schema fields that the item does not have: `published`, `updated`, `url`. The schema requires them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::diffdelta) absent: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::diffdelta) authors: Vec<PayloadAuthor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) content_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) content_text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) content_type: Option<String>,
    /// [`Item::extra`] as JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) extra: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) id: Option<String>,
    /// [`PROFILE`].
    pub(in crate::diffdelta) profile: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) published: Option<Timestamp>,
    /// Time of the removal, for a removed item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) removed_at: Option<Timestamp>,
    /// Fields that `excerpt_text` holds whole: `summary`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::diffdelta) same: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) summary: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::diffdelta) tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) updated: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) url: Option<String>,
}

/// [`Author`] with its fields in the order of their names, as canonical JSON needs them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::diffdelta) struct PayloadAuthor {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) email: Option<String>,
    pub(in crate::diffdelta) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::diffdelta) url: Option<String>,
}

impl<'a> Payload<'a> {
    /// Adds the fields that have no counterpart in the schema.
    pub(in crate::diffdelta) fn add_hidden(&mut self, item: &'a Item) {
        let author =
            |a: &Author| PayloadAuthor { email: a.email.clone(), name: a.name.clone(), url: a.url.clone() };
        self.authors = item.authors.iter().map(author).collect();
        self.tags.clone_from(&item.tags);
        if !item.extra.is_empty() {
            // As a string: see the module's comment on foreign numbers and keys.
            self.extra = serde_json::to_string(&item.extra).ok();
        }
        if let Some(content) = &item.content {
            self.content_type = Some(content.media_type.clone());
            match content.text() {
                // Text stays readable in the document; anything else needs Base 64.
                Some(text) => self.content_text = Some(text.into()),
                None => self.content_base64 = Some(STANDARD.encode(&content.bytes)),
            }
        }
    }

    /// Returns true if the excerpt is the whole text of a field.
    pub(super) fn is_same(&self, name: &str) -> bool {
        self.same.iter().any(|same| same == name)
    }

    pub(super) fn content(&self) -> Result<Option<Content>, String> {
        let media_type = self.content_type.clone().unwrap_or_default();
        if let Some(text) = &self.content_text {
            return Ok(Some(Content::new(media_type, text.to_string())));
        }
        let Some(text) = &self.content_base64 else { return Ok(None) };
        let bytes = STANDARD.decode(text).map_err(|e| format!("content_base64 is not Base 64: {e}"))?;
        Ok(Some(Content::new(media_type, bytes)))
    }
}
