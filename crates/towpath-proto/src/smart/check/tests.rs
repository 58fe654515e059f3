//! Checks of our own publisher and of broken ones.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use crate::follow::{Checker, Exchange, Now, Request, ResponseHead, TransferError};
use crate::planted::PlantedFaults;
use crate::report::{FindingOutcome, Level, Report};
use crate::smart::check::{SmartChecker, smart_rules};
use crate::smart::publish;
use crate::smart::publish::cursor::CursorKind;
use crate::smart::publish::pull::{FeedSettings, Pull, PullStep};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, log, settings, time};
use crate::smart::wire::accept::{negotiate, negotiate_script};

const URL: &str = "http://example.com/feeds/a/items?order=modified";

type HttpResponse = http::Response<Bytes>;

/// Responds as our publisher does. A held request advances the clock to its deadline.
fn respond_correctly(
    feed: &FeedSettings,
    log: &mut MemoryLog,
    now: &mut Timestamp,
    request: &Request,
) -> HttpResponse {
    let query = request.url.split_once('?').map_or("", |(_, query)| query);
    let query = match PullQuery::parse(query, &feed.limits) {
        Ok(query) => query,
        Err(error) => return publish::refuse(&error),
    };
    let accept = request.headers["accept"].to_str().unwrap();
    let negotiate = if query.callback.is_some() { negotiate_script } else { negotiate };
    let Some(format) = query.format().or_else(|| negotiate(Some(accept))) else {
        return publish::not_acceptable();
    };
    let mut pull = Pull::new(query, feed, *now);
    let mut step = pull.begin();
    let page = loop {
        step = match step {
            PullStep::Read(read) => pull.handle_read(log.answer(&read), None).unwrap(),
            PullStep::Wait { deadline, .. } => {
                *now = deadline;
                pull.handle_timeout()
            }
            PullStep::Page(page) => break page,
        };
    };
    publish::respond(feed, pull.query(), &page, format)
}

/// Runs a check of a publisher whose responses `change` may replace.
fn check(
    log: &mut MemoryLog,
    kind: CursorKind,
    change: impl Fn(&Request, HttpResponse) -> HttpResponse,
) -> Report {
    check_at(URL, log, &settings(kind), change)
}

fn check_at(
    url: &str,
    log: &mut MemoryLog,
    feed: &FeedSettings,
    change: impl Fn(&Request, HttpResponse) -> HttpResponse,
) -> Report {
    let mut now = time(1000);
    let mut checker = SmartChecker::new(url);
    let mut requests = 0;
    while let Some(request) = checker.poll_request(Now::simulated(now)) {
        let honest = respond_correctly(feed, log, &mut now, &request);
        let response = change(&request, honest);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        checker.handle_head(
            Now::simulated(now),
            request.id,
            ResponseHead { status, url: request.url, headers },
        );
        now += SignedDuration::from_millis(1);
        checker.handle_chunk(Now::simulated(now), request.id, response.into_body());
        checker.handle_end(Now::simulated(now), request.id, Ok(()));
        requests += 1;
        assert!(requests < 20);
    }
    assert!(checker.is_finished());
    checker.report().clone()
}

fn rules(report: &Report, outcome: FindingOutcome) -> Vec<&str> {
    report.findings.iter().filter(|f| f.outcome == outcome).map(|f| f.rule.as_str()).collect()
}

fn five() -> MemoryLog {
    log(&[("a", 10), ("b", 20), ("c", 20), ("-a", 30), ("d", 31), ("e", 32)])
}

#[test]
fn our_own_feeds_pass() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let report = check(&mut five(), kind, |_, response| response);
        assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
        assert_eq!(rules(&report, FindingOutcome::Skipped), ["There is a default maximum"]);
        assert!(report.count(Level::Must, FindingOutcome::Pass) >= 19);
    }
    let report = check(&mut MemoryLog::default(), CursorKind::Sequence, |_, response| response);
    assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
}

/// Each case breaks one thing, and only its rule fails.
#[test]
fn each_rule_can_fail() {
    let replace = |from: &'static str, to: &'static str| {
        move |_: &Request, response: HttpResponse| {
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
        assert_eq!(rules(&report, FindingOutcome::Fail), expected, "{report:?}");
        assert!(!report.conforms());
    }
}

/// A publisher that ignores a parameter or the requested format.
#[test]
fn ignored_parameters_are_reported() {
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
        while let Some(mut request) = checker.poll_request(Now::simulated(now)) {
            let asked = request.url.clone();
            let sent = now;
            let mut response = match parameter {
                "since=time" if asked.contains("since=time") => {
                    request.url = asked.replace("since=time%3A1970-01-01T00%3A00%3A20Z", "since=time:21");
                    respond_correctly(&feed, &mut log, &mut now, &request)
                }
                "~towpath" if asked.contains("~towpath") => HttpResponse::new(Bytes::new()),
                "timeout=2" | "timeout=0" | "~towpath" => {
                    respond_correctly(&feed, &mut log, &mut now, &request)
                }
                _ => {
                    let known: Vec<&str> =
                        asked.split('&').filter(|pair| !pair.starts_with(parameter)).collect();
                    request.url = known.join("&");
                    respond_correctly(&feed, &mut log, &mut now, &request)
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
            checker.handle_head(
                Now::simulated(now),
                request.id,
                ResponseHead { status, url: asked, headers },
            );
            checker.handle_chunk(Now::simulated(now), request.id, response.into_body());
            checker.handle_end(Now::simulated(now), request.id, Ok(()));
        }
        let failed = rules(checker.report(), FindingOutcome::Fail);
        for rule in expected {
            assert!(failed.contains(rule), "{parameter}: {:?}", checker.report());
        }
    }
}

/// "One or more access methods": a feed may offer one format only; and the other parameters MAY be understood.
#[test]
fn optional_features_are_skipped() {
    let type_of = |response: &HttpResponse| response.headers()["content-type"].to_str().unwrap().to_owned();
    let five = &mut five();
    // Atom only: at its own URL, or regardless of Accept.
    let feed = settings(CursorKind::Sequence);
    let report = check_at(&format!("{URL}&format=atom"), five, &feed, |_, response| response);
    assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
    assert!(rules(&report, FindingOutcome::Pass).contains(&"Each entry has a fo:id"));
    assert!(rules(&report, FindingOutcome::Pass).contains(&"until limits to items before a cursor"));
    assert!(rules(&report, FindingOutcome::Skipped).contains(&"url is the base URL of the feed"));
    // JSON only: 406 for other formats, or Accept is ignored.
    for ignores in [false, true] {
        let report = check(five, CursorKind::Sequence, |request, response| {
            if !type_of(&response).contains("atom") {
                response
            } else if ignores {
                let mut json = request.clone();
                json.headers.insert("accept", http::HeaderValue::from_static("application/json"));
                respond_correctly(&feed, &mut crate::smart::check::tests::five(), &mut time(1000), &json)
            } else {
                publish::not_acceptable()
            }
        });
        assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
        assert!(rules(&report, FindingOutcome::Skipped).contains(&"Each entry has a fo:id"));
    }
    // No JSON-P.
    let report = check(five, CursorKind::Sequence, |request, response| {
        let is_script = request.url.contains("callback");
        if is_script { HttpResponse::new("{}".into()) } else { response }
    });
    assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
    assert!(rules(&report, FindingOutcome::Skipped).iter().any(|rule| rule.starts_with("With callback")));
    // "at most": a page of two items is valid for max=4.
    let mut capped = settings(CursorKind::Sequence);
    capped.limits.max_items = 2;
    let report = check_at(URL, five, &capped, |_, response| response);
    assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
    // In a descending order no request is held.
    for order in ["-created", "-modified", "created"] {
        let url = format!("http://example.com/feeds/a/items?order={order}");
        let report = check_at(&url, five, &feed, |_, response| response);
        assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
        let is_held =
            rules(&report, FindingOutcome::Pass).contains(&"A request is held until data becomes available");
        assert_eq!(is_held, order == "created");
    }
}

/// A failed request fails the rule that it was made for, and no other.
#[test]
fn a_missing_next_page_fails_its_own_rule() {
    let rule = "next is a fully constructed URL to the next page";
    let relative = |_: &Request, response: HttpResponse| {
        response.map(|body| {
            let text = String::from_utf8(body.to_vec()).unwrap();
            text.replace("\"next\":\"http://example.com/", "\"next\":\"/").into()
        })
    };
    let report = check(&mut five(), CursorKind::Sequence, relative);
    assert_eq!(rules(&report, FindingOutcome::Fail), [rule], "{report:?}");

    let feed = settings(CursorKind::Sequence);
    let (mut log, mut now) = (five(), time(1000));
    let mut checker = SmartChecker::new(URL);
    while let Some(request) = checker.poll_request(Now::simulated(now)) {
        // The order of the parameters distinguishes the link from the check's own URLs.
        if request.url.ends_with("max=2") {
            checker.handle_end(
                Now::simulated(now),
                request.id,
                Err(TransferError::Connect("refused".into())),
            );
            continue;
        }
        let response = respond_correctly(&feed, &mut log, &mut now, &request);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        checker.handle_head(
            Now::simulated(now),
            request.id,
            ResponseHead { status, url: request.url, headers },
        );
        checker.handle_chunk(Now::simulated(now), request.id, response.into_body());
        checker.handle_end(Now::simulated(now), request.id, Ok(()));
    }
    assert_eq!(rules(checker.report(), FindingOutcome::Fail), [rule], "{:?}", checker.report());
}

#[test]
fn other_documents_fail_and_end_the_check() {
    let page = |_: &Request, _: HttpResponse| {
        http::Response::builder().header("content-type", "text/html").body(Bytes::from("<html>")).unwrap()
    };
    let report = check(&mut five(), CursorKind::Sequence, page);
    assert_eq!(
        rules(&report, FindingOutcome::Fail),
        ["The answer is an ActivityStreams collection or an Atom document"]
    );

    let mut checker = SmartChecker::new(URL);
    let request = checker.poll_request(Now::simulated(time(0))).unwrap();
    checker.handle_end(Now::simulated(time(0)), request.id, Err(TransferError::Connect("refused".into())));
    assert!(checker.is_finished() && !checker.report().conforms());
}

/// The corpus of `smart.toml` (part of the request's URL, text to replace, replacement, part of the rule), and publishers
/// that behave wrongly.
#[test]
fn planted_faults_are_named() {
    #[derive(serde::Deserialize)]
    struct Corpus {
        faults: Vec<[String; 4]>,
    }
    let corpus: Corpus = toml::from_str(include_str!("../../../tests/data/check/smart.toml")).unwrap();
    let mut planted = PlantedFaults::new("Smart Feeds");
    for [url, from, to, rule] in &corpus.faults {
        let is_there = std::cell::Cell::new(false);
        let report = check(&mut five(), CursorKind::Sequence, |request, response| {
            let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
            // A script is the page once more, and a fault of the page is not to be named for the script.
            if !request.url.contains(url.as_str()) || (kind.contains("javascript") && url.is_empty()) {
                return response;
            }
            response.map(|body| {
                let text = String::from_utf8(body.to_vec()).unwrap();
                is_there.set(is_there.get() || text.contains(from.as_str()));
                text.replace(from.as_str(), to).into()
            })
        });
        assert!(is_there.get(), "{url} {from} occurs nowhere");
        planted.judge(rule, &format!("{url} {from} -> {to}"), rules(&report, FindingOutcome::Fail));
    }
    assert!(planted.count() >= 40);
    let behaviours: &[(&str, &str, Behaviour)] = &[
        ("", "The feed offers a pull interface", |_| None),
        ("", "The items have a consistent ordering", |asked| {
            let other = asked.number > 0 && asked.request.url.ends_with("order=modified&max=2&timeout=0");
            Some(if other { asked.instead(&[("max=2", "max=1")]) } else { asked.honest() })
        }),
        ("", "max limits the number of items", |asked| Some(asked.instead(&[("max=2", "max=3")]))),
        ("~towpath", "A cursor that cannot be read", |asked| {
            let mut response = asked.honest();
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            Some(response)
        }),
        ("~towpath", "A cursor that cannot be read", |asked| {
            let mut response = asked.honest();
            *response.status_mut() = http::StatusCode::NOT_FOUND;
            Some(response)
        }),
        ("since=time", "A time as position is inclusive", |asked| {
            let mut response = asked.honest();
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            Some(response)
        }),
        ("callback", "With callback the answer is application/javascript", |asked| {
            let mut response = asked.honest();
            response.headers_mut().insert("content-type", "application/json".parse().unwrap());
            Some(response)
        }),
        ("until=", "until limits", |asked| Some(asked.instead(&[("until", "ignored")]))),
        ("since=cursor", "since limits", |asked| Some(asked.instead(&[("since", "ignored")]))),
        ("since=time", "A time as position is inclusive", |asked| Some(asked.instead(&[("20Z", "21Z")]))),
        ("timeout=2", "A request is held", |asked| Some(asked.instead(&[("timeout=2", "timeout=0")]))),
        ("m6-ed30ab8ca4&timeout=0", "A timeout of 0", |asked| {
            *asked.now += SignedDuration::from_secs(55);
            Some(asked.honest())
        }),
    ];
    for (url, rule, behave) in behaviours {
        let report = check_behaviour(&mut five(), &settings(CursorKind::Sequence), url, *behave);
        planted.judge(rule, url, rules(&report, FindingOutcome::Fail));
    }
    // More than a page's worth of items at once.
    let names: Vec<String> = (0..1500).map(|number| format!("i{number}")).collect();
    let items: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(100..).collect();
    let mut endless = settings(CursorKind::Sequence);
    (endless.limits.max_items, endless.limits.default_items) = (10_000, 10_000);
    let report = check_at(URL, &mut log(&items), &endless, |_, response| response);
    planted.judge("There is a default maximum", "all at once", rules(&report, FindingOutcome::Fail));
    planted.assert_complete(smart_rules().iter().map(|rule| rule.text));
}

/// A request to a publisher that behaves wrongly.
struct Asked<'a> {
    /// Number of earlier requests.
    number: usize,
    request: &'a Request,
    now: &'a mut Timestamp,
    feed: &'a FeedSettings,
    log: &'a mut MemoryLog,
}

impl Asked<'_> {
    fn honest(&mut self) -> HttpResponse {
        respond_correctly(self.feed, self.log, self.now, self.request)
    }

    /// Answers as if the URL were another one.
    fn instead(&mut self, replaced: &[(&str, &str)]) -> HttpResponse {
        let url = replaced.iter().fold(self.request.url.clone(), |url, (from, to)| url.replace(from, to));
        let request = Request { url, ..self.request.clone() };
        respond_correctly(self.feed, self.log, self.now, &request)
    }
}

/// Returns a response, or `None` to refuse the connection.
type Behaviour = fn(&mut Asked<'_>) -> Option<HttpResponse>;

/// Runs a check of a publisher that behaves so where the URL has this part.
fn check_behaviour(log: &mut MemoryLog, feed: &FeedSettings, url: &str, behave: Behaviour) -> Report {
    let (mut checker, mut now) = (SmartChecker::new(URL), time(1000));
    for number in 0..30 {
        let Some(request) = checker.poll_request(Now::simulated(now)) else { break };
        let is_planted = request.url.contains(url);
        let mut asked = Asked { number, request: &request, now: &mut now, feed, log };
        let response = if is_planted { behave(&mut asked) } else { Some(asked.honest()) };
        let Some(response) = response else {
            let refused = Err(TransferError::Connect("refused".into()));
            checker.handle_end(Now::simulated(now), request.id, refused);
            continue;
        };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        checker.handle_head(
            Now::simulated(now),
            request.id,
            ResponseHead { status, url: request.url, headers },
        );
        checker.handle_chunk(Now::simulated(now), request.id, response.into_body());
        checker.handle_end(Now::simulated(now), request.id, Ok(()));
    }
    assert!(checker.is_finished());
    checker.report().clone()
}

/// A feed of more than a page: all items are tested, and the long poll at the end.
#[test]
fn long_feeds_are_read_to_their_end() {
    let names: Vec<String> = (0..2500).map(|number| format!("i{number}")).collect();
    let items: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(100..).collect();
    let mut capped = settings(CursorKind::Sequence);
    capped.limits.max_items = 1000;
    capped.limits.default_items = 100;
    let report = check_at(URL, &mut log(&items), &capped, |_, response| response);
    assert_eq!(rules(&report, FindingOutcome::Fail), [""; 0], "{report:?}");
    let passed = rules(&report, FindingOutcome::Pass);
    assert!(passed.contains(&"A request is held until data becomes available"), "{passed:?}");
    assert!(passed.contains(&"There is a default maximum"), "{passed:?}");
    // A fault at the far end, on the third page of the walk.
    for (from, to, rule) in [
        ("\"id\":\"i2400\"", "\"id\":\"i7\",\"x\":1", "All items have a unique id within the feed"),
        ("\"id\":\"i2400\",", "", "since limits to items after a cursor"),
        ("\"totalItems\":2500", "\"totalItems\":2501", "totalItems is the number of items in the feed"),
    ] {
        let report = check_at(URL, &mut log(&items), &capped, |_, response| {
            response.map(|body| String::from_utf8(body.to_vec()).unwrap().replace(from, to).into())
        });
        assert!(rules(&report, FindingOutcome::Fail).contains(&rule), "{from}: {report:?}");
    }
}
