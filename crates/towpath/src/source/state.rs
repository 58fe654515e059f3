//! Saved state of a source between polls.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use towpath_client::Validators;
use towpath_proto::FeedId;
use towpath_proto::follow::TransferError;
use towpath_store::{Store, Table, TableWrite};

use crate::config::{Secret, SourceConfig};
use crate::engine::roles::{Lease, conditions};
use crate::store_error::StoreError;

/// Saved state of a source. After a restart it preserves errors, validators and the poll schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceState {
    /// Digest of the source's configuration; the other fields are valid for it only.
    pub configured: String,
    /// URL after permanent redirects.
    pub moved_to: Option<String>,
    /// `ETag` and `Last-Modified` of the last document.
    pub validators: Validators,
    /// URL that answered with them, after all redirects; absent for files, and in states of earlier versions.
    pub validated_url: Option<String>,
    /// SHA-256 of the last document that was processed without error, in hex.
    pub body: Option<String>,
    /// Start of the last poll.
    pub last_attempt: Option<Timestamp>,
    /// Start of the last successful poll.
    pub last_ok: Option<Timestamp>,
    /// Due time of the next poll, by the wall clock at the last poll.
    pub next: Option<Timestamp>,
    /// The publisher ended the source (410). It is polled only on demand until it is configured anew.
    pub ended: bool,
    /// Number of failed polls since the last success.
    pub failures: u32,
    /// Error of the last poll; absent after a success.
    pub error: Option<SourceFailure>,
    /// Parts of the last document that were skipped, with reasons; the first few. Of a mirror the last few reports of
    /// missing items.
    pub problems: Vec<String>,
}

/// Error of a source, as saved and shown in its status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceFailure {
    /// Code for programs: `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR`, `PARSE_ERROR`, …
    pub code: String,
    /// HTTP status, if there was a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Message for people, with the URL or path.
    pub message: String,
}

impl SourceFailure {
    /// Creates an error with a code.
    pub fn new(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), http_status: None, message }
    }

    /// Error as shown to strangers, without its details.
    pub fn undisclosed() -> Self {
        Self::new("SOURCE_ERROR", "the source could not be read".into())
    }

    /// Error of an HTTP error status.
    pub fn from_status(status: u16, message: String) -> Self {
        // RFC 9110, section 15.5.11: likely to be permanent.
        if status == 410 {
            let hint = "the source has ended and is not polled any more; change its url, or try again with towpath run";
            return Self {
                code: "GONE".into(),
                http_status: Some(410),
                message: format!("{message}: {hint}"),
            };
        }
        Self { code: format!("HTTP_{status}"), http_status: Some(status), message }
    }

    /// Error of an incomplete response.
    pub fn from_transfer(error: &TransferError, message: String) -> Self {
        let code = match error {
            TransferError::Timeout(_) => "TIMEOUT",
            TransferError::TooLarge { .. } => "TOO_LARGE",
            TransferError::Body(_) => "TRUNCATED",
            TransferError::Coding { .. } => "UNKNOWN_CODING",
            TransferError::Redirect(_) => "REDIRECT",
            TransferError::Address(_) => "ADDRESS_REFUSED",
            TransferError::Url(_) => "BAD_URL",
            _ => "NETWORK_ERROR",
        };
        Self::new(code, message)
    }
}

impl SourceState {
    /// Loads the state of a feed's source. If its configuration has changed, only `last_ok` is preserved.
    pub async fn load(store: &dyn Store, feed: &FeedId, configured: &str) -> Result<Self, StoreError> {
        let fresh = Self { configured: configured.to_owned(), ..Self::default() };
        let Some(bytes) = store.get(Table::Sources, feed.as_str().as_bytes()).await? else {
            return Ok(fresh);
        };
        let state: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the state of source {feed}: {e}")))?;
        // Validators of another URL would yield a 304 for a document that was never read.
        if state.configured == configured {
            return Ok(state);
        }
        Ok(Self { last_ok: state.last_ok, ..fresh })
    }

    /// Saves the state, on the condition that the lease is still held.
    pub async fn save(&self, store: &dyn Store, lease: &Lease, feed: &FeedId) -> Result<(), StoreError> {
        self.save_with(store, lease, feed, None).await
    }

    /// Saves the state together with another row: both share one sync.
    pub(super) async fn save_with(
        &self,
        store: &dyn Store,
        lease: &Lease,
        feed: &FeedId,
        other: Option<TableWrite>,
    ) -> Result<(), StoreError> {
        let value = serde_json::to_vec(self).map_err(|e| StoreError::Encode(e.to_string()))?;
        let key = feed.as_str().as_bytes().to_vec();
        // The lease is a condition of the write, so a node that lost it cannot overwrite its successor's state.
        let write = TableWrite { table: Table::Sources, key, value: Some(value.into()) };
        Ok(store.write(other.into_iter().chain([write]).collect(), conditions(lease)).await?)
    }
}

/// Digest of the configuration that a source's state depends on. Another URL, format or mapping discards the state.
pub(crate) fn fingerprint(source: &SourceConfig) -> String {
    let address = source.url.as_ref().or(source.follow.as_ref());
    let mut text = format!("{address:?} {:?} {:?} {}", source.format, source.json, source.complete);
    // Appended where set, so that the state of other sources stays valid.
    if source.html.is_some() || source.paging.is_some() || source.body.is_some() {
        let body = source.body.as_ref().map(Secret::expose);
        text.push_str(&format!(" {:?} {:?} {body:?}", source.html, source.paging));
    }
    hex::encode(&Sha256::digest(text.as_bytes())[..8])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    /// Another digest for an unchanged source would discard its validators, redirect and end. It covers the names of types
    /// and fields.
    #[test]
    fn the_fingerprint_of_a_source_stays_the_same_over_versions() {
        for (source, expected) in [
            ("url = \"https://a.example/feed\"", "a5e86cabc71bafec"),
            ("follow = \"https://a.example/feed\"", "a5e86cabc71bafec"),
            (
                "url = \"https://a.example/x\"\nformat = \"json\"\ncomplete = true\n[feed.source.json]\nitems = \"/items\"\nid = \"/id\"\ntitle = \"/name\"",
                "80a94375e0b4e536",
            ),
            (
                "url = \"https://a.example/x\"\nformat = \"html\"\n[feed.source.html]\nitems = \"article\"\n[feed.source.paging]\nlink = true",
                "73e1d7c8d6aac3ff",
            ),
        ] {
            let text = format!("[[feed]]\nid = \"news\"\n[feed.source]\n{source}\n");
            let config = Config::parse(&text, Path::new("towpath.toml")).unwrap();
            let found = fingerprint(config.feeds[0].source.as_ref().unwrap());
            assert_eq!(found, expected, "{source}");
        }
    }
}
