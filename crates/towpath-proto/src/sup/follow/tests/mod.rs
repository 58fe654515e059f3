//! Requests for SUP documents, and hostile documents.

mod simulation;

use bytes::Bytes;
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER};
use http::{HeaderMap, HeaderName};
use jiff::{SignedDuration, Timestamp};

use crate::follow::{Event, Exchange, Follower, Now, Request, ResponseHead, TransferError};
use crate::sup::follow::{FeedKey, PollReason, PolledContent, SupFollower, SupPollIntervals};
use crate::sup::wire::discovery::{Discovery, SupLink};

const SUP: &str = "https://a.example/sup.json";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn link(id: &str) -> Discovery {
    Discovery { links: vec![SupLink { url: SUP.into(), id: id.into() }], warnings: vec![] }
}

/// Returns a follower of one feed with a known SUP link.
fn follower() -> (SupFollower, FeedKey) {
    let mut follower = SupFollower::new(SupPollIntervals::default());
    let feed = follower.add_feed("https://a.example/1", Now::simulated(at(0)));
    let poll = follower.poll_feed(Now::simulated(at(0))).unwrap();
    follower.handle_success(Now::simulated(at(0)), poll.feed, link("f1"), PolledContent::Changed);
    (follower, feed)
}

fn document(since: i64, updated: i64, updates: &str) -> String {
    let (since, updated) = (at(since), at(updated));
    format!(r#"{{"updates":[{updates}],"period":60,"since_time":"{since}","updated_time":"{updated}"}}"#)
}

fn answer(
    follower: &mut SupFollower,
    now: i64,
    request: &Request,
    status: u16,
    headers: &[(HeaderName, &'static str)],
    body: &str,
) {
    let headers: HeaderMap = headers.iter().map(|(name, v)| (name.clone(), v.parse().unwrap())).collect();
    follower.handle_head(
        Now::simulated(at(now)),
        request.id,
        ResponseHead { status, url: request.url.clone(), headers },
    );
    follower.handle_chunk(Now::simulated(at(now)), request.id, Bytes::from(body.to_owned()));
    follower.handle_end(Now::simulated(at(now)), request.id, Ok(()));
}

fn failures(follower: &mut SupFollower) -> usize {
    let events = std::iter::from_fn(|| follower.poll_event());
    events.filter(|event| matches!(event, Event::Failed(_))).count()
}

const VALIDATORS: [(HeaderName, &str); 2] =
    [(ETAG, "\"1\""), (LAST_MODIFIED, "Tue, 14 Nov 2023 22:13:20 GMT")];

#[test]
fn an_unchanged_document_is_not_sent_again_and_still_covers() {
    let (mut follower, _) = follower();
    let first = follower.poll_request(Now::simulated(at(0))).unwrap();
    assert!(!first.headers.contains_key(IF_NONE_MATCH));
    answer(&mut follower, 1, &first, 200, &VALIDATORS, &document(-60, 1, ""));
    let second = follower.poll_request(Now::simulated(at(61))).unwrap();
    assert_eq!(second.headers[IF_NONE_MATCH], "\"1\"");
    assert_eq!(second.headers[IF_MODIFIED_SINCE], "Tue, 14 Nov 2023 22:13:20 GMT");
    answer(&mut follower, 61, &second, 304, &[], "");
    assert!(follower.poll_feed(Now::simulated(at(61))).is_none());
    assert_eq!(failures(&mut follower), 0);
    // The next window covers the time that the unchanged one left open.
    let third = follower.poll_request(Now::simulated(at(121))).unwrap();
    answer(&mut follower, 121, &third, 200, &[], &document(0, 121, r#"["f1","u1"]"#));
    assert_eq!(follower.poll_feed(Now::simulated(at(121))).unwrap().reason, PollReason::Updated);
    let fourth = follower.poll_request(Now::simulated(at(200))).unwrap();
    assert!(!fourth.headers.contains_key(IF_NONE_MATCH), "the last document came without a validator");
}

/// A document may have updates of a feed that joins later: it is fetched again.
#[test]
fn a_new_feed_forces_an_unconditional_request() {
    let (mut follower, _) = follower();
    let first = follower.poll_request(Now::simulated(at(0))).unwrap();
    follower.add_feed("https://a.example/2", Now::simulated(at(0)));
    let poll = follower.poll_feed(Now::simulated(at(0))).unwrap();
    answer(&mut follower, 5, &first, 200, &VALIDATORS, &document(-60, 5, r#"["f2","u1"]"#));
    follower.handle_success(Now::simulated(at(6)), poll.feed, link("f2"), PolledContent::Changed);
    let second = follower.poll_request(Now::simulated(at(66))).unwrap();
    assert!(!second.headers.contains_key(IF_NONE_MATCH));
    answer(&mut follower, 66, &second, 200, &VALIDATORS, &document(-60, 5, r#"["f2","u1"]"#));
    assert_eq!(follower.poll_feed(Now::simulated(at(66))).unwrap().url, "https://a.example/2");
}

#[test]
fn a_publisher_that_never_changes_becomes_unhealthy() {
    let (mut follower, feed) = follower();
    let mut now = 0;
    let mut warnings = Vec::new();
    while now < 3600 {
        if let Some(request) = follower.poll_request(Now::simulated(at(now))) {
            let known = request.headers.contains_key(IF_NONE_MATCH);
            // It honours validators, so most responses are 304. They must not count as healthy.
            let (status, body) = if known { (304, String::new()) } else { (200, document(-60, 0, "")) };
            answer(&mut follower, now, &request, status, &VALIDATORS, &body);
        }
        while let Some(event) = follower.poll_event() {
            warnings.push(format!("{event:?}"));
        }
        if let Some(poll) = follower.poll_feed(Now::simulated(at(now))) {
            assert_eq!(poll.feed, feed);
            return assert!(warnings.iter().any(|text| text.contains("polled plainly")), "{warnings:?}");
        }
        now += 10;
    }
    panic!("the feed is never polled plainly: {warnings:?}");
}

#[test]
fn an_unexpected_304_and_every_other_status_is_a_failure() {
    for status in [304, 204, 206, 404, 500] {
        let (mut follower, _) = follower();
        let request = follower.poll_request(Now::simulated(at(0))).unwrap();
        answer(&mut follower, 0, &request, status, &[], "");
        assert_eq!(failures(&mut follower), 1, "{status}");
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    // `1` is shorter than the first wait of 20 s, and `soon` is no value.
    for (value, wait) in [("120", 120), ("Tue, 14 Nov 2023 22:23:20 GMT", 600), ("1", 20), ("soon", 20)] {
        let (mut follower, _) = follower();
        let request = follower.poll_request(Now::simulated(at(0))).unwrap();
        answer(&mut follower, 0, &request, 503, &[(RETRY_AFTER, value)], "");
        assert!(follower.poll_request(Now::simulated(at(wait - 1))).is_none(), "{value}");
        assert!(follower.poll_request(Now::simulated(at(wait))).is_some(), "{value}");
    }
}

/// Sections 3 to 5: ids with slashes, of 129 characters, empty; no JSON; period 0; windows in the future.
#[test]
fn hostile_documents_cause_no_poll_and_no_stop() {
    let long = format!(r#"["{}","u"]"#, "x".repeat(129));
    let good = |updates: &str| document(-60, 1, updates);
    for (body, is_document) in [
        (good(r#"["f/1","u"],["","u"],["f1",""],["f1","u/1"],["f1"],7,["f1",7],["f1","u","v"]"#), true),
        (good(&long), true),
        (good("").replace("60,", "0,"), false),
        (good("").replace("60,", "-1,"), false),
        (document(10, -10, ""), false),
        ("<html>not found</html>".into(), false),
        (String::new(), false),
        ("[".repeat(100_000), false),
    ] {
        let (mut follower, _) = follower();
        let request = follower.poll_request(Now::simulated(at(0))).unwrap();
        answer(&mut follower, 1, &request, 200, &[], &body);
        assert_eq!(failures(&mut follower), usize::from(!is_document), "{body:.100}");
        assert!(follower.poll_feed(Now::simulated(at(1))).is_none(), "{body:.100}");
        assert!(
            follower.poll_request(Now::simulated(at(1000))).is_some(),
            "it is requested again: {body:.100}"
        );
    }
}

/// A window in the future would hide every update before its end, so it is rejected.
#[test]
fn a_window_in_the_future_is_rejected() {
    let (mut follower, _) = follower();
    let first = follower.poll_request(Now::simulated(at(0))).unwrap();
    answer(&mut follower, 1, &first, 200, &[], &document(-60, 1, ""));
    let second = follower.poll_request(Now::simulated(at(100))).unwrap();
    answer(&mut follower, 100, &second, 200, &[], &document(40, 1_000_000, ""));
    assert_eq!(failures(&mut follower), 1);
    // The next correct window is compared with the state before.
    let third = follower.poll_request(Now::simulated(at(200))).unwrap();
    answer(&mut follower, 200, &third, 200, &[], &document(0, 200, r#"["f1","u2"]"#));
    assert_eq!(follower.poll_feed(Now::simulated(at(200))).unwrap().reason, PollReason::Updated);
}

/// A feed that announces another document with each response does not grow the state.
#[test]
fn sources_without_feeds_are_reused() {
    let (mut follower, feed) = follower();
    for round in 1..200 {
        let now = at(round * 100_000);
        let poll = follower.poll_feed(Now::simulated(now)).unwrap();
        let links = vec![SupLink { url: format!("{SUP}?{round}"), id: "f1".into() }];
        follower.handle_success(
            Now::simulated(now),
            poll.feed,
            Discovery { links, warnings: vec![] },
            PolledContent::Unchanged,
        );
        while follower.poll_event().is_some() {}
        let request = follower.poll_request(Now::simulated(now)).unwrap();
        assert_eq!(request.url, format!("{SUP}?{round}"));
        // Ended, because a number with a request in flight is not reused.
        follower.handle_end(Now::simulated(now), request.id, Err(TransferError::Timeout("lost".into())));
    }
    assert_eq!(feed.index(), 0);
    assert!(follower.state(Now::simulated(at(0)))["sources"].as_array().unwrap().len() <= 2);
}

#[test]
fn all_feeds_can_be_made_due_and_some_removed() {
    let (mut follower, _) = follower();
    follower.add_feed("https://a.example/2", Now::simulated(at(0)));
    assert_eq!(follower.poll_feed(Now::simulated(at(0))).unwrap().reason, PollReason::First);
    let state = follower.to_json(Now::simulated(at(0)));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&state).unwrap(),
        follower.state(Now::simulated(at(0)))
    );
    assert!(
        SupFollower::from_json(SupPollIntervals::default(), "{}", Now::simulated(at(0)), |_| true).is_err()
    );
    let mut follower =
        SupFollower::from_json(SupPollIntervals::default(), &state, Now::simulated(at(0)), |url| {
            url.ends_with("/1")
        })
        .unwrap();
    let now = at(0) + SignedDuration::from_secs(5);
    assert!(follower.poll_feed(Now::simulated(now)).is_none());
    follower.make_all_due();
    assert_eq!(follower.poll_feed(Now::simulated(now)).unwrap().url, "https://a.example/1");
    assert!(follower.poll_feed(Now::simulated(now)).is_none());
}

/// Documents with ever new updates and periods: the feed is polled, and memory is bounded.
#[test]
fn floods_of_updates_and_periods_are_bounded() {
    let (mut follower, _) = follower();
    let mut sizes = Vec::new();
    for round in 0..20 {
        let now = round * 1000;
        let request = follower.poll_request(Now::simulated(at(now))).unwrap();
        // Far above `MAX_UPDATE_IDS` and `MAX_PERIODS`.
        let updates: Vec<String> = (0..5000).map(|n| format!(r#"["f1","{round}-{n}"]"#)).collect();
        let periods: Vec<String> = (1..5000).map(|n| format!(r#""{n}":"{SUP}?{n}""#)).collect();
        let body = document(now - 2000, now, &updates.join(","));
        let body = format!(r#"{},"available_periods":{{{}}}}}"#, &body[..body.len() - 1], periods.join(","));
        answer(&mut follower, now, &request, 200, &[], &body);
        assert_eq!(failures(&mut follower), 0);
        let poll = follower.poll_feed(Now::simulated(at(now))).unwrap();
        assert_eq!(poll.reason, PollReason::Updated);
        follower.handle_success(Now::simulated(at(now)), poll.feed, link("f1"), PolledContent::Changed);
        sizes.push(follower.to_json(Now::simulated(at(now))).len());
    }
    assert!(sizes.iter().all(|size| *size < 100_000), "{sizes:?}");
}

/// A publisher whose documents begin too late, and each offer a longer period: the feeds are polled after a few of them.
#[test]
fn ever_longer_periods_are_a_gap() {
    let (mut follower, _) = follower();
    let request = follower.poll_request(Now::simulated(at(0))).unwrap();
    answer(&mut follower, 0, &request, 200, &[], &document(-60, 0, ""));
    let mut requests = 0;
    while let Some(request) = follower.poll_request(Now::simulated(at(5000))) {
        requests += 1;
        assert!(requests < 100, "it never pauses");
        let body = document(5000, 5000, "");
        let longer = 1000 + requests;
        let body =
            format!(r#"{},"available_periods":{{"{longer}":"{SUP}?{longer}"}}}}"#, &body[..body.len() - 1]);
        answer(&mut follower, 5000, &request, 200, &[], &body);
    }
    assert_eq!(requests, 4);
    let poll = follower.poll_feed(Now::simulated(at(5000))).unwrap();
    assert_eq!(poll.reason, PollReason::Gap);
}
