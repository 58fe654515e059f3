//! A JSON value beside its text: a number that neither 64 bits nor a double can hold stays what it is.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::scalar;
use crate::format::jcs::{Style, canonical};

/// A value and the text that it was read from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) raw: &'a RawValue,
}

impl<'a> Node<'a> {
    /// What a pointer (RFC 6901) leads to.
    pub(super) fn at(self, pointer: &str) -> Option<Self> {
        let mut node = self;
        for token in pointer.split('/').skip(1) {
            node = node.child(&token.replace("~1", "/").replace("~0", "~"))?;
        }
        Some(node)
    }

    fn child(self, name: &str) -> Option<Self> {
        let (value, raw) = match self.value {
            Value::Object(members) => (members.get(name)?, self.members()?.get(name).copied()?),
            Value::Array(values) => {
                let is_index = name == "0" || !name.starts_with(['0', '+']);
                let index: usize = name.parse().ok().filter(|_| is_index)?;
                (values.get(index)?, self.elements()?.get(index).copied()?)
            }
            _ => return None,
        };
        Some(Self { value, raw })
    }

    /// The values of an array or of an object's members; `None` of anything else.
    pub(super) fn children(self) -> Option<Vec<Self>> {
        match self.value {
            Value::Array(values) => {
                let both = values.iter().zip(self.elements()?);
                Some(both.map(|(value, raw)| Self { value, raw }).collect())
            }
            Value::Object(members) => {
                let raws = self.members()?;
                members.iter().map(|(name, value)| Some(Self { value, raw: raws.get(name)? })).collect()
            }
            _ => None,
        }
    }

    /// An array's elements as text.
    fn elements(self) -> Option<Vec<&'a RawValue>> {
        serde_json::from_str(self.raw.get()).ok()
    }

    /// An object's members as text; of one name's the last, as everywhere.
    fn members(self) -> Option<HashMap<String, &'a RawValue>> {
        serde_json::from_str(self.raw.get()).ok()
    }

    /// What a pointer leads to as text: a number as it is written.
    pub(super) fn scalar(self, pointer: &str) -> Option<String> {
        match self.value.pointer(pointer)? {
            // Whole numbers of 64 bits are kept as they are: no need to go through the text.
            Value::Number(number) if number.is_f64() => Some(self.at(pointer)?.raw.get().to_owned()),
            found => scalar(found),
        }
    }

    /// Compact JSON with sorted keys, and numbers as they are written.
    pub(super) fn compact(self) -> String {
        let written = canonical(self.raw.get().as_bytes(), Style::AsWritten);
        written.ok().and_then(|text| String::from_utf8(text).ok()).unwrap_or_else(|| self.value.to_string())
    }
}
