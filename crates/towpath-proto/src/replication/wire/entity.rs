//! Converts changes to entities of a page, and back.
//!
//! An entity has the headers that the text requires. The rest of the item (id, title, URL…) is in our own
//! header [`wire::ITEM`], unless a reader restores the identical item without it. Entities of other publishers
//! therefore pass through a mirror unchanged. If the headers would exceed `MAX_HEADERS` bytes, the item is
//! in the body, before the content; see `body_with_item`.
//!
//! Another publisher may write an entity differently (other headers, another date format). The follower then
//! stores its headers in [`Change::entry_id`], see [`OriginalEntity`], and a mirror writes them again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::ReplicationError;
use super::headers::{self as wire, EntityHead, FeedEntityHead};
use crate::change::{Change, Op};
use crate::feed_id::FeedId;
use crate::follow::Followed;
use crate::format::http_date;
use crate::format::json_numbers::numbers_as_text;
use crate::format::multipart::{Entity, Headers, LargeBody};
use crate::item::{Content, Item};

/// Content-Type of an entity without content.
///
/// "Required and optional entity headers" requires a Content-Type of deletions too.
const NO_CONTENT_TYPE: &str = "application/octet-stream";

/// Limit of an entity's header lines in bytes, the empty line included.
///
/// Readers limit headers, and our first parser had this limit. Changing it would change sealed pages.
const MAX_HEADERS: usize = 64 << 10;

/// Longest media type in a Content-Type header, in bytes. A longer one is stored with the item.
const MAX_TYPE: usize = 1024;

/// The form of an entity at the publisher that it was mirrored from: the text of [`Change::entry_id`].
///
/// The text is the Content-ID alone if the rest can be derived from the change. Otherwise a line for each
/// header follows, and for a deletion with a body a line of `=` and the body in Base 64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalEntity {
    /// The Content-ID, brackets included.
    pub content_id: String,
    /// All headers, verbatim, if they cannot be derived.
    pub headers: Vec<(String, String)>,
    /// The body of a deletion, if not empty.
    pub body: Bytes,
}

impl OriginalEntity {
    /// Parses [`Change::entry_id`].
    pub fn parse(text: &str) -> Self {
        let mut lines = text.split('\n');
        let content_id = lines.next().unwrap_or_default().to_owned();
        let mut form = Self { content_id, headers: Vec::new(), body: Bytes::new() };
        for line in lines {
            if let Some(body) = line.strip_prefix('=') {
                // A damaged line loses the body only; the Content-ID still counts.
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

/// Returns the Content-ID of a change: the original one of a mirrored change, else `<{seq}@{feed}>`.
pub fn content_id(feed: &FeedId, change: &Change) -> String {
    match &change.entry_id {
        Some(entry) => OriginalEntity::parse(entry).content_id,
        None => format!("<{}@{feed}>", change.seq),
    }
}

/// Returns the approximate length of the entity's body: content or patch, and texts too long for headers.
pub fn body_len(change: &Change) -> u64 {
    let content = body(change.op, &change.item, change.patch.as_ref()).map_or(0, |c| c.bytes.len());
    let texts = [&change.item.title, &change.item.summary].into_iter().flatten().map(String::len).sum();
    // An estimate is enough: it decides only on which page an entity goes, and must never change.
    let texts = if change.op == Op::Put && texts > MAX_HEADERS { texts } else { 0 };
    (content + texts) as u64
}

/// Converts a change to an entity of a feed page ("Additional headers for feed entities").
pub fn feed_entity(feed: &FeedId, change: &Change) -> Entity {
    let form = change.entry_id.as_deref().map(OriginalEntity::parse);
    let content_id = content_id(feed, change);
    match form {
        // Headers are stored only if they cannot be derived, see `original_entity`.
        Some(form) if !form.headers.is_empty() => write_original(form, change),
        _ => write(Some(&content_id), change.op, &change.item, change.patch.as_ref(), change.modified),
    }
}

/// Converts the latest version of a live item to an entity of a snapshot page ("Page format").
pub fn snapshot_entity(change: &Change) -> Entity {
    write(None, Op::Put, &change.item, None, change.modified)
}

/// Writes an entity with its original headers. Time and body length are corrected to match this log.
fn write_original(form: OriginalEntity, change: &Change) -> Entity {
    let content = body(change.op, &change.item, change.patch.as_ref());
    let is_in_body = form
        .headers
        .iter()
        .any(|(name, value)| name.eq_ignore_ascii_case(wire::ITEM) && value == wire::IN_BODY);
    let body = match content {
        _ if !form.body.is_empty() => form.body,
        content if is_in_body => body_with_item(change.op, &change.item, content),
        content => content.map(|c| c.bytes.clone()).unwrap_or_default(),
    };
    let last_modified = http_date::write(change.modified);
    let mut headers = Headers::new();
    for (name, value) in &form.headers {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        // This log may have clamped the time, because times never decrease along it. Only then is the
        // original text replaced, which keeps another date format.
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
    // A media type with control characters or of extreme length would break the header block.
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
    let form = ItemHeader::new(op, item, content, sent_type);
    // The header is left out if it says nothing new; entities of other publishers never had one.
    if form == ItemHeader::implied(&headers, content_id, || digest(&body)) {
        return Entity { headers, body };
    }
    headers.push(wire::ITEM, &form.ascii());
    // HTTP and multipart parsers limit header blocks, a body has no such limit.
    if lines_len(&headers) > MAX_HEADERS {
        let body = body_with_item(op, item, content);
        let mut headers = head(wire::IN_BODY_TYPE, body.len());
        headers.push(wire::ITEM, wire::IN_BODY);
        return Entity { headers, body };
    }
    Entity { headers, body }
}

/// Returns the length of the header lines in bytes, the empty line included.
fn lines_len(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>() + 2
}

/// Returns a body with the item, for an item too long for headers: JSON, a line feed, the content.
fn body_with_item(op: Op, item: &Item, content: Option<&Content>) -> Bytes {
    let form = ItemHeader {
        content_type: content.map(|c| c.media_type.clone()),
        ..ItemHeader::new(op, item, content, wire::IN_BODY_TYPE)
    };
    let mut body = form.json().into_bytes();
    body.push(b'\n');
    body.extend_from_slice(content.map_or(&[], |c| &c.bytes));
    body.into()
}

/// Returns the SHA-256 of a body in hex.
fn digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

/// Splits a body with an item into the item and the content.
fn split_body(body: &Bytes) -> Result<(ItemHeader, Bytes), String> {
    // JSON of one line has no line feed, so the first one ends it. The content may have any bytes.
    let end = memchr::memchr(b'\n', body).ok_or("the body has no line of JSON")?;
    let form = std::str::from_utf8(&body[..end]).map_err(|e| e.to_string())?;
    let form = serde_json::from_str(&numbers_as_text(form)).map_err(|e| e.to_string())?;
    Ok((form, body.slice(end + 1..)))
}

/// Returns true if a media type survives as a header value.
fn is_clean(text: &str) -> bool {
    let is_short = (1..=MAX_TYPE).contains(&text.len());
    is_short && text.trim_ascii() == text && !text.bytes().any(|b| b.is_ascii_control())
}

/// The JSON of the [`wire::ITEM`] header, or of the first line of the body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ItemHeader {
    #[serde(flatten)]
    item: Item,
    /// False if the item has no content, as opposed to empty content.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    content: bool,
    /// The content's type, if it cannot be a Content-Type header.
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

impl ItemHeader {
    /// Collects the fields without a header of their own: all but the content of a put, else the id.
    fn new(op: Op, item: &Item, content: Option<&Content>, sent_type: &str) -> Self {
        let whole = op == Op::Put;
        let item = if whole { Item { content: None, ..item.clone() } } else { Item::new(&*item.id) };
        let content_type = content.filter(|c| c.media_type != sent_type).map(|c| c.media_type.clone());
        Self { item, content: !whole || content.is_some(), content_type }
    }

    /// Returns the item that a reader assumes if the header is missing.
    ///
    /// Its id is the Content-Location, the Content-ID, or else the digest of the body; it has content.
    fn implied(headers: &Headers, content_id: Option<&str>, digest: impl FnOnce() -> String) -> Self {
        // The order is part of the stored format: another one would give mirrored items other ids.
        let id = headers.get("content-location").or(content_id).filter(|id| !id.is_empty());
        let id = id.map_or_else(|| format!("sha256:{}", digest()), str::to_owned);
        Self { item: Item::new(id), content: true, content_type: None }
    }

    /// Returns JSON without line ends.
    fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns JSON in ASCII. Only strings have other characters, and those can be escaped.
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
                // JSON escapes are UTF-16 code units; characters beyond the BMP need two.
                text.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
        text
    }
}

/// A parsed entity of a feed page: the change, its Content-ID and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedEntity {
    /// The Content-ID.
    pub content_id: String,
    /// The Last-Modified.
    pub last_modified: Timestamp,
    /// The change.
    pub followed: Followed,
}

/// Reads entity `index` of a page of the feed named `feed`.
///
/// `large` is its body if that is not in memory: the content is empty then.
pub fn read_feed_entity(
    feed: &str,
    entity: &Entity,
    large: Option<&LargeBody>,
    index: u64,
) -> Result<FeedEntity, ReplicationError> {
    let head = FeedEntityHead::parse(&entity.headers, index)?;
    let (op, content_id, last_modified) = (head.op, head.content_id.to_owned(), head.entity.last_modified);
    let (item, content) = read_item(Some(&content_id), &head.entity, entity, large, index)?;
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
    // Kept for every entity: a mirror must publish the Content-ID of its publisher.
    followed.entry_id = Some(original_entity(&content_id, &followed, last_modified, entity).into_text());
    Ok(FeedEntity { content_id, last_modified, followed })
}

/// Reads entity `index` of a snapshot page. `position` becomes the change's position. `large` is as in
/// [`read_feed_entity`].
pub fn read_snapshot_entity(
    feed: &str,
    position: String,
    entity: &Entity,
    large: Option<&LargeBody>,
    index: u64,
) -> Result<Followed, ReplicationError> {
    let head = EntityHead::parse(&entity.headers, index)?;
    let content_id = entity.headers.get(wire::CONTENT_ID);
    let (item, content) = read_item(content_id, &head, entity, large, index)?;
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
    large: Option<&LargeBody>,
    index: u64,
) -> Result<(Item, Option<Content>), ReplicationError> {
    let unreadable = |reason| ReplicationError::ItemHeader { index, reason };
    let (form, bytes) = match entity.headers.get(wire::ITEM) {
        Some(wire::IN_BODY) if large.is_some() => {
            return Err(unreadable("the item is within a body above the limit (entity_mib)".into()));
        }
        // The body holds the item first; the content's type is in the JSON.
        Some(wire::IN_BODY) => split_body(&entity.body).map_err(unreadable)?,
        Some(text) => {
            let form = serde_json::from_str(&numbers_as_text(text));
            let form = form.map_err(|e| unreadable(e.to_string()))?;
            (form, entity.body.clone())
        }
        None => {
            let digest = || large.map_or_else(|| digest(&entity.body), |large| large.sha256.clone());
            (ItemHeader::implied(&entity.headers, content_id, digest), entity.body.clone())
        }
    };
    let ItemHeader { item, content, content_type } = form;
    let media_type = content_type.unwrap_or_else(|| head.content_type.to_owned());
    Ok((item, content.then_some(Content { media_type, bytes })))
}

/// Returns the original form of an entity, without headers if we would write the same entity ourselves.
fn original_entity(
    content_id: &str,
    followed: &Followed,
    modified: Timestamp,
    entity: &Entity,
) -> OriginalEntity {
    let ours = write(Some(content_id), followed.op, &followed.item, followed.patch.as_ref(), modified);
    let mut form =
        OriginalEntity { content_id: content_id.to_owned(), headers: Vec::new(), body: Bytes::new() };
    if !same_headers(&ours.headers, &entity.headers) || ours.body != entity.body {
        let headers = entity.headers.iter();
        form.headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    }
    // A deletion has no content, so a body of one has no other place to be kept.
    if followed.op == Op::Delete {
        form.body = entity.body.clone();
    }
    form
}

/// Returns true if two entities have the same headers, in any order.
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
    // Order first: it is the common case and needs no allocation.
    one == other || sorted(one) == sorted(other)
}
