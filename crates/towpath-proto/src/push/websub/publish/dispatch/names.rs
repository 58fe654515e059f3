//! Numbers that stand for names: with a million subscribers the strings would dominate memory.

use std::collections::HashMap;
use std::sync::Arc;

/// Names with their numbers.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    numbers: HashMap<Arc<str>, u32>,
    last: u32,
}

impl NameTable {
    /// Returns the number of a name, if it has one.
    pub(super) fn get(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the number of a name, and the shared name.
    pub(super) fn number(&mut self, name: &str) -> (u32, Arc<str>) {
        if let Some((name, number)) = self.numbers.get_key_value(name) {
            return (*number, name.clone());
        }
        // Four billion names would have to be in use at once for a collision.
        self.last = self.last.wrapping_add(1);
        let name: Arc<str> = name.into();
        self.numbers.insert(name.clone(), self.last);
        (self.last, name)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.numbers.remove(name);
    }
}
