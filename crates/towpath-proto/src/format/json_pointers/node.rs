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

impl<'a> RawNode<'a> {
    /// Follows a pointer (RFC 6901).
    pub(super) fn at(self, pointer: &str) -> Option<Self> {
        let mut node = self;
        // The first token is empty: a pointer begins with a slash.
        for token in pointer.split('/').skip(1) {
            // RFC 6901, section 4: `~1` is decoded before `~0`, or `~01` would become a slash.
            node = node.child(&token.replace("~1", "/").replace("~0", "~"))?;
        }
        Some(node)
    }

    fn child(self, name: &str) -> Option<Self> {
        let (value, raw) = match self.value {
            Value::Object(members) => (members.get(name)?, self.members()?.get(name).copied()?),
            Value::Array(values) => {
                // RFC 6901, section 4: an index has no leading zeros.
                let is_index = name == "0" || !name.starts_with(['0', '+']);
                let index: usize = name.parse().ok().filter(|_| is_index)?;
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
