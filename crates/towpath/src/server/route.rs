//! Which request is answered by what.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use super::body::ReplyBody;
use super::connection::respond;
use super::document::{Answer, Document};
use super::problem::Problem;
use super::smart::{Held, Pulled};
use super::{auth, events, history, hub, items, pages, replica, replication, smart, sup};
use crate::blocking::blocking;
use crate::engine::diffdelta::served;
use crate::engine::smart::Access;
use crate::engine::{Engine, Feed};
use crate::stop::Stop;

/// What a request leads to.
pub(super) enum Routed {
    /// An answer.
    Answer(Answer),
    /// An answer of which the body is made while it is sent.
    Streamed(Response<ReplyBody>),
    /// An answer that comes when a feed moves.
    Held(Held),
}

impl From<Answer> for Routed {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer)
    }
}

/// Answers a request that the fast path did not.
pub(super) async fn answer(
    engine: Arc<Engine>,
    peer: SocketAddr,
    request: Request<Incoming>,
    stop: Stop,
) -> Routed {
    engine.metrics.routed.inc();
    let feed = read_feed(&engine, &request);
    let mut routed =
        dispatch(&engine, peer, request, &stop).await.unwrap_or_else(|problem| problem.answer().into());
    if let Some(feed) = feed {
        announce(&engine, &feed, &mut routed);
    }
    if let Routed::Answer(answer) = &routed
        && answer.status.as_u16() >= 400
    {
        engine.metrics.refused.inc();
    }
    routed
}

async fn dispatch(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    request: Request<Incoming>,
    stop: &Stop,
) -> Result<Routed, Problem> {
    let path = request.uri().path().to_owned();
    let segments = segments(&path)?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match segments.as_slice() {
        ["feeds", feed, "items"] if request.method() == Method::POST => {
            return Ok(items::post(engine, peer, feed, request).await?.into());
        }
        ["feeds", feed, "items", id] if !is_read => {
            return Ok(items::item(engine, peer, feed, id, request).await?.into());
        }
        ["feeds", feed, "snapshots"] if request.method() == Method::POST => {
            return Ok(replication::make(engine, peer, feed, &request).await?.into());
        }
        ["feeds", feed, "hub"] if request.method() == Method::POST => {
            return Ok(hub::hub(engine, feed, request).await.into());
        }
        ["feeds", feed, "callback"] => return Ok(hub::callback(engine, feed, request).await?.into()),
        ["feeds", _, "hub"] => return Err(Problem::method("POST")),
        ["feeds", _, "items"] if !is_read => return Err(Problem::method("GET, HEAD, POST")),
        _ if !is_read => return Err(Problem::method("GET, HEAD")),
        _ => {}
    }
    let named = feed_in(&segments);
    let mut feed = named.and_then(|id| engine.feed(id));
    let access = match &feed {
        Some(feed) => auth::may_read(feed, &engine.config.server.tokens, request.headers())?,
        None => Access::Whole,
    };
    if let Some(id) = named {
        replica::wait(engine, id, request.headers()).await?;
        feed = feed.or_else(|| engine.feed(id));
    }
    let is_public = feed.as_ref().is_none_or(|feed| feed.config.is_public());
    let routed = match (segments.as_slice(), feed) {
        (["feeds", _, "items"], Some(feed)) => match smart::items(engine, feed, access, &request).await? {
            Pulled::Now(document) => serve(document, &request).await.into(),
            Pulled::Held(held) => Routed::Held(held),
        },
        (["feeds", _, "events"], Some(feed)) if request.method() == Method::GET => {
            Routed::Streamed(events::events(engine, feed, access, &request, stop).await?)
        }
        (["feeds", _, "events"], Some(_)) => return Err(Problem::method("GET")),
        (["feeds", name, "items" | "events"], None) => return Err(items::no_feed(name)),
        _ if access != Access::Whole => {
            return Err(Problem::forbidden("with this token, /items and /events of this feed can be read"));
        }
        (["feeds", _, _, ..] | ["diff" | "archive", ..], Some(feed)) if feed.is_filter() => {
            return Err(Problem::not_found(
                "a filter is there as /items (as JSON, or as Atom with Accept: application/atom+xml) and /events only",
            ));
        }
        // It is another one for each who asks.
        (["feeds"], _) => return Ok(unshared(pages::feeds_for(engine, peer, &request).await?.into())),
        (segments, _) => read(engine, peer, segments, request).await?.into(),
    };
    Ok(if is_public { routed } else { unshared(routed) })
}

/// Answers a request to read.
async fn read(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    segments: &[&str],
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    match segments {
        [""] => pages::home(engine, request.headers()),
        ["feeds", feed] => pages::feed(engine, feed, request.headers()).await,
        ["feeds", feed, "items", id] => items::item(engine, peer, feed, id, request).await,
        ["feeds", feed, "replication"] => replication::newest(engine, feed, &request).await,
        ["feeds", feed, "replication", "pages", number] => {
            replication::page(engine, feed, number, &request).await
        }
        ["feeds", feed, name @ ("atom" | "rss" | "feed.json"), part @ ..] => {
            history::document(engine, feed, name, part, &request).await
        }
        ["feeds", feed, "snapshots"] => replication::snapshots(engine, feed).await,
        ["feeds", feed, "snapshots", id] => replication::index(engine, feed, id, &request).await,
        ["feeds", feed, "snapshots", id, "pages", number] => {
            replication::snapshot_page(engine, feed, id, number, &request).await
        }
        ["sup.json"] => sup::document(engine, &request).await,
        ["metrics"] => Ok(pages::metrics(engine)),
        ["openapi.json"] => Ok(pages::openapi(engine)),
        segments => {
            let path = request.uri().path();
            let document = served::document(engine, path, segments).await?;
            let document =
                document.ok_or_else(|| Problem::not_found(format!("there is nothing at {path}")))?;
            Ok(serve(document, &request).await)
        }
    }
}

/// The name of the feed that a path belongs to, if it can be one's.
pub(super) fn feed_in<'a>(segments: &[&'a str]) -> Option<&'a str> {
    match segments {
        ["diff", "source", feed, ..] | ["feeds" | "diff" | "archive", feed, ..] => Some(feed),
        _ => None,
    }
}

/// The feed that a request is to read from.
fn read_feed(engine: &Engine, request: &Request<Incoming>) -> Option<Arc<Feed>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let segments = segments(request.uri().path()).ok()?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    engine.feed(feed_in(&segments)?)
}

/// Says where the feed's moves are told of: problems too, for a feed that is empty will move. Whoever may not read
/// the feed is not told.
fn announce(engine: &Engine, feed: &Feed, routed: &mut Routed) {
    let headers = match routed {
        Routed::Answer(answer)
            if matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
        {
            return;
        }
        Routed::Answer(answer) => &mut answer.headers,
        Routed::Streamed(response) => response.headers_mut(),
        // Does so itself, when it is answered.
        Routed::Held(_) => return,
    };
    engine.announcer.announce(feed.id(), headers);
}

/// What not everybody may read is kept by no cache on the way.
fn unshared(mut routed: Routed) -> Routed {
    let headers = match &mut routed {
        Routed::Answer(answer) => &mut answer.headers,
        Routed::Streamed(response) => response.headers_mut(),
        Routed::Held(_) => return routed,
    };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    headers.remove("cdn-cache-control");
    routed
}

/// The decoded parts of a path.
fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, Problem> {
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    let decode = |part| percent_decode_str(part).decode_utf8();
    parts.map(decode).collect::<Result<_, _>>().map_err(|_| Problem::bad_request("the path is not UTF-8"))
}

/// Answers with a document; compresses it apart from the connections where nobody asked for that form before.
pub(super) async fn serve(document: Arc<Document>, request: &Request<Incoming>) -> Answer {
    if let Some(answer) = document.answer(request.headers()) {
        return answer;
    }
    let headers = request.headers().clone();
    let compressed = blocking(move || document.answer_compressing(&headers)).await;
    compressed.unwrap_or_else(|e| Problem::internal(e.to_string()).answer())
}

impl Routed {
    /// As hyper wants it, whenever that is.
    pub(super) async fn respond(self, stop: &Stop) -> Response<ReplyBody> {
        match self {
            Self::Answer(answer) => respond(answer),
            Self::Streamed(response) => response,
            Self::Held(held) => respond(held.answer(stop).await),
        }
    }
}
