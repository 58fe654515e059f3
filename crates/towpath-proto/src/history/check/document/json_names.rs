//! Repeated names within JSON objects, which a parsed value no longer shows.

use std::collections::HashSet;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

/// Returns the first name that an object has twice.
pub(super) fn repeated_name(text: &str) -> Option<String> {
    let mut repeated = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    // A syntax error is another rule's finding.
    let _ = deserializer.deserialize_any(NameVisitor(&mut repeated));
    repeated
}

/// Visits a value for its names. It keeps the names of the open objects only.
struct NameVisitor<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for NameVisitor<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NameVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(NameVisitor(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if names.contains(&name) {
                self.0.get_or_insert(name);
            } else {
                names.insert(name);
            }
            members.next_value_seed(NameVisitor(self.0))?;
        }
        Ok(())
    }
}
