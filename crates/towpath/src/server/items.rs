//! `/feeds/{feed}/items`: publishing, and reading one item.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::json;
use towpath_proto::format::http_date;
use towpath_proto::line::Line;
use towpath_proto::{Author, Change, Content, FeedId, Item, NewChange, Op};
use towpath_store::{AppendError, Appended, Expected};

use super::document::{Answer, Document, Valid};
use super::problem::Problem;
use super::{auth, body, replica};
use crate::engine::{Engine, Feed};

/// The largest item content over HTTP, in bytes.
const MAX_CONTENT: usize = 64 << 20;
/// The largest batch, in bytes.
const MAX_BATCH: usize = 64 << 20;
/// The most lines of a batch, which is appended as one.
const MAX_LINES: usize = 10_000;
/// How often a conditional change is tried again when others append to the feed meanwhile.
const TRIES: usize = 20;

/// `POST /feeds/{feed}/items`: a batch of lines, appended whole or not at all.
pub(super) async fn post(
    engine: &Engine,
    peer: SocketAddr,
    feed: &str,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    auth::may_publish(&engine.config.server.tokens, peer, &request)?;
    let feed = to_change(engine, feed)?;
    let expected = expected(request.uri().query())?;
    let changes = lines(&body::read(request, MAX_BATCH).await?, engine.now())?;
    let count = changes.len();
    let appended = engine.store.append(feed.id(), expected, changes).await?;
    let receipt = json!({
        "feed": feed.id(),
        "appended": count,
        "first": appended.first,
        "last": appended.head.seq,
        "modified": appended.head.modified,
    });
    let mut answer = json_answer(StatusCode::OK, &receipt);
    replica::say_position(&mut answer.headers, appended.head.seq);
    Ok(answer)
}

/// `?expect=SEQ`: append only if the feed ends there.
fn expected(query: Option<&str>) -> Result<Expected, Problem> {
    let Some(value) = parameters(query).find(|(name, _)| name == "expect").map(|(_, value)| value) else {
        return Ok(Expected::Any);
    };
    let seq = value.parse().map_err(|_| Problem::bad_request(format!("expect={value:?} is not a number")))?;
    Ok(Expected::Last(seq))
}

fn lines(text: &[u8], now: Timestamp) -> Result<Vec<NewChange>, Problem> {
    let mut changes = Vec::new();
    for (index, line) in text.split(|b| *b == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if changes.len() == MAX_LINES {
            return Err(Problem::too_large(format!("more than {MAX_LINES} lines; split the batch")));
        }
        let change = Line::parse(line).and_then(Line::into_change);
        let change = change.map_err(|e| Problem::bad_request(format!("line {}: {e}", index + 1)))?;
        changes.push(change.not_after(now));
    }
    Ok(changes)
}

/// `/feeds/{feed}/items/{id}`.
pub(super) async fn item(
    engine: &Engine,
    peer: SocketAddr,
    feed: &str,
    id: &str,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return get(engine, feed, id, &request).await;
    }
    if !matches!(*request.method(), Method::PUT | Method::PATCH | Method::DELETE) {
        return Err(Problem::method("GET, HEAD, PUT, PATCH, DELETE"));
    }
    auth::may_publish(&engine.config.server.tokens, peer, &request)?;
    let feed = to_change(engine, feed)?;
    let condition = Condition::of(request.headers())?;
    let method = request.method().clone();
    let change = match method {
        Method::PUT => NewChange::put(put_item(id, request).await?),
        Method::PATCH => NewChange::patch(id, content(request, towpath_proto::patch::MERGE_PATCH).await?),
        _ => NewChange::delete(id),
    };
    let (known, appended) = append_if(engine, &feed, &condition, change).await?;
    let created = method == Method::PUT && !known;
    Ok(receipt(engine, &feed, id, &method, created, appended))
}

/// Appends under the request's conditions, again if others were faster. Returns whether the item was there.
async fn append_if(
    engine: &Engine,
    feed: &Feed,
    condition: &Condition,
    change: NewChange,
) -> Result<(bool, Appended), Problem> {
    let id = change.item.id.as_str();
    for _ in 0..TRIES {
        let head = engine.store.head(feed.id()).await?;
        let latest = engine.store.latest(feed.id(), id).await?.filter(|latest| latest.op != Op::Delete);
        if change.op != Op::Put && latest.is_none() {
            return Err(Problem::not_found(format!("feed {} has no item {id:?}", feed.id())));
        }
        condition.check(latest.as_ref())?;
        let expected = if condition.is_free() { Expected::Any } else { Expected::Last(head.seq) };
        match engine.store.append(feed.id(), expected, vec![change.clone()]).await {
            Ok(appended) => return Ok((latest.is_some(), appended)),
            Err(AppendError::Conflict { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(Problem::busy("others keep appending to this feed; try again"))
}

fn receipt(engine: &Engine, feed: &Feed, id: &str, method: &Method, created: bool, done: Appended) -> Answer {
    let op = match *method {
        Method::PUT => Op::Put,
        Method::PATCH => Op::Patch,
        _ => Op::Delete,
    };
    let receipt =
        json!({ "feed": feed.id(), "id": id, "op": op, "seq": done.first, "modified": done.head.modified });
    let mut answer = json_answer(if created { StatusCode::CREATED } else { StatusCode::OK }, &receipt);
    replica::say_position(&mut answer.headers, done.head.seq);
    insert(&mut answer.headers, ETAG, &format!("\"{}\"", done.first));
    if created {
        insert(&mut answer.headers, LOCATION, &item_url(&engine.base_url, feed.id(), id));
    }
    answer
}

/// The address of an item.
pub(crate) fn item_url(base_url: &str, feed: &FeedId, id: &str) -> String {
    let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
    format!("{base_url}/feeds/{feed}/items/{id}")
}

/// The item that a PUT describes: the body is its content, the query the rest.
async fn put_item(id: &str, request: Request<Incoming>) -> Result<Item, Problem> {
    let mut item = Item::new(id);
    item.check().map_err(|e| Problem::bad_request(e.to_string()))?;
    for (name, value) in parameters(request.uri().query()) {
        set(&mut item, &name, value.into_owned())?;
    }
    let is_typed = request.headers().contains_key(CONTENT_TYPE);
    let content = content(request, "application/octet-stream").await?;
    item.content = Some(content).filter(|content| is_typed || !content.bytes.is_empty());
    Ok(item)
}

fn set(item: &mut Item, name: &str, value: String) -> Result<(), Problem> {
    let date = |value: &str| {
        value
            .parse()
            .map(Some)
            .map_err(|e| Problem::bad_request(format!("{name}={value:?} is not a time: {e}")))
    };
    match name {
        "title" => item.title = Some(value),
        "url" => item.url = Some(value),
        "summary" => item.summary = Some(value),
        "author" => item.authors.push(Author::named(value)),
        "tag" => item.tags.push(value),
        "published" => item.published = date(&value)?,
        "updated" => item.updated = date(&value)?,
        _ => return Err(Problem::bad_request(format!("unknown parameter {name:?}"))),
    }
    Ok(())
}

/// The request's body, of its type or else the `usual` one.
async fn content(request: Request<Incoming>, usual: &str) -> Result<Content, Problem> {
    let value = request.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).transpose();
    let media_type = value.map_err(|_| Problem::bad_request("Content-Type is not text"))?.unwrap_or(usual);
    let mut content = Content::new(media_type, Bytes::new());
    content.check_type().map_err(|e| Problem::bad_request(e.to_string()))?;
    content.bytes = body::read(request, MAX_CONTENT).await?;
    Ok(content)
}

/// `If-Match` and `If-None-Match: *` (RFC 9110, section 13.1) on the item's version.
struct Condition {
    matching: Option<String>,
    absent: bool,
}

impl Condition {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let text = |name: HeaderName| {
            let value = headers.get(&name).map(|value| value.to_str().map(str::to_owned));
            value.transpose().map_err(|_| Problem::bad_request(format!("{name} is not text")))
        };
        let absent = match text(IF_NONE_MATCH)?.as_deref() {
            None => false,
            Some("*") => true,
            Some(_) => return Err(Problem::bad_request("If-None-Match of a change can only be *")),
        };
        Ok(Self { matching: text(IF_MATCH)?, absent })
    }

    fn is_free(&self) -> bool {
        self.matching.is_none() && !self.absent
    }

    fn check(&self, latest: Option<&Change>) -> Result<(), Problem> {
        if self.absent && latest.is_some() {
            return Err(Problem::precondition("the item is there already"));
        }
        let Some(list) = &self.matching else { return Ok(()) };
        let Some(latest) = latest else { return Err(Problem::precondition("there is no such item")) };
        let tag = format!("\"{}\"", latest.seq);
        if list == "*" || list.split(',').any(|one| one.trim() == tag) {
            return Ok(());
        }
        Err(Problem::precondition(format!("the item's version is {tag}")))
    }
}

async fn get(engine: &Engine, feed: &str, id: &str, request: &Request<Incoming>) -> Result<Answer, Problem> {
    let known = engine.feed(feed).ok_or_else(|| no_feed(feed))?;
    let latest = engine.store.latest(known.id(), id).await?;
    let latest = latest.ok_or_else(|| Problem::not_found(format!("feed {feed} has no item {id:?}")))?;
    if latest.op == Op::Delete {
        return Err(Problem::gone(format!("item {id:?} was deleted at {}", latest.modified)));
    }
    let as_line = parameters(request.uri().query()).any(|(name, value)| name == "as" && value == "line");
    let mut answer = match &latest.item.content {
        Some(content) if !as_line => raw(content),
        _ => line(&latest)?,
    };
    let tag = format!("\"{}\"", latest.seq);
    insert(&mut answer.headers, ETAG, &tag);
    // A mirror has its publisher's times, which may lie in the future (RFC 9110, section 8.8.2.1).
    let last_modified = http_date::write(latest.modified.min(engine.now()));
    insert(&mut answer.headers, LAST_MODIFIED, &last_modified);
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Sent as it is: its tag is the version, which If-Match may name, so it must not be weak.
    let document = Document::uncoded(answer.body, answer.headers, Valid::UntilReplaced);
    Ok(document.dated_by_its_changes().answer_compressing(request.headers()))
}

/// Content as it was published. It is not ours: a browser must neither guess its type nor run it here.
fn raw(content: &Content) -> Answer {
    let mut headers = HeaderMap::new();
    insert(&mut headers, CONTENT_TYPE, &content.media_type);
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("content-security-policy", HeaderValue::from_static("sandbox; default-src 'none'"));
    Answer { status: StatusCode::OK, headers, body: content.bytes.clone() }
}

fn line(change: &Change) -> Result<Answer, Problem> {
    let mut line = Line::new(Op::Put, &change.item, None);
    line.modified = Some(change.modified);
    line.position = Some(change.seq.to_string());
    let body = serde_json::to_vec(&line).map_err(|e| Problem::internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, "application/json; charset=utf-8", body))
}

/// The feed of a name whose items are to be changed.
fn to_change(engine: &Engine, feed: &str) -> Result<Arc<Feed>, Problem> {
    let feed = with_log(engine, feed)?;
    feed.not_published_to().map_or(Ok(feed), |why| Err(Problem::conflict(why)))
}

/// The feed of a name that has a log of its own, made where publishing may make it.
pub(super) fn with_log(engine: &Engine, feed: &str) -> Result<Arc<Feed>, Problem> {
    let id = FeedId::new(feed).map_err(|e| Problem::not_found(e.to_string()))?;
    let feed = engine.feed_to_publish(&id).ok_or_else(|| no_feed(feed))?;
    feed.without_log().map_or(Ok(feed), |why| Err(Problem::conflict(why)))
}

/// The problem of a feed that is not there.
pub(super) fn no_feed(feed: &str) -> Problem {
    let shown: String = feed.chars().take(64).collect();
    Problem::not_found(format!(
        "there is no feed {shown:?}; add a [[feed]] with this id to the configuration"
    ))
}

/// The parameters of a query, decoded.
pub(super) fn parameters(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

/// An answer of some type.
pub(super) fn whole(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]);
    Answer { status, headers, body: body.into() }
}

fn json_answer(status: StatusCode, value: &serde_json::Value) -> Answer {
    whole(status, "application/json; charset=utf-8", value.to_string())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // What cannot stand in a header (a line break in a media type) is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
