//! JSON values within a document's budget: counted while they are read, so that a small text of many values is refused
//! before it fills the memory.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::budget::Budget;
use super::error::FormatError;
use super::json::syntax_error;

/// Budget that nested values share, and the limit that one of them exceeded.
///
/// serde carries errors as text only, so the limit is kept beside.
#[derive(Debug)]
pub(crate) struct SharedBudget<'b> {
    budget: RefCell<&'b mut Budget>,
    exceeded: RefCell<Option<FormatError>>,
}

impl<'b> SharedBudget<'b> {
    pub(crate) fn new(budget: &'b mut Budget) -> Self {
        Self { budget: RefCell::new(budget), exceeded: RefCell::new(None) }
    }

    /// Calls `spend` with the budget, and keeps its error.
    pub(crate) fn spend<E: Error>(
        &self,
        spend: impl FnOnce(&mut Budget) -> Result<(), FormatError>,
    ) -> Result<(), E> {
        spend(&mut self.budget.borrow_mut()).map_err(|error| {
            let text = error.to_string();
            self.exceeded.borrow_mut().get_or_insert(error);
            E::custom(text)
        })
    }

    /// Returns the error that ended the parser, if it was not the text's syntax.
    pub(crate) fn exceeded(&self) -> Option<FormatError> {
        self.exceeded.borrow_mut().take()
    }
}

/// Reads a whole text as a value within a budget.
pub(crate) fn read_value(text: &str, budget: &mut Budget) -> Result<Value, FormatError> {
    let shared = SharedBudget::new(budget);
    let mut parser = serde_json::Deserializer::from_str(text);
    let seed = BoundedValue { shared: &shared, depth: 0 };
    let read = seed.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    read.map_err(|error| shared.exceeded().unwrap_or_else(|| syntax_error(text, 0, &error)))
}

/// Reads a [`Value`] within a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundedValue<'a, 'b> {
    pub(crate) shared: &'a SharedBudget<'b>,
    /// Number of arrays and objects around the value.
    pub(crate) depth: usize,
}

impl BoundedValue<'_, '_> {
    fn nested<E: Error>(self) -> Result<Self, E> {
        self.shared.spend(|budget| {
            if self.depth >= budget.limits.depth {
                let depth = budget.limits.depth;
                return Err(FormatError::Limit(format!("JSON nested deeper than {depth} (limit: depth)")));
            }
            Ok(())
        })?;
        Ok(Self { depth: self.depth + 1, ..self })
    }

    /// Counts a member of the object around this value, which has `count` others.
    pub(crate) fn member<E: Error>(self, count: usize, name: &str) -> Result<(), E> {
        self.shared.spend(|budget| {
            // Counted before the value is read: an endless object must not be read to its end.
            if count >= budget.limits.members {
                let members = budget.limits.members;
                let reason = format!("a JSON object with more than {members} members (limit: members)");
                return Err(FormatError::Limit(reason));
            }
            budget.text(name.len())?;
            budget.member(count, name.len())
        })
    }

    fn scalar<E: Error>(self, value: Value) -> Result<Value, E> {
        self.shared.spend(|budget| budget.value(0))?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.shared.spend(|budget| {
            budget.text(text.len())?;
            budget.value(text.len())
        })?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let element = self.nested()?;
        self.shared.spend(Budget::array)?;
        let mut values = Vec::new();
        while let Some(value) = elements.next_element_seed(element)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let member = self.nested()?;
        self.shared.spend(|budget| budget.value(0))?;
        let mut values = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            member.member(values.len(), &name)?;
            let value = members.next_value_seed(member)?;
            values.insert(name, value);
        }
        Ok(Value::Object(values))
    }
}
