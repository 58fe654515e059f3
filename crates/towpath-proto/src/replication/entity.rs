//! A change as an entity of a page, and back.
//!
//! An entity's headers say what the text demands. What is left of the item (its id, title, address…) stands
//! in one further header, [`wire::ITEM`], and only where a reader would not come to the same item without
//! it; so the entities of other publishers go through a mirror as they are. Where an entity's headers would
//! have more than [`MAX_HEADERS`] bytes with it, it stands in the body, before the content, see [`in_body`].
//!
//! Of an entity that we would have written otherwise (other headers, another spelling of a date) the
//! follower keeps the headers in [`Change::entry_id`], see [`EntryForm`], and the mirror writes them again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ReplicationError;
use super::wire::{self, EntityHead, FeedEntityHead};
use crate::change::{Change, Op};
use crate::feed_id::FeedId;
use crate::follow::Followed;
use crate::format::http_date;
use crate::format::multipart::{Entity, Headers};
use crate::item::{Content, Item};

/// The type of an entity that has no content ("Required and optional entity headers": Content-Type is
/// required of deletions too).
const NO_CONTENT_TYPE: &str = "application/octet-stream";

/// The most that the header lines of one entity have together, the empty line included, in bytes. Readers have
/// limits, and this was the first one of ours. As long as it stays, pages that are sealed stay as they are.
const MAX_HEADERS: usize = 64 << 10;

/// The longest media type that stands in a Content-Type, in bytes; a longer one stands with the item.
const MAX_TYPE: usize = 1024;

/// How an entity stood at the publisher that it was mirrored from: the text of [`Change::entry_id`].
///
/// The Content-ID alone where everything else of the entity can be derived from the change; otherwise a line
/// for each header follows, and for a deletion with a body a last line with `=` and the body in Base 64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryForm {
    /// The Content-ID, brackets included.
    pub content_id: String,
    /// All headers, verbatim, where they cannot be derived.
    pub headers: Vec<(String, String)>,
    /// The body of a deletion, where it is not empty.
    pub body: Bytes,
}

impl EntryForm {
    /// Reads [`Change::entry_id`].
    pub fn parse(text: &str) -> Self {
        let mut lines = text.split('\n');
        let content_id = lines.next().unwrap_or_default().to_owned();
        let mut form = Self { content_id, headers: Vec::new(), body: Bytes::new() };
        for line in lines {
            if let Some(body) = line.strip_prefix('=') {
                form.body = STANDARD.decode(body).unwrap_or_default().into();
            } else if let Some((name, value)) = line.split_once(": ") {
                form.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        form
    }

    fn into_text(self) -> String {
        let mut text = self.content_id;
        for (name, value) in &self.headers {
            text.extend(["\n", name, ": ", value]);
        }
        if !self.body.is_empty() {
            text.extend(["\n=", &STANDARD.encode(&self.body)]);
        }
        text
    }
}

/// The Content-ID of a change: the one it was mirrored with, or else `<{seq}@{feed}>`.
pub fn content_id(feed: &FeedId, change: &Change) -> String {
    match &change.entry_id {
        Some(entry) => EntryForm::parse(entry).content_id,
        None => format!("<{}@{feed}>", change.seq),
    }
}

/// How many bytes the entity's body has, about: the change's content or patch, and texts so long that they stand in
/// the body.
pub fn body_len(change: &Change) -> u64 {
    let content = body(change.op, &change.item, change.patch.as_ref()).map_or(0, |c| c.bytes.len());
    let texts = [&change.item.title, &change.item.summary].into_iter().flatten().map(String::len).sum();
    let texts = if change.op == Op::Put && texts > MAX_HEADERS { texts } else { 0 };
    (content + texts) as u64
}

/// A change as an entity of a feed page ("Additional headers for feed entities").
pub fn feed_entity(feed: &FeedId, change: &Change) -> Entity {
    let form = change.entry_id.as_deref().map(EntryForm::parse);
    let content_id = content_id(feed, change);
    match form {
        Some(form) if !form.headers.is_empty() => as_it_stood(form, change),
        _ => write(Some(&content_id), change.op, &change.item, change.patch.as_ref(), change.modified),
    }
}

/// The latest version of a live item as an entity of a snapshot page ("Page format").
pub fn snapshot_entity(change: &Change) -> Entity {
    write(None, Op::Put, &change.item, None, change.modified)
}

/// The headers of the publisher, with what must fit this log: its time and the body's length.
fn as_it_stood(form: EntryForm, change: &Change) -> Entity {
    let content = body(change.op, &change.item, change.patch.as_ref());
    let is_in_body = form
        .headers
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case(wire::ITEM) && value == wire::IN_BODY);
    let body = match content {
        _ if !form.body.is_empty() => form.body,
        content if is_in_body => in_body(change.op, &change.item, content),
        content => content.map(|c| c.bytes.clone()).unwrap_or_default(),
    };
    let last_modified = http_date::write(change.modified);
    let mut headers = Headers::new();
    for (name, value) in &form.headers {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        if is("last-modified") && http_date::parse(value) != http_date::parse(&last_modified) {
            headers.push(name, &last_modified);
        } else if is("content-length") {
            headers.push(name, &body.len().to_string());
        } else {
            headers.push(name, value);
        }
    }
    Entity { headers, body }
}

fn body<'a>(op: Op, item: &'a Item, patch: Option<&'a Content>) -> Option<&'a Content> {
    match op {
        Op::Put => item.content.as_ref(),
        Op::Patch => patch,
        Op::Delete => None,
    }
}

fn write(
    content_id: Option<&str>,
    op: Op,
    item: &Item,
    patch: Option<&Content>,
    modified: Timestamp,
) -> Entity {
    let content = body(op, item, patch);
    let body = content.map(|c| c.bytes.clone()).unwrap_or_default();
    let media_type = content.map_or(NO_CONTENT_TYPE, |c| c.media_type.as_str());
    let sent_type = if is_clean(media_type) { media_type } else { NO_CONTENT_TYPE };
    let head = |media_type: &str, length: usize| {
        let mut headers = Headers::new();
        if content_id.is_some() {
            headers.push(wire::OPERATION_TYPE, wire::operation_type(op));
        }
        headers.push("Content-Type", media_type);
        if let Some(content_id) = content_id {
            headers.push(wire::CONTENT_ID, content_id);
        }
        headers.push("Last-Modified", &http_date::write(modified));
        headers.push("Content-Length", &length.to_string());
        headers
    };
    let mut headers = head(sent_type, body.len());
    let form = ItemForm::new(op, item, content, sent_type);
    if form == ItemForm::implied(&headers, content_id, &body) {
        return Entity { headers, body };
    }
    headers.push(wire::ITEM, &form.ascii());
    if lines_len(&headers) > MAX_HEADERS {
        let body = in_body(op, item, content);
        let mut headers = head(wire::IN_BODY_TYPE, body.len());
        headers.push(wire::ITEM, wire::IN_BODY);
        return Entity { headers, body };
    }
    Entity { headers, body }
}

/// How many bytes the header lines have, the empty one included.
fn lines_len(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>() + 2
}

/// The body of an entity whose headers have no room for the item: the item as JSON, a line feed, the content.
fn in_body(op: Op, item: &Item, content: Option<&Content>) -> Bytes {
    let form = ItemForm {
        content_type: content.map(|c| c.media_type.clone()),
        ..ItemForm::new(op, item, content, wire::IN_BODY_TYPE)
    };
    let mut body = form.json().into_bytes();
    body.push(b'\n');
    body.extend_from_slice(content.map_or(&[], |c| &c.bytes));
    body.into()
}

/// Takes such a body apart.
fn split_body(body: &Bytes) -> Result<(ItemForm, Bytes), String> {
    let end = memchr::memchr(b'\n', body).ok_or("the body has no line of JSON")?;
    let form = serde_json::from_slice(&body[..end]).map_err(|e| e.to_string())?;
    Ok((form, body.slice(end + 1..)))
}

/// Whether a media type survives as a header's value.
fn is_clean(text: &str) -> bool {
    let is_short = (1..=MAX_TYPE).contains(&text.len());
    is_short && text.trim_ascii() == text && !text.bytes().any(|b| b.is_ascii_control())
}

/// What stands in the [`wire::ITEM`] header, or at the beginning of the body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ItemForm {
    #[serde(flatten)]
    item: Item,
    /// `false` for an item that has no content, not even empty content.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    content: bool,
    /// The content's type where it cannot stand in a Content-Type header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_yes(value: &bool) -> bool {
    *value
}

impl ItemForm {
    /// What of a change has no header of its own: of a put everything but the content, else the id.
    fn new(op: Op, item: &Item, content: Option<&Content>, sent_type: &str) -> Self {
        let whole = op == Op::Put;
        let item = if whole { Item { content: None, ..item.clone() } } else { Item::new(&*item.id) };
        let content_type = content.filter(|c| c.media_type != sent_type).map(|c| c.media_type.clone());
        Self { item, content: !whole || content.is_some(), content_type }
    }

    /// What a reader assumes of an entity without the header: that its id is its Content-Location, its
    /// Content-ID, or else the digest of its body, and that it has content.
    fn implied(headers: &Headers, content_id: Option<&str>, body: &[u8]) -> Self {
        let id = headers.get("content-location").or(content_id).filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("sha256:{}", hex::encode(Sha256::digest(body))), str::to_owned);
        Self { item: Item::new(id), content: true, content_type: None }
    }

    /// JSON without line ends.
    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// JSON in ASCII alone: outside ASCII are only characters within strings, which may be escaped.
    fn ascii(&self) -> String {
        let json = self.json();
        if json.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return json;
        }
        let mut text = String::with_capacity(json.len() * 2);
        for c in json.chars() {
            if matches!(c, ' '..='~') {
                text.push(c);
            } else {
                let mut units = [0; 2];
                text.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
        text
    }
}

/// An entity of a feed page, read: the change that it tells of, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedEntity {
    /// Its Content-ID.
    pub content_id: String,
    /// Its Last-Modified.
    pub last_modified: Timestamp,
    /// What it tells.
    pub followed: Followed,
}

/// Reads entity `index` of a page of the feed named `feed`.
pub fn read_feed_entity(feed: &str, entity: &Entity, index: u64) -> Result<FeedEntity, ReplicationError> {
    let head = FeedEntityHead::parse(&entity.headers, index)?;
    let (op, content_id, last_modified) = (head.op, head.content_id.to_owned(), head.entity.last_modified);
    let (item, content) = read_item(Some(&content_id), &head.entity, entity, index)?;
    let mut followed = Followed {
        feed: feed.to_owned(),
        op,
        item,
        patch: None,
        modified: Some(last_modified),
        position: content_id.clone(),
        entry_id: None,
    };
    match op {
        Op::Put => followed.item.content = content,
        Op::Patch => followed.patch = content,
        Op::Delete => {}
    }
    followed.entry_id = Some(entry_form(&content_id, &followed, last_modified, entity).into_text());
    Ok(FeedEntity { content_id, last_modified, followed })
}

/// Reads entity `index` of a snapshot's page; `position` names the place.
pub fn read_snapshot_entity(
    feed: &str,
    position: String,
    entity: &Entity,
    index: u64,
) -> Result<Followed, ReplicationError> {
    let head = EntityHead::parse(&entity.headers, index)?;
    let content_id = entity.headers.get(wire::CONTENT_ID);
    let (item, content) = read_item(content_id, &head, entity, index)?;
    Ok(Followed {
        feed: feed.to_owned(),
        op: Op::Put,
        item: Item { content, ..item },
        patch: None,
        modified: Some(head.last_modified),
        position,
        entry_id: None,
    })
}

fn read_item(
    content_id: Option<&str>,
    head: &EntityHead<'_>,
    entity: &Entity,
    index: u64,
) -> Result<(Item, Option<Content>), ReplicationError> {
    let unreadable = |reason| ReplicationError::ItemHeader { index, reason };
    let (form, bytes) = match entity.headers.get(wire::ITEM) {
        Some(wire::IN_BODY) => split_body(&entity.body).map_err(unreadable)?,
        Some(text) => {
            let form = serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?;
            (form, entity.body.clone())
        }
        None => (ItemForm::implied(&entity.headers, content_id, &entity.body), entity.body.clone()),
    };
    let ItemForm { item, content, content_type } = form;
    let media_type = content_type.unwrap_or_else(|| head.content_type.to_owned());
    Ok((item, content.then_some(Content { media_type, bytes })))
}

/// The entity's form: without headers where we would write the same entity ourselves.
fn entry_form(content_id: &str, followed: &Followed, modified: Timestamp, entity: &Entity) -> EntryForm {
    let ours = write(Some(content_id), followed.op, &followed.item, followed.patch.as_ref(), modified);
    let mut form = EntryForm { content_id: content_id.to_owned(), headers: Vec::new(), body: Bytes::new() };
    if !same_headers(&ours.headers, &entity.headers) || ours.body != entity.body {
        let headers = entity.headers.iter();
        form.headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    }
    if followed.op == Op::Delete {
        form.body = entity.body.clone();
    }
    form
}

/// Whether two entities have the same headers, in whatever order.
pub fn same_headers(one: &Headers, other: &Headers) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let sorted = |headers: &Headers| {
        let mut pairs: Vec<_> =
            headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        pairs.sort_unstable();
        pairs
    };
    one == other || sorted(one) == sorted(other)
}
