//! What is known of a source between polls.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::follow::TransferError;
use towpath_store::{Store, StoreError, Table, Write};

use crate::client::Validators;
use crate::engine::roles::{Lease, conditions};

/// What is kept of a source, so that a restart neither forgets its errors nor asks again for what it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceState {
    /// What the rest holds for: a digest of the source's configuration.
    pub configured: String,
    /// Where permanent redirects have led.
    pub moved_to: Option<String>,
    /// The last document's ETag and Last-Modified.
    pub validators: Validators,
    /// The SHA-256 of the last document that was read without error, in hex.
    pub body: Option<String>,
    /// When the last poll began.
    pub last_attempt: Option<Timestamp>,
    /// When the last successful poll began.
    pub last_ok: Option<Timestamp>,
    /// When the next poll is due.
    pub next: Option<Timestamp>,
    /// Failed polls since the last success.
    pub failures: u32,
    /// The last poll's error; absent after a success.
    pub error: Option<SourceError>,
    /// What was left out of the last document, and why; the first few.
    pub problems: Vec<String>,
}

/// An error of a source, as it is shown and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceError {
    /// For programs: `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR`, `PARSE_ERROR`, …
    pub code: String,
    /// The status, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// For people: what happened, and where.
    pub message: String,
}

impl SourceError {
    /// An error of this code.
    pub fn new(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), http_status: None, message }
    }

    /// The server answered with an error status.
    pub fn of_status(status: u16, message: String) -> Self {
        Self { code: format!("HTTP_{status}"), http_status: Some(status), message }
    }

    /// There was no whole answer.
    pub fn of_transfer(error: &TransferError, message: String) -> Self {
        let code = match error {
            TransferError::Timeout(_) => "TIMEOUT",
            TransferError::TooLarge { .. } => "TOO_LARGE",
            TransferError::Body(_) => "TRUNCATED",
            TransferError::Redirect(_) => "REDIRECT",
            TransferError::Url(_) => "BAD_URL",
            TransferError::Connect(_) => "NETWORK_ERROR",
        };
        Self::new(code, message)
    }
}

impl SourceState {
    /// What is kept of a feed's source; nothing where its configuration is another than `configured`, apart
    /// from when it last succeeded.
    pub async fn load(store: &dyn Store, feed: &FeedId, configured: &str) -> Result<Self, StoreError> {
        let fresh = Self { configured: configured.to_owned(), ..Self::default() };
        let Some(bytes) = store.get(Table::Sources, feed.as_str().as_bytes()).await? else {
            return Ok(fresh);
        };
        let state: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the state of source {feed}: {e}")))?;
        if state.configured == configured {
            return Ok(state);
        }
        Ok(Self { last_ok: state.last_ok, ..fresh })
    }

    /// Keeps it.
    pub async fn save(&self, store: &dyn Store, lease: &Lease, feed: &FeedId) -> Result<(), StoreError> {
        let value = serde_json::to_vec(self).map_err(|e| StoreError::Write(e.to_string()))?;
        let key = feed.as_str().as_bytes().to_vec();
        let write = vec![Write { table: Table::Sources, key, value: Some(value.into()) }];
        store.write(write, conditions(lease)).await
    }
}
