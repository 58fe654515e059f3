//! Operations of the published protocols.

use super::operation::{Media, Operation, Response, Right};

const UNCHANGED: Response = (304, "As the client has it (If-None-Match, If-Modified-Since)", &[]);
const PAGE: &[Media] = &[("multipart/mixed", "Text")];
const ATOM: &[Media] = &[("application/atom+xml", "Text")];
const RSS: &[Media] = &[("application/rss+xml", "Text")];
const JSON_FEED: &[Media] = &[("application/feed+json", "JsonFeed")];
const HEAD: &[Media] = &[("application/json", "DiffDeltaHead")];
const DIFF: &[Media] = &[("application/json", "DiffDeltaFeed")];
const SCHEMA: &[Media] = &[("application/schema+json", "Object"), ("application/json", "Object")];

const fn document(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::get(path, id, summary).with(&["If-None-Match"])
}

/// A document of a feed.
const fn of_feed(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::get(path, id, summary)
        .needs(Right::Read)
        .with(&["Towpath-Position", "If-None-Match"])
        .problems(&[404, 410])
}

/// DiffDelta, and Simple Update Protocol.
pub(super) static DIFFDELTA: &[Operation] = &[
    document("/.well-known/diffdelta.json", "getManifest", "What this server offers (DiffDelta §8)")
        .answers(&[(200, "The discovery manifest", &[("application/json", "DiffDeltaManifest")]), UNCHANGED])
        .problems(&[404]),
    Operation::get("/healthz.json", "getHealth", "Whether the server and its sources are well").answers(&[
        (200, "The state", &[("application/json", "DiffDeltaHealth")]),
        (503, "Nothing can be written", &[("application/json", "DiffDeltaHealth")]),
        UNCHANGED,
    ]),
    document("/diff/head.json", "getGlobalHead", "Whether anything changed in any feed")
        .answers(&[(200, "The pointer", HEAD), UNCHANGED])
        .problems(&[404]),
    document("/diff/latest.json", "getGlobalLatest", "What changed last in all feeds")
        .answers(&[(200, "The changes", DIFF), UNCHANGED])
        .problems(&[404]),
    document("/diff/sources.json", "listSources", "Every source and its state")
        .answers(&[(200, "The sources", &[("application/json", "DiffDeltaSources")]), UNCHANGED]),
    document("/diff/known_issues.json", "listKnownIssues", "Known deviations of these documents")
        .answers(&[(200, "The issues", &[("application/json", "DiffDeltaKnownIssues")]), UNCHANGED]),
    of_feed("/diff/{feed}/head.json", "getDiffHead", "Whether a feed changed (DiffDelta §1.1)")
        .answers(&[(200, "The pointer", HEAD), UNCHANGED]),
    of_feed("/diff/{feed}/latest.json", "getDiffLatest", "What changed last in a feed (DiffDelta §1.2)")
        .answers(&[(200, "The changes", DIFF), UNCHANGED]),
    of_feed("/diff/source/{feed}/head.json", "getSourceHead", "The same as /diff/{feed}/head.json")
        .answers(&[(200, "The pointer", HEAD), UNCHANGED]),
    of_feed("/diff/source/{feed}/latest.json", "getSourceLatest", "The same as /diff/{feed}/latest.json")
        .answers(&[(200, "The changes", DIFF), UNCHANGED]),
    of_feed("/archive/{feed}/index.json", "getArchiveIndex", "Every snapshot of a feed, oldest first")
        .answers(&[(200, "The snapshots", &[("application/json", "DiffDeltaArchive")]), UNCHANGED]),
    of_feed(
        "/archive/{feed}/{year}/{month}/{day}/{snapshot}",
        "getArchiveSnapshot",
        "A snapshot of a feed, as the index names it; an archive outlives its feed",
    )
    .answers(&[(200, "The changes", DIFF), UNCHANGED]),
    document("/schema/v1/{schema}", "getDiffDeltaSchema", "A JSON Schema of DiffDelta's documents")
        .answers(&[(200, "The schema", SCHEMA), UNCHANGED])
        .problems(&[404]),
    Operation::get("/sup.json", "getSup", "Which feeds moved lately (Simple Update Protocol)")
        .with(&["sup:seconds", "If-None-Match"])
        .answers(&[(200, "The updates", &[("application/json", "SupDocument")]), UNCHANGED]),
];

/// Feed History: a feed as Atom, RSS and JSON Feed.
pub(super) static HISTORY: &[Operation] = &[
    of_feed("/feeds/{feed}/atom", "getAtom", "The newest entries of a feed as Atom (Feed History)")
        .answers(&[(200, "The document", ATOM), UNCHANGED]),
    of_feed(
        "/feeds/{feed}/atom/{part}",
        "getAtomPart",
        "A page of a feed's past as Atom (RFC 5005), or the newest entries as they once were (Feed History, section 4)",
    )
    .answers(&[(200, "The document", ATOM), UNCHANGED]),
    of_feed("/feeds/{feed}/rss", "getRss", "The newest entries of a feed as RSS (Feed History)")
        .answers(&[(200, "The document", RSS), UNCHANGED]),
    of_feed("/feeds/{feed}/rss/{part}", "getRssPart", "The same of a feed's past as RSS")
        .answers(&[(200, "The document", RSS), UNCHANGED]),
    of_feed("/feeds/{feed}/feed.json", "getJsonFeed", "The newest entries of a feed as JSON Feed (Feed History)")
        .answers(&[(200, "The document", JSON_FEED), UNCHANGED]),
    of_feed("/feeds/{feed}/feed.json/{part}", "getJsonFeedPart", "The same of a feed's past as JSON Feed")
        .answers(&[(200, "The document", JSON_FEED), UNCHANGED]),
];

/// Data Replication.
pub(super) static REPLICATION: &[Operation] = &[
    of_feed(
        "/feeds/{feed}/replication",
        "getNewestPage",
        "The newest page of a feed (Data Replication), or the way to the page of a time",
    )
    .with(&["replication:since", "Towpath-Position", "If-None-Match"])
    .answers(&[(200, "The page", PAGE), UNCHANGED, (307, "The page of that time", &[])]),
    of_feed("/feeds/{feed}/replication/pages/{page}", "getPage", "A page of a feed (Data Replication)")
        .answers(&[(200, "The page", PAGE), UNCHANGED]),
    of_feed("/feeds/{feed}/snapshots", "listSnapshots", "The snapshots that are kept")
        .with(&["Towpath-Position"])
        .answers(&[(200, "Their ids, addresses and sizes", &[("application/json", "SnapshotList")])]),
    Operation::post(
        "/feeds/{feed}/snapshots",
        "createSnapshot",
        "Make a snapshot; answers when it is complete",
    )
    .needs(Right::Admin)
    .answers(&[(201, "Its index", &[("application/json", "SnapshotIndex")])])
    .problems(&[404, 409, 410]),
    of_feed(
        "/feeds/{feed}/snapshots/{snapshot}",
        "getSnapshot",
        "The index of a snapshot (Data Replication)",
    )
    .answers(&[(200, "The index", &[("application/json", "SnapshotIndex")]), UNCHANGED]),
    of_feed(
        "/feeds/{feed}/snapshots/{snapshot}/pages/{snapshot_page}",
        "getSnapshotPage",
        "A page of a snapshot (Data Replication)",
    )
    .answers(&[(200, "The page", PAGE), UNCHANGED]),
];

/// The WebSub hub, and deliveries of other hubs.
pub(super) static PUSH: &[Operation] = &[
    Operation::post(
        "/feeds/{feed}/hub",
        "subscribe",
        "Subscribe to the feed, or unsubscribe (WebSub, PubSubHubbub 0.3). Errors are plain text",
    )
    .needs(Right::Read)
    .takes(&[("application/x-www-form-urlencoded", "HubForm")])
    .answers(&[(202, "It will be verified", &[]), (204, "It was verified (hub.verify=sync)", &[])])
    .problems(&[404, 409, 410, 415]),
    Operation::stream(
        "/feeds/{feed}/callback",
        "verifyCallback",
        "Another hub's question whether this server subscribed (WebSub 5.3)",
    )
    .with(&["hub.mode", "hub.topic", "hub.challenge", "hub.lease_seconds"])
    .answers(&[(200, "The challenge", &[("text/plain", "Text")]), (404, "It did not", &[])]),
    Operation::post("/feeds/{feed}/callback", "deliverCallback", "Delivery of another hub (WebSub 7)")
        .may_take(&[("*/*", "Binary")])
        .answers(&[(200, "Taken", &[]), (202, "Taken", &[]), (410, "Nothing was subscribed to", &[])])
        .problems(&[404]),
];
