//! Schemas of requests, of plain bodies, and of lists.

use serde_json::{Map, Value, json};

use super::forms::{count, list_of, named, object, reference, text, time};

/// Schemas of plain bodies, and of lists.
pub(super) fn lists() -> Map<String, Value> {
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
    named([
        ("Problem", problem()),
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
pub(super) fn requests() -> Map<String, Value> {
    let patch = object(
        &[("content_type", text()), ("content", text()), ("content_base64", text()), ("json", json!({}))],
        &[],
    );
    let digest = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let attachment = object(
        &[("url", text()), ("media_type", text()), ("size", count()), ("title", text()), ("sha256", digest)],
        &["url"],
    );
    let form = json!({
        "type": "object",
        "description": "Fields of an item; further fields are members of the item. Files: content, image, or an attachment",
        "properties": { "id": { "type": "string", "minLength": 1, "maxLength": 2048 }, "title": text(), "content": text() },
        "required": ["id"],
        "additionalProperties": { "type": "string" },
    });
    named([
        ("FeedSettings", feed_settings()),
        ("PublishedPatch", patch),
        ("PublishedAttachment", attachment),
        ("PublishedItem", published_item()),
        ("PublishedLine", published_line()),
        ("PublishedLines", list_of("PublishedLine")),
        ("ItemForm", form),
        ("Form", json!({ "type": "object", "additionalProperties": text() })),
        ("MergePatch", json!({ "type": "object", "description": "JSON Merge Patch (RFC 7396)" })),
        ("HubForm", hub_form()),
    ])
}

fn problem() -> Value {
    json!({
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
    })
}

fn published_item() -> Value {
    object(
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
    )
}

fn published_line() -> Value {
    object(
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
    )
}

fn hub_form() -> Value {
    object(
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
    )
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
