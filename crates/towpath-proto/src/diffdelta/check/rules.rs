//! The rules of the text that are visible from outside, and their evaluation on a document.
//!
//! Each function returns a description of the violation, or `None` if the document conforms.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::document::{BucketItems, CheckedItem, KNOWN};
use crate::diffdelta::wire::FLAGGED_FROM;
use crate::diffdelta::wire::cursor::Cursor;

crate::report::rules! {
    HEAD_FIELDS: "§1.1" Must "the head has cursor, prev_cursor, changed, generated_at, ttl_sec and latest_url";
    HEAD_AGREES: "§1.1" Must "head and latest agree on cursor, prev_cursor and changed";
    LATEST: "§1.2" Must "the latest feed is there and is JSON";
    GLOBAL: "§1" Must "the global feed is at /diff/latest.json";
    ARCHIVE: "§1.3" Must "the snapshot of a minted document is in the archive, under its date, time and cursor";
    ARCHIVE_SAME: "§1.3" Must "a snapshot is a byte-identical copy of latest.json";
    ARCHIVE_STAYS: "§1.3" Must "a snapshot is the same on a second visit";
    CURSOR_FORM: "§2.1" Must "cursors are sha256: and 64 lower-case hex digits";
    CURSOR_SAME: "§2.1" Must "one cursor stands for one content";
    FIRST: "§2.2" Must "the first snapshot's prev_cursor is the zero cursor";
    CHAIN: "§2.2" Must "every snapshot's prev_cursor is the cursor of the one before";
    CHANGED: "§2.3" Must "changed is true just where cursor differs from prev_cursor";
    CHANGED_SOURCES: "§2.3" Must "changed of a source is true just where its cursor differs from its prev_cursor";
    GENERATED: "§2.4" Must "generated_at is an ISO 8601 time";
    TIMES: "§2.4" Advice "generated_at does not go back from one snapshot to the next";
    TTL: "§2.5" Must "ttl_sec is a number of seconds from 15 to 3600";
    HASH: "§2.6" Must "the hash that head or index state is the SHA-256 of the file";
    BASIS: "§3.1" Should "feeds declare cursor_basis canonical_v1";
    CANONICAL: "§3.1" Must "the cursor is the SHA-256 of the canonical content (RFC 8785, or Python's json.dumps)";
    JCS: "§3.1" Advice "RFC 8785 and Python's json.dumps agree on the cursor";
    INCLUDED: "§4" Must "sources_included is sorted";
    SOURCES: "§4" Must "the keys of sources are sorted";
    SORTED: "§4" Must "buckets are sorted by published_at, source and id";
    NAMED: "§4" Advice "the sources, those of the items and sources_included are the same";
    ONCE: "§4" Advice "an item stands in the buckets once";
    STALE: "§5" Must "a source in error or disabled has changed false, stale true and prev_cursor equal to cursor";
    STALE_CODE: "§5" Must "a source in error or disabled says why, with error.code";
    ZERO: "§5" Must "the zero cursor is shown only by a source that never succeeded, and so has no snapshot";
    STALE_SINCE: "§5" Must "a stale source that ever succeeded has last_ok_at and stale_age_sec, and not the zero cursor";
    STALE_AGE: "§5" Must "stale_age_sec is the time since last_ok_at";
    ETAG: "§6.1" Must "head and latest have an ETag";
    ETAG_CURSOR: "§6.1" Should "the ETag of head and latest is the quoted cursor";
    NOT_MODIFIED: "§6.2" Must "If-None-Match with a current ETag gets 304 and an empty body";
    CDN: "§6.3" Should "CDN-Cache-Control stands beside Cache-Control and says the same";
    CACHE_ARCHIVE: "§6.3" Must "snapshots are cached immutably";
    CACHE: "§6.4" Should "head and latest have Cache-Control: public, max-age=60, must-revalidate";
    CACHE_SCHEMA: "§6.4" Should "schemas are cached immutably";
    TYPE: "§6.5" Must "every body is application/json; charset=utf-8";
    MANIFEST: "§8" Must "a discovery manifest is at /.well-known/diffdelta.json";
    MANIFEST_FIELDS: "§8" Must "the manifest names its endpoints, polling interval and sources";
    MANIFEST_CAPABLE: "§8" Must "the manifest says that ETags and cursors are supported";
    AVAILABLE: "§8" Must "the sources of sources_supported are available";
    MANIFEST_SCHEMA: "§8" Advice "the manifest is valid by its schema";
    COUNTS: "§9" Advice "delta_counts of a changed source count its items by their kind of change";
    SCHEMA: "§9" Must "the feed is valid by diff.schema.json";
    FLAGGED: "§9" Must "items with a risk score of 0.4 or more are in the flagged bucket, and only there";
}

/// Returns the named member as text, or an empty text.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Checks that all cursors of the document and its sources are well-formed.
pub(super) fn cursor_form(document: &Value) -> Option<String> {
    let sources = document.get("sources").and_then(Value::as_object);
    let places = std::iter::once(("the document", document))
        .chain(sources.into_iter().flatten().map(|(name, source)| (name.as_str(), source)));
    for (place, value) in places {
        for name in ["cursor", "prev_cursor"] {
            if let Err(e) = text(value, name).parse::<Cursor>() {
                return Some(format!("{name} of {place}: {e}"));
            }
        }
    }
    None
}

/// Checks the table of section 2.3.
pub(super) fn changed(value: &Value) -> Option<String> {
    let (cursor, prev) = (text(value, "cursor"), text(value, "prev_cursor"));
    match value.get("changed").and_then(Value::as_bool) {
        None => Some("changed is not a boolean".to_owned()),
        Some(true) if cursor == prev => Some(format!("changed is true, and both cursors are {cursor}")),
        Some(false) if cursor != prev => Some(format!("changed is false, cursor {cursor}, before {prev}")),
        Some(_) => None,
    }
}

/// Checks the table of section 2.3 for every source.
pub(super) fn changed_sources(document: &Value) -> Option<String> {
    let sources = document.get("sources")?.as_object()?;
    sources.iter().find_map(|(name, source)| Some(format!("source {name}: {}", changed(source)?)))
}

pub(super) fn generated(value: &Value) -> Option<String> {
    let time = text(value, "generated_at");
    time.parse::<Timestamp>().is_err().then(|| format!("generated_at is {time:?}"))
}

pub(super) fn ttl(value: &Value) -> Option<String> {
    let ttl = value.get("ttl_sec");
    // The bounds are the schema's: section 2.5 has none.
    let fits = ttl.and_then(Value::as_u64).is_some_and(|t| (15..=3600).contains(&t));
    (!fits).then(|| format!("ttl_sec is {}", ttl.unwrap_or(&Value::Null)))
}

pub(super) fn basis(document: &Value) -> Option<String> {
    let basis = text(document, "cursor_basis");
    (basis != crate::diffdelta::wire::cursor::BASIS).then(|| format!("cursor_basis is {basis:?}"))
}

pub(super) fn included(document: &Value) -> Option<String> {
    // Only the order is checked here; types are the schema's business.
    let names: Vec<&str> =
        document.get("sources_included")?.as_array()?.iter().filter_map(Value::as_str).collect();
    let wrong = names.windows(2).find(|pair| pair[0] > pair[1])?;
    Some(format!("{} stands before {}", wrong[0], wrong[1]))
}

/// Checks the order of the keys of `sources`, in the text as it was served.
pub(super) fn source_order(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct SourcesMember {
        #[serde(default)]
        sources: ObjectKeys,
    }
    let keys = serde_json::from_slice::<SourcesMember>(body).ok()?.sources.0;
    let wrong = keys.windows(2).find(|pair| pair[0] > pair[1])?;
    Some(format!("{} stands before {}", wrong[0], wrong[1]))
}

/// The keys of an object in document order. A `serde_json` map would sort them.
#[derive(Default)]
struct ObjectKeys(Vec<String>);

impl<'de> Deserialize<'de> for ObjectKeys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = ObjectKeys;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectKeys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(ObjectKeys(keys))
            }
        }
        deserializer.deserialize_map(KeyVisitor)
    }
}

/// Returns the items of the known buckets. Unknown buckets are ignored (section 4).
fn known(items: &BucketItems) -> impl Iterator<Item = (&str, &Vec<CheckedItem>)> {
    items.iter().map(|(name, items)| (name.as_str(), items)).filter(|(name, _)| KNOWN.contains(name))
}

/// Checks the order of the buckets.
///
/// Comparing `published_at` as text or as time gives the same order for UTC in whole seconds. For other forms
/// either order is accepted.
pub(super) fn sorted(items: &BucketItems) -> Option<String> {
    for (name, items) in known(items) {
        for (index, pair) in items.windows(2).enumerate() {
            let key = |item: &CheckedItem| [&*item.published_at, &*item.source, &*item.id].map(str::to_owned);
            let (a, b) = (key(&pair[0]), key(&pair[1]));
            let time = |key: &[String; 3]| key[0].parse::<Timestamp>().ok();
            // Some publishers write other offsets or fractions, where text and time disagree.
            let in_time = time(&a).is_some() && (time(&a), &a[1..]) <= (time(&b), &b[1..]);
            if a > b && !in_time {
                return Some(format!(
                    "bucket {name}: item {} ({}) stands before ({})",
                    index + 1,
                    a.join(", "),
                    b.join(", ")
                ));
            }
        }
    }
    None
}

pub(super) fn flagged(items: &BucketItems) -> Option<String> {
    for (name, items) in known(items) {
        for CheckedItem { id, score, .. } in items {
            if (*score >= FLAGGED_FROM) != (name == "flagged") {
                return Some(format!("item {id:?} with score {score} is in bucket {name}"));
            }
        }
    }
    None
}

/// Returns the sources in error or disabled.
pub(super) fn stale(document: &Value) -> Vec<(&str, &Value)> {
    let sources = document.get("sources").and_then(Value::as_object).into_iter().flatten();
    sources
        .filter(|(_, s)| matches!(text(s, "status"), "error" | "disabled"))
        .map(|(n, s)| (n.as_str(), s))
        .collect()
}

pub(super) fn stale_is_marked(source: &Value) -> Option<String> {
    if source.get("changed") != Some(&Value::Bool(false)) {
        return Some("changed is not false".to_owned());
    }
    if source.get("stale") != Some(&Value::Bool(true)) {
        return Some("stale is not true".to_owned());
    }
    (source.get("cursor") != source.get("prev_cursor")).then(|| "the cursors differ".to_owned())
}

pub(super) fn stale_says_why(source: &Value) -> Option<String> {
    let silent = source.pointer("/error/code").is_none();
    silent.then(|| format!("status is {}, without error.code", text(source, "status")))
}

/// Checks that a source has the zero cursor exactly if it never succeeded.
pub(super) fn stale_says_since(source: &Value) -> Option<String> {
    let zero = text(source, "cursor").parse() == Ok(Cursor::ZERO);
    let has = |name: &str| source.get(name).is_some();
    // Three facts must agree: cursor, last success, age.
    match (zero, has("last_ok_at"), has("stale_age_sec")) {
        (true, false, _) | (false, true, true) => None,
        (true, true, _) => Some("it has last_ok_at and the zero cursor".to_owned()),
        (false, last_ok, _) => {
            let missing = if last_ok { "stale_age_sec" } else { "last_ok_at" };
            Some(format!("it has another cursor than zero, and no {missing}"))
        }
    }
}

/// Checks the age of a stale source against its last success.
pub(super) fn stale_age(document: &Value, source: &Value) -> Option<String> {
    let age = source.get("stale_age_sec")?.as_i64()?;
    let last: Timestamp = text(source, "last_ok_at").parse().ok()?;
    let generated: Timestamp = text(document, "generated_at").parse().ok()?;
    let expected = generated.as_second() - last.as_second();
    // The age may be of another moment of the same run, or of a document that is carried at intervals.
    let tolerance = 3600.max(expected / 10);
    let is_close = (age - expected).abs() <= tolerance;
    (!is_close)
        .then(|| format!("stale_age_sec is {age}, and last_ok_at was {expected} s before generated_at"))
}

/// Checks that the lists of sources agree.
pub(super) fn named(document: &Value, items: &BucketItems) -> Option<String> {
    let included: Vec<&str> =
        document.get("sources_included")?.as_array()?.iter().filter_map(Value::as_str).collect();
    let sources = document.get("sources")?.as_object()?;
    if let Some(name) = included.iter().find(|name| !sources.contains_key(**name)) {
        return Some(format!("{name} is included, and sources does not have it"));
    }
    let items = known(items).flat_map(|(_, items)| items);
    let mut named = sources.keys().map(String::as_str).chain(items.map(|item| item.source.as_str()));
    let known: BTreeSet<&str> = included.into_iter().collect();
    let other = named.find(|name| !known.contains(name))?;
    Some(format!("{other:?} is not included"))
}

/// Checks that no item stands in the buckets twice.
pub(super) fn once(items: &BucketItems) -> Option<String> {
    let mut seen = BTreeSet::new();
    let mut items = known(items).flat_map(|(_, items)| items);
    let twice = items.find(|item| !seen.insert((&item.source, &item.id)))?;
    Some(format!("item {:?} of {}", twice.id, twice.source))
}

/// Checks the counts of every changed source. Items that an earlier mint had (`changed_in`) do not count.
pub(super) fn counts(document: &Value, items: &BucketItems) -> Option<String> {
    let sources = document.get("sources")?.as_object()?;
    if document.get("changed") != Some(&Value::Bool(true)) {
        return None;
    }
    let mut counted: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (bucket, items) in known(items) {
        for item in items.iter().filter(|item| !item.is_repeated) {
            // A flagged item states its kind itself; without one it may count as any.
            let kind = if bucket == "flagged" { item.change.as_str() } else { bucket };
            *counted.entry((item.source.as_str(), kind)).or_default() += 1;
        }
    }
    let stated =
        sources.iter().filter_map(|(name, source)| Some((name.as_str(), source.get("delta_counts")?)));
    stated.filter(|(name, _)| !counted.contains_key(&(*name, ""))).find_map(|(name, counts)| {
        ["new", "updated", "removed"].into_iter().find_map(|kind| {
            let stated = counts.get(kind)?.as_u64()?;
            let actual = counted.get(&(name, kind)).copied().unwrap_or_default();
            let text = format!("source {name} counts {stated} as {kind}, and the buckets have {actual}");
            (stated != actual).then_some(text)
        })
    })
}

pub(super) fn head_fields(head: &Value) -> Option<String> {
    let is_text = |name: &str| head.get(name).is_some_and(Value::is_string);
    let texts = ["cursor", "prev_cursor", "generated_at", "latest_url"];
    let missing = texts.into_iter().find(|name| !is_text(name));
    let missing = missing.or_else(|| (!head["changed"].is_boolean()).then_some("changed"));
    let missing = missing.or_else(|| (!head["ttl_sec"].is_u64()).then_some("ttl_sec"))?;
    Some(format!("{missing} is {}", head[missing]))
}

pub(super) fn manifest_fields(manifest: &Value) -> Option<String> {
    for pointer in ["/endpoints/diff_latest", "/endpoints/diff_by_source_template"] {
        if !manifest.pointer(pointer).is_some_and(Value::is_string) {
            return Some(format!("there is no {pointer}"));
        }
    }
    let template = manifest.pointer("/endpoints/diff_by_source_template").and_then(Value::as_str);
    if !template.is_some_and(|t| t.contains("{source}")) {
        return Some("diff_by_source_template has no {source}".to_owned());
    }
    if !manifest.pointer("/polling/recommended_ttl_sec").is_some_and(Value::is_u64) {
        return Some("there is no /polling/recommended_ttl_sec".to_owned());
    }
    let sources = manifest.get("sources_supported").is_some_and(Value::is_array);
    (!sources).then(|| "sources_supported is no array".to_owned())
}

pub(super) fn manifest_capable(manifest: &Value) -> Option<String> {
    let capable = |name: &str| manifest.pointer(&format!("/capabilities/{name}")) == Some(&Value::Bool(true));
    let missing = ["etag_supported", "cursor_supported"].into_iter().find(|name| !capable(name))?;
    Some(format!("capabilities.{missing} is not true"))
}
