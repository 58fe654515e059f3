//! JSON documents of one list, read item by item: only one item at a time stands in memory as a tree.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::FormatError;
use super::json::{Base, syntax_error, without_mark};
use super::json_numbers::numbers_as_text;
use super::json_value::{BoundedValue, SharedBudget};

/// Reader of a list's items.
pub(crate) trait ListReader {
    /// Returns the document's base and budget.
    fn base(&mut self) -> &mut Base;

    /// Reads the item at `index`.
    fn read_item(&mut self, index: usize, item: Value) -> Result<(), FormatError>;

    /// Forgets all items: the document has another list of this name, which counts instead.
    fn restart(&mut self);
}

/// A document around its list.
#[derive(Debug)]
pub(crate) enum ListDocument {
    /// An object without its list.
    Object {
        /// All other members.
        members: Map<String, Value>,
        /// The list.
        list: ListMember,
    },
    /// Any other value.
    Other,
}

/// Value of the list's member.
#[derive(Debug)]
pub(crate) enum ListMember {
    /// The object has no such member.
    Absent,
    /// An array, whose items were passed to the reader.
    Array,
    /// Any other value.
    Other(Value),
}

/// Reads an object, and passes the elements of its array `items` to `reader`, one after the other.
pub(crate) fn read_list(text: &str, reader: &mut impl ListReader) -> Result<ListDocument, FormatError> {
    let text = &numbers_as_text(without_mark(text));
    let mut parser = serde_json::Deserializer::from_str(text);
    let mut failed = None;
    let seed = DocumentSeed { reader, failed: &mut failed };
    let read = seed.deserialize(&mut parser).and_then(|document| parser.end().map(|()| document));
    read.map_err(|error| failed.unwrap_or_else(|| syntax_error(text, 0, &error)))
}

/// Reads the document.
struct DocumentSeed<'a, R> {
    reader: &'a mut R,
    failed: &'a mut Option<FormatError>,
}

impl<R: ListReader> DocumentSeed<'_, R> {
    /// Reads one value of the document through `next`, within the budget.
    fn bounded<T, E>(
        &mut self,
        depth: usize,
        next: impl FnOnce(BoundedValue<'_, '_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let shared = SharedBudget::new(&mut self.reader.base().budget);
        let read = next(BoundedValue { shared: &shared, depth });
        if let Some(error) = shared.exceeded() {
            *self.failed = Some(error);
        }
        read
    }
}

impl<'de, R: ListReader> DeserializeSeed<'de> for DocumentSeed<'_, R> {
    type Value = ListDocument;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListDocument, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: ListReader> Visitor<'de> for DocumentSeed<'_, R> {
    type Value = ListDocument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<ListDocument, E> {
        Ok(ListDocument::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<ListDocument, A::Error> {
        // Read to its end, so that a cut is told apart from a document of another kind.
        loop {
            let before = self.reader.base().budget.left();
            if self.bounded(1, |seed| elements.next_element_seed(seed))?.is_none() {
                return Ok(ListDocument::Other);
            }
            let budget = &mut self.reader.base().budget;
            budget.refund(before.saturating_sub(budget.left()));
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<ListDocument, A::Error> {
        let (mut members, mut list) = (Map::new(), ListMember::Absent);
        while let Some(name) = entries.next_key::<String>()? {
            if name == "items" {
                self.reader.restart();
                list = entries.next_value_seed(ItemsSeed(&mut self))?;
                continue;
            }
            let count = members.len();
            let value = self.bounded(1, |seed| {
                seed.member(count, &name)?;
                entries.next_value_seed(seed)
            })?;
            members.insert(name, value);
        }
        Ok(ListDocument::Object { members, list })
    }
}

/// Reads the member with the list.
struct ItemsSeed<'a, 'r, R>(&'a mut DocumentSeed<'r, R>);

impl<R: ListReader> ItemsSeed<'_, '_, R> {
    fn other<E: Error>(
        self,
        read: impl FnOnce(BoundedValue<'_, '_>) -> Result<Value, E>,
    ) -> Result<ListMember, E> {
        self.0.bounded(1, read).map(ListMember::Other)
    }
}

impl<'de, R: ListReader> DeserializeSeed<'de> for ItemsSeed<'_, '_, R> {
    type Value = ListMember;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListMember, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: ListReader> Visitor<'de> for ItemsSeed<'_, '_, R> {
    type Value = ListMember;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_i64(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_u64(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_f64(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_str(value))
    }

    fn visit_unit<E: Error>(self) -> Result<ListMember, E> {
        self.other(|seed| seed.visit_unit())
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<ListMember, A::Error> {
        self.other(|seed| seed.visit_map(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<ListMember, A::Error> {
        let document = self.0;
        for index in 0.. {
            let before = document.reader.base().budget.left();
            let Some(item) = document.bounded(2, |seed| elements.next_element_seed(seed))? else { break };
            let tree = before.saturating_sub(document.reader.base().budget.left());
            if let Err(error) = document.reader.read_item(index, item) {
                let text = error.to_string();
                *document.failed = Some(error);
                return Err(A::Error::custom(text));
            }
            // The tree is gone. What the item keeps of it was counted with the item.
            document.reader.base().budget.refund(tree);
        }
        Ok(ListMember::Array)
    }
}
