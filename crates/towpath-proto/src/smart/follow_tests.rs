//! Following a simulated publisher.

use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::Value;

use super::accept::PageFormat;
use super::cursor::{CursorKind, LogTag};
use super::follow::SmartFollower;
use super::memory::MemoryLog;
use super::publish;
use super::pull::{FeedSettings, Pull};
use super::query::PullQuery;
use super::tests::{log, settings, time};
use crate::change::{NewChange, Op};
use crate::follow::{
    Event, Exchange, FollowError, Followed, Follower, Request, ResponseHead, StartFrom, TransferError,
};
use crate::item::Item;

pub(super) const URL: &str = "http://example.com/feeds/a/items";

/// A publisher: its log, and how it answers.
pub(super) struct Server {
    pub(super) log: MemoryLog,
    feed: FeedSettings,
    format: PageFormat,
    now: Timestamp,
}

impl Server {
    pub(super) fn new(log: MemoryLog) -> Self {
        Self { log, feed: settings(CursorKind::Sequence), format: PageFormat::Json, now: time(1000) }
    }

    pub(super) fn get(&mut self, url: &str) -> http::Response<Bytes> {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let query = match PullQuery::parse(query, &self.feed.limits) {
            Ok(query) => query,
            Err(error) => return publish::refuse(&error),
        };
        let mut pull = Pull::new(query, &self.feed, self.now);
        match self.log.run(&mut pull) {
            Ok(page) => publish::respond(&self.feed, pull.query(), &page, self.format),
            Err(error) => publish::fail(&error),
        }
    }
}

/// What a consumer has: a copy of the feed, and the last checkpoint.
#[derive(Default)]
struct Copy {
    items: std::collections::BTreeMap<String, Option<Item>>,
    told: Vec<Followed>,
    state: Option<Value>,
    failures: Vec<FollowError>,
}

impl Copy {
    fn drain(&mut self, follower: &mut SmartFollower) {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => {
                    let item = (change.op != Op::Delete).then(|| change.item.clone());
                    self.items.insert(change.item.id.clone(), item);
                    self.told.push(*change);
                }
                Event::Checkpoint(state) => self.state = Some(state),
                Event::Failed(error) => self.failures.push(error),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn answer(follower: &mut SmartFollower, now: Timestamp, request: &Request, response: &http::Response<Bytes>) {
    answer_from(&request.url, follower, now, request, response);
}

/// The same from the address where redirects have led.
pub(super) fn answer_from(
    url: &str,
    follower: &mut SmartFollower,
    now: Timestamp,
    request: &Request,
    response: &http::Response<Bytes>,
) {
    let head = ResponseHead {
        status: response.status().as_u16(),
        url: url.to_owned(),
        headers: response.headers().clone(),
    };
    follower.handle_head(now, request.id, head);
    let half = response.body().len() / 2;
    follower.handle_chunk(now, request.id, response.body().slice(..half));
    follower.handle_chunk(now, request.id, response.body().slice(half..));
    follower.handle_end(now, request.id, Ok(()));
}

/// Follows to the end once.
fn follow(server: &mut Server, url: &str, from: &StartFrom, copy: &mut Copy) -> usize {
    let mut follower = SmartFollower::new(url, from, copy.state.clone(), true).unwrap();
    let mut requests = 0;
    while !follower.is_finished() {
        let request = follower.poll_request(server.now).unwrap();
        let response = server.get(&request.url);
        answer(&mut follower, server.now, &request, &response);
        copy.drain(&mut follower);
        requests += 1;
    }
    requests
}

fn wanted(log: &MemoryLog) -> std::collections::BTreeMap<String, Option<Item>> {
    let items = log.items(super::spec::By::Modified).into_iter();
    items.map(|c| (c.item.id.clone(), (c.op != Op::Delete).then_some(c.item))).collect()
}

/// Updates/Synchronization via Pull: fetch any items since the latest item received, repeatedly.
#[test]
fn a_copy_is_made_and_kept_up_to_date() {
    for format in [PageFormat::Json, PageFormat::Atom] {
        let mut server = Server::new(log(&[("a", 10), ("b", 20), ("-a", 30)]));
        server.format = format;
        let mut copy = Copy::default();
        assert_eq!(follow(&mut server, URL, &StartFrom::Beginning, &mut copy), 2);
        assert_eq!(copy.items, wanted(&server.log));
        assert_eq!(copy.told[1].op, Op::Delete);
        assert_eq!(copy.told[1].modified, Some(time(30)));
        server.log.append(NewChange::put(Item::new("c")), time(40));
        server.log.append(NewChange::put(Item { title: Some("new".into()), ..Item::new("b") }), time(40));
        follow(&mut server, URL, &StartFrom::Beginning, &mut copy);
        assert_eq!(copy.items, wanted(&server.log));
        assert_eq!(copy.told.len(), 4);
        assert!(copy.failures.is_empty(), "{:?}", copy.failures);
    }
}

#[test]
fn following_begins_where_it_is_told_to() {
    let mut server = Server::new(log(&[("a", 10), ("b", 20), ("c", 30)]));
    let mut begin = |from: StartFrom| {
        let mut copy = Copy::default();
        follow(&mut server, URL, &from, &mut copy);
        server.log.append(NewChange::put(Item::new("d")), time(40));
        follow(&mut server, URL, &from, &mut copy);
        server.log.changes.truncate(3);
        copy.told.iter().map(|told| told.item.id.clone()).collect::<String>()
    };
    let cursor = settings(CursorKind::Sequence).tag.cursor(super::spec::By::Modified, 2);
    assert_eq!(begin(StartFrom::Beginning), "abcd");
    assert_eq!(begin(StartFrom::Now), "d");
    assert_eq!(begin(StartFrom::Time(time(20))), "bcd");
    assert_eq!(begin(StartFrom::Time(time(35))), "d");
    assert_eq!(begin(StartFrom::Position(cursor.clone())), "cd");
    assert_eq!(begin(StartFrom::Position(format!("cursor:{cursor}"))), "cd");
    let mut copy = Copy::default();
    let mut empty = Server::new(MemoryLog::default());
    follow(&mut empty, URL, &StartFrom::Now, &mut copy);
    empty.log = log(&[("a", 10)]);
    follow(&mut empty, URL, &StartFrom::Now, &mut copy);
    assert_eq!(copy.told.len(), 1);
}

/// A publisher need not know descending orders: then following begins with the time.
#[test]
fn now_is_a_time_where_there_is_no_descending_order() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Now, None, true).unwrap();
    let request = follower.poll_request(time(1000)).unwrap();
    assert_eq!(request.url, format!("{URL}?order=-modified&max=1"));
    let refusal = http::Response::builder().status(400).body(Bytes::new()).unwrap();
    answer(&mut follower, time(1000), &request, &refusal);
    assert!(matches!(follower.poll_event(), Some(Event::Checkpoint(_))));
    let request = follower.poll_request(time(1000)).unwrap();
    let since = "since=time%3A1970-01-01T00%3A16%3A40Z";
    assert_eq!(request.url, format!("{URL}?order=modified&{since}&max=200&timeout=0"));
}

#[test]
fn every_item_has_a_position_to_go_on_from() {
    let mut server = Server::new(log(&[("a", 10), ("b", 20), ("c", 30)]));
    let mut copy = Copy::default();
    follow(&mut server, URL, &StartFrom::Beginning, &mut copy);
    for (index, told) in copy.told.iter().enumerate() {
        let mut rest = Copy::default();
        follow(&mut server, URL, &StartFrom::Position(told.position.clone()), &mut rest);
        assert_eq!(rest.told.len(), 2 - index);
    }
}

/// HTTP Pull: while there is more it is fetched at once; then the request may be held.
#[test]
fn a_follower_that_goes_on_asks_to_be_held() {
    let mut server = Server::new(log(&[("a", 10)]));
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, false).unwrap();
    let mut copy = Copy::default();
    let mut asked = Vec::new();
    for _ in 0..4 {
        let Some(request) = follower.poll_request(server.now) else { break };
        let response = server.get(&request.url);
        if request.url.ends_with("timeout=55") {
            assert!(request.patience > Duration::from_secs(60));
        }
        answer(&mut follower, server.now, &request, &response);
        copy.drain(&mut follower);
        asked.push(request.url.rsplit('=').next().unwrap().to_owned());
    }
    // A publisher that did not hold the third is left alone for a while.
    assert_eq!(asked, ["0", "0", "55"]);
    assert_eq!(follower.poll_timeout(), Some(server.now + SignedDuration::from_secs(30)));
    server.now += SignedDuration::from_secs(30);
    let request = follower.poll_request(server.now).unwrap();
    server.now += SignedDuration::from_secs(55);
    let response = server.get(&request.url);
    answer(&mut follower, server.now, &request, &response);
    assert!(follower.poll_request(server.now).is_some(), "a publisher that holds is asked again at once");
    assert!(!follower.is_finished());
}

#[test]
fn failures_are_told_and_waited_for() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, false).unwrap();
    let mut now = time(0);
    let mut waits = Vec::new();
    for attempt in 0..10 {
        let request = follower.poll_request(now).unwrap();
        if attempt == 1 {
            let busy = http::Response::builder().status(503).header("retry-after", "20");
            answer(&mut follower, now, &request, &busy.body(Bytes::new()).unwrap());
        } else {
            follower.handle_end(now, request.id, Err(TransferError::Connect("refused".into())));
        }
        assert!(matches!(follower.poll_event(), Some(Event::Failed(_))));
        assert!(follower.poll_request(now).is_none());
        let next = follower.poll_timeout().unwrap();
        waits.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 20, 4, 8, 16, 32, 64, 128, 256, 300]);
}

/// A publisher that breaks the protocol is an error that says how, never a silent gap.
#[test]
fn broken_pages_are_errors() {
    let cases = [
        ("{", "not JSON"),
        (r#"{"items": [{"id": "a"}]}"#, "no cursor for the last"),
        (r#"{"items": [{"id": "a"}, {}], "last_cursor": "x"}"#, "item 1 has no id"),
        ("<feed", "not JSON"),
    ];
    for (body, reason) in cases {
        let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, true).unwrap();
        let request = follower.poll_request(time(0)).unwrap();
        answer(&mut follower, time(0), &request, &http::Response::new(Bytes::from(body)));
        let mut copy = Copy::default();
        copy.drain(&mut follower);
        assert!(copy.failures[0].to_string().contains(reason), "{:?}", copy.failures);
        assert_eq!((copy.told.len(), copy.state), (0, None));
        assert!(follower.is_finished());
    }
}

#[test]
fn cursors_that_lead_nowhere_end() {
    for turns in [1, 3] {
        let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, true).unwrap();
        let (mut copy, mut requests) = (Copy::default(), 0);
        while !follower.is_finished() {
            let request = follower.poll_request(time(0)).unwrap();
            let body = format!(r#"{{"items": [{{"id": "a"}}], "last_cursor": "{}"}}"#, requests % turns);
            answer(&mut follower, time(0), &request, &http::Response::new(body.into()));
            copy.drain(&mut follower);
            requests += 1;
        }
        assert!(matches!(copy.failures[..], [FollowError::Protocol { .. }]), "{:?}", copy.failures);
        assert!(requests < 40);
    }
}

#[test]
fn what_does_not_fit_is_the_users_fault() {
    let new = |url: &str, state: Option<Value>| SmartFollower::new(url, &StartFrom::Beginning, state, true);
    for url in ["feeds", "http://example.com/?since=cursor:x", "http://example.com/?max=5"] {
        assert!(matches!(new(url, None), Err(FollowError::Usage(_))), "{url}");
    }
    let mut copy = Copy::default();
    follow(&mut Server::new(log(&[("a", 1)])), URL, &StartFrom::Beginning, &mut copy);
    let state = copy.state.unwrap();
    assert!(new(URL, Some(state.clone())).is_ok());
    assert!(matches!(new("http://example.com/other", Some(state.clone())), Err(FollowError::Usage(_))));
    let mut other = state;
    other["protocol"] = "sup".into();
    assert!(matches!(new(URL, Some(other)), Err(FollowError::Usage(_))));
    assert!(matches!(new(URL, Some(Value::Null)), Err(FollowError::Usage(_))));
}

/// What happens to the publisher, or to a response on its way.
#[derive(Debug, Clone)]
enum Happening {
    Put(u8),
    Delete(u8),
    NextSecond,
    /// The publisher restarts: with the other kind of cursor, or without knowing its old ones, or writing the
    /// other format.
    OtherCursors,
    ForgetsCursors,
    OtherFormat,
    /// The consumer asks once.
    Poll,
    /// The consumer asks and the answer is lost, or cut off.
    Lost,
    Cut,
    /// The consumer stops before it has kept its last checkpoint, and begins again.
    Crash,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (0..12_u8).prop_map(Happening::Put),
        2 => (0..12_u8).prop_map(Happening::Delete),
        2 => Just(Happening::NextSecond),
        1 => Just(Happening::OtherCursors),
        1 => Just(Happening::ForgetsCursors),
        1 => Just(Happening::OtherFormat),
        6 => Just(Happening::Poll),
        1 => Just(Happening::Lost),
        1 => Just(Happening::Cut),
        1 => Just(Happening::Crash),
    ]
}

fn happen(server: &mut Server, version: usize, happening: &Happening) {
    match happening {
        Happening::Put(n) => {
            let item = Item { title: Some(version.to_string()), ..Item::new(format!("i{n}")) };
            server.log.append(NewChange::put(item), server.now);
        }
        Happening::Delete(n) if server.log.latest(&format!("i{n}")).is_some() => {
            server.log.append(NewChange::delete(format!("i{n}")), server.now);
        }
        Happening::NextSecond => server.now += SignedDuration::from_secs(1),
        Happening::OtherCursors => {
            server.feed.kind = match server.feed.kind {
                CursorKind::Sequence => CursorKind::Toc,
                CursorKind::Toc => CursorKind::Sequence,
            }
        }
        Happening::ForgetsCursors => server.feed.tag = LogTag::new(&version.to_string()),
        Happening::OtherFormat => {
            server.format = match server.format {
                PageFormat::Json => PageFormat::Atom,
                PageFormat::Atom => PageFormat::Json,
            }
        }
        _ => {}
    }
}

proptest! {
    /// Nothing is missing, whatever restarts, edits, deletions, changes within one second and lost answers
    /// come in between: at the end the copy is the feed.
    #[test]
    fn the_copy_is_the_feed(happenings in prop::collection::vec(happening(), 1..80)) {
        let mut server = Server::new(MemoryLog::default());
        server.feed.limits.max_items = 3;
        let mut copy = Copy::default();
        let new = |state: Option<Value>| SmartFollower::new(URL, &StartFrom::Beginning, state, false).unwrap();
        let mut follower = new(None);
        for (version, happening) in happenings.iter().enumerate() {
            happen(&mut server, version, happening);
            if let Happening::Crash = happening {
                follower = new(copy.state.clone());
            }
            if !matches!(happening, Happening::Poll | Happening::Lost | Happening::Cut) {
                continue;
            }
            let now = server.now.max(follower.poll_timeout().unwrap_or(server.now));
            let request = follower.poll_request(now).unwrap();
            let response = server.get(&request.url);
            prop_assert_eq!(response.status(), 200);
            match happening {
                Happening::Poll => answer(&mut follower, now, &request, &response),
                Happening::Lost => {
                    follower.handle_end(now, request.id, Err(TransferError::Connect("lost".into())));
                }
                _ => {
                    let body = response.body().slice(..response.body().len() - 1);
                    let (head, _) = response.into_parts();
                    answer(&mut follower, now, &request, &http::Response::from_parts(head, body));
                }
            }
            copy.drain(&mut follower);
        }
        follow(&mut server, URL, &StartFrom::Beginning, &mut copy);
        prop_assert_eq!(copy.items, wanted(&server.log));
    }
}
