//! Loads a source's document over HTTP or from a file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use jiff::Timestamp;
use towpath_client::{Fetcher, FullResponse, Validators, redact};
use towpath_proto::follow::{Request, RequestId, ResponseHead, TransferError};
use towpath_proto::format::Paging;
use url::Url;

use super::document::{LoadedPage, PageReader};
use super::state::SourceState;
use crate::config::{SourceConfig, SourceFormat, local_path};
use crate::source::local::read_local;

/// Result of loading a source.
#[derive(Debug)]
pub enum LoadedSource {
    /// Unchanged since the last poll.
    NotModified,
    /// A document that may have changed.
    Document(LoadedDocument),
}

/// A source's document.
#[derive(Debug)]
pub struct LoadedDocument {
    /// Its pages: one, or more where paging is configured.
    pub pages: Vec<LoadedPage>,
    /// There are more pages than may be loaded.
    pub has_more: bool,
    /// Validators for the next conditional request.
    pub validators: Validators,
    /// URL that sent it, after all redirects; `None` for a file.
    pub url: Option<String>,
    /// New URL after permanent redirects.
    pub moved_to: Option<String>,
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
    /// The next page cannot be asked for.
    #[error("{address}: {reason}")]
    Paging {
        /// Redacted URL.
        address: String,
        /// Explanation.
        reason: String,
    },
    /// Reading a page failed.
    #[error("reading the document failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
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
    let page = LoadedPage { bytes: file.bytes, content_type: None, base_url: None, share: None };
    Ok(LoadedSource::Document(LoadedDocument {
        pages: vec![page],
        has_more: false,
        validators: Validators::default(),
        url: None,
        moved_to: None,
    }))
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
    let fetcher = super::fetcher_of(fetcher, source, address);
    // Permanent redirects are followed once (RFC 9110, section 15.4.2).
    let first = state.moved_to.as_deref().unwrap_or(address);
    let shown = match state.moved_to.as_deref() {
        None => redact::url(address),
        Some(moved) => format!("{}, which moved to {}", redact::url(address), redact::url(moved)),
    };
    let mut request = PageRequest { fetcher: &fetcher, source, shown, now, left: limit };
    // A first page that is unchanged says nothing about the removals on later ones, and a POST has no conditions.
    let is_conditional = source.body.is_none() && (source.paging.is_none() || !source.complete);
    let validators = if is_conditional { state.validators.clone() } else { Validators::default() };
    let mut response = request.send(first, &validators).await?;
    if response.head.status == 304 {
        // Another resource may have the same tag (RFC 9110, section 8.8.3), and its document was never read.
        if state.validated_url.as_ref().is_none_or(|url| *url == response.head.url) {
            return Ok(LoadedSource::NotModified);
        }
        response = request.send(first, &Validators::default()).await?;
    }
    let validators = Validators::from_head(&response.head);
    let moved_to = response.moved_to.clone().or_else(|| state.moved_to.clone());
    let url = Some(response.head.url.clone());
    let (pages, has_more) = request.pages(response).await?;
    Ok(LoadedSource::Document(LoadedDocument { pages, has_more, validators, url, moved_to }))
}

/// Requests of one poll.
struct PageRequest<'a> {
    fetcher: &'a Fetcher,
    source: &'a SourceConfig,
    /// The configured URL, and where it moved, for errors.
    shown: String,
    now: Timestamp,
    /// Bytes that the pages may still have.
    left: u64,
}

impl PageRequest<'_> {
    /// Sends a request; any status but 200 is an error, and but 304 to validators.
    async fn send(&mut self, url: &str, validators: &Validators) -> Result<FullResponse, LoadError> {
        let mut request = validators.condition(Request::get(RequestId(0), url));
        let accept = if self.source.format == SourceFormat::Html { ACCEPT_HTML } else { ACCEPT };
        request = request.with(header::ACCEPT, accept);
        if let Some(body) = &self.source.body {
            request.method = Method::POST;
            request.body = Bytes::copy_from_slice(body.expose().as_bytes());
            request = request.with(header::CONTENT_TYPE, "application/json");
        }
        request.max_body = self.left;
        request.patience = self.source.timeout;
        let response = self.fetcher.fetch_whole(&request).await;
        let response =
            response.map_err(|source| LoadError::Transfer { address: self.shown.clone(), source })?;
        // Only 200: a 206 or 203 is not the publisher's complete document. Without a condition, a 304 has no document
        // that it could mean (RFC 9110, section 15.4.5).
        let is_conditional = *validators != Validators::default();
        if response.head.status != 200 && !(response.head.status == 304 && is_conditional) {
            return Err(LoadError::Status {
                address: self.shown.clone(),
                status: response.head.status,
                retry_after: response.head.retry_after(self.now),
            });
        }
        self.left = self.left.saturating_sub(response.body.len() as u64);
        Ok(response)
    }

    /// Returns the page of a response and those behind it. `true`: there are more than may be loaded.
    async fn pages(&mut self, first: FullResponse) -> Result<(Vec<LoadedPage>, bool), LoadError> {
        let Some(paging) = &self.source.paging else { return Ok((vec![page(first)], false)) };
        let mut visited = vec![first.head.url.clone()];
        let mut pages = Vec::new();
        let mut response = first;
        loop {
            let head = response.head.clone();
            pages.push(page(response));
            let Some(next) = self.next(paging, &head, &pages[pages.len() - 1]).await? else {
                return Ok((pages, false));
            };
            if pages.len() == paging.max_pages {
                return Ok((pages, true));
            }
            // A cursor that stands still would be asked for until the limit, and its items counted as repeated.
            if visited.contains(&next) {
                return Err(self.paging_error("a page leads back to one before it".into()));
            }
            response = self.send(&next, &Validators::default()).await?;
            visited.push(next);
        }
    }

    /// Returns the URL of the page behind one.
    async fn next(
        &self,
        paging: &Paging,
        head: &ResponseHead,
        page: &LoadedPage,
    ) -> Result<Option<String>, LoadError> {
        let url = Url::parse(&head.url).map_err(|e| self.paging_error(e.to_string()))?;
        let next = paging.next_page(&url, &head.headers, &page.bytes);
        let next = next.map_err(|e| self.paging_error(redact::text(&e.to_string())))?;
        let has_links =
            !matches!(self.source.format, SourceFormat::Json | SourceFormat::Ndjson | SourceFormat::Html);
        if next.is_some() || !paging.link || !has_links {
            return Ok(next.map(String::from));
        }
        // A document that cannot be read gets its error where all pages are read.
        let read = PageReader::new(self.source).read(page).await?;
        Ok(read.ok().and_then(|document| document.link("next").map(str::to_owned)))
    }

    fn paging_error(&self, reason: String) -> LoadError {
        LoadError::Paging { address: self.shown.clone(), reason }
    }
}

fn page(response: FullResponse) -> LoadedPage {
    LoadedPage {
        content_type: response.head.header("content-type").map(str::to_owned),
        base_url: Some(base_url(response.head.url)),
        bytes: response.body,
        share: response.share,
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
/// `Accept` header of an HTML page.
const ACCEPT_HTML: &str = "text/html, application/xhtml+xml, */*;q=0.1";
