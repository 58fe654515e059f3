//! The check, against our own publisher and against broken ones.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::accept::negotiate;
use super::check::SmartChecker;
use super::cursor::CursorKind;
use super::memory::MemoryLog;
use super::publish;
use super::pull::{FeedSettings, Pull, Step};
use super::query::PullQuery;
use super::tests::{log, settings, time};
use crate::follow::{Checker, Exchange, Request, ResponseHead, TransferError};
use crate::report::{Level, Outcome, Report};

const URL: &str = "http://example.com/feeds/a/items?order=modified";

type Response = http::Response<Bytes>;

/// Answers as our publisher does, and holds a request as long as it waits.
fn honest(feed: &FeedSettings, log: &mut MemoryLog, now: &mut Timestamp, request: &Request) -> Response {
    let query = request.url.split_once('?').map_or("", |(_, query)| query);
    let query = match PullQuery::parse(query, &feed.limits) {
        Ok(query) => query,
        Err(error) => return publish::refuse(&error),
    };
    let accept = request.headers["accept"].to_str().unwrap();
    let Some(format) = query.format().or_else(|| negotiate(Some(accept), query.callback.is_some())) else {
        return publish::not_acceptable();
    };
    let mut pull = Pull::new(query, feed, *now);
    let mut step = pull.begin();
    let page = loop {
        step = match step {
            Step::Read(read) => pull.handle_answer(log.answer(&read), None).unwrap(),
            Step::Wait { deadline, .. } => {
                *now = deadline;
                pull.handle_timeout()
            }
            Step::Page(page) => break page,
        };
    };
    publish::respond(feed, pull.query(), &page, format)
}

/// Runs a check whose answers `change` has its hands on.
fn check(log: &mut MemoryLog, kind: CursorKind, change: impl Fn(&Request, Response) -> Response) -> Report {
    check_at(URL, log, &settings(kind), change)
}

fn check_at(
    url: &str,
    log: &mut MemoryLog,
    feed: &FeedSettings,
    change: impl Fn(&Request, Response) -> Response,
) -> Report {
    let mut now = time(1000);
    let mut checker = SmartChecker::new(url);
    let mut requests = 0;
    while let Some(request) = checker.poll_request(now) {
        let honest = honest(feed, log, &mut now, &request);
        let response = change(&request, honest);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        checker.handle_head(now, request.id, ResponseHead { status, url: request.url, headers });
        now += SignedDuration::from_millis(1);
        checker.handle_chunk(now, request.id, response.into_body());
        checker.handle_end(now, request.id, Ok(()));
        requests += 1;
        assert!(requests < 20);
    }
    assert!(checker.is_finished());
    checker.report().clone()
}

fn rules(report: &Report, outcome: Outcome) -> Vec<&str> {
    report.findings.iter().filter(|f| f.outcome == outcome).map(|f| f.rule.as_str()).collect()
}

fn five() -> MemoryLog {
    log(&[("a", 10), ("b", 20), ("c", 20), ("-a", 30), ("d", 31), ("e", 32)])
}

#[test]
fn our_own_feeds_pass() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let report = check(&mut five(), kind, |_, response| response);
        assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
        assert_eq!(rules(&report, Outcome::Skipped), ["There is a default maximum"]);
        assert!(report.count(Level::Must, Outcome::Pass) >= 19);
    }
    let report = check(&mut MemoryLog::default(), CursorKind::Sequence, |_, response| response);
    assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
}

/// One thing is broken at a time, and just its rule fails.
#[test]
fn each_rule_can_fail() {
    let replace = |from: &'static str, to: &'static str| {
        move |_: &Request, response: Response| {
            response.map(|body| String::from_utf8(body.to_vec()).unwrap().replace(from, to).into())
        }
    };
    let cases: [(&str, &str, &[&str]); 9] = [
        ("\"count\":2", "\"count\":3", &["count is the number of items in the answer"]),
        ("\"totalItems\":5", "\"totalItems\":\"5\"", &["totalItems is the number of items in the feed"]),
        (
            "\"url\":\"http://example.com/feeds/a/items?order=modified\"",
            "\"url\":\"\"",
            &["url is the base URL of the feed"],
        ),
        ("fo:total", "fo:x", &["fo:total is the number of items in the feed"]),
        ("fo:last_cursor", "fo:x", &["fo:last_cursor is the cursor of the last item"]),
        ("rel=\"self\"", "rel=\"x\"", &["The rel=self link is the base URL of the feed"]),
        ("<fo:id>c</fo:id>", "", &["Each entry has a fo:id", "The items are the same in both formats"]),
        ("<fo:id>c</fo:id>", "<fo:id>x</fo:id>", &["The items are the same in both formats"]),
        (
            "towpath.check(",
            "towpath.chekc(",
            &["With callback the answer is application/javascript that calls it"],
        ),
    ];
    for (from, to, expected) in cases {
        let report = check(&mut five(), CursorKind::Sequence, replace(from, to));
        assert_eq!(rules(&report, Outcome::Fail), expected, "{report:?}");
        assert!(!report.conforms());
    }
}

/// A publisher that does not look at a parameter, or at the format that was asked for.
#[test]
fn what_is_ignored_is_seen() {
    let cases = [
        ("since=cursor", &["since limits to items after a cursor"][..]),
        ("until=", &["until limits to items before a cursor"]),
        ("since=time", &["A time as position is inclusive"]),
        ("timeout=2", &["A request is held until data becomes available"]),
        ("~towpath", &["A cursor that cannot be read degrades gracefully"]),
        ("timeout=0", &["A timeout of 0 means to return immediately"]),
    ];
    for (parameter, expected) in cases {
        let feed = settings(CursorKind::Sequence);
        let (mut log, mut now) = (five(), time(1000));
        let mut checker = SmartChecker::new(URL);
        while let Some(mut request) = checker.poll_request(now) {
            let asked = request.url.clone();
            let sent = now;
            let mut response = match parameter {
                "since=time" if asked.contains("since=time") => {
                    request.url = asked.replace("since=time%3A1970-01-01T00%3A00%3A20Z", "since=time:21");
                    honest(&feed, &mut log, &mut now, &request)
                }
                "~towpath" if asked.contains("~towpath") => Response::new(Bytes::new()),
                "timeout=2" | "timeout=0" | "~towpath" => honest(&feed, &mut log, &mut now, &request),
                _ => {
                    let known: Vec<&str> =
                        asked.split('&').filter(|pair| !pair.starts_with(parameter)).collect();
                    request.url = known.join("&");
                    honest(&feed, &mut log, &mut now, &request)
                }
            };
            if parameter == "~towpath" && asked.contains("~towpath") {
                *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            }
            if parameter == "timeout=2" {
                now = sent;
            }
            let late = parameter == "timeout=0" && asked.ends_with(parameter);
            now += SignedDuration::from_secs(if late { 55 } else { 0 });
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            checker.handle_head(now, request.id, ResponseHead { status, url: asked, headers });
            checker.handle_chunk(now, request.id, response.into_body());
            checker.handle_end(now, request.id, Ok(()));
        }
        let failed = rules(checker.report(), Outcome::Fail);
        for rule in expected {
            assert!(failed.contains(rule), "{parameter}: {:?}", checker.report());
        }
    }
}

/// "One or more access methods": a feed may offer one format only; and the other parameters MAY be understood.
#[test]
fn what_need_not_be_offered_is_passed_over() {
    let type_of = |response: &Response| response.headers()["content-type"].to_str().unwrap().to_owned();
    let five = &mut five();
    // Atom only: by its own address, or whatever is accepted.
    let feed = settings(CursorKind::Sequence);
    let report = check_at(&format!("{URL}&format=atom"), five, &feed, |_, response| response);
    assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
    assert!(rules(&report, Outcome::Pass).contains(&"Each entry has a fo:id"));
    assert!(rules(&report, Outcome::Pass).contains(&"until limits to items before a cursor"));
    assert!(rules(&report, Outcome::Skipped).contains(&"url is the base URL of the feed"));
    // JSON only: 406 for anything else, or no look at what is accepted.
    for ignores in [false, true] {
        let report = check(five, CursorKind::Sequence, |request, response| {
            if !type_of(&response).contains("atom") {
                response
            } else if ignores {
                let mut json = request.clone();
                json.headers.insert("accept", http::HeaderValue::from_static("application/json"));
                honest(&feed, &mut super::check_tests::five(), &mut time(1000), &json)
            } else {
                publish::not_acceptable()
            }
        });
        assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
        assert!(rules(&report, Outcome::Skipped).contains(&"Each entry has a fo:id"));
    }
    // No JSON-P.
    let report = check(five, CursorKind::Sequence, |request, response| {
        let is_script = request.url.contains("callback");
        if is_script { Response::new("{}".into()) } else { response }
    });
    assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
    assert!(rules(&report, Outcome::Skipped).iter().any(|rule| rule.starts_with("With callback")));
    // "at most": a page of two items is an answer to max=4.
    let mut capped = settings(CursorKind::Sequence);
    capped.limits.max_items = 2;
    let report = check_at(URL, five, &capped, |_, response| response);
    assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
    // In a descending order there is nothing to be held for.
    for order in ["-created", "-modified", "created"] {
        let url = format!("http://example.com/feeds/a/items?order={order}");
        let report = check_at(&url, five, &feed, |_, response| response);
        assert_eq!(rules(&report, Outcome::Fail), [""; 0], "{report:?}");
        let is_held =
            rules(&report, Outcome::Pass).contains(&"A request is held until data becomes available");
        assert_eq!(is_held, order == "created");
    }
}

/// What cannot be asked for breaks the rule that it was asked for, and none else.
#[test]
fn a_next_page_that_is_not_there_breaks_its_own_rule() {
    let rule = "next is a fully constructed URL to the next page";
    let relative = |_: &Request, response: Response| {
        response.map(|body| {
            let text = String::from_utf8(body.to_vec()).unwrap();
            text.replace("\"next\":\"http://example.com/", "\"next\":\"/").into()
        })
    };
    let report = check(&mut five(), CursorKind::Sequence, relative);
    assert_eq!(rules(&report, Outcome::Fail), [rule], "{report:?}");

    let feed = settings(CursorKind::Sequence);
    let (mut log, mut now) = (five(), time(1000));
    let mut checker = SmartChecker::new(URL);
    while let Some(request) = checker.poll_request(now) {
        // The order of the parameters tells the link from the check's own addresses.
        if request.url.ends_with("max=2") {
            checker.handle_end(now, request.id, Err(TransferError::Connect("refused".into())));
            continue;
        }
        let response = honest(&feed, &mut log, &mut now, &request);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        checker.handle_head(now, request.id, ResponseHead { status, url: request.url, headers });
        checker.handle_chunk(now, request.id, response.into_body());
        checker.handle_end(now, request.id, Ok(()));
    }
    assert_eq!(rules(checker.report(), Outcome::Fail), [rule], "{:?}", checker.report());
}

#[test]
fn what_is_no_smart_feed_fails_and_ends() {
    let page = |_: &Request, _: Response| {
        http::Response::builder().header("content-type", "text/html").body(Bytes::from("<html>")).unwrap()
    };
    let report = check(&mut five(), CursorKind::Sequence, page);
    assert_eq!(
        rules(&report, Outcome::Fail),
        ["The answer is an ActivityStreams collection or an Atom document"]
    );

    let mut checker = SmartChecker::new(URL);
    let request = checker.poll_request(time(0)).unwrap();
    checker.handle_end(time(0), request.id, Err(TransferError::Connect("refused".into())));
    assert!(checker.is_finished() && !checker.report().conforms());
}
