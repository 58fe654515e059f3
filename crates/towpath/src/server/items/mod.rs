//! `/feeds/{feed}/items/{id}`: publishing and reading one item.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, LAST_MODIFIED, LOCATION, VARY};
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use towpath_proto::change::Seq;
use towpath_proto::format::http_date;
use towpath_proto::smart::publish::lines;
use towpath_proto::smart::spec::OrderBy;
use towpath_proto::{Change, NewChange, Op};
use towpath_store::{AppendError, Appended, Expected, OpCounts};
use tracing::Instrument as _;

use crate::config::TokenRight;
use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::respond::whole;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::access::may_change;
use crate::engine::attachments::{self, KeptFile, content_key};
use crate::engine::item_versions::{changes_nothing, version, versions};
use crate::engine::request::{asks_for_line, feed_to_change, known_feed, parameters};
use crate::engine::scheduled::{self, Cancellation};
use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::item_url;
use crate::protocols::smart::settings;
use crate::server::item_response::{insert, json_answer, raw, raw_headers};
use crate::server::read_your_writes::set_position;
use crate::server::routed::Routed;
use crate::server::{file_response, publish};

mod edit;
mod line_patch;
mod precondition;

use edit::{ItemEdit, RequestedEdit};
use precondition::ItemPrecondition;

/// Attempts of a change while others change the same item.
// Each failed attempt means that another change of it won, so the item as a whole makes progress.
const TRIES: usize = 20;

/// Changes `/feeds/{feed}/items/{id}`.
pub(crate) async fn item(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    id: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    if !matches!(*request.method(), Method::PUT | Method::PATCH | Method::DELETE) {
        return Err(RouteError::method("DELETE, GET, HEAD, OPTIONS, PATCH, PUT"));
    }
    let sender = may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    let feed = feed_to_change(engine, feed)?;
    let condition = ItemPrecondition::of(request.headers())?;
    let method = request.method().clone();
    if publish::is_large(&request) {
        condition.check(live(engine, &feed, id).await?.as_ref())?;
    }
    let (at, id) = (engine.clone(), id.to_owned());
    let changing = async move {
        // The body is read after the checks above: a refused upload of 64 MiB is not received.
        let RequestedEdit { edit, publish_at, file } = edit::read(&at, &feed, &id, request).await?;
        let done = change(&at, &feed, &condition, &method, edit, publish_at).await;
        if let Some(file) = file {
            file.end_upload(&at, &done).await;
        }
        if let Ok(answer) = &done {
            let status = answer.status.as_u16();
            tracing::debug!(feed = %feed.id(), token = %sender, %method, item = id, status, "published");
        }
        done
    };
    // If the client goes, a body that still comes is cut off, and what has come whole is published.
    run_detached(engine, changing).await?
}

/// Makes a change that was received.
async fn change(
    engine: &Engine,
    feed: &Feed,
    condition: &ItemPrecondition,
    method: &Method,
    edit: ItemEdit,
    publish_at: Option<Timestamp>,
) -> Result<Answer, RouteError> {
    let id = edit.id().to_owned();
    if let (Some(at), ItemEdit::Change(change)) = (publish_at.filter(|at| *at > engine.now()), &edit) {
        return later(engine, feed, condition, NewChange::clone(change), at).await;
    }
    // Before the append: what was scheduled must not come after what replaces it.
    let cancellation = match *method {
        Method::PATCH => Cancellation::default(),
        _ => scheduled::cancel(engine, feed.id(), std::iter::once(id.as_str())).await?,
    };
    let count = cancellation.count();
    let done = match append_if(engine, feed, condition, edit).await {
        Ok(done) => Some(done),
        // It was to be published, and now is not: that is a deletion, too.
        Err(e) if e.kind == RouteErrorKind::NotFound && count > 0 && condition.check(None).is_ok() => None,
        Err(e) => {
            if !e.kind.is_uncertain() {
                cancellation.withdraw(engine, feed.id()).await?;
            }
            return Err(e);
        }
    };
    let count = cancellation.confirm(engine, feed.id()).await?;
    if done.is_none() && count == 0 {
        return Err(RouteError::busy("what was scheduled for this item was just published; try again"));
    }
    if *method == Method::DELETE {
        attachments::forget(engine, feed.id(), std::slice::from_ref(&id)).await?;
    }
    let cancelled = Some(count).filter(|count| *count > 0);
    let Some(done) = done else {
        let receipt = ItemReceipt { cancelled, ..ItemReceipt::new(feed, &id, Op::Delete) };
        return Ok(json_answer(StatusCode::OK, &json!(receipt)));
    };
    Ok(receipt(engine, feed, &id, method, cancelled, &done))
}

/// Returns the latest version of an item that is not deleted.
async fn live(engine: &Engine, feed: &Feed, id: &str) -> Result<Option<Change>, RouteError> {
    Ok(engine.store.latest(feed.id(), id).await?.filter(|latest| latest.op != Op::Delete))
}

/// Schedules a change of an item for a time to come.
async fn later(
    engine: &Engine,
    feed: &Feed,
    condition: &ItemPrecondition,
    change: NewChange,
    at: Timestamp,
) -> Result<Answer, RouteError> {
    let id = change.item.id.clone();
    let latest = live(engine, feed, &id).await?;
    condition.check(latest.as_ref())?;
    let op = change.op;
    scheduled::schedule(engine, feed.id(), vec![(change, at)]).await?;
    let receipt = ItemReceipt { scheduled: Some(1), publish_at: Some(at), ..ItemReceipt::new(feed, &id, op) };
    // Accepted, and not done yet (RFC 9110, section 15.3.3).
    Ok(json_answer(StatusCode::ACCEPTED, &json!(receipt)))
}

/// Receipt for a change of an item.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::server) struct ItemReceipt {
    /// Number of changes that were appended: 1, or 0 if nothing had to change now.
    appended: u8,
    /// Number of scheduled changes that were cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<usize>,
    /// 1 if an item that was there was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<u8>,
    /// Id of the feed.
    feed: String,
    /// Id of the item.
    id: String,
    /// Time of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<Timestamp>,
    /// Operation.
    #[schemars(schema_with = "scheduled::op_schema")]
    op: Op,
    /// Time at which the change is published.
    #[serde(skip_serializing_if = "Option::is_none")]
    publish_at: Option<Timestamp>,
    /// 1 if the change is published later.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled: Option<u8>,
    /// Position of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<Seq>,
    /// 1 if the item stays as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    unchanged: Option<u8>,
}

impl ItemReceipt {
    fn new(feed: &Feed, id: &str, op: Op) -> Self {
        Self {
            appended: 0,
            cancelled: None,
            changed: None,
            feed: feed.id().to_string(),
            id: id.to_owned(),
            modified: None,
            op,
            publish_at: None,
            scheduled: None,
            seq: None,
            unchanged: None,
        }
    }
}

/// Result of changing an item.
struct ItemAppend {
    /// True if the item was there before.
    existed: bool,
    /// True if nothing was appended, since nothing would have changed.
    is_unchanged: bool,
    appended: Appended,
    /// Time of the version that the item has now.
    modified: Timestamp,
}

/// Appends under the request's preconditions.
///
/// Every append names the version that was read, so that of two first PUTs only one says "created", and of two DELETEs
/// only one finds the item.
async fn append_if(
    engine: &Engine,
    feed: &Feed,
    condition: &ItemPrecondition,
    edit: ItemEdit,
) -> Result<ItemAppend, RouteError> {
    for _ in 0..TRIES {
        let id = edit.id();
        let latest = live(engine, feed, id).await?;
        // Patching or deleting an absent item would append a change that says nothing.
        if edit.needs_item() && latest.is_none() {
            return Err(RouteError::not_found(format!("feed {} has no item {id:?}", feed.id())));
        }
        condition.check(latest.as_ref())?;
        let mut change = edit.on(latest.as_ref())?;
        if let Some(latest) = latest.as_ref().filter(|latest| changes_nothing(latest, &mut change)) {
            let head = engine.store.head(feed.id()).await?;
            let appended = Appended { first: latest.seq, head, ops: OpCounts::default() };
            return Ok(ItemAppend { existed: true, is_unchanged: true, appended, modified: latest.modified });
        }
        let version = Expected::Version(latest.as_ref().map(|latest| latest.seq));
        let span = crate::spans::span!("append", feed = %feed.id(), changes = 1);
        match engine.store.append(feed.id(), version, vec![change]).instrument(span).await {
            Ok(appended) => {
                let (existed, modified) = (latest.is_some(), appended.head.modified);
                return Ok(ItemAppend { existed, is_unchanged: false, appended, modified });
            }
            // The item changed meanwhile, so the condition is checked again.
            Err(AppendError::ItemConflict { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(RouteError::busy("others keep changing this item; try again"))
}

fn receipt(
    engine: &Engine,
    feed: &Feed,
    id: &str,
    method: &Method,
    cancelled: Option<usize>,
    append: &ItemAppend,
) -> Answer {
    let done = &append.appended;
    let appended = u8::from(!append.is_unchanged);
    let op = match *method {
        Method::PUT => Op::Put,
        Method::PATCH => Op::Patch,
        _ => Op::Delete,
    };
    let receipt = ItemReceipt {
        seq: Some(done.first),
        modified: Some(append.modified),
        cancelled,
        appended,
        changed: Some(if append.existed && op != Op::Delete { appended } else { 0 }),
        unchanged: Some(1 - appended),
        ..ItemReceipt::new(feed, id, op)
    };
    let created = op == Op::Put && !append.existed;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = json_answer(status, &json!(receipt));
    set_position(&mut answer.headers, done.head.seq);
    insert(&mut answer.headers, ETAG, &format!("\"{}\"", done.first));
    if created {
        insert(&mut answer.headers, LOCATION, &item_url(&engine.base_url, feed.id(), id));
    }
    answer
}

/// Answers with an item: its content, the file that is its content, or its line.
pub(crate) async fn read<B>(
    engine: &Engine,
    feed: &str,
    id: &str,
    request: &Request<B>,
) -> Result<Routed, RouteError> {
    let known = known_feed(engine, feed)?;
    let as_line = asks_for_line(request.uri().query())?;
    let position = position(request.uri().query(), "version")?;
    let latest = match position {
        Some(seq) => version(engine.store.as_ref(), known.id(), id, seq).await?,
        None => engine.store.latest(known.id(), id).await?,
    };
    let latest = latest.ok_or_else(|| match position {
        Some(seq) if seq <= known.horizon() => RouteError::gone(format!(
            "change {seq} of feed {feed} is no longer kept: old versions up to change {} were let go",
            known.horizon()
        )),
        Some(seq) => RouteError::not_found(format!("change {seq} of feed {feed} is none of item {id:?}")),
        None => RouteError::not_found(format!("feed {feed} has no item {id:?}")),
    })?;
    // 410 and not 404: caches and crawlers may then drop it for good (RFC 9110, section 15.5.11). The line of an earlier
    // deletion says so itself.
    if latest.op == Op::Delete && !(as_line && position.is_some()) {
        return Err(RouteError::gone(format!("item {id:?} was deleted at {}", latest.modified)));
    }
    let file = match &latest.item.content {
        None if !as_line => match content_file(engine, &known, &latest).await? {
            // Its line would look like the content, under the tag that the file had.
            None if position.is_some() && content_key(&latest.item, known.id()).is_some() => {
                return Err(RouteError::gone(format!(
                    "the content of change {} is a file that is no longer kept; ?as=line shows what the item says of it",
                    latest.seq
                )));
            }
            file => file,
        },
        _ => None,
    };
    let answer = match (&latest.item.content, &file) {
        (Some(content), _) if !as_line => raw(content),
        (_, Some(KeptFile::Whole(content))) => raw(content),
        (_, Some(KeptFile::Chunked(file))) => {
            let headers = raw_headers(&file.media_type);
            Answer { status: StatusCode::OK, headers, body: Bytes::new() }
        }
        _ => line(engine, &known, &latest)?,
    };
    let mut headers = answer.headers;
    insert(&mut headers, ETAG, &format!("\"{}\"", latest.seq));
    // A mirror has its publisher's times, and the origin's date must not be in the future (RFC 9110, section 8.8.2.1).
    insert(&mut headers, LAST_MODIFIED, &http_date::write(latest.modified.min(engine.now())));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Browsers get a page at this address.
    headers.insert(VARY, HeaderValue::from_static("accept"));
    if let Some(KeptFile::Chunked(file)) = file {
        return file_response::respond(engine, known.id(), file, headers, request);
    }
    // Sent uncompressed: its tag is the version that If-Match may name, so it must not become weak.
    let document = Document::uncoded(answer.body, headers, Valid::UntilReplaced);
    Ok(document.dated_by_its_changes().respond_compressing(request.headers()).into())
}

/// Returns the file that is the content of an item without inline content.
async fn content_file(engine: &Engine, feed: &Feed, change: &Change) -> Result<Option<KeptFile>, RouteError> {
    let Some(key) = content_key(&change.item, feed.id()) else { return Ok(None) };
    Ok(attachments::load(engine.store.as_ref(), feed.id(), &key).await?)
}

/// Most versions in an answer.
const MAX_VERSIONS: usize = 100;

/// Answers `/feeds/{feed}/items/{id}/versions`: the item's versions, newest first, from `?from=` on.
pub(crate) async fn list_versions<B>(
    engine: &Engine,
    feed: &str,
    id: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let known = known_feed(engine, feed)?;
    let latest = engine.store.latest(known.id(), id).await?;
    let latest = latest.ok_or_else(|| RouteError::not_found(format!("feed {feed} has no item {id:?}")))?;
    let from = position(request.uri().query(), "from")?.unwrap_or(latest.seq);
    let listed = versions(engine.store.as_ref(), known.id(), id, from, MAX_VERSIONS).await?;
    Ok(json_answer(StatusCode::OK, &json!(listed)))
}

/// Parses a position in the query.
fn position(query: Option<&str>, name: &'static str) -> Result<Option<Seq>, RouteError> {
    let given = parameters(query).find(|(given, _)| given == name);
    let Some((_, value)) = given else { return Ok(None) };
    let seq = value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
    let shown: String = value.chars().take(40).collect();
    let error =
        || RouteError::bad_request(format!("{name}={shown:?} is not the number of a change")).about(name);
    seq.map(Some).ok_or_else(error)
}

/// Answers with the line of an item.
fn line(engine: &Engine, feed: &Feed, change: &Change) -> Result<Answer, RouteError> {
    let mut line = lines::line(settings(engine, feed), OrderBy::Modified, change);
    // Asked for by its id, the item is what counts, not the last thing that happened to it.
    if line.op != Op::Delete {
        line.op = Op::Put;
    }
    let body = serde_json::to_vec(&line).map_err(|e| RouteError::internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, "application/json; charset=utf-8", body))
}
