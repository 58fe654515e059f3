//! What people see: a page for the server and one for each feed, the same as JSON for programs.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{ACCEPT, VARY};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use maud::{DOCTYPE, Markup, html};
use serde::Serialize;
use towpath_proto::history::wire::Syntax;
use towpath_proto::smart::accept::prefers_html;
use towpath_store::{Head, StoreError};

use super::auth;
use super::document::Answer;
use super::items::{no_feed, parameters, whole};
use super::problem::Problem;
use crate::engine::history::{self, Which};
use crate::engine::replication::snapshot;
use crate::engine::smart::Access;
use crate::engine::{Engine, Feed};
use crate::shown;
use crate::source::state::{SourceError, SourceState};

const JSON: &str = "application/json; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// An address of a feed or of the server, and what is there.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Address {
    /// A name for programs.
    name: &'static str,
    /// The address.
    url: String,
    /// A sentence for people.
    about: &'static str,
}

impl Address {
    /// As a page shows it: a link where a browser finds something.
    fn link(&self, has_snapshot: bool) -> Markup {
        let url = self.url.as_str();
        match self.name {
            "hub" | "items" => html! { code { (url) } },
            "snapshots" if !has_snapshot => html! { code { (url) } },
            // Without waiting for what comes next.
            "smart" => html! { a href={ (url) "?timeout=0" } { (url) } },
            _ => html! { a href=(url) { (url) } },
        }
    }
}

/// The addresses that a feed has.
pub(crate) fn addresses(base: &str, feed: &Feed) -> Vec<Address> {
    let address = |name, path: String, about| Address { name, url: format!("{base}{path}"), about };
    let (id, is_filter, is_published_to) = (feed.id(), feed.is_filter(), feed.not_published_to().is_none());
    let feed = id.as_str();
    let smart = [
        address(
            "smart",
            format!("/feeds/{feed}/items"),
            "Smart Feeds: every item, in any order, as it comes",
        ),
        address("events", format!("/feeds/{feed}/events"), "Server-Sent Events: every change as it comes"),
        address("hub", format!("/feeds/{feed}/hub"), "WebSub: subscribe, to be pushed to"),
    ];
    if is_filter {
        return smart.into();
    }
    let mut addresses = vec![
        address("head", format!("/diff/{feed}/head.json"), "DiffDelta: whether something changed"),
        address("latest", format!("/diff/{feed}/latest.json"), "DiffDelta: what changed last"),
        address("archive", format!("/archive/{feed}/index.json"), "DiffDelta: every change there was"),
        address(
            "atom",
            format!("/feeds/{feed}/atom"),
            "Atom: the newest entries, and the way back to all of them",
        ),
        address("rss", format!("/feeds/{feed}/rss"), "RSS: the same"),
        address("json_feed", format!("/feeds/{feed}/feed.json"), "JSON Feed: the same"),
        address("replication", format!("/feeds/{feed}/replication"), "Data Replication: the newest page"),
        address(
            "snapshots",
            format!("/feeds/{feed}/snapshots/latest"),
            "Data Replication: the newest snapshot",
        ),
    ];
    if is_published_to {
        let about = "publish: POST lines of JSON, PUT …/items/{id}";
        addresses.push(address("items", format!("/feeds/{feed}/items"), about));
    }
    addresses.splice(3..3, smart);
    addresses
}

/// A feed as programs see it.
#[derive(Debug, Serialize)]
struct FeedView {
    id: String,
    title: String,
    #[serde(flatten)]
    status: Status,
    addresses: Vec<Address>,
}

/// How a feed is.
#[derive(Debug, Serialize)]
struct Status {
    seq: u64,
    items: u64,
    live: u64,
    modified: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<SourceView>,
}

#[derive(Debug, Serialize)]
struct SourceView {
    /// Without what is secret in it: the feed's readers are not the configuration's.
    address: String,
    /// Of a mirror, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    last_ok: Option<jiff::Timestamp>,
    next: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<SourceError>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// The feeds that everybody may read: what is not is not even named.
fn public(engine: &Engine) -> Vec<Arc<Feed>> {
    let mut feeds = engine.feeds();
    feeds.retain(|feed| feed.config.is_public());
    feeds
}

/// `/`: the feeds.
pub(super) fn home(engine: &Engine, headers: &HeaderMap) -> Result<Answer, Problem> {
    if !wants_html(headers) {
        return feeds(engine).map(negotiated);
    }
    let base = &engine.base_url;
    let feeds = public(engine);
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

/// A feed as a list names it.
#[derive(Serialize)]
struct Listed {
    id: String,
    title: String,
    url: String,
    /// How it is, where that is asked for.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

impl Listed {
    fn new(engine: &Engine, feed: &Feed) -> Self {
        Self {
            id: feed.id().to_string(),
            title: feed.config.title().to_owned(),
            url: format!("{}/feeds/{}", engine.base_url, feed.id()),
            status: None,
        }
    }
}

/// `/feeds`: the feeds that everybody may read and their addresses, as JSON.
pub(crate) fn feeds(engine: &Engine) -> Result<Answer, Problem> {
    list(&public(engine).iter().map(|feed| Listed::new(engine, feed)).collect::<Vec<_>>())
}

fn list(feeds: &[Listed]) -> Result<Answer, Problem> {
    json(&serde_json::json!({ "service": "towpath", "feeds": feeds }))
}

/// The same for who asks: the feeds that he may read, and with `?status` how each of them is that he may read whole.
pub(super) async fn feeds_for<B>(
    engine: &Engine,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Answer, Problem> {
    let with_status = parameters(request.uri().query()).any(|(name, _)| name == "status");
    let mut feeds = Vec::new();
    for (feed, access) in auth::readable(engine.feeds(), &engine.config.server.tokens, peer, request)? {
        let mut listed = Listed::new(engine, &feed);
        if with_status && access == Access::Whole {
            listed.status = Some(status(engine, &feed).await?);
        }
        feeds.push(listed);
    }
    list(&feeds)
}

/// `/feeds/{feed}`: a page, or JSON with every address.
pub(super) async fn feed(engine: &Engine, id: &str, headers: &HeaderMap) -> Result<Answer, Problem> {
    let feed = engine.feed(id).ok_or_else(|| no_feed(id))?;
    let view = view(engine, &feed).await?;
    if !wants_html(headers) {
        return json(&view).map(negotiated);
    }
    let has_snapshot = !snapshot::list(engine, &feed).await?.is_empty();
    let body = html! {
        p { a href={ (engine.base_url) "/" } { "towpath" } }
        h1 { (view.title) }
        p { (view.status.live) " items, " (view.status.seq) " changes"
            @if let Some(modified) = view.status.modified { ", the last at " (modified) } "." }
        @if let Some(source) = &view.status.source { (source_part(source)) }
        h2 { "Addresses" }
        dl { @for address in &view.addresses { dt { (address.link(has_snapshot)) } dd { (address.about) } } }
        h2 { "Follow it" }
        @if feed.is_filter() { pre { "towpath follow " (engine.base_url) "/feeds/" (view.id) "/items" } }
        @else { pre { "towpath follow " (engine.base_url) "/diff/" (view.id) "/head.json" } }
    };
    let head = alternates(engine, &feed);
    Ok(negotiated(whole(StatusCode::OK, HTML, page(&view.title, &head, &body).into_string())))
}

/// What browsers and readers find a feed's documents by.
fn alternates(engine: &Engine, feed: &Feed) -> Markup {
    let address = |syntax| format!("{}{}", engine.base_url, history::path(feed, syntax, Which::Newest));
    html! {
        @if !feed.is_filter() {
            @for syntax in Syntax::ALL {
                link rel="alternate" type=(syntax.media_type()) title=(feed.config.title()) href=(address(syntax));
            }
        }
    }
}

fn source_part(source: &SourceView) -> Markup {
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

/// A feed as `/feeds/{feed}` shows it to programs.
pub(crate) async fn feed_json(engine: &Engine, feed: &Feed) -> Result<serde_json::Value, StoreError> {
    let view = view(engine, feed).await?;
    serde_json::to_value(view).map_err(|e| StoreError::Read(e.to_string()))
}

/// A feed as a static tree shows it: without how its source is just now, and without the addresses that only a server
/// answers at. `has` says which of the others there are.
pub(crate) async fn tree_json(
    engine: &Engine,
    feed: &Feed,
    has: impl Fn(&str) -> bool,
) -> Result<Answer, StoreError> {
    let mut view = view(engine, feed).await?;
    view.status.source = None;
    view.addresses
        .retain(|address| !matches!(address.name, "smart" | "events" | "hub" | "items") && has(address.name));
    let body = serde_json::to_vec(&view).map_err(|e| StoreError::Read(e.to_string()))?;
    Ok(whole(StatusCode::OK, JSON, body))
}

async fn view(engine: &Engine, feed: &Feed) -> Result<FeedView, StoreError> {
    Ok(FeedView {
        id: feed.id().to_string(),
        title: feed.config.title().to_owned(),
        status: status(engine, feed).await?,
        addresses: addresses(&engine.base_url, feed),
    })
}

async fn status(engine: &Engine, feed: &Feed) -> Result<Status, StoreError> {
    let Head { seq, modified, items, live } = engine.store.head(feed.log()).await?;
    let modified = (seq > 0).then_some(modified);
    Ok(Status { seq, items, live, modified, source: source_view(engine, feed).await? })
}

async fn source_view(engine: &Engine, feed: &Feed) -> Result<Option<SourceView>, StoreError> {
    let (polled, mirrored) = (feed.config.polled(), feed.config.mirrored());
    let Some((source, address)) = polled.or(mirrored) else { return Ok(None) };
    let protocol = match mirrored {
        Some((_, url)) => crate::source::mirror::protocol(engine, feed, url).await?,
        None => None,
    };
    let fingerprint = crate::source::poll::fingerprint(source);
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint).await?;
    let SourceState { last_ok, next, mut error, problems, .. } = state;
    let shown = shown::address(address);
    if let Some(SourceError { message, .. }) = &mut error {
        *message = shown::text(&message.replace(address, &shown));
    }
    Ok(Some(SourceView { address: shown, protocol, last_ok, next, error, problems }))
}

/// `/metrics`.
pub(super) fn metrics(engine: &Engine) -> Answer {
    if let Some(Ok(moved)) = engine.sup.moved().map(i64::try_from) {
        engine.metrics.sup_feeds.set(moved);
    }
    let text = engine.metrics.text();
    whole(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

/// `/openapi.json`.
pub(super) fn openapi(engine: &Engine) -> Answer {
    let text = include_str!("openapi.json").replace("{base_url}", &engine.base_url);
    whole(StatusCode::OK, JSON, text.replace("{version}", env!("CARGO_PKG_VERSION")))
}

fn json(value: &impl Serialize) -> Result<Answer, Problem> {
    let body = serde_json::to_vec(value).map_err(|e| Problem::internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, JSON, body))
}

/// Whether a client wants a page rather than JSON.
fn wants_html(headers: &HeaderMap) -> bool {
    prefers_html(headers.get(ACCEPT).and_then(|value| value.to_str().ok()))
}

/// An answer that is another for other clients (RFC 9110, section 12.5.5).
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
