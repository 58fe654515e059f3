//! Reads delta items (section 9), our own and those of other publishers.

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::documents::DeltaKind;
use super::payload::{PROFILE, Payload};
use crate::format::json_numbers::numbers_as_text;
use crate::item::{Author, Item};

/// A parsed delta item.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::diffdelta) struct ReadDelta {
    /// The source that the item names.
    pub(in crate::diffdelta) source: String,
    /// The kind of change, if the item states it (`change`).
    pub(in crate::diffdelta) kind: Option<DeltaKind>,
    /// The item.
    pub(in crate::diffdelta) item: Item,
    /// Time at which this version was first observed, or the item was removed.
    pub(in crate::diffdelta) modified: Option<Timestamp>,
    /// Time of the change, known for our own items only.
    ///
    /// `fetched_at` of another publisher may be much older than a removal.
    pub(in crate::diffdelta) changed_at: Option<Timestamp>,
    /// True if an earlier document has the change; known for our own items only.
    pub(in crate::diffdelta) is_repeated: bool,
}

/// Members that map to a field of [`Item`], or that do not describe the item.
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

/// Reads a delta item.
///
/// An item that `ItemRenderer::render` wrote is restored identically. For any other item, unmapped members go
/// to `extra` under `"diffdelta"`. Fails if the id is missing or a `source_payload` of our profile is invalid.
pub(in crate::diffdelta) fn read(value: Value) -> Result<ReadDelta, String> {
    let Value::Object(mut members) = value else {
        return Err("not an object".to_owned());
    };
    // Other publishers put their own data in `source_payload`; only ours has this profile.
    let is_own = |payload: &Value| payload.get("profile").and_then(Value::as_str) == Some(PROFILE);
    let payload = match members.get("source_payload").is_some_and(is_own) {
        // Taken out first: a content of many megabytes is moved, not copied.
        true => members.remove("source_payload").map(Payload::deserialize).transpose(),
        false => Ok(None),
    };
    let payload = payload.map_err(|e| format!("source_payload: {e}"))?;
    let kind = members.get("change").and_then(|k| DeltaKind::deserialize(k).ok());
    let observed = members.get("provenance").and_then(|p| date(p.get("fetched_at")));
    let removed = payload.as_ref().and_then(|p| p.removed_at);
    let source = text(&members, "source").unwrap_or_default();
    let modified = removed.or(observed);
    // A start time is compared with this. Foreign items are compared by the time of their document instead.
    let changed_at = payload.as_ref().and(modified);
    let is_repeated = payload.is_some() && members.contains_key("changed_in");
    let shown = shown_item(&members)?;
    let item = match payload {
        Some(payload) => restore(shown, payload, &members)?,
        None => foreign(shown, members),
    };
    Ok(ReadDelta { source, kind, item, modified, changed_at, is_repeated })
}

fn text(members: &Map<String, Value>, name: &str) -> Option<String> {
    members.get(name)?.as_str().map(str::to_owned)
}

fn date(value: Option<&Value>) -> Option<Timestamp> {
    let text = value?.as_str()?;
    // Other publishers write dates without a zone.
    text.parse().ok().or_else(|| crate::format::date::parse(text))
}

fn excerpt(members: &Map<String, Value>) -> Option<&str> {
    members.get("content")?.get("excerpt_text")?.as_str()
}

/// Builds an item from the schema's own fields.
fn shown_item(members: &Map<String, Value>) -> Result<Item, String> {
    // Without an id the item could never be updated or removed again.
    let Some(id) = text(members, "id") else { return Err("without an id".to_owned()) };
    Ok(Item {
        url: text(members, "url"),
        title: text(members, "title"),
        summary: text(members, "summary"),
        published: date(members.get("published_at")),
        updated: date(members.get("updated_at")),
        ..Item::new(id)
    })
}

/// Replaces the schema's shortened fields with those of the payload.
fn restore(shown: Item, payload: Payload<'_>, members: &Map<String, Value>) -> Result<Item, String> {
    let content = payload.content()?;
    let summary = excerpt(members).filter(|_| payload.is_same("summary")).map(str::to_owned);
    let extra = match &payload.extra {
        Some(text) => {
            serde_json::from_str(&numbers_as_text(text)).map_err(|e| format!("source_payload.extra: {e}"))?
        }
        None => Map::new(),
    };
    let has = |name: &str| !payload.absent.iter().any(|a| a == name);
    Ok(Item {
        id: payload.id.unwrap_or(shown.id),
        url: payload.url.or(shown.url.filter(|_| has("url"))),
        title: payload.title.or(shown.title),
        summary: summary.or(payload.summary).or(shown.summary),
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

/// Completes an item of another publisher.
///
/// The headline replaces a missing title, the excerpt a missing summary. Unmapped members become `extra`.
fn foreign(mut item: Item, mut members: Map<String, Value>) -> Item {
    item.title = item.title.or_else(|| text(&members, "headline"));
    item.summary = item.summary.or_else(|| excerpt(&members).filter(|t| !t.is_empty()).map(str::to_owned));
    for name in MAPPED {
        members.remove(name);
    }
    members.remove("url");
    // Unknown members are kept, so that a mirror of another publisher loses nothing.
    if !members.is_empty() {
        item.extra.insert("diffdelta".into(), Value::Object(members));
    }
    item
}
