//! Documents of a tree.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::document::prebuilt::{Answer, Document};
use crate::engine::Engine;

/// A document with its path and headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeDocument {
    /// Path, with a leading slash and without a query. The tree's own files are below `/.towpath/`.
    pub path: String,
    /// Uncompressed body.
    pub body: Bytes,
    /// Headers that the server would send.
    pub headers: HeaderMap,
}

impl TreeDocument {
    pub(super) fn new(engine: &Engine, path: impl Into<String>, document: &Document) -> Self {
        Self::of(engine, path.into(), document.body.clone(), document.headers().clone())
    }

    /// Makes a document from an answer that the server builds for each request: caches must revalidate it.
    pub(super) fn of_answer(engine: &Engine, path: impl Into<String>, mut answer: Answer) -> Self {
        answer.headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
        Self::of(engine, path.into(), answer.body, answer.headers)
    }

    fn of(engine: &Engine, path: String, body: Bytes, mut headers: HeaderMap) -> Self {
        engine.sup_links.add_by_path(&path, &mut headers);
        remove_live_links(&mut headers);
        Self { path, body, headers }
    }

    /// Returns the document at another path.
    pub(super) fn also_at(&self, path: String) -> Self {
        Self { path, ..self.clone() }
    }

    /// Returns a header's value, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns all links of its headers, as one header.
    pub fn links(&self) -> Option<String> {
        let links = self.headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
        let links: Vec<&str> = links.collect();
        // Object storage keeps one value per name, and a list means the same (RFC 8288, section 3).
        (!links.is_empty()).then(|| links.join(", "))
    }

    /// Returns true if caches must revalidate it each time.
    pub fn is_checked(&self) -> bool {
        self.header(CACHE_CONTROL.as_str()).is_some_and(|value| value == "no-cache")
    }

    /// Returns a digest that differs between versions.
    pub(super) fn fingerprint(&self) -> String {
        self.fingerprint_of(&self.body)
    }

    /// Returns a digest that ignores the times in the document: a new time alone is no reason to put it.
    pub(super) fn fingerprint_without_times(&self) -> String {
        let Ok(mut value) = serde_json::from_slice::<Value>(&self.body) else { return self.fingerprint() };
        remove_times(&mut value);
        self.fingerprint_of(value.to_string().as_bytes())
    }

    fn fingerprint_of(&self, body: &[u8]) -> String {
        let mut digest = Sha256::new();
        for name in [CONTENT_TYPE.as_str(), CACHE_CONTROL.as_str()] {
            digest.update(self.header(name).unwrap_or_default());
            // A separator, so that text cannot move from one header to the next unnoticed.
            digest.update([0]);
        }
        digest.update(self.links().unwrap_or_default());
        digest.update([0]);
        digest.update(body);
        hex::encode(&digest.finalize()[..12])
    }
}

/// Removes the links of a page to what a tree may not have: the event stream, and the newest snapshot at every moment.
fn remove_live_links(headers: &mut HeaderMap) {
    let is_live = |link: &HeaderValue| {
        let link = link.to_str().unwrap_or_default();
        link.ends_with("type=\"text/event-stream\"") || link.ends_with("/snapshots/latest>; rel=\"snapshot\"")
    };
    let kept: Vec<_> = headers.get_all(LINK).iter().filter(|link| !is_live(link)).cloned().collect();
    headers.remove(LINK);
    for link in kept {
        headers.append(LINK, link);
    }
}

/// Removes the times of building and of polling sources.
fn remove_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !matches!(name.as_str(), "generated_at" | "last_ok_at" | "stale_age_sec" | "time")
            });
            fields.values_mut().for_each(remove_times);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_times),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(body: &str) -> TreeDocument {
        let body = Bytes::copy_from_slice(body.as_bytes());
        TreeDocument { path: "/healthz.json".into(), body, headers: HeaderMap::new() }
    }

    #[test]
    fn only_what_is_news_changes_the_fingerprint() {
        let one = document(r#"{"generated_at":"2026-01-01T00:00:00Z","a":[{"last_ok_at":"x","b":1}]}"#);
        let later = document(r#"{"generated_at":"2027-01-01T00:00:00Z","a":[{"last_ok_at":"y","b":1}]}"#);
        let other = document(r#"{"generated_at":"2026-01-01T00:00:00Z","a":[{"last_ok_at":"x","b":2}]}"#);
        assert_ne!(one.fingerprint(), later.fingerprint());
        assert_eq!(one.fingerprint_without_times(), later.fingerprint_without_times());
        assert_ne!(one.fingerprint_without_times(), other.fingerprint_without_times());
        let mut linked = one.clone();
        linked.headers.append(LINK, HeaderValue::from_static("<a>; rel=prev"));
        assert_ne!(one.fingerprint(), linked.fingerprint());
    }
}
