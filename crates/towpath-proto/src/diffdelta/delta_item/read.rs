//! Reading a delta item, our own or anybody's.

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::*;
use crate::diffdelta::wire::Kind;

/// A delta item that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadDelta {
    /// The source that it names.
    pub source: String,
    /// What happened to the item, where the item itself says so (`change`).
    pub kind: Option<Kind>,
    /// The item.
    pub item: Item,
    /// When this version was first observed, or when the item was removed.
    pub modified: Option<Timestamp>,
    /// When the change that the delta is was made, where the item says so, as ours do. (`fetched_at` alone may
    /// be much older than a removal.)
    pub changed_at: Option<Timestamp>,
}

/// The members that have a place in [`Item`], or that say nothing of the item.
const MAPPED: [&str; 11] = [
    "change",
    "content",
    "headline",
    "id",
    "item_hash",
    "provenance",
    "published_at",
    "source",
    "summary",
    "title",
    "updated_at",
];

/// Reads a delta item. One that was written with [`Rendering::render`] gives the identical item; of any other
/// the members without a place of their own are kept in `extra` under `"diffdelta"`.
///
/// Fails with what is wrong: no id, or a `source_payload` that claims our form and is not.
pub fn read(value: Value) -> Result<ReadDelta, String> {
    let Value::Object(mut members) = value else {
        return Err("not an object".to_owned());
    };
    let payload = match members.get("source_payload") {
        Some(payload) if payload.get("profile").and_then(Value::as_str) == Some(PROFILE) => {
            let payload = Payload::deserialize(payload).map_err(|e| format!("source_payload: {e}"))?;
            members.remove("source_payload");
            Some(payload)
        }
        _ => None,
    };
    let kind = members.get("change").and_then(|k| Kind::deserialize(k).ok());
    let observed = members.get("provenance").and_then(|p| date(p.get("fetched_at")));
    let removed = payload.as_ref().and_then(|p| p.removed_at);
    let source = text(&members, "source").unwrap_or_default();
    let modified = removed.or(observed);
    let changed_at = payload.as_ref().and(modified);
    let shown = shown_item(&members)?;
    let item = match payload {
        Some(payload) => restore(shown, payload)?,
        None => foreign(shown, members),
    };
    Ok(ReadDelta { source, kind, item, modified, changed_at })
}

fn text(members: &Map<String, Value>, name: &str) -> Option<String> {
    members.get(name)?.as_str().map(str::to_owned)
}

fn date(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

/// What the schema's own fields say.
fn shown_item(members: &Map<String, Value>) -> Result<Item, String> {
    let Some(id) = text(members, "id").filter(|id| !id.is_empty()) else {
        return Err("without an id".to_owned());
    };
    Ok(Item {
        url: text(members, "url"),
        title: text(members, "title"),
        summary: text(members, "summary"),
        published: date(members.get("published_at")),
        updated: date(members.get("updated_at")),
        ..Item::new(id)
    })
}

/// Puts what the payload says in the place of what is shown.
fn restore(shown: Item, payload: Payload) -> Result<Item, String> {
    let content = payload.content()?;
    let extra = match &payload.extra {
        Some(text) => serde_json::from_str(text).map_err(|e| format!("source_payload.extra: {e}"))?,
        None => Map::new(),
    };
    let has = |name: &str| !payload.absent.iter().any(|a| a == name);
    Ok(Item {
        id: payload.id.unwrap_or(shown.id),
        url: payload.url.or(shown.url.filter(|_| has("url"))),
        title: payload.title.or(shown.title),
        summary: payload.summary.or(shown.summary),
        content,
        published: payload.published.or(shown.published.filter(|_| has("published"))),
        updated: payload.updated.or(shown.updated.filter(|_| has("updated"))),
        authors: payload
            .authors
            .into_iter()
            .map(|a| Author { name: a.name, email: a.email, url: a.url })
            .collect(),
        tags: payload.tags,
        extra,
    })
}

/// A foreign item: the headline where there is no title, the excerpt where there is no summary, and what is
/// left over as extra.
fn foreign(mut item: Item, mut members: Map<String, Value>) -> Item {
    item.title = item.title.or_else(|| text(&members, "headline"));
    let excerpt = members.get("content").and_then(|c| c.get("excerpt_text")).and_then(Value::as_str);
    item.summary = item.summary.or_else(|| excerpt.filter(|t| !t.is_empty()).map(str::to_owned));
    for name in MAPPED {
        members.remove(name);
    }
    members.remove("url");
    if !members.is_empty() {
        item.extra.insert("diffdelta".into(), Value::Object(members));
    }
    item
}
