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
    let Some(format) = negotiate(Some(accept), query.callback.is_some()) else {
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
    let (feed, mut now) = (settings(kind), time(1000));
    let mut checker = SmartChecker::new(URL);
    let mut requests = 0;
    while let Some(request) = checker.poll_request(now) {
        let honest = honest(&feed, log, &mut now, &request);
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
        ("<fo:id>c</fo:id>", "", &["Each entry has a fo:id", "The entries are the same items as in JSON"]),
        ("<fo:id>c</fo:id>", "<fo:id>x</fo:id>", &["The entries are the same items as in JSON"]),
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
        (
            "since=cursor",
            &["since limits to items after a cursor", "until limits to items before a cursor"][..],
        ),
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

#[test]
fn what_is_no_smart_feed_fails_and_ends() {
    let page = |_: &Request, _: Response| {
        http::Response::builder().header("content-type", "text/html").body(Bytes::from("<html>")).unwrap()
    };
    let report = check(&mut five(), CursorKind::Sequence, page);
    assert_eq!(
        rules(&report, Outcome::Fail),
        ["The answer is an ActivityStreams collection (application/json)"]
    );

    let mut checker = SmartChecker::new(URL);
    let request = checker.poll_request(time(0)).unwrap();
    checker.handle_end(time(0), request.id, Err(TransferError::Connect("refused".into())));
    assert!(checker.is_finished() && !checker.report().conforms());
}
