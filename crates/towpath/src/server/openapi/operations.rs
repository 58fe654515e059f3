//! Operations on feeds and items, and those of operators.

use super::operation::{Media, Operation, Response, Right};

/// A JSON document of a schema.
pub(super) const PAGE: &[Media] = &[("text/html", "Html")];
const FEED: &[Media] = &[("application/json", "FeedDescription"), ("text/html", "Html")];
const SINK: &[Media] = &[("application/json", "SinkStatus")];
const PART: Response = (206, "The part that Range asks for", ANY);
const UNCHANGED: Response = (304, "As the client has it (If-None-Match, If-Modified-Since)", &[]);
const ANY: &[Media] = &[("*/*", "Binary")];
const LINES: &str = "application/x-ndjson";

/// Feeds: their list, their descriptions, and their configuration.
pub(super) static FEEDS: &[Operation] = &[
    Operation::get("/", "getHome", "The public feeds; a page in a browser").answers(&[(
        200,
        "Names, titles and addresses",
        &[("application/json", "FeedList"), ("text/html", "Html")],
    )]),
    Operation::get(
        "/feeds",
        "listFeeds",
        "The feeds that may be read with the request's token: without one those that everybody may read",
    )
    .needs(Right::Read)
    .with(&["status", "instance"])
    .answers(&[(200, "Names, titles and addresses", &[("application/json", "FeedList")])]),
    Operation::get("/feeds/{feed}", "getFeed", "A feed and its addresses; a page in a browser")
        .needs(Right::Read)
        .with(&["Towpath-Position"])
        .answers(&[(200, "The feed", FEED), UNCHANGED])
        .problems(&[404, 410]),
    Operation::put(
        "/feeds/{feed}",
        "putFeed",
        "Make a feed, or change one that was made so, with the keys of [[feed]] in the configuration file",
    )
    .needs(Right::Admin)
    .may_take(&[("application/json", "FeedSettings")])
    .answers(&[
        (200, "Changed, or as it was", &[("application/json", "FeedDescription")]),
        (201, "Made", &[("application/json", "FeedDescription")]),
    ])
    .problems(&[409]),
    Operation::delete(
        "/feeds/{feed}",
        "deleteFeed",
        "Remove a feed that was made over HTTP; it is 410 from then on",
    )
    .needs(Right::Admin)
    .with(&["reason"])
    .answers(&[(200, "Removed", &[("application/json", "RemovedFeed")])])
    .problems(&[404, 409, 410]),
    Operation::stream(
        "/feeds/{feed}/events",
        "streamFeed",
        "Every change of a feed as it comes: Server-Sent Events",
    )
    .needs(Right::Read)
    .with(&["Last-Event-ID", "events:since", "as", "last", "padding", "link"])
    .answers(&[(
        200,
        "The events; from a full server a stream that ends at once, with retry:",
        &[("text/event-stream", "Text")],
    )])
    .problems(&[404, 410]),
    Operation::stream(
        "/feeds/events",
        "streamFeeds",
        "The changes of several feeds as one stream of lines: Server-Sent Events",
    )
    .needs(Right::Read)
    .with(&["feed[]", "Last-Event-ID", "last", "padding"])
    .answers(&[(
        200,
        "The events; from a full server a stream that ends at once, with retry:",
        &[("text/event-stream", "Text")],
    )])
    .problems(&[404, 410]),
    Operation::post(
        "/feeds/{feed}/read-links",
        "createReadLink",
        "Make addresses that read this feed for a short time, for programs that cannot send a token",
    )
    .needs(Right::Read)
    .with(&["read-links:seconds"])
    .answers(&[(201, "The addresses, and when they expire", &[("application/json", "ReadLinks")])])
    .problems(&[404, 410]),
    Operation::get(
        "/feeds/{feed}/attachments/{key}/{name}",
        "getAttachment",
        "A file that was uploaded with an item",
    )
    .needs(Right::Read)
    .with(&["Range", "If-Range", "If-None-Match"])
    .answers(&[(200, "The file", ANY), PART, UNCHANGED])
    .problems(&[404, 410, 416]),
];

/// Items: pages, publishing in batches, and single items.
pub(super) static ITEMS: &[Operation] = &[
    Operation::get(
        "/feeds/{feed}/items",
        "listItems",
        "A page of a feed, held while there is none (Smart Feeds, HTTP Pull)",
    )
    .needs(Right::Read)
    .with(&[
        "order", "since", "until", "max", "timeout", "callback", "format", "as", "last", "link",
        "Towpath-Position", "If-None-Match",
    ])
    .answers(&[
        (200, "The page", &[
            ("application/json", "ItemPage"),
            ("application/atom+xml", "Text"),
            ("application/javascript", "Text"),
            (LINES, "Lines"),
        ]),
        UNCHANGED,
    ])
    .problems(&[404, 406, 410]),
    Operation::post(
        "/feeds/{feed}/items",
        "publishItems",
        "Publish a batch: lines, a JSON array of lines, another program's JSON ([feed.publish.json]), or a form; appended \
         whole or not at all",
    )
    .needs(Right::Publish)
    .with(&["expect", "as", "urls"])
    .takes(&[
        ("application/json", "PublishedLines"),
        (LINES, "Lines"),
        ("application/x-www-form-urlencoded", "ItemForm"),
        ("multipart/form-data", "ItemForm"),
    ])
    .answers(&[(200, "Where the batch stands", &[("application/json", "BatchReceipt")])])
    .problems(&[404, 409, 410, 415, 422]),
    Operation::get("/feeds/{feed}/items/{id}", "getItem", "An item's content; with ?as=line the whole item as JSON")
        .needs(Right::Read)
        .with(&[
            "item:as", "version", "view", "link", "Towpath-Position", "If-None-Match", "Range", "If-Range",
        ])
        .answers(&[(200, "The item", ANY), PART, UNCHANGED])
        .problems(&[404, 410, 416]),
    Operation::get(
        "/feeds/{feed}/items/{id}/versions",
        "listVersions",
        "The versions of an item, newest first, also of a deleted one",
    )
        .needs(Right::Read)
        .with(&["from", "link", "Towpath-Position"])
        .answers(&[(200, "At most 100 versions", &[("application/json", "ItemVersions")])])
        .problems(&[404, 410]),
    Operation::put("/feeds/{feed}/items/{id}", "putItem", "Publish an item: the body is its content")
        .needs(Right::Publish)
        .with(&[
            "title", "url", "summary", "author", "tag", "published", "updated", "image", "attachment",
            "publish_at", "item:as", "urls", "If-Match", "If-None-Match:*",
        ])
        .may_take(ANY)
        .answers(&[
            (200, "Replaced, or as it was", &[("application/json", "ItemReceipt")]),
            (201, "Created", &[("application/json", "ItemReceipt")]),
            (202, "Scheduled", &[("application/json", "ItemReceipt")]),
        ])
        .problems(&[404, 409, 410, 412, 415]),
    Operation::patch(
        "/feeds/{feed}/items/{id}",
        "patchItem",
        "Change an item's JSON content; with ?as=line any part of its line",
    )
    .needs(Right::Publish)
    .with(&["item:as", "urls", "If-Match"])
    .takes(&[("application/merge-patch+json", "MergePatch")])
    .answers(&[(200, "Changed, or as it was", &[("application/json", "ItemReceipt")])])
    .problems(&[404, 409, 410, 412, 415, 422]),
    Operation::delete("/feeds/{feed}/items/{id}", "deleteItem", "Delete an item, or cancel what was scheduled")
        .needs(Right::Publish)
        .with(&["If-Match"])
        .answers(&[(200, "Deleted, or cancelled", &[("application/json", "ItemReceipt")])])
        .problems(&[404, 409, 410, 412]),
];

/// Resumable uploads of items.
pub(super) static UPLOADS: &[Operation] = &[
    Operation::post(
        "/feeds/{feed}/uploads",
        "createUpload",
        "Begin a resumable upload (tus 1.0.0) of an item's content",
    )
    .needs(Right::Publish)
    .with(&["Tus-Resumable", "Upload-Length", "Upload-Defer-Length", "Upload-Metadata", "Upload-Checksum"])
    .may_take(&[("application/offset+octet-stream", "Binary")])
    .answers(&[(201, "Created: Location is its address, and the body's bytes are stored", &[])])
    .problems(&[404, 409, 410, 412, 413, 460]),
    Operation::head("/feeds/{feed}/uploads/{upload}", "getUpload", "How many bytes of an upload are stored")
        .needs(Right::Publish)
        .with(&["Tus-Resumable"])
        .answers(&[(
            200,
            "Upload-Offset says it, and Upload-Length, or Upload-Defer-Length, how many there will be",
            &[],
        )])
        .problems(&[404, 409, 410, 412]),
    Operation::patch(
        "/feeds/{feed}/uploads/{upload}",
        "continueUpload",
        "Send bytes of an upload; the last one publishes it",
    )
    .needs(Right::Publish)
    .with(&["Tus-Resumable", "Upload-Offset", "Upload-Length", "Upload-Checksum"])
    .takes(&[("application/offset+octet-stream", "Binary")])
    .answers(&[(204, "Stored; Upload-Offset says how many bytes there are", &[])])
    .problems(&[404, 409, 410, 412, 460]),
    Operation::delete(
        "/feeds/{feed}/uploads/{upload}",
        "deleteUpload",
        "End an upload, and remove what it has stored",
    )
    .needs(Right::Publish)
    .with(&["Tus-Resumable"])
    .answers(&[(204, "Removed", &[])])
    .problems(&[404, 409, 410, 412]),
    Operation::post(
        "/feeds/{feed}/uploads/{upload}",
        "tunnelUpload",
        "PATCH, HEAD or DELETE for clients that can send only POST",
    )
    .needs(Right::Publish)
    .with(&["Tus-Resumable", "X-HTTP-Method-Override", "Upload-Offset", "Upload-Checksum"])
    .may_take(&[("application/offset+octet-stream", "Binary")])
    .answers(&[(200, "As HEAD", &[]), (204, "As PATCH and DELETE", &[])])
    .problems(&[404, 409, 410, 412, 460]),
];

/// Health, counters, sinks and descriptions, for operators.
pub(super) static SERVER: &[Operation] = &[
    Operation::get("/livez", "getLive", "Whether the process serves requests").answers(&[(
        200,
        "It does",
        &[("application/json", "Liveness")],
    )]),
    Operation::get("/readyz", "getReady", "Whether a load balancer should send requests here").answers(&[
        (200, "It should", &[("application/json", "Readiness")]),
        (503, "It should not", &[("application/json", "Readiness")]),
    ]),
    Operation::get("/metrics", "getMetrics", "Counters in the OpenMetrics text format").answers(&[(
        200,
        "The counters",
        &[("application/openmetrics-text", "Text"), ("text/plain", "Text")],
    )]),
    Operation::get("/openapi.json", "getOpenApi", "This document").answers(&[(
        200,
        "The document",
        &[("application/json", "Object")],
    )]),
    Operation::get("/schema/change.json", "getChangeSchema", "The JSON Schema of lines").answers(&[(
        200,
        "The schema",
        &[("application/schema+json", "Object")],
    )]),
    Operation::get("/sinks", "listSinks", "The sinks of the server: state, positions and lag")
        .needs(Right::Admin)
        .answers(&[(200, "The sinks", &[("application/json", "SinkList"), ("text/html", "Html")])]),
    Operation::get("/sinks/{sink}", "getSink", "A sink")
        .needs(Right::Admin)
        .answers(&[(200, "The sink", &[("application/json", "SinkStatus"), ("text/html", "Html")])])
        .problems(&[404]),
    Operation::post("/sinks/{sink}", "submitSinkForm", "Form of a sink's page")
        .needs(Right::Session)
        .takes(&[("application/x-www-form-urlencoded", "Form")])
        .answers(&[(200, "The page", PAGE), (303, "Done: go to the sink's page", &[])]),
    Operation::get(
        "/sinks/{sink}/letters",
        "listLetters",
        "The items that the destination refused, oldest first",
    )
    .needs(Right::Admin)
    .answers(&[(200, "The items with the reasons, at most 1000", &[("application/json", "LetterList")])])
    .problems(&[404]),
    Operation::delete("/sinks/{sink}/letters", "dropLetters", "Drop the items that the destination refused")
        .needs(Right::Admin)
        .answers(&[(200, "How many were dropped", &[("application/json", "DroppedLetters")])])
        .problems(&[404]),
    Operation::post("/sinks/{sink}/pause", "pauseSink", "Pause a sink")
        .needs(Right::Admin)
        .answers(&[(200, "The sink", SINK)])
        .problems(&[404, 409]),
    Operation::post("/sinks/{sink}/resume", "resumeSink", "Resume a sink")
        .needs(Right::Admin)
        .answers(&[(200, "The sink", SINK)])
        .problems(&[404, 409]),
    Operation::post("/sinks/{sink}/resend", "resendLetters", "Send the refused items again")
        .needs(Right::Admin)
        .answers(&[(200, "The sink", SINK)])
        .problems(&[404, 409]),
];
