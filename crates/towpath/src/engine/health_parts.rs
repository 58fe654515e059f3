//! Health of the server by part, for documents below the server.

use serde_json::{Map, Value};

use crate::engine::Engine;

/// Function of the server that tells the state of each part. A static tree has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthParts(pub(crate) fn(&Engine) -> Map<String, Value>);

impl HealthParts {
    /// Returns the parts of a server; `None` for a tree.
    pub(crate) fn of(engine: &Engine) -> Option<Map<String, Value>> {
        engine.extensions.get::<Self>().map(|parts| parts.0(engine))
    }
}
