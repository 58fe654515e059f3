//! An item as a delta item (section 9), and back.
//!
//! The fields of the schema show an item to any reader, within the schema's lengths (in characters). What a
//! plain reader of those could not reconstruct stands in `source_payload`, so that following a feed gives the
//! identical items. Free JSON ([`Item::extra`]) stands there as text: no number or key of somebody else's is
//! ever part of what a cursor covers, so that every implementation of canonical_v1 agrees on it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::collapse::Delta;
use super::publish::Site;
use super::uri;
use super::wire::{FLAGGED_FROM, hundredths, serialize_score};
use crate::feed_id::FeedId;
use crate::format::html;
use crate::item::{Author, Content, Item};
use crate::risk::Risk;

mod read;
mod rendered;

pub use read::{ReadDelta, read};
pub use rendered::Rendered;

/// Marks a `source_payload` of this form.
const PROFILE: &str = "towpath-item-1";
/// The schema's limits, in characters.
const MAX_ID: usize = 200;
const MAX_TITLE: usize = 200;
const MAX_TEXT: usize = 2000;
const MAX_EXCERPT: usize = 500;
const MAX_REASONS: usize = 10;

/// What is needed to show a source's items.
pub struct Rendering<'a> {
    /// Where the feed is served: the address of items that have none of their own.
    pub site: &'a Site,
    /// The source.
    pub source: &'a FeedId,
    /// The source's language tag, or `und`.
    pub lang: &'a str,
    /// Scores an item.
    pub risk: &'a dyn Fn(&Item) -> Risk,
}

/// Schema: deltaItem, in the order of the names, without `change`.
#[derive(Serialize)]
struct DeltaItem<'a> {
    content: Excerpt<'a>,
    headline: &'a str,
    id: &'a str,
    item_hash: String,
    provenance: Provenance<'a>,
    published_at: &'a str,
    risk: ShownRisk<'a>,
    source: &'a str,
    source_payload: Payload,
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
struct ShownRisk<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<&'a str>,
    #[serde(serialize_with = "serialize_score")]
    score: f64,
}

/// What the shown fields do not say of an item, in the order of the names.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Payload {
    /// Which shown fields the item does not have: `published`, `updated`, `url`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    absent: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authors: Vec<PayloadAuthor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    /// [`Item::extra`] as JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// [`PROFILE`].
    profile: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<Timestamp>,
    /// When a removed item was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// [`Author`] with its fields in the order of their names.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PayloadAuthor {
    #[serde(skip_serializing_if = "Option::is_none")]
    email: Option<String>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// The first characters of a text, up to a limit.
fn prefix(text: &str, max_chars: usize) -> &str {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// A date as it is shown: whole seconds, UTC, `Z` (so that sorting as text is sorting by time). `None` for
/// years that RFC 3339 cannot write.
fn shown_date(time: Timestamp) -> Option<String> {
    let whole = Timestamp::from_second(time.as_second()).ok()?;
    let text = whole.to_string();
    (!text.starts_with('-')).then_some(text)
}

/// Shows one date: what is shown, and what the payload must say instead of it.
fn show_date(
    time: Option<Timestamp>,
    name: &str,
    observed: &str,
    absent: &mut Vec<String>,
) -> (String, Option<Timestamp>) {
    let Some(time) = time else {
        absent.push(name.to_owned());
        return (observed.to_owned(), None);
    };
    match shown_date(time) {
        Some(shown) if shown == time.to_string() => (shown, None),
        Some(shown) => (shown, Some(time)),
        None => (observed.to_owned(), Some(time)),
    }
}

/// The first two or three letters of a language tag, or `und`.
fn shown_lang(tag: &str) -> String {
    let primary = tag.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
    let fits = (2..=3).contains(&primary.len()) && primary.bytes().all(|b| b.is_ascii_lowercase());
    if fits { primary } else { "und".to_owned() }
}

/// The start of what an item says, as plain text.
fn excerpt(item: &Item) -> String {
    if let Some(content) = &item.content
        && let Some(text) = content.text()
    {
        let essence = content.essence();
        if essence == "text/html" || essence.ends_with("/xml") || essence.ends_with("+xml") {
            return html::to_text(text, MAX_EXCERPT);
        }
        if essence.starts_with("text/") || content.is_json() {
            return prefix(text, MAX_EXCERPT).to_owned();
        }
    }
    item.summary.as_deref().map(|s| html::to_text(s, MAX_EXCERPT)).unwrap_or_default()
}

/// A title where there is one, else the start of the text, else the id: never empty.
fn headline<'a>(item: &'a Item, excerpt: &'a str, id: &'a str) -> &'a str {
    let title = item.title.as_deref().filter(|t| !t.trim().is_empty());
    if let Some(title) = title {
        return prefix(title, MAX_TEXT);
    }
    let start = prefix(excerpt.trim(), MAX_TITLE);
    if start.is_empty() { id } else { start }
}

/// Whether a reason fits the schema: 2 to 64 of `a-z`, `0-9`, `_`, `-`.
fn is_reason(reason: &str) -> bool {
    (2..=64).contains(&reason.len())
        && reason.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
}

impl Rendering<'_> {
    /// Shows a delta as a delta item.
    pub fn render(&self, delta: &Delta) -> Rendered {
        let item = &delta.item;
        let mut payload = Payload { profile: PROFILE.to_owned(), ..Payload::default() };
        let long_id = prefix(&item.id, MAX_ID).len() < item.id.len();
        let id = if long_id {
            payload.id = Some(item.id.clone());
            format!("sha256:{}", hex::encode(Sha256::digest(&item.id)))
        } else {
            item.id.clone()
        };
        let url = self.show_url(item, &mut payload);
        let observed = shown_date(delta.observed).unwrap_or_else(|| Timestamp::UNIX_EPOCH.to_string());
        let (published_at, published) =
            show_date(item.published, "published", &observed, &mut payload.absent);
        let (updated_at, updated) = show_date(item.updated, "updated", &observed, &mut payload.absent);
        (payload.published, payload.updated) = (published, updated);
        let title = item.title.as_deref().map(|t| prefix(t, MAX_TITLE));
        payload.title = item.title.clone().filter(|t| Some(t.as_str()) != title);
        let summary = item.summary.as_deref().map(|s| prefix(s, MAX_TEXT)).filter(|s| !s.is_empty());
        payload.summary = item.summary.clone().filter(|s| Some(s.as_str()) != summary);
        payload.add_hidden(item);
        payload.removed_at = delta.removed_at;
        let excerpt = excerpt(item);
        let risk = (self.risk)(item);
        let content_hash = delta.hash.to_string();
        let shown = DeltaItem {
            content: Excerpt { excerpt_text: &excerpt, lang: &shown_lang(self.lang) },
            headline: headline(item, &excerpt, &id),
            id: &id,
            item_hash: item_hash(self.source.as_str(), &id, &content_hash),
            provenance: Provenance { content_hash, evidence_urls: [&url], fetched_at: delta.observed },
            published_at: &published_at,
            risk: ShownRisk {
                reasons: risk
                    .reasons
                    .iter()
                    .map(String::as_str)
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
        Rendered {
            kind: delta.kind,
            reason: delta.reason,
            flagged: is_flagged(risk.score),
            members: members(&shown),
            published_at,
            source: self.source.clone(),
            id,
        }
    }

    /// The item's own address where it is a URI, else where the item is served here.
    fn show_url(&self, item: &Item, payload: &mut Payload) -> String {
        let shown = item.url.as_deref().and_then(uri::absolute);
        match &item.url {
            None => payload.absent.push("url".into()),
            Some(url) if Some(url) != shown.as_ref() => payload.url = Some(url.clone()),
            Some(_) => {}
        }
        shown.unwrap_or_else(|| self.site.item_url(self.source, &item.id))
    }
}

/// Whether an item with this score stands in the flagged bucket (section 9). Decided on the score as shown.
fn is_flagged(score: f64) -> bool {
    hundredths(score) >= hundredths(FLAGGED_FROM)
}

/// Schema: `sha256(source_id + '|' + id + '|' + content_hash)`.
pub(super) fn item_hash(source: &str, id: &str, content_hash: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [source, "|", id, "|", content_hash] {
        hasher.update(part);
    }
    format!("sha256:{}", hex::encode(hasher.finalize()))
}

/// The members of an object and its closing brace.
fn members(item: &DeltaItem<'_>) -> String {
    // Keys are texts and numbers are finite: there is nothing that JSON cannot write.
    let mut text = serde_json::to_string(item).unwrap_or_default();
    debug_assert!(text.starts_with('{'));
    text.drain(..1.min(text.len()));
    text
}

impl Payload {
    /// Adds what no shown field is for.
    fn add_hidden(&mut self, item: &Item) {
        let author =
            |a: &Author| PayloadAuthor { email: a.email.clone(), name: a.name.clone(), url: a.url.clone() };
        self.authors = item.authors.iter().map(author).collect();
        self.tags.clone_from(&item.tags);
        if !item.extra.is_empty() {
            self.extra = serde_json::to_string(&item.extra).ok();
        }
        if let Some(content) = &item.content {
            self.content_type = Some(content.media_type.clone());
            match content.text() {
                Some(text) => self.content_text = Some(text.to_owned()),
                None => self.content_base64 = Some(STANDARD.encode(&content.bytes)),
            }
        }
    }

    fn content(&self) -> Result<Option<Content>, String> {
        let media_type = self.content_type.clone().unwrap_or_default();
        if let Some(text) = &self.content_text {
            return Ok(Some(Content::new(media_type, text.clone())));
        }
        let Some(text) = &self.content_base64 else { return Ok(None) };
        let bytes = STANDARD.decode(text).map_err(|e| format!("content_base64 is not Base 64: {e}"))?;
        Ok(Some(Content::new(media_type, bytes)))
    }
}

#[cfg(test)]
mod tests;
