//! A follower of a simulated publisher.

mod ahead;
mod urls;

use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::Value;

use crate::change::{NewChange, Op};
use crate::follow::{
    Event, Exchange, FollowError, FollowMode, Followed, Follower, Monotonic, Now, Request, ResponseHead,
    StartFrom, TransferError,
};
use crate::item::Item;
use crate::smart::follow::SmartFollower;
use crate::smart::publish;
use crate::smart::publish::cursor::{CursorKind, LogTag};
use crate::smart::publish::pull::{FeedSettings, Pull};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, log, settings, time};
use crate::smart::wire::accept::PageFormat;

pub(super) const URL: &str = "http://example.com/feeds/a/items";

/// A publisher: its log, settings and format.
pub(super) struct SmartPublisher {
    pub(super) log: MemoryLog,
    feed: FeedSettings,
    format: PageFormat,
    now: Timestamp,
}

impl SmartPublisher {
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

/// A consumer's copy of the feed, and its last checkpoint.
#[derive(Default)]
struct FeedCopy {
    items: std::collections::BTreeMap<String, Option<Item>>,
    changes: Vec<Followed>,
    state: Option<Value>,
    failures: Vec<FollowError>,
    resets: usize,
}

impl FeedCopy {
    fn drain(&mut self, follower: &mut SmartFollower) {
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => {
                    let item = (change.op != Op::Delete).then(|| change.item.clone());
                    self.items.insert(change.item.id.clone(), item);
                    self.changes.push(*change);
                }
                Event::Checkpoint(state) => self.state = Some(state),
                Event::Failed(error) => self.failures.push(error),
                Event::Reset(reset) => {
                    assert_eq!(reset.feed, format!("{URL}?order=modified"));
                    self.items.clear();
                    self.resets += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn answer(follower: &mut SmartFollower, now: Timestamp, request: &Request, response: &http::Response<Bytes>) {
    answer_from(&request.url, follower, now, request, response);
}

/// Passes a response to the follower, from the URL after redirects.
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
    follower.handle_head(Now::simulated(now), request.id, head);
    // In two pieces, as a connection may deliver it.
    let half = response.body().len() / 2;
    follower.handle_chunk(Now::simulated(now), request.id, response.body().slice(..half));
    follower.handle_chunk(Now::simulated(now), request.id, response.body().slice(half..));
    follower.handle_end(Now::simulated(now), request.id, Ok(()));
}

/// Runs a follower to the end once, and returns the number of requests.
fn follow(publisher: &mut SmartPublisher, url: &str, from: &StartFrom, copy: &mut FeedCopy) -> usize {
    let mut follower = SmartFollower::new(url, from, copy.state.clone(), FollowMode::CatchUp).unwrap();
    let mut requests = 0;
    while !follower.is_finished() {
        let request = follower.poll_request(Now::simulated(publisher.now)).unwrap();
        let response = publisher.get(&request.url);
        answer(&mut follower, publisher.now, &request, &response);
        copy.drain(&mut follower);
        requests += 1;
    }
    requests
}

fn expected(log: &MemoryLog) -> std::collections::BTreeMap<String, Option<Item>> {
    let items = log.items(crate::smart::wire::spec::OrderBy::Modified).into_iter();
    items.map(|c| (c.item.id.clone(), (c.op != Op::Delete).then_some(c.item))).collect()
}

/// Updates/Synchronization via Pull: fetch any items since the latest item received, repeatedly.
#[test]
fn a_copy_is_made_and_kept_up_to_date() {
    for format in [PageFormat::Json, PageFormat::Atom] {
        let mut publisher = SmartPublisher::new(log(&[("a", 10), ("b", 20), ("-a", 30)]));
        publisher.format = format;
        let mut copy = FeedCopy::default();
        // The second request finds the end.
        assert_eq!(follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy), 2);
        assert_eq!(copy.items, expected(&publisher.log));
        assert_eq!(copy.changes[1].op, Op::Delete);
        assert_eq!(copy.changes[1].modified, Some(time(30)));
        publisher.log.append(NewChange::put(Item::new("c")), time(40));
        publisher.log.append(NewChange::put(Item { title: Some("new".into()), ..Item::new("b") }), time(40));
        follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy);
        assert_eq!(copy.items, expected(&publisher.log));
        assert_eq!(copy.changes.len(), 4);
        assert!(copy.failures.is_empty(), "{:?}", copy.failures);
    }
}

#[test]
fn every_start_position_is_honoured() {
    let mut publisher = SmartPublisher::new(log(&[("a", 10), ("b", 20), ("c", 30)]));
    let mut begin = |from: StartFrom| {
        let mut copy = FeedCopy::default();
        follow(&mut publisher, URL, &from, &mut copy);
        publisher.log.append(NewChange::put(Item::new("d")), time(40));
        follow(&mut publisher, URL, &from, &mut copy);
        // Every start position begins with the same log.
        publisher.log.changes.truncate(3);
        copy.changes.iter().map(|told| told.item.id.clone()).collect::<String>()
    };
    let cursor = settings(CursorKind::Sequence).tag.cursor(crate::smart::wire::spec::OrderBy::Modified, 2);
    assert_eq!(begin(StartFrom::Beginning), "abcd");
    assert_eq!(begin(StartFrom::Now), "d");
    assert_eq!(begin(StartFrom::Time(time(20))), "bcd");
    assert_eq!(begin(StartFrom::Time(time(35))), "d");
    assert_eq!(begin(StartFrom::Position(cursor.clone())), "cd");
    assert_eq!(begin(StartFrom::Position(format!("cursor:{cursor}"))), "cd");
    let mut copy = FeedCopy::default();
    let mut empty = SmartPublisher::new(MemoryLog::default());
    follow(&mut empty, URL, &StartFrom::Now, &mut copy);
    empty.log = log(&[("a", 10)]);
    follow(&mut empty, URL, &StartFrom::Now, &mut copy);
    assert_eq!(copy.changes.len(), 1);
}

/// The publisher lost its data: items of the log before are gone, and have no deletions.
#[test]
fn a_publisher_that_began_anew_is_told_once() {
    let mut publisher = SmartPublisher::new(log(&[("old", 10), ("both", 20)]));
    let mut copy = FeedCopy::default();
    follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy);
    publisher.feed.tag = LogTag::new("another");
    for log in [MemoryLog::default(), log(&[("both", 5), ("new", 5)])] {
        publisher.log = log;
        for _ in 0..2 {
            follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy);
            assert_eq!(copy.items, expected(&publisher.log));
            assert_eq!((copy.resets, copy.failures.len()), (1, 0));
        }
    }
    // The next page says nothing of it, and a first request has no position.
    let page = publisher.get(&format!("{URL}?timeout=0"));
    assert!(!page.headers().contains_key("towpath-reset"));
}

/// A publisher need not have descending orders: then following begins at the current time.
#[test]
fn without_a_descending_order_now_is_a_time() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Now, None, FollowMode::CatchUp).unwrap();
    let request = follower.poll_request(Now::simulated(time(1000))).unwrap();
    assert_eq!(request.url, format!("{URL}?order=-modified&max=1"));
    let refusal = http::Response::builder().status(400).body(Bytes::new()).unwrap();
    answer(&mut follower, time(1000), &request, &refusal);
    assert!(matches!(follower.poll_event(), Some(Event::Checkpoint(_))));
    let request = follower.poll_request(Now::simulated(time(1000))).unwrap();
    let since = "since=time%3A1970-01-01T00%3A16%3A40Z";
    assert_eq!(request.url, format!("{URL}?order=modified&{since}&max=200&timeout=0"));
}

#[test]
fn every_item_has_a_position_to_resume_from() {
    let mut publisher = SmartPublisher::new(log(&[("a", 10), ("b", 20), ("c", 30)]));
    let mut copy = FeedCopy::default();
    follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy);
    for (index, change) in copy.changes.iter().enumerate() {
        let mut rest = FeedCopy::default();
        follow(&mut publisher, URL, &StartFrom::Position(change.position.clone()), &mut rest);
        assert_eq!(rest.changes.len(), 2 - index);
    }
}

/// HTTP Pull: further pages are fetched at once; at the end the request is a long poll.
#[test]
fn a_follower_at_the_end_sends_long_polls() {
    let mut publisher = SmartPublisher::new(log(&[("a", 10)]));
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::Continuous).unwrap();
    let mut copy = FeedCopy::default();
    let mut asked = Vec::new();
    for _ in 0..4 {
        let Some(request) = follower.poll_request(Now::simulated(publisher.now)) else { break };
        let response = publisher.get(&request.url);
        if request.url.ends_with("timeout=55") {
            assert!(request.patience > Duration::from_secs(60));
        }
        answer(&mut follower, publisher.now, &request, &response);
        copy.drain(&mut follower);
        asked.push(request.url.rsplit('=').next().unwrap().to_owned());
    }
    // A publisher that did not hold the third request is polled later.
    assert_eq!(asked, ["0", "0", "55"]);
    assert_eq!(
        follower.poll_timeout().map(Monotonic::simulated_wall),
        Some(publisher.now + SignedDuration::from_secs(30))
    );
    publisher.now += SignedDuration::from_secs(30);
    let request = follower.poll_request(Now::simulated(publisher.now)).unwrap();
    publisher.now += SignedDuration::from_secs(55);
    let response = publisher.get(&request.url);
    answer(&mut follower, publisher.now, &request, &response);
    assert!(
        follower.poll_request(Now::simulated(publisher.now)).is_some(),
        "a publisher that holds is asked again at once"
    );
    assert!(!follower.is_finished());
}

#[test]
fn failures_are_reported_and_retried_with_backoff() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::Continuous).unwrap();
    let mut now = time(0);
    let mut waits = Vec::new();
    for attempt in 0..10 {
        let request = follower.poll_request(Now::simulated(now)).unwrap();
        if attempt == 1 {
            let busy = http::Response::builder().status(503).header("retry-after", "20");
            answer(&mut follower, now, &request, &busy.body(Bytes::new()).unwrap());
        } else {
            follower.handle_end(
                Now::simulated(now),
                request.id,
                Err(TransferError::Connect("refused".into())),
            );
        }
        assert!(matches!(follower.poll_event(), Some(Event::Failed(_))));
        assert!(follower.poll_request(Now::simulated(now)).is_none());
        let next = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        waits.push(next.duration_since(now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 20, 4, 8, 16, 32, 64, 128, 256, 300]);
}

/// A violation of the protocol is an error with a reason, never a silent gap.
#[test]
fn broken_pages_are_errors() {
    let cases = [
        ("{", "not JSON"),
        (r#"{"items": [{"id": "a"}]}"#, "no cursor for the last"),
        (r#"{"items": [{"id": "a"}, {"id": "b", "towpath": 5}], "last_cursor": "x"}"#, "item 1 towpath"),
        // Nothing would move on, as with items.
        (r#"{"items": [{}]}"#, "no cursor for the last"),
        ("<feed", "not JSON"),
        ("<!doctype html><title>Sign in</title>", "an HTML page (no content type), which begins \"Sign in\""),
    ];
    for (body, reason) in cases {
        let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::CatchUp).unwrap();
        let request = follower.poll_request(Now::simulated(time(0))).unwrap();
        answer(&mut follower, time(0), &request, &http::Response::new(Bytes::from(body)));
        let mut copy = FeedCopy::default();
        copy.drain(&mut follower);
        assert!(copy.failures[0].to_string().contains(reason), "{:?}", copy.failures);
        assert_eq!((copy.changes.len(), copy.state), (0, None));
        assert!(follower.is_finished());
    }
}

#[test]
fn circles_of_cursors_are_detected() {
    for turns in [1, 3] {
        let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::CatchUp).unwrap();
        let (mut copy, mut requests) = (FeedCopy::default(), 0);
        while !follower.is_finished() {
            let request = follower.poll_request(Now::simulated(time(0))).unwrap();
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
fn wrong_urls_and_states_are_usage_errors() {
    let new = |url: &str, state: Option<Value>| {
        SmartFollower::new(url, &StartFrom::Beginning, state, FollowMode::CatchUp)
    };
    for url in ["feeds", "http://example.com/?since=cursor:x", "http://example.com/?max=5"] {
        assert!(matches!(new(url, None), Err(FollowError::Usage(_))), "{url}");
    }
    let mut copy = FeedCopy::default();
    follow(&mut SmartPublisher::new(log(&[("a", 1)])), URL, &StartFrom::Beginning, &mut copy);
    let state = copy.state.unwrap();
    assert!(new(URL, Some(state.clone())).is_ok());
    assert!(matches!(new("http://example.com/other", Some(state.clone())), Err(FollowError::Usage(_))));
    let mut other = state;
    other["protocol"] = "sup".into();
    assert!(matches!(new(URL, Some(other)), Err(FollowError::Usage(_))));
    assert!(matches!(new(URL, Some(Value::Null)), Err(FollowError::Usage(_))));
}

/// An event at the publisher, or on the way of a response.
#[derive(Debug, Clone)]
enum PublisherEvent {
    Put(u8),
    Delete(u8),
    NextSecond,
    /// The publisher restarts with the other kind of cursor, without its old cursors, or with the other format.
    OtherCursors,
    ForgetsCursors,
    OtherFormat,
    /// The consumer polls once.
    Poll,
    /// The consumer polls, and the response is lost or truncated.
    Lost,
    Cut,
    /// The consumer stops before it persists its last checkpoint, and restarts.
    Crash,
}

fn event() -> impl Strategy<Value = PublisherEvent> {
    prop_oneof![
        6 => (0..12_u8).prop_map(PublisherEvent::Put),
        2 => (0..12_u8).prop_map(PublisherEvent::Delete),
        2 => Just(PublisherEvent::NextSecond),
        1 => Just(PublisherEvent::OtherCursors),
        1 => Just(PublisherEvent::ForgetsCursors),
        1 => Just(PublisherEvent::OtherFormat),
        6 => Just(PublisherEvent::Poll),
        1 => Just(PublisherEvent::Lost),
        1 => Just(PublisherEvent::Cut),
        1 => Just(PublisherEvent::Crash),
    ]
}

fn apply(publisher: &mut SmartPublisher, version: usize, event: &PublisherEvent) {
    match event {
        PublisherEvent::Put(n) => {
            let item = Item { title: Some(version.to_string()), ..Item::new(format!("i{n}")) };
            publisher.log.append(NewChange::put(item), publisher.now);
        }
        PublisherEvent::Delete(n) if publisher.log.latest(&format!("i{n}")).is_some() => {
            publisher.log.append(NewChange::delete(format!("i{n}")), publisher.now);
        }
        PublisherEvent::NextSecond => publisher.now += SignedDuration::from_secs(1),
        PublisherEvent::OtherCursors => {
            publisher.feed.kind = match publisher.feed.kind {
                CursorKind::Sequence => CursorKind::Toc,
                CursorKind::Toc => CursorKind::Sequence,
            }
        }
        PublisherEvent::ForgetsCursors => publisher.feed.tag = LogTag::new(&version.to_string()),
        PublisherEvent::OtherFormat => {
            publisher.format = match publisher.format {
                PageFormat::Json => PageFormat::Atom,
                PageFormat::Atom | PageFormat::Lines => PageFormat::Json,
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(crate::histories::cases(256))]

    /// The copy equals the feed at the end, after any restarts, edits, deletions, changes within one second, and lost
    /// responses.
    #[test]
    fn the_copy_is_the_feed(events in prop::collection::vec(event(), 1..80)) {
        let mut publisher = SmartPublisher::new(MemoryLog::default());
        publisher.feed.limits.max_items = 3;
        let mut copy = FeedCopy::default();
        let new = |state: Option<Value>| SmartFollower::new(URL, &StartFrom::Beginning, state, FollowMode::Continuous).unwrap();
        let mut follower = new(None);
        for (version, event) in events.iter().enumerate() {
            apply(&mut publisher, version, event);
            if let PublisherEvent::Crash = event {
                follower = new(copy.state.clone());
            }
            if !matches!(event, PublisherEvent::Poll | PublisherEvent::Lost | PublisherEvent::Cut) {
                continue;
            }
            let now = publisher.now.max(follower.poll_timeout().map(Monotonic::simulated_wall).unwrap_or(publisher.now));
            let request = follower.poll_request(Now::simulated(now)).unwrap();
            let response = publisher.get(&request.url);
            prop_assert_eq!(response.status(), 200);
            match event {
                PublisherEvent::Poll => answer(&mut follower, now, &request, &response),
                PublisherEvent::Lost => {
                    follower.handle_end(Now::simulated(now), request.id, Err(TransferError::Connect("lost".into())));
                }
                _ => {
                    let body = response.body().slice(..response.body().len() - 1);
                    let (head, _) = response.into_parts();
                    answer(&mut follower, now, &request, &http::Response::from_parts(head, body));
                }
            }
            copy.drain(&mut follower);
        }
        follow(&mut publisher, URL, &StartFrom::Beginning, &mut copy);
        prop_assert_eq!(copy.items, expected(&publisher.log));
    }
}
