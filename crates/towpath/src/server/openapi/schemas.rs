//! Schemas of bodies: from the program's types where it makes them, and of the published texts.

use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};
use towpath_proto::diffdelta::{SiteUrl, discovery};

use crate::engine::item_versions::ItemVersions;
use crate::engine::sink_status::SinkStatus;
use crate::protocols::catalog::{FeedDescription, FeedEntry};
use crate::server::items::ItemReceipt;
use crate::server::publish::BatchReceipt;
use crate::server::read_links::ReadLinks;
use crate::sink::letters::DeadLetter;
use crate::source::status::SourceHealth;

/// JSON Schema of lines, which is a document of its own as well.
pub(in crate::server) const CHANGE_SCHEMA: &str = include_str!("../change.schema.json");

/// Returns the schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = of_types();
    schemas.extend(lists());
    schemas.extend(requests());
    schemas.extend(documents());
    published(&mut schemas);
    schemas
}

/// Returns an example of a body, by the name of its schema.
pub(super) fn example(schema: &str) -> Option<Value> {
    let line = || json!({ "id": "order-1", "json": { "chairs": 2 }, "item": { "title": "Order 1", "tags": ["new"] } });
    Some(match schema {
        "PublishedLines" => json!([line()]),
        "Lines" => format!("{}\n", line()).into(),
        "ItemForm" => json!({ "id": "order-2", "title": "Order 2", "content": "Two chairs" }),
        "FeedSettings" => json!({ "title": "Orders", "ttl": "1m" }),
        "MergePatch" => json!({ "chairs": 3 }),
        "HubForm" => json!({
            "hub.mode": "unsubscribe",
            "hub.topic": "http://127.0.0.1:8080/feeds/orders/items",
            "hub.callback": "http://127.0.0.1:8081/callback",
        }),
        "Problem" => json!({
            "type": "urn:towpath:problem:not-found", "title": "Not Found", "status": 404, "detail": "there is no feed \"x\"",
        }),
        _ => return None,
    })
}

/// Schemas of what the program makes from its types.
fn of_types() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.contract = Contract::Serialize;
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    generator.subschema_for::<FeedDescription<SourceHealth>>();
    generator.subschema_for::<FeedEntry<SourceHealth>>();
    generator.subschema_for::<SinkStatus>();
    generator.subschema_for::<DeadLetter>();
    generator.subschema_for::<ItemReceipt>();
    generator.subschema_for::<ItemVersions>();
    generator.subschema_for::<BatchReceipt>();
    generator.subschema_for::<ReadLinks>();
    generator.take_definitions(true)
}

fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

fn list_of(schema: &str) -> Value {
    json!({ "type": "array", "items": reference(schema) })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn named(schemas: impl IntoIterator<Item = (&'static str, Value)>) -> Map<String, Value> {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// Schemas of plain bodies, and of lists.
fn lists() -> Map<String, Value> {
    let snapshot = object(
        &[("id", text()), ("url", text()), ("createdAt", time()), ("items", count()), ("pages", count())],
        &["id", "url", "createdAt", "items", "pages"],
    );
    let part = json!({
        "type": "object",
        "properties": { "status": { "enum": ["ok", "starting", "degraded", "failed"] }, "error": text() },
        "required": ["status"],
        "additionalProperties": true,
    });
    let problem = json!({
        "type": "object",
        "description": "Problem document (RFC 9457)",
        "properties": {
            "type": { "type": "string", "pattern": "^urn:towpath:problem:[a-z-]+$" },
            "title": text(),
            "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            "detail": { "type": "string", "description": "Words for people" },
            "parameter": { "type": "string", "description": "Query parameter at fault" },
            "pointer": { "type": "string", "description": "Pointer (RFC 6901) to the part of the body at fault" },
            "empty": { "type": "boolean", "description": "Only of a feed to which nothing was published" },
        },
        "required": ["type", "title", "status", "detail"],
    });
    named([
        ("Problem", problem),
        ("Html", json!({ "type": "string", "description": "A page" })),
        ("Text", text()),
        ("Binary", json!({ "description": "Bytes of any media type" })),
        ("Object", json!({ "type": "object" })),
        (
            "Lines",
            json!({ "type": "string", "description": "Lines of JSON, each a Change (/schema/change.json)" }),
        ),
        (
            "FeedList",
            object(
                &[
                    ("service", json!({ "const": "towpath" })),
                    ("feeds", list_of("FeedEntry")),
                    ("instance", text()),
                    ("problems", json!({ "type": "array", "items": text() })),
                    ("cluster", json!({ "type": "object" })),
                ],
                &["service", "feeds"],
            ),
        ),
        ("SinkList", object(&[("sinks", list_of("SinkStatus"))], &["sinks"])),
        ("LetterList", object(&[("letters", list_of("DeadLetter"))], &["letters"])),
        ("RemovedFeed", object(&[("id", text()), ("removed", json!({ "const": true }))], &["id", "removed"])),
        ("DroppedLetters", object(&[("dropped", count())], &["dropped"])),
        ("Snapshot", snapshot),
        ("SnapshotList", object(&[("snapshots", list_of("Snapshot"))], &["snapshots"])),
        ("Liveness", object(&[("status", json!({ "const": "live" }))], &["status"])),
        (
            "Readiness",
            object(
                &[
                    ("status", json!({ "enum": ["ready", "starting", "not ready"] })),
                    ("parts", json!({ "type": "object", "additionalProperties": part })),
                ],
                &["status", "parts"],
            ),
        ),
    ])
}

/// Schemas of requests.
fn requests() -> Map<String, Value> {
    let patch = object(
        &[("content_type", text()), ("content", text()), ("content_base64", text()), ("json", json!({}))],
        &[],
    );
    let attachment =
        object(&[("url", text()), ("media_type", text()), ("size", count()), ("title", text())], &["url"]);
    let item = object(
        &[
            ("title", text()),
            ("url", text()),
            ("summary", text()),
            ("published", time()),
            ("updated", time()),
            ("authors", json!({ "type": "array", "items": { "type": ["object", "string"] } })),
            ("tags", json!({ "type": "array", "items": { "type": "string" } })),
            ("image", text()),
            ("attachments", list_of("PublishedAttachment")),
        ],
        &[],
    );
    let line = object(
        &[
            ("op", json!({ "enum": ["put", "patch", "delete"], "default": "put" })),
            ("id", json!({ "type": "string", "minLength": 1, "maxLength": 2048 })),
            ("modified", time()),
            ("content_type", text()),
            ("content", text()),
            ("content_base64", text()),
            ("json", json!({ "description": "Content that is JSON" })),
            ("patch", reference("PublishedPatch")),
            (
                "publish_at",
                json!({ "type": "string", "format": "date-time", "description": "Publish at this time" }),
            ),
            ("item", reference("PublishedItem")),
        ],
        &["id"],
    );
    let form = json!({
        "type": "object",
        "description": "Fields of an item; further fields are members of the item. Files: content, image, or an attachment",
        "properties": { "id": { "type": "string", "minLength": 1, "maxLength": 2048 }, "title": text(), "content": text() },
        "required": ["id"],
        "additionalProperties": { "type": "string" },
    });
    let hub = object(
        &[
            ("hub.mode", json!({ "enum": ["subscribe", "unsubscribe", "publish"] })),
            (
                "hub.topic",
                json!({ "type": "string", "format": "uri", "description": "Address of /items, with order and format or without" }),
            ),
            ("hub.callback", json!({ "type": "string", "format": "uri" })),
            ("hub.lease_seconds", json!({ "type": "integer", "minimum": 1 })),
            ("hub.secret", json!({ "type": "string", "maxLength": 199 })),
            ("hub.verify", json!({ "enum": ["sync", "async"], "description": "Only PubSubHubbub 0.3" })),
            (
                "hub.verify_token",
                json!({ "type": "string", "maxLength": 199, "description": "Only PubSubHubbub 0.3" }),
            ),
        ],
        &["hub.mode", "hub.topic"],
    );
    named([
        ("FeedSettings", feed_settings()),
        ("PublishedPatch", patch),
        ("PublishedAttachment", attachment),
        ("PublishedItem", item),
        ("PublishedLine", line),
        ("PublishedLines", list_of("PublishedLine")),
        ("ItemForm", form),
        ("Form", json!({ "type": "object", "additionalProperties": text() })),
        ("MergePatch", json!({ "type": "object", "description": "JSON Merge Patch (RFC 7396)" })),
        ("HubForm", hub),
    ])
}

/// Settings of a feed: the usual keys of `[[feed]]`. All keys are in the schema of the configuration.
fn feed_settings() -> Value {
    let source = object(
        &[
            ("url", text()),
            ("follow", text()),
            ("every", text()),
            ("format", text()),
            ("complete", json!({ "type": "boolean" })),
        ],
        &[],
    );
    let mut settings = object(
        &[
            ("title", text()),
            ("description", text()),
            ("ttl", json!({ "type": "string", "pattern": "^[1-9][0-9]{0,3}[smhd]$" })),
            ("tags", json!({ "type": "array", "items": text() })),
            ("visibility", json!({ "enum": ["public", "private"] })),
            ("source", source),
        ],
        &[],
    );
    settings["description"] =
        "Keys of [[feed]] as the configuration's reference has them, without filter, readers and hubs".into();
    settings
}

/// Schemas of documents whose form published texts define.
fn documents() -> Map<String, Value> {
    let hash = || json!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" });
    let snapshot = object(
        &[
            ("cursor", hash()),
            ("generated_at", time()),
            ("prev_cursor", hash()),
            ("sha256", text()),
            ("url", text()),
        ],
        &["cursor", "generated_at", "prev_cursor", "url"],
    );
    let source = object(
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
    );
    let health = object(
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
    );
    let page = object(
        &[
            ("count", count()),
            ("totalItems", count()),
            ("url", text()),
            ("last_cursor", text()),
            ("items", json!({ "type": "array", "items": reference("ActivityItem") })),
        ],
        &["items"],
    );
    let activity = json!({
        "type": "object",
        "description": "An item as Smart Feeds has it (Activity Streams)",
        "properties": {
            "objectType": text(), "id": text(), "displayName": text(), "content": text(), "summary": text(), "url": text(),
            "published": time(), "updated": time(), "towpath": { "type": "object", "additionalProperties": true },
        },
        "required": ["objectType", "id"],
        "additionalProperties": true,
    });
    let json_feed = json!({
        "type": "object",
        "description": "JSON Feed 1.1",
        "properties": {
            "version": text(), "title": text(), "home_page_url": text(), "feed_url": text(), "next_url": text(),
            "items": { "type": "array", "items": { "type": "object", "properties": { "id": text() }, "required": ["id"], "additionalProperties": true } },
        },
        "required": ["version", "title", "items"],
        "additionalProperties": true,
    });
    let sup = object(
        &[
            ("updated_time", time()),
            ("since_time", time()),
            ("period", count()),
            ("available_periods", json!({ "type": "object", "additionalProperties": text() })),
            ("updates", json!({ "type": "array", "items": { "type": "array", "items": text() } })),
        ],
        &["updated_time", "since_time", "period", "available_periods", "updates"],
    );
    let index = object(
        &[
            ("id", text()),
            ("createdAt", time()),
            ("pages", json!({ "type": "array", "items": text() })),
            ("feed", text()),
            ("page", text()),
            ("after", json!({ "type": ["string", "null"], "description": "Null for a feed without items" })),
        ],
        &["id", "createdAt", "pages"],
    );
    let head = object(
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
    );
    named([
        ("DiffDeltaHead", head),
        ("DiffDeltaSnapshot", snapshot),
        ("DiffDeltaArchive", object(&[("snapshots", list_of("DiffDeltaSnapshot"))], &["snapshots"])),
        ("DiffDeltaSource", source),
        (
            "DiffDeltaSources",
            object(
                &[("generated_at", time()), ("sources", list_of("DiffDeltaSource"))],
                &["generated_at", "sources"],
            ),
        ),
        ("DiffDeltaHealth", health),
        ("ActivityItem", activity),
        ("ItemPage", page),
        ("JsonFeed", json_feed),
        ("SupDocument", sup),
        ("SnapshotIndex", index),
    ])
}

/// Adds the schemas that the server publishes as documents of their own.
fn published(schemas: &mut Map<String, Value>) {
    if let Ok(change) = serde_json::from_str(CHANGE_SCHEMA) {
        add_whole(schemas, "Change", change);
    }
    for (path, text) in discovery::schemas(&SiteUrl::new("")) {
        let name = match path.rsplit('/').next() {
            Some("diff.schema.json") => "DiffDeltaFeed",
            Some("known_issues.schema.json") => "DiffDeltaKnownIssues",
            _ => "DiffDeltaManifest",
        };
        if let Ok(schema) = serde_json::from_slice(&text) {
            add_whole(schemas, name, schema);
        }
    }
}

/// Adds a schema and its definitions, which get names of their own: references within the document are from its root.
fn add_whole(schemas: &mut Map<String, Value>, name: &str, mut schema: Value) {
    let Some(root) = schema.as_object_mut() else { return };
    root.remove("$schema");
    root.remove("$id");
    let definitions = root.remove("$defs");
    for (definition, mut body) in definitions.into_iter().filter_map(into_object).flatten() {
        rename(&mut body, name);
        schemas.insert(definition_name(name, &definition), body);
    }
    rename(&mut schema, name);
    schemas.insert(name.to_owned(), schema);
}

fn into_object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// Name of a definition: `ChangeOneContent` for `one_content` of `Change`.
fn definition_name(schema: &str, definition: &str) -> String {
    let words = definition.split('_').map(|word| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_uppercase().chain(letters).collect::<String>())
            .unwrap_or_default()
    });
    format!("{schema}{}", words.collect::<String>())
}

/// Renames the references to definitions, and gives members that must be absent a schema that generators know.
fn rename(value: &mut Value, name: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let reference = value.as_str().filter(|_| key == "$ref");
                if let Some(definition) = reference.and_then(|text| text.strip_prefix("#/$defs/")) {
                    *value = format!("#/components/schemas/{}", definition_name(name, definition)).into();
                    continue;
                }
                let properties = value.as_object_mut().filter(|_| key == "properties");
                for (_, never) in properties.into_iter().flatten().filter(|(_, schema)| **schema == false) {
                    *never = json!({ "not": {} });
                }
                rename(value, name);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, name)),
        _ => {}
    }
}
