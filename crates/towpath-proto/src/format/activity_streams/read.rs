//! Reading ActivityStreams objects of any publisher.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::write::{TowpathMember, is_html};
use crate::format::{date, html};
use crate::item::{Author, Content, Item};

/// Parsed object.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadObject {
    /// Item; if deleted, only the remaining fields.
    pub item: Item,
    /// `true` if the object is marked as deleted.
    pub deleted: bool,
    /// Time of the last change: in the publisher's log, else of the item itself.
    pub modified: Option<Timestamp>,
    /// Cursor of the object, if the publisher gives any.
    pub cursor: Option<String>,
}

/// Error of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The value is not an object.
    #[error("is not an object")]
    NotObject,
    /// The object has no id.
    #[error("has no id")]
    NoId,
    /// A member that towpath writes is malformed.
    #[error("{0}")]
    Member(String),
}

/// Parses an object. An activity is read as its object, with the activity's id.
///
/// Members without a field in [`Item`] are stored in `extra` under `"activity_streams"`. Malformed dates are
/// ignored.
///
/// # Errors
///
/// [`ObjectError`].
pub fn read_object(value: Value) -> Result<ReadObject, ObjectError> {
    let Value::Object(mut members) = value else { return Err(ObjectError::NotObject) };
    let beside = match members.remove("towpath") {
        Some(value) => {
            let read = serde_json::from_value::<TowpathMember>(value);
            Some(read.map_err(|e| ObjectError::Member(format!("towpath: {e}")))?)
        }
        None => None,
    };
    // The member is written only by towpath, so it tells the two kinds of publishers apart.
    let foreign = beside.is_none();
    let beside = beside.unwrap_or_default();
    let id = match members.remove("id") {
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        _ => return Err(ObjectError::NoId),
    };
    let is_activity = members.get("object").is_some_and(|object| !object.is_null());
    if foreign && let Some(Value::Object(object)) = members.remove("object") {
        // The activity's own members take precedence.
        members = object.into_iter().filter(|(name, _)| name != "id").chain(members).collect();
    }
    let deleted = is_deleted(&members, is_activity);
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
    // A null member equals an absent one (AS1, section 2).
    members.retain(|_, value| !value.is_null());
    if foreign && !members.is_empty() {
        item.extra.insert("activity_streams".into(), Value::Object(members));
    }
    let modified = beside.modified.or(updated).or(published);
    Ok(ReadObject { item, deleted, modified, cursor: beside.cursor.map(Cow::into_owned) })
}

/// Returns `true` for `"deleted": true`, a deletion time, or a type or verb that means deletion.
fn is_deleted(members: &Map<String, Value>, is_activity: bool) -> bool {
    let is = |name: &str, value: &str| members.get(name).is_some_and(|has| has == value);
    let flag = match members.get("deleted") {
        // The deletion may be a flag, or the time of it.
        Some(Value::String(text)) => text == "true" || date::parse(text).is_some(),
        Some(flag) => flag == true,
        None => false,
    };
    // An activity with that verb tells that somebody deleted its object (JSON Activity Streams 1.0, 3.2): it is an item.
    flag || is("objectType", "tombstone") || (is("verb", "delete") && !is_activity)
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

fn read_content(text: Option<String>, beside: &TowpathMember<'_>) -> Result<Option<Content>, ObjectError> {
    let media_type = beside.content_type.as_deref().unwrap_or("text/html").to_owned();
    if let Some(base64) = &beside.content_base64 {
        let decoded = STANDARD.decode(base64);
        let bytes = decoded.map_err(|e| ObjectError::Member(format!("content_base64: {e}")))?;
        return Ok(Some(Content::new(media_type, bytes)));
    }
    let Some(text) = text else { return Ok(None) };
    let mut content = Content::new(media_type, text);
    if !is_html(&content) {
        let unescaped = html::unescape(content.text().unwrap_or_default());
        content.bytes = unescaped.into();
    }
    Ok(Some(content))
}

fn read_authors(members: &mut Map<String, Value>, all: Vec<Author>) -> Vec<Author> {
    let (author, actor) = (members.remove("author"), members.remove("actor"));
    // The extension has all authors, AS1's own member only the first.
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
