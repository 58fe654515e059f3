//! Case I and the way from a snapshot into its feed.

use http::Method;
use towpath_proto::change::Op;
use towpath_proto::follow::{Exchange, FollowError, Request, StartFrom};
use towpath_proto::item::Item;
use towpath_proto::replication::follow::{Options, ReplicationFollower};
use towpath_proto::replication::pages::{Cleanup, PageLimits};

use crate::consumer::{Consumer, Way, once};
use crate::publisher::{BASE, Publisher, Response, SNAPSHOT, item, time};

/// Six words on pages of two, as in case I, and a feed that went on.
fn publisher() -> Publisher {
    let mut publisher = Publisher::of(2);
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

fn options(parallel: usize) -> Options {
    Options { snapshot: Some(SNAPSHOT.into()), parallel, ..once() }
}

fn contents(consumer: &Consumer) -> Vec<String> {
    let content = |f: &towpath_proto::follow::Followed| {
        f.item.content.as_ref().map_or(String::new(), |c| c.text().unwrap().to_owned())
    };
    consumer.told.iter().map(content).collect()
}

fn run(publisher: &Publisher, options: Options, fault: impl Fn(&Request) -> Option<Response>) -> Consumer {
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options);
    consumer.drive(&mut follower, time(100), |request| {
        (fault(request).unwrap_or_else(|| publisher.answer(request)), Way::Pieces(50))
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
        assert_eq!(told.len(), 6 + 3, "the feed's first second is told again");
        if parallel == 1 {
            assert_eq!(told[..6], ["hello", "world", "I", "am", "a", "Snapshot"]);
        }
        told[..6].sort_unstable();
        assert_eq!(told[..6], ["I", "Snapshot", "a", "am", "hello", "world"]);
        assert_eq!(consumer.positions()[6..], ["<7@news>", "<8@news>", "<9@news>"]);
    }
}

#[test]
fn case_i_the_address_of_an_index_that_names_its_feed_is_enough() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(100), |r| (publisher.answer(r), Way::Pieces(50)));
    consumer.assert_calm();
    assert_eq!(consumer.told.len(), 9);
    // Later the feed is gone on with from the state alone.
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(101), |r| (publisher.answer(r), Way::Pieces(50)));
    assert_eq!(consumer.told.len(), 9);
    assert!(consumer.requests.last().unwrap().contains("/replication/pages/"));
}

#[test]
fn case_i_pages_are_asked_for_within_the_bound() {
    let none = Options { parallel: 0, ..once() };
    let error = ReplicationFollower::new(BASE, StartFrom::Beginning, None, none).unwrap_err();
    assert!(matches!(error, FollowError::Usage(_)));
    let publisher = publisher();
    for parallel in [1, 2, 3] {
        let mut follower = Consumer::default().follower(BASE, StartFrom::Beginning, options(parallel));
        let index = follower.poll_request(time(0)).unwrap();
        assert_eq!((index.method.clone(), index.url.as_str()), (Method::GET, SNAPSHOT));
        let answer = publisher.answer(&index);
        let head =
            towpath_proto::follow::ResponseHead { status: 200, url: index.url, headers: answer.headers };
        follower.handle_head(time(0), index.id, head);
        follower.handle_chunk(time(0), index.id, answer.body);
        follower.handle_end(time(0), index.id, Ok(()));
        let under_way = std::iter::from_fn(|| follower.poll_request(time(0))).count();
        assert_eq!(under_way, parallel);
        assert_eq!(follower.snapshot_progress().unwrap().pages, 3);
    }
}

#[test]
fn case_i_a_page_that_is_missing_comes_after_the_whole_pages_before_it() {
    let missing = |r: &Request| r.url.ends_with("/pages/2").then(|| Response::status(404));
    let consumer = run(&publisher(), options(1), missing);
    assert_eq!(contents(&consumer), ["hello", "world", "I", "am"]);
    assert!(
        matches!(&consumer.failed[..], [FollowError::Status { status: 404, url }] if url.ends_with("/2"))
    );
    // The next run reads that page alone and goes on with the feed.
    let publisher = publisher();
    let mut again = Consumer { state: consumer.state, ..Consumer::default() };
    let mut follower = again.follower(BASE, StartFrom::Beginning, options(1));
    again.drive(&mut follower, time(100), |r| (publisher.answer(r), Way::Pieces(50)));
    assert_eq!(contents(&again)[..2], ["a", "Snapshot"]);
    assert_eq!(again.told.len(), 2 + 3);
}

#[test]
fn case_i_entities_before_an_error_are_told() {
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
        (r.url == SNAPSHOT).then(|| Response { body: "{\"key\":4".into(), ..Response::status(200) })
    };
    let consumer = run(&publisher(), options(2), broken);
    assert!(matches!(&consumer.failed[..], [FollowError::Protocol { .. }]));
    let missing = |r: &Request| (r.url == SNAPSHOT).then(|| Response::status(404));
    let consumer = run(&publisher(), options(2), missing);
    assert!(matches!(&consumer.failed[..], [FollowError::Status { status: 404, .. }]));
}

#[test]
fn case_i_a_crash_within_a_snapshot_reads_the_rest_and_another_snapshot_begins_anew() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
    let mut left = 2;
    consumer.drive(&mut follower, time(100), |r| {
        left -= 1;
        let way = if left < 0 { Way::Lost } else { Way::Pieces(50) };
        (publisher.answer(r), way)
    });
    consumer.crash();
    assert_eq!(contents(&consumer), ["hello", "world"]);
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options(1));
    consumer.drive(&mut follower, time(101), |r| (publisher.answer(r), Way::Pieces(50)));
    assert_eq!(contents(&consumer)[..6], ["hello", "world", "I", "am", "a", "Snapshot"]);
    assert_eq!(consumer.told.len(), 9);
}

#[test]
fn an_empty_snapshot_has_no_pages() {
    let mut publisher = Publisher::of(2);
    publisher.make_snapshot("empty", time(0), PageLimits::default());
    publisher.put(1);
    // Without our own properties: whether the feed lost something before its first entity cannot be seen.
    let body = "{\"id\":\"empty\",\"createdAt\":\"2023-11-14T22:13:20Z\",\"pages\":[]}";
    let consumer = run(&publisher, options(2), |request| {
        let index = (request.url == SNAPSHOT).then(|| publisher.answer(request));
        index.map(|index| Response { body: body.into(), ..index })
    });
    assert_eq!(consumer.positions(), ["<1@news>"]);
    assert!(consumer.incomplete[0].contains("timestamps not old enough"), "{:?}", consumer.incomplete);
}

/// One pass that begins with the index.
fn from_index(publisher: &Publisher) -> Consumer {
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(SNAPSHOT, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(100), |r| (publisher.answer(r), Way::Pieces(50)));
    consumer
}

const LIMITS: PageLimits = PageLimits { bytes: 1000, entities: 10 };

#[test]
fn finding_an_entry_point_nothing_precedes_the_snapshot_of_an_empty_feed() {
    let mut publisher = Publisher::of(2);
    publisher.make_snapshot("empty", time(5), LIMITS);
    assert_eq!(publisher.snapshot.len(), 1);
    // Also what is older than the snapshot, as in a mirror.
    for second in [2, 5, 6, 7] {
        publisher.put(second);
    }
    publisher.seal();
    let consumer = from_index(&publisher);
    consumer.assert_calm();
    assert_eq!(consumer.positions(), publisher.content_ids());
    // Once the first page is gone, something is missing.
    publisher.cleanup = Cleanup { first_page: 2, gone_below: 2 };
    let consumer = from_index(&publisher);
    assert_eq!(consumer.positions(), publisher.content_ids()[2..]);
    assert!(consumer.incomplete[0].contains("not old enough"), "{:?}", consumer.incomplete);
}

#[test]
fn finding_an_entry_point_the_page_of_the_last_change_proves_that_nothing_is_missing() {
    let mut publisher = Publisher::of(2);
    for second in [0, 0, 5] {
        publisher.put(second);
    }
    publisher.seal();
    publisher.make_snapshot("s", time(5), LIMITS);
    publisher.put(5);
    publisher.put(9);
    publisher.seal();
    // The oldest page that is left begins in the second of the snapshot.
    publisher.cleanup = Cleanup { first_page: 2, gone_below: 2 };
    let consumer = from_index(&publisher);
    consumer.assert_calm();
    assert_eq!(consumer.positions()[3..], publisher.content_ids()[2..]);
    publisher.cleanup = Cleanup { first_page: 3, gone_below: 3 };
    let consumer = from_index(&publisher);
    assert!(consumer.incomplete[0].contains("not old enough"), "{:?}", consumer.incomplete);
}
