//! Hostile documents, and followers and checks that get one as the response to every request.
//!
//! Shared by the test of their memory and the benchmark of their time.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by a test and a benchmark")]

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use towpath_proto::diffdelta::check::DiffDeltaChecker;
use towpath_proto::diffdelta::follow::{DiffDeltaFollower, FollowOptions};
use towpath_proto::follow::{Exchange, FollowMode, Follower, Now, ReadLimits, ResponseHead, StartFrom};
use towpath_proto::history::check::{HistoryCheckOptions, HistoryChecker};
use towpath_proto::history::follow::{HistoryFollowOptions, HistoryFollower};
use towpath_proto::replication::check::{ReplicationCheckOptions, ReplicationChecker};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::smart::check::SmartChecker;
use towpath_proto::smart::follow::SmartFollower;
use towpath_proto::sup::check::SupChecker;

pub const ATOM: &str =
    "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:at='http://purl.org/atompub/tombstones/1.0'>";

pub fn repeated(before: &str, each: &str, after: &str, size: usize) -> String {
    let mut text = String::with_capacity(size + before.len() + after.len() + each.len());
    text.push_str(before);
    while text.len() < size {
        text.push_str(each);
    }
    text.push_str(after);
    text
}

/// Documents that hold many small parts.
pub fn documents(size: usize) -> Vec<(&'static str, String)> {
    let json =
        |each| repeated("{\"version\":\"https://jsonfeed.org/version/1\",\"items\":[", each, "1]}", size);
    let one = |each| repeated("{\"items\":[{\"id\":1,\"x\":[", each, "1]}]}", size);
    let cursor = format!("sha256:{}", "1".repeat(64));
    let changed =
        format!("{{\"cursor\":\"{cursor}\",\"changed\":true,\"ttl_sec\":60,\"buckets\":{{\"new\":[");
    let buckets = |each| repeated(&changed, each, "{}]}}", size);
    let entry = |each| repeated(&format!("{ATOM}<entry><id>a</id>"), each, "</entry></feed>", size);
    vec![
        ("items of a JSON list", repeated("[", "{\"id\":1},", "{\"id\":1}]", size)),
        ("items of a JSON object", repeated("{", "\"a\":{\"id\":1},", "\"a\":1}", size)),
        ("no items", repeated("[", "1,", "1]", size)),
        ("items of a JSON Feed", json("{\"id\":1},")),
        ("no objects in a JSON Feed", json("1,")),
        ("members of a JSON Feed", repeated("{\"items\":[],\"x\":[", "1,", "1]}", size)),
        ("values of one item", one("0,")),
        ("objects of one item", one("{},")),
        ("objects of one item with members", one("{\"a\":0},")),
        ("nested arrays of one item", one("[[[[0]]]],")),
        ("tags", repeated("{\"items\":[{\"id\":1,\"tags\":[", "\"\",", "\"\"]}]}", size)),
        ("Atom entries", repeated(ATOM, "<entry><id>a</id></entry>", "</feed>", size)),
        ("Atom elements", entry("<b/>")),
        ("Atom categories", entry("<category term='a'/>")),
        ("Atom authors", entry("<author><name>a</name></author>")),
        ("Atom links", repeated(ATOM, "<link href=''/>", "</feed>", size)),
        ("Atom tombstones", repeated(ATOM, "<at:deleted-entry ref='a'/>", "</feed>", size)),
        ("control characters", repeated(&format!("{ATOM}<title>"), "\u{1}", "</title></feed>", size)),
        ("RSS items", repeated("<rss><channel>", "<item><guid>a</guid></item>", "</channel></rss>", size)),
        ("items of DiffDelta", buckets("1,")),
        ("items of DiffDelta with an id", buckets("{\"id\":\"a\"},")),
        ("members of DiffDelta", repeated("{\"endpoints\":{\"x\":[", "{},", "1]}}", size)),
        ("sources of DiffDelta", repeated("{\"sources\":[", "{\"a\":0},", "1]}", size)),
        ("snapshots of DiffDelta", repeated("{\"snapshots\":[", "{},", "{}]}", size)),
        ("updates of SUP", repeated("{\"updates\":[", "[\"a\",\"b\"],", "[\"a\",\"b\"]]}", size)),
        (
            "periods of SUP",
            repeated("{\"updates\":[],\"available_periods\":{", "\"1\":\"a\",", "\"1\":\"a\"}}", size),
        ),
        (
            "RSS categories",
            repeated("<rss><channel><item>", "<category>a</category>", "</item></channel></rss>", size),
        ),
    ]
}

/// Entities of a page of Data Replication.
pub fn page(size: usize) -> String {
    repeated("", "--b\r\nContent-Type: text/plain\r\n\r\na\r\n", "--b--\r\n", size)
}

/// Most responses that an exchange gets.
const RESPONSES: usize = 3;
const URL: &str = "http://a.example/feed";

fn head(url: String, content_type: &'static str) -> ResponseHead {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static(content_type));
    headers.insert("etag", HeaderValue::from_static("\"a\""));
    headers.insert("last-modified", HeaderValue::from_static("Mon, 01 Jan 2024 00:00:00 GMT"));
    ResponseHead { status: 200, url, headers }
}

/// Answers every request with one document, and drops all events.
fn answer<E: Exchange + ?Sized>(exchange: &mut E, body: &Bytes, mut drain: impl FnMut(&mut E)) {
    let content_type = match body.first() {
        Some(b'<') => "application/atom+xml",
        Some(b'-') => "multipart/mixed; boundary=b",
        _ => "application/json",
    };
    let mut now = Now::simulated("2024-01-01T00:00:00Z".parse().unwrap());
    for _ in 0..RESPONSES {
        drain(exchange);
        if exchange.is_finished() {
            return;
        }
        match exchange.poll_request(now) {
            Some(request) => {
                exchange.handle_head(now, request.id, head(request.url, content_type));
                exchange.handle_chunk(now, request.id, body.clone());
                exchange.handle_end(now, request.id, Ok(()));
            }
            None => {
                now.monotonic = exchange.poll_timeout().unwrap_or_else(|| now.after(Duration::from_secs(60)));
            }
        }
    }
    drain(exchange);
}

fn follow<F: Follower>(mut follower: F, body: &Bytes) {
    answer(&mut follower, body, |follower| while follower.poll_event().is_some() {});
}

/// Work on a document within limits.
pub type Work = fn(&Bytes, ReadLimits);

/// Returns true if a follower or a check reads documents of this form, and does not refuse it at its first byte.
pub fn reads(way: &str, body: &Bytes) -> bool {
    match body.first() {
        Some(b'<') => way.contains("Smart") || way.contains("history"),
        Some(b'-') => way.contains("replication"),
        _ => true,
    }
}

/// Followers and checks, each with how it works on a document.
pub const EXCHANGES: [(&str, Work); 9] = [
    ("a DiffDelta follower", |body, limits| {
        let options = FollowOptions {
            from: StartFrom::Beginning,
            state: None,
            mode: FollowMode::CatchUp,
            every: None,
            jitter: 0,
        };
        follow(
            DiffDeltaFollower::new("http://a.example/diff/a/latest.json", options).unwrap().within(limits),
            body,
        );
    }),
    ("a Smart Feeds follower", |body, limits| {
        follow(
            SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::CatchUp).unwrap().within(limits),
            body,
        );
    }),
    ("a history follower", |body, limits| {
        let options = HistoryFollowOptions {
            mode: FollowMode::CatchUp,
            reading: limits.document,
            ..HistoryFollowOptions::default()
        };
        follow(HistoryFollower::new(URL, StartFrom::Beginning, None, options).unwrap(), body);
    }),
    ("a replication follower", |body, limits| {
        let options = ReplicationOptions {
            mode: FollowMode::CatchUp,
            max_entity: limits.max_entity,
            ..ReplicationOptions::default()
        };
        follow(ReplicationFollower::new(URL, StartFrom::Beginning, None, options).unwrap(), body);
    }),
    ("a DiffDelta check", |body, limits| {
        answer(
            &mut DiffDeltaChecker::new("http://a.example/diff/a/latest.json").unwrap().within(limits),
            body,
            |_| {},
        );
    }),
    ("a Smart Feeds check", |body, limits| answer(&mut SmartChecker::new(URL).within(limits), body, |_| {})),
    ("a history check", |body, limits| {
        answer(
            &mut HistoryChecker::new(URL, HistoryCheckOptions { limits, ..HistoryCheckOptions::default() }),
            body,
            |_| {},
        );
    }),
    ("a SUP check", |body, limits| answer(&mut SupChecker::new(URL).within(limits), body, |_| {})),
    ("a replication check", |body, limits| {
        answer(
            &mut ReplicationChecker::new(
                URL,
                ReplicationCheckOptions {
                    max_entity: limits.max_entity,
                    ..ReplicationCheckOptions::default()
                },
            ),
            body,
            |_| {},
        );
    }),
];
