use std::collections::HashMap;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::change::Op;
use crate::diffdelta::Cursor;
use crate::diffdelta::collapse::Delta;
use crate::diffdelta::testing::{Publisher, at};
use crate::diffdelta::wire::Kind;
use crate::follow::Followed;
use crate::item::{Content, Item};

mod foreign;

const BASE: &str = "http://127.0.0.1:8080";

/// What may go wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Lost,
    CutOff,
    /// Cut off without the transfer noticing.
    Shortened,
    Unavailable,
    /// Answered by a server that is so many runs behind the others.
    Behind(u8),
}

/// A document's answer to a request.
fn answer(p: &Publisher, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
    let path = request.url.strip_prefix(BASE).unwrap().to_owned();
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json; charset=utf-8"));
    let etag = format!("\"{}\"", p.chain.cursor);
    let body = match path.as_str() {
        "/diff/ab/head.json" | "/diff/source/ab/head.json" => p.head.clone(),
        "/diff/ab/latest.json" | "/diff/source/ab/latest.json" => p.latest.clone(),
        "/archive/ab/index.json" => p.index().to_vec(),
        "/.well-known/diffdelta.json" => br#"{"endpoints":{"diff_latest":"/diff/ab/latest.json"}}"#.to_vec(),
        _ => match p.snapshots.iter().find(|(s, _)| s.url == path) {
            Some((_, document)) => document.clone(),
            None => return (404, headers, b"not here".to_vec()),
        },
    };
    if path.ends_with("head.json") || path.ends_with("latest.json") {
        headers.insert("etag", HeaderValue::from_str(&etag).unwrap());
        if request.headers.get("if-none-match").is_some_and(|v| v == etag.as_str()) {
            return (304, headers, Vec::new());
        }
    }
    (200, headers, body)
}

/// One follower with its driver: hands over changes and keeps checkpoints as a program would.
struct Driver {
    follower: DiffDeltaFollower,
    state: Option<Value>,
    told: Vec<Followed>,
    /// How many of `told` are covered by `state`.
    kept: usize,
    notices: Vec<Event>,
    asked: Vec<String>,
    /// The publisher as it was after each of its runs.
    before: Vec<Publisher>,
    /// Whether the archive answers.
    has_archive: bool,
    /// The archive index, where it is another one than that of the snapshots which are there.
    index: Option<Bytes>,
}

impl Driver {
    fn new(address: &str, from: StartFrom) -> Self {
        Self {
            follower: follower(address, from, None),
            state: None,
            told: Vec::new(),
            kept: 0,
            notices: Vec::new(),
            asked: Vec::new(),
            before: Vec::new(),
            has_archive: true,
            index: None,
        }
    }

    /// The program is killed: what no checkpoint covers was never kept.
    fn restart(&mut self, address: &str) {
        self.told.truncate(self.kept);
        self.follower = follower(address, StartFrom::Beginning, self.state.clone());
    }

    /// Takes up to `limit` events.
    fn take_events(&mut self, limit: usize) {
        for _ in 0..limit {
            match self.follower.poll_event() {
                Some(Event::Change(change)) => self.told.push(*change),
                Some(Event::Checkpoint(state)) => (self.state, self.kept) = (Some(state), self.told.len()),
                Some(notice) => self.notices.push(notice),
                None => return,
            }
        }
    }

    /// Runs until the follower waits, with one fault for each request in turn, then none.
    fn pass(&mut self, p: &Publisher, now: Timestamp, faults: &[Fault]) {
        let mut faults = faults.iter().copied();
        for _ in 0..1000 {
            self.take_events(usize::MAX);
            let Some(request) = self.follower.poll_request(now) else {
                self.take_events(usize::MAX);
                let wakes = self.follower.poll_timeout().is_some() || self.follower.is_finished();
                assert!(wakes, "nothing is under way and nothing will ever happen");
                return;
            };
            self.asked.push(request.url.clone());
            self.send(p, now, &request, faults.next().unwrap_or(Fault::None));
        }
        panic!("the follower never rests: {:?}", self.asked);
    }

    fn send(&mut self, p: &Publisher, now: Timestamp, request: &Request, fault: Fault) {
        let (mut status, mut headers, mut body) = answer(p, request);
        if let Fault::Behind(runs) = fault
            && let Some(then) = self.before.iter().rev().nth(runs.into())
        {
            (status, headers, body) = answer(then, request);
            if status == 404 && then.chain.may_lead_to(&request.url) {
                status = 503;
            }
        }
        if !self.has_archive && request.url.contains("/archive/") {
            (status, body) = (404, Vec::new());
        }
        if let Some(index) = self.index.as_ref().filter(|_| request.url.ends_with("/archive/ab/index.json")) {
            body = index.to_vec();
        }
        let f = &mut self.follower;
        let mut result = Ok(());
        match fault {
            Fault::None | Fault::Behind(_) => {}
            Fault::Lost => {
                return f.handle_end(now, request.id, Err(TransferError::Connect("lost".into())));
            }
            Fault::CutOff => {
                body.truncate(body.len() / 2);
                result = Err(TransferError::Body("cut off".into()));
            }
            Fault::Shortened => body.truncate(body.len().saturating_sub(1)),
            Fault::Unavailable => (status, body) = (503, b"{}".to_vec()),
        }
        f.handle_head(now, request.id, ResponseHead { status, url: request.url.clone(), headers });
        for chunk in body.chunks(777) {
            f.handle_chunk(now, request.id, Bytes::copy_from_slice(chunk));
        }
        f.handle_end(now, request.id, result);
    }

    fn ops(&self) -> Vec<(Op, &str)> {
        self.told.iter().map(|c| (c.op, c.item.id.as_str())).collect()
    }

    fn incomplete(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Incomplete(_))).count()
    }

    fn failed(&self) -> usize {
        self.notices.iter().filter(|n| matches!(n, Event::Failed(_))).count()
    }
}

fn follower(address: &str, from: StartFrom, state: Option<Value>) -> DiffDeltaFollower {
    let options = FollowOptions { from, state, once: false, jitter: 7 };
    DiffDeltaFollower::new(&format!("{BASE}{address}"), options).unwrap()
}

fn titled(id: &str, title: &str) -> Item {
    Item { title: Some(title.into()), ..Item::new(id) }
}

/// A publisher whose item `a` went through three versions, one mint each.
fn three_mints() -> Publisher {
    let mut p = Publisher::new("ab");
    for n in 1..=3 {
        p.put(titled("a", &n.to_string()), at(n * 10));
        p.run(at(n * 10));
    }
    p
}

#[test]
fn every_address_leads_to_the_feed() {
    let p = three_mints();
    for address in [
        "",
        "/",
        "/.well-known/diffdelta.json",
        "/diff/ab",
        "/diff/ab/",
        "/diff/ab/head.json",
        "/diff/ab/latest.json",
        "/diff/source/ab",
        "/diff/source/ab/latest.json",
    ] {
        let mut d = Driver::new(address, StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.told.len(), 3, "{address}: {:?} {:?}", d.asked, d.notices);
    }
}

/// Sections 2.5 and 6.2: no poll before `ttl_sec` is over, and then a 304 without a body.
#[test]
fn polls_no_more_often_than_ttl_and_conditionally() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    let asked = d.asked.len();
    let next = d.follower.poll_timeout().unwrap();
    assert!(next >= at(50 + 60) && next <= at(50 + 66), "{next}");
    d.pass(&p, at(50 + 59), &[]);
    assert_eq!(d.asked.len(), asked);
    let request = d.follower.poll_request(next).unwrap();
    assert_eq!(request.headers["if-none-match"], format!("\"{}\"", p.chain.cursor));
    assert_eq!(answer(&p, &request).0, 304);
    d.send(&p, next, &request, Fault::None);
    d.pass(&p, next, &[]);
    assert_eq!((d.asked.len(), d.told.len()), (asked, 3));
}

/// Section 2.2: a document that follows on the stored cursor needs no archive.
#[test]
fn the_next_document_is_taken_as_it_is() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    d.asked.clear();
    p.delete("a", at(60));
    p.run(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!(d.asked, [format!("{BASE}/diff/ab/head.json"), format!("{BASE}/diff/ab/latest.json")]);
    assert_eq!(d.ops().last(), Some(&(Op::Delete, "a")));
    assert_eq!(d.told.last().unwrap().item, titled("a", "3"), "whole, as last known");
    assert_eq!(d.told.last().unwrap().modified, Some(at(60)));
}

/// The head tells which snapshot is the last, minted or carried.
#[test]
fn who_begins_now_needs_no_index() {
    for carried in [false, true] {
        let mut p = three_mints();
        if carried {
            p.run(at(40));
        }
        let mut d = Driver::new("/diff/ab", StartFrom::Now);
        d.pass(&p, at(50), &[]);
        p.put(titled("b", "1"), at(60));
        p.run(at(60));
        d.pass(&p, at(200), &[]);
        assert_eq!(d.ops(), [(Op::Put, "b")]);
        assert!(d.asked.iter().all(|url| !url.contains("/archive/")), "{:?}", d.asked);
    }
}

/// Section 2.2: a gap is repaired through the archive, in its order, also behind a carried document.
#[test]
fn a_gap_is_filled_from_the_archive() {
    for carried in [false, true] {
        let mut p = Publisher::new("ab");
        p.put(titled("a", "0"), at(1));
        p.run(at(1));
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(1), &[]);
        for n in 1..=3 {
            p.put(titled("a", &n.to_string()), at(n * 10));
            p.run(at(n * 10));
        }
        if carried {
            p.run(at(40));
        }
        d.pass(&p, at(100), &[]);
        let titles: Vec<_> = d.told.iter().map(|c| c.item.title.as_deref().unwrap()).collect();
        assert_eq!(titles, ["0", "1", "2", "3"]);
        assert!(d.notices.is_empty(), "{:?}", d.notices);
        assert_eq!(d.state.as_ref().unwrap()["cursor"], p.chain.cursor.to_string());
    }
}

#[test]
fn all_four_starts() {
    let mut p = three_mints();
    p.run(at(40));
    let started = |from: StartFrom| {
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.state.as_ref().unwrap()["cursor"], p.chain.cursor.to_string());
        d.told.len()
    };
    assert_eq!(started(StartFrom::Beginning), 3);
    assert_eq!(started(StartFrom::Now), 0);
    assert_eq!(started(StartFrom::Time(at(20))), 2);
    assert_eq!(started(StartFrom::Time(at(21))), 1);
    assert_eq!(started(StartFrom::Time(at(31))), 0);
    assert_eq!(started(StartFrom::Position(p.snapshots[0].0.cursor.clone())), 2);
    assert_eq!(started(StartFrom::Position(Cursor::ZERO.to_string())), 3);
}

/// Section 2.1: the zero cursor says that there is nothing yet; the first document then follows on it.
#[test]
fn a_source_that_never_succeeded_has_nothing_to_tell() {
    for from in [StartFrom::Beginning, StartFrom::Now] {
        let mut p = Publisher::new("ab");
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(0), &[]);
        assert_eq!((d.told.len(), d.notices.len()), (0, 0));
        p.put(titled("a", "1"), at(1));
        p.run(at(1));
        d.pass(&p, at(100), &[]);
        assert_eq!(d.told.len(), 1, "{:?}", d.asked);
    }
}

/// Section 5: an error or a disabled source is no change.
#[test]
fn a_failing_source_is_no_change() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    p.chain.health.failed("TIMEOUT", None);
    p.carry(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!((d.told.len(), d.notices.len()), (3, 0));
}

#[test]
fn what_the_archive_lost_is_reported_and_following_goes_on() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Position(p.snapshots[0].0.cursor.clone()));
    p.snapshots.remove(1);
    let dropped = p.snapshots.remove(0);
    p.put(titled("b", "1"), at(40));
    p.run(at(40));
    d.pass(&p, at(50), &[]);
    assert_eq!(d.incomplete(), 1, "{:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
    // A snapshot that the index lists and that is gone all the same.
    p.snapshots.insert(0, (dropped.0, Vec::new()));
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    p.snapshots[0].0.url = "/archive/gone.json".into();
    d.index = Some(p.index());
    p.snapshots[0].0.url = "/elsewhere.json".into();
    d.pass(&p, at(60), &[]);
    assert_eq!(d.incomplete(), 2, "the hole and the missing snapshot: {:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
}

#[test]
fn a_tampered_snapshot_is_refused_until_it_is_whole_again() {
    let mut p = three_mints();
    let whole = p.snapshots[1].1.clone();
    let text = String::from_utf8(whole.clone()).unwrap();
    p.snapshots[1].1 = text.replace("\"title\":\"2\"", "\"title\":\"X\"").into_bytes();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.told.len(), d.failed()), (1, 1), "the SHA-256: {:?}", d.notices);
    // Somebody who can change the index as well still cannot change what a cursor stands for.
    p.snapshots[1].0.sha256 = Cursor::of(&p.snapshots[1].1).hex();
    d.pass(&p, at(500), &[]);
    assert_eq!((d.told.len(), d.failed()), (1, 2), "the cursor: {:?}", d.notices);
    p.snapshots[1] = (p.snapshots[1].0.clone(), whole.clone());
    p.snapshots[1].0.sha256 = Cursor::of(&whole).hex();
    d.pass(&p, at(5000), &[]);
    assert_eq!(d.told.len(), 3);
    assert_eq!(d.incomplete(), 0);
}

#[test]
fn once_ends_after_one_pass_and_after_one_failure() {
    let p = three_mints();
    for (fault, told) in [(Fault::None, 3), (Fault::Lost, 0), (Fault::Unavailable, 0), (Fault::Shortened, 0)]
    {
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        let options = FollowOptions { once: true, ..FollowOptions::default() };
        d.follower = DiffDeltaFollower::new(&format!("{BASE}/diff/ab"), options).unwrap();
        d.pass(&p, at(50), &[fault]);
        assert!(d.follower.is_finished());
        assert_eq!((d.told.len(), d.failed()), (told, usize::from(told == 0)), "{fault:?}");
    }
}

#[test]
fn failures_are_retried_later_and_later_or_when_the_publisher_says() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut now = at(0);
    let waits = |d: &mut Driver, now: &mut Timestamp| -> Vec<i64> {
        let mut wait = |_| {
            let before = *now;
            d.pass(&p, before, &[Fault::Unavailable]);
            *now = d.follower.poll_timeout().unwrap();
            now.as_second() - before.as_second()
        };
        (0..4).map(&mut wait).collect()
    };
    assert_eq!(waits(&mut d, &mut now), [2, 4, 8, 16], "nothing is known of the publisher yet");
    d.pass(&p, now, &[]);
    now = d.follower.poll_timeout().unwrap();
    let ttl = waits(&mut d, &mut now)[0];
    assert!(ttl >= 15, "{ttl}");
    let request = d.follower.poll_request(now).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("7200"));
    d.follower.handle_head(now, request.id, ResponseHead { status: 429, url: request.url, headers });
    d.follower.handle_end(now, request.id, Ok(()));
    assert_eq!(d.follower.poll_timeout().unwrap().as_second() - now.as_second(), 7200);
}

/// An index from a cache, older than what was handed over, is not taken for a loss.
#[test]
fn an_index_that_lags_is_asked_again() {
    let mut p = three_mints();
    p.run(at(35));
    let behind = p.snapshots.pop().unwrap();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.told.len(), d.failed(), d.incomplete()), (0, 1, 0), "{:?}", d.notices);
    p.snapshots.push(behind);
    d.pass(&p, at(500), &[]);
    assert_eq!((d.told.len(), d.incomplete()), (3, 0));
}

/// Of several servers at one address one may be behind: that is neither news nor a gap, within a second neither.
#[test]
fn a_server_that_is_behind_is_no_news() {
    // Within a second it cannot be told from an index that lags, which is believed in the end.
    for (second, passes) in [(30, 3), (35, 10)] {
        let mut p = Publisher::new("ab");
        let mint = |p: &mut Publisher, second: i64| {
            p.put(titled("a", &p.snapshots.len().to_string()), at(second));
            p.run(at(second));
        };
        mint(&mut p, 10);
        mint(&mut p, 30);
        let before = p.clone();
        mint(&mut p, second);
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        for n in 1..=passes {
            d.pass(&before, at(n * 4000), &[]);
            assert_eq!((d.told.len(), d.incomplete()), (3, 0), "{second}: {:?}", d.notices);
        }
        mint(&mut p, 90_000);
        d.pass(&p, at(100_000), &[]);
        assert_eq!((d.told.len(), d.incomplete()), (4, 0), "{second}: {:?}", d.notices);
    }
}

#[test]
fn a_state_or_an_address_that_is_none_is_the_users_fault() {
    let options = FollowOptions { state: Some(serde_json::json!({"cursor": 7})), ..FollowOptions::default() };
    assert!(matches!(DiffDeltaFollower::new("http://h/diff/ab", options), Err(FollowError::Usage(_))));
    // Section 2.1: `sha256:<64-char lowercase hex>`.
    for position in
        ["garbage", "1700000000", "<1@feed>", "sha256:ab", &Cursor::ZERO.to_string().to_uppercase()]
    {
        let from = StartFrom::Position(position.to_owned());
        let options = FollowOptions { from, ..FollowOptions::default() };
        let refused = DiffDeltaFollower::new("http://h/diff/ab", options).err();
        assert!(matches!(refused, Some(FollowError::Usage(_))), "{position}: {refused:?}");
    }
    let options = FollowOptions::default();
    assert!(matches!(DiffDeltaFollower::new("nowhere", options), Err(FollowError::Usage(_))));
}

/// One step of the simulation.
#[derive(Debug, Clone)]
enum Move {
    Put(u8, u8),
    Delete(u8),
    /// A run that succeeds: mints or carries.
    Run,
    /// A run that fails.
    Error,
    /// A pass of the follower, with these faults.
    Pass(Vec<Fault>),
    /// A part of a pass; then the follower's program is killed.
    Killed(u8, u8),
}

fn moves() -> impl Strategy<Value = Move> {
    let faults = prop_oneof![
        4 => Just(Fault::None),
        1 => Just(Fault::Lost),
        1 => Just(Fault::CutOff),
        1 => Just(Fault::Shortened),
        1 => Just(Fault::Unavailable),
        2 => (0u8..4).prop_map(Fault::Behind),
    ];
    prop_oneof![
        4 => (0u8..6, 0u8..3).prop_map(|(id, version)| Move::Put(id, version)),
        2 => (0u8..6).prop_map(Move::Delete),
        4 => Just(Move::Run),
        1 => Just(Move::Error),
        3 => prop::collection::vec(faults, 0..5).prop_map(Move::Pass),
        1 => (0u8..6, 0u8..5).prop_map(|(requests, events)| Move::Killed(requests, events)),
    ]
}

fn version(id: u8, version: u8) -> Item {
    Item {
        content: Some(Content::new("text/plain", format!("version {version}"))),
        ..titled(&format!("item {id}"), "title")
    }
}

/// What a map of items is after these changes.
fn applied(told: &[Followed]) -> HashMap<String, Item> {
    let mut map = HashMap::new();
    for change in told {
        match change.op {
            Op::Delete => map.remove(&change.item.id),
            _ => map.insert(change.item.id.clone(), change.item.clone()),
        };
    }
    map
}

/// Minted deltas as they should arrive: in the order of the mints, within one in any.
fn arrived_once(told: &[Followed], minted: &[(String, Vec<Delta>)]) -> Result<(), TestCaseError> {
    let key = |op: Op, item: &Item| (op == Op::Delete, item.id.clone(), item.content_hash());
    let mut told = told.iter().peekable();
    for (cursor, deltas) in minted {
        let mut expected: Vec<_> = deltas
            .iter()
            .map(|d| key(if d.kind == Kind::Removed { Op::Delete } else { Op::Put }, &d.item))
            .collect();
        let mut got = Vec::new();
        while let Some(change) = told.next_if(|c| c.position == *cursor) {
            got.push(key(change.op, &change.item));
        }
        expected.sort();
        got.sort();
        prop_assert_eq!(got, expected);
    }
    prop_assert!(told.next().is_none());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to publisher, network and follower: every minted delta arrives exactly once and in
    /// order, and the follower's map is the publisher's.
    #[test]
    fn nothing_is_lost_or_doubled(steps in prop::collection::vec(moves(), 1..60), from_now in any::<bool>()) {
        let mut p = Publisher::new("ab");
        let mut minted: Vec<(String, Vec<Delta>)> = Vec::new();
        let from = if from_now { StartFrom::Now } else { StartFrom::Beginning };
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(0), &[]);
        let mut now = 0;
        for (n, step) in (0..).zip(steps) {
            // Some runs are within one second.
            now += n % 2;
            match step {
                Move::Put(id, v) => p.put(version(id, v), at(now)),
                Move::Delete(id) => p.delete(&format!("item {id}"), at(now)),
                Move::Run => {
                    d.before.push(p.clone());
                    let before = p.snapshots.len();
                    let deltas = p.run(at(now));
                    if p.snapshots.len() > before {
                        minted.push((p.chain.cursor.to_string(), deltas));
                    }
                }
                Move::Error => {
                    p.chain.health.failed("TIMEOUT", None);
                    p.carry(at(now));
                }
                Move::Pass(faults) => {
                    now += 4000;
                    d.pass(&p, at(now), &faults);
                }
                Move::Killed(requests, events) => {
                    now += 4000;
                    for _ in 0..requests {
                        d.take_events(usize::MAX);
                        let Some(request) = d.follower.poll_request(at(now)) else { break };
                        d.send(&p, at(now), &request, Fault::None);
                    }
                    d.take_events(usize::from(events));
                    d.restart("/diff/ab");
                }
            }
        }
        now += 100_000;
        d.pass(&p, at(now), &[]);
        prop_assert_eq!(d.incomplete(), 0, "{:?}", d.notices);
        arrived_once(&d.told, &minted)?;
        let minted_upto = p.chain.minted_seq;
        let mut live = HashMap::new();
        for change in p.log.iter().filter(|c| c.seq <= minted_upto) {
            match change.op {
                Op::Delete => live.remove(&change.item.id),
                _ => live.insert(change.item.id.clone(), change.item.clone()),
            };
        }
        prop_assert_eq!(applied(&d.told), live);
    }

    #[test]
    fn hostile_answers_never_panic(
        bodies in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..50),
                Just(br#"{"cursor":"c","buckets":{"new":[{}]},"latest_url":"http://[","snapshots":[]}"#.to_vec()),
                Just(br#"{"cursor":"c","changed":true,"prev_cursor":"b","latest_url":"//x/y"}"#.to_vec()),
                Just(br#"{"source_id":"x","snapshots":[{"cursor":"c","prev_cursor":"","generated_at":"","sha256":"","url":"http://["}]}"#.to_vec()),
            ],
            1..12
        ),
        status in prop_oneof![Just(200u16), Just(304), Just(404), Just(500)],
    ) {
        let mut f = follower("/diff/ab", StartFrom::Beginning, None);
        let mut now = at(0);
        for body in bodies {
            while f.poll_event().is_some() {}
            now = f.poll_timeout().unwrap_or(now).max(now);
            let Some(request) = f.poll_request(now) else { continue };
            f.handle_head(now, request.id, ResponseHead { status, url: request.url, headers: HeaderMap::new() });
            f.handle_chunk(now, request.id, body.into());
            f.handle_end(now, request.id, Ok(()));
        }
    }
}
