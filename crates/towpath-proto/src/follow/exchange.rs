//! Requests, responses and events, and the traits of the state machines that exchange them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use super::content_file::FileChange;
use super::time::{Monotonic, Now};
use crate::change::Op;
use crate::format::http_date;
use crate::item::{Content, Item};
use crate::line::{Line, ResetLine};
use crate::report::Report;

/// Number of a request, chosen by the state machine and returned with every part of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request for the driver to send.
#[derive(Debug, Clone)]
pub struct Request {
    /// Returned with the response.
    pub id: RequestId,
    /// GET, HEAD or POST.
    pub method: Method,
    /// Absolute URL.
    pub url: String,
    /// Headers beside those that the driver adds (Host, User-Agent, Accept-Encoding).
    pub headers: HeaderMap,
    /// Body of a POST; empty otherwise.
    pub body: Bytes,
    /// Limit of the response's body, in bytes after decoding; [`TransferError::TooLarge`] beyond.
    pub max_body: u64,
    /// True if the body is read piece by piece, and never held in memory as a whole.
    pub is_streamed: bool,
    /// Time until the response must begin.
    pub patience: Duration,
    /// An earlier request, if this one is sent ahead of time. The driver reads and passes on the response only once
    /// that request has ended.
    // Data Replication requests the next page while it reads this one, and still sees them in order.
    pub after: Option<RequestId>,
}

impl Request {
    /// A GET without headers, up to 64 MiB, begun within 60 seconds.
    pub fn get(id: RequestId, url: impl Into<String>) -> Self {
        Self {
            id,
            method: Method::GET,
            url: url.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            // A publisher that sends without end must not fill the memory.
            max_body: 64 << 20,
            is_streamed: false,
            patience: Duration::from_secs(60),
            after: None,
        }
    }

    /// Adds a header. A value that HTTP does not allow is left out.
    #[must_use]
    pub fn with(mut self, name: http::HeaderName, value: &str) -> Self {
        // Values such as ETags come from publishers: a bad one costs the condition, not the request.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }
}

/// Status and headers of a response.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// URL that responded, after redirects.
    pub url: String,
    /// All headers.
    pub headers: HeaderMap,
}

impl ResponseHead {
    /// Returns the first value of a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns whether the response comes from a replica that may be behind (`Towpath-Replica-Age`).
    ///
    /// A cluster node sends the header while it cannot tell how far the others are. An item missing from its
    /// response need not be gone.
    pub fn is_stale(&self) -> bool {
        self.headers.contains_key("towpath-replica-age")
    }

    /// Returns whether the position of the request is unknown to the publisher ([`TOWPATH_RESET`]).
    pub fn is_reset(&self) -> bool {
        self.headers.contains_key(TOWPATH_RESET)
    }

    /// See [`retry_after`].
    pub fn retry_after(&self, now: Timestamp) -> Option<Duration> {
        retry_after(&self.headers, now)
    }
}

/// Returns the wait that `Retry-After` asks for (RFC 9110, section 10.2.3), in seconds or as a date.
///
/// `None` if the header is missing or neither of both; zero for a date in the past. The wait may be centuries long:
/// callers apply a limit of their own.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a u64 holds still mean: very long.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let date = http_date::parse(value).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

/// Reason why a response did not arrive whole. At fault is the network or the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// No connection, or it broke before the response.
    #[error("cannot reach it: {0}")]
    Connect(String),
    /// The peer sent nothing for too long.
    #[error("timed out: {0}")]
    Timeout(String),
    /// The body ended before its announced end, or its compression is broken.
    #[error("the body was cut off or damaged: {0}")]
    Body(String),
    /// The body has a content coding that no request asked for.
    #[error("the body has the content coding {coding:?}, and only gzip, br and zstd can be read")]
    Coding {
        /// The coding, as the headers name it.
        coding: String,
    },
    /// The body is larger than [`Request::max_body`].
    #[error("the body is larger than {limit} bytes (limit: max_mib)")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// More redirects than allowed, or one to an address that cannot be followed.
    #[error("redirected in vain: {0}")]
    Redirect(String),
    /// The host's address is not one that a publisher may lead to.
    #[error("address refused: {0}")]
    Address(String),
    /// The URL is not an HTTP URL.
    #[error("not an address to fetch: {0}")]
    Url(String),
}

/// A change received from a publisher.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// Name of the feed at its publisher, or its URL.
    pub feed: String,
    /// Operation of the change.
    pub op: Op,
    /// The whole item for a put; for a patch and a deletion at least its id.
    pub item: Item,
    /// The patch, for a patch.
    pub patch: Option<Content>,
    /// Time of the change by the publisher's clock.
    pub modified: Option<Timestamp>,
    /// Position in the publisher's order (cursor, Content-ID), from which following can resume.
    pub position: String,
    /// Name of the entry in the feed (Content-ID), which a mirror preserves.
    pub entry_id: Option<String>,
}

impl Followed {
    /// Returns the line that `follow` prints.
    pub fn line(&self) -> Line {
        let mut line = Line::new(self.op, &self.item, self.patch.as_ref());
        line.feed = Some(without_credentials(&self.feed));
        line.modified = self.modified;
        // Some publishers name none for single items.
        line.position = Some(without_credentials(&self.position)).filter(|position| !position.is_empty());
        line
    }

    /// Returns the line as JSON, without a line end.
    // Generic code is compiled with its caller, and the callers are compiled for a fast build.
    pub fn line_json(&self) -> Vec<u8> {
        // The keys of a line are text and its values come from JSON: writing to memory cannot fail.
        serde_json::to_vec(&self.line()).unwrap_or_default()
    }
}

/// A publisher that began anew: its log is not the one that was followed.
///
/// Everything that it has follows. An item that does not follow exists no longer, and has no deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedReset {
    /// Name of the feed at its publisher, or its URL.
    pub feed: String,
    /// Evidence, with the URL that gave it.
    pub reason: String,
}

impl FeedReset {
    /// Returns the line that `follow` prints.
    pub fn line(&self) -> ResetLine {
        ResetLine::new(without_credentials(&self.feed))
    }
}

/// Response header of a publisher to whom the position of a request is unknown: its log began anew.
pub const TOWPATH_RESET: &str = "towpath-reset";

/// Response header with the feed's own name, in responses for a feed.
pub const TOWPATH_FEED: &str = "towpath-feed";

/// Returns a URL without user and password; any other text as it is. Lines are stored and passed on.
fn without_credentials(text: &str) -> String {
    // Most feeds have none, and are not parsed.
    let url = Some(text).filter(|text| text.contains('@')).and_then(|text| Url::parse(text).ok());
    let Some(mut url) = url.filter(|url| !url.username().is_empty() || url.password().is_some()) else {
        return text.to_owned();
    };
    // A URL that cannot have credentials has none, so neither fails.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

/// Output of a follower.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A change to deliver.
    Change(Box<Followed>),
    /// The publisher began anew. Deliver it in order with the changes; exit code 3.
    Reset(FeedReset),
    /// State that covers every change before this event. Persist it once those are delivered. A follower created
    /// with it resumes here.
    Checkpoint(Value),
    /// A part of content that is too large for memory, for a file.
    Large(LargePart),
    /// A change to deliver once its content was downloaded to a file.
    File(Box<FileChange>),
    /// A problem for the operator to know. Following continues.
    Warning(String),
    /// Items were missed that the publisher no longer has. Following continues; exit code 3.
    Incomplete(String),
    /// This attempt failed. The follower retries later, unless it was to make one pass only.
    Failed(FollowError),
}

/// Part of content that is too large for memory. The change comes after the last part, and names the file.
///
/// Several contents may arrive at once, each with a number of its own. A content that is cut off has no end; its
/// number begins again at offset 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargePart {
    /// URL of the folder of files, with a slash at its end.
    pub base: Arc<str>,
    /// Number of the content.
    pub number: u64,
    /// Action on the file.
    pub step: LargeStep,
}

/// Action that a [`LargePart`] asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LargeStep {
    /// Write the next bytes.
    Write {
        /// Number of bytes before these.
        offset: u64,
        /// Bytes.
        bytes: Bytes,
    },
    /// The content is complete: give the file this name, its SHA-256 in hex, and make it durable.
    Keep(String),
    /// The content is complete, and no change has it: remove the file.
    Remove,
}

/// Reason why an attempt to follow failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// No complete response: the network or the peer is at fault.
    #[error("{url}: {source}")]
    Transfer {
        /// URL of the request.
        url: String,
        /// The transfer's error.
        source: TransferError,
    },
    /// The peer responded with an error status.
    #[error("{url}: the server answers {status}{}", after_colon(detail.as_deref()))]
    Status {
        /// URL of the request.
        url: String,
        /// Its status code.
        status: u16,
        /// The peer's reason, if it is known: the detail of a problem document (RFC 9457).
        detail: Option<String>,
    },
    /// The peer's document breaks the protocol.
    #[error("{url}: {reason}")]
    Protocol {
        /// URL of the request.
        url: String,
        /// The violation, and its place in the document.
        reason: String,
    },
    /// A state or a start position that does not fit this feed: the user is at fault.
    #[error("{0}")]
    Usage(String),
}

impl FollowError {
    /// Makes the error of a status, without the peer's reason.
    pub fn status(url: String, status: u16) -> Self {
        Self::Status { url, status, detail: None }
    }
}

/// Returns a detail as it follows a message; nothing without one.
pub fn after_colon(detail: Option<&str>) -> String {
    detail.map(|detail| format!(": {detail}")).unwrap_or_default()
}

/// A request to a follower's callback: a hub's verification or delivery.
#[derive(Debug, Clone)]
pub struct Call {
    /// GET to verify, POST to deliver.
    pub method: Method,
    /// Query string, without its question mark.
    pub query: String,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
}

/// Response to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// Creates a reply without a body.
    pub fn status(status: u16) -> Self {
        Self { status, body: Bytes::new() }
    }
}

/// A state machine that requests documents: a follower or a conformance check.
///
/// See the module's documentation for the order of calls.
pub trait Exchange: Send {
    /// Returns the next request to send, if any. Several may be in flight at once.
    fn poll_request(&mut self, now: Now) -> Option<Request>;

    /// Takes the head of a response.
    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead);

    /// Takes a piece of the body, decoded.
    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes);

    /// Ends a response, complete or cut off. Also called, with an error and without
    /// [`handle_head`](Self::handle_head), for a request that got no response at all.
    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>);

    /// Returns when to call [`poll_request`](Self::poll_request) again although nothing is in flight.
    fn poll_timeout(&self) -> Option<Monotonic>;

    /// Returns whether nothing is left to do. A follower without an end never finishes.
    fn is_finished(&self) -> bool;
}

/// A follower of one protocol.
pub trait Follower: Exchange {
    /// Returns the next event, if any.
    fn poll_event(&mut self) -> Option<Event>;

    /// Responds to a request to the callback. A follower without a callback responds 404.
    fn handle_call(&mut self, _now: Now, _call: &Call) -> Reply {
        // WebSub, section 5.3: a 404 tells the hub that nobody here wants the subscription.
        Reply::status(404)
    }

    /// Returns whether every change up to the last response was output, or the attempt failed.
    fn has_caught_up(&self) -> bool {
        // A follower that waits for a timer has nothing left to request.
        self.poll_timeout().is_some()
    }

    /// Describes the progress of a long initial pass, while there is one.
    fn progress(&self) -> Option<String> {
        None
    }
}

/// A conformance check of one protocol: finished after a bounded number of requests.
pub trait Checker: Exchange {
    /// Returns the findings so far; all of them once [`Exchange::is_finished`].
    fn report(&self) -> &Report;

    /// Responds to a request to the callback, as [`Follower::handle_call`] does.
    fn handle_call(&mut self, _now: Now, _call: &Call) -> Reply {
        Reply::status(404)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry_after(value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", value.parse().unwrap());
        let head = ResponseHead { status: 503, url: "http://x/".into(), headers };
        head.retry_after("1994-11-06T08:49:00Z".parse().unwrap())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("120"), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(37)));
        // RFC 9110, section 5.6.7: recipients must accept the obsolete formats too.
        assert_eq!(retry_after("Sunday, 06-Nov-94 08:49:37 GMT"), Some(Duration::from_secs(37)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        for bad in ["", "soon", "-5", "1.5", "Sun, 99 Nov 1994 08:00:00 GMT"] {
            assert_eq!(retry_after(bad), None, "{bad}");
        }
    }
}
