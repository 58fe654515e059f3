//! Invalid input gives an error with the page's URL and the entity's number.
//!
//! Complete entities before it are delivered, and the position is kept.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};
use towpath_proto::Content;
use towpath_proto::attachment::attachments;
use towpath_proto::change::Op;
use towpath_proto::follow::{Exchange, FollowError, Monotonic, Now, Request, StartFrom};
use towpath_proto::replication::follow::ReplicationOptions;

use crate::consumer::{RecordingConsumer, ResponseDelivery, follow_once, once};
use crate::publisher::{BASE, MemoryPublisher, StoredResponse, item, time};

/// Returns a publisher of five items on pages of two, a second apart.
fn publisher() -> MemoryPublisher {
    let mut publisher = MemoryPublisher::of(2);
    for second in 0..5 {
        publisher.put(second);
    }
    publisher.seal();
    publisher
}

fn page(number: u64) -> String {
    format!("{BASE}/pages/{number}")
}

/// Performs a single pass over a publisher whose responses `change` modifies.
fn run(
    consumer: &mut RecordingConsumer,
    publisher: &MemoryPublisher,
    change: impl Fn(&Request, &mut StoredResponse),
) {
    run_at(1000, consumer, publisher, change);
}

fn run_at(
    second: i64,
    consumer: &mut RecordingConsumer,
    publisher: &MemoryPublisher,
    change: impl Fn(&Request, &mut StoredResponse),
) {
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(second), |request| {
        let mut response = publisher.answer(request);
        change(request, &mut response);
        (response, ResponseDelivery::Pieces(100))
    });
    assert!(follower.is_finished());
}

/// Changes the second page in every response and returns the error.
///
/// Asserts the number of changes before the error, and that all arrive after the publisher is repaired.
fn broken(told_before: usize, change: impl Fn(&mut StoredResponse)) -> String {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
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

fn body(response: &mut StoredResponse, change: impl Fn(String) -> String) {
    let text = String::from_utf8(response.body.to_vec()).unwrap();
    response.body = Bytes::from(change(text));
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    headers.insert(HeaderName::from_static(name), value.parse().unwrap());
}

#[test]
fn case_e_a_page_of_another_type_or_without_headers() {
    let html = broken(0, |r| set(&mut r.headers, "content-type", "text/html"));
    assert!(
        html.contains("answers an HTML page: the content type is \"text/html\", not multipart; give"),
        "{html}"
    );
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

/// Like [`broken`], for bodies only. The crawl uses HEAD, so these errors occur in the walk, after page 1.
fn broken_by_get(told: usize, change: impl Fn(&mut StoredResponse)) -> String {
    broken(told, |response| {
        // HEAD has no body and stays intact, so the crawl passes.
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
    // Both entities are whole; only the closing "--" is missing.
    let error = broken_by_get(4, |r| r.body.truncate(r.body.len() - 2));
    assert!(error.contains("entity 2: the body ends at byte"), "{error}");
    let garble = |text: String| format!("{}..", text.strip_suffix("--").unwrap());
    let error = broken_by_get(4, |r| body(r, garble));
    assert!(error.contains("entity 2: a delimiter is followed by something else"), "{error}");
}

#[test]
fn a_stalled_or_shortened_body_is_an_error_of_the_transfer() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
    consumer.drive(&mut follower, time(0), |request| {
        let response = publisher.answer(request);
        let cut = ResponseDelivery::Cut(response.body.len() - response.body.len().min(100));
        (response, if request.url == page(1) { cut } else { ResponseDelivery::Pieces(100) })
    });
    assert!(matches!(&consumer.failed[..], [FollowError::Transfer { url, .. }] if *url == page(1)));
    // Only the first entity of the first page had arrived whole.
    assert_eq!(consumer.told.len(), 1);
}

#[test]
fn entities_over_the_limit_are_refused_without_buffering_them() {
    let mut publisher = publisher();
    publisher.append(Op::Put, item("large", &"x".repeat(5000)), time(6));
    let mut consumer = RecordingConsumer::default();
    let options = ReplicationOptions { max_entity: 4000, ..once() };
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, options);
    consumer.drive(&mut follower, time(0), |r| (publisher.answer(r), ResponseDelivery::Pieces(100)));
    assert_eq!(consumer.told.len(), 5);
    assert!(consumer.failed[0].to_string().contains("entity 1 is larger than 4000 bytes"));
}

fn large_options(max_entity: usize) -> ReplicationOptions {
    ReplicationOptions { max_entity, large_base: Some("file:///large/".into()), ..once() }
}

/// A content above the limit goes to a file in pieces; its item names the file.
#[test]
fn entities_over_the_limit_become_files() {
    let content = "x".repeat(5000);
    let name = hex::encode(Sha256::digest(&content));
    for pieces in [1, 100, 4001, 100_000] {
        let mut publisher = publisher();
        publisher.append(Op::Put, item("large", &content), time(6));
        publisher.append(Op::Put, item("small", "x"), time(7));
        publisher.seal();
        let mut consumer = RecordingConsumer::default();
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, large_options(4000));
        // Cut off within the large content first: its number begins again.
        let mut cut = true;
        for _ in 0..2 {
            consumer.drive(&mut follower, time(0), |r| {
                let response = publisher.answer(r);
                let is_long = response.body.len() > 5000;
                let way = if is_long && std::mem::take(&mut cut) {
                    ResponseDelivery::Cut(4600)
                } else {
                    ResponseDelivery::Pieces(pieces)
                };
                (response, way)
            });
            follower = consumer.follower(BASE, StartFrom::Beginning, large_options(4000));
        }
        assert_eq!(consumer.told.len(), 7, "{:?}", consumer.failed);
        assert_eq!(consumer.files, [(name.clone(), content.clone().into_bytes())].into());
        let large = consumer.told.iter().find(|change| change.item.id == "large").unwrap();
        let file = &attachments(&large.item)[0];
        assert_eq!((file.url.as_str(), file.size), (format!("file:///large/{name}").as_str(), Some(5000)));
        assert_eq!(file.sha256.as_ref(), Some(&name));
        assert_eq!((&file.media_type.as_deref(), &large.item.content), (&Some("text/plain"), &None));
        // The page is read again up to the position, which the content is a part of.
        let whole = consumer.told.len();
        let mut again = consumer.follower(BASE, StartFrom::Beginning, large_options(4000));
        consumer.drive(&mut again, time(9), |r| (publisher.answer(r), ResponseDelivery::Pieces(pieces)));
        assert_eq!((consumer.told.len(), &consumer.incomplete), (whole, &vec![]));
    }
}

/// A patch has no content of its own to put into a file.
#[test]
fn a_patch_over_the_limit_is_refused() {
    let mut publisher = publisher();
    let patch = Content::new("application/merge-patch+json", format!("{{\"a\":\"{}\"}}", "x".repeat(5000)));
    publisher.append(Op::Patch, item("small", "{}"), time(6)).patch = Some(patch);
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, large_options(4000));
    consumer.drive(&mut follower, time(0), |r| (publisher.answer(r), ResponseDelivery::Pieces(100)));
    assert!(consumer.failed[0].to_string().contains("is larger than 4000 bytes"), "{:?}", consumer.failed);
}

fn links(response: &mut StoredResponse, lines: &[String]) {
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
    // Along next: the links changed between crawl and walk.
    let back = |r: &mut StoredResponse| links(r, &[link(2, "self"), link(1, "prev"), link(2, "next")]);
    let error = broken_by_get(4, back);
    assert!(error.contains("loop"), "{error}");
    let astray = |r: &mut StoredResponse| links(r, &[link(2, "self"), link(3, "prev"), link(3, "next")]);
    let error = broken_by_get(2, astray);
    assert!(error.contains("do not match"), "{error}");
}

#[test]
fn last_modified_timestamps_that_go_backwards_are_reported() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
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
    // The last entity has another Content-ID, or is gone: everything from its time on is delivered again.
    for gone in [false, true] {
        let mut consumer = follow_once(&publisher, StartFrom::Beginning, None);
        publisher.log[5].item = item("item 6", if gone { "again" } else { "other" });
        run(&mut consumer, &publisher, |request, response| {
            if request.url == page(3) && !response.body.is_empty() {
                let renamed = |text: String| text.replace("<6@news>", "<6b@news>");
                if gone { *response = StoredResponse::status(410) } else { body(response, renamed) }
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
    // The first entity is older than the start, which proves completeness.
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
    let mut publisher = MemoryPublisher::of(2);
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
        let mut consumer = RecordingConsumer::default();
        run(&mut consumer, &publisher, |_, r| {
            *r = StoredResponse { body: r.body.clone(), ..StoredResponse::status(status) }
        });
        assert_eq!(consumer.failed.len(), usize::from(status == 404), "404 without the word is an error");
    }
}

#[test]
fn a_page_that_is_gone_in_the_middle_of_a_crawl_begins_it_again_once() {
    let publisher = publisher();
    for times in [1, 2, 3_usize] {
        let left = std::cell::Cell::new(times);
        let mut consumer = RecordingConsumer::default();
        run(&mut consumer, &publisher, |request, response| {
            if request.url == page(2) && left.get() > 0 {
                left.set(left.get() - 1);
                *response = StoredResponse::status(404);
            }
        });
        // The last attempt is by GET.
        let is_missing = times == 3;
        assert_eq!((consumer.incomplete.len(), consumer.failed.len()), (usize::from(is_missing), 0));
        assert_eq!(consumer.told.len(), if is_missing { 1 } else { 5 });
    }
}

/// A `prev` that leads nowhere costs what is behind it, and not the pages that are there.
#[test]
fn pagination_a_dangling_prev_link_is_incomplete() {
    let publisher = publisher();
    for status in [403, 404, 410] {
        let missing = |request: &Request, response: &mut StoredResponse| {
            if request.url == page(1) {
                *response = StoredResponse::status(status);
            }
        };
        let mut consumer = RecordingConsumer::default();
        run(&mut consumer, &publisher, missing);
        assert_eq!(consumer.positions(), publisher.content_ids()[2..], "{status}: {:?}", consumer.failed);
        let expected = format!("{}: its prev {} answers {status}", page(2), page(1));
        assert!(matches!(&consumer.incomplete[..], [text] if text.starts_with(&expected)), "{status}");
        consumer.incomplete.clear();
        run(&mut consumer, &publisher, missing);
        consumer.assert_calm();
        // A start within the pages that are there has lost nothing, which their first entity proves.
        for (second, rest, incomplete) in [(3, 3, 0), (2, 2, 1), (0, 2, 1)] {
            let mut consumer = RecordingConsumer::default();
            let mut follower = consumer.follower(BASE, StartFrom::Time(time(second)), once());
            consumer.drive(&mut follower, time(1000), |request| {
                let mut response = publisher.answer(request);
                missing(request, &mut response);
                (response, ResponseDelivery::Pieces(100))
            });
            assert_eq!(consumer.positions(), publisher.content_ids()[rest..], "{status} {second}");
            assert_eq!((consumer.incomplete.len(), consumer.failed.len()), (incomplete, 0), "{second}");
        }
    }
    // A replica that lags may have the page later.
    let mut consumer = RecordingConsumer::default();
    run(&mut consumer, &publisher, |request, response| {
        if request.url == page(1) {
            *response = StoredResponse::status(404);
            response.headers.insert("towpath-replica-age", "unknown".parse().unwrap());
        }
    });
    assert_eq!((consumer.told.len(), consumer.incomplete.len(), consumer.failed.len()), (0, 0, 1));
}

/// A 404 during a crawl restarts it once. Reading known entities again must not reset that.
#[test]
fn pagination_a_dangling_next_link_fails_with_backoff() {
    let publisher = publisher();
    for (status, resumed) in [(404, false), (410, true)] {
        let mut consumer = RecordingConsumer::default();
        if resumed {
            consumer = follow_once(&publisher, StartFrom::Beginning, None);
        }
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, ReplicationOptions::default());
        let mut now = time(1000);
        for wait in [5, 10, 20] {
            consumer.requests.clear();
            consumer.drive(&mut follower, now, |request| {
                let mut response = publisher.answer(request);
                if request.url == page(4) {
                    response = StoredResponse::status(status);
                } else if response.headers["link"].to_str().unwrap().contains("pages/3") {
                    response.headers.append("link", format!("<{}>; rel=next", page(4)).parse().unwrap());
                    response.status = 200;
                    response.body = publisher.answer(&Request::get(request.id, page(3))).body;
                }
                (response, ResponseDelivery::Pieces(100))
            });
            let until = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
            assert_eq!(until.as_second() - now.as_second(), wait);
            assert!(consumer.requests.len() < 20, "{:?}", consumer.requests);
            now = until;
        }
        assert_eq!(consumer.positions(), publisher.content_ids());
        let expected = FollowError::status(page(4), status);
        assert_eq!(consumer.failed, vec![expected; 3]);
        assert_eq!(consumer.incomplete, Vec::<String>::new());
    }
}

/// The publisher was reset: its Content-IDs now name other entities. "Without content ID: first entity with given
/// timestamp -> at least once semantics."
#[test]
fn consumer_algorithm_a_reset_publisher_is_followed_from_the_last_time() {
    // Longer than before, as long, shorter, and much longer.
    for (old, new) in [(5, 8), (5, 5), (5, 3), (2, 7)] {
        let mut first = MemoryPublisher::of(5);
        (0..old).for_each(|second| first.put(second));
        first.seal();
        let mut consumer = follow_once(&first, StartFrom::Beginning, None);
        consumer.told.clear();
        let mut second = MemoryPublisher::of(5);
        (0..new).for_each(|n| second.put(100 + n));
        second.seal();
        run(&mut consumer, &second, |_, _| {});
        // A feed that ends before the position may be a lagging replica, so it is ignored for 30 seconds.
        for second_of_day in [1010, 1029, 1030] {
            if consumer.failed.is_empty() {
                break;
            }
            assert!(new < old && consumer.told.is_empty(), "{old} {new}: {:?}", consumer.failed);
            let says_why = |failed: &FollowError| failed.to_string().contains("ends before the last entity");
            assert!(consumer.failed.iter().all(says_why), "{:?}", consumer.failed);
            consumer.failed.clear();
            run_at(second_of_day, &mut consumer, &second, |_, _| {});
        }
        assert_eq!(consumer.positions(), second.content_ids(), "{old} {new}");
        assert!(!consumer.incomplete.is_empty() && consumer.failed.is_empty());
        assert_eq!(consumer.resets.len(), 1, "{old} {new}: {:?}", consumer.resets);
        // Afterwards following is exactly once again.
        consumer.incomplete.clear();
        consumer.resets.clear();
        second.put(200);
        second.seal();
        run(&mut consumer, &second, |_, _| {});
        assert_eq!(consumer.positions(), second.content_ids());
        consumer.assert_calm();
    }
}

/// Two publishers, or two runs of one, give Content-IDs and times alike within a second.
#[test]
fn a_publisher_that_began_anew_within_the_second_is_no_changed_page() {
    for (page_entities, old, new) in [(2, 3, 3), (2, 3, 5), (3, 4, 5), (9, 4, 4), (9, 4, 6)] {
        // The second one's log may also begin in this second and go on in the next.
        for in_second in 0..=new {
            let case = format!("{page_entities}, {old}, {new}, {in_second}");
            let mut first = MemoryPublisher::of(page_entities);
            for n in 0..old {
                first.append(Op::Put, item(&format!("old {n}"), "x"), time(0));
            }
            first.seal();
            let mut consumer = follow_once(&first, StartFrom::Beginning, None);
            consumer.told.clear();
            let mut second = MemoryPublisher::of(page_entities);
            for n in 0..new {
                let now = time(i64::from(n >= in_second));
                second.append(Op::Put, item(&format!("new {n}"), "x"), now);
            }
            second.seal();
            run(&mut consumer, &second, |_, _| {});
            assert_eq!(consumer.positions(), second.content_ids(), "{case}");
            assert_eq!(consumer.resets.len(), 1, "{case}: {:?}", consumer.incomplete);
            // Afterwards following is exactly once again.
            consumer.incomplete.clear();
            consumer.resets.clear();
            second.append(Op::Put, item("newest", "x"), time(0));
            second.seal();
            run(&mut consumer, &second, |_, _| {});
            assert_eq!(consumer.positions(), second.content_ids(), "{case}");
            consumer.assert_calm();
        }
    }
}

/// An entity that was changed in a feed with older ones: following goes on after it, and nothing is told again.
#[test]
fn immutability_a_changed_last_entity_is_named() {
    let mut publisher = publisher();
    let mut consumer = follow_once(&publisher, StartFrom::Beginning, None);
    let last = publisher.log.len() - 1;
    publisher.log[last].item = item("another", "something else");
    publisher.put(9);
    run(&mut consumer, &publisher, |_, _| {});
    assert_eq!(consumer.positions(), publisher.content_ids());
    assert!(consumer.resets.is_empty());
    assert!(consumer.incomplete[0].contains("a published page was changed"), "{:?}", consumer.incomplete);
    assert_eq!(consumer.incomplete.len(), 1, "{:?}", consumer.incomplete);
}

/// The page of the position never was: the publisher says so, and has begun anew with fewer pages or none.
#[test]
fn a_publisher_that_never_had_the_page_has_begun_anew() {
    for (entities, says_so) in [(0, true), (3, true), (3, false)] {
        let mut first = MemoryPublisher::of(2);
        (0..9).for_each(|second| first.put(second));
        first.seal();
        let mut consumer = follow_once(&first, StartFrom::Beginning, None);
        consumer.told.clear();
        let mut second = MemoryPublisher::of(2);
        // Older than the position: entities may keep the times of another log.
        (0..entities).for_each(|n| second.put(n));
        second.seal();
        for now in [1000, 1030, 1060] {
            run_at(now, &mut consumer, &second, |request, response| {
                if says_so && response.status == 404 && request.url.contains("/pages/") {
                    response.headers.insert("towpath-reset", "position-unknown".parse().unwrap());
                }
            });
        }
        assert_eq!(consumer.resets.len(), usize::from(says_so), "{entities}: {:?}", consumer.incomplete);
        assert_eq!(consumer.told.len(), if says_so { usize::try_from(entities).unwrap() } else { 0 });
    }
}

/// A replica that states its lag (`Towpath-Replica-Age`) never causes a reset, however long it lags.
#[test]
fn resume_consumption_a_replica_that_states_its_lag_is_ignored() {
    let mut ahead = MemoryPublisher::of(2);
    (0..9).for_each(|second| ahead.put(second));
    ahead.seal();
    for entities in 0..9 {
        let mut behind = MemoryPublisher::of(2);
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
        // With an up-to-date server, following continues without loss or repetition.
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
    for status in [400, 403, 404, 405, 500, 501] {
        let mut consumer = RecordingConsumer::default();
        run(&mut consumer, &publisher, |request, response| {
            if request.method == http::Method::HEAD {
                *response = StoredResponse::status(status);
            }
        });
        assert_eq!(consumer.told.len(), 5, "{status}: {:?}", consumer.failed);
        consumer.assert_calm();
        // An error of GET, too, is the feed's.
        let mut consumer = RecordingConsumer::default();
        run(&mut consumer, &publisher, |_, response| *response = StoredResponse::status(status));
        assert_eq!(consumer.failed, [FollowError::status(BASE.to_owned(), status)], "{status}");
    }
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
fn retries_back_off_exponentially_and_then_succeed() {
    let publisher = publisher();
    let mut consumer = RecordingConsumer::default();
    let mut follower = consumer.follower(BASE, StartFrom::Beginning, ReplicationOptions::default());
    let mut now = time(0);
    for wait in [5, 10, 20] {
        consumer.drive(&mut follower, now, |_| (StoredResponse::status(503), ResponseDelivery::Lost));
        let until = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        assert_eq!(until.as_second() - now.as_second(), wait);
        assert!(follower.poll_request(Now::simulated(now)).is_none());
        now = until;
    }
    consumer.drive(&mut follower, now, |r| (publisher.answer(r), ResponseDelivery::Pieces(99)));
    assert_eq!(consumer.told.len(), 5);
    // A success ends the backoff: the next poll is after the usual interval.
    assert_eq!(
        follower.poll_timeout().map(Monotonic::simulated_wall).unwrap().as_second() - now.as_second(),
        30
    );
    assert!(!follower.is_finished());
}

/// RFC 9110, section 10.2.3: `Retry-After` extends the backoff, for this attempt only.
#[test]
fn retry_after_is_honoured_if_it_is_longer() {
    let mut consumer = RecordingConsumer::default();
    // Neither seconds nor a date: ignored, as if it were missing.
    for (asked, wait) in [("120", 120), ("1", 5), ("soon", 5)] {
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, ReplicationOptions::default());
        consumer.drive(&mut follower, time(0), |_| {
            let mut busy = StoredResponse::status(503);
            busy.headers.insert("retry-after", asked.parse().unwrap());
            (busy, ResponseDelivery::Pieces(100))
        });
        let until = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        assert_eq!(until.as_second() - time(0).as_second(), wait, "{asked}");
        consumer.drive(&mut follower, until, |_| (StoredResponse::status(503), ResponseDelivery::Lost));
        let next = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        assert_eq!(next.as_second() - until.as_second(), 10, "a Retry-After applies once");
    }
}

#[test]
fn a_state_of_another_protocol_is_refused() {
    let state = Some(serde_json::json!({"cursor": "sha256:0"}));
    let consumer = RecordingConsumer { state, ..RecordingConsumer::default() };
    let result = towpath_proto::replication::follow::ReplicationFollower::new(
        BASE,
        StartFrom::Beginning,
        consumer.state,
        once(),
    );
    assert!(matches!(result, Err(FollowError::Usage(_))));
}
