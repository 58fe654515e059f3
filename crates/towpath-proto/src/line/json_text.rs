//! JSON inside of a line, with its numbers, order and spaces as they were written.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// Depth of nesting up to which JSON is part of a line.
// Many parsers give up at 128 levels, and would then refuse the line with everything else in it.
const MAX_DEPTH: usize = 100;

/// Text of a JSON value, without line ends.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct JsonText(Box<RawValue>);

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl JsonText {
    /// Returns JSON as part of a line; `None` if the line could not give the same text back.
    pub fn of_line(text: &str) -> Option<Self> {
        if text.contains(['\n', '\r']) || depth(text) > MAX_DEPTH {
            return None;
        }
        let raw = RawValue::from_string(text.to_owned()).ok()?;
        // Spaces around the value are not part of it.
        (raw.get().len() == text.len()).then_some(Self(raw))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if !raw.get().contains(['\n', '\r']) {
            return Ok(Self(raw));
        }
        // Inside of strings line ends are escaped, so these are between values.
        RawValue::from_string(without_spaces(raw.get())).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Reads a member that is present: `null` is a value like any other.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<JsonText>, D::Error> {
    JsonText::deserialize(deserializer).map(Some)
}

/// Returns JSON without the spaces between values.
fn without_spaces(text: &str) -> String {
    let mut strings = InString::default();
    text.chars().filter(|&c| strings.passes(c) || !c.is_ascii_whitespace()).collect()
}

/// Returns the depth of nesting of JSON.
fn depth(text: &str) -> usize {
    let (mut strings, mut open, mut deepest) = (InString::default(), 0_usize, 0);
    for c in text.chars() {
        match c {
            _ if strings.passes(c) => {}
            '{' | '[' => {
                open += 1;
                deepest = deepest.max(open);
            }
            '}' | ']' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Tells characters inside of JSON strings from those between.
#[derive(Default)]
struct InString {
    inside: bool,
    is_escaped: bool,
}

impl InString {
    /// Takes the next character. Returns true if it is part of a string.
    fn passes(&mut self, c: char) -> bool {
        let before = self.inside;
        if std::mem::take(&mut self.is_escaped) {
            return before;
        }
        match c {
            '"' => self.inside = !before,
            '\\' if before => self.is_escaped = true,
            _ => {}
        }
        before || self.inside
    }
}
