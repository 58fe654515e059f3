//! What every follower shares: requests out, responses in, events out.
//!
//! A follower is a state machine without sockets or clock. Its driver calls, in this order, over and over:
//!
//! 1. [`Follower::poll_event`] until it is empty: hand the changes over, flush them, then keep the last
//!    [`Event::Checkpoint`];
//! 2. [`Exchange::poll_request`] until it is empty: send each request;
//! 3. for each response [`Exchange::handle_head`], [`Exchange::handle_chunk`] for every piece of the body,
//!    and [`Exchange::handle_end`] once;
//! 4. with no request under way, wait until [`Exchange::poll_timeout`] and begin again; finished when
//!    [`Exchange::is_finished`].

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;
use serde_json::Value;

use crate::change::Op;
use crate::format::http_date;
use crate::item::{Content, Item};
use crate::line::Line;
use crate::report::Report;

/// Where to begin a feed that has not been followed before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// With everything that the publisher still has.
    #[default]
    Beginning,
    /// With what comes after now.
    Now,
    /// With what was modified at this time or later.
    Time(Timestamp),
    /// After this position, a cursor or Content-ID of the publisher's.
    Position(String),
}

/// The follower's own number for a request, returned with every part of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request that the driver is to send.
#[derive(Debug, Clone)]
pub struct Request {
    /// To be handed back with the response.
    pub id: RequestId,
    /// GET, HEAD or POST.
    pub method: Method,
    /// Absolute.
    pub url: String,
    /// Beside what the driver adds (Host, User-Agent, Accept-Encoding).
    pub headers: HeaderMap,
    /// Empty but for POST.
    pub body: Bytes,
    /// The largest body to accept, in bytes after decoding; [`TransferError::TooLarge`] beyond.
    pub max_body: u64,
    /// How long the publisher may take to begin its answer.
    pub patience: Duration,
    /// Asked ahead of time: the answer is not to be handed over, nor its body read, before this request has
    /// ended.
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
            max_body: 64 << 20,
            patience: Duration::from_secs(60),
            after: None,
        }
    }

    /// The same with a header; a value that cannot stand in a header is left out.
    #[must_use]
    pub fn with(mut self, name: http::HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }
}

/// What a response says before its body.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// The address that answered, after redirects.
    pub url: String,
    /// All headers.
    pub headers: HeaderMap,
}

impl ResponseHead {
    /// A header as text, where it is there once and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Whether the server says that it may be behind others which have the same: `Towpath-Replica-Age`, which a node of
    /// a cluster adds while it does not know what the others have. What is missing there need not be gone.
    pub fn is_stale(&self) -> bool {
        self.headers.contains_key("towpath-replica-age")
    }

    /// See [`retry_after`].
    pub fn retry_after(&self, now: Timestamp) -> Option<Duration> {
        retry_after(&self.headers, now)
    }
}

/// The wait that `Retry-After` asks for (RFC 9110, section 10.2.3): seconds or a date. `None` where there is
/// none or it is neither; zero where the date has passed. It may be longer than anybody lives: whoever waits
/// has a limit of his own.
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let date = http_date::parse(value).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

/// Why a response did not arrive whole. Whose fault: the network's, or the peer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No connection, or it broke before the answer.
    #[error("cannot reach it: {0}")]
    Connect(String),
    /// Nothing came for too long.
    #[error("timed out: {0}")]
    Timeout(String),
    /// The body ended before its announced end, or its compression is broken.
    #[error("the body was cut off or damaged: {0}")]
    Body(String),
    /// The body is larger than [`Request::max_body`].
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: u64,
    },
    /// More redirects than allowed, or one to an address that cannot be followed.
    #[error("redirected in vain: {0}")]
    Redirect(String),
    /// The address is not one that can be asked.
    #[error("not an address to fetch: {0}")]
    Url(String),
}

/// A change that a publisher told of.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// The feed's name at its publisher, or its address.
    pub feed: String,
    /// What the change does.
    pub op: Op,
    /// The whole item for a put; for a patch and a deletion at least its id.
    pub item: Item,
    /// The patch, for a patch.
    pub patch: Option<Content>,
    /// When the publisher says it was made.
    pub modified: Option<Timestamp>,
    /// The place in the publisher's order (cursor, Content-ID), from which following can go on.
    pub position: String,
    /// The entry's own name in the feed (Content-ID), which a mirror keeps.
    pub entry_id: Option<String>,
}

impl Followed {
    /// The line that `follow` prints.
    pub fn line(&self) -> Line {
        let mut line = Line::new(self.op, &self.item, self.patch.as_ref());
        line.feed = Some(self.feed.clone());
        line.modified = self.modified;
        line.position = Some(self.position.clone());
        line
    }
}

/// What a follower tells its driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A change to hand over.
    Change(Box<Followed>),
    /// Everything before this has been told: keep `Value` once it has been handed over, and give it to the
    /// follower's constructor to go on from here.
    Checkpoint(Value),
    /// Something a person should know; following goes on.
    Warning(String),
    /// Items were missed that the publisher cannot give any more. Following goes on; exit code 3.
    Incomplete(String),
    /// This attempt failed; following goes on later, except where only one pass was asked for.
    Failed(FollowError),
}

/// Why an attempt to follow failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The network's or the peer's fault: no whole answer.
    #[error("{url}: {source}")]
    Transfer {
        /// What was asked.
        url: String,
        /// What happened.
        source: TransferError,
    },
    /// The peer answered with an error status.
    #[error("{url}: the server answers {status}")]
    Status {
        /// What was asked.
        url: String,
        /// Its status code.
        status: u16,
    },
    /// The peer's document breaks the protocol.
    #[error("{url}: {reason}")]
    Protocol {
        /// What was asked.
        url: String,
        /// What is wrong, and where in the document.
        reason: String,
    },
    /// The user's fault: a state or a start that does not fit this feed.
    #[error("{0}")]
    Usage(String),
}

/// What somebody else sends to a follower: a hub its questions and deliveries.
#[derive(Debug, Clone)]
pub struct Call {
    /// GET to ask, POST to deliver.
    pub method: Method,
    /// The query string, without its question mark.
    pub query: String,
    /// The request's headers.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// An answer without a body.
    pub fn status(status: u16) -> Self {
        Self { status, body: Bytes::new() }
    }
}

/// A state machine that asks for documents: what a follower and a conformance check have in common, and all
/// that a driver needs to carry its requests. See the module's text for the order of calls.
pub trait Exchange: Send {
    /// The next request to send, if any. Several may be under way at once.
    fn poll_request(&mut self, now: Timestamp) -> Option<Request>;

    /// The answer to a request has begun.
    fn handle_head(&mut self, now: Timestamp, id: RequestId, head: ResponseHead);

    /// A piece of the body, decoded.
    fn handle_chunk(&mut self, now: Timestamp, id: RequestId, chunk: Bytes);

    /// The body is complete, or will never be. Also called, with an error and without
    /// [`handle_head`](Self::handle_head), for a request that got no answer at all.
    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>);

    /// When to call [`poll_request`](Self::poll_request) again although nothing is under way.
    fn poll_timeout(&self) -> Option<Timestamp>;

    /// Whether there is nothing left to do. What was made to go on for ever never finishes.
    fn is_finished(&self) -> bool;
}

/// A follower of one protocol.
pub trait Follower: Exchange {
    /// The next thing to tell, if any.
    fn poll_event(&mut self) -> Option<Event>;

    /// Answers what somebody else sends. A follower that only asks has nothing to answer: 404.
    fn handle_call(&mut self, _now: Timestamp, _call: &Call) -> Reply {
        Reply::status(404)
    }

    /// Whether everything that there was at the last answer has been told, or the attempt failed.
    fn has_caught_up(&self) -> bool {
        self.poll_timeout().is_some()
    }

    /// How far a long beginning has come, in words, while there is one.
    fn progress(&self) -> Option<String> {
        None
    }
}

/// A conformance check of one protocol: finished after a bounded number of requests.
pub trait Checker: Exchange {
    /// What was found so far; everything once [`Exchange::is_finished`].
    fn report(&self) -> &Report;

    /// Answers what somebody else sends, as [`Follower::handle_call`] does.
    fn handle_call(&mut self, _now: Timestamp, _call: &Call) -> Reply {
        Reply::status(404)
    }
}
