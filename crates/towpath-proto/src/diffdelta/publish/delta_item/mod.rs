//! Renders an item as a delta item (section 9).
//!
//! The schema's fields describe an item to any reader, within the schema's lengths (in characters). The rest
//! of the item goes to `source_payload`, from which our own follower restores the identical item.

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::chain::whole_second;
use super::collapse::Delta;
use super::site::SiteUrl;
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::payload::{PROFILE, Payload};
use crate::diffdelta::wire::{FLAGGED_FROM, hundredths, serialize_score, uri};
use crate::feed_id::FeedId;
use crate::format::html;
use crate::item::{Content, Item};
use crate::risk::Risk;

mod rendered;

pub use rendered::RenderedItem;

/// Length limits of the schema, in characters.
const MAX_ID: usize = 200;
const MAX_TITLE: usize = 200;
const MAX_TEXT: usize = 2000;
const MAX_EXCERPT: usize = 500;
const MAX_REASONS: usize = 10;
/// Size of a block of rendered items, in bytes. It is freed with the last of its items.
const BLOCK: usize = 64 << 10;

/// Renders the items of a source.
pub struct ItemRenderer<'a> {
    /// Base URL of the site, for items without a URL of their own.
    pub site: &'a SiteUrl,
    /// The source.
    pub source: &'a FeedId,
    /// The source's language tag, or `und`.
    pub lang: &'a str,
    /// Returns the risk score of an item.
    pub risk: &'a dyn Fn(&Item) -> Risk,
}

/// The schema's deltaItem, with fields in the order of their names, without `change`.
#[derive(Serialize)]
struct DeltaItem<'a> {
    content: Excerpt<'a>,
    headline: &'a str,
    id: &'a str,
    item_hash: String,
    provenance: Provenance<'a>,
    published_at: &'a str,
    risk: RiskField<'a>,
    source: &'a str,
    source_payload: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    updated_at: String,
    url: &'a str,
}

#[derive(Serialize)]
struct Excerpt<'a> {
    excerpt_text: &'a str,
    lang: &'a str,
}

#[derive(Serialize)]
struct Provenance<'a> {
    content_hash: String,
    evidence_urls: [&'a str; 1],
    fetched_at: Timestamp,
}

#[derive(Serialize)]
struct RiskField<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'a str>,
    #[serde(serialize_with = "serialize_score")]
    score: f64,
}

/// Returns the first `max_chars` characters of a text.
fn prefix(text: &str, max_chars: usize) -> &str {
    // No text has more characters than bytes.
    if text.len() <= max_chars {
        return text;
    }
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Formats a date in whole seconds, UTC, with `Z`, so that sorting as text is sorting by time.
///
/// Returns `None` for years that RFC 3339 cannot write.
fn date_text(time: Timestamp) -> Option<String> {
    let text = whole_second(time).to_string();
    (!text.starts_with('-')).then_some(text)
}

/// Returns the text of a date field, and the exact time for the payload if the text loses any of it.
fn date_field(
    time: Option<Timestamp>,
    name: &str,
    observed: &str,
    absent: &mut Vec<String>,
) -> (String, Option<Timestamp>) {
    let Some(time) = time else {
        absent.push(name.to_owned());
        return (observed.to_owned(), None);
    };
    match date_text(time) {
        Some(shown) if whole_second(time) == time => (shown, None),
        // Fractions of a second are lost in the field.
        Some(shown) => (shown, Some(time)),
        None => (observed.to_owned(), Some(time)),
    }
}

/// Returns the primary language of a tag if it has two or three letters, else `und`.
fn primary_language(tag: &str) -> String {
    let primary = tag.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
    // The schema's `lang` has two or three lower-case letters, and no region.
    let fits = (2..=3).contains(&primary.len()) && primary.bytes().all(|b| b.is_ascii_lowercase());
    if fits { primary } else { "und".to_owned() }
}

/// Returns the start of an item's text, or of its summary, as plain text.
fn excerpt(item: &Item) -> String {
    let of_summary = || item.summary.as_deref().map(|summary| html::to_text(summary, MAX_EXCERPT));
    item.content.as_ref().and_then(content_excerpt).or_else(of_summary).unwrap_or_default()
}

/// Returns the start of a content's text; `None` if it is no text for people.
fn content_excerpt(content: &Content) -> Option<String> {
    let essence = content.essence();
    let is_markup = essence == "text/html" || essence.ends_with("/xml") || essence.ends_with("+xml");
    // JSON that is cut off helps nobody; its summary says what it is about.
    if !is_markup && (!essence.starts_with("text/") || content.is_json()) {
        return None;
    }
    let text = content.text()?;
    // Markup in an excerpt would be read as text by clients.
    Some(if is_markup { html::to_text(text, MAX_EXCERPT) } else { prefix(text, MAX_EXCERPT).to_owned() })
}

/// Returns the title, else the start of the text, else the id. Never empty: the schema requires a headline.
fn headline<'a>(item: &'a Item, excerpt: &'a str, id: &'a str) -> &'a str {
    let title = item.title.as_deref().filter(|t| !t.trim().is_empty());
    if let Some(title) = title {
        // Not `MAX_TITLE`: the schema allows a headline of 2000 characters.
        return prefix(title, MAX_TEXT);
    }
    let start = prefix(excerpt.trim(), MAX_TITLE);
    if start.is_empty() { id } else { start }
}

/// Returns the field `summary`, unless the excerpt is the whole summary: no text stands twice.
fn summary<'a>(item: &'a Item, excerpt: &str, payload: &mut Payload<'_>) -> Option<&'a str> {
    let whole = item.summary.as_deref()?;
    if whole == excerpt && !whole.is_empty() {
        payload.same.push("summary".to_owned());
        return None;
    }
    let shown = Some(prefix(whole, MAX_TEXT)).filter(|s| !s.is_empty());
    payload.summary = (shown != Some(whole)).then(|| whole.to_owned());
    shown
}

/// Returns true if a reason fits the schema: 2 to 64 of `a-z`, `0-9`, `_`, `-`.
fn is_reason(reason: &str) -> bool {
    (2..=64).contains(&reason.len())
        && reason.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
}

impl ItemRenderer<'_> {
    /// Renders deltas as delta items, in their order.
    pub fn render(&self, deltas: &[Delta]) -> Vec<RenderedItem> {
        let mut writer = MemberWriter { text: Vec::new(), block: BytesMut::new(), left: deltas.len() };
        deltas.iter().map(|delta| self.render_item(delta, &mut writer)).collect()
    }

    fn render_item(&self, delta: &Delta, writer: &mut MemberWriter) -> RenderedItem {
        let item = &delta.item;
        let mut payload = Payload { profile: PROFILE.to_owned(), ..Payload::default() };
        let long_id = prefix(&item.id, MAX_ID).len() < item.id.len();
        // The schema allows 200 characters. A hash keeps long ids distinct; the payload has the whole one.
        let id = if long_id {
            payload.id = Some(item.id.clone());
            Cursor::of(item.id.as_bytes()).to_string()
        } else {
            item.id.clone()
        };
        let url = self.item_url(item, &mut payload);
        // The schema requires dates. The first observation stands in for a missing one; it is kept, so a
        // rerun renders the same bytes.
        let observed = date_text(delta.observed).unwrap_or_else(|| Timestamp::UNIX_EPOCH.to_string());
        let (published_at, published) =
            date_field(item.published, "published", &observed, &mut payload.absent);
        let (updated_at, updated) = date_field(item.updated, "updated", &observed, &mut payload.absent);
        (payload.published, payload.updated) = (published, updated);
        let excerpt = excerpt(item);
        let headline = headline(item, &excerpt, &id);
        // The schema limits lengths in characters. A shortened field is whole in the payload.
        let title = item.title.as_deref().map(|t| prefix(t, MAX_TITLE));
        payload.title = item.title.as_ref().filter(|t| Some(t.as_str()) != title).cloned();
        let summary = summary(item, &excerpt, &mut payload);
        payload.add_hidden(item);
        payload.removed_at = delta.removed_at;
        let risk = (self.risk)(item);
        // Stored with the change; computing it again would hash every content twice.
        let content_hash = delta.hash.to_string();
        let shown = DeltaItem {
            content: Excerpt { excerpt_text: &excerpt, lang: &primary_language(self.lang) },
            headline,
            id: &id,
            item_hash: item_hash(self.source.as_str(), &id, &content_hash),
            provenance: Provenance { content_hash, evidence_urls: [&url], fetched_at: delta.observed },
            published_at: &published_at,
            risk: RiskField {
                reasons: risk
                    .reasons
                    .iter()
                    .map(String::as_str)
                    // Rules come from users' files and need not fit the schema.
                    .filter(|r| is_reason(r))
                    .take(MAX_REASONS)
                    .collect(),
                score: risk.score,
            },
            source: self.source.as_str(),
            source_payload: payload,
            summary,
            title,
            updated_at,
            url: &url,
        };
        RenderedItem {
            kind: delta.kind,
            reason: delta.reason,
            flagged: is_flagged(risk.score),
            changed_in: None,
            members: writer.write(&shown),
            published_at,
            source: self.source.clone(),
            id,
        }
    }

    /// Returns the item's own URL if it is a URI, else the URL at which this site serves the item.
    fn item_url(&self, item: &Item, payload: &mut Payload<'_>) -> String {
        let shown = item.url.as_deref().and_then(uri::absolute);
        match &item.url {
            None => payload.absent.push("url".into()),
            // The schema wants a URI. One that had to be escaped or replaced is kept verbatim in the payload.
            Some(url) if Some(url) != shown.as_ref() => payload.url = Some(url.clone()),
            Some(_) => {}
        }
        shown.unwrap_or_else(|| self.site.item_url(self.source, &item.id))
    }
}

/// Returns true if an item with this score belongs to the flagged bucket (section 9).
///
/// Compares the rounded score, because a check sees only that one.
fn is_flagged(score: f64) -> bool {
    hundredths(score) >= hundredths(FLAGGED_FROM)
}

/// Computes the schema's `item_hash`: `sha256(source_id + '|' + id + '|' + content_hash)`.
fn item_hash(source: &str, id: &str, content_hash: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [source, "|", id, "|", content_hash] {
        hasher.update(part);
    }
    Cursor(hasher.finalize().into()).to_string()
}

/// Writer of many items' texts, which share blocks of memory. An allocation for each would cost as much as its text.
struct MemberWriter {
    /// The text of the item that is being written.
    text: Vec<u8>,
    block: BytesMut,
    /// Number of items that are still to be written.
    left: usize,
}

impl MemberWriter {
    /// Serialises the members and the closing brace, without the opening brace.
    fn write(&mut self, item: &DeltaItem<'_>) -> Bytes {
        self.text.clear();
        // Cannot fail: keys are strings and numbers are finite.
        let written = serde_json::to_writer(&mut self.text, item);
        debug_assert!(written.is_ok() && self.text.starts_with(b"{"));
        let members = self.text.get(1..).unwrap_or_default();
        if self.block.capacity() < members.len() {
            // For the items that are left only: one that waits for the global feed must not hold a whole block.
            let room = members.len().saturating_mul(self.left).min(BLOCK);
            self.block = BytesMut::with_capacity(room.max(members.len()));
        }
        self.left = self.left.saturating_sub(1);
        self.block.extend_from_slice(members);
        self.block.split().freeze()
    }
}

#[cfg(test)]
mod tests;
