//! Values that are a number in the key's own unit, or a text with a unit.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Number, or text with a unit.
pub(super) enum NumberOrText {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for NumberOrText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not an untagged enum, whose error would name neither the value nor what is expected.
        deserializer.deserialize_any(NumberOrTextVisitor)
    }
}

struct NumberOrTextVisitor;

impl Visitor<'_> for NumberOrTextVisitor {
    type Value = NumberOrText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or a text with a unit such as \"5m\" or \"64 MiB\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(NumberOrText::Number(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let number = u64::try_from(number);
        number.map(NumberOrText::Number).map_err(|_| E::invalid_value(Unexpected::Other("below zero"), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(NumberOrText::Text(text.to_owned()))
    }
}
