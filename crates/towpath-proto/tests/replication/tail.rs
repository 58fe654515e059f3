//! The end of the feed: the publisher's hints say when to poll.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use towpath_proto::follow::{Exchange, Monotonic, Now, RequestId, ResponseHead, StartFrom, TransferError};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::RecentUpdates;

use crate::consumer::RecordingConsumer;
use crate::publisher::{BASE, MemoryPublisher, time};

const SUP: &str = "https://pub.example/sup.json";
const EVENTS: &str = "https://pub.example/feeds/news/events";

/// A follower at the end of its feed, and the publisher's event stream.
struct Tail {
    publisher: MemoryPublisher,
    follower: ReplicationFollower,
    consumer: RecordingConsumer,
    /// Headers of the publisher's pages.
    hints: HeaderMap,
    /// Requests of event streams so far, and the open one.
    streams: usize,
    stream: Option<RequestId>,
    /// Updates that the SUP document lists, and the number of requests for it.
    updates: RecentUpdates,
    documents: usize,
}

impl Tail {
    fn new(hints: &[(&'static str, &str)], options: ReplicationOptions) -> Self {
        let mut publisher = MemoryPublisher::of(5);
        publisher.put(0);
        let consumer = RecordingConsumer::default();
        let follower = consumer.follower(BASE, StartFrom::Beginning, options);
        let hints = hints.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let hints: HeaderMap =
            hints.collect::<Vec<(http::HeaderName, http::HeaderValue)>>().into_iter().collect();
        Self {
            publisher,
            follower,
            consumer,
            hints,
            streams: 0,
            stream: None,
            updates: RecentUpdates::default(),
            documents: 0,
        }
    }

    /// Answers every request at this time, and returns the number of polls. Event streams stay open.
    fn run(&mut self, now: Timestamp) -> usize {
        let mut polls = 0;
        self.consumer.take_events(&mut self.follower);
        while let Some(request) = self.follower.poll_request(Now::simulated(now)) {
            let (id, url) = (request.id, request.url.clone());
            if url == EVENTS {
                let mut headers = HeaderMap::new();
                headers.insert("content-type", "text/event-stream".parse().unwrap());
                self.follower.handle_head(
                    Now::simulated(now),
                    id,
                    ResponseHead { status: 200, url, headers },
                );
                (self.stream, self.streams) = (Some(id), self.streams + 1);
                continue;
            }
            if url.starts_with(SUP) {
                self.documents += 1;
                let seconds = url.rsplit('=').next().and_then(|text| text.parse().ok()).unwrap_or(60);
                let body = self.updates.document(now, seconds, SUP).body;
                let head = ResponseHead { status: 200, url, headers: HeaderMap::new() };
                self.follower.handle_head(Now::simulated(now), id, head);
                self.follower.handle_chunk(Now::simulated(now), id, Bytes::from(body));
                self.follower.handle_end(Now::simulated(now), id, Ok(()));
                continue;
            }
            polls += 1;
            let mut response = self.publisher.answer(&request);
            for (name, value) in &self.hints {
                response.headers.append(name, value.clone());
            }
            let head = ResponseHead { status: response.status, url, headers: response.headers };
            self.follower.handle_head(Now::simulated(now), id, head);
            self.follower.handle_chunk(Now::simulated(now), id, response.body);
            self.follower.handle_end(Now::simulated(now), id, Ok(()));
            self.consumer.take_events(&mut self.follower);
        }
        polls
    }

    fn send_event(&mut self, now: Timestamp, piece: &'static [u8]) {
        self.follower.handle_chunk(Now::simulated(now), self.stream.unwrap(), Bytes::from_static(piece));
    }

    fn due(&self) -> Timestamp {
        self.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap()
    }
}

const LINK: (&str, &str) =
    ("link", "<https://pub.example/feeds/news/events>; rel=\"alternate\"; type=\"text/event-stream\"");

#[test]
fn an_event_stream_makes_a_poll_due_at_once() {
    let mut tail = Tail::new(&[LINK], ReplicationOptions::default());
    tail.run(time(1000));
    // The stream opened, which is a reason to poll: something may have come between the two.
    assert_eq!((tail.consumer.told.len(), tail.streams), (1, 1));
    assert_eq!(tail.due(), time(1300));
    for n in 1..4 {
        let now = time(1000 + n);
        tail.publisher.put(n);
        assert_eq!(tail.run(now), 0);
        tail.send_event(now, b":\n\n");
        assert_eq!(tail.run(now), 0, "a comment keeps the connection alive");
        tail.send_event(now, b"id: 7\nevent: put\n");
        tail.send_event(now, b"data: {}\n\n");
        assert_eq!(tail.run(now), 1);
        assert_eq!(tail.consumer.told.len(), 1 + usize::try_from(n).unwrap());
        assert_eq!(tail.due(), now + jiff::SignedDuration::from_secs(300));
    }
    tail.consumer.assert_calm();
    // The stream breaks: polls at the usual interval, and a new stream.
    let broken = Err(TransferError::Timeout("15 minutes".into()));
    tail.follower.handle_end(Now::simulated(time(1100)), tail.stream.unwrap(), broken);
    assert_eq!(tail.due(), time(1130));
    assert_eq!((tail.run(time(1130)), tail.streams), (2, 2));
    tail.consumer.assert_calm();
}

#[test]
fn the_lifetime_in_caches_is_the_interval() {
    for (value, wait) in [("public, max-age=600", 600), ("no-cache", 30), ("max-age=7", 7)] {
        let mut tail = Tail::new(&[("cache-control", value)], ReplicationOptions::default());
        tail.run(time(1000));
        assert_eq!(tail.due(), time(1000 + wait), "{value}");
    }
    // An interval that the user asked for counts alone.
    let options = ReplicationOptions { follow_hints: false, ..ReplicationOptions::default() };
    let mut tail = Tail::new(&[LINK, ("cache-control", "max-age=600")], options);
    tail.run(time(1000));
    assert_eq!((tail.due(), tail.streams), (time(1030), 0));
}

/// Runs a follower whenever it wants to until a time; returns the number of polls, and of changes, at its end.
fn run_until(tail: &mut Tail, mut now: Timestamp, end: Timestamp) -> (usize, usize) {
    let mut polls = 0;
    while now <= end {
        polls += tail.run(now);
        now = tail.due().max(now + jiff::SignedDuration::from_millis(1));
    }
    (polls, tail.consumer.told.len())
}

/// A page that may be cached for an hour, and a SUP document that tells of a change within its period.
#[test]
fn a_sup_document_tells_before_the_lifetime_ends() {
    let id = SupId::of("https://pub.example/feeds/news");
    let sup = format!("{SUP}#{id}");
    let hints = [("cache-control", "max-age=3600"), ("x-sup-id", sup.as_str())];
    let mut tail = Tail::new(&hints, ReplicationOptions::default());
    let (polls, told) = run_until(&mut tail, time(1000), time(1900));
    assert!(polls <= 2 && told == 1, "{polls} polls, {told} changes");
    assert!((5..60).contains(&tail.documents), "{} documents", tail.documents);
    // Nothing is missed, and nothing is polled without need.
    for n in 0..4 {
        let now = 2000 + 200 * n;
        tail.publisher.put(now);
        tail.updates.record(id, u64::try_from(n + 1).unwrap(), time(now));
        let (polls, told) = run_until(&mut tail, time(now), time(now + 130));
        assert_eq!((polls, told), (1, usize::try_from(n + 2).unwrap()));
    }
    tail.consumer.assert_calm();
    // Where a poll is due as soon, a document costs more than it tells; an interval that was asked for counts alone.
    let own = ReplicationOptions { follow_hints: false, ..ReplicationOptions::default() };
    for (lifetime, options) in [("max-age=30", ReplicationOptions::default()), ("max-age=3600", own)] {
        let mut tail = Tail::new(&[("cache-control", lifetime), hints[1]], options);
        run_until(&mut tail, time(1000), time(1300));
        assert_eq!(tail.documents, 0, "{lifetime}");
    }
}

/// A SUP document that fails costs warnings, and the polls go on.
#[test]
fn a_sup_document_that_fails_delays_nothing() {
    let hints = [("cache-control", "max-age=600"), ("x-sup-id", "https://pub.example/none.json#a")];
    let mut tail = Tail::new(&hints, ReplicationOptions::default());
    run_until(&mut tail, time(1000), time(1000));
    tail.publisher.put(1100);
    let (_, told) = run_until(&mut tail, time(1100), time(1700));
    assert_eq!(told, 2);
}
