//! JSON Merge Patch (RFC 7396) on an item's content.

use serde_json::Value;

use crate::item::{Content, Item};

/// Media type of a JSON Merge Patch (RFC 7396, section 4).
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// Error of applying a patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// No live item has this id.
    #[error("there is no item {0:?} to patch")]
    NoItem(String),
    /// The patch is not a merge patch.
    #[error("a patch of type {0:?} cannot be applied; application/merge-patch+json can")]
    Type(String),
    /// The patch is not JSON.
    #[error("the patch is not JSON: {0}")]
    Patch(String),
    /// The item's content is not JSON.
    #[error("the item's content is {0}, and a merge patch needs JSON")]
    Content(String),
}

/// Applies `patch` to the content of `item` and returns the resulting item.
///
/// All other fields stay unchanged. The new content is written with sorted keys.
pub fn apply(item: &Item, patch: &Content) -> Result<Item, PatchError> {
    let essence = patch.essence();
    // Many clients send a merge patch as plain JSON.
    if essence != MERGE_PATCH && essence != "application/json" {
        return Err(PatchError::Type(patch.media_type.clone()));
    }
    let patch: Value = serde_json::from_slice(&patch.bytes).map_err(|e| PatchError::Patch(e.to_string()))?;
    let Some(content) = &item.content else {
        return Err(PatchError::Content("absent".into()));
    };
    if !content.is_json() {
        return Err(PatchError::Content(content.media_type.clone()));
    }
    let mut value: Value =
        serde_json::from_slice(&content.bytes).map_err(|e| PatchError::Content(format!("not JSON ({e})")))?;
    merge(&mut value, patch);
    let mut patched = item.clone();
    patched.content = Some(Content::new(content.media_type.clone(), value.to_string()));
    Ok(patched)
}

/// Changes a value by a merge patch (RFC 7396, section 2: `MergePatch(Target, Patch)`).
pub fn merge(target: &mut Value, patch: Value) {
    // Anything but an object replaces the target as a whole.
    let Value::Object(patch) = patch else {
        // RFC 7396: a patch that is not an object replaces the target.
        *target = patch;
        return;
    };
    // The RFC takes a target that is not an object for an empty one.
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        // RFC 7396: null removes a member.
        if value.is_null() {
            target.remove(&key);
        } else {
            // Merged into nothing, so that nulls in a new object vanish too.
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7396, appendix A: original, patch, result.
    const CASES: [(&str, &str, &str); 15] = [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
        (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
        (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
        (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
        (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
        (r#"{"a":"foo"}"#, r#"null"#, r#"null"#),
        (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
        (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
        (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
    ];

    #[test]
    fn rfc_7396_appendix_a() {
        for (original, patch, result) in CASES {
            let mut item = Item::new("x");
            item.content = Some(Content::new("application/json", original));
            let patched = apply(&item, &Content::new(MERGE_PATCH, patch)).unwrap();
            assert_eq!(patched.content.unwrap().text(), Some(result), "{original} {patch}");
        }
    }

    #[test]
    fn what_cannot_be_patched_says_why() {
        let mut item = Item::new("x");
        let merge = Content::new(MERGE_PATCH, "{}");
        assert!(matches!(apply(&item, &merge), Err(PatchError::Content(_))));
        // JSON by its bytes, but the type decides.
        item.content = Some(Content::new("text/plain", "{}"));
        assert!(matches!(apply(&item, &merge), Err(PatchError::Content(_))));
        item.content = Some(Content::new("application/json", "{}"));
        assert!(matches!(apply(&item, &Content::new(MERGE_PATCH, "{")), Err(PatchError::Patch(_))));
        assert!(matches!(apply(&item, &Content::new("text/x-diff", "{}")), Err(PatchError::Type(_))));
    }
}
