//! State of a follower, persisted between runs.

use serde::{Deserialize, Serialize};

/// The follower's state. The names of the fields in JSON are a stored format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SmartFollowState {
    pub(super) protocol: String,
    pub(super) url: String,
    /// The current position, as the value of `since`; absent for the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
}
