//! `GET /feeds/{feed}/items`: pages of a feed as its query asks for them, held while there are none.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep_until};
use towpath_proto::change::Seq;
use towpath_proto::smart::accept::{PageFormat, negotiate};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, Page};
use towpath_proto::smart::query::PullQuery;

use super::document::{Answer, Document, Negotiated, Valid};
use super::problem::Problem;
use super::rearm::Rearm;
use crate::engine::smart::{Access, Asked, Form, Outcome, Render, Seat, Told};
use crate::engine::{Engine, Feed};
use crate::stop::{Stop, stopped};

/// A pull's answer, or its waiting.
pub(super) enum Pulled {
    Now(Arc<Document>),
    Held(Held),
}

/// Answers a pull request, or takes a seat among those who wait.
pub(super) async fn items(
    engine: &Arc<Engine>,
    feed: Arc<Feed>,
    access: Access,
    request: &Request<Incoming>,
) -> Result<Pulled, Problem> {
    let mut query =
        PullQuery::parse(request.uri().query().unwrap_or_default(), &feed.settings(engine).limits)?;
    let format = match query.format() {
        Some(format) => format,
        None => format(request.headers(), query.callback.is_some())?,
    };
    if request.method() == Method::HEAD {
        query.timeout = std::time::Duration::ZERO;
    }
    let place = place(request, format);
    // In memory there are answers to everybody only.
    if feed.config.is_public()
        && let Some(document) = engine.documents.get(&place)
    {
        return Ok(Pulled::Now(document));
    }
    // Taken before anything is read: an answer that was overtaken meanwhile is not kept.
    let (head, seq) = (feed.head.clone(), feed.head.load(Ordering::Acquire));
    let asked = Asked { engine: engine.clone(), feed, access, query };
    match asked.run().await? {
        Outcome::Page(page) => {
            let (headers, body) = render(&asked, asked.settings(), &page, format);
            let document = Document::new(body, headers, Valid::At { head, seq });
            // A format that the address fixes is everybody's, whatever they accept.
            let document = match asked.query.format() {
                Some(_) => document,
                None => document.for_those_who(accepts(format, asked.query.callback.is_some())),
            };
            Ok(Pulled::Now(engine.documents.put_answer(&place, document)))
        }
        Outcome::Wait { after, query } => {
            let (form, render) = form(format);
            let seat = asked.join(*query, after, form, render)?;
            Ok(Pulled::Held(Held { seat, after, deadline: asked.deadline(), format, asked: Arc::new(asked) }))
        }
    }
}

fn format(headers: &HeaderMap, script: bool) -> Result<PageFormat, Problem> {
    // Several header lines are one list (RFC 9110, section 5.3).
    let lines: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let accept = (!lines.is_empty()).then(|| lines.join(","));
    negotiate(accept.as_deref(), script).ok_or_else(|| {
        Problem::not_acceptable("this feed is there as application/json and as application/atom+xml")
    })
}

/// Where an answer is kept: JSON where the fast path finds it, Atom beside it. A HEAD's has a place of its own: a
/// GET might have to wait for its answer.
fn place(request: &Request<Incoming>, format: PageFormat) -> String {
    let mut place = request.uri().path_and_query().map_or("", |address| address.as_str()).to_owned();
    if format == PageFormat::Atom {
        place.push_str("#atom");
    }
    if request.method() == Method::HEAD {
        place.push_str("#now");
    }
    place
}

fn accepts(format: PageFormat, script: bool) -> Negotiated {
    match (format, script) {
        (PageFormat::Json, false) => |accept| negotiate(accept, false) == Some(PageFormat::Json),
        (PageFormat::Json, true) => |accept| negotiate(accept, true) == Some(PageFormat::Json),
        (PageFormat::Atom, false) => |accept| negotiate(accept, false) == Some(PageFormat::Atom),
        (PageFormat::Atom, true) => |accept| negotiate(accept, true) == Some(PageFormat::Atom),
    }
}

/// How pages of a format are made for those who wait.
fn form(format: PageFormat) -> (Form, Render) {
    match format {
        PageFormat::Json => (0, |asked, feed, page| told(asked, feed, page, PageFormat::Json)),
        PageFormat::Atom => (1, |asked, feed, page| told(asked, feed, page, PageFormat::Atom)),
    }
}

fn told(asked: &Asked, feed: &FeedSettings, page: &Page, format: PageFormat) -> Told {
    let (mut headers, body) = render(asked, feed, page, format);
    asked.engine.announcer.announce(asked.feed.id(), &mut headers);
    Told { headers, body, cursor: page.last_cursor.clone(), written: OnceLock::new() }
}

fn render(asked: &Asked, feed: &FeedSettings, page: &Page, format: PageFormat) -> (HeaderMap, Bytes) {
    let (mut parts, body) = publish::respond(feed, &asked.query, page, format).into_parts();
    // Only to be compared with itself: a sum of the bytes is enough.
    let tag = format!("\"{:x}-{:08x}\"", body.len(), crc32fast::hash(&body));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        parts.headers.insert(ETAG, tag);
    }
    if !asked.feed.config.is_public() {
        parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    }
    (parts.headers, body)
}

/// A pull that waits for its feed to move.
pub(super) struct Held {
    seat: Seat,
    /// Where the log ended.
    after: Seq,
    deadline: Instant,
    format: PageFormat,
    asked: Arc<Asked>,
}

impl Held {
    /// One that waits as another does or did; `None` where there may be an answer by now, or no room.
    pub(super) fn again(rearm: &Rearm) -> Option<Self> {
        let Rearm { asked, format, after, company } = rearm;
        let seat = asked.join_again(company, *after)?;
        asked.engine.metrics.routed.inc();
        asked.engine.metrics.rearmed.inc();
        Some(Self { seat, after: *after, deadline: asked.deadline(), format: *format, asked: asked.clone() })
    }

    /// What another needs to wait as this one does.
    pub(super) fn rearm(&self) -> Rearm {
        let (asked, company) = (self.asked.clone(), self.seat.company());
        Rearm { asked, format: self.format, after: self.after, company }
    }

    /// Until when it waits.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The answer of all who wait alike, once the feed has moved.
    pub(super) fn poll_told(&self, context: &Context<'_>) -> Poll<Arc<Told>> {
        self.seat.poll(context)
    }

    /// Returns the answer once there is one: with items when the feed moves, without at the deadline and when
    /// the server stops.
    pub(super) async fn answer(self, stop: &Stop) -> Answer {
        tokio::select! {
            biased;
            told = self.seat.answer() => return told.answer(),
            () = sleep_until(self.deadline) => {}
            () = stopped(stop) => {}
        }
        self.own_answer().await
    }

    /// The answer that is not to wait any longer: it echoes the client's own cursor, mostly.
    pub(super) async fn own_answer(self) -> Answer {
        let Self { seat, format, asked, .. } = self;
        drop(seat);
        let mut answer = match Asked::clone(&asked).at_once().await {
            Ok(page) => {
                let (headers, body) = render(&asked, asked.settings(), &page, format);
                Answer { status: StatusCode::OK, headers, body }
            }
            Err(error) => Problem::from(error).answer(),
        };
        asked.engine.announcer.announce(asked.feed.id(), &mut answer.headers);
        answer
    }
}

impl Told {
    /// As one client's.
    pub(super) fn answer(&self) -> Answer {
        Answer { status: StatusCode::OK, headers: self.headers.clone(), body: self.body.clone() }
    }
}
