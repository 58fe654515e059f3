//! Builds the documents around the feeds: manifest, source list, health, archive indexes and schemas
//! (sections 8 and 9).

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

use super::chain::{DocumentChain, whole_second};
use super::document::json;
use super::site::SiteUrl;
use super::source::{SourcePublisher, clamp_ttl};
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::headers::{archive_index_path, paths};
use crate::diffdelta::wire::{
    ArchiveIndex, FetchStatus, SCHEMA_VERSION, SnapshotEntry, StatusError, TTL_SEC,
};

/// File names and texts of the schemas under `/schema/v1/`.
const SCHEMAS: [(&str, &str); 3] = [
    ("diff.schema.json", include_str!("../../wire/schema/diff.schema.json")),
    ("known_issues.schema.json", include_str!("../../wire/schema/known_issues.schema.json")),
    ("wellknown.schema.json", include_str!("../../wire/schema/wellknown.schema.json")),
];

/// Name of the service in the manifest and in the health.
pub const SERVICE: &str = "towpath";
/// Program and version, in the health.
const ENGINE_VERSION: &str = concat!("towpath/", env!("CARGO_PKG_VERSION"));
/// Path of the known issues.
pub const KNOWN_ISSUES_PATH: &str = "/diff/known_issues.json";
/// Known deviations and surprises of our documents, as JSON.
const KNOWN_ISSUES: &str = include_str!("../../wire/schema/known_issues.json");

/// Returns path and text of every schema (section 9), with its URL as `$id`.
pub fn schemas(site: &SiteUrl) -> Vec<(String, Bytes)> {
    // The schemas are templates: `$id` must be the URL at which they are served.
    let base = site.absolute("");
    let schema = |(name, text): &(&str, &str)| {
        (format!("/schema/v1/{name}"), Bytes::from(text.replace("{base_url}", &base)))
    };
    SCHEMAS.iter().map(schema).collect()
}

/// Returns `/diff/known_issues.json`.
pub fn known_issues() -> Bytes {
    Bytes::from_static(KNOWN_ISSUES.as_bytes())
}

/// The discovery manifest (section 8).
#[derive(Serialize)]
struct Manifest<'a> {
    capabilities: Capabilities,
    endpoints: Endpoints,
    generated_at: Timestamp,
    limits: ManifestLimits,
    polling: ManifestPolling,
    schema_version: &'a str,
    service: &'a str,
    sources_supported: Vec<&'a str>,
}

#[derive(Serialize)]
struct Capabilities {
    cursor_supported: bool,
    etag_supported: bool,
    known_issues_supported: bool,
    per_source_endpoints: bool,
    telemetry_opt_in: bool,
    webhooks_supported: bool,
}

#[derive(Serialize)]
struct Endpoints {
    diff_by_source_template: String,
    diff_latest: String,
    healthz: String,
    known_issues: String,
    schemas: SchemaEndpoints,
}

#[derive(Serialize)]
struct SchemaEndpoints {
    diff: String,
    known_issues: String,
    wellknown: String,
}

#[derive(Serialize)]
struct ManifestLimits {
    max_items_per_bucket: u32,
    max_summary_chars: u32,
    target_max_payload_kb: u32,
}

#[derive(Serialize)]
struct ManifestPolling {
    max_ttl_sec: u64,
    notes: &'static str,
    recommended_ttl_sec: u64,
}

/// Builds `/.well-known/diffdelta.json`. `sources` are all sources, at least one, sorted by name.
pub fn manifest(site: &SiteUrl, sources: &[SourcePublisher<'_>], ttl_sec: u64, now: Timestamp) -> Bytes {
    let schema = |name: &str| site.absolute(&format!("/schema/v1/{name}.schema.json"));
    json(&Manifest {
        capabilities: Capabilities {
            cursor_supported: true,
            etag_supported: true,
            known_issues_supported: true,
            per_source_endpoints: true,
            telemetry_opt_in: false,
            // The WebSub hub pushes other documents of a feed, never these.
            webhooks_supported: false,
        },
        endpoints: Endpoints {
            diff_by_source_template: site.absolute("/diff/{source}/latest.json"),
            diff_latest: site.absolute("/diff/latest.json"),
            healthz: site.absolute("/healthz.json"),
            known_issues: site.absolute(KNOWN_ISSUES_PATH),
            schemas: SchemaEndpoints {
                diff: schema("diff"),
                known_issues: schema("known_issues"),
                wellknown: schema("wellknown"),
            },
        },
        generated_at: whole_second(now),
        // The largest values that the manifest's schema allows. Real documents may exceed them, which the known
        // issues state.
        limits: ManifestLimits {
            max_items_per_bucket: 200,
            max_summary_chars: 2000,
            target_max_payload_kb: 2000,
        },
        polling: ManifestPolling {
            max_ttl_sec: *TTL_SEC.end(),
            notes: "Poll head.json with If-None-Match. Every snapshot is listed, oldest first, in \
                    /archive/{source}/index.json (the global feed's in /archive/_global/index.json).",
            recommended_ttl_sec: clamp_ttl(ttl_sec),
        },
        schema_version: SCHEMA_VERSION,
        service: SERVICE,
        sources_supported: sources.iter().map(|s| s.id.as_str()).collect(),
    })
}

#[derive(Serialize)]
struct SourceList<'a> {
    generated_at: Timestamp,
    sources: Vec<ListedSource<'a>>,
}

#[derive(Serialize)]
struct ListedSource<'a> {
    archive_index_url: String,
    cursor: Cursor,
    description: &'a str,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<StatusError>,
    head_url: String,
    homepage: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ok_at: Option<Timestamp>,
    latest_url: String,
    name: &'a str,
    source_id: &'a str,
    stale: bool,
    status: FetchStatus,
    tags: &'a [String],
    ttl_sec: u64,
}

/// Builds `/diff/sources.json`: the health and the URLs of every source.
pub fn sources(site: &SiteUrl, sources: &[(SourcePublisher<'_>, &DocumentChain)], now: Timestamp) -> Bytes {
    let listed = sources.iter().map(|(source, chain)| {
        let status = source.status(chain, now);
        let id = source.id.as_str();
        let link = |file: &str| site.link(&paths(Some(id), file)[0]);
        ListedSource {
            archive_index_url: site.link(&archive_index_path(Some(id))),
            cursor: chain.cursor,
            description: source.about.description,
            enabled: status.status != FetchStatus::Disabled,
            error: status.error,
            head_url: link("head.json"),
            homepage: match source.about.homepage {
                Some(homepage) => homepage.into(),
                None => site.absolute(&format!("/feeds/{id}")).into(),
            },
            last_ok_at: chain.health.last_ok_at.map(whole_second),
            latest_url: link("latest.json"),
            name: if source.about.name.is_empty() { id } else { source.about.name },
            source_id: id,
            stale: status.stale.unwrap_or(false),
            status: status.status,
            tags: source.about.tags,
            ttl_sec: status.ttl_sec,
        }
    });
    json(&SourceList { generated_at: whole_second(now), sources: listed.collect() })
}

#[derive(Serialize)]
struct Healthz<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    damaged_reads: u64,
    engine_version: &'static str,
    generated_at: Timestamp,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<&'a serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    publish_failed: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    replica_age: Option<Option<u64>>,
    service: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sinks: Option<SinkCounts>,
    sources_checked: usize,
    sources_ok: usize,
    sources_stale: Vec<&'a str>,
    sources_total: usize,
    status: &'static str,
    time: Timestamp,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Health of the node that serves, beside that of the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Set if the node's replica lags: its age in seconds, or `Some(None)` if unknown (`null`).
    pub replica_age: Option<Option<u64>>,
    /// Number of reads that met damaged data.
    pub damaged_reads: u64,
    /// Number of feeds whose documents could not be published.
    pub failed: usize,
    /// Names of those that may be named.
    pub publish_failed: Vec<String>,
    /// Sinks that the node runs; `None` without any.
    pub sinks: Option<SinkCounts>,
    /// State of each part of the node; `None` for a static tree.
    pub parts: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Numbers of the sinks that a node runs. Their names and destinations are for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SinkCounts {
    /// Items that destinations refused and that are kept aside.
    pub dead_letters: u64,
    /// Sinks whose last attempt failed.
    pub failing: usize,
    /// Sinks that an operator, or the server itself, has paused.
    pub paused: usize,
    /// All of them.
    pub total: usize,
}

impl NodeHealth {
    fn is_well(&self) -> bool {
        let sinks_fail = self.sinks.is_some_and(|sinks| sinks.failing > 0);
        self.replica_age.is_none() && self.damaged_reads == 0 && self.failed == 0 && !sinks_fail
    }
}

/// Builds `/healthz.json`: `ok`, or `degraded` with the names of the stale sources.
pub fn healthz(
    sources: &[(SourcePublisher<'_>, &DocumentChain)],
    node: &NodeHealth,
    now: Timestamp,
) -> Bytes {
    // A source that was never fetched counts as stale too.
    let stale = sources.iter().filter(|(_, chain)| chain.health.status() != FetchStatus::Ok);
    let stale: Vec<&str> = stale.map(|(source, _)| source.id.as_str()).collect();
    let ok = stale.is_empty() && node.is_well();
    let checked = sources.iter().filter(|(_, chain)| chain.health.status() != FetchStatus::Disabled);
    json(&Healthz {
        engine_version: ENGINE_VERSION,
        generated_at: whole_second(now),
        ok,
        service: SERVICE,
        sources_checked: checked.count(),
        sources_ok: sources.len() - stale.len(),
        sources_total: sources.len(),
        status: if ok { "ok" } else { "degraded" },
        time: whole_second(now),
        damaged_reads: node.damaged_reads,
        parts: node.parts.as_ref(),
        publish_failed: &node.publish_failed,
        replica_age: node.replica_age,
        sinks: node.sinks,
        sources_stale: stale,
    })
}

/// Builds `/archive/{source}/index.json` from snapshots, oldest first. `name` is the source or `_global`.
pub fn archive_index(name: &str, snapshots: Vec<SnapshotEntry>) -> Bytes {
    json(&ArchiveIndex { snapshots, source_id: name.to_owned() })
}

/// Appends a snapshot to an index without parsing it, so the cost does not grow with the archive.
///
/// `index` must come from [`archive_index`] or this function; returns `None` otherwise.
pub fn append_to_archive_index(index: &[u8], snapshot: &SnapshotEntry) -> Option<Bytes> {
    const START: &[u8] = b"{\"snapshots\":[";
    // From the end: a URL in an entry could contain the same bytes, the tail itself cannot come later.
    let end = memchr::memmem::rfind(index, b"],\"source_id\":")?;
    let (entries, tail) = index.split_at(end);
    let listed = entries.strip_prefix(START)?;
    let mut text = Vec::with_capacity(index.len() + 400);
    text.extend_from_slice(entries);
    if !listed.is_empty() {
        text.push(b',');
    }
    text.extend_from_slice(&json(snapshot));
    text.extend_from_slice(tail);
    Some(text.into())
}

#[cfg(test)]
mod tests;
