//! Keys for everything that JSON Feed cannot express.

use serde_json::{Map, Value};

/// Members of a JSON object.
pub(super) type JsonObject = Map<String, Value>;
/// Key of [`crate::item::Item::extra`] for JSON Feed's members without a field in the item.
pub(crate) const EXTRA: &str = "json_feed";
/// Our extension object (JSON Feed 1.1, "Extensions").
pub(super) const OWN: &str = "_towpath";
