//! Loads a source's document over HTTP or from a file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use jiff::Timestamp;
use towpath_client::{BodyShare, Fetcher, Validators, redact};
use towpath_proto::follow::{Request, RequestId, TransferError};
use url::Url;

use super::state::SourceState;
use crate::config::{SourceConfig, local_path};
use crate::source::local::read_local;

/// Result of loading a source.
#[derive(Debug)]
pub enum LoadedSource {
    /// Unchanged since the last poll.
    NotModified,
    /// A document that may have changed.
    Document {
        /// Decompressed content.
        bytes: Bytes,
        /// The `Content-Type` header.
        content_type: Option<String>,
        /// Base of relative URLs in it; `None` for a file.
        base_url: Option<String>,
        /// Validators for the next conditional request.
        validators: Validators,
        /// New URL after permanent redirects.
        moved_to: Option<String>,
        /// Memory of the content, to be held as long as it.
        share: Option<BodyShare>,
    },
}

/// A source cannot be loaded. The network's or the publisher's fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The response did not arrive whole.
    #[error("{address}: {source}")]
    Transfer {
        /// Redacted URL.
        address: String,
        /// The transfer error.
        source: TransferError,
    },
    /// The server responded with an error status.
    #[error("{address}: the server answers {status}")]
    Status {
        /// Redacted URL.
        address: String,
        /// Status code.
        status: u16,
        /// The server's `Retry-After`.
        retry_after: Option<Duration>,
    },
}

/// Loads a source, unless it is unchanged since the poll that `state` describes. Paths are relative to `folder`.
pub async fn load(
    fetcher: &Fetcher,
    source: &SourceConfig,
    address: &str,
    folder: &Path,
    state: &SourceState,
    now: Timestamp,
) -> Result<LoadedSource, LoadError> {
    // The limit applies after decompression, against small bodies that expand to gigabytes.
    let limit = source.max_mib << 20;
    let loading = async {
        match local_path(address) {
            Some(path) => from_file(&folder.join(path), limit).await,
            None => from_http(fetcher, source, address, limit, state, now).await,
        }
    };
    // One limit for redirects, head and body together, and for files on a hanging mount.
    let loaded = tokio::time::timeout(source.timeout, loading).await;
    loaded.unwrap_or_else(|_| {
        let source = TransferError::Timeout(format!("not complete within {} s", source.timeout.as_secs()));
        Err(LoadError::Transfer { address: redact::url(address), source })
    })
}

async fn from_file(path: &Path, limit: u64) -> Result<LoadedSource, LoadError> {
    let file = read_local(path, limit).await;
    let file = file.map_err(|source| LoadError::Transfer { address: path.display().to_string(), source })?;
    Ok(LoadedSource::Document {
        bytes: file.bytes,
        content_type: None,
        base_url: None,
        validators: Validators::default(),
        moved_to: None,
        share: None,
    })
}

async fn from_http(
    fetcher: &Fetcher,
    source: &SourceConfig,
    address: &str,
    limit: u64,
    state: &SourceState,
    now: Timestamp,
) -> Result<LoadedSource, LoadError> {
    // Configured headers may hold credentials: they go to the configured origin only, wherever the source has moved.
    let fetcher = fetcher.with_named([address]).with_headers(address, source.header_map());
    // Permanent redirects are followed once (RFC 9110, section 15.4.2).
    let address = state.moved_to.as_deref().unwrap_or(address);
    let mut request = state.validators.condition(Request::get(RequestId(0), address));
    request = request.with(header::ACCEPT, ACCEPT);
    request.max_body = limit;
    request.patience = source.timeout;
    let response = fetcher.fetch_whole(&request).await;
    let response =
        response.map_err(|source| LoadError::Transfer { address: redact::url(address), source })?;
    match response.head.status {
        304 => Ok(LoadedSource::NotModified),
        // Only 200: a 206 or 203 is not the publisher's complete document.
        200 => Ok(LoadedSource::Document {
            content_type: response.head.header("content-type").map(str::to_owned),
            validators: Validators::from_head(&response.head),
            base_url: Some(base_url(response.head.url)),
            moved_to: response.moved_to.or_else(|| state.moved_to.clone()),
            bytes: response.body,
            share: response.share,
        }),
        status => {
            let retry_after = response.head.retry_after(now);
            Err(LoadError::Status { address: redact::url(address), status, retry_after })
        }
    }
}

/// Removes user and password from a base URL: relative links resolved against it are published.
fn base_url(address: String) -> String {
    let Ok(mut url) = Url::parse(&address) else { return address };
    let removed = url.set_username("").and_then(|()| url.set_password(None));
    if removed.is_ok() { url.into() } else { address }
}

/// `Accept` header: feed formats before other JSON and XML.
const ACCEPT: &str = "application/atom+xml, application/rss+xml, application/feed+json, application/json;q=0.9, \
                      application/xml;q=0.8, text/xml;q=0.8, */*;q=0.1";
