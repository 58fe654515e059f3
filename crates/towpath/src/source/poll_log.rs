//! The last polls of a source, for people.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_store::{Table, TableWrite};

use super::poll_summary::PollSummary;
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Number of polls that are kept.
const KEPT: usize = 20;
/// Most characters of an error's message.
const MAX_MESSAGE: usize = 300;

/// A poll that is over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PollRecord {
    /// Start of the poll.
    pub(crate) at: Timestamp,
    /// Duration in milliseconds.
    pub(crate) millis: u64,
    /// Size of the document; `None` if none came, or it was not modified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    pub(crate) new: u64,
    pub(crate) updated: u64,
    pub(crate) removed: u64,
    /// Number of entries that were left out.
    pub(crate) left_out: u64,
    /// Error of a failed poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<PollFailure>,
}

/// Error of a poll, stored as a pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "(String, String)", into = "(String, String)")]
pub(crate) struct PollFailure {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl From<(String, String)> for PollFailure {
    fn from((code, message): (String, String)) -> Self {
        Self { code, message }
    }
}

impl From<PollFailure> for (String, String) {
    fn from(failure: PollFailure) -> Self {
        (failure.code, failure.message)
    }
}

impl PollRecord {
    pub(super) fn new(at: Timestamp, millis: u128, polled: &PollSummary) -> Self {
        let cut = |text: &str| text.chars().take(MAX_MESSAGE).collect();
        Self {
            at,
            millis: u64::try_from(millis).unwrap_or(u64::MAX),
            bytes: polled.bytes,
            new: polled.new as u64,
            updated: polled.updated as u64,
            removed: polled.removed as u64,
            left_out: polled.counts.left_out as u64,
            error: polled
                .error
                .as_ref()
                .map(|error| PollFailure { code: error.code.clone(), message: cut(&error.message) }),
        }
    }
}

fn key(feed: &Feed) -> Vec<u8> {
    format!("polls/{}", feed.id()).into_bytes()
}

/// Returns the last polls of a source, newest first.
pub(crate) async fn load(engine: &Engine, feed: &Feed) -> Result<Vec<PollRecord>, StoreError> {
    let bytes = engine.store.get(Table::Sources, &key(feed)).await?;
    // A record of another version is no reason not to poll.
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

/// Makes the write that adds a poll.
pub(super) async fn added(
    engine: &Engine,
    feed: &Feed,
    record: PollRecord,
) -> Result<TableWrite, StoreError> {
    let mut records = load(engine, feed).await?;
    records.insert(0, record);
    records.truncate(KEPT);
    let value = serde_json::to_vec(&records).map_err(|e| StoreError::Encode(e.to_string()))?;
    Ok(TableWrite { table: Table::Sources, key: key(feed), value: Some(value.into()) })
}
