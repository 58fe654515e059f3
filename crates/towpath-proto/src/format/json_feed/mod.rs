//! JSON Feed 1.0 and 1.1: reading and writing.

mod read;

pub(crate) use read::read;

/// The key of [`crate::item::Item::extra`] under which the keys are kept that an item's fields have no
/// place for.
const EXTRA: &str = "json_feed";
/// The extension object (JSON Feed 1.1, "Extensions") that carries what the format has no place for.
const OWN: &str = "_towpath";
