//! Places of end tags, so that an element without one is known at its start.

use std::collections::HashMap;

use super::start_tag::is_name_byte;
use super::tags::is_item;
use crate::format::budget::Budget;
use crate::format::error::FormatError;

/// Offsets of a document's end tags by name, and of the start tags of items, each in order.
pub(super) struct TagPlaces<'i> {
    ends: HashMap<&'i str, Vec<usize>>,
    items: Vec<usize>,
}

impl<'i> TagPlaces<'i> {
    /// Finds the tags in one pass. Those within comments and sections count too: it is a guess, for repairs only.
    pub(super) fn of(text: &'i str, budget: &mut Budget) -> Result<Self, FormatError> {
        let mut places = Self { ends: HashMap::new(), items: Vec::new() };
        let mut count = 0_usize;
        for at in memchr::memchr_iter(b'<', text.as_bytes()) {
            let rest = &text[at + 1..];
            let (rest, is_end) = rest.strip_prefix('/').map_or((rest, false), |rest| (rest, true));
            let length = rest.bytes().position(|b| !is_name_byte(b)).unwrap_or(rest.len());
            // Bytes of names are ASCII or parts of whole characters.
            let Some(name) = rest.get(..length).filter(|name| !name.is_empty()) else { continue };
            match is_end {
                true => places.ends.entry(name).or_default().push(at),
                false if is_item(name) => places.items.push(at),
                false => continue,
            }
            count += 1;
        }
        // A vector has room for up to twice its values, and a name is an entry with a vector.
        budget.store(2 * count * size_of::<usize>() + places.ends.len() * 96)?;
        Ok(places)
    }

    /// Returns `true` if an end tag of `name` follows before the parent ends or another item begins.
    pub(super) fn ends(&self, name: &str, parent: &str, from: usize) -> bool {
        let Some(end) = next(self.ends.get(name), from) else { return false };
        let limit = next(self.ends.get(parent), from);
        let item = next(Some(&self.items), from);
        [limit, item].into_iter().flatten().all(|limit| end < limit)
    }
}

/// Returns the first of the offsets that is not before `from`.
fn next(offsets: Option<&Vec<usize>>, from: usize) -> Option<usize> {
    let offsets = offsets?;
    offsets.get(offsets.partition_point(|at| *at < from)).copied()
}
