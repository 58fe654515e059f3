//! Fields of an item in a line.

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::attachment::{self, Attachment};
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
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl LineItem {
    pub(super) fn of(item: &Item) -> Self {
        let mut extra = item.extra.clone();
        let image = match extra.remove(attachment::IMAGE) {
            Some(Value::String(image)) => Some(image),
            other => put_back(&mut extra, attachment::IMAGE, other),
        };
        let attachments = extra.remove(attachment::ATTACHMENTS);
        let read = attachments.as_ref().and_then(|stored| Vec::<Attachment>::deserialize(stored).ok());
        // Only attachments that come back as they were: a foreign key or an empty list stays in `extra`.
        let is_same = |read: &Vec<Attachment>| {
            !read.is_empty() && serde_json::to_value(read).ok().as_ref() == attachments.as_ref()
        };
        let attachments = match read.filter(is_same) {
            Some(read) => read,
            None => put_back(&mut extra, attachment::ATTACHMENTS, attachments).unwrap_or_default(),
        };
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

/// Puts a value that is not taken back in its place.
fn put_back<T>(extra: &mut Map<String, Value>, name: &str, value: Option<Value>) -> Option<T> {
    if let Some(value) = value {
        extra.insert(name.to_owned(), value);
    }
    None
}
