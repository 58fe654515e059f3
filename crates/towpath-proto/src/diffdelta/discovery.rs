//! The documents around the feeds: manifest, source list, health, archive indexes, schemas (sections 8, 9).

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

use super::cursor::Cursor;
use super::document::json;
use super::headers::{archive_index_path, paths};
use super::publish::{Chain, Site, Source, clamp_ttl, whole_second};
use super::wire::{ArchiveIndex, SCHEMA_VERSION, Snapshot, SourceError, Status, TTL_SEC};

/// The names of the schemas, as they are served under `/schema/v1/`, and their texts.
const SCHEMAS: [(&str, &str); 3] = [
    ("diff.schema.json", include_str!("schema/diff.schema.json")),
    ("known_issues.schema.json", include_str!("schema/known_issues.schema.json")),
    ("wellknown.schema.json", include_str!("schema/wellknown.schema.json")),
];

/// Where the known issues are served.
pub const KNOWN_ISSUES_PATH: &str = "/diff/known_issues.json";
/// What we know to be surprising about the documents we publish.
const KNOWN_ISSUES: &str = include_str!("schema/known_issues.json");

/// The path and text of every schema (section 9), each with the address it is served at as its `$id`.
pub fn schemas(site: &Site) -> Vec<(String, Bytes)> {
    let base = site.absolute("");
    let schema = |(name, text): &(&str, &str)| {
        (format!("/schema/v1/{name}"), Bytes::from(text.replace("{base_url}", &base)))
    };
    SCHEMAS.iter().map(schema).collect()
}

/// `/diff/known_issues.json`.
pub fn known_issues() -> Bytes {
    Bytes::from_static(KNOWN_ISSUES.as_bytes())
}

/// Discovery manifest (section 8).
#[derive(Serialize)]
struct Manifest<'a> {
    capabilities: Capabilities,
    endpoints: Endpoints,
    generated_at: Timestamp,
    limits: Limits,
    polling: Polling,
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
struct Limits {
    max_items_per_bucket: u32,
    max_summary_chars: u32,
    target_max_payload_kb: u32,
}

#[derive(Serialize)]
struct Polling {
    max_ttl_sec: u64,
    notes: &'static str,
    recommended_ttl_sec: u64,
}

/// `/.well-known/diffdelta.json`. `sources` are all sources, at least one, in the order of their names.
pub fn manifest(site: &Site, sources: &[Source<'_>], ttl_sec: u64, now: Timestamp) -> Bytes {
    let schema = |name: &str| site.absolute(&format!("/schema/v1/{name}.schema.json"));
    json(&Manifest {
        capabilities: Capabilities {
            cursor_supported: true,
            etag_supported: true,
            known_issues_supported: true,
            per_source_endpoints: true,
            telemetry_opt_in: false,
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
        // The largest values that the manifest's schema allows; see the known issues.
        limits: Limits { max_items_per_bucket: 200, max_summary_chars: 2000, target_max_payload_kb: 2000 },
        polling: Polling {
            max_ttl_sec: *TTL_SEC.end(),
            notes: "Poll head.json with If-None-Match. Every snapshot is listed, oldest first, in \
                    /archive/{source}/index.json (the global feed's in /archive/_global/index.json).",
            recommended_ttl_sec: clamp_ttl(ttl_sec),
        },
        schema_version: SCHEMA_VERSION,
        service: "towpath",
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
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<SourceError>,
    head_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ok_at: Option<Timestamp>,
    latest_url: String,
    source_id: &'a str,
    stale: bool,
    status: Status,
    ttl_sec: u64,
}

/// `/diff/sources.json`: every source, how it is and where its documents are.
pub fn sources(site: &Site, sources: &[(Source<'_>, &Chain)], now: Timestamp) -> Bytes {
    let listed = sources.iter().map(|(source, chain)| {
        let status = source.status(chain, now);
        let id = source.id.as_str();
        let link = |file: &str| site.link(&paths(Some(id), file)[0]);
        ListedSource {
            archive_index_url: site.link(&archive_index_path(Some(id))),
            cursor: chain.cursor,
            error: status.error,
            head_url: link("head.json"),
            last_ok_at: chain.health.last_ok_at.map(whole_second),
            latest_url: link("latest.json"),
            source_id: id,
            stale: status.stale.unwrap_or(false),
            status: status.status,
            ttl_sec: status.ttl_sec,
        }
    });
    json(&SourceList { generated_at: whole_second(now), sources: listed.collect() })
}

#[derive(Serialize)]
struct Healthz<'a> {
    generated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica_age: Option<Option<u64>>,
    sources_ok: usize,
    sources_stale: Vec<&'a str>,
    sources_total: usize,
    status: &'static str,
}

/// `/healthz.json`: `ok`, or `degraded` with the names of the stale sources, and with how old what is read may be, in
/// seconds (`null` where that is not known), where that is more than it should be.
pub fn healthz(sources: &[(Source<'_>, &Chain)], replica_age: Option<Option<u64>>, now: Timestamp) -> Bytes {
    let stale = sources.iter().filter(|(_, chain)| chain.health.status() != Status::Ok);
    let stale: Vec<&str> = stale.map(|(source, _)| source.id.as_str()).collect();
    json(&Healthz {
        generated_at: whole_second(now),
        sources_ok: sources.len() - stale.len(),
        sources_total: sources.len(),
        status: if stale.is_empty() && replica_age.is_none() { "ok" } else { "degraded" },
        replica_age,
        sources_stale: stale,
    })
}

/// `/archive/{source}/index.json` of these snapshots, oldest first. `name` is the source or `_global`.
pub fn archive_index(name: &str, snapshots: Vec<Snapshot>) -> Bytes {
    json(&ArchiveIndex { snapshots, source_id: name.to_owned() })
}

/// The same index with one more snapshot, without reading it all: `index` is what [`archive_index`] or this
/// function returned. `None` if it is not.
pub fn append_to_archive_index(index: &[u8], snapshot: &Snapshot) -> Option<Bytes> {
    const START: &[u8] = b"{\"snapshots\":[";
    let end = memchr::memmem::rfind(index, b"],\"source_id\":")?;
    let (kept, tail) = index.split_at(end);
    let listed = kept.strip_prefix(START)?;
    let mut text = Vec::with_capacity(index.len() + 400);
    text.extend_from_slice(kept);
    if !listed.is_empty() {
        text.push(b',');
    }
    text.extend_from_slice(&json(snapshot));
    text.extend_from_slice(tail);
    Some(text.into())
}

#[cfg(test)]
mod tests;
