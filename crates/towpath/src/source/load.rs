//! Getting a source's bytes: over HTTP or from a file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use jiff::Timestamp;
use towpath_proto::follow::{Request, RequestId, TransferError};
use url::Url;

use super::state::SourceState;
use crate::client::{Fetcher, Validators, local_path, read_local};
use crate::config::SourceConfig;
use crate::shown;

/// What a source answered.
#[derive(Debug)]
pub enum Loaded {
    /// As it was at the last poll.
    NotModified,
    /// A document.
    Document {
        /// Its bytes, decompressed.
        bytes: Bytes,
        /// The `Content-Type` header.
        content_type: Option<String>,
        /// The address it came from, for what is relative in it; none for a file.
        base_url: Option<String>,
        /// What to ask with next time.
        validators: Validators,
        /// Where the source has moved for good.
        moved_to: Option<String>,
    },
}

/// Why a source has no document to give. The network's or the publisher's fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No whole answer.
    #[error("{address}: {source}")]
    Transfer {
        /// What was asked, as it may be shown.
        address: String,
        /// What happened.
        source: TransferError,
    },
    /// An answer that is an error.
    #[error("{address}: the server answers {status}")]
    Status {
        /// What was asked, as it may be shown.
        address: String,
        /// The status.
        status: u16,
        /// How long to stay away, where the server says so.
        retry_after: Option<Duration>,
    },
}

/// Loads what the source has now, unless it is what `state` says was there at the last poll. Paths are
/// relative to `folder`.
pub async fn load(
    fetcher: &Fetcher,
    source: &SourceConfig,
    address: &str,
    folder: &Path,
    state: &SourceState,
    now: Timestamp,
) -> Result<Loaded, LoadError> {
    let limit = source.max_mib << 20;
    let loading = async {
        match local_path(address) {
            Some(path) => from_file(&folder.join(path), limit).await,
            None => from_http(fetcher, source, address, limit, state, now).await,
        }
    };
    let in_time = tokio::time::timeout(source.timeout, loading).await;
    in_time.unwrap_or_else(|_| {
        let source = TransferError::Timeout(format!("not done within {} s", source.timeout.as_secs()));
        Err(LoadError::Transfer { address: shown::address(address), source })
    })
}

async fn from_file(path: &Path, limit: u64) -> Result<Loaded, LoadError> {
    let file = read_local(path, limit).await;
    let file = file.map_err(|source| LoadError::Transfer { address: path.display().to_string(), source })?;
    Ok(Loaded::Document {
        bytes: file.bytes,
        content_type: None,
        base_url: None,
        validators: Validators::default(),
        moved_to: None,
    })
}

async fn from_http(
    fetcher: &Fetcher,
    source: &SourceConfig,
    address: &str,
    limit: u64,
    state: &SourceState,
    now: Timestamp,
) -> Result<Loaded, LoadError> {
    // They are for the origin that is configured, wherever the source has moved.
    let fetcher = fetcher.with_headers(address, source.header_map());
    let address = state.moved_to.as_deref().unwrap_or(address);
    let mut request = state.validators.condition(Request::get(RequestId(0), address));
    request = request.with(header::ACCEPT, ACCEPT);
    request.max_body = limit;
    request.patience = source.timeout;
    let whole = fetcher.fetch_whole(&request).await;
    let whole = whole.map_err(|source| LoadError::Transfer { address: shown::address(address), source })?;
    match whole.head.status {
        304 => Ok(Loaded::NotModified),
        200 => Ok(Loaded::Document {
            content_type: whole.head.header("content-type").map(str::to_owned),
            validators: Validators::of(&whole.head),
            base_url: Some(base_url(whole.head.url)),
            moved_to: whole.moved_to.or_else(|| state.moved_to.clone()),
            bytes: whole.body,
        }),
        status => {
            let retry_after = whole.head.retry_after(now);
            Err(LoadError::Status { address: shown::address(address), status, retry_after })
        }
    }
}

/// An address as what is relative to it is published: without user and password.
fn base_url(address: String) -> String {
    let Ok(mut url) = Url::parse(&address) else { return address };
    let taken = url.set_username("").and_then(|()| url.set_password(None));
    if taken.is_ok() { url.into() } else { address }
}

/// What a source may answer with, feeds before other JSON and XML.
const ACCEPT: &str = "application/atom+xml, application/rss+xml, application/feed+json, application/json;q=0.9, \
                      application/xml;q=0.8, text/xml;q=0.8, */*;q=0.1";
