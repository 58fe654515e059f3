//! Schemas of documents whose form published texts define.

use serde_json::{Map, Value, json};

use super::forms::{count, list_of, named, object, reference, text, time};

/// Schemas of documents whose form published texts define.
pub(super) fn documents() -> Map<String, Value> {
    named([
        ("DiffDeltaHead", diffdelta_head()),
        ("DiffDeltaSnapshot", diffdelta_snapshot()),
        ("DiffDeltaArchive", object(&[("snapshots", list_of("DiffDeltaSnapshot"))], &["snapshots"])),
        ("DiffDeltaSource", diffdelta_source()),
        (
            "DiffDeltaSources",
            object(
                &[("generated_at", time()), ("sources", list_of("DiffDeltaSource"))],
                &["generated_at", "sources"],
            ),
        ),
        ("DiffDeltaHealth", diffdelta_health()),
        ("ActivityItem", activity_item()),
        ("ItemPage", item_page()),
        ("JsonFeed", json_feed()),
        ("SupDocument", sup_document()),
        ("SnapshotIndex", snapshot_index()),
    ])
}

fn hash() -> Value {
    json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" })
}

fn diffdelta_head() -> Value {
    object(
        &[
            ("changed", json!({ "type": "boolean" })),
            ("cursor", hash()),
            ("prev_cursor", hash()),
            ("hash", hash()),
            ("generated_at", time()),
            ("prev_generated_at", time()),
            ("latest_url", text()),
            ("ttl_sec", count()),
        ],
        &["changed", "cursor", "generated_at", "latest_url", "ttl_sec"],
    )
}

fn diffdelta_snapshot() -> Value {
    object(
        &[
            ("cursor", hash()),
            ("generated_at", time()),
            ("prev_cursor", hash()),
            ("sha256", text()),
            ("url", text()),
        ],
        &["cursor", "generated_at", "prev_cursor", "url"],
    )
}

fn diffdelta_source() -> Value {
    object(
        &[
            ("source_id", text()),
            ("name", text()),
            ("description", text()),
            ("enabled", json!({ "type": "boolean" })),
            ("status", text()),
            ("stale", json!({ "type": "boolean" })),
            ("ttl_sec", count()),
            ("cursor", hash()),
            ("head_url", text()),
            ("latest_url", text()),
            ("archive_index_url", text()),
            ("homepage", text()),
            ("last_ok_at", time()),
            ("tags", json!({ "type": "array", "items": text() })),
            ("error", json!({ "type": "object" })),
        ],
        &["source_id", "name", "status", "cursor", "head_url", "latest_url"],
    )
}

fn diffdelta_health() -> Value {
    object(
        &[
            ("ok", json!({ "type": "boolean" })),
            ("status", text()),
            ("service", text()),
            ("time", time()),
            ("generated_at", time()),
            ("error", text()),
            ("sources_total", count()),
            ("sources_ok", count()),
            ("sources_checked", count()),
            ("sources_stale", json!({ "type": "array", "items": text() })),
        ],
        &["ok", "status", "service", "time", "generated_at"],
    )
}

fn activity_item() -> Value {
    json!({
        "type": "object",
        "description": "An item as Smart Feeds has it (Activity Streams)",
        "properties": {
            "objectType": text(), "id": text(), "displayName": text(), "content": text(), "summary": text(), "url": text(),
            "published": time(), "updated": time(), "towpath": { "type": "object", "additionalProperties": true },
        },
        "required": ["objectType", "id"],
        "additionalProperties": true,
    })
}

fn item_page() -> Value {
    object(
        &[
            ("count", count()),
            ("totalItems", count()),
            ("url", text()),
            ("last_cursor", text()),
            ("items", json!({ "type": "array", "items": reference("ActivityItem") })),
        ],
        &["items"],
    )
}

fn json_feed() -> Value {
    json!({
        "type": "object",
        "description": "JSON Feed 1.1",
        "properties": {
            "version": text(), "title": text(), "home_page_url": text(), "feed_url": text(), "next_url": text(),
            "items": { "type": "array", "items": { "type": "object", "properties": { "id": text() }, "required": ["id"], "additionalProperties": true } },
        },
        "required": ["version", "title", "items"],
        "additionalProperties": true,
    })
}

fn sup_document() -> Value {
    object(
        &[
            ("updated_time", time()),
            ("since_time", time()),
            ("period", count()),
            ("available_periods", json!({ "type": "object", "additionalProperties": text() })),
            ("updates", json!({ "type": "array", "items": { "type": "array", "items": text() } })),
        ],
        &["updated_time", "since_time", "period", "available_periods", "updates"],
    )
}

fn snapshot_index() -> Value {
    object(
        &[
            ("id", text()),
            ("createdAt", time()),
            ("pages", json!({ "type": "array", "items": text() })),
            ("feed", text()),
            ("page", text()),
            ("after", json!({ "type": ["string", "null"], "description": "Null for a feed without items" })),
        ],
        &["id", "createdAt", "pages"],
    )
}
