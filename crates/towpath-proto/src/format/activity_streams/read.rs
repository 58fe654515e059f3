//! Reading objects, whoever wrote them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Beside;
use crate::item::{Author, Content, Item};

/// An object that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadObject {
    /// The item; of a deleted one only what is left.
    pub item: Item,
    /// Whether it is marked as deleted.
    pub deleted: bool,
    /// When the publisher says it was last changed: in its log, else the item itself.
    pub modified: Option<Timestamp>,
    /// Its own cursor, where the publisher gives one.
    pub cursor: Option<String>,
}

/// Reads one object, or an activity as if it were its object with the activity's id.
///
/// Members that have no place in an [`Item`] are kept in `extra` under `"activity_streams"`. Dates that are
/// none are left out. The error says what is wrong with the object.
pub fn read_object(value: Value) -> Result<ReadObject, String> {
    let Value::Object(mut members) = value else { return Err("is not an object".into()) };
    let beside = match members.remove("towpath") {
        Some(value) => Some(serde_json::from_value::<Beside>(value).map_err(|e| format!("towpath: {e}"))?),
        None => None,
    };
    let foreign = beside.is_none();
    let beside = beside.unwrap_or_default();
    let id = match members.remove("id") {
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        _ => return Err("has no id".into()),
    };
    if foreign && let Some(Value::Object(object)) = members.remove("object") {
        // The activity's own members win.
        members = object.into_iter().filter(|(name, _)| name != "id").chain(members).collect();
    }
    let deleted = is_deleted(&members);
    members.remove("deleted");
    let (published, updated) = (take_time(&mut members, "published"), take_time(&mut members, "updated"));
    let mut item = Item {
        id,
        url: take_text(&mut members, "url"),
        title: take_text(&mut members, "displayName").or_else(|| take_text(&mut members, "title")),
        summary: take_text(&mut members, "summary"),
        content: read_content(take_text(&mut members, "content"), &beside)?,
        authors: read_authors(&mut members, beside.authors.into_owned()),
        tags: read_tags(&mut members),
        published: published.filter(|_| !beside.published_unknown),
        updated: updated.filter(|_| !beside.updated_unknown),
        extra: beside.extra.into_owned(),
    };
    members.retain(|_, value| !value.is_null());
    if foreign && !members.is_empty() {
        item.extra.insert("activity_streams".into(), Value::Object(members));
    }
    let modified = beside.modified.or(updated).or(published);
    Ok(ReadObject { item, deleted, modified, cursor: beside.cursor.map(Cow::into_owned) })
}

/// `"deleted": true`, or the time of it; or a type or verb that says so.
fn is_deleted(members: &Map<String, Value>) -> bool {
    let is = |name: &str, value: &str| members.get(name).is_some_and(|has| has == value);
    let deleted = members.get("deleted");
    deleted.is_some_and(|deleted| deleted == true || deleted.is_string())
        || is("objectType", "tombstone")
        || is("verb", "delete")
}

fn take_text(members: &mut Map<String, Value>, name: &str) -> Option<String> {
    match members.remove(name)? {
        Value::String(text) => Some(text),
        other => {
            members.insert(name.to_owned(), other);
            None
        }
    }
}

fn take_time(members: &mut Map<String, Value>, name: &str) -> Option<Timestamp> {
    take_text(members, name)?.parse().ok()
}

fn read_content(text: Option<String>, beside: &Beside<'_>) -> Result<Option<Content>, String> {
    let media_type = beside.content_type.as_deref().unwrap_or("text/html").to_owned();
    if let Some(base64) = &beside.content_base64 {
        let bytes = STANDARD.decode(base64).map_err(|e| format!("content_base64: {e}"))?;
        return Ok(Some(Content::new(media_type, bytes)));
    }
    let Some(text) = text else { return Ok(None) };
    let mut content = Content::new(media_type, text);
    if content.essence() != "text/html" {
        let unescaped = unescape(content.text().unwrap_or_default());
        content.bytes = unescaped.into();
    }
    Ok(Some(content))
}

fn read_authors(members: &mut Map<String, Value>, all: Vec<Author>) -> Vec<Author> {
    let (author, actor) = (members.remove("author"), members.remove("actor"));
    if !all.is_empty() {
        return all;
    }
    let Some(Value::Object(mut person)) = author.or(actor) else { return Vec::new() };
    let (url, email) = (take_text(&mut person, "url"), take_text(&mut person, "email"));
    let name = take_text(&mut person, "displayName").unwrap_or_default();
    vec![Author { name, email, url }]
}

fn read_tags(members: &mut Map<String, Value>) -> Vec<String> {
    let Some(Value::Array(tags)) = members.remove("tags") else { return Vec::new() };
    let name = |tag: Value| match tag {
        Value::String(name) => Some(name),
        Value::Object(mut tag) => take_text(&mut tag, "displayName"),
        _ => None,
    };
    tags.into_iter().filter_map(name).collect()
}

/// The text that [`super::escape`] was given.
pub(super) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}
