//! Finds the items of a JSON document by their pointer, and reads one after the other.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::format::error::FormatError;
use crate::format::json::{syntax_error, without_mark};

/// Value at the pointer of the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemsValue {
    /// There is none.
    Nothing,
    /// Array or object, whose items were read.
    List,
    /// Another value, of this type.
    Other(&'static str),
}

/// Reader of the items' texts.
pub(super) trait RawItemReader {
    /// Reads the next item. `key` is its name, if it is a member of an object.
    fn read_item(&mut self, key: Option<&str>, item: &RawValue) -> Result<(), FormatError>;

    /// Forgets all items: a later member of the same name counts instead.
    fn restart(&mut self);
}

/// Passes the elements or member values at `pointer` to `reader`, as slices of `text`.
pub(super) fn read_items(
    text: &str,
    pointer: &str,
    reader: &mut impl RawItemReader,
) -> Result<ItemsValue, FormatError> {
    let text = without_mark(text);
    // RFC 6901, section 4: `~1` is decoded before `~0`, or `~01` would become a slash.
    let path: Vec<String> =
        pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let mut parser = serde_json::Deserializer::from_str(text);
    let mut failed = None;
    let seed = PathSeed { reader, failed: &mut failed, path: &path };
    let read = seed.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    read.map_err(|error| failed.unwrap_or_else(|| syntax_error(text, 0, &error)))
}

/// Reads the value that the rest of the path leads to. Everything beside the path is skipped, not stored.
struct PathSeed<'a, R> {
    reader: &'a mut R,
    failed: &'a mut Option<FormatError>,
    path: &'a [String],
}

impl<R: RawItemReader> PathSeed<'_, R> {
    fn read_item<E: Error>(&mut self, key: Option<&str>, item: &RawValue) -> Result<(), E> {
        self.reader.read_item(key, item).map_err(|error| {
            let text = error.to_string();
            *self.failed = Some(error);
            E::custom(text)
        })
    }

    /// Returns the seed of a value one step further.
    fn next(&mut self) -> PathSeed<'_, R> {
        PathSeed { reader: &mut *self.reader, failed: &mut *self.failed, path: &self.path[1..] }
    }

    fn scalar(&self, kind: &'static str) -> ItemsValue {
        if self.path.is_empty() { ItemsValue::Other(kind) } else { ItemsValue::Nothing }
    }
}

impl<'de, R: RawItemReader> DeserializeSeed<'de> for PathSeed<'_, R> {
    type Value = ItemsValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ItemsValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: RawItemReader> Visitor<'de> for PathSeed<'_, R> {
    type Value = ItemsValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<ItemsValue, E> {
        Ok(self.scalar("a truth value"))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<ItemsValue, E> {
        Ok(self.scalar("a number"))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<ItemsValue, E> {
        Ok(self.scalar("a number"))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<ItemsValue, E> {
        Ok(self.scalar("a number"))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<ItemsValue, E> {
        Ok(self.scalar("text"))
    }

    fn visit_unit<E: Error>(self) -> Result<ItemsValue, E> {
        Ok(self.scalar("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<ItemsValue, A::Error> {
        let Some(token) = self.path.first() else {
            while let Some(item) = elements.next_element::<&RawValue>()? {
                self.read_item(None, item)?;
            }
            return Ok(ItemsValue::List);
        };
        // RFC 6901, section 4: an index has no leading zeros.
        let is_index = token == "0" || !token.starts_with(['0', '+']);
        let wanted: Option<usize> = token.parse().ok().filter(|_| is_index);
        let mut found = ItemsValue::Nothing;
        for index in 0.. {
            if Some(index) == wanted {
                let Some(value) = elements.next_element_seed(self.next())? else { break };
                found = value;
            } else if elements.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<ItemsValue, A::Error> {
        let Some(token) = self.path.first() else {
            while let Some(key) = members.next_key_seed(MemberName)? {
                self.read_item(Some(&key), members.next_value::<&RawValue>()?)?;
            }
            return Ok(ItemsValue::List);
        };
        let mut found = ItemsValue::Nothing;
        while let Some(is_next) = members.next_key_seed(NameIs(token))? {
            if is_next {
                // Of two members with one name the last counts, as in serde_json.
                self.reader.restart();
                found = members.next_value_seed(self.next())?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Reads a member's name, without a copy unless it has escapes.
struct MemberName;

impl<'de> DeserializeSeed<'de> for MemberName {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for MemberName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// Compares a member's name without storing it.
struct NameIs<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for NameIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}
