//! `GET /feeds/{feed}/events`: a feed's changes as server-sent events (HTML, section 9.2).
//!
//! A stream at the head of the log waits in the wait registry, so streams share their responses as long polls do.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::sleep;
use towpath_proto::smart::events::{EVENT_STREAM, KEEP_ALIVE, push_page, stream_query};
use towpath_proto::smart::pull::{FeedSettings, PullPage};
use towpath_proto::smart::query::{PullQuery, QueryError};
use towpath_proto::smart::spec::{FeedOrder, OrderBy, PositionSpec};

use crate::document::route_error::RouteError;
use crate::engine::access::reader_digest;
use crate::engine::{Engine, Feed};
use crate::protocols::smart::wait_registry::TooManyWaiters;
use crate::protocols::smart::{
    Access, PullRequest, PullRequestError, PullResult, SharedFormat, SharedResponse, Smart, settings,
};
use crate::server::response::ResponseBody;
use crate::stop::{Stop, stopped};

/// Longest time that a client may take to read a chunk before its stream is closed.
// A client that stops reading would hold its page in memory for ever.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a stream: after `Last-Event-ID`, else after `since`, else at the head of the log.
pub(in crate::server) async fn events(
    engine: &Arc<Engine>,
    feed: Arc<Feed>,
    access: Access,
    request: &Request<Incoming>,
    stop: &Stop,
) -> Result<Response<ResponseBody>, RouteError> {
    if Smart::of(engine).wait_registry.is_full() {
        return Err(TooManyWaiters.into());
    }
    let settings = settings(engine, &feed);
    let parameters = PullQuery::parse(request.uri().query().unwrap_or_default(), &settings.limits)?;
    // The event id is a cursor of `modified`; `Last-Event-ID` names no order, so there can be one only.
    if parameters.order != FeedOrder::MODIFIED {
        return Err(QueryError::EventsOrder(parameters.order).into());
    }
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok());
    let end = engine.store.head(feed.log()).await?.seq;
    let now = settings.tag.cursor(OrderBy::Modified, end);
    let query = stream_query(last, parameters.since.or(Some(PositionSpec::Cursor(now))), &settings.limits);
    // One place: a slow client must not have pages piling up.
    let (sender, chunks) = mpsc::channel(1);
    let reader = reader_digest(&feed, request.headers());
    let request = PullRequest { engine: engine.clone(), feed, access, reader, query };
    // A task of its own, as hyper polls the body only while it can write.
    tokio::spawn(EventStream { request, sender, stop: stop.clone() }.run().boxed());
    let mut response = Response::new(ResponseBody::channel(chunks));
    *response.headers_mut() = headers();
    Ok(response)
}

fn headers() -> HeaderMap {
    let headers =
        [(CONTENT_TYPE, EVENT_STREAM), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

/// Event stream of one client. It holds at most one page beside the page that is being sent.
struct EventStream {
    request: PullRequest,
    sender: mpsc::Sender<Bytes>,
    stop: Stop,
}

/// End of a stream: the client is gone, the server stops or an error occurred.
struct StreamClosed;

impl EventStream {
    async fn run(mut self) {
        // An id without an event: a client that is cut off before the first event reconnects from this cursor.
        let mut first = b"retry: 2000\n".to_vec();
        if let Some(PositionSpec::Cursor(cursor)) = &self.request.query.since
            // A line break in a client's own cursor would end the field and inject another.
            && cursor.bytes().all(|b| b.is_ascii_graphic())
        {
            first.extend_from_slice(format!("id: {cursor}\n").as_bytes());
        }
        first.push(b'\n');
        if self.send(first.into()).await.is_err() {
            return;
        }
        while self.next().await.is_ok() {}
    }

    async fn send(&self, chunk: Bytes) -> Result<(), StreamClosed> {
        tokio::select! {
            sent = self.sender.send_timeout(chunk, SEND_TIMEOUT) => sent.map_err(|_| StreamClosed),
            () = stopped(&self.stop) => Err(StreamClosed),
        }
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
            Ok(PullResult::Page(page)) => Arc::new(build(&self.request, self.request.settings(), &page)),
            Ok(PullResult::AtHead { after, query }) => {
                let waiter = self.request.join(*query, after, SharedFormat::Events, build);
                let response = self.wait(waiter.map_err(|TooManyWaiters| StreamClosed)?.response()).await?;
                if !self.request.is_still_allowed() {
                    return Err(StreamClosed);
                }
                response
            }
            Err(PullRequestError::Pull(e)) => return Err(self.closed_by(&e)),
            Err(PullRequestError::Store(e)) => return Err(self.closed_by(&e)),
        };
        if let Some(cursor) = &response.cursor {
            self.request.query.since = Some(PositionSpec::Cursor(cursor.clone()));
        }
        if response.body.is_empty() { Ok(()) } else { self.send(response.body.clone()).await }
    }

    /// Waits for a shared response, and sends keep-alive comments meanwhile.
    async fn wait(
        &self,
        response: impl Future<Output = Arc<SharedResponse>>,
    ) -> Result<Arc<SharedResponse>, StreamClosed> {
        tokio::pin!(response);
        loop {
            tokio::select! {
                biased;
                response = &mut response => return Ok(response),
                // Else a client that left would be noticed only at the next append or heartbeat.
                () = self.sender.closed() => return Err(StreamClosed),
                () = stopped(&self.stop) => return Err(StreamClosed),
                // Proxies close silent connections, and a write is what shows that the client is gone.
                () = sleep(self.request.engine.config.server.heartbeat) => {
                    self.send(Bytes::from_static(KEEP_ALIVE)).await?;
                }
            }
        }
    }

    /// Logs an error. The status is sent already, so the client gets the problem when it reconnects.
    fn closed_by(&self, error: &dyn std::fmt::Display) -> StreamClosed {
        tracing::warn!(feed = %self.request.feed.id(), "event stream closed: {error}");
        StreamClosed
    }
}

fn build(request: &PullRequest, feed: &FeedSettings, page: &PullPage) -> SharedResponse {
    let mut body = Vec::new();
    push_page(&mut body, &feed.tag, page);
    SharedResponse {
        headers: HeaderMap::new(),
        body: request.engine.response_memory.hold(body.into()),
        cursor: page.last_cursor.clone(),
        http1: OnceLock::new(),
    }
}
