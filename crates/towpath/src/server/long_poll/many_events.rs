//! `GET /feeds/events?feed=a&feed=b`: the changes of several feeds as one stream of server-sent events.
//!
//! Each event's data is a line, whose `feed` tells where it belongs. Its id is the positions of all feeds, so that
//! `Last-Event-ID` resumes all of them. Each feed waits in the wait registry, as streams of one feed do.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::select_all;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use towpath_proto::smart::cursor;
use towpath_proto::smart::events::stream_query;
use towpath_proto::smart::query::PullQuery;
use towpath_proto::smart::spec::{OrderBy, PositionSpec};

use crate::document::route_error::RouteError;
use crate::engine::access::{may_read, reader_digest};
use crate::engine::rate_limit::StreamAccount;
use crate::engine::request::{gone_feed, parameters};
use crate::engine::{Engine, Feed};
use crate::protocols::smart::{Access, PullRequest, PullResult, PullWaiter, SharedResponse, Smart, settings};
use crate::server::expensive::charge_page;
use crate::server::long_poll::events::{
    EventForm, EventSender, StreamClosed, StreamStart, busy_stream, push_start, response, stream_start,
};
use crate::server::response::ResponseBody;
use crate::stop::Stop;

/// Limit of feeds in one stream.
// The id of each event has a position of every feed.
const MAX_FEEDS: usize = 64;

/// Returns true if a request is for a stream of several feeds, and not for the page of a feed named `events`.
pub(in crate::server) fn is_for_many(query: Option<&str>) -> bool {
    parameters(query).any(|(name, _)| name == "feed")
}

/// Starts a stream: after `Last-Event-ID`, else with the `last` items of each feed, else at the head of each log.
pub(in crate::server) async fn many_events(
    engine: &Arc<Engine>,
    request: &Request<Incoming>,
    stop: &Stop,
) -> Result<Response<ResponseBody>, RouteError> {
    let feeds = feeds(engine, request)?;
    if Smart::of(engine).wait_registry.is_full() {
        return Ok(busy_stream());
    }
    let last = request.headers().get("last-event-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    let mut members = Vec::new();
    for (feed, access) in feeds {
        members.push(Member::new(engine, feed, access, last.trim(), request).await?);
    }
    let (sender, chunks) = mpsc::channel(1);
    let sender = EventSender { sender, stop: stop.clone(), heartbeat: engine.server.load().heartbeat };
    tokio::spawn(ManyEvents { members, sender }.run(stream_start(request)).boxed());
    Ok(response(ResponseBody::channel(chunks)))
}

/// Returns the feeds that a request names, if it may read all of them.
fn feeds(engine: &Engine, request: &Request<Incoming>) -> Result<Vec<(Arc<Feed>, Access)>, RouteError> {
    let named = parameters(request.uri().query()).filter(|(name, _)| name == "feed").map(|(_, feed)| feed);
    let names: BTreeSet<_> = named.take(MAX_FEEDS + 1).collect();
    if names.len() > MAX_FEEDS {
        return Err(RouteError::bad_request(format!("more than {MAX_FEEDS} feeds; open several streams")));
    }
    let tokens = engine.tokens.load();
    let find = |name: &str| {
        let feed = engine.feed(name)?;
        let access = may_read(&feed, &tokens, request.headers()).ok()?;
        Some((feed, access))
    };
    let found = names.iter().map(|name| {
        // One answer for both: which private feeds exist is not for strangers.
        find(name).ok_or_else(|| {
            if let Some(removed) = engine.removed_feed(name).filter(|removed| removed.is_public) {
                return gone_feed(name, &removed).about("feed");
            }
            let name: String = name.chars().take(64).collect();
            RouteError::not_found(format!("there is no feed {name:?} that this request may read"))
                .about("feed")
        })
    });
    found.collect()
}

/// Feed of a stream.
struct Member {
    request: PullRequest,
    /// Position of the client in this feed.
    position: String,
    waiter: Option<PullWaiter>,
    account: Option<StreamAccount>,
}

impl Member {
    async fn new(
        engine: &Arc<Engine>,
        feed: Arc<Feed>,
        access: Access,
        last_id: &str,
        request: &Request<Incoming>,
    ) -> Result<Self, RouteError> {
        let settings = settings(engine, &feed);
        let mut parameters = parameters(request.uri().query()).filter(|(name, _)| name == "last");
        let last = parameters.next().map(|(_, last)| format!("last={last}")).unwrap_or_default();
        let last = PullQuery::parse(&last, &settings.limits)?.last;
        let head = engine.store.head(feed.log()).await?.seq;
        let now = settings.tag.cursor(OrderBy::Modified, head);
        // A cursor is read by its own feed only, so the order of the feeds in the id does not matter.
        let own = last_id.split(',').find(|id| cursor::read(id, &settings.tag, OrderBy::Modified).is_some());
        // An id that has no position of this feed degrades as that of a single feed: everything is sent again.
        let resume = own.or(Some("?").filter(|_| !last_id.is_empty()));
        let query = stream_query(resume, Some(PositionSpec::Cursor(now)), &settings.limits);
        let reader = reader_digest(&feed, request);
        let account = request.extensions().get::<StreamAccount>().cloned();
        let mut request = PullRequest { engine: engine.clone(), feed, access, reader, expires: None, query };
        request.query.last = last.filter(|_| resume.is_none());
        request.begin_with_last().await?;
        let position = match &request.query.since {
            Some(PositionSpec::Cursor(cursor)) => cursor.clone(),
            _ => String::new(),
        };
        Ok(Self { request, position, waiter: None, account })
    }

    /// Returns the next page if there is one, else waits in the registry.
    async fn run(&mut self) -> Result<Option<Arc<SharedResponse>>, StreamClosed> {
        let (format, build) = EventForm::Lines.shared();
        let result = self.request.run().await;
        if !self.request.is_still_allowed() {
            return Err(StreamClosed);
        }
        match result {
            Ok(PullResult::Page(_)) if self.request.engine.response_memory.is_exceeded() => Err(StreamClosed),
            Ok(PullResult::Page(page)) => {
                let response = build(&self.request, self.request.settings(), &page);
                charge_page(&self.request.engine, self.account.as_ref(), response.body.len());
                Ok(Some(Arc::new(response)))
            }
            Ok(PullResult::AtHead { after, query }) => {
                let waiter = self.request.join(*query, after, format, build);
                self.waiter = Some(waiter.map_err(|_| StreamClosed)?);
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(feed = %self.request.feed.id(), %error, "event stream closed");
                Err(StreamClosed)
            }
        }
    }
}

/// Stream of several feeds to one client.
struct ManyEvents {
    members: Vec<Member>,
    sender: EventSender,
}

impl ManyEvents {
    async fn run(mut self, start: StreamStart) {
        let mut first = Vec::new();
        push_start(&mut first, start, Some(&self.id()));
        if self.sender.send(first.into()).await.is_err() {
            return;
        }
        while self.next().await.is_ok() {}
    }

    /// Returns the id of an event: the positions of all feeds.
    fn id(&self) -> String {
        let positions: Vec<&str> = self.members.iter().map(|member| member.position.as_str()).collect();
        positions.join(",")
    }

    /// Sends what each feed has, and waits for the first that grows.
    async fn next(&mut self) -> Result<(), StreamClosed> {
        for index in 0..self.members.len() {
            while self.members[index].waiter.is_none() {
                if let Some(page) = self.members[index].run().await? {
                    self.send(index, &page).await?;
                }
            }
        }
        let waiting = self.members.iter().filter_map(|member| member.waiter.as_ref());
        let grown = select_all(waiting.map(|waiter| waiter.response().boxed()));
        let (page, index, _) = self.sender.wait(grown, None).await?;
        self.members[index].waiter = None;
        if !self.members[index].request.is_still_allowed() {
            return Err(StreamClosed);
        }
        self.send(index, &page).await
    }

    /// Sends a page of a feed, with the positions of all feeds as the ids of its events.
    async fn send(&mut self, index: usize, page: &SharedResponse) -> Result<(), StreamClosed> {
        if let Some(error) = &page.error {
            return self.sender.end(error).await;
        }
        let text = String::from_utf8_lossy(&page.body);
        let mut out = String::with_capacity(text.len() + 64);
        // Lines of JSON have no line ends inside, so an empty line ends an event.
        for event in text.split_terminator("\n\n") {
            let (id, rest) =
                event.strip_prefix("id: ").and_then(|event| event.split_once('\n')).unwrap_or(("", event));
            id.clone_into(&mut self.members[index].position);
            out.push_str("id: ");
            out.push_str(&self.id());
            out.push('\n');
            out.push_str(rest);
            out.push_str("\n\n");
        }
        if let Some(cursor) = &page.cursor {
            let member = &mut self.members[index];
            cursor.clone_into(&mut member.position);
            member.request.query.since = Some(PositionSpec::Cursor(cursor.clone()));
        }
        if out.is_empty() {
            return Ok(());
        }
        self.members[index].request.engine.metrics.deliveries.events.inc();
        self.sender.send(Bytes::from(out)).await
    }
}
