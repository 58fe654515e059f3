//! Publishing to feeds of a towpath server.
//!
//! ```no_run
//! use towpath_client::ServerClient;
//! use towpath_proto::line::Line;
//!
//! # async fn publish() -> Result<(), Box<dyn std::error::Error>> {
//! let news = ServerClient::new("http://127.0.0.1:8080")?.feed("news");
//! news.put(Line::parse(br#"{"id":"1","item":{"title":"Ten boats"}}"#)?).await?;
//! news.delete("1").await?;
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_proto::Op;
use towpath_proto::follow::{Request, RequestId, ResponseHead, TransferError};
use towpath_proto::line::Line;
use url::Url;

use crate::fetch::{FetchOptions, Fetcher, FullResponse};
use crate::problem::refusal_reason;

/// A request to publish failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// No complete response. The change may have been made; to send it again is safe.
    #[error("{url}: {source}")]
    Transfer {
        /// URL of the request.
        url: String,
        /// The transfer's error.
        source: TransferError,
    },
    /// The server refuses.
    #[error("{url}: the server answers {status}: {detail}")]
    Status {
        /// URL of the request.
        url: String,
        /// Status code.
        status: u16,
        /// The server's reason, without control characters.
        detail: String,
    },
    /// The response is not one of towpath.
    #[error("{url}: {reason}")]
    Response {
        /// URL of the request.
        url: String,
        /// The response's fault.
        reason: String,
    },
    /// An argument cannot be used.
    #[error("{0}")]
    Usage(String),
}

/// Receipt of a server for published lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PublishReport {
    /// Number of new entries of the feed's log.
    pub appended: u64,
    /// Number of these that changed items which were there.
    #[serde(default)]
    pub changed: u64,
    /// Number of lines that were there already.
    #[serde(default)]
    pub unchanged: u64,
    /// Position of the change of a single item, or at which the log ends after several.
    #[serde(default)]
    pub last: u64,
}

/// Header of the position that a published item has.
const POSITION: &str = "towpath-position";

/// Client of a towpath server.
#[derive(Debug, Clone)]
pub struct ServerClient {
    base: Url,
    fetcher: Fetcher,
}

/// URL of a server, checked.
fn parse_base(base: &str) -> Result<Url, PublishError> {
    let url = Url::parse(base).map_err(|e| PublishError::Usage(format!("{base:?} is not a URL: {e}")))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(PublishError::Usage(format!("{base:?} is neither http nor https"))),
    }
}

/// Client of a feed of a towpath server.
#[derive(Debug, Clone)]
pub struct FeedClient {
    url: String,
    fetcher: Fetcher,
}

impl ServerClient {
    /// Creates a client of the server at `base`.
    ///
    /// # Errors
    ///
    /// [`PublishError::Usage`] if `base` is not a URL.
    pub fn new(base: &str) -> Result<Self, PublishError> {
        let base_url = parse_base(base)?;
        let fetcher =
            Fetcher::new(FetchOptions::default()).map_err(|e| PublishError::Usage(e.to_string()))?;
        Ok(Self { fetcher: fetcher.with_named([base]), base: base_url })
    }

    /// Like [`new`](Self::new), with an HTTP client. Private addresses are reached as far as it has them
    /// [named](Fetcher::with_named).
    ///
    /// # Errors
    ///
    /// [`PublishError::Usage`] if `base` is not a URL.
    pub fn with_fetcher(base: &str, fetcher: Fetcher) -> Result<Self, PublishError> {
        Ok(Self { base: parse_base(base)?, fetcher })
    }

    /// URL of the server.
    pub fn base(&self) -> &str {
        self.base.as_str()
    }

    /// Sends a token with each request, to this server only.
    ///
    /// # Errors
    ///
    /// [`PublishError::Usage`] if the token cannot be part of a header.
    pub fn token(self, token: &str) -> Result<Self, PublishError> {
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| {
            PublishError::Usage("the token contains characters that are not allowed in a header".into())
        })?;
        // Keeps the token out of debug output and out of HPACK's index.
        bearer.set_sensitive(true);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer)]);
        Ok(Self { fetcher: self.fetcher.with_headers(&self.base, headers), ..self })
    }

    /// Sends a request, with the token if it is to this server, and returns its response.
    ///
    /// # Errors
    ///
    /// [`PublishError`], also for a response with another status than 2xx.
    pub async fn send(&self, request: Request) -> Result<FullResponse, PublishError> {
        send(&self.fetcher, request).await
    }

    /// Returns a client of a feed.
    pub fn feed(&self, name: &str) -> FeedClient {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Pushed as a segment, which encodes a slash: a name cannot lead to another path of the server.
            segments.pop_if_empty().push("feeds").push(name);
        }
        FeedClient { url: url.into(), fetcher: self.fetcher.clone() }
    }
}

impl FeedClient {
    /// Publishes an item whole.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub async fn put(&self, line: Line) -> Result<PublishReport, PublishError> {
        self.batch(&[Line { op: Op::Put, ..line }]).await
    }

    /// Changes parts of an item, by a merge patch (RFC 7396) of its line.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub async fn patch(&self, id: &str, changes: &Value) -> Result<PublishReport, PublishError> {
        let url = format!("{}?as=line", self.item_url(id)?);
        let body = Bytes::from(changes.to_string());
        self.publish(Method::PATCH, &url, "application/merge-patch+json", body).await
    }

    /// Deletes an item.
    ///
    /// # Errors
    ///
    /// [`PublishError`], with the status 404 for an item that is not there.
    pub async fn delete(&self, id: &str) -> Result<PublishReport, PublishError> {
        let url = self.item_url(id)?;
        self.publish(Method::DELETE, &url, "", Bytes::new()).await
    }

    /// Returns the line of an item.
    ///
    /// # Errors
    ///
    /// [`PublishError`], with the status 404 for an item that is not there.
    pub async fn get(&self, id: &str) -> Result<Line, PublishError> {
        let url = format!("{}?as=line", self.item_url(id)?);
        parse(&url, &send(&self.fetcher, Request::get(RequestId(0), &url)).await?.body)
    }

    /// Publishes lines: all of them, or none. Up to 10,000 and 64 MiB.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub async fn batch(&self, lines: &[Line]) -> Result<PublishReport, PublishError> {
        let mut body = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut body, line).map_err(|e| PublishError::Usage(e.to_string()))?;
            body.push(b'\n');
        }
        self.batch_text(body).await
    }

    /// Like [`batch`](Self::batch), with the lines as text.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub async fn batch_text(&self, lines: impl Into<Bytes>) -> Result<PublishReport, PublishError> {
        let url = format!("{}/items?as=line", self.url);
        self.publish(Method::POST, &url, "application/x-ndjson", lines.into()).await
    }

    /// Like [`batch_text`](Self::batch_text), for lines of other publishers: their URLs may have any form.
    ///
    /// # Errors
    ///
    /// [`PublishError`].
    pub async fn import_text(&self, lines: impl Into<Bytes>) -> Result<PublishReport, PublishError> {
        let url = format!("{}/items?urls=any", self.url);
        self.publish(Method::POST, &url, "application/x-ndjson", lines.into()).await
    }

    /// URL of the feed.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL of an item.
    ///
    /// # Errors
    ///
    /// [`PublishError::Usage`] if no URL can name the id: an empty one, or a dot segment.
    pub fn item_url(&self, id: &str) -> Result<String, PublishError> {
        let mut url = Url::parse(&self.url).map_err(|e| PublishError::Usage(e.to_string()))?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.push("items").push(id);
        }
        // RFC 3986, section 5.2.4: a parser removes segments that are dots, also percent-encoded ones (WHATWG URL). An empty
        // one names the feed's list.
        if id.is_empty() || matches!(id, "." | "..") {
            return Err(PublishError::Usage(format!(
                "an id is 1 to 2048 bytes and no dot segment, not {id:?}"
            )));
        }
        Ok(url.into())
    }

    async fn publish(
        &self,
        method: Method,
        url: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<PublishReport, PublishError> {
        let mut request = Request::get(RequestId(0), url);
        if !content_type.is_empty() {
            request = request.with(CONTENT_TYPE, content_type);
        }
        let FullResponse { head, body, .. } =
            send(&self.fetcher, Request { method, body, ..request }).await?;
        let report: PublishReport = parse(url, &body)?;
        let position = head.header(POSITION).and_then(|position| position.parse().ok());
        Ok(PublishReport { last: position.unwrap_or(report.last), ..report })
    }
}

/// Sends a request. A status other than 2xx is an error.
async fn send(fetcher: &Fetcher, request: Request) -> Result<FullResponse, PublishError> {
    let url = request.url.clone();
    match fetcher.fetch_whole(&request).await {
        Ok(response) if (200..300).contains(&response.head.status) => Ok(response),
        Ok(FullResponse { head: ResponseHead { status, .. }, body, .. }) => {
            Err(PublishError::Status { url, status, detail: refusal_reason(&body) })
        }
        Err(source) => Err(PublishError::Transfer { url, source }),
    }
}

fn parse<T: for<'de> Deserialize<'de>>(url: &str, body: &[u8]) -> Result<T, PublishError> {
    serde_json::from_slice(body).map_err(|error| PublishError::Response {
        url: url.to_owned(),
        reason: format!("the answer is not one of towpath: {error}"),
    })
}
