//! Reading snapshots (case I), and continuing with the feed.

use http::Method;
use towpath_proto::change::Op;
use towpath_proto::follow::{Exchange, FollowError, FollowMode, Monotonic, Now, Request, StartFrom};
use towpath_proto::item::Item;
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::replication::pages::{Cleanup, PageLimits};

use crate::consumer::{RecordingConsumer, ResponseDelivery, once};
use crate::publisher::{BASE, MemoryPublisher, SNAPSHOT, StoredResponse, item, time};

/// Returns a publisher with the snapshot of case I (six words on pages of two) and later changes.
fn publisher() -> MemoryPublisher {
    let mut publisher = MemoryPublisher::of(2);
    for (second, word) in ["hello", "world", "I", "am", "a", "Snapshot"].into_iter().enumerate() {
        publisher.append(Op::Put, item(&format!("{second}"), word), time(second as i64));
    }
    publisher.append(Op::Delete, Item::new("gone"), time(6));
    publisher.make_snapshot("example", time(6), PageLimits { bytes: 1000, entities: 2 });
    publisher.put(6);
    publisher.put(7);
    publisher.seal();
    publisher
}

fn options(parallel: usize) -> ReplicationOptions {
    ReplicationOptions { snapshot: Some(SNAPSHOT.into()), parallel, ..once() }
}

fn contents(consumer: &RecordingConsumer) -> Vec<String> {
    let content = |f: &towpath_proto::follow::Followed| {
        f.item.content.as_ref().map_or(String::new(), |c| c.text().unwrap().to_owned())
    };
    consumer.told.iter().map(content).collect()
}

fn run(
    publisher: &MemoryPublisher,
    options: ReplicationOptions,
    fault: impl Fn(&Request) -> Option<StoredResponse>,
) -> RecordingConsumer {
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options);
    consumer.drive(&mut follower, time(100), |request| {
        (fault(request).unwrap_or_else(|| publisher.answer(request)), ResponseDelivery::Pieces(50))
    });
    assert!(follower.is_finished());
    consumer
}

#[test]
fn case_i_all_entities_then_the_feed_from_the_time_of_the_snapshot() {
    for parallel in [1, 2, 10] {
        let consumer = run(&publisher(), options(parallel), |_| None);
        consumer.assert_calm();
        let mut told = contents(&consumer);
        assert_eq!(told.len(), 6 + 3, "the feed's first second is delivered again");
        // Requested side by side, pages may arrive in any order.
        if parallel == 1 {
            assert_eq!(told[..6], ["hello", "world", "I", "am", "a", "Snapshot"]);
        }
        told[..6].sort_unstable();
        assert_eq!(told[..6], ["I", "Snapshot", "a", "am", "hello", "world"]);
        assert_eq!(consumer.positions()[6..], ["<7@news>", "<8@news>", "<9@news>"]);
    }
}

#[test]
fn case_i_the_url_of_an_index_that_names_its_feed_is_enough() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(100), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
    consumer.assert_calm();
    assert_eq!(consumer.told.len(), 9);
    // A later run continues with the feed from the state alone.
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(101), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
    assert_eq!(consumer.told.len(), 9);
    assert!(consumer.requests.last().unwrap().contains("/replication/pages/"));
}

/// A feed with retention keeps all live items in a snapshot only. A follower that begins with its oldest page would
/// miss them without a word.
#[test]
fn a_feed_that_lost_its_first_pages_is_followed_from_its_snapshot() {
    let mut publisher = MemoryPublisher::of(2);
    for second in 0..12 {
        publisher.put(second);
    }
    publisher.seal();
    publisher.make_snapshot("s", time(12), PageLimits { bytes: 1000, entities: 5 });
    publisher.put(20);
    publisher.seal();
    let follow = |publisher: &MemoryPublisher, state| {
        let mut consumer = RecordingConsumer { state, ..RecordingConsumer::default() };
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
        consumer.drive(&mut follower, time(100), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
        assert!(follower.is_finished());
        consumer
    };
    let ids = |consumer: &RecordingConsumer| -> std::collections::BTreeSet<String> {
        consumer.told.iter().map(|followed| followed.item.id.clone()).collect()
    };
    let whole = follow(&publisher, None);
    whole.assert_calm();
    assert!(!whole.requests.iter().any(|request| request.contains("snapshot")), "nothing is lost yet");
    publisher.cleanup = Cleanup { first_page: 5, gone_below: 5 };
    let consumer = follow(&publisher, None);
    consumer.assert_calm();
    assert_eq!((ids(&consumer), ids(&consumer).len()), (ids(&whole), 13));
    publisher.put(30);
    let more = follow(&publisher, consumer.state);
    more.assert_calm();
    assert_eq!(ids(&more), ["item 14".to_owned()].into());
    // A follower that has all pages needs no snapshot.
    let more = follow(&publisher, whole.state);
    assert_eq!(ids(&more), ["item 14".to_owned()].into());
    // The snapshot is older than the oldest page: what is between is lost, and said to be.
    (31..37).for_each(|second| publisher.put(second));
    publisher.seal();
    publisher.cleanup = Cleanup { first_page: 9, gone_below: 9 };
    let late = follow(&publisher, None);
    assert_eq!((late.incomplete.len(), late.failed.len()), (1, 0), "{:?}", late.incomplete);
    // There is none.
    publisher.snapshot.clear();
    publisher.cleanup = Cleanup { first_page: 5, gone_below: 5 };
    let consumer = follow(&publisher, None);
    assert_eq!((consumer.told.len(), consumer.failed.len()), (12, 0), "{:?}", consumer.failed);
    assert!(
        matches!(&consumer.incomplete[..], [only] if only.contains("snapshots/latest")),
        "{:?}",
        consumer.incomplete
    );
    assert_eq!(follow(&publisher, consumer.state).incomplete.len(), 0);
}

#[test]
fn case_i_concurrent_requests_are_bounded() {
    let none = ReplicationOptions { parallel: 0, ..once() };
    let error = ReplicationFollower::new(BASE, StartFrom::Beginning, None, none).unwrap_err();
    assert!(matches!(error, FollowError::Usage(_)));
    let publisher = publisher();
    for parallel in [1, 2, 3] {
        let mut follower =
            RecordingConsumer::default().follower(BASE, StartFrom::Beginning, options(parallel));
        let index = follower.poll_request(Now::simulated(time(0))).unwrap();
        assert_eq!((index.method.clone(), index.url.as_str()), (Method::GET, SNAPSHOT));
        let answer = publisher.answer(&index);
        let head =
            towpath_proto::follow::ResponseHead { status: 200, url: index.url, headers: answer.headers };
        follower.handle_head(Now::simulated(time(0)), index.id, head);
        follower.handle_chunk(Now::simulated(time(0)), index.id, answer.body);
        follower.handle_end(Now::simulated(time(0)), index.id, Ok(()));
        let under_way = std::iter::from_fn(|| follower.poll_request(Now::simulated(time(0)))).count();
        assert_eq!(under_way, parallel);
        assert_eq!(follower.snapshot_progress().unwrap().pages, 3);
    }
}

#[test]
fn case_i_pages_before_a_missing_page_are_delivered() {
    let missing = |r: &Request| r.url.ends_with("/pages/2").then(|| StoredResponse::status(404));
    let consumer = run(&publisher(), options(1), missing);
    assert_eq!(contents(&consumer), ["hello", "world", "I", "am"]);
    assert!(
        matches!(&consumer.failed[..], [FollowError::Status { status: 404, url, .. }] if url.ends_with("/2"))
    );
    // The next run reads only that page and continues with the feed.
    let publisher = publisher();
    let mut again = RecordingConsumer { state: consumer.state, ..RecordingConsumer::default() };
    let mut follower = again.follower(BASE, StartFrom::Beginning, options(1));
    again.drive(&mut follower, time(100), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
    assert_eq!(contents(&again)[..2], ["a", "Snapshot"]);
    assert_eq!(again.told.len(), 2 + 3);
}

#[test]
fn case_i_entities_before_an_error_are_delivered() {
    let publisher = publisher();
    let cut = |r: &Request| {
        r.url.ends_with("/pages/0").then(|| {
            let mut response = publisher.answer(r);
            response.body.truncate(response.body.len() - 2);
            response
        })
    };
    let consumer = run(&publisher, options(1), cut);
    assert_eq!(contents(&consumer), ["hello", "world"]);
    let error = consumer.failed[0].to_string();
    assert!(error.contains("/pages/0: entity 2: the body ends at byte"), "{error}");
}

#[test]
fn case_i_a_broken_or_missing_index_is_an_error() {
    let broken = |r: &Request| {
        (r.url == SNAPSHOT)
            .then(|| StoredResponse { body: "{\"key\":4".into(), ..StoredResponse::status(200) })
    };
    let consumer = run(&publisher(), options(2), broken);
    assert!(matches!(&consumer.failed[..], [FollowError::Protocol { .. }]));
    let missing = |r: &Request| (r.url == SNAPSHOT).then(|| StoredResponse::status(404));
    let consumer = run(&publisher(), options(2), missing);
    assert!(matches!(&consumer.failed[..], [FollowError::Status { status: 404, .. }]));
}

#[test]
fn case_i_after_a_crash_only_the_remaining_pages_are_read() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
    // The index and one page arrive.
    let mut left = 2;
    consumer.drive(&mut follower, time(100), |r| {
        left -= 1;
        let way = if left < 0 { ResponseDelivery::Lost } else { ResponseDelivery::Pieces(50) };
        (publisher.answer(r), way)
    });
    consumer.crash();
    assert_eq!(contents(&consumer), ["hello", "world"]);
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
    consumer.drive(&mut follower, time(101), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
    assert_eq!(contents(&consumer)[..6], ["hello", "world", "I", "am", "a", "Snapshot"]);
    assert_eq!(consumer.told.len(), 9);
}

#[test]
fn an_empty_snapshot_has_no_pages() {
    let mut publisher = MemoryPublisher::of(2);
    publisher.make_snapshot("empty", time(0), PageLimits::default());
    publisher.put(1);
    // Without our own properties the index cannot prove that nothing precedes the first entity.
    let body = "{\"id\":\"empty\",\"createdAt\":\"2023-11-14T22:13:20Z\",\"pages\":[]}";
    let consumer = run(&publisher, options(2), |request| {
        let index = (request.url == SNAPSHOT).then(|| publisher.answer(request));
        index.map(|index| StoredResponse { body: body.into(), ..index })
    });
    assert_eq!(consumer.positions(), ["<1@news>"]);
    assert!(consumer.incomplete[0].contains("timestamps not old enough"), "{:?}", consumer.incomplete);
}

/// Performs a single pass that starts from the index.
fn from_index(publisher: &MemoryPublisher) -> RecordingConsumer {
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(100), |r| (publisher.answer(r), ResponseDelivery::Pieces(50)));
    consumer
}

const LIMITS: PageLimits = PageLimits { bytes: 1000, entities: 10 };

#[test]
fn finding_an_entry_point_nothing_precedes_the_snapshot_of_an_empty_feed() {
    let mut publisher = MemoryPublisher::of(2);
    publisher.make_snapshot("empty", time(5), LIMITS);
    assert_eq!(publisher.snapshot.len(), 1);
    // Some changes are older than the snapshot, as in a mirror.
    for second in [2, 5, 6, 7] {
        publisher.put(second);
    }
    publisher.seal();
    let consumer = from_index(&publisher);
    consumer.assert_calm();
    assert_eq!(consumer.positions(), publisher.content_ids());
    // After the first page is gone, changes are missing.
    publisher.cleanup = Cleanup { first_page: 2, gone_below: 2 };
    let consumer = from_index(&publisher);
    assert_eq!(consumer.positions(), publisher.content_ids()[2..]);
    assert!(consumer.incomplete[0].contains("not old enough"), "{:?}", consumer.incomplete);
}

#[test]
fn finding_an_entry_point_the_page_of_the_last_change_proves_that_nothing_is_missing() {
    let mut publisher = MemoryPublisher::of(2);
    for second in [0, 0, 5] {
        publisher.put(second);
    }
    publisher.seal();
    publisher.make_snapshot("s", time(5), LIMITS);
    publisher.put(5);
    publisher.put(9);
    publisher.seal();
    // The oldest listed page begins in the second of the snapshot.
    publisher.cleanup = Cleanup { first_page: 2, gone_below: 2 };
    let consumer = from_index(&publisher);
    consumer.assert_calm();
    assert_eq!(consumer.positions()[3..], publisher.content_ids()[2..]);
    publisher.cleanup = Cleanup { first_page: 3, gone_below: 3 };
    let consumer = from_index(&publisher);
    assert!(consumer.incomplete[0].contains("not old enough"), "{:?}", consumer.incomplete);
}

/// Pages before that of the last change may be left, too. All of them may be of the snapshot's second.
#[test]
fn finding_an_entry_point_pages_before_that_of_the_last_change_are_no_gap() {
    let mut publisher = MemoryPublisher::of(2);
    (0..8).for_each(|_| publisher.put(5));
    publisher.seal();
    publisher.make_snapshot("s", time(5), LIMITS);
    (0..3).for_each(|_| publisher.put(5));
    publisher.seal();
    for oldest in 1..=4 {
        publisher.cleanup = Cleanup { first_page: oldest, gone_below: oldest };
        let consumer = from_index(&publisher);
        consumer.assert_calm();
        assert_eq!(consumer.positions()[8..], publisher.content_ids()[(oldest as usize - 1) * 2..]);
    }
    publisher.cleanup = Cleanup { first_page: 5, gone_below: 5 };
    assert!(from_index(&publisher).incomplete[0].contains("not old enough"));
}

/// Reads a snapshot until the response to its `last` request, which `way` cuts short.
fn interrupted(publisher: &MemoryPublisher, last: usize, way: ResponseDelivery) -> RecordingConsumer {
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
    let mut number = 0;
    consumer.drive(&mut follower, time(100), |request| {
        number += 1;
        (publisher.answer(request), if number < last { ResponseDelivery::Pieces(50) } else { way })
    });
    consumer
}

/// Nothing tells which items of the first snapshot were deleted before the second one was made.
#[test]
fn another_snapshot_voids_the_delivered_part_of_the_one_before() {
    let first = publisher();
    let mut second = publisher();
    second.append(Op::Delete, Item::new("0"), time(8));
    second.make_snapshot("another", time(9), PageLimits { bytes: 1000, entities: 2 });
    for (last, way, told) in [
        (3, ResponseDelivery::Lost, 2),
        // Entities of half a page are delivered, too: a destination may keep them.
        (2, ResponseDelivery::Cut(250), 1),
        (2, ResponseDelivery::Lost, 0),
    ] {
        let mut consumer = interrupted(&first, last, way);
        assert_eq!(consumer.told.len(), told);
        // The same snapshot goes on.
        let mut same = RecordingConsumer { state: consumer.state.clone(), ..RecordingConsumer::default() };
        let mut follower = same.follower(BASE, StartFrom::Beginning, options(1));
        same.drive(&mut follower, time(100), |r| (first.answer(r), ResponseDelivery::Pieces(50)));
        same.assert_calm();
        consumer.failed.clear();
        consumer.told.clear();
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
        consumer.drive(&mut follower, time(100), |r| (second.answer(r), ResponseDelivery::Pieces(50)));
        assert_eq!(consumer.resets.len(), usize::from(told > 0), "{told}: {:?}", consumer.resets);
        assert!(consumer.resets.iter().all(|reason| reason.contains("snapshots/latest")));
        assert!(
            contents(&consumer).contains(&"world".to_owned())
                && !contents(&consumer).contains(&"hello".to_owned())
        );
        consumer.resets.clear();
        consumer.assert_calm();
    }
}

/// The snapshot that a feed with retention names goes away while it is read.
#[test]
fn a_snapshot_that_goes_away_voids_its_delivered_part() {
    let mut publisher = MemoryPublisher::of(2);
    (0..12).for_each(|second| publisher.put(second));
    publisher.seal();
    publisher.make_snapshot("s", time(12), PageLimits { bytes: 1000, entities: 2 });
    publisher.cleanup = Cleanup { first_page: 5, gone_below: 5 };
    let mut consumer = RecordingConsumer::default();
    for is_there in [true, false] {
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
        consumer.drive(&mut follower, time(100), |request| {
            let is_last = request.url.ends_with("/s/pages/3");
            (
                publisher.answer(request),
                if is_last { ResponseDelivery::Lost } else { ResponseDelivery::Pieces(50) },
            )
        });
        assert_eq!(consumer.resets.len(), usize::from(!is_there), "{:?}", consumer.failed);
        publisher.snapshot.clear();
    }
    assert_eq!(consumer.incomplete.len(), 1, "{:?}", consumer.incomplete);
}

/// A snapshot of a publisher without a feed is delivered once, and the next one in its place.
#[test]
fn a_snapshot_that_names_no_feed_is_delivered_once() {
    let mut publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    for (id, told, resets) in [("one", 6, 0), ("one", 0, 0), ("two", 6, 1), ("two", 0, 0)] {
        publisher.make_snapshot(id, time(6), PageLimits { bytes: 1000, entities: 2 });
        consumer.told.clear();
        consumer.resets.clear();
        let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
        consumer.drive(&mut follower, time(100), |request| {
            let mut response = publisher.answer(request);
            if request.url == SNAPSHOT && !response.body.is_empty() {
                let mut index: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
                index
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| ["id", "createdAt", "pages"].contains(&name.as_str()));
                response.body = index.to_string().into();
            }
            (response, ResponseDelivery::Pieces(50))
        });
        assert_eq!(
            (consumer.told.len().min(6), consumer.resets.len()),
            (told, resets),
            "{id}: {:?}",
            consumer.failed
        );
        assert!(consumer.warnings.last().unwrap().contains("does not name the feed"));
    }
}

/// A follower that gets on waits as after a first failure.
#[test]
fn each_page_of_a_snapshot_ends_the_backoff() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(
        BASE,
        StartFrom::Beginning,
        ReplicationOptions { mode: FollowMode::Continuous, ..options(1) },
    );
    let mut now = time(100);
    for pages in 1..3 {
        let mut left = 2;
        consumer.drive(&mut follower, now, |request| {
            left -= 1;
            (
                publisher.answer(request),
                if left < 0 { ResponseDelivery::Lost } else { ResponseDelivery::Pieces(50) },
            )
        });
        assert_eq!(consumer.told.len(), 2 * pages as usize);
        let until = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        assert_eq!(until.as_second() - now.as_second(), 5);
        now = until;
    }
}
