//! `/feeds/{feed}/items`: publishing, and reading one item.

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
use towpath_proto::{Author, Change, Content, Item, NewChange, Op};
use towpath_store::{AppendError, Appended, Expected};

use crate::config::TokenRight;
use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::respond::whole;
use crate::document::route_error::RouteError;
use crate::engine::access::may_change;
use crate::engine::publish::{Published, publish};
use crate::engine::request::{feed_with_log, known_feed, parameters};
use crate::engine::{Engine, Feed, request_body};
use crate::protocols::addresses::item_url;
use crate::server::read_your_writes::set_position;

/// Largest content of an item over HTTP, in bytes.
// A body is held in memory as a whole while it is appended.
const MAX_CONTENT: usize = 64 << 20;
/// Largest batch, in bytes.
const MAX_BATCH: usize = 64 << 20;
/// Limit of lines in a batch, which is appended atomically.
const MAX_LINES: usize = 10_000;
/// Attempts of a change while others change the same item.
// Each failed attempt means that another change of it won, so the item as a whole makes progress.
const TRIES: usize = 20;

/// `POST /feeds/{feed}/items`: a batch of lines, appended whole or not at all.
pub(crate) async fn post(
    engine: &Engine,
    peer: SocketAddr,
    feed: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let sender = may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    // Only after the token: a stranger must not create feeds by name.
    let feed = to_change(engine, feed)?;
    let expected = expected(request.uri().query())?;
    let changes = lines(&request_body::read(&engine.config.server, request, MAX_BATCH).await?, engine.now())?;
    let count = changes.len();
    let Published { appended, unchanged } =
        publish(engine.store.as_ref(), feed.id(), expected, changes).await?;
    tracing::debug!(feed = %feed.id(), token = %sender, count, last = appended.head.seq, "published a batch");
    let receipt = json!({
        "feed": feed.id(),
        "appended": count - unchanged,
        "unchanged": unchanged,
        "first": appended.first,
        "last": appended.head.seq,
        "modified": appended.head.modified,
    });
    let mut answer = json_answer(StatusCode::OK, &receipt);
    set_position(&mut answer.headers, appended.head.seq);
    Ok(answer)
}

/// Parses `?expect=SEQ`: append only if the feed ends there.
fn expected(query: Option<&str>) -> Result<Expected, RouteError> {
    let Some(value) = parameters(query).find(|(name, _)| name == "expect").map(|(_, value)| value) else {
        return Ok(Expected::Any);
    };
    let seq =
        value.parse().map_err(|_| RouteError::bad_request(format!("expect={value:?} is not a number")))?;
    Ok(Expected::Last(seq))
}

fn lines(text: &[u8], now: Timestamp) -> Result<Vec<NewChange>, RouteError> {
    let mut changes = Vec::new();
    for (index, line) in text.split(|b| *b == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if changes.len() == MAX_LINES {
            return Err(RouteError::too_large(format!("more than {MAX_LINES} lines; split the batch")));
        }
        let change = Line::parse(line).and_then(Line::into_change);
        let change = change.map_err(|e| RouteError::bad_request(format!("line {}: {e}", index + 1)))?;
        changes.push(change.not_after(now));
    }
    Ok(changes)
}

/// `/feeds/{feed}/items/{id}`.
pub(crate) async fn item(
    engine: &Engine,
    peer: SocketAddr,
    feed: &str,
    id: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return get(engine, feed, id, &request).await;
    }
    if !matches!(*request.method(), Method::PUT | Method::PATCH | Method::DELETE) {
        return Err(RouteError::method("GET, HEAD, PUT, PATCH, DELETE"));
    }
    let sender = may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    let feed = to_change(engine, feed)?;
    let condition = ItemPrecondition::of(request.headers())?;
    let method = request.method().clone();
    // The body is read after the checks above: a refused upload of 64 MiB is not received.
    let change = match method {
        Method::PUT => NewChange::put(put_item(engine, id, request).await?),
        Method::PATCH => {
            NewChange::patch(id, content(engine, request, towpath_proto::patch::MERGE_PATCH).await?)
        }
        _ => NewChange::delete(id),
    };
    let (known, appended) = append_if(engine, &feed, &condition, change).await?;
    let created = method == Method::PUT && !known;
    tracing::debug!(feed = %feed.id(), token = %sender, %method, item = id, seq = appended.first, "published");
    Ok(receipt(engine, &feed, id, &method, created, appended))
}

/// Appends under the request's preconditions. Returns true if the item existed.
///
/// Every append names the version that was read, so that of two first PUTs only one says "created", and of two DELETEs
/// only one finds the item.
async fn append_if(
    engine: &Engine,
    feed: &Feed,
    condition: &ItemPrecondition,
    mut change: NewChange,
) -> Result<(bool, Appended), RouteError> {
    for _ in 0..TRIES {
        let id = change.item.id.as_str();
        let latest = engine.store.latest(feed.id(), id).await?.filter(|latest| latest.op != Op::Delete);
        // Patching or deleting an absent item would append a change that says nothing.
        if change.op != Op::Put && latest.is_none() {
            return Err(RouteError::not_found(format!("feed {} has no item {id:?}", feed.id())));
        }
        condition.check(latest.as_ref())?;
        if let Some(latest) = latest.as_ref().filter(|latest| changes_nothing(latest, &mut change)) {
            let head = engine.store.head(feed.id()).await?;
            return Ok((true, Appended { first: latest.seq, head }));
        }
        let version = Expected::Version(latest.as_ref().map(|latest| latest.seq));
        match engine.store.append(feed.id(), version, vec![change.clone()]).await {
            Ok(appended) => return Ok((latest.is_some(), appended)),
            // The item changed meanwhile, so the condition is checked again.
            Err(AppendError::ItemConflict { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(RouteError::busy("others keep changing this item; try again"))
}

/// Returns true if a change leaves the item as it is: then nothing is appended, and readers are not woken.
fn changes_nothing(latest: &Change, change: &mut NewChange) -> bool {
    let after = match (change.op, &change.patch) {
        (Op::Put, _) => Some(change.content_hash()),
        (Op::Patch, Some(patch)) => {
            towpath_proto::patch::apply(&latest.item, patch).ok().map(|item| item.content_hash())
        }
        _ => None,
    };
    after == Some(latest.hash)
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
    set_position(&mut answer.headers, done.head.seq);
    insert(&mut answer.headers, ETAG, &format!("\"{}\"", done.first));
    if created {
        insert(&mut answer.headers, LOCATION, &item_url(&engine.base_url, feed.id(), id));
    }
    answer
}

/// Reads the item of a PUT: the body is its content, the query has the other fields.
async fn put_item(engine: &Engine, id: &str, request: Request<Incoming>) -> Result<Item, RouteError> {
    let mut item = Item::new(id);
    // Before the body is read: an invalid id is not worth receiving 64 MiB.
    item.check().map_err(|e| RouteError::bad_request(e.to_string()))?;
    for (name, value) in parameters(request.uri().query()) {
        set(&mut item, &name, value.into_owned())?;
    }
    let is_typed = request.headers().contains_key(CONTENT_TYPE);
    let content = content(engine, request, "application/octet-stream").await?;
    item.content = Some(content).filter(|content| is_typed || !content.bytes.is_empty());
    Ok(item)
}

fn set(item: &mut Item, name: &str, value: String) -> Result<(), RouteError> {
    let date = |value: &str| {
        value
            .parse()
            .map(Some)
            .map_err(|e| RouteError::bad_request(format!("{name}={value:?} is not a time: {e}")))
    };
    match name {
        "title" => item.title = Some(value),
        "url" => item.url = Some(value),
        "summary" => item.summary = Some(value),
        "author" => item.authors.push(Author::named(value)),
        "tag" => item.tags.push(value),
        "published" => item.published = date(&value)?,
        "updated" => item.updated = date(&value)?,
        _ => return Err(RouteError::bad_request(format!("unknown parameter {name:?}"))),
    }
    Ok(())
}

/// Reads the request's body. Its media type is the request's, or `usual` without one.
async fn content(engine: &Engine, request: Request<Incoming>, usual: &str) -> Result<Content, RouteError> {
    let value = request.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).transpose();
    let media_type = value.map_err(|_| RouteError::bad_request("Content-Type is not text"))?.unwrap_or(usual);
    let mut content = Content::new(media_type, Bytes::new());
    content.check_type().map_err(|e| RouteError::bad_request(e.to_string()))?;
    content.bytes = request_body::read(&engine.config.server, request, MAX_CONTENT).await?;
    Ok(content)
}

/// `If-Match` and `If-None-Match: *` (RFC 9110, section 13.1) on the item's version.
struct ItemPrecondition {
    matching: Option<String>,
    absent: bool,
}

impl ItemPrecondition {
    fn of(headers: &HeaderMap) -> Result<Self, RouteError> {
        let text = |name: HeaderName| {
            let value = headers.get(&name).map(|value| value.to_str().map(str::to_owned));
            value.transpose().map_err(|_| RouteError::bad_request(format!("{name} is not text")))
        };
        let absent = match text(IF_NONE_MATCH)?.as_deref() {
            None => false,
            Some("*") => true,
            // A list of tags would mean "unless it is one of these versions", which is not implemented.
            Some(_) => return Err(RouteError::bad_request("If-None-Match of a change can only be *")),
        };
        Ok(Self { matching: text(IF_MATCH)?, absent })
    }

    fn check(&self, latest: Option<&Change>) -> Result<(), RouteError> {
        if self.absent && latest.is_some() {
            return Err(RouteError::precondition("the item is there already"));
        }
        let Some(list) = &self.matching else { return Ok(()) };
        // Also for `*`: it holds only if there is a current representation (RFC 9110, section 13.1.1).
        let Some(latest) = latest else { return Err(RouteError::precondition("there is no such item")) };
        let tag = format!("\"{}\"", latest.seq);
        // Tags here are numbers, so a comma inside of quotes cannot occur.
        if list == "*" || list.split(',').any(|one| one.trim() == tag) {
            return Ok(());
        }
        Err(RouteError::precondition(format!("the item's version is {tag}")))
    }
}

async fn get(
    engine: &Engine,
    feed: &str,
    id: &str,
    request: &Request<Incoming>,
) -> Result<Answer, RouteError> {
    let known = known_feed(engine, feed)?;
    let latest = engine.store.latest(known.id(), id).await?;
    let latest = latest.ok_or_else(|| RouteError::not_found(format!("feed {feed} has no item {id:?}")))?;
    // 410 and not 404: caches and crawlers may then drop it for good (RFC 9110, section 15.5.11).
    if latest.op == Op::Delete {
        return Err(RouteError::gone(format!("item {id:?} was deleted at {}", latest.modified)));
    }
    let as_line = parameters(request.uri().query()).any(|(name, value)| name == "as" && value == "line");
    let mut answer = match &latest.item.content {
        Some(content) if !as_line => raw(content),
        _ => line(&latest)?,
    };
    let tag = format!("\"{}\"", latest.seq);
    insert(&mut answer.headers, ETAG, &tag);
    // A mirror has its publisher's times, and the origin's date must not be in the future (RFC 9110, section 8.8.2.1).
    let last_modified = http_date::write(latest.modified.min(engine.now()));
    insert(&mut answer.headers, LAST_MODIFIED, &last_modified);
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Sent uncompressed: its tag is the version that If-Match may name, so it must not become weak.
    let document = Document::uncoded(answer.body, answer.headers, Valid::UntilReplaced);
    Ok(document.dated_by_its_changes().answer_compressing(request.headers()))
}

/// Answers with content as it was published. It is a stranger's: a browser must neither guess its type nor run it.
fn raw(content: &Content) -> Answer {
    let mut headers = HeaderMap::new();
    insert(&mut headers, CONTENT_TYPE, &content.media_type);
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("content-security-policy", HeaderValue::from_static("sandbox; default-src 'none'"));
    Answer { status: StatusCode::OK, headers, body: content.bytes.clone() }
}

fn line(change: &Change) -> Result<Answer, RouteError> {
    let mut line = Line::new(Op::Put, &change.item, None);
    line.modified = Some(change.modified);
    line.position = Some(change.seq.to_string());
    let body = serde_json::to_vec(&line).map_err(|e| RouteError::internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, "application/json; charset=utf-8", body))
}

/// Returns the feed of a name, if it accepts changes.
fn to_change(engine: &Engine, feed: &str) -> Result<Arc<Feed>, RouteError> {
    let feed = feed_with_log(engine, feed)?;
    feed.not_published_to().map_or(Ok(feed), |why| Err(RouteError::conflict(why)))
}

fn json_answer(status: StatusCode, value: &serde_json::Value) -> Answer {
    whole(status, "application/json; charset=utf-8", value.to_string())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // A value that cannot be in a header, such as a media type with a line break, is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
