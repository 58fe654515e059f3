//! `/feeds/{feed}/events`: a feed's changes as Server-Sent Events (HTML, section 9.2), from those who wait.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::sleep;
use towpath_proto::smart::events::{EVENT_STREAM, KEEP_ALIVE, push_page, stream_query};
use towpath_proto::smart::pull::{FeedSettings, Page};
use towpath_proto::smart::query::{PullQuery, QueryError};
use towpath_proto::smart::spec::{By, Order, Spec};

use super::body::ReplyBody;
use super::problem::Problem;
use crate::engine::smart::{Access, AskError, Asked, Form, Full, Outcome, Told};
use crate::engine::{Engine, Feed};
use crate::stop::{Stop, stopped};

/// Tells those who wait for events from those who wait for pages.
const FORM: Form = 2;
/// How long a client may take to read what it was sent, before its stream ends.
const SLOWEST: Duration = Duration::from_secs(60);

/// Begins a stream: after `Last-Event-ID`, else after `since`, else with what comes from now on.
pub(super) async fn events(
    engine: &Arc<Engine>,
    feed: Arc<Feed>,
    access: Access,
    request: &Request<Incoming>,
    stop: &Stop,
) -> Result<Response<ReplyBody>, Problem> {
    if engine.smart.waiters.is_full() {
        return Err(Full.into());
    }
    let settings = feed.settings(engine);
    let asked = PullQuery::parse(request.uri().query().unwrap_or_default(), &settings.limits)?;
    if asked.order != Order::MODIFIED {
        return Err(QueryError::EventsOrder(asked.order).into());
    }
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok());
    let end = engine.store.head(feed.log()).await?.seq;
    let now = settings.tag.cursor(By::Modified, end);
    let query = stream_query(last, asked.since.or(Some(Spec::Cursor(now))), &settings.limits);
    let (sender, chunks) = mpsc::channel(1);
    let asked = Asked { engine: engine.clone(), feed, access, query };
    tokio::spawn(Stream { asked, sender, stop: stop.clone() }.run());
    let mut response = Response::new(ReplyBody::channel(chunks));
    *response.headers_mut() = headers();
    Ok(response)
}

fn headers() -> HeaderMap {
    let headers =
        [(CONTENT_TYPE, EVENT_STREAM), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

/// One client's stream. Holds one page at the most beside the one on its way.
struct Stream {
    asked: Asked,
    sender: mpsc::Sender<Bytes>,
    stop: Stop,
}

/// The stream is over: the client is gone, or the server stops.
struct Over;

impl Stream {
    async fn run(mut self) {
        // An id without an event: whoever is cut off before the first one goes on from here.
        let mut first = b"retry: 2000\n".to_vec();
        if let Some(Spec::Cursor(cursor)) = &self.asked.query.since
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

    async fn send(&self, chunk: Bytes) -> Result<(), Over> {
        tokio::select! {
            sent = self.sender.send_timeout(chunk, SLOWEST) => sent.map_err(|_| Over),
            () = stopped(&self.stop) => Err(Over),
        }
    }

    /// The next page, now or when it comes.
    async fn next(&mut self) -> Result<(), Over> {
        let told = match self.asked.run().await {
            Ok(Outcome::Page(page)) => Arc::new(told(&self.asked, self.asked.settings(), &page)),
            Ok(Outcome::Wait { after, query }) => {
                let seat = self.asked.join(*query, after, FORM, told).map_err(|Full| Over)?;
                self.wait(seat.answer()).await?
            }
            Err(AskError::Pull(e)) => return Err(self.broken(&e)),
            Err(AskError::Store(e)) => return Err(self.broken(&e)),
        };
        if let Some(cursor) = &told.cursor {
            self.asked.query.since = Some(Spec::Cursor(cursor.clone()));
        }
        if told.body.is_empty() { Ok(()) } else { self.send(told.body.clone()).await }
    }

    async fn wait(&self, answer: impl Future<Output = Arc<Told>>) -> Result<Arc<Told>, Over> {
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                told = &mut answer => return Ok(told),
                () = self.sender.closed() => return Err(Over),
                () = stopped(&self.stop) => return Err(Over),
                () = sleep(self.asked.engine.config.server.heartbeat) => {
                    self.send(Bytes::from_static(KEEP_ALIVE)).await?;
                }
            }
        }
    }

    /// There is no status to send any more: the client comes again, and is told then.
    fn broken(&self, error: &dyn std::fmt::Display) -> Over {
        tracing::warn!(feed = %self.asked.feed.id(), "an event stream broke off: {error}");
        Over
    }
}

fn told(_asked: &Asked, feed: &FeedSettings, page: &Page) -> Told {
    let mut body = Vec::new();
    push_page(&mut body, &feed.tag, page);
    Told {
        headers: HeaderMap::new(),
        body: body.into(),
        cursor: page.last_cursor.clone(),
        written: OnceLock::new(),
    }
}
