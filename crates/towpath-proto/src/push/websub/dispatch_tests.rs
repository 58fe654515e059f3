//! Deliveries to many.

use std::collections::HashMap;

use jiff::Timestamp;
use proptest::prelude::*;

use super::delivery::{Carried, Outcome, Patience, Verdict};
use super::dispatch::{Dispatcher, Full, Id, Limits, Send};
use crate::change::Seq;

const FAR: i64 = 1 << 32;

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn limits() -> Limits {
    Limits {
        connections: 8,
        host_connections: 2,
        subscribers: 10_000,
        topic_subscribers: 1000,
        host_subscribers: 1000,
    }
}

fn dispatcher(limits: Limits) -> Dispatcher<()> {
    Dispatcher::new(limits, Patience::default())
}

fn all(dispatcher: &mut Dispatcher<()>, now: i64) -> Vec<Send> {
    std::iter::from_fn(|| dispatcher.poll_send(time(now))).collect()
}

fn to(seq: Seq) -> Carried {
    Carried { through: seq, looked: seq }
}

/// "Push notifications MUST be delivered in order": one delivery at a time for each subscriber, and what is
/// appended while it runs goes together into the next.
#[test]
fn one_at_a_time() {
    let mut hub = dispatcher(limits());
    hub.add(1, "a", "h", 0, time(FAR), ());
    hub.moved("a", 1);
    assert_eq!(all(&mut hub, 0), [Send { id: 1, after: 0 }]);
    hub.moved("a", 2);
    hub.moved("a", 3);
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(hub.handle_end(time(0), 1, to(1), Outcome::Accepted), Some(Verdict::Done));
    assert_eq!(all(&mut hub, 0), [Send { id: 1, after: 1 }]);
    hub.handle_end(time(0), 1, to(3), Outcome::Accepted);
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(hub.position(1), Some(3));
}

#[test]
fn hosts_have_shares_and_take_turns() {
    let mut hub = dispatcher(limits());
    for id in 0..100 {
        hub.add(id, "a", "crowded", 0, time(FAR), ());
    }
    hub.add(1000, "a", "lonely", 0, time(FAR), ());
    hub.moved("a", 1);
    let sent = all(&mut hub, 0);
    assert_eq!(sent.len(), 3, "two of the crowded host's, and the lonely one's");
    assert!(sent.iter().any(|send| send.id == 1000));
    hub.handle_end(time(0), sent[0].id, to(1), Outcome::Accepted);
    assert_eq!(all(&mut hub, 0).len(), 1);
}

#[test]
fn a_dead_host_takes_no_connections_from_others() {
    let mut hub = dispatcher(limits());
    for id in 0..50 {
        hub.add(id, "a", "dead", 0, time(FAR), ());
    }
    hub.moved("a", 1);
    let mut attempts = 0;
    for now in 0..60 {
        while let Some(send) = hub.poll_send(time(now)) {
            attempts += 1;
            hub.handle_end(time(now), send.id, to(1), Outcome::Unreachable);
        }
    }
    assert!((5..=12).contains(&attempts), "{attempts} in a minute");
    assert!(hub.poll_timeout().unwrap() < time(FAR));
    // It is well again: one attempt shows it, and all the others follow.
    let mut now = 60;
    let mut sent = Vec::new();
    while sent.is_empty() {
        now += 1;
        sent = all(&mut hub, now);
    }
    assert_eq!(sent.len(), 1, "of a suspect host, one at a time");
    hub.handle_end(time(now), sent[0].id, to(1), Outcome::Accepted);
    assert_eq!(all(&mut hub, now).len(), 2);
}

/// WebSub 5.1: a request for what is active already renews it: its deliveries go on where they are.
#[test]
fn to_subscribe_again_renews() {
    let mut hub = dispatcher(limits());
    hub.add(1, "a", "h", 0, time(10), ());
    hub.moved("a", 5);
    assert_eq!(all(&mut hub, 0).len(), 1);
    hub.add(1, "a", "h", 5, time(20), ());
    assert_eq!(all(&mut hub, 0), [], "the delivery is still under way");
    hub.handle_end(time(1), 1, to(4), Outcome::Accepted);
    assert_eq!(all(&mut hub, 1), [Send { id: 1, after: 4 }]);
    assert_eq!(hub.poll_lease(time(10)), None);
    assert_eq!(hub.poll_lease(time(20)), Some(1));
    assert_eq!(hub.poll_lease(time(20)), None);
}

/// WebSub 7: 410 ends the subscription, whatever has come meanwhile.
#[test]
fn who_is_gone_gets_nothing_more() {
    let mut hub = dispatcher(limits());
    hub.add(1, "a", "h", 0, time(FAR), ());
    hub.moved("a", 1);
    assert_eq!(all(&mut hub, 0).len(), 1);
    hub.moved("a", 2);
    assert_eq!(hub.handle_end(time(0), 1, to(1), Outcome::Gone), Some(Verdict::Ended));
    hub.moved("a", 3);
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(hub.remove(1), Some(()));
}

#[test]
fn to_unsubscribe_ends_what_waits() {
    let mut hub = dispatcher(limits());
    for id in 0..5 {
        hub.add(id, "a", "h", 0, time(10), ());
    }
    hub.moved("a", 1);
    let sent = all(&mut hub, 0);
    assert_eq!(sent.len(), 2);
    hub.handle_end(time(0), sent[0].id, to(1), Outcome::Refused(None));
    for id in 0..5 {
        hub.remove(id);
    }
    assert_eq!(hub.handle_end(time(0), sent[1].id, to(1), Outcome::Accepted), None);
    assert_eq!(all(&mut hub, 100), []);
    assert_eq!((hub.len(), hub.running(), hub.poll_timeout()), (0, 0, None));
    assert!(!hub.has("a"));
}

#[test]
fn subscribers_are_limited_by_topic_and_by_host() {
    let small = Limits { topic_subscribers: 2, host_subscribers: 3, ..limits() };
    let mut hub = dispatcher(small);
    hub.add(1, "a", "h", 0, time(1), ());
    hub.add(2, "a", "h", 0, time(1), ());
    assert_eq!(hub.room("a", "other"), Err(Full::Topic));
    assert_eq!(hub.room("b", "h"), Ok(()));
    hub.add(3, "b", "h", 0, time(1), ());
    assert_eq!(hub.room("c", "h"), Err(Full::Host));
    hub.remove(1);
    assert_eq!(hub.room("a", "h"), Ok(()));
}

#[test]
fn subscribers_are_limited_in_all() {
    let mut hub = dispatcher(Limits { subscribers: 2, ..limits() });
    hub.add(1, "a", "h", 0, time(1), ());
    assert_eq!(hub.room("b", "other"), Ok(()));
    hub.add(2, "b", "other", 0, time(1), ());
    assert_eq!(hub.room("c", "third"), Err(Full::Hub));
    hub.remove(1);
    assert_eq!(hub.room("c", "third"), Ok(()));
}

/// What may happen.
#[derive(Debug, Clone)]
enum Happening {
    Append(u8),
    Answer(u8, u8),
    Pass(u8),
    Leave(u8),
    Join(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => (1..4_u8).prop_map(Happening::Append),
        6 => (0..16_u8, 0..8_u8).prop_map(|(which, how)| Happening::Answer(which, how)),
        2 => (0..200_u8).prop_map(Happening::Pass),
        1 => (0..12_u8).prop_map(Happening::Leave),
        1 => (0..12_u8).prop_map(Happening::Join),
    ]
}

proptest! {
    /// Whatever happens: never two deliveries to one subscriber, never more than the limits, never backwards; and
    /// once all is well everybody has everything.
    #[test]
    fn deliveries_keep_their_rules(happenings in prop::collection::vec(happening(), 0..80)) {
        let mut hub = dispatcher(limits());
        let (mut head, mut now) = (0, 0);
        let mut under_way: Vec<(Send, Seq)> = Vec::new();
        let mut positions: HashMap<Id, Seq> = HashMap::new();
        for happening in happenings {
            match happening {
                Happening::Append(count) => {
                    head += Seq::from(count);
                    hub.moved("a", head);
                }
                Happening::Answer(which, how) if !under_way.is_empty() => {
                    let (send, through) = under_way.remove(usize::from(which) % under_way.len());
                    let outcome = match how {
                        0..=3 => Outcome::Accepted,
                        4 => Outcome::Refused(None),
                        5 => Outcome::Nothing,
                        _ => Outcome::Unreachable,
                    };
                    hub.handle_end(time(now), send.id, to(through), outcome);
                }
                Happening::Answer(..) => {}
                Happening::Pass(seconds) => now += i64::from(seconds),
                Happening::Leave(id) => {
                    hub.remove(Id::from(id));
                    positions.remove(&Id::from(id));
                }
                Happening::Join(id) => {
                    hub.add(Id::from(id), "a", &format!("h{}", id % 3), head, time(FAR), ());
                    hub.moved("a", head);
                }
            }
            while let Some(send) = hub.poll_send(time(now)) {
                prop_assert!(under_way.iter().all(|(other, _)| other.id != send.id), "two at once");
                let last = positions.insert(send.id, send.after).unwrap_or(0);
                prop_assert!(send.after >= last, "backwards");
                under_way.push((send, head));
            }
            prop_assert!(under_way.len() <= 8);
            for host in 0..3 {
                let to_host = under_way.iter().filter(|(send, _)| send.id % 3 == host).count();
                prop_assert!(to_host <= 2);
            }
        }
        for (send, through) in under_way {
            hub.handle_end(time(now), send.id, to(through), Outcome::Accepted);
        }
        for _ in 0..200 {
            now += 100;
            while let Some(send) = hub.poll_send(time(now)) {
                hub.handle_end(time(now), send.id, to(head), Outcome::Accepted);
            }
        }
        for id in 0..12 {
            prop_assert!(hub.position(id).is_none_or(|position| position == head || head == 0));
        }
    }
}
