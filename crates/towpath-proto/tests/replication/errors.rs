//! What bad input gets: a named error with the page's address and the entity's number, complete entities
//! before it told, the position kept.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use towpath_proto::change::Op;
use towpath_proto::follow::{Exchange, FollowError, Request, StartFrom};
use towpath_proto::replication::follow::Options;

use crate::consumer::{Consumer, Way, follow_once, once};
use crate::publisher::{BASE, Publisher, Response, item, time};

/// Five items on pages of two, a second apart.
fn publisher() -> Publisher {
    let mut publisher = Publisher::of(2);
    for second in 0..5 {
        publisher.put(second);
    }
    publisher.seal();
    publisher
}

fn page(number: u64) -> String {
    format!("{BASE}/pages/{number}")
}

/// One pass over a publisher, with an answer changed where `change` says so.
fn run(consumer: &mut Consumer, publisher: &Publisher, change: impl Fn(&Request, &mut Response)) {
    run_at(1000, consumer, publisher, change);
}

fn run_at(
    second: i64,
    consumer: &mut Consumer,
    publisher: &Publisher,
    change: impl Fn(&Request, &mut Response),
) {
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(second), |request| {
        let mut response = publisher.answer(request);
        change(request, &mut response);
        (response, Way::Pieces(100))
    });
    assert!(follower.is_finished());
}

/// Changes the second page in every answer; what then goes wrong, and what is told before and, once the
/// publisher is mended, after it.
fn broken(told_before: usize, change: impl Fn(&mut Response)) -> String {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    run(&mut consumer, &publisher, |request, response| {
        if request.url == page(2) {
            change(response);
        }
    });
    assert_eq!(consumer.told.len(), told_before);
    assert_eq!(consumer.failed.len(), 1, "{:?}", consumer.failed);
    let error = consumer.failed.remove(0).to_string();
    assert!(error.starts_with(BASE), "{error}");
    consumer.crash();
    assert_eq!(consumer.told.len(), told_before, "the position is kept");
    run(&mut consumer, &publisher, |_, _| {});
    assert_eq!(consumer.positions(), publisher.content_ids());
    consumer.assert_calm();
    error
}

fn body(response: &mut Response, change: impl Fn(String) -> String) {
    let text = String::from_utf8(response.body.to_vec()).unwrap();
    response.body = Bytes::from(change(text));
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    headers.insert(HeaderName::from_static(name), value.parse().unwrap());
}

#[test]
fn case_e_a_page_of_another_type_or_without_headers() {
    let html = broken(0, |r| set(&mut r.headers, "content-type", "text/html"));
    assert!(html.contains("not multipart"), "{html}");
    let error = broken(0, |r| drop(r.headers.remove("content-type")));
    assert!(error.contains("no Content-Type"), "{error}");
    let error = broken(0, |r| set(&mut r.headers, "content-type", "multipart/mixed"));
    assert!(error.contains("no boundary"), "{error}");
    let error = broken(0, |r| drop(r.headers.remove("link")));
    assert!(error.contains("rel=self"), "{error}");
    let error = broken(0, |r| drop(r.headers.remove("last-modified")));
    assert!(error.contains("no Last-Modified"), "{error}");
    let error = broken(0, |r| set(&mut r.headers, "last-modified", "yesterday"));
    assert!(error.contains("\"yesterday\" is not an HTTP date"), "{error}");
    let error = broken(0, |r| r.status = 500);
    assert!(error.contains("answers 500"), "{error}");
}

/// On the way back pages are only asked for by HEAD, so these are found by GET, after the first page.
fn broken_by_get(told: usize, change: impl Fn(&mut Response)) -> String {
    broken(told, |response| {
        if !response.body.is_empty() {
            change(response);
        }
    })
}

#[test]
fn case_e_and_f_entities_with_wrong_or_missing_headers_are_named() {
    for (from, to, message) in [
        (
            "Content-Type: text/plain\r\nContent-ID: <4@",
            "X: y\r\nContent-ID: <4@",
            "entity 1 has no Content-Type",
        ),
        ("Content-ID: <4@news>", "X: y", "entity 1 has no Content-ID"),
        ("Last-Modified: Tue, 14 Nov 2023 22:13:23 GMT", "X: y", "entity 1 has no Last-Modified"),
        ("14 Nov 2023 22:13:23 GMT", "soon", "entity 1: Last-Modified: \"Tue, soon\""),
        ("\"item 4\"", "item 4", "entity 1: Towpath-Item"),
        ("{\"id\":\"item 4\"}", "body", "entity 1: Towpath-Item"),
        (
            "Content-Length: 21\r\nTowpath-Item: {\"id\":\"item 4\"}",
            "Content-Length: 18",
            "entity 1 announces",
        ),
    ] {
        let error = broken_by_get(3, |r| body(r, |text| text.replace(from, to)));
        assert!(error.contains(message), "{error}");
    }
    let cut = |text: String| {
        let at = text.rfind("http-equiv=PUT").unwrap();
        format!("{}{}", &text[..at], text[at..].replacen("PUT", "CUT", 1))
    };
    let error = broken_by_get(3, |r| body(r, cut));
    assert!(error.contains("entity 1: Operation-Type \"CUT\""), "{error}");
}

#[test]
fn case_e_truncated_and_garbled_pages_give_their_whole_entities_first() {
    let error = broken_by_get(3, |r| r.body.truncate(r.body.len() - 70));
    assert!(error.contains("entity 1: the body ends at byte"), "{error}");
    let error = broken_by_get(4, |r| r.body.truncate(r.body.len() - 2));
    assert!(error.contains("entity 2: the body ends at byte"), "{error}");
    let garble = |text: String| format!("{}..", text.strip_suffix("--").unwrap());
    let error = broken_by_get(4, |r| body(r, garble));
    assert!(error.contains("entity 2: a delimiter is followed by something else"), "{error}");
}

#[test]
fn a_stalled_or_shortened_body_is_an_error_of_the_transfer() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(0), |request| {
        let response = publisher.answer(request);
        let cut = Way::Cut(response.body.len() - response.body.len().min(100));
        (response, if request.url == page(1) { cut } else { Way::Pieces(100) })
    });
    assert!(matches!(&consumer.failed[..], [FollowError::Transfer { url, .. }] if *url == page(1)));
    assert_eq!(consumer.told.len(), 1);
}

#[test]
fn entities_over_the_limit_are_refused_without_being_held() {
    let mut publisher = publisher();
    publisher.append(Op::Put, item("large", &"x".repeat(5000)), time(6));
    let mut consumer = Consumer::default();
    let options = Options { max_entity: 4000, ..once() };
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options);
    consumer.drive(&mut follower, time(0), |r| (publisher.answer(r), Way::Pieces(100)));
    assert_eq!(consumer.told.len(), 5);
    assert!(consumer.failed[0].to_string().contains("entity 1 is larger than 4000 bytes"));
}

fn links(response: &mut Response, lines: &[String]) {
    response.headers.remove("link");
    for line in lines {
        response.headers.append("link", line.parse().unwrap());
    }
}

#[test]
fn pagination_a_page_that_links_to_itself_or_back_and_forth() {
    let link = |number, rel: &str| format!("<{}>; rel={rel}", page(number));
    let error = broken(0, |r| links(r, &[link(2, "self"), link(2, "prev"), link(3, "next")]));
    assert!(error.contains("match") || error.contains("loop"), "{error}");
    let error = broken(0, |r| links(r, &[link(2, "self"), link(3, "prev"), link(3, "next")]));
    assert!(error.contains("match") || error.contains("loop"), "{error}");
    let error = broken(0, |r| links(r, &[link(2, "self"), link(1, "prev")]));
    assert!(error.contains("no Link header with rel=next"), "{error}");
    // Forward: the list led here and now leads elsewhere.
    let back = |r: &mut Response| links(r, &[link(2, "self"), link(1, "prev"), link(2, "next")]);
    let error = broken_by_get(4, back);
    assert!(error.contains("loop"), "{error}");
    let astray = |r: &mut Response| links(r, &[link(2, "self"), link(3, "prev"), link(3, "next")]);
    let error = broken_by_get(2, astray);
    assert!(error.contains("do not match"), "{error}");
}

#[test]
fn last_modified_timestamps_that_go_backwards_are_reported_and_following_goes_on() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    run(&mut consumer, &publisher, |request, response| {
        if request.url == page(2) {
            body(response, |text| text.replace("22:13:23", "22:13:20"));
        }
    });
    assert_eq!(consumer.positions(), publisher.content_ids());
    assert_eq!(consumer.warnings.len(), 1);
    let expected = format!("{}: entity 1: timestamps go backwards", page(2));
    assert!(consumer.warnings[0].starts_with(&expected), "{:?}", consumer.warnings);
}

#[test]
fn immutability_a_changed_page_is_named() {
    let mut publisher = publisher();
    let mut consumer = follow_once(&publisher, StartFrom::Beginning, None);
    publisher.log[4].item = item("item 5", "something else");
    publisher.put(9);
    run(&mut consumer, &publisher, |_, _| {});
    assert_eq!(consumer.positions(), publisher.content_ids(), "following goes on after the place");
    let expected = format!("{}: a published page was changed, at entity 0", page(3));
    assert!(consumer.incomplete[0].starts_with(&expected), "{:?}", consumer.incomplete);
    // The last entity has another name, or is gone: from its time on everything is told again.
    for gone in [false, true] {
        let mut consumer = follow_once(&publisher, StartFrom::Beginning, None);
        publisher.log[5].item = item("item 6", if gone { "again" } else { "other" });
        run(&mut consumer, &publisher, |request, response| {
            if request.url == page(3) && !response.body.is_empty() {
                let renamed = |text: String| text.replace("<6@news>", "<6b@news>");
                if gone { *response = Response::status(410) } else { body(response, renamed) }
            }
        });
        assert!(!consumer.incomplete.is_empty() || !consumer.failed.is_empty());
        assert_eq!(consumer.incomplete.iter().any(|i| i.contains("missing content ID")), !gone);
    }
}

#[test]
fn consumers_report_timestamps_not_old_enough_and_missing_content_ids() {
    let publisher = publisher();
    let early = follow_once(&publisher, StartFrom::Time(time(-5)), None);
    assert_eq!(early.told.len(), 5);
    let expected = format!("{}: timestamps not old enough", page(1));
    assert!(early.incomplete[0].starts_with(&expected), "{:?}", early.incomplete);
    // The first entity is older: proof enough (decision 7).
    let proven = follow_once(&publisher, StartFrom::Time(time(1)), None);
    assert_eq!(proven.positions(), publisher.content_ids()[1..]);
    proven.assert_calm();
    let unknown = follow_once(&publisher, StartFrom::Position("<77@news>".into()), None);
    assert_eq!(unknown.told.len(), 0);
    assert!(matches!(&unknown.failed[..], [FollowError::Usage(text)] if text.contains("missing content ID")));
    let known = follow_once(&publisher, StartFrom::Position("<2@news>".into()), None);
    assert_eq!(known.positions(), publisher.content_ids()[2..]);
    known.assert_calm();
}

#[test]
fn starts_from_now_and_from_an_empty_feed() {
    let mut publisher = Publisher::of(2);
    let mut consumer = follow_once(&publisher, StartFrom::Now, None);
    consumer.assert_calm();
    publisher.put(0);
    run(&mut consumer, &publisher, |_, _| {});
    assert_eq!(consumer.told.len(), 1, "what comes after an empty feed is new");
    let mut consumer = follow_once(&publisher, StartFrom::Now, None);
    assert_eq!(consumer.told.len(), 0);
    publisher.put(0);
    publisher.put(0);
    publisher.seal();
    run(&mut consumer, &publisher, |_, _| {});
    assert_eq!(consumer.positions(), ["<2@news>", "<3@news>"]);
    for status in [204, 404] {
        let mut consumer = Consumer::default();
        run(&mut consumer, &publisher, |_, r| {
            *r = Response { body: r.body.clone(), ..Response::status(status) }
        });
        assert_eq!(consumer.failed.len(), usize::from(status == 404), "404 without the word is an error");
    }
}

#[test]
fn a_page_that_is_gone_in_the_middle_of_a_crawl_begins_it_again_once() {
    let publisher = publisher();
    for times in [1, 2] {
        let left = std::cell::Cell::new(times);
        let mut consumer = Consumer::default();
        run(&mut consumer, &publisher, |request, response| {
            if request.url == page(2) && left.get() > 0 {
                left.set(left.get() - 1);
                *response = Response::status(404);
            }
        });
        assert_eq!(consumer.failed.len(), times - 1);
        assert_eq!(consumer.told.len(), if times == 1 { 5 } else { 0 });
    }
}

/// Decision 8: "404 in mid-crawl restarts once", however much of what is known is read again on the way.
#[test]
fn pagination_a_next_link_that_leads_nowhere_fails_and_waits_longer_and_longer() {
    let publisher = publisher();
    for (status, resumed) in [(404, false), (410, true)] {
        let mut consumer = Consumer::default();
        if resumed {
            consumer = follow_once(&publisher, StartFrom::Beginning, None);
        }
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, Options::default());
        let mut now = time(1000);
        for wait in [5, 10, 20] {
            consumer.requests.clear();
            consumer.drive(&mut follower, now, |request| {
                let mut response = publisher.answer(request);
                if request.url == page(4) {
                    response = Response::status(status);
                } else if response.headers["link"].to_str().unwrap().contains("pages/3") {
                    response.headers.append("link", format!("<{}>; rel=next", page(4)).parse().unwrap());
                    response.status = 200;
                    response.body = publisher.answer(&Request::get(request.id, page(3))).body;
                }
                (response, Way::Pieces(100))
            });
            let until = follower.poll_timeout().unwrap();
            assert_eq!(until.as_second() - now.as_second(), wait);
            assert!(consumer.requests.len() < 20, "{:?}", consumer.requests);
            now = until;
        }
        assert_eq!(consumer.positions(), publisher.content_ids());
        let expected = FollowError::Status { url: page(4), status };
        assert_eq!(consumer.failed, vec![expected; 3]);
        assert_eq!(consumer.incomplete, Vec::<String>::new());
    }
}

/// The publisher began anew: its Content-IDs are those of other entities now. "Without content ID: first entity
/// with given timestamp -> at least once semantics."
#[test]
fn consumer_algorithm_a_publisher_that_began_anew_is_followed_from_the_time_on() {
    for (old, new) in [(5, 8), (5, 5), (5, 3), (2, 7)] {
        let mut first = Publisher::of(5);
        (0..old).for_each(|second| first.put(second));
        first.seal();
        let mut consumer = follow_once(&first, StartFrom::Beginning, None);
        consumer.told.clear();
        let mut second = Publisher::of(5);
        (0..new).for_each(|n| second.put(100 + n));
        second.seal();
        run(&mut consumer, &second, |_, _| {});
        // One that ends before the position may be a server that is behind: it is not believed for half a minute.
        for second_of_day in [1010, 1029, 1030] {
            if consumer.failed.is_empty() {
                break;
            }
            assert!(new < old && consumer.told.is_empty(), "{old} {new}: {:?}", consumer.failed);
            consumer.failed.clear();
            run_at(second_of_day, &mut consumer, &second, |_, _| {});
        }
        assert_eq!(consumer.positions(), second.content_ids(), "{old} {new}");
        assert!(!consumer.incomplete.is_empty() && consumer.failed.is_empty());
        // From there on it is as if nothing had happened.
        consumer.incomplete.clear();
        second.put(200);
        second.seal();
        run(&mut consumer, &second, |_, _| {});
        assert_eq!(consumer.positions(), second.content_ids());
        consumer.assert_calm();
    }
}

/// One of several servers at an address is behind the others, and says so: whatever it does not have is not gone.
#[test]
fn resume_consumption_a_server_that_says_it_is_behind_is_not_believed() {
    let mut ahead = Publisher::of(2);
    (0..9).for_each(|second| ahead.put(second));
    ahead.seal();
    for entities in 0..9 {
        let mut behind = Publisher::of(2);
        (0..entities).for_each(|second| behind.put(second));
        behind.seal();
        let mut consumer = follow_once(&ahead, StartFrom::Beginning, None);
        consumer.told.clear();
        for second in [1000, 1020, 1040, 100_000] {
            run_at(second, &mut consumer, &behind, |_, response| {
                response.headers.insert("towpath-replica-age", "unknown".parse().unwrap());
            });
        }
        assert_eq!((consumer.told.len(), &consumer.incomplete), (0, &vec![]), "{entities}");
        // It goes on with the others as if nothing had happened.
        ahead.put(100 + entities);
        ahead.seal();
        consumer.failed.clear();
        run_at(100_001, &mut consumer, &ahead, |_, _| {});
        assert_eq!(consumer.positions(), ahead.content_ids()[ahead.content_ids().len() - 1..], "{entities}");
        consumer.assert_calm();
    }
}

#[test]
fn a_publisher_without_head_is_crawled_by_get() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    run(&mut consumer, &publisher, |request, response| {
        if request.method == http::Method::HEAD {
            *response = Response::status(405);
        }
    });
    assert_eq!(consumer.told.len(), 5);
    consumer.assert_calm();
}

#[test]
fn resume_consumption_costs_one_conditional_request_when_nothing_changed() {
    let publisher = publisher();
    let mut consumer = follow_once(&publisher, StartFrom::Beginning, None);
    consumer.requests.clear();
    run(&mut consumer, &publisher, |request, response| {
        assert_eq!(response.status, 304, "{}", request.url);
    });
    assert_eq!(consumer.requests, [format!("GET {}", page(3))]);
}

#[test]
fn retries_wait_longer_and_longer_and_then_succeed() {
    let publisher = publisher();
    let mut consumer = Consumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, Options::default());
    let mut now = time(0);
    for wait in [5, 10, 20] {
        consumer.drive(&mut follower, now, |_| (Response::status(503), Way::Lost));
        let until = follower.poll_timeout().unwrap();
        assert_eq!(until.as_second() - now.as_second(), wait);
        assert!(follower.poll_request(now).is_none());
        now = until;
    }
    consumer.drive(&mut follower, now, |r| (publisher.answer(r), Way::Pieces(99)));
    assert_eq!(consumer.told.len(), 5);
    assert_eq!(follower.poll_timeout().unwrap().as_second() - now.as_second(), 30);
    assert!(!follower.is_finished());
}

/// RFC 9110, section 10.2.3: the publisher says when to come back.
#[test]
fn retry_after_is_honoured_where_it_is_longer() {
    let mut consumer = Consumer::default();
    for (asked, wait) in [("120", 120), ("1", 5), ("soon", 5)] {
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, Options::default());
        consumer.drive(&mut follower, time(0), |_| {
            let mut busy = Response::status(503);
            busy.headers.insert("retry-after", asked.parse().unwrap());
            (busy, Way::Pieces(100))
        });
        let until = follower.poll_timeout().unwrap();
        assert_eq!(until.as_second() - time(0).as_second(), wait, "{asked}");
        consumer.drive(&mut follower, until, |_| (Response::status(503), Way::Lost));
        let next = follower.poll_timeout().unwrap();
        assert_eq!(next.as_second() - until.as_second(), 10, "what was asked for once does not stay");
    }
}

#[test]
fn a_state_of_another_protocol_is_refused() {
    let state = Some(serde_json::json!({"cursor": "sha256:0"}));
    let consumer = Consumer { state, ..Consumer::default() };
    let result = towpath_proto::replication::follow::ReplicationFollower::new(
        BASE,
        StartFrom::Beginning,
        consumer.state,
        once(),
    );
    assert!(matches!(result, Err(FollowError::Usage(_))));
}
