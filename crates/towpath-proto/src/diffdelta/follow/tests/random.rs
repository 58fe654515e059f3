//! Publisher, network and follower, all at random.

use std::collections::HashMap;

use http::HeaderMap;
use proptest::prelude::*;

use super::super::*;
use super::driver::{Driver, Fault, follower};
use super::titled;
use crate::change::Op;
use crate::diffdelta::collapse::Delta;
use crate::diffdelta::testing::{Publisher, at};
use crate::diffdelta::wire::Kind;
use crate::follow::Followed;
use crate::item::{Content, Item};

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
