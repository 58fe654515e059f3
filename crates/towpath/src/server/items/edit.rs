//! Changes of an item that a request asks for: `PUT`, `PATCH` and `DELETE`.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::{Value, json};
use towpath_proto::{Author, Change, Content, Item, NewChange, Op};

use super::line_patch;
use crate::document::route_error::RouteError;
use crate::engine::request::{asks_for_line, check_parameters, parameters};
use crate::engine::{Engine, Feed, request_body};
use crate::server::publish::{
    self, BodyPlace, MAX_CONTENT, PublishedLine, ReceivedContent, ReceivedFile, UrlRule,
};

/// Parameters of a PUT that an item has one of.
const FIELDS: [&str; 8] = ["title", "url", "summary", "published", "updated", "image", "publish_at", "urls"];
/// Parameters of a PUT that an item has any number of.
const LISTS: [&str; 3] = ["author", "tag", "attachment"];

/// Change of an item that a request asks for.
pub(super) enum ItemEdit {
    Change(Box<NewChange>),
    /// Merge patch of the item's line.
    Line {
        patch: Value,
        id: String,
        urls: UrlRule,
    },
}

impl ItemEdit {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Change(change) => &change.item.id,
            Self::Line { id, .. } => id,
        }
    }

    /// Returns true if it needs an item that is there.
    pub(super) fn needs_item(&self) -> bool {
        !matches!(self, Self::Change(change) if change.op == Op::Put)
    }

    /// Returns the change to append to the latest version.
    pub(super) fn on(&self, latest: Option<&Change>) -> Result<NewChange, RouteError> {
        match (self, latest) {
            (Self::Change(change), _) => Ok(NewChange::clone(change)),
            (Self::Line { patch, urls, .. }, Some(latest)) => line_patch::apply(&latest.item, patch, *urls),
            (Self::Line { id, .. }, None) => Err(RouteError::not_found(format!("there is no item {id:?}"))),
        }
    }
}

/// Change that a request asks for.
pub(super) struct RequestedEdit {
    pub(super) edit: ItemEdit,
    /// Time at which it is to be done.
    pub(super) publish_at: Option<Timestamp>,
    /// File that is the item's content.
    pub(super) file: Option<Box<ReceivedFile>>,
}

impl From<ItemEdit> for RequestedEdit {
    fn from(edit: ItemEdit) -> Self {
        Self { edit, publish_at: None, file: None }
    }
}

/// Reads what a request asks for.
pub(super) async fn read(
    engine: &Engine,
    feed: &Feed,
    id: &str,
    request: Request<Incoming>,
) -> Result<RequestedEdit, RouteError> {
    let query = request.uri().query();
    let is_line = asks_for_line(query)?;
    match *request.method() {
        Method::PUT if !is_line => check_parameters(query, &FIELDS, &LISTS)?,
        Method::PUT | Method::PATCH if is_line => check_parameters(query, &["as", "urls"], &[])?,
        _ => check_parameters(query, &[], &[])?,
    }
    match *request.method() {
        Method::PUT if is_line => put_line(engine, id, request).await,
        Method::PUT => put_item(engine, feed, id, request).await,
        Method::PATCH if is_line => {
            let urls = UrlRule::of(request.uri().query())?;
            let patch = request_body::read(engine, request, MAX_CONTENT).await?;
            Ok(ItemEdit::Line { patch: line_patch::parse(&patch)?, id: id.to_owned(), urls }.into())
        }
        Method::PATCH => {
            let mut patch = content_type(&request, towpath_proto::patch::MERGE_PATCH)?;
            patch.bytes = request_body::read(engine, request, MAX_CONTENT).await?;
            Ok(ItemEdit::Change(Box::new(NewChange::patch(id, patch))).into())
        }
        _ => Ok(ItemEdit::Change(Box::new(NewChange::delete(id))).into()),
    }
}

/// Reads the item of a PUT: the body is its content, the query has the other fields.
async fn put_item(
    engine: &Engine,
    feed: &Feed,
    id: &str,
    request: Request<Incoming>,
) -> Result<RequestedEdit, RouteError> {
    let mut item = Item::new(id);
    // Before the body is read: an invalid id is not worth receiving 64 MiB.
    item.check().map_err(|e| RouteError::bad_request(e.to_string()))?;
    let urls = UrlRule::of(request.uri().query())?;
    let (mut publish_at, mut files) = (None, Vec::new());
    for (name, value) in parameters(request.uri().query()) {
        match &*name {
            "urls" => {}
            "publish_at" => publish_at = time(&name, &value)?,
            "attachment" => files.push(json!({ "url": value })),
            "image" => drop(item.extra.insert("image".into(), value.into_owned().into())),
            _ => set(&mut item, &name, value.into_owned())?,
        }
    }
    if !files.is_empty() {
        item.extra.insert("attachments".into(), files.into());
    }
    urls.check(&item).map_err(|(pointer, reason)| {
        let parameter = ["url", "image"].into_iter().find(|name| pointer == format!("/item/{name}"));
        RouteError::bad_request(reason).about(parameter.unwrap_or("attachment"))
    })?;
    let is_typed = request.headers().contains_key(CONTENT_TYPE);
    let mut content = content_type(&request, "application/octet-stream")?;
    let file = match publish::content(engine, feed, id, &content.media_type, request).await? {
        ReceivedContent::Whole(bytes) => {
            content.bytes = bytes;
            item.content = Some(content).filter(|content| is_typed || !content.bytes.is_empty());
            None
        }
        ReceivedContent::File(file) => {
            let size = file.upload.row.offset;
            let attachment = file.file.content(engine, feed.id(), &content.media_type, size);
            let list = item.extra.entry("attachments").or_insert_with(|| json!([]));
            list.as_array_mut().into_iter().for_each(|list| list.insert(0, attachment.clone()));
            Some(file)
        }
    };
    Ok(RequestedEdit { edit: ItemEdit::Change(Box::new(NewChange::put(item))), publish_at, file })
}

/// Reads the line of a PUT with `as=line`.
async fn put_line(
    engine: &Engine,
    id: &str,
    request: Request<Incoming>,
) -> Result<RequestedEdit, RouteError> {
    let urls = UrlRule::of(request.uri().query())?;
    let body = request_body::read(engine, request, MAX_CONTENT).await?;
    let line = publish::line(&body, BodyPlace::Only("the item"), urls)?;
    let PublishedLine { change, publish_at, .. } = line;
    if change.item.id != id || change.op != Op::Put {
        let (op, found) = (change.op.as_str(), &change.item.id);
        let what = format!("the line is a {op} of item {found:?}, and the address is of {id:?}");
        return Err(RouteError::bad_request(what).at("/id"));
    }
    let edit = ItemEdit::Change(Box::new(change.not_after(engine.now())));
    Ok(RequestedEdit { edit, publish_at, file: None })
}

fn time(name: &str, value: &str) -> Result<Option<Timestamp>, RouteError> {
    let error =
        |e| RouteError::bad_request(format!("{name}={value:?} is not a time: {e}")).about(name.to_owned());
    value.parse().map(Some).map_err(error)
}

fn set(item: &mut Item, name: &str, value: String) -> Result<(), RouteError> {
    match name {
        "title" => item.title = Some(value),
        "url" => item.url = Some(value),
        "summary" => item.summary = Some(value),
        "author" => item.authors.push(Author::named(value)),
        "tag" => item.tags.push(value),
        "published" => item.published = time(name, &value)?,
        "updated" => item.updated = time(name, &value)?,
        _ => {
            return Err(RouteError::bad_request(format!("unknown parameter {name:?}")).about(name.to_owned()));
        }
    }
    Ok(())
}

/// Returns the request's content without its bytes. Its media type is the request's, or `usual` without one.
fn content_type(request: &Request<Incoming>, usual: &str) -> Result<Content, RouteError> {
    let value = request.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).transpose();
    let media_type = value.map_err(|_| RouteError::bad_request("Content-Type is not text"))?.unwrap_or(usual);
    let content = Content::new(media_type, Bytes::new());
    content.check_type().map_err(|e| RouteError::bad_request(e.to_string()))?;
    Ok(content)
}
