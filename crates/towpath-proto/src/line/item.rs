//! Fields of an item in a line.

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::attachment::{self, Attachment};
use crate::format::json_numbers::numbers_as_text;
use crate::item::{Author, Content, Item};

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
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "read_authors")]
    pub authors: Vec<Author>,
    /// See [`Item::tags`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Files that belong to the item. Kept in `extra` of [`Item`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// URL of an image. Kept in `extra`, like `attachments`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// See [`Item::extra`].
    #[serde(default, skip_serializing_if = "Map::is_empty", deserialize_with = "read_extra")]
    pub extra: Map<String, Value>,
}

impl LineItem {
    pub(super) fn of(item: &Item) -> Self {
        let mut extra = item.extra.clone();
        let (image, attachments) = (take_image(&mut extra), take_attachments(&mut extra));
        Self {
            title: item.title.clone(),
            url: item.url.clone(),
            summary: item.summary.clone(),
            published: item.published,
            updated: item.updated,
            authors: item.authors.clone(),
            tags: item.tags.clone(),
            attachments,
            image,
            extra,
        }
    }

    pub(super) fn into_item(mut self, id: String, content: Option<Content>) -> Item {
        // What the source gave is in `extra` in the form of its format.
        if let Some(image) = self.image
            && Some(&image) != attachment::source_image(&self.extra).as_ref()
        {
            self.extra.insert(attachment::IMAGE.into(), image.into());
        }
        if !self.attachments.is_empty() && self.attachments != attachment::source_attachments(&self.extra) {
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

/// Takes a published image out of `extra`; without one, returns that of the source, whose own form stays there. One that
/// equals the source's stays there, too: without it, nothing would tell that it was published.
fn take_image(extra: &mut Map<String, Value>) -> Option<String> {
    let of_source = attachment::source_image(extra);
    match extra.get(attachment::IMAGE) {
        None => of_source,
        Some(Value::String(image)) => {
            let image = image.clone();
            if of_source.as_ref() != Some(&image) {
                extra.remove(attachment::IMAGE);
            }
            Some(image)
        }
        Some(_) => None,
    }
}

/// Takes published attachments out of `extra`, as [`take_image`] does. Those that would not come back as they were, such as a
/// foreign value or an empty list, stay there only.
fn take_attachments(extra: &mut Map<String, Value>) -> Vec<Attachment> {
    let of_source = attachment::source_attachments(extra);
    let Some(published) = extra.get(attachment::ATTACHMENTS) else { return of_source };
    let read = Vec::<Attachment>::deserialize(published).unwrap_or_default();
    if read.is_empty() || serde_json::to_value(&read).ok().as_ref() != Some(published) {
        return Vec::new();
    }
    if read != of_source {
        extra.remove(attachment::ATTACHMENTS);
    }
    read
}

/// Reads `extra`. A number that nothing in memory holds is kept as a text.
fn read_extra<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    let written = Box::<RawValue>::deserialize(deserializer)?;
    serde_json::from_str(&numbers_as_text(written.get())).map_err(D::Error::custom)
}

/// Reads authors: objects without other members, or bare names.
///
/// Elsewhere unknown members of an author are ignored, for they come from other publishers. A line is written by hand or
/// by a program of its publisher, who wants to know of a mistake.
fn read_authors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Author>, D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct LineAuthor {
        #[serde(default)]
        name: String,
        email: Option<String>,
        url: Option<String>,
    }
    let read = |value: Value| match value {
        Value::String(name) => Ok(Author::named(name)),
        value => LineAuthor::deserialize(value)
            .map(|LineAuthor { name, email, url }| Author { name, email, url })
            .map_err(D::Error::custom),
    };
    Vec::<Value>::deserialize(deserializer)?.into_iter().map(read).collect()
}
