use super::*;
use crate::push::websub::request::HubRequest;

const HUB: &str = "https://hub.example/";
const OTHER: &str = "https://other.example/";

fn at(seconds: u64) -> Monotonic {
    Monotonic::default() + Duration::from_secs(1_000_000 + seconds)
}

fn queue() -> PingQueue<&'static str> {
    PingQueue::new(PingLimits::default())
}

fn due(queue: &mut PingQueue<&'static str>, seconds: u64) -> Vec<DuePing<&'static str>> {
    std::iter::from_fn(|| queue.poll_ping(at(seconds))).collect()
}

/// The first change is told at once, and all changes of five seconds by one ping.
#[test]
fn changes_go_together_and_the_last_is_told() {
    let mut queue = queue();
    queue.handle_change(at(0), HUB, "aa", 1);
    let first = due(&mut queue, 0);
    assert_eq!(first, [DuePing { hub: HUB.into(), feed: "aa", through: 1 }]);
    queue.handle_change(at(0), HUB, "aa", 2);
    assert!(due(&mut queue, 0).is_empty(), "one ping at a time");
    queue.handle_end(at(1), &first[0], PingOutcome::Accepted, 0);
    queue.handle_change(at(2), HUB, "aa", 3);
    queue.handle_change(at(3), HUB, "aa", 3);
    assert!(due(&mut queue, 4).is_empty());
    assert_eq!(queue.poll_timeout(), Some(at(5)));
    let second = due(&mut queue, 5);
    assert_eq!(second.iter().map(|ping| ping.through).collect::<Vec<_>>(), [3]);
    queue.handle_end(at(6), &second[0], PingOutcome::Accepted, 0);
    assert_eq!((queue.poll_timeout(), queue.running()), (None, 0));
    // Within the interval of the last ping, and long after it.
    queue.handle_change(at(7), HUB, "aa", 4);
    assert_eq!(queue.poll_timeout(), Some(at(10)));
    let third = due(&mut queue, 10);
    queue.handle_end(at(10), &third[0], PingOutcome::Accepted, 0);
    queue.handle_change(at(100), HUB, "aa", 5);
    assert_eq!(due(&mut queue, 100).len(), 1);
}

/// A hub that fails gets one ping at a time, whatever number of feeds waits. Another hub does not wait for it.
#[test]
fn a_failing_hub_gets_one_ping_at_a_time() {
    let mut queue = queue();
    for feed in ["aa", "bb", "cc", "dd", "ee", "ff"] {
        queue.handle_change(at(0), HUB, feed, 1);
    }
    let pings = due(&mut queue, 0);
    assert_eq!(pings.len(), 4);
    for ping in &pings {
        queue.handle_end(at(1), ping, PingOutcome::Failed(None), u64::MAX);
    }
    assert!(due(&mut queue, 3).is_empty());
    queue.handle_change(at(3), OTHER, "aa", 1);
    assert_eq!(due(&mut queue, 3).len(), 1, "the other hub");
    // Four failures: up to 40 s.
    let trial = due(&mut queue, 50);
    assert_eq!(trial.len(), 1);
    queue.handle_end(at(51), &trial[0], PingOutcome::Accepted, 0);
    // The others are told now: those that waited, and those that failed.
    let mut told = 1;
    for second in 51..60 {
        for ping in due(&mut queue, second) {
            told += usize::from(&*ping.hub == HUB);
            queue.handle_end(at(second), &ping, PingOutcome::Accepted, 0);
        }
    }
    assert_eq!(told, 6);
}

#[test]
fn a_hub_may_ask_for_a_pause() {
    let mut queue = queue();
    queue.handle_change(at(0), HUB, "aa", 1);
    let ping = due(&mut queue, 0).remove(0);
    queue.handle_end(at(0), &ping, PingOutcome::Failed(Some(Duration::from_secs(90))), 0);
    assert_eq!(queue.poll_timeout(), Some(at(90)));
    let ping = due(&mut queue, 90).remove(0);
    // No pause at all would be a loop.
    queue.handle_end(at(90), &ping, PingOutcome::Failed(Some(Duration::ZERO)), 0);
    assert_eq!(queue.poll_timeout(), Some(at(95)));
}

/// Sending the same ping again cannot help, but the next change may.
#[test]
fn a_refused_ping_is_not_repeated() {
    let mut queue = queue();
    queue.handle_change(at(0), HUB, "aa", 1);
    let ping = due(&mut queue, 0).remove(0);
    queue.handle_end(at(0), &ping, PingOutcome::Refused, 0);
    assert_eq!(queue.poll_timeout(), None);
    queue.handle_change(at(60), HUB, "aa", 2);
    assert_eq!(due(&mut queue, 60).len(), 1);
}

/// The form is what hubs read, our own among them.
#[test]
fn the_form_names_the_topic() {
    let topic = "https://a.example/feeds/x/atom?a=b&c=\u{e9}";
    let form = ping_form(topic);
    let parsed = HubRequest::parse(Some(PING_MEDIA_TYPE), form.as_bytes()).unwrap();
    let HubRequest::Publish(topics) = parsed else { panic!("{parsed:?}") };
    assert!(topics.iter().all(|named| named == topic) && !topics.is_empty(), "{topics:?}");
}
