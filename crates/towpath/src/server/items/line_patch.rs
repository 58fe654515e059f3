//! `PATCH …?as=line`: a merge patch (RFC 7396) of an item's line.

use serde_json::{Map, Value};
use towpath_proto::line::{JsonText, Line};
use towpath_proto::{Item, NewChange, Op};

use crate::document::route_error::RouteError;
use crate::server::publish::{self, BodyPlace, UrlRule};

/// Members that say which change a line is, and not what the item is.
const OF_THE_CHANGE: [&str; 7] = ["feed", "op", "id", "position", "modified", "patch", "publish_at"];
/// Members of a line that are its content.
const CONTENTS: [&str; 3] = ["json", "content", "content_base64"];

/// Parses the patch.
pub(super) fn parse(body: &[u8]) -> Result<Value, RouteError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|e| RouteError::bad_request(format!("the patch is not JSON: {e}")))?;
    let Value::Object(members) = &patch else {
        return Err(RouteError::bad_request("the patch of a line is an object of the members that change"));
    };
    if let Some(name) = OF_THE_CHANGE.into_iter().find(|name| members.contains_key(*name)) {
        let what = format!("{name} is not changed by a patch of the line: leave it out");
        return Err(RouteError::bad_request(what).at(format!("/{name}")));
    }
    Ok(patch)
}

/// Returns the change by which an item becomes what its patched line says.
pub(super) fn apply(item: &Item, patch: &Value, urls: UrlRule) -> Result<NewChange, RouteError> {
    let mut line = Line::new(Op::Put, item, None);
    let is_kept = CONTENTS.iter().all(|name| patch.get(name).is_none());
    let json = line.json.take_if(|_| is_kept);
    let mut line = serde_json::to_value(line).map_err(|e| RouteError::internal(e.to_string()))?;
    if let (Some(line), Some(patch)) = (line.as_object_mut(), patch.as_object()) {
        replace_content(line, patch);
    }
    towpath_proto::patch::merge(&mut line, patch.clone());
    let text = publish::with_json(&line, json.as_ref().map(JsonText::as_str));
    publish::line(text.as_bytes(), BodyPlace::Only("the patched item"), urls).map(|line| line.change)
}

/// Removes the content that a patch replaces by one of another form: text by JSON, or bytes by text.
fn replace_content(line: &mut Map<String, Value>, patch: &Map<String, Value>) {
    let new = CONTENTS.into_iter().find(|name| patch.get(*name).is_some_and(|value| !value.is_null()));
    let is_removed = |name: &&str| patch.contains_key(*name) && line.contains_key(*name);
    let replaces = match new {
        Some(new) => !line.contains_key(new),
        None => CONTENTS.iter().any(is_removed),
    };
    // A content takes its type with it.
    if replaces {
        for name in CONTENTS.into_iter().chain(["content_type"]) {
            line.remove(name);
        }
    }
}
