//! Parameters of operations: in the path, the query, or a header.

use serde_json::{Value, json};

/// Returns a parameter of the path by its name, or one of query or header by its name in the table of operations.
///
/// A name in that table may have a prefix, where addresses use one name for different things.
pub(super) fn parameter(name: &str) -> Option<Value> {
    path(name).or_else(|| query(name)).or_else(|| header(name))
}

/// Description, schema and example of a parameter. An example that is null is left out.
type Entry = (&'static str, Value, Value);

fn path(name: &str) -> Option<Value> {
    let (about, schema, example) = path_entry(name)?;
    let name = name.trim_matches(['{', '}']);
    Some(json!({
        "name": name, "in": "path", "required": true, "description": about, "schema": schema, "example": example,
    }))
}

fn path_entry(name: &str) -> Option<Entry> {
    Some(match name {
        "{feed}" => (
            "Id of the feed",
            json!({ "type": "string", "pattern": "^[a-z0-9_\\-]{2,32}$" }),
            json!("orders"),
        ),
        "{id}" => (
            "The item's id, percent-encoded",
            json!({ "type": "string", "minLength": 1, "maxLength": 2048 }),
            json!("order-1"),
        ),
        "{key}" => (
            "Digests of the item's id and of the file",
            json!({ "type": "string", "minLength": 1 }),
            json!("0f3c"),
        ),
        "{name}" => (
            "The file's name, whatever it is",
            json!({ "type": "string", "minLength": 1 }),
            json!("photo.jpg"),
        ),
        "{upload}" => (
            "Last part of the address that the creation told",
            json!({ "type": "string", "pattern": "^[0-9a-f]{32}$" }),
            json!("00112233445566778899aabbccddeeff"),
        ),
        "{sink}" => {
            ("Its name in the configuration", json!({ "type": "string", "minLength": 1 }), json!("copy"))
        }
        "{page}" => ("Number of the page, from 1", json!({ "type": "integer", "minimum": 1 }), json!(1)),
        "{snapshot_page}" => {
            ("Number of the page, from 0", json!({ "type": "integer", "minimum": 0 }), json!(0))
        }
        "{snapshot}" => ("An id, or latest", json!({ "type": "string", "minLength": 1 }), json!("latest")),
        "{part}" => (
            "A page's number, from 1; or the first and the last change of a document",
            json!({ "type": "string", "pattern": "^[1-9][0-9]*(-[1-9][0-9]*)?$" }),
            json!("1"),
        ),
        "{year}" => ("As in the index", json!({ "type": "string", "pattern": "^[0-9]{4}$" }), json!("2026")),
        "{month}" | "{day}" => {
            ("As in the index", json!({ "type": "string", "pattern": "^[0-9]{2}$" }), json!("01"))
        }
        "{schema}" => (
            "Name of the file",
            json!({ "enum": ["diff.schema.json", "known_issues.schema.json", "wellknown.schema.json"] }),
            json!("diff.schema.json"),
        ),
        "{asset}" => (
            "Name with its digest, as the pages have it",
            json!({ "type": "string", "minLength": 1 }),
            json!("style.css"),
        ),
        _ => return None,
    })
}

fn query(key: &str) -> Option<Value> {
    let entry = items_entry(key).or_else(|| reading_entry(key)).or_else(|| publishing_entry(key));
    let (about, schema, example) = entry.or_else(|| hub_entry(key))?;
    let name = match key {
        "feed[]" => "feed",
        key => key.split_once(':').map_or(key, |(_, name)| name),
    };
    let mut parameter = json!({ "name": name, "in": "query", "description": about, "schema": schema });
    if key == "feed[]" {
        parameter["required"] = true.into();
    }
    if !example.is_null() {
        parameter["example"] = example;
    }
    Some(parameter)
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// Parameters of a Smart Feeds pull.
fn items_entry(key: &str) -> Option<Entry> {
    let position =
        || json!({ "type": "string", "pattern": "^(cursor:.+|id:.+|time:.+|[cm][0-9]+-[0-9a-f]{10})$" });
    Some(match key {
        "order" => (
            "Order of the items",
            json!({ "enum": ["created", "modified", "-created", "-modified"], "default": "modified" }),
            json!("created"),
        ),
        "since" => (
            "Items after this: cursor:…, id:… (in an order by creation), time:… (RFC 3339, or seconds since 1970), or the \
             position of a line as it is",
            position(),
            json!("time:1767225600"),
        ),
        "until" => ("Items before this, in the forms of since", position(), json!("time:4102444800")),
        "max" => (
            "Items of a page; a larger number counts as the server's limit",
            json!({ "type": "integer", "minimum": 1, "default": 50 }),
            json!(10),
        ),
        "timeout" => (
            "Seconds to wait while there is nothing",
            json!({ "type": "integer", "minimum": 0, "default": 55 }),
            json!(0),
        ),
        "callback" => (
            "JSON-P: dotted JavaScript identifiers",
            json!({ "type": "string", "pattern": "^[A-Za-z_$][A-Za-z0-9_$]{0,30}$" }),
            Value::Null,
        ),
        "format" => ("json or atom, whatever Accept says", text(), json!("json")),
        _ => return None,
    })
}

/// Parameters of other documents and streams.
fn reading_entry(key: &str) -> Option<Entry> {
    Some(match key {
        "status" => ("Tell of each feed how it is, too", text(), json!("")),
        "instance" => ("Tell the identity of the server's run, too", text(), json!("")),
        "as" => ("Lines of JSON, one for each change", json!({ "enum": ["line"] }), json!("line")),
        "item:as" => {
            ("The body is the item's line, or a part of it", json!({ "enum": ["line"] }), json!("line"))
        }
        "version" => (
            "Position of the change whose version is asked for, as /versions lists it",
            json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
            Value::Null,
        ),
        "from" => (
            "Position of the version to begin with, as `older` says it; the latest where absent",
            json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
            Value::Null,
        ),
        "view" => ("Part of the page: its frame, or its content", text(), Value::Null),
        "last" => (
            "Begin with so many of the latest items; not with since, until, or a descending order",
            json!({ "type": "integer", "minimum": 1 }),
            Value::Null,
        ),
        "padding" => {
            ("Begin with 2 kB of comment, for proxies that hold back the first bytes", text(), json!(""))
        }
        "link" => ("Read link of a private feed, instead of a token", text(), Value::Null),
        "events:since" => ("Begin after this position; now where absent", text(), Value::Null),
        "feed[]" => (
            "Repeated, up to 64 feeds",
            json!({ "type": "array", "minItems": 1, "maxItems": 64, "items": { "type": "string", "pattern": "^[a-z0-9_\\-]{2,32}$" } }),
            json!(["orders"]),
        ),
        "read-links:seconds" => (
            "Time that the addresses are valid",
            json!({ "type": "integer", "minimum": 1, "maximum": 86400, "default": 600 }),
            json!(60),
        ),
        "sup:seconds" => (
            "The period; more than a day counts as a day",
            json!({ "type": "integer", "minimum": 1, "maximum": u64::MAX, "default": 60 }),
            json!(300),
        ),
        "replication:since" => (
            "Redirect to the page where the changes of this time begin",
            time(),
            json!("2026-01-01T00:00:00Z"),
        ),
        _ => return None,
    })
}

/// Parameters of requests that publish or remove.
fn publishing_entry(key: &str) -> Option<Entry> {
    let web = || json!({ "type": "string", "format": "uri", "pattern": "^https?://" });
    Some(match key {
        "expect" => (
            "Append only if the feed ends at this position",
            json!({ "type": "integer", "minimum": 0 }),
            json!(0),
        ),
        "urls" => (
            "Take addresses that are not absolute http or https URLs, or have spaces, too",
            json!({ "enum": ["any"] }),
            json!("any"),
        ),
        "title" => ("Title", text(), json!("Order 1")),
        "url" => ("Address of what the item is about", web(), json!("https://shop.example/orders/1")),
        "summary" => ("Summary", text(), json!("Two chairs")),
        "author" => ("Author; may be repeated", text(), json!("Ann")),
        "tag" => ("Tag; may be repeated", json!({ "type": "string", "minLength": 1 }), json!("new")),
        "published" | "updated" => ("Time", time(), json!("2026-01-01T00:00:00Z")),
        "publish_at" => ("Publish at this time", time(), json!("2026-01-01T00:00:00Z")),
        "image" => ("Address of an image", web(), json!("https://shop.example/1.jpg")),
        "attachment" => ("Address of a file; may be repeated", web(), json!("https://shop.example/1.pdf")),
        "reason" => (
            "Words for those who follow the feed, who get 410 with them from then on",
            json!({ "type": "string", "maxLength": 500 }),
            json!("moved to orders-2"),
        ),
        _ => return None,
    })
}

/// Parameters with which a hub verifies an intent.
fn hub_entry(key: &str) -> Option<Entry> {
    let is_of_hub = matches!(key, "hub.mode" | "hub.topic" | "hub.challenge" | "hub.lease_seconds");
    is_of_hub.then(|| ("WebSub, section 5.3", text(), Value::Null))
}

fn header(key: &str) -> Option<Value> {
    let (about, schema) = match key {
        "Towpath-Position" => (
            "The answer has the feed's log up to this place at least, as an append's answer said it; waited for up to 5 \
             seconds, then 503",
            json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
        ),
        "Tus-Resumable" => ("Version of tus", json!({ "enum": ["1.0.0"] })),
        "Upload-Length" => (
            "Bytes of the whole upload; a creation with Upload-Defer-Length leaves them to a later request",
            json!({ "type": "integer", "minimum": 0 }),
        ),
        "Upload-Defer-Length" => ("Instead of Upload-Length: it is not known yet", json!({ "enum": ["1"] })),
        "Upload-Offset" => ("Bytes that are stored already", json!({ "type": "integer", "minimum": 0 })),
        "Upload-Metadata" => (
            "Pairs of a key and a value in Base 64: id of the item, and perhaps filename, filetype and title",
            json!({ "type": "string" }),
        ),
        "Upload-Checksum" => ("sha1 or sha256, and the checksum in Base 64", json!({ "type": "string" })),
        "X-HTTP-Method-Override" => {
            ("The method that is meant", json!({ "enum": ["PATCH", "HEAD", "DELETE"] }))
        }
        "Last-Event-ID" => ("Begin after this event", json!({ "type": "string" })),
        "If-None-Match" => ("Entity tag that the client has", json!({ "type": "string" })),
        "Range" => (
            "Part of the content: bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT",
            json!({ "type": "string" }),
        ),
        "If-Range" => {
            ("Entity tag that the part must be of, else the whole is sent", json!({ "type": "string" }))
        }
        "If-None-Match:*" => ("Only if the item is not there", json!({ "enum": ["*"] })),
        "If-Match" => (
            "Only if the item is at this version, as the ETag of a read said it, or * if there is one",
            json!({ "type": "string", "pattern": "^(\\*|\"[0-9]+\")$" }),
        ),
        _ => return None,
    };
    let name = key.split_once(':').map_or(key, |(name, _)| name);
    let mut parameter = json!({ "name": name, "in": "header", "description": about, "schema": schema });
    if key == "Upload-Metadata" {
        parameter["required"] = true.into();
    }
    Some(parameter)
}
