//! Tests of the dispatcher.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::change::Seq;
use crate::follow::Monotonic;
use crate::push::websub::publish::delivery::{AfterDelivery, DeliveredRange, DeliveryOutcome, RetryPolicy};
use crate::push::websub::publish::dispatch::{
    Dispatcher, DueDelivery, EndedDelivery, HubFull, HubLimits, SLOW_ANSWER, SubscriberPlace, SubscriptionId,
};

const FAR: u64 = 1 << 32;

fn time(seconds: u64) -> Monotonic {
    Monotonic::from_origin(Duration::from_secs(seconds))
}

/// A callback at port 80 of an address.
fn at<'a>(topic: &'a str, address: &'a str) -> SubscriberPlace<'a> {
    SubscriberPlace { topic, host: address, address }
}

/// A delivery that ended at once.
fn ended(id: SubscriptionId, range: DeliveredRange, outcome: DeliveryOutcome) -> EndedDelivery {
    EndedDelivery { id, range, outcome, took: Duration::ZERO }
}

fn limits() -> HubLimits {
    HubLimits {
        connections: 8,
        host_connections: 2,
        slow_connections: 4,
        subscribers: 10_000,
        topic_subscribers: 1000,
        host_subscribers: 1000,
    }
}

fn dispatcher(limits: HubLimits) -> Dispatcher<()> {
    Dispatcher::new(limits, RetryPolicy::default())
}

fn all(dispatcher: &mut Dispatcher<()>, now: u64) -> Vec<DueDelivery> {
    std::iter::from_fn(|| dispatcher.poll_delivery(time(now))).collect()
}

fn to(seq: Seq) -> DeliveredRange {
    DeliveredRange { through: seq, scanned: seq }
}

/// "Push notifications MUST be delivered in order": a subscriber has a single delivery at a time, and entries
/// appended during it form the next one.
#[test]
fn one_at_a_time() {
    let mut hub = dispatcher(limits());
    hub.add(1, at("a", "h"), 0, time(FAR), ());
    hub.handle_append("a", 1);
    assert_eq!(all(&mut hub, 0), [DueDelivery { id: 1, after: 0 }]);
    hub.handle_append("a", 2);
    hub.handle_append("a", 3);
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(
        hub.handle_end(time(0), ended(1, to(1), DeliveryOutcome::Accepted)),
        Some(AfterDelivery::Done)
    );
    assert_eq!(all(&mut hub, 0), [DueDelivery { id: 1, after: 1 }]);
    hub.handle_end(time(0), ended(1, to(3), DeliveryOutcome::Accepted));
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(hub.position(1), Some(3));
}

#[test]
fn hosts_have_shares_and_take_turns() {
    let mut hub = dispatcher(limits());
    for id in 0..100 {
        hub.add(id, at("a", "crowded"), 0, time(FAR), ());
    }
    hub.add(1000, at("a", "lonely"), 0, time(FAR), ());
    hub.handle_append("a", 1);
    let sent = all(&mut hub, 0);
    assert_eq!(sent.len(), 3, "two of the crowded host's, and the lonely one's");
    assert!(sent.iter().any(|send| send.id == 1000));
    hub.handle_end(time(0), ended(sent[0].id, to(1), DeliveryOutcome::Accepted));
    assert_eq!(all(&mut hub, 0).len(), 1);
}

#[test]
fn a_dead_host_takes_no_connections_from_others() {
    let mut hub = dispatcher(limits());
    for id in 0..50 {
        hub.add(id, at("a", "dead"), 0, time(FAR), ());
    }
    hub.handle_append("a", 1);
    let mut attempts = 0;
    for now in 0..60 {
        while let Some(send) = hub.poll_delivery(time(now)) {
            attempts += 1;
            hub.handle_end(time(now), ended(send.id, to(1), DeliveryOutcome::Unreachable));
        }
    }
    assert!((5..=12).contains(&attempts), "{attempts} in a minute");
    assert!(hub.poll_timeout().unwrap() < time(FAR));
    // The host recovers: a single attempt succeeds, then all others follow.
    let mut now = 60;
    let mut sent = Vec::new();
    while sent.is_empty() {
        now += 1;
        sent = all(&mut hub, now);
    }
    assert_eq!(sent.len(), 1, "of a suspect host, one at a time");
    hub.handle_end(time(now), ended(sent[0].id, to(1), DeliveryOutcome::Accepted));
    assert_eq!(all(&mut hub, now).len(), 2);
}

/// WebSub 5.1: subscribing again renews an active subscription; its deliveries continue.
#[test]
fn to_subscribe_again_renews() {
    let mut hub = dispatcher(limits());
    hub.add(1, at("a", "h"), 0, time(10), ());
    hub.handle_append("a", 5);
    assert_eq!(all(&mut hub, 0).len(), 1);
    hub.add(1, at("a", "h"), 5, time(20), ());
    assert_eq!(all(&mut hub, 0), [], "the delivery is still under way");
    hub.handle_end(time(1), ended(1, to(4), DeliveryOutcome::Accepted));
    assert_eq!(all(&mut hub, 1), [DueDelivery { id: 1, after: 4 }]);
    assert_eq!(hub.poll_lease(time(10)), None);
    assert_eq!(hub.poll_lease(time(20)), Some(1));
    assert_eq!(hub.poll_lease(time(20)), None);
}

/// WebSub 7: 410 ends the subscription, even if entries were appended meanwhile.
#[test]
fn who_is_gone_gets_nothing_more() {
    let mut hub = dispatcher(limits());
    hub.add(1, at("a", "h"), 0, time(FAR), ());
    hub.handle_append("a", 1);
    assert_eq!(all(&mut hub, 0).len(), 1);
    hub.handle_append("a", 2);
    assert_eq!(hub.handle_end(time(0), ended(1, to(1), DeliveryOutcome::Gone)), Some(AfterDelivery::Ended));
    hub.handle_append("a", 3);
    assert_eq!(all(&mut hub, 0), []);
    assert_eq!(hub.remove(1), Some(()));
}

#[test]
fn to_unsubscribe_ends_what_waits() {
    let mut hub = dispatcher(limits());
    for id in 0..5 {
        hub.add(id, at("a", "h"), 0, time(10), ());
    }
    hub.handle_append("a", 1);
    let sent = all(&mut hub, 0);
    assert_eq!(sent.len(), 2);
    hub.handle_end(time(0), ended(sent[0].id, to(1), DeliveryOutcome::Refused(None)));
    for id in 0..5 {
        hub.remove(id);
    }
    assert_eq!(hub.handle_end(time(0), ended(sent[1].id, to(1), DeliveryOutcome::Accepted)), None);
    assert_eq!(all(&mut hub, 100), []);
    assert_eq!((hub.len(), hub.running(), hub.poll_timeout()), (0, 0, None));
    assert!(!hub.has_topic("a"));
}

#[test]
fn subscribers_are_limited_by_topic_and_by_host() {
    let small = HubLimits { topic_subscribers: 2, host_subscribers: 3, ..limits() };
    let mut hub = dispatcher(small);
    hub.add(1, at("a", "h"), 0, time(1), ());
    hub.add(2, at("a", "h"), 0, time(1), ());
    assert_eq!(hub.check_limits("a", "other"), Err(HubFull::Topic(2)));
    assert_eq!(hub.check_limits("b", "h"), Ok(()));
    hub.add(3, at("b", "h"), 0, time(1), ());
    assert_eq!(hub.check_limits("c", "h"), Err(HubFull::Host(3)));
    hub.remove(1);
    assert_eq!(hub.check_limits("a", "h"), Ok(()));
}

#[test]
fn subscribers_are_limited_in_all() {
    let mut hub = dispatcher(HubLimits { subscribers: 2, ..limits() });
    hub.add(1, at("a", "h"), 0, time(1), ());
    assert_eq!(hub.check_limits("b", "other"), Ok(()));
    hub.add(2, at("b", "other"), 0, time(1), ());
    assert_eq!(hub.check_limits("c", "third"), Err(HubFull::Hub(2)));
    hub.remove(1);
    assert_eq!(hub.check_limits("c", "third"), Ok(()));
}

/// All ports of an address are one host to limits and shares.
#[test]
fn ports_of_an_address_share_its_limits() {
    let mut hub = dispatcher(HubLimits { host_subscribers: 3, ..limits() });
    for (id, host) in [(1, "h:80"), (2, "h:81"), (3, "h:82")] {
        assert_eq!(hub.check_limits("a", "h"), Ok(()));
        hub.add(id, SubscriberPlace { topic: "a", host, address: "h" }, 0, time(FAR), ());
    }
    assert_eq!(hub.check_limits("b", "h"), Err(HubFull::Host(3)));
    hub.handle_append("a", 1);
    // Two connections to an address, whatever its ports.
    assert_eq!(all(&mut hub, 0).len(), 2);
}

/// Appends after additions queue each subscriber once, and an append that is known already queues none.
#[test]
fn late_subscribers_are_behind_the_known_head() {
    let mut hub = dispatcher(limits());
    hub.add(1, at("a", "h1"), 5, time(FAR), ());
    hub.handle_append("a", 7);
    hub.add(2, at("a", "h2"), 6, time(FAR), ());
    hub.add(3, at("a", "h3"), 7, time(FAR), ());
    hub.handle_append("a", 7);
    let due: Vec<SubscriptionId> = all(&mut hub, 0).iter().map(|send| send.id).collect();
    assert_eq!(due, [1, 2]);
}

fn after_seconds(id: SubscriptionId, seconds: u64) -> EndedDelivery {
    EndedDelivery { took: Duration::from_secs(seconds), ..ended(id, to(1), DeliveryOutcome::Accepted) }
}

/// Slow hosts move to lanes of their own while they are waited for, and leave their connections to others.
#[test]
fn slow_hosts_leave_their_connections() {
    let mut hub = dispatcher(limits());
    let hosts: Vec<String> = (0..20).map(|number| format!("slow{number}")).collect();
    for (id, host) in hosts.iter().enumerate() {
        hub.add(id as SubscriptionId, at("a", host), 0, time(FAR), ());
    }
    hub.handle_append("a", 1);
    let first = all(&mut hub, 0);
    assert_eq!(first.len(), 8, "all connections");
    hub.add(100, at("b", "fast"), 0, time(FAR), ());
    hub.handle_append("b", 1);
    assert_eq!(all(&mut hub, 0), []);
    // Four find a slow lane; of the others, as many are cut as leave half of the connections free.
    let kept: Vec<bool> = first.iter().map(|send| hub.handle_overdue(send.id)).collect();
    assert_eq!(kept.iter().filter(|kept| !**kept).count(), 0, "four are moved, four may stay");
    assert_eq!(all(&mut hub, 1).len(), 4);
    assert_eq!(hub.running(), 12);
    let cut: Vec<SubscriptionId> = (8..12).filter(|id| !hub.handle_overdue(*id)).collect();
    assert!(!cut.is_empty());
    for id in cut {
        let next = hub.handle_end(time(2), ended(id, to(1), DeliveryOutcome::TooSlow));
        assert!(matches!(next, Some(AfterDelivery::Retry(_))), "{next:?}");
    }
    // Eight slow ones remain; then it is the fast host's turn, long before any slow one answers.
    let mut now = 2;
    while !all(&mut hub, now).iter().any(|send| send.id == 100) {
        now += 1;
        assert!(now < 8, "the fast host waits for slow ones");
        for id in 12..20 {
            if !hub.handle_overdue(id) {
                hub.handle_end(time(now), ended(id, to(1), DeliveryOutcome::TooSlow));
            }
        }
    }
    // Lanes of slow hosts are used again.
    hub.handle_end(time(12), after_seconds(first[0].id, 12));
    assert!(!all(&mut hub, 12).is_empty());
}

/// A slow answer demotes a host, two fast ones in a row promote it.
#[test]
fn hosts_are_demoted_and_promoted() {
    let mut hub = dispatcher(HubLimits { slow_connections: 0, ..limits() });
    hub.add(1, at("a", "h"), 0, time(FAR), ());
    hub.handle_append("a", 1);
    assert_eq!(all(&mut hub, 0).len(), 1);
    hub.handle_end(time(12), after_seconds(1, 12));
    hub.handle_append("a", 2);
    assert_eq!(all(&mut hub, 12), [], "it waits for a lane, and there is none");

    let mut hub = dispatcher(HubLimits { connections: 1, slow_connections: 1, ..limits() });
    hub.add(1, at("a", "h1"), 0, time(FAR), ());
    hub.add(2, at("b", "h2"), 0, time(FAR), ());
    hub.handle_append("a", 1);
    assert_eq!(all(&mut hub, 0).len(), 1);
    assert!(hub.handle_overdue(1), "a lane is free");
    for head in 2..5 {
        hub.handle_append("b", head);
        assert_eq!(all(&mut hub, 0).len(), 1, "the fast connection is free");
        hub.handle_end(time(1), ended(2, to(head), DeliveryOutcome::Accepted));
    }
    hub.handle_end(time(12), after_seconds(1, 12));
    for head in 2..4 {
        hub.handle_append("a", head);
        assert_eq!(all(&mut hub, 13).len(), 1);
        hub.handle_end(time(13), ended(1, to(head), DeliveryOutcome::Accepted));
    }
    // Promoted: both share the one fast connection now.
    hub.handle_append("a", 9);
    hub.handle_append("b", 9);
    assert_eq!(all(&mut hub, 14).len(), 1);
}

/// A further port of a slow address starts in the slow lane: else each would take a fast connection once.
#[test]
fn new_ports_of_a_slow_address_start_slow() {
    let mut hub = dispatcher(HubLimits { slow_connections: 1, ..limits() });
    hub.add(1, SubscriberPlace { topic: "a", host: "h:1", address: "h" }, 0, time(FAR), ());
    hub.handle_append("a", 1);
    assert_eq!(all(&mut hub, 0).len(), 1);
    assert!(hub.handle_overdue(1));
    for port in 2..5 {
        let host = format!("h:{port}");
        hub.add(port, SubscriberPlace { topic: "a", host: &host, address: "h" }, 0, time(FAR), ());
    }
    assert_eq!(all(&mut hub, 0), [], "the slow lane is taken");
    hub.handle_end(time(3), after_seconds(1, 3));
    assert_eq!(all(&mut hub, 3).len(), 1);
    assert!(SLOW_ANSWER < Duration::from_secs(3));
}

/// Events of the random test.
#[derive(Debug, Clone)]
enum DispatchEvent {
    Append(u8),
    Answer(u8, u8),
    Pass(u8),
    Leave(u8),
    Join(u8),
}

fn happening() -> impl Strategy<Value = DispatchEvent> {
    prop_oneof![
        2 => (1..4_u8).prop_map(DispatchEvent::Append),
        6 => (0..16_u8, 0..8_u8).prop_map(|(which, how)| DispatchEvent::Answer(which, how)),
        2 => (0..200_u8).prop_map(DispatchEvent::Pass),
        1 => (0..12_u8).prop_map(DispatchEvent::Leave),
        1 => (0..12_u8).prop_map(DispatchEvent::Join),
    ]
}

proptest! {
    /// For any sequence of events: at most one delivery per subscriber, never more than the limits, never
    /// backwards. After recovery every subscriber has everything.
    #[test]
    fn deliveries_keep_their_rules(happenings in prop::collection::vec(happening(), 0..80)) {
        let mut hub = dispatcher(limits());
        let (mut head, mut now) = (0, 0);
        let mut under_way: Vec<(DueDelivery, Seq)> = Vec::new();
        let mut positions: HashMap<SubscriptionId, Seq> = HashMap::new();
        for happening in happenings {
            match happening {
                DispatchEvent::Append(count) => {
                    head += Seq::from(count);
                    hub.handle_append("a", head);
                }
                DispatchEvent::Answer(which, how) if !under_way.is_empty() => {
                    let (send, through) = under_way.remove(usize::from(which) % under_way.len());
                    let outcome = match how {
                        0..=3 => DeliveryOutcome::Accepted,
                        4 => DeliveryOutcome::Refused(None),
                        5 => DeliveryOutcome::Nothing,
                        _ => DeliveryOutcome::Unreachable,
                    };
                    hub.handle_end(time(now), ended(send.id, to(through), outcome));
                }
                DispatchEvent::Answer(..) => {}
                DispatchEvent::Pass(seconds) => now += u64::from(seconds),
                DispatchEvent::Leave(id) => {
                    hub.remove(SubscriptionId::from(id));
                    positions.remove(&SubscriptionId::from(id));
                }
                DispatchEvent::Join(id) => {
                    let host = format!("h{}", id % 3);
                    hub.add(SubscriptionId::from(id), at("a", &host), head, time(FAR), ());
                    hub.handle_append("a", head);
                }
            }
            while let Some(send) = hub.poll_delivery(time(now)) {
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
            hub.handle_end(time(now), ended(send.id, to(through), DeliveryOutcome::Accepted));
        }
        for _ in 0..200 {
            now += 100;
            while let Some(send) = hub.poll_delivery(time(now)) {
                hub.handle_end(time(now), ended(send.id, to(head), DeliveryOutcome::Accepted));
            }
        }
        for id in 0..12 {
            prop_assert!(hub.position(id).is_none_or(|position| position == head || head == 0));
        }
    }
}
