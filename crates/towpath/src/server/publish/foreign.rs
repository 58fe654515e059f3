//! JSON of another program, such as the body of a content management system's webhook (`[feed.publish.json]`).

use serde_json::Value;
use serde_json::value::RawValue;
use towpath_proto::NewChange;
use towpath_proto::format::json_pointers::{Mapping, raw_at};
use towpath_proto::format::{Format, ReadOptions, read as read_document};

use super::limits::MAX_LINES;
use super::line::{BodyPlace, PublishedLine};
use super::urls::UrlRule;
use crate::config::PublishConfig;
use crate::document::route_error::RouteError;

/// Reads the items that `items` points to: one object, or an array of them.
pub(super) fn read(
    body: &[u8],
    config: &PublishConfig,
    urls: UrlRule,
) -> Result<Vec<PublishedLine>, RouteError> {
    let bad = |what: String| RouteError::bad_request(format!("[feed.publish.json]: {what}"));
    let items = config.json.items.as_str();
    let document: &RawValue =
        serde_json::from_slice(body).map_err(|e| bad(format!("the body is not JSON: {e}")))?;
    let found = raw_at(document, items)
        .ok_or_else(|| bad(format!("items = {items:?}: nothing is there")).at(items))?;
    let found: Vec<&RawValue> = match found.get().as_bytes().first() {
        Some(b'[') => serde_json::from_str(found.get()).map_err(|e| bad(e.to_string()))?,
        Some(b'{') => vec![found],
        _ => return Err(bad(format!("items = {items:?}: an object or array must be there")).at(items)),
    };
    if found.len() > MAX_LINES {
        return Err(RouteError::too_large(format!("more than {MAX_LINES} items; split the batch")));
    }
    // Each item is a document of its own, so that an error names it.
    let mapping = Mapping { items: String::new(), ..config.json.clone() };
    found
        .into_iter()
        .enumerate()
        .map(|(index, item)| read_item(item, index, &mapping, config, urls))
        .collect()
}

fn read_item(
    item: &RawValue,
    index: usize,
    mapping: &Mapping,
    config: &PublishConfig,
    urls: UrlRule,
) -> Result<PublishedLine, RouteError> {
    let bad = |what: &dyn std::fmt::Display| {
        RouteError::bad_request(format!("[feed.publish.json]: item {}: {what}", index + 1))
    };
    let text = format!("[{}]", item.get());
    let options =
        ReadOptions { format: Some(Format::Json), mapping: Some(mapping), ..ReadOptions::default() };
    let read = read_document(text.as_bytes(), &options).map_err(|e| bad(&e).at(mapping.id.as_str()))?;
    if let Some(problem) = read.problems.first() {
        // Of a source's documents the rest is taken. Here somebody waits for the answer, and can mend it.
        return Err(bad(problem));
    }
    let Some(read) = read.items.into_iter().next() else { return Err(bad(&"the item has no id")) };
    let is_deleted = config.deleted.as_ref().is_some_and(|pointer| {
        // A number beyond every double is a number but zero.
        raw_at(item, pointer).is_some_and(|raw| serde_json::from_str(raw.get()).map_or(true, says_yes))
    });
    let change = match is_deleted {
        true => NewChange::delete(read.id),
        false => {
            read.check().map_err(|e| bad(&e))?;
            urls.check(&read).map_err(|(_, reason)| {
                let pointer = mapping.url.clone().unwrap_or_default();
                bad(&format_args!("url = {pointer:?}: {reason}")).at(pointer)
            })?;
            NewChange::put(read)
        }
    };
    towpath_proto::item::check_id(&change.item.id).map_err(|e| bad(&e))?;
    Ok(PublishedLine { place: BodyPlace::Only("an item"), change, publish_at: None })
}

/// Returns true for a value by which programs say yes: `true`, a number but zero, a text such as the time of a deletion.
fn says_yes(value: Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}
