//! Property tests: random publisher, network and follower.

use std::collections::HashMap;

use http::HeaderMap;
use proptest::prelude::*;

use super::super::*;
use super::driver::{Driver, ResponseFault, follower};
use super::titled;
use crate::change::Op;
use crate::diffdelta::publish::collapse::Delta;
use crate::diffdelta::publish::testing::{TestSource, at};
use crate::diffdelta::wire::DeltaKind;
use crate::follow::{Exchange as _, Followed, ResponseHead};
use crate::item::{Content, Item};

/// A step of the simulation.
#[derive(Debug, Clone)]
enum SimulationStep {
    Put(u8, u8),
    Delete(u8),
    /// A successful run: mints or carries.
    Run,
    /// A failed run.
    Error,
    /// A pass of the follower with these faults.
    Pass(Vec<ResponseFault>),
    /// A part of a pass, then a crash.
    Killed(u8, u8),
}

fn moves() -> impl Strategy<Value = SimulationStep> {
    let faults = prop_oneof![
        4 => Just(ResponseFault::None),
        1 => Just(ResponseFault::Lost),
        1 => Just(ResponseFault::CutOff),
        1 => Just(ResponseFault::Shortened),
        1 => Just(ResponseFault::Unavailable),
        2 => (0u8..4).prop_map(ResponseFault::Behind),
    ];
    prop_oneof![
        4 => (0u8..6, 0u8..3).prop_map(|(id, version)| SimulationStep::Put(id, version)),
        2 => (0u8..6).prop_map(SimulationStep::Delete),
        4 => Just(SimulationStep::Run),
        1 => Just(SimulationStep::Error),
        3 => prop::collection::vec(faults, 0..5).prop_map(SimulationStep::Pass),
        1 => (0u8..6, 0u8..5).prop_map(|(requests, events)| SimulationStep::Killed(requests, events)),
    ]
}

fn version(id: u8, version: u8) -> Item {
    Item {
        content: Some(Content::new("text/plain", format!("version {version}"))),
        ..titled(&format!("item {id}"), "title")
    }
}

/// Applies changes to an empty map of items.
fn applied(changes: &[Followed]) -> HashMap<String, Item> {
    let mut map = HashMap::new();
    for change in changes {
        match change.op {
            Op::Delete => map.remove(&change.item.id),
            _ => map.insert(change.item.id.clone(), change.item.clone()),
        };
    }
    map
}

/// Asserts that every minted delta arrived once. The order within a mint is free.
fn assert_arrived_once(changes: &[Followed], minted: &[(String, Vec<Delta>)]) -> Result<(), TestCaseError> {
    let key = |op: Op, item: &Item| (op == Op::Delete, item.id.clone(), item.content_hash());
    let mut changes = changes.iter().peekable();
    for (cursor, deltas) in minted {
        let mut expected: Vec<_> = deltas
            .iter()
            .map(|d| key(if d.kind == DeltaKind::Removed { Op::Delete } else { Op::Put }, &d.item))
            .collect();
        let mut got = Vec::new();
        while let Some(change) = changes.next_if(|c| c.position.starts_with(cursor.as_str())) {
            got.push(key(change.op, &change.item));
        }
        expected.sort();
        got.sort();
        prop_assert_eq!(got, expected);
    }
    prop_assert!(changes.next().is_none());
    Ok(())
}

proptest! {
    #![proptest_config(crate::histories::cases(200))]

    /// Every minted delta arrives exactly once and in order, under all faults. The follower's map of items
    /// equals the publisher's.
    #[test]
    fn nothing_is_lost_or_duplicated(steps in prop::collection::vec(moves(), 1..60), from_now in any::<bool>()) {
        let mut p = TestSource::new("ab");
        let mut minted: Vec<(String, Vec<Delta>)> = Vec::new();
        let from = if from_now { StartFrom::Now } else { StartFrom::Beginning };
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(0), &[]);
        let mut now = 0;
        for (n, step) in (0..).zip(steps) {
            // Some runs are within one second.
            now += n % 2;
            match step {
                SimulationStep::Put(id, v) => p.put(version(id, v), at(now)),
                SimulationStep::Delete(id) => p.delete(&format!("item {id}"), at(now)),
                SimulationStep::Run => {
                    d.before.push(p.clone());
                    let before = p.snapshots.len();
                    let deltas = p.run(at(now));
                    if p.snapshots.len() > before {
                        minted.push((p.chain.cursor.to_string(), deltas));
                    }
                }
                SimulationStep::Error => {
                    p.chain.health.failed("TIMEOUT", None);
                    p.carry(at(now));
                }
                SimulationStep::Pass(faults) => {
                    // Longer than every poll interval and backoff here, so that the pass sends requests.
                    now += 4000;
                    d.pass(&p, at(now), &faults);
                }
                SimulationStep::Killed(requests, events) => {
                    now += 4000;
                    for _ in 0..requests {
                        d.take_events(usize::MAX);
                        let Some(request) = d.follower.poll_request(Now::simulated(at(now))) else { break };
                        d.send(&p, at(now), &request, ResponseFault::None);
                    }
                    d.take_events(usize::from(events));
                    d.restart("/diff/ab");
                }
            }
        }
        now += 100_000;
        d.pass(&p, at(now), &[]);
        prop_assert_eq!(d.incomplete(), 0, "{:?}", d.notices);
        assert_arrived_once(&d.changes, &minted)?;
        // Changes after the last mint are in the log and not yet published.
        let minted_upto = p.chain.minted_seq;
        let mut live = HashMap::new();
        for change in p.log.iter().filter(|c| c.seq <= minted_upto) {
            match change.op {
                Op::Delete => live.remove(&change.item.id),
                _ => live.insert(change.item.id.clone(), change.item.clone()),
            };
        }
        prop_assert_eq!(applied(&d.changes), live);
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
            now = f.poll_timeout().map(Monotonic::simulated_wall).unwrap_or(now).max(now);
            let Some(request) = f.poll_request(Now::simulated(now)) else { continue };
            f.handle_head(Now::simulated(now), request.id, ResponseHead { status, url: request.url, headers: HeaderMap::new() });
            f.handle_chunk(Now::simulated(now), request.id, body.into());
            f.handle_end(Now::simulated(now), request.id, Ok(()));
        }
    }
}
