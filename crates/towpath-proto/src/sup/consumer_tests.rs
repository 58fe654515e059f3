//! How a consumer asks for SUP documents, and what hostile ones do to it.

use bytes::Bytes;
use http::header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER};
use http::{HeaderMap, HeaderName};
use jiff::{SignedDuration, Timestamp};

use super::discovery::{Discovery, SupLink};
use super::follow::{Consumer, FeedKey, Settings, Why};
use crate::follow::{Event, Exchange, Follower, Request, ResponseHead, TransferError};

const SUP: &str = "https://a.example/sup.json";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn link(id: &str) -> Discovery {
    Discovery { links: vec![SupLink { url: SUP.into(), id: id.into() }], warnings: vec![] }
}

/// A consumer of one feed, whose SUP link it knows.
fn consumer() -> (Consumer, FeedKey) {
    let mut consumer = Consumer::new(Settings::default());
    let feed = consumer.add_feed("https://a.example/1", at(0));
    let ask = consumer.poll_ask(at(0)).unwrap();
    consumer.handle_answer(at(0), ask.feed, link("f1"), true);
    (consumer, feed)
}

fn document(since: i64, updated: i64, updates: &str) -> String {
    let (since, updated) = (at(since), at(updated));
    format!(r#"{{"updates":[{updates}],"period":60,"since_time":"{since}","updated_time":"{updated}"}}"#)
}

fn answer(
    consumer: &mut Consumer,
    now: i64,
    request: &Request,
    status: u16,
    headers: &[(HeaderName, &'static str)],
    body: &str,
) {
    let headers: HeaderMap = headers.iter().map(|(name, v)| (name.clone(), v.parse().unwrap())).collect();
    consumer.handle_head(at(now), request.id, ResponseHead { status, url: request.url.clone(), headers });
    consumer.handle_chunk(at(now), request.id, Bytes::from(body.to_owned()));
    consumer.handle_end(at(now), request.id, Ok(()));
}

fn failures(consumer: &mut Consumer) -> usize {
    let events = std::iter::from_fn(|| consumer.poll_event());
    events.filter(|event| matches!(event, Event::Failed(_))).count()
}

const VALIDATORS: [(HeaderName, &str); 2] =
    [(ETAG, "\"1\""), (LAST_MODIFIED, "Tue, 14 Nov 2023 22:13:20 GMT")];

#[test]
fn a_document_that_is_the_same_is_not_sent_again_and_still_covers() {
    let (mut consumer, _) = consumer();
    let first = consumer.poll_request(at(0)).unwrap();
    assert!(!first.headers.contains_key(IF_NONE_MATCH));
    answer(&mut consumer, 1, &first, 200, &VALIDATORS, &document(-60, 1, ""));
    let second = consumer.poll_request(at(61)).unwrap();
    assert_eq!(second.headers[IF_NONE_MATCH], "\"1\"");
    assert_eq!(second.headers[IF_MODIFIED_SINCE], "Tue, 14 Nov 2023 22:13:20 GMT");
    answer(&mut consumer, 61, &second, 304, &[], "");
    assert!(consumer.poll_ask(at(61)).is_none());
    assert_eq!(failures(&mut consumer), 0);
    // The window that comes next covers what the unchanged one left open.
    let third = consumer.poll_request(at(121)).unwrap();
    answer(&mut consumer, 121, &third, 200, &[], &document(0, 121, r#"["f1","u1"]"#));
    assert_eq!(consumer.poll_ask(at(121)).unwrap().why, Why::Moved);
    let fourth = consumer.poll_request(at(200)).unwrap();
    assert!(!fourth.headers.contains_key(IF_NONE_MATCH), "the last document came without a validator");
}

/// What a document said of a feed that joins later was passed over: it must come again.
#[test]
fn a_feed_that_joins_takes_the_whole_document() {
    let (mut consumer, _) = consumer();
    let first = consumer.poll_request(at(0)).unwrap();
    consumer.add_feed("https://a.example/2", at(0));
    let ask = consumer.poll_ask(at(0)).unwrap();
    answer(&mut consumer, 5, &first, 200, &VALIDATORS, &document(-60, 5, r#"["f2","u1"]"#));
    consumer.handle_answer(at(6), ask.feed, link("f2"), true);
    let second = consumer.poll_request(at(66)).unwrap();
    assert!(!second.headers.contains_key(IF_NONE_MATCH));
    answer(&mut consumer, 66, &second, 200, &VALIDATORS, &document(-60, 5, r#"["f2","u1"]"#));
    assert_eq!(consumer.poll_ask(at(66)).unwrap().url, "https://a.example/2");
}

#[test]
fn a_publisher_that_says_for_ever_that_nothing_changed_is_not_believed() {
    let (mut consumer, feed) = consumer();
    let mut now = 0;
    let mut warnings = Vec::new();
    while now < 3600 {
        if let Some(request) = consumer.poll_request(at(now)) {
            let known = request.headers.contains_key(IF_NONE_MATCH);
            let (status, body) = if known { (304, String::new()) } else { (200, document(-60, 0, "")) };
            answer(&mut consumer, now, &request, status, &VALIDATORS, &body);
        }
        while let Some(event) = consumer.poll_event() {
            warnings.push(format!("{event:?}"));
        }
        if let Some(ask) = consumer.poll_ask(at(now)) {
            assert_eq!(ask.feed, feed);
            return assert!(warnings.iter().any(|text| text.contains("polled plainly")), "{warnings:?}");
        }
        now += 10;
    }
    panic!("the feed is never polled plainly: {warnings:?}");
}

#[test]
fn an_unasked_for_304_and_every_other_status_is_a_failure() {
    for status in [304, 204, 206, 404, 500] {
        let (mut consumer, _) = consumer();
        let request = consumer.poll_request(at(0)).unwrap();
        answer(&mut consumer, 0, &request, status, &[], "");
        assert_eq!(failures(&mut consumer), 1, "{status}");
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    for (value, wait) in [("120", 120), ("Tue, 14 Nov 2023 22:23:20 GMT", 600), ("1", 20), ("soon", 20)] {
        let (mut consumer, _) = consumer();
        let request = consumer.poll_request(at(0)).unwrap();
        answer(&mut consumer, 0, &request, 503, &[(RETRY_AFTER, value)], "");
        assert!(consumer.poll_request(at(wait - 1)).is_none(), "{value}");
        assert!(consumer.poll_request(at(wait)).is_some(), "{value}");
    }
}

/// Sections 3 to 5: ids with slashes, of 129 characters, empty; no JSON; period 0; windows in the future.
#[test]
fn hostile_documents_move_no_feed_and_stop_nothing() {
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
        let (mut consumer, _) = consumer();
        let request = consumer.poll_request(at(0)).unwrap();
        answer(&mut consumer, 1, &request, 200, &[], &body);
        assert_eq!(failures(&mut consumer), usize::from(!is_document), "{body:.100}");
        assert!(consumer.poll_ask(at(1)).is_none(), "{body:.100}");
        assert!(consumer.poll_request(at(1000)).is_some(), "it is asked for again: {body:.100}");
    }
}

/// A window in the future would hide every update up to then: the feeds are asked by plain polling.
#[test]
fn a_window_that_jumps_into_the_future_is_not_believed() {
    let (mut consumer, _) = consumer();
    let first = consumer.poll_request(at(0)).unwrap();
    answer(&mut consumer, 1, &first, 200, &[], &document(-60, 1, ""));
    let second = consumer.poll_request(at(100)).unwrap();
    answer(&mut consumer, 100, &second, 200, &[], &document(40, 1_000_000, ""));
    assert_eq!(failures(&mut consumer), 1);
    // The next honest window is judged by what was known before.
    let third = consumer.poll_request(at(200)).unwrap();
    answer(&mut consumer, 200, &third, 200, &[], &document(0, 200, r#"["f1","u2"]"#));
    assert_eq!(consumer.poll_ask(at(200)).unwrap().why, Why::Moved);
}

/// A feed that announces another document with each answer takes no more memory each time.
#[test]
fn sources_that_are_left_make_room() {
    let (mut consumer, feed) = consumer();
    for round in 1..200 {
        let now = at(round * 100_000);
        let ask = consumer.poll_ask(now).unwrap();
        let links = vec![SupLink { url: format!("{SUP}?{round}"), id: "f1".into() }];
        consumer.handle_answer(now, ask.feed, Discovery { links, warnings: vec![] }, false);
        while consumer.poll_event().is_some() {}
        let request = consumer.poll_request(now).unwrap();
        assert_eq!(request.url, format!("{SUP}?{round}"));
        consumer.handle_end(now, request.id, Err(TransferError::Timeout("lost".into())));
    }
    assert_eq!(feed.index(), 0);
    assert!(consumer.state()["sources"].as_array().unwrap().len() <= 2);
}

#[test]
fn every_feed_can_be_asked_at_once_and_some_be_forgotten() {
    let (mut consumer, _) = consumer();
    consumer.add_feed("https://a.example/2", at(0));
    assert_eq!(consumer.poll_ask(at(0)).unwrap().why, Why::First);
    let state = consumer.to_json();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&state).unwrap(), consumer.state());
    assert!(Consumer::from_json(Settings::default(), "{}", |_| true).is_err());
    let mut consumer = Consumer::from_json(Settings::default(), &state, |url| url.ends_with("/1")).unwrap();
    let now = at(0) + SignedDuration::from_secs(5);
    assert!(consumer.poll_ask(now).is_none());
    consumer.ask_all();
    assert_eq!(consumer.poll_ask(now).unwrap().url, "https://a.example/1");
    assert!(consumer.poll_ask(now).is_none());
}

/// Documents with ever new updates and periods: the feed is asked, and memory stays as it is.
#[test]
fn floods_of_updates_and_periods_are_bounded() {
    let (mut consumer, _) = consumer();
    let mut sizes = Vec::new();
    for round in 0..20 {
        let now = round * 1000;
        let request = consumer.poll_request(at(now)).unwrap();
        let updates: Vec<String> = (0..5000).map(|n| format!(r#"["f1","{round}-{n}"]"#)).collect();
        let periods: Vec<String> = (1..5000).map(|n| format!(r#""{n}":"{SUP}?{n}""#)).collect();
        let body = document(now - 2000, now, &updates.join(","));
        let body = format!(r#"{},"available_periods":{{{}}}}}"#, &body[..body.len() - 1], periods.join(","));
        answer(&mut consumer, now, &request, 200, &[], &body);
        assert_eq!(failures(&mut consumer), 0);
        let ask = consumer.poll_ask(at(now)).unwrap();
        assert_eq!(ask.why, Why::Moved);
        consumer.handle_answer(at(now), ask.feed, link("f1"), true);
        sizes.push(consumer.to_json().len());
    }
    assert!(sizes.iter().all(|size| *size < 100_000), "{sizes:?}");
}
