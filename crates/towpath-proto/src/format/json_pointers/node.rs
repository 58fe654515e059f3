//! A JSON value with its text, so that a number beyond 64 bits and doubles is not changed.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::format::jcs::{Style, canonical};
use crate::format::json::scalar;

/// Stands in a mapping for the name of the member that an item is. No pointer begins so.
pub(super) const KEY: &str = "#key";

/// Value, and the text it was parsed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawNode<'a> {
    pub(super) value: &'a Value,
    pub(super) raw: &'a RawValue,
    /// Name of the member that an item is.
    pub(super) key: Option<&'a str>,
}

/// Follows a pointer (RFC 6901) in a document. What it finds is as written.
pub fn raw_at<'a>(document: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut found = document;
    for token in tokens(pointer) {
        found = match found.get().as_bytes().first()? {
            b'{' => *serde_json::from_str::<HashMap<String, &RawValue>>(found.get()).ok()?.get(&token)?,
            b'[' => serde_json::from_str::<Vec<&RawValue>>(found.get()).ok()?.get(index(&token)?)?,
            _ => return None,
        };
    }
    Some(found)
}

/// Returns the decoded tokens of a pointer.
fn tokens(pointer: &str) -> impl Iterator<Item = String> {
    // The first token is empty: a pointer begins with a slash.
    // RFC 6901, section 4: `~1` is decoded before `~0`, or `~01` would become a slash.
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
}

/// Returns the index that a token names.
fn index(token: &str) -> Option<usize> {
    // RFC 6901, section 4: an index has no leading zeros.
    let is_index = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| is_index)
}

impl<'a> RawNode<'a> {
    /// Follows a pointer (RFC 6901).
    pub(super) fn at(self, pointer: &str) -> Option<Self> {
        let mut node = self;
        for token in tokens(pointer) {
            node = node.child(&token)?;
        }
        Some(node)
    }

    fn child(self, name: &str) -> Option<Self> {
        let (value, raw) = match self.value {
            Value::Object(members) => (members.get(name)?, self.members()?.get(name).copied()?),
            Value::Array(values) => {
                let index = index(name)?;
                (values.get(index)?, self.elements()?.get(index).copied()?)
            }
            _ => return None,
        };
        Some(Self { value, raw, key: None })
    }

    /// Returns the elements of an array as text.
    fn elements(self) -> Option<Vec<&'a RawValue>> {
        serde_json::from_str(self.raw.get()).ok()
    }

    /// Returns the members of an object as text; the last one of a duplicate name, as in serde_json.
    fn members(self) -> Option<HashMap<String, &'a RawValue>> {
        serde_json::from_str(self.raw.get()).ok()
    }

    /// Returns the value at a pointer as text; a number as written.
    pub(super) fn scalar(self, pointer: &str) -> Option<String> {
        if pointer == KEY {
            return self.key.map(str::to_owned);
        }
        match self.value.pointer(pointer)? {
            // Integers of 64 bits are exact, so parsing the text again can be skipped.
            Value::Number(number) if number.is_f64() => Some(self.at(pointer)?.raw.get().to_owned()),
            found => scalar(found),
        }
    }

    /// Returns compact JSON with sorted keys, and numbers as written.
    pub(super) fn compact(self) -> String {
        let written = canonical(self.raw.get().as_bytes(), Style::AsWritten);
        // The text was parsed before, so this falls back only for nesting beyond the limit.
        written.ok().and_then(|text| String::from_utf8(text).ok()).unwrap_or_else(|| self.value.to_string())
    }
}
