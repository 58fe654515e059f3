//! Routing of requests that no cached document answers.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;

use crate::document::cors::CorsPolicy;
use crate::document::feed_path::{feed_in, segments};
use crate::document::prebuilt::Answer;
use crate::document::respond::{respond as respond_with, whole};
use crate::document::route_error::RouteError;
use crate::engine::access::{Access, may_know_removed, may_read_request};
use crate::engine::client_address::client_address;
use crate::engine::request::{gone_feed, no_feed};
use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::serve as diffdelta;
use crate::protocols::history::serve as history;
use crate::protocols::replication::serve as replication;
use crate::protocols::smart::serve::{self as smart, ItemsResponse};
use crate::protocols::sup::serve as sup;
use crate::protocols::websub::serve as hub;
use crate::server::console::{self, PageAddress, Refused, programs};
use crate::server::long_poll::events;
use crate::server::long_poll::many_events::{is_for_many, many_events};
use crate::server::problem::Problem;
use crate::server::publish_cors::PublishOrigin;
use crate::server::routed::Routed;
use crate::server::{
    expensive, feed_settings, health, items, metrics, openapi, publish, read_links, read_your_writes,
    session, sinks, uploads,
};
use crate::stop::Stop;

/// Answers a request that the fast path did not answer.
pub(crate) async fn respond(
    engine: Arc<Engine>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
    stop: Stop,
) -> Routed {
    engine.metrics.routed.inc();
    session::authorize(&engine, &mut request);
    if let Err(error) = expensive::charge_guess(&engine, peer, request.headers()) {
        return Problem::from(error).response().into();
    }
    // Before the request is consumed.
    let feed = feed_of(&engine, &request);
    if let Some(page) = PageAddress::of(&request) {
        let mut routed = respond_with_page(engine.clone(), peer, page, request).await;
        if let Some((feed, _)) = feed {
            add_sup_link(&engine, &feed, !feed.config.is_public(), &mut routed);
        }
        return routed;
    }
    let browser = Refused::of(peer, &request);
    let is_cors = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let origin = engine.cors.load().listed(request.headers().get(ORIGIN)).cloned();
    let publish_origin = PublishOrigin::of(&engine, &request);
    let mut routed = match (admit_and_dispatch(&engine, peer, request, &stop).await, browser) {
        (Ok(routed), _) => routed,
        (Err(error), None) => Problem::from(error).response().into(),
        (Err(error), Some(browser)) => {
            engine.metrics.refused.inc();
            // The page is for the one who looks: no other site may read it.
            return browser.page(engine.clone(), error).into();
        }
    };
    if let Some((feed, is_read)) = feed {
        add_sup_link(&engine, &feed, !is_read && !feed.config.is_public(), &mut routed);
    }
    if is_cors {
        add_cors_headers(&engine.cors.load(), origin, &mut routed);
    }
    if let Routed::Answer(answer) = &mut routed {
        if let Some(origin) = publish_origin {
            origin.add_to(&mut answer.headers);
        }
        uploads::expose(&mut answer.headers);
    }
    if let Routed::Answer(answer) = &routed
        && answer.status.as_u16() >= 400
    {
        engine.metrics.refused.inc();
    }
    routed
}

/// Answers a request that the client's rate limit admits, and charges the work to it.
async fn admit_and_dispatch(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    mut request: Request<Incoming>,
    stop: &Stop,
) -> Result<Routed, RouteError> {
    let charged = expensive::admit(engine, peer, &request)?;
    if let Some(charged) = &charged {
        request.extensions_mut().insert(charged.stream_account());
    }
    // Charged afterwards: the cost is the size of what was made, which nobody knows before.
    let routed = dispatch(engine, peer, request, stop).await;
    match charged.map(|charged| (charged, routed.as_ref().ok().and_then(size_made))) {
        Some((charged, Some(size))) => charged.charge(size),
        Some((charged, None)) => charged.waive(),
        None => {}
    }
    routed
}

/// Answers with a page. Pages are made for each request, so they count against the rate limit.
async fn respond_with_page(
    engine: Arc<Engine>,
    peer: SocketAddr,
    page: PageAddress,
    request: Request<Incoming>,
) -> Routed {
    let charged = match expensive::admit(&engine, peer, &request) {
        Ok(charged) => charged,
        Err(error) => {
            engine.metrics.refused.inc();
            return match Refused::of(peer, &request) {
                Some(browser) => browser.page(engine.clone(), error).into(),
                None => Problem::from(error).response().into(),
            };
        }
    };
    let answer = console::respond(engine.clone(), peer, page, request).await;
    if answer.status.as_u16() >= 400 {
        engine.metrics.refused.inc();
    }
    if let Some(charged) = charged {
        charged.charge(answer.body.len() as u64);
    }
    answer.into()
}

async fn dispatch(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    request: Request<Incoming>,
    stop: &Stop,
) -> Result<Routed, RouteError> {
    let path = request.uri().path().to_owned();
    let segments = segments(&path)?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    // Before the table of methods: a preflight for an address that is not there is answered, too.
    if request.method() == Method::OPTIONS {
        return Ok(options(engine, &segments).into());
    }
    // The table describes every address, so what it does not have is not there.
    let methods = openapi::methods(&segments)
        .ok_or_else(|| RouteError::not_found(format!("there is nothing at {}", shortened(&path))))?;
    if !methods.split(", ").any(|method| method == request.method()) {
        let error = refused_method(&segments);
        return match segments.as_slice() {
            ["feeds", _, "uploads", ..] => Ok(uploads::refused(engine, error).into()),
            _ => Err(error),
        };
    }
    match segments.as_slice() {
        // All methods: tus has its own error answers, with its own headers.
        ["feeds", feed, "uploads", id @ ..] => {
            Ok(uploads::respond(engine, peer, feed, id.first().copied(), request).await.into())
        }
        ["feeds", "events"] if request.method() == Method::GET && is_for_many(request.uri().query()) => {
            let routed = Routed::Streamed(many_events(engine, &request, stop).await?);
            // Private feeds may be among them.
            Ok(unshared(routed))
        }
        ["sinks", rest @ ..] => {
            let (at, rest) = (engine.clone(), rest.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>());
            let answering = async move {
                let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
                sinks::respond(&at, peer, &rest, &request).await
            };
            Ok(run_detached(engine, answering).await??.into())
        }
        ["feeds", feed, "callback"] => Ok(hub::callback(engine, feed, request).await?.into()),
        segments if is_read => dispatch_read(engine, peer, segments, request, stop).await,
        segments => dispatch_write(engine, peer, segments, request).await,
    }
}

/// Makes the error for a method that an address does not have. Every address answers OPTIONS.
fn refused_method(segments: &[&str]) -> RouteError {
    RouteError::method(openapi::methods_with_options(segments).unwrap_or("GET, HEAD, OPTIONS"))
}

/// Answers a request of another method than GET and HEAD.
async fn dispatch_write(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    segments: &[&str],
    request: Request<Incoming>,
) -> Result<Routed, RouteError> {
    let answer = match (request.method(), segments) {
        (&Method::POST, ["feeds", feed, "items"]) => publish::post(engine, peer, feed, request).await?,
        (_, ["feeds", feed, "items", id]) => items::item(engine, peer, feed, id, request).await?,
        (&Method::PUT | &Method::DELETE, ["feeds", feed]) => {
            let (at, feed) = (engine.clone(), (*feed).to_owned());
            let answering = async move { feed_settings::respond(&at, peer, &feed, request).await };
            run_detached(engine, answering).await??
        }
        (&Method::POST, ["feeds", feed, "snapshots"]) => {
            replication::make(engine, peer, feed, &request).await?
        }
        (&Method::POST, ["feeds", feed, "read-links"]) => {
            read_links::make(engine, feed, request.uri().query(), request.headers())?
        }
        (&Method::POST, ["feeds", feed, "hub"]) => {
            let client = client_address(peer, request.headers(), &engine.server.load().trusted_proxies);
            let answer = hub::hub(engine, client, feed, request).await;
            answer.unwrap_or_else(|error| Problem::from(error).text_response())
        }
        // Forms are answered before.
        _ => return Err(refused_method(segments)),
    };
    Ok(answer.into())
}

/// Answers a request to read, once the client may read what it names.
async fn dispatch_read(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    segments: &[&str],
    mut request: Request<Incoming>,
    stop: &Stop,
) -> Result<Routed, RouteError> {
    let named = feed_in(segments);
    let mut feed = named.and_then(|id| engine.feed(id));
    let access = match &feed {
        Some(feed) => may_read_request(engine, feed, &mut request)?,
        None => Access::Whole,
    };
    if let Some(id) = named {
        // After the token is checked: a stranger's request must not hold a waiter for seconds.
        read_your_writes::wait(engine, id, request.headers()).await?;
        // The awaited append may be the one that created the feed.
        feed = feed.or_else(|| engine.feed(id));
    }
    // DiffDelta, section 1.3: an archive outlives its feed.
    let is_archive = segments.first() == Some(&"archive");
    if let Some(id) = named.filter(|_| feed.is_none() && !is_archive)
        && let Some(removed) = engine.removed_feed(id)
        && may_know_removed(&removed, id, &engine.tokens.load(), peer, &request)
    {
        return Err(gone_feed(id, &removed));
    }
    // Taken now, because the match below consumes the feed.
    let is_public = feed.as_ref().is_none_or(|feed| feed.config.is_public());
    let routed = match (segments, feed) {
        (["feeds", _, "items"], Some(feed)) => match smart::items(engine, feed, access, &request).await? {
            ItemsResponse::Document(document) => respond_with(document, request.headers()).await?.into(),
            ItemsResponse::Waiting(waiting) => Routed::LongPoll(waiting.into()),
        },
        (["feeds", _, "events"], Some(feed)) => {
            Routed::Streamed(events::events(engine, feed, access, &request, stop).await?)
        }
        (["feeds", name, "items" | "events"], None) => return Err(no_feed(engine, name)),
        // All other documents show the whole feed, so a reader with a filter gets none of them.
        _ if access != Access::Whole => {
            return Err(RouteError::forbidden(
                "with this token, /items and /events of this feed can be read",
            ));
        }
        (["feeds", _, _, ..] | ["diff" | "archive", ..], Some(feed)) if feed.is_filter() => {
            return Err(RouteError::not_found(
                "a filter is there as /items (as JSON, or as Atom with Accept: application/atom+xml) and /events only",
            ));
        }
        // The list depends on the client's token.
        (["feeds"], _) => return Ok(unshared(programs::feeds_for(engine, peer, &request).await?.into())),
        (["feeds", feed, "items", id], _) => items::read(engine, feed, id, &request).await?,
        (["feeds", feed, "attachments", key, _], _) => {
            publish::attachment(engine, feed, key, &request).await?
        }
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
) -> Result<Answer, RouteError> {
    match segments {
        [""] => programs::home(engine),
        ["feeds", "events"] if engine.feed("events").is_none() => Err(RouteError::bad_request(
            "name the feeds of the stream, such as /feeds/events?feed=orders&feed=news",
        )
        .about("feed")),
        ["feeds", feed] => programs::feed(engine, peer, feed, &request).await,
        ["feeds", feed, "items", id, "versions"] => items::list_versions(engine, feed, id, &request).await,
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
        ["metrics"] => metrics::metrics(engine, peer, &request).await,
        ["livez"] => Ok(health::live()),
        ["readyz"] => Ok(health::ready(engine)),
        ["openapi.json"] => Ok(openapi::openapi(engine)),
        ["schema", "change.json"] => {
            Ok(whole(StatusCode::OK, "application/schema+json", openapi::CHANGE_SCHEMA))
        }
        segments => diffdelta::get(engine, segments, &request).await,
    }
}

/// Returns the beginning of a path, which may be as long as a request's head.
fn shortened(path: &str) -> String {
    path.chars().take(200).collect()
}

/// Returns the size of what was made for an answer; `None` if nothing was.
fn size_made(routed: &Routed) -> Option<u64> {
    match routed {
        Routed::Answer(answer) if answer.status.as_u16() < 400 => Some(answer.body.len() as u64),
        Routed::Streamed(_) => Some(0),
        // All that wait for the same page share it, and waiters have a limit of their own.
        Routed::Answer(_) | Routed::LongPoll(_) => None,
    }
}

/// Returns the feed that a request reads or changes, and true if it reads. The question of a browser before a request has
/// no token, and must not tell which private feeds exist.
fn feed_of(engine: &Engine, request: &Request<Incoming>) -> Option<(Arc<Feed>, bool)> {
    if request.method() == Method::OPTIONS {
        return None;
    }
    let segments = segments(request.uri().path()).ok()?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    Some((engine.feed(feed_in(&segments)?)?, is_read))
}

/// Adds the feed's SUP link (SUP, section 6.1), also to problems: an empty feed will have updates. A client that may not
/// read the feed gets no link.
///
/// `only_success` leaves problems out, where they do not tell if the client may know the feed.
fn add_sup_link(engine: &Engine, feed: &Feed, only_success: bool, routed: &mut Routed) {
    let headers = match routed {
        Routed::Answer(answer) if only_success && answer.status.as_u16() >= 400 => return,
        Routed::Answer(answer)
            if matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
        {
            return;
        }
        Routed::Answer(answer) => &mut answer.headers,
        Routed::Streamed(response) => response.headers_mut(),
        // A long poll adds the link to its own answer.
        Routed::LongPoll(_) => return,
    };
    engine.sup_links.add_to(feed.id(), headers);
}

/// Answers OPTIONS: a browser's question before a page's request (Fetch, section 3.2.2), or anybody's for the methods.
///
/// The path alone decides: a preflight has no token, so it must not tell which private feeds exist.
fn options(engine: &Engine, segments: &[&str]) -> Answer {
    let methods = openapi::methods_with_options(segments).unwrap_or("GET, HEAD, OPTIONS");
    let mut headers = HeaderMap::from_iter([(ALLOW, HeaderValue::from_static(methods))]);
    engine.cors.load().add_to_preflight(&mut headers);
    if let ["feeds", _, "uploads", ..] = segments {
        uploads::describe(engine, &mut headers);
    }
    Answer { status: StatusCode::NO_CONTENT, headers, body: Bytes::new() }
}

/// Adds who may read a response across origins.
fn add_cors_headers(cors: &CorsPolicy, origin: Option<HeaderValue>, routed: &mut Routed) {
    let headers = match routed {
        Routed::Answer(answer) => &mut answer.headers,
        Routed::Streamed(response) => response.headers_mut(),
        // A long poll adds the headers to its own answer.
        Routed::LongPoll(poll) => return poll.origin = origin.map(Box::new),
    };
    cors.add_to(headers);
    cors.add_for(origin.as_ref(), headers);
}

/// Keeps what not everybody may read out of shared caches.
fn unshared(mut routed: Routed) -> Routed {
    let headers = match &mut routed {
        Routed::Answer(answer) => &mut answer.headers,
        Routed::Streamed(response) => response.headers_mut(),
        Routed::LongPoll(_) => return routed,
    };
    let is_stream =
        headers.get(CACHE_CONTROL).is_some_and(|value| value.as_bytes().ends_with(b"no-transform"));
    let private = if is_stream { "private, no-store, no-transform" } else { "private, no-store" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(private));
    // CDNs prefer it to Cache-Control (RFC 9213), and would keep a private page.
    headers.remove("cdn-cache-control");
    routed
}
