//! Pages for browsers: one for the server and one for each feed. Programs get the same as JSON.

use std::net::SocketAddr;

use http::header::{ACCEPT, CACHE_CONTROL, VARY};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use maud::{DOCTYPE, Markup, html};
use towpath_proto::history::wire::Syntax;
use towpath_proto::smart::accept::prefers_html;

use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::document::route_error::RouteError;
use crate::engine::access::{Access, may_see_details, readable};
use crate::engine::request::{known_feed, parameters};
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::FeedAddress;
use crate::protocols::catalog::{FeedEntry, NodeDescription, json, list, public_feeds, public_list};
use crate::protocols::history::documents::{self, HistoryAddress};
use crate::protocols::replication::snapshot;
use crate::protocols::sup::Sup;
use crate::source::status::{SourceHealth, describe_feed, node_problems, status_of};

const JSON: &str = "application/json; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// Answers `/`: the list of feeds.
pub(crate) fn home(engine: &Engine, headers: &HeaderMap) -> Result<Answer, RouteError> {
    if !wants_html(headers) {
        return public_list(engine).map(negotiated);
    }
    let base = &engine.base_url;
    let feeds = public_feeds(engine);
    let body = html! {
        h1 { "towpath" }
        p { "One ordered log per feed, and published protocols to follow it by." }
        h2 { "Feeds" }
        @if feeds.is_empty() { p { "There are none yet: add a [[feed]] to the configuration, or publish to one." } }
        ul { @for feed in &feeds { li { a href={ (base) "/feeds/" (feed.id()) } { (feed.config.title()) } } } }
        h2 { "For programs" }
        ul {
            @for (path, about) in SERVER_ADDRESSES { li { a href={ (base) (path) } { (path) } " " (about) } }
        }
    };
    Ok(negotiated(whole(StatusCode::OK, HTML, page("towpath", &html! {}, &body).into_string())))
}

const SERVER_ADDRESSES: [(&str, &str); 8] = [
    ("/.well-known/diffdelta.json", "what this server offers"),
    ("/diff/head.json", "whether anything changed in any feed"),
    ("/diff/latest.json", "what changed last in all feeds"),
    ("/diff/sources.json", "every source and its state"),
    ("/sup.json?seconds=60", "which feeds moved within the last minute"),
    ("/healthz.json", "whether the server is well"),
    ("/metrics", "counters"),
    ("/openapi.json", "every address, described"),
];

/// Answers `/feeds`: the feeds that the client may read. With `?status`, also the state of each that it may
/// read whole; with `?instance`, the identity of this run.
pub(crate) async fn feeds_for<B>(
    engine: &Engine,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let asks_for = |what: &str| parameters(request.uri().query()).any(|(name, _)| name == what);
    let with_status = asks_for("status");
    let (mut feeds, mut problems) = (Vec::new(), Vec::new());
    let tokens = engine.tokens.load_full();
    for (feed, access) in readable(engine.feeds(), &tokens, peer, request)? {
        let mut listed = FeedEntry::new(engine, &feed);
        // The status counts all items, also those that a reader's filter hides.
        if with_status && access == Access::Whole {
            let with_details = may_see_details(&tokens, feed.id().as_str(), peer, request);
            listed.status = Some(status_of(engine, &feed, with_details).await?);
            if with_details && problems.is_empty() {
                problems = node_problems(engine);
            }
        }
        feeds.push(listed);
    }
    let instance = asks_for("instance").then_some(engine.instance.as_str());
    list(&feeds, &NodeDescription { instance, problems })
}

/// Answers `/feeds/{feed}`: a page, or JSON with every address.
pub(crate) async fn feed<B>(
    engine: &Engine,
    peer: SocketAddr,
    id: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let with_details = may_see_details(&engine.tokens.load(), id, peer, request);
    let mut answer = feed_page(engine, id, request.headers(), with_details).await?;
    let has_source = engine.feed(id).is_some_and(|feed| feed.config.source.is_some());
    if with_details && (has_source || engine.failures.of(id).is_some()) {
        // A shared cache would hand the details to strangers.
        answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    }
    Ok(negotiated(answer))
}

async fn feed_page(
    engine: &Engine,
    id: &str,
    headers: &HeaderMap,
    with_details: bool,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, id)?;
    let view = describe_feed(engine, &feed, with_details).await?;
    if !wants_html(headers) {
        return json(&view);
    }
    let has_snapshot = !snapshot::list(engine, &feed).await?.is_empty();
    let body = html! {
        p { a href={ (engine.base_url) "/" } { "towpath" } }
        h1 { (view.title) }
        p { (view.status.live) " items, " (view.status.seq) " changes"
            @if let Some(modified) = view.status.modified { ", the last at " (modified) } "." }
        @if let Some(source) = &view.status.source { (source_part(source)) }
        h2 { "Addresses" }
        dl { @for address in &view.addresses { dt { (link(address, has_snapshot)) } dd { (address.about) } } }
        h2 { "Follow it" }
        @if feed.is_filter() { pre { "towpath follow " (engine.base_url) "/feeds/" (view.id) "/items" } }
        @else { pre { "towpath follow " (engine.base_url) "/feeds/" (view.id) } }
        p { "By Smart Feeds: exactly once, and told of a change at once, because the server holds the request until "
            "there is one. DiffDelta and Data Replication promise the same, later or with more requests." }
    };
    let head = alternates(engine, &feed);
    Ok(whole(StatusCode::OK, HTML, page(&view.title, &head, &body).into_string()))
}

/// Shows an address: as a link if a browser finds something there.
fn link(address: &FeedAddress, has_snapshot: bool) -> Markup {
    let url = address.url.as_str();
    match address.name {
        // The hub takes POST only, and "items" is the address to publish to.
        "hub" | "items" => html! { code { (url) } },
        "snapshots" if !has_snapshot => html! { code { (url) } },
        // A browser must not hang in a long poll.
        "smart" => html! { a href={ (url) "?timeout=0" } { (url) } },
        _ => html! { a href=(url) { (url) } },
    }
}

/// Makes the links by which browsers and feed readers find a feed's documents.
fn alternates(engine: &Engine, feed: &Feed) -> Markup {
    let address =
        |syntax| format!("{}{}", engine.base_url, documents::path(feed, syntax, HistoryAddress::Newest));
    html! {
        @if !feed.is_filter() {
            @for syntax in Syntax::ALL {
                link rel="alternate" type=(syntax.media_type()) title=(feed.config.title()) href=(address(syntax));
            }
        }
    }
}

fn source_part(source: &SourceHealth) -> Markup {
    html! {
        h2 { "Source" }
        p { (source.address) @if let Some(protocol) = &source.protocol { ", followed by " (protocol) } }
        @match (&source.error, source.last_ok) {
            (Some(error), _) => p class="bad" { (error.code) ": " (error.message) },
            (None, Some(at)) => p { "Asked without error at " (at) "." },
            (None, None) => p { "Not asked yet." },
        }
        @for problem in &source.problems { p { "Left out: " (problem) } }
    }
}

/// Answers `/metrics`.
pub(crate) fn metrics(engine: &Engine) -> Answer {
    // Counted when it is asked for: feeds leave the window by time, and no event says so.
    if let Some(Ok(recent)) = Sup::of(engine).recent().map(i64::try_from) {
        engine.metrics.sup_feeds.set(recent);
    }
    let text = engine.metrics.text();
    whole(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

/// Answers `/openapi.json`.
pub(crate) fn openapi(engine: &Engine) -> Answer {
    let text = include_str!("openapi.json").replace("{base_url}", &engine.base_url);
    whole(StatusCode::OK, JSON, text.replace("{version}", env!("CARGO_PKG_VERSION")))
}

/// Returns true if a client prefers a page to JSON.
fn wants_html(headers: &HeaderMap) -> bool {
    prefers_html(headers.get(ACCEPT).and_then(|value| value.to_str().ok()))
}

/// Marks an answer that depends on `Accept` (RFC 9110, section 12.5.5).
fn negotiated(mut answer: Answer) -> Answer {
    answer.headers.insert(VARY, HeaderValue::from_static("accept"));
    answer
}

fn page(title: &str, more: &Markup, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                (more)
                style { (maud::PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
}

const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem;\
color:#1d2b33;background:#fbfaf7}h1{font-size:1.6rem}h2{font-size:1.1rem;margin-top:2rem}a{color:#14606f}\
dt{margin-top:.6rem;overflow-wrap:anywhere}dd{margin:0;color:#5b6b73}pre{background:#eef0ec;padding:.7rem;\
overflow-x:auto}.bad{color:#a02c1c}";
