//! Counts the elements of a JSON document's lists before they are read into memory.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::budget::Budget;
use super::error::FormatError;
use super::json::syntax_error;
use super::json_value::SharedBudget;

/// Arrays and objects around the elements of a list that counts: `{"buckets": {"new": […]}}` has three.
const DEPTH: usize = 3;

/// Checks that a document's lists can be read: each element takes `bytes` of memory beside its text.
///
/// # Errors
///
/// [`FormatError::Limit`] for a list with too many elements, or for lists that would take too much memory.
pub(crate) fn check_lists(text: &str, bytes: usize, budget: &mut Budget) -> Result<(), FormatError> {
    let before = budget.left();
    match count_lists(text, bytes, budget, false) {
        // JSON has no largest number (RFC 8259, section 6), serde_json has. It skips one in a text that is not read.
        Err(FormatError::Malformed { reason, .. }) if reason.starts_with("number out of range") => {
            budget.refund(before.saturating_sub(budget.left()));
            count_lists(text, bytes, budget, true)
        }
        counted => counted,
    }
}

fn count_lists(
    text: &str,
    bytes: usize,
    budget: &mut Budget,
    skips_numbers: bool,
) -> Result<(), FormatError> {
    let shared = SharedBudget::new(budget);
    let mut parser = serde_json::Deserializer::from_str(text);
    let seed = CountedLists { shared: &shared, bytes, depth: 0, skips_numbers };
    let read = seed.deserialize(&mut parser).and_then(|()| parser.end());
    read.map_err(|error| shared.exceeded().unwrap_or_else(|| syntax_error(text, 0, &error)))
}

#[derive(Clone, Copy)]
struct CountedLists<'a, 'b> {
    shared: &'a SharedBudget<'b>,
    bytes: usize,
    depth: usize,
    /// True to read only what has elements, which takes several passes over the text.
    skips_numbers: bool,
}

impl<'de> DeserializeSeed<'de> for CountedLists<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.depth >= DEPTH {
            return serde::Deserialize::deserialize(deserializer).map(|IgnoredAny| ());
        }
        let inner = Self { depth: self.depth + 1, ..self };
        if !self.skips_numbers {
            return deserializer.deserialize_any(inner);
        }
        let text = <&RawValue as serde::Deserialize>::deserialize(deserializer)?.get();
        if !text.starts_with(['[', '{']) {
            return Ok(());
        }
        serde_json::Deserializer::from_str(text).deserialize_any(inner).map_err(D::Error::custom)
    }
}

impl<'de> Visitor<'de> for CountedLists<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut count = 0;
        while elements.next_element_seed(self)?.is_some() {
            count += 1;
            self.shared.spend(|budget| {
                let most = budget.limits.items;
                if count > most {
                    return Err(FormatError::Limit(format!("more than {most} items (limit: items)")));
                }
                budget.store(self.bytes)
            })?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_key::<IgnoredAny>()?.is_some() {
            members.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DocumentLimits;

    fn check(text: &str, limits: DocumentLimits) -> Result<(), FormatError> {
        check_lists(text, 32, &mut Budget::new(text.len(), limits))
    }

    #[test]
    fn lists_are_counted_where_documents_have_them() {
        let limits = DocumentLimits { items: 2, ..DocumentLimits::default() };
        for good in [
            r#"{"buckets":{"new":[{},{}],"old":[1,[1,2,3,4]]},"x":1.5}"#,
            "[[[[1,2,3]]]]",
            "null",
            r#"["é\n",-1]"#,
            r#"{"a":{"b":1e400},"x":-1e400,"buckets":{"new":[1e400,{"c":1e400}]}}"#,
        ] {
            assert_eq!(check(good, limits), Ok(()), "{good}");
        }
        for bad in [
            r#"{"buckets":{"new":[1,2,3]}}"#,
            r#"{"snapshots":[{},{},{}]}"#,
            "[1,2,3]",
            r#"{"x":1e400,"buckets":{"new":[1,2,3]}}"#,
        ] {
            let error = check(bad, limits).unwrap_err().to_string();
            assert!(error.contains("more than 2 items (limit: items)"), "{bad}: {error}");
        }
        let short = DocumentLimits { memory: 100, ..DocumentLimits::default() };
        let error = check(&format!("[{}1]", "1,".repeat(100)), short).unwrap_err().to_string();
        assert!(error.contains("(limit: memory_mib)"), "{error}");
        assert!(check("[1", limits).is_err() && check("[1] x", limits).is_err());
    }
}
