//! Tests of the queue: floods, and those who are served meanwhile.

use core::net::Ipv4Addr;
use std::time::Duration;

use super::*;

fn time(seconds: u64) -> Monotonic {
    Monotonic::from_origin(Duration::from_secs(seconds))
}

fn block(number: u32) -> AddressBlock {
    AddressBlock::of(Ipv4Addr::from(0x0a00_0000 + number).into())
}

fn limits() -> VerificationLimits {
    VerificationLimits {
        running: 4,
        pending: 100,
        requester_pending: 50,
        address_pending: 10,
        address_requests: 6,
    }
}

/// Makes all requests that may begin now; each goes to its known address. Returns the data of each.
fn ask(queue: &mut VerificationQueue<u32>, now: u64, end: impl Fn(u32) -> Option<AddressBlock>) -> Vec<u32> {
    let mut asked = Vec::new();
    while let Some((id, data)) = queue.poll(time(now)) {
        let address = block(data);
        if queue.admit(time(now), address) {
            asked.push(data);
            match end(data) {
                Some(address) => {
                    queue.handle_confirmed(time(now), address);
                    queue.handle_end(id);
                }
                None => queue.handle_retry(id, time(now + 5), data),
            }
        } else {
            queue.handle_denied(time(now), id, address, data);
        }
    }
    asked
}

/// A pause holds no slot, and callbacks that fail leave room for others.
#[test]
fn pauses_hold_no_slot() {
    let mut queue = VerificationQueue::new(limits());
    for number in 0..1000 {
        // More than the limit of the requester: the oldest are evicted.
        queue.submit(Some(block(0)), Some(block(number)), number).unwrap();
        assert_eq!(ask(&mut queue, 0, |_| None), [number]);
        assert_eq!(queue.running(), 0);
    }
    assert_eq!((queue.len(), queue.take_evicted().len()), (50, 950));
    queue.submit(Some(block(1)), Some(block(5000)), 5000).unwrap();
    assert_eq!(ask(&mut queue, 0, |_| None), [5000]);
}

/// Verifications that never had a turn are not evicted: then the client is told.
#[test]
fn new_ones_are_refused_while_none_can_be_evicted() {
    let mut queue = VerificationQueue::new(limits());
    let mut submit = |requester: u32, number: u32| queue.submit(Some(block(requester)), None, number);
    for number in 0..50 {
        assert_eq!(submit(0, number), Ok(()));
    }
    assert_eq!(submit(0, 50), Err(QueueFull::Client(50)));
    for number in 0..50 {
        assert_eq!(submit(1, number), Ok(()));
    }
    assert_eq!(submit(2, 0), Err(QueueFull::Hub(100)));
    assert!(QueueFull::Hub(100).to_string().contains("[hub] verifications"));
}

/// Requesters take turns: one with a thousand entries does not delay one with a single one.
#[test]
fn requesters_take_turns() {
    let mut queue = VerificationQueue::new(VerificationLimits { running: 1, ..limits() });
    for number in 0..40 {
        queue.submit(Some(block(0)), Some(block(number)), number).unwrap();
    }
    queue.submit(Some(block(1)), Some(block(99)), 99).unwrap();
    let first: Vec<u32> = (0..2)
        .filter_map(|_| {
            let (id, data) = queue.poll(time(0))?;
            queue.handle_end(id);
            Some(data)
        })
        .collect();
    assert!(first.contains(&99), "{first:?}");
}

/// An address gets a few requests a minute, whoever asks and whatever port or name leads to it.
#[test]
fn an_address_gets_a_few_requests_a_minute() {
    let mut queue = VerificationQueue::new(limits());
    let mut times = Vec::new();
    for now in 0..600 {
        // A new requester each second; half of the callbacks are names.
        let known = (now % 2 == 0).then(|| block(7));
        queue.submit(Some(block(now as u32)), known, 7).unwrap();
        times.extend(ask(&mut queue, now, |_| None).iter().map(|_| now));
    }
    for minute in times.iter().map(|begin| times.iter().filter(|t| (*begin..begin + 60).contains(*t)).count())
    {
        assert!(minute <= 6, "{minute} in a minute: {times:?}");
    }
    assert!(times.len() >= 30, "three a minute go on: {times:?}");
    assert!(queue.len() <= 100);
}

/// Under a flood of one address, the client that asks last still gets its turn there.
#[test]
fn a_flooded_address_serves_the_newest() {
    let mut queue = VerificationQueue::new(limits());
    for _ in 0..1000 {
        queue.submit(Some(block(0)), Some(block(7)), 7).unwrap();
        ask(&mut queue, 0, |_| None);
    }
    queue.submit(Some(block(1)), None, 7).unwrap();
    let newest = queue.last;
    ask(&mut queue, 0, |_| None);
    let due = queue.poll_timeout().unwrap().max(time(20));
    assert!(due <= time(20), "{due:?}");
    let first = queue.poll(due).unwrap().0;
    assert_eq!(first, newest);
}

/// An address that confirms has agreed: it is asked as fast as it answers.
#[test]
fn confirmed_requests_do_not_count() {
    let mut queue = VerificationQueue::new(VerificationLimits { address_pending: 50, ..limits() });
    for _ in 0..50 {
        queue.submit(Some(block(0)), Some(block(7)), 7).unwrap();
    }
    assert_eq!(ask(&mut queue, 0, |_| Some(block(7))).len(), 50);
    assert!(queue.is_empty());
    // Three unconfirmed ones at once; with them the budget is used up.
    for _ in 0..5 {
        queue.submit(Some(block(0)), Some(block(7)), 7).unwrap();
    }
    assert_eq!(ask(&mut queue, 0, |_| None).len(), 3);
}

/// Three are under way at once, the rest waits without a slot, and each confirmation lets the next one go.
#[test]
fn a_slow_address_holds_few_slots() {
    let mut queue = VerificationQueue::new(limits());
    for _ in 0..10 {
        queue.submit(Some(block(0)), Some(block(7)), 7).unwrap();
    }
    let mut under_way = Vec::new();
    while let Some((id, _)) = queue.poll(time(0)) {
        assert!(queue.admit(time(0), block(7)));
        under_way.push(id);
    }
    assert_eq!((under_way.len(), queue.running()), (3, 3));
    queue.handle_confirmed(time(1), block(7));
    queue.handle_end(under_way[0]);
    assert!(queue.poll(time(1)).is_some());
    assert!(queue.poll(time(1)).is_none());
}

/// Addresses are forgotten once their budget is full again.
#[test]
fn addresses_are_forgotten() {
    let mut queue = VerificationQueue::new(limits());
    for number in 0..20 {
        queue.submit(Some(block(0)), Some(block(number)), number).unwrap();
    }
    assert_eq!(ask(&mut queue, 0, |data| Some(block(data + 1000))).len(), 20);
    assert!(queue.is_empty());
    let due = queue.poll_timeout().unwrap();
    assert_eq!(due, time(20));
    assert!(queue.poll(due).is_none());
    assert_eq!(queue.poll_timeout(), None);
}
