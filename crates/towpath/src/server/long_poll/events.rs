//! `GET /feeds/{feed}/events`: a feed's changes as server-sent events (HTML, section 9.2).
//!
//! A full server answers with a stream that ends at once and says when to come back (`retry:`): a browser's
//! `EventSource` gives up for good after any status but 200.
//!
//! A stream at the head of the log waits in the wait registry, so streams share their responses as long polls do.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::sleep;
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::events::{EVENT_STREAM, KEEP_ALIVE, push_lines, push_page, stream_query};
use towpath_proto::smart::pull::PullPage;
use towpath_proto::smart::query::{PullQuery, QueryError};
use towpath_proto::smart::spec::{FeedOrder, OrderBy, PositionSpec};

use crate::document::route_error::RouteError;
use crate::engine::access::reader_digest;
use crate::engine::rate_limit::StreamAccount;
use crate::engine::read_link::link_expiry;
use crate::engine::request::parameters;
use crate::engine::{Engine, Feed};
use crate::protocols::smart::wait_registry::TooManyWaiters;
use crate::protocols::smart::{
    Access, BuildResponse, PullRequest, PullRequestError, PullResult, SharedFormat, SharedResponse, Smart,
    settings,
};
use crate::server::expensive::charge_page;
use crate::server::problem::Problem;
use crate::server::response::ResponseBody;
use crate::stop::{Stop, stopped};
use crate::wall_clock;

/// Longest time that a client may take to read a chunk before its stream is closed.
// A client that stops reading would hold its page in memory for ever.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of padding, for clients that ask for it.
const PADDING: usize = 2048;

/// Starts a stream: after `Last-Event-ID`, else after `since`, else at the head of the log.
pub(in crate::server) async fn events(
    engine: &Arc<Engine>,
    feed: Arc<Feed>,
    access: Access,
    request: &Request<Incoming>,
    stop: &Stop,
) -> Result<Response<ResponseBody>, RouteError> {
    let settings = settings(engine, &feed);
    let parameters = PullQuery::parse(request.uri().query().unwrap_or_default(), &settings.limits)?;
    // The event id is a cursor of `modified`; `Last-Event-ID` names no order, so there can be one only.
    if parameters.order != FeedOrder::MODIFIED {
        return Err(QueryError::EventsOrder(parameters.order).into());
    }
    if Smart::of(engine).wait_registry.is_full() {
        return Ok(busy_stream());
    }
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok());
    let form =
        if parameters.format() == Some(PageFormat::Lines) { EventForm::Lines } else { EventForm::Activities };
    let end = engine.store.head(feed.log()).await?.seq;
    let now = settings.tag.cursor(OrderBy::Modified, end);
    let query = stream_query(last, parameters.since.or(Some(PositionSpec::Cursor(now))), &settings.limits);
    // One place: a slow client must not have pages piling up.
    let (sender, chunks) = mpsc::channel(1);
    let (reader, expires) = (reader_digest(&feed, request), link_expiry(request));
    let is_new = last.is_none_or(|id| id.trim().is_empty());
    let (start, account) = (stream_start(request), request.extensions().get::<StreamAccount>());
    let mut request = PullRequest { engine: engine.clone(), feed, access, reader, expires, query };
    // A client that comes back has its position, which is later.
    request.query.last = parameters.last.filter(|_| is_new);
    request.begin_with_last().await?;
    let sender = EventSender { sender, stop: stop.clone(), heartbeat: engine.server.load().heartbeat };
    let account = account.cloned();
    // A task of its own, as hyper polls the body only while it can write.
    tokio::spawn(EventStream { request, sender, form, account }.run(start).boxed());
    Ok(response(ResponseBody::channel(chunks)))
}

/// Returns a response with an event stream.
pub(super) fn response(body: ResponseBody) -> Response<ResponseBody> {
    let headers = [
        (CONTENT_TYPE, EVENT_STREAM),
        // A proxy that compresses holds events back until its buffer is full.
        (CACHE_CONTROL, "no-store, no-transform"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // nginx buffers responses unless it is told not to.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let mut response = Response::new(body);
    let headers = headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value)));
    *response.headers_mut() = headers.collect();
    response
}

/// Returns a stream that ends at once, and has the client come back after 5 to 15 seconds.
pub(super) fn busy_stream() -> Response<ResponseBody> {
    // Spread, or all that were refused would come back together.
    let wait = fastrand::u32(5_000..15_000);
    let text = format!("retry: {wait}\n: too many clients are waiting, please come back\n\n");
    response(ResponseBody::from(Bytes::from(text)))
}

/// Beginning of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamStart {
    Plain,
    /// With padding, by which proxies that hold back the first kilobytes begin to send.
    Padded,
}

/// Returns the beginning that the client asks for.
pub(super) fn stream_start(request: &Request<Incoming>) -> StreamStart {
    let is_padded = parameters(request.uri().query()).any(|(name, _)| name == "padding");
    if is_padded { StreamStart::Padded } else { StreamStart::Plain }
}

/// Appends the beginning of a stream: how soon to come back, padding if need be, and the position so far.
pub(super) fn push_start(out: &mut Vec<u8>, start: StreamStart, id: Option<&str>) {
    if start == StreamStart::Padded {
        out.push(b':');
        out.resize(out.len() + PADDING, b' ');
        out.push(b'\n');
    }
    out.extend_from_slice(b"retry: 2000\n");
    // An id without an event: a client that is cut off before the first event reconnects from this cursor.
    if let Some(id) = id {
        out.extend_from_slice(format!("id: {id}\n").as_bytes());
    }
    out.push(b'\n');
}

/// Form of a stream's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventForm {
    /// Objects of Activity Streams, as pages have them.
    Activities,
    /// Lines.
    Lines,
}

impl EventForm {
    /// Returns the format of shared responses, and the function that builds them.
    pub(super) fn shared(self) -> (SharedFormat, BuildResponse) {
        match self {
            Self::Activities => (SharedFormat::Events, |request, feed, page| {
                build(request, page, |out| push_page(out, &feed.tag, page))
            }),
            Self::Lines => (SharedFormat::LineEvents, |request, feed, page| {
                build(request, page, |out| push_lines(out, feed, page))
            }),
        }
    }
}

/// Sending side of a stream.
pub(super) struct EventSender {
    pub(super) sender: mpsc::Sender<Bytes>,
    pub(super) stop: Stop,
    pub(super) heartbeat: Duration,
}

/// Event stream of one client. It holds at most one page beside the page that is being sent.
struct EventStream {
    request: PullRequest,
    sender: EventSender,
    form: EventForm,
    account: Option<StreamAccount>,
}

/// End of a stream: the client is gone, the server stops or an error occurred.
pub(super) struct StreamClosed;

impl EventStream {
    async fn run(mut self, start: StreamStart) {
        let mut first = Vec::new();
        let id = match &self.request.query.since {
            // A line break in a client's own cursor would end the field and inject another.
            Some(PositionSpec::Cursor(cursor)) if cursor.bytes().all(|b| b.is_ascii_graphic()) => {
                Some(&**cursor)
            }
            _ => None,
        };
        push_start(&mut first, start, id);
        if self.sender.send(first.into()).await.is_err() {
            return;
        }
        while self.next().await.is_ok() {}
    }

    /// Sends the next page, now or after the next append.
    async fn next(&mut self) -> Result<(), StreamClosed> {
        let response = match self.request.run().await {
            // The client sends its token again, and learns that it is not valid any more.
            _ if !self.request.is_still_allowed() => return Err(StreamClosed),
            // Clients that read nothing hold the memory. This one continues later, from its last event.
            Ok(PullResult::Page(_)) if self.request.engine.response_memory.is_exceeded() => {
                return Err(StreamClosed);
            }
            Ok(PullResult::Page(page)) => {
                let (_, build) = self.form.shared();
                let response = build(&self.request, self.request.settings(), &page);
                charge_page(&self.request.engine, self.account.as_ref(), response.body.len());
                Arc::new(response)
            }
            Ok(PullResult::AtHead { after, query }) => {
                let (format, build) = self.form.shared();
                let waiter = self.request.join(*query, after, format, build);
                let waiter = waiter.map_err(|TooManyWaiters| StreamClosed)?;
                let response = self.sender.wait(waiter.response(), self.request.expires).await?;
                if !self.request.is_still_allowed() {
                    return Err(StreamClosed);
                }
                response
            }
            Err(PullRequestError::Pull(e)) => return Err(self.closed_by(&e)),
            Err(PullRequestError::Store(e)) => return Err(self.closed_by(&e)),
        };
        if let Some(error) = &response.error {
            return self.sender.end(error).await;
        }
        if let Some(cursor) = &response.cursor {
            self.request.query.since = Some(PositionSpec::Cursor(cursor.clone()));
        }
        if response.body.is_empty() {
            return Ok(());
        }
        self.request.engine.metrics.deliveries.events.inc();
        self.sender.send(response.body.clone()).await
    }

    /// Logs an error. The status is sent already, so the client gets the problem when it reconnects.
    fn closed_by(&self, error: &dyn std::fmt::Display) -> StreamClosed {
        tracing::warn!(feed = %self.request.feed.id(), %error, "event stream closed");
        StreamClosed
    }
}

impl EventSender {
    /// Sends a chunk; an error once the client is gone or too slow.
    pub(super) async fn send(&self, chunk: Bytes) -> Result<(), StreamClosed> {
        tokio::select! {
            sent = self.sender.send_timeout(chunk, SEND_TIMEOUT) => sent.map_err(|_| StreamClosed),
            () = stopped(&self.stop) => Err(StreamClosed),
        }
    }

    /// Ends a stream with an event that has the reason, as the problem document that a request gets from now on.
    ///
    /// It has no id, so the client's position stays.
    pub(super) async fn end(&self, error: &RouteError) -> Result<(), StreamClosed> {
        let problem = Problem::from(error.clone()).response().body;
        let event = [b"event: gone\ndata: ", &problem[..], b"\n\n"].concat();
        self.send(event.into()).await?;
        Err(StreamClosed)
    }

    /// Waits for a response, and sends keep-alive comments meanwhile. The stream ends when its read link expires.
    pub(super) async fn wait<T>(
        &self,
        response: impl Future<Output = T>,
        expires: Option<Timestamp>,
    ) -> Result<T, StreamClosed> {
        tokio::pin!(response);
        loop {
            let left = expires.map(|expires| Duration::try_from(expires.duration_since(wall_clock::now())));
            // A duration below zero is no `Duration`: the link has expired.
            let left = left.map_or(Duration::MAX, Result::unwrap_or_default);
            if left.is_zero() {
                return Err(StreamClosed);
            }
            tokio::select! {
                biased;
                response = &mut response => return Ok(response),
                // Else a client that left would be noticed only at the next append or heartbeat.
                () = self.sender.closed() => return Err(StreamClosed),
                () = stopped(&self.stop) => return Err(StreamClosed),
                // Proxies close silent connections, and a write is what shows that the client is gone.
                () = sleep(self.heartbeat.min(left)) => self.send(Bytes::from_static(KEEP_ALIVE)).await?,
            }
        }
    }
}

fn build(request: &PullRequest, page: &PullPage, push: impl FnOnce(&mut Vec<u8>)) -> SharedResponse {
    let mut body = Vec::new();
    push(&mut body);
    SharedResponse {
        headers: HeaderMap::new(),
        body: request.engine.response_memory.hold(body.into()),
        error: None,
        cursor: page.last_cursor.clone(),
        http1: OnceLock::new(),
    }
}
