//! The conformance check against conforming and broken publishers.

use bytes::Bytes;
use towpath_proto::follow::{Checker, Exchange, Now, Request, ResponseHead};
use towpath_proto::replication::check::{ReplicationCheckOptions, ReplicationChecker, replication_rules};
use towpath_proto::replication::pages::PageLimits;
use towpath_proto::report::{FindingOutcome, Level, Report};

use crate::planted::PlantedFaults;
use crate::publisher::{BASE, MemoryPublisher, SNAPSHOT, StoredResponse, time};

fn publisher() -> MemoryPublisher {
    let mut publisher = MemoryPublisher::of(2);
    for second in 0..7 {
        publisher.put(second);
    }
    publisher.seal();
    publisher.make_snapshot("s", time(8), PageLimits { bytes: 1000, entities: 3 });
    publisher
}

/// Runs the check. `change` gets the number of earlier equal requests.
fn check(publisher: &MemoryPublisher, change: impl FnMut(&Request, usize, &mut StoredResponse)) -> Report {
    check_from(BASE, publisher, change)
}

fn check_from(
    url: &str,
    publisher: &MemoryPublisher,
    mut change: impl FnMut(&Request, usize, &mut StoredResponse),
) -> Report {
    let options =
        ReplicationCheckOptions { snapshot: Some(SNAPSHOT.into()), ..ReplicationCheckOptions::default() };
    let mut checker = ReplicationChecker::new(url, options);
    let mut seen: Vec<String> = Vec::new();
    while let Some(request) = checker.poll_request(Now::simulated(time(0))) {
        assert!(seen.len() < 100, "a check ends");
        let mut response = publisher.answer(&request);
        let name = format!("{} {}", request.method, request.url);
        change(&request, seen.iter().filter(|s| **s == name).count(), &mut response);
        seen.push(name);
        let head =
            ResponseHead { status: response.status, url: request.url.clone(), headers: response.headers };
        checker.handle_head(Now::simulated(time(0)), request.id, head);
        for piece in response.body.chunks(90) {
            checker.handle_chunk(Now::simulated(time(0)), request.id, Bytes::copy_from_slice(piece));
        }
        checker.handle_end(Now::simulated(time(0)), request.id, Ok(()));
    }
    assert!(checker.is_finished());
    checker.report().clone()
}

fn failed(report: &Report) -> Vec<(&str, &str)> {
    let failed = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail);
    failed.map(|f| (f.section.as_str(), f.detail.as_str())).collect()
}

#[test]
fn our_own_publisher_conforms() {
    let report = check(&publisher(), |_, _, _| {});
    // Nothing may be skipped either: a skipped rule would pass unseen.
    assert_eq!(failed(&report), []);
    assert_eq!(report.count(Level::Must, FindingOutcome::Skipped), 0, "{report:?}");
    assert!(report.findings.len() >= 25, "{}", report.findings.len());
    assert!(report.conforms());
}

#[test]
fn an_index_alone_can_be_checked() {
    let publisher = publisher();
    let mut checker = ReplicationChecker::new(SNAPSHOT, ReplicationCheckOptions::default());
    while let Some(request) = checker.poll_request(Now::simulated(time(0))) {
        let response = publisher.answer(&request);
        let head = ResponseHead { status: 200, url: request.url.clone(), headers: response.headers };
        checker.handle_head(Now::simulated(time(0)), request.id, head);
        checker.handle_chunk(Now::simulated(time(0)), request.id, response.body);
        checker.handle_end(Now::simulated(time(0)), request.id, Ok(()));
    }
    let sections: Vec<&str> = checker.report().findings.iter().map(|f| f.section.as_str()).collect();
    assert!(sections.contains(&"Snapshot Index Format"), "{sections:?}");
    assert_eq!(failed(checker.report()), []);
}

#[test]
fn an_empty_feed_conforms() {
    let report = check(&MemoryPublisher::of(2), |request, _, response| {
        if request.url == SNAPSHOT {
            *response = publisher().answer(request);
            response.body = "{\"id\":\"s\",\"createdAt\":\"2024-01-01T00:00:00Z\",\"pages\":[]}".into();
        }
    });
    assert_eq!(failed(&report), []);
}

fn add_next(response: &mut StoredResponse, number: u64) {
    response.headers.append("link", format!("<{BASE}/pages/{number}>; rel=next").parse().unwrap());
}

#[test]
fn pagination_the_newest_page_is_found_from_any_other() {
    for with_head in [true, false] {
        let mut got = Vec::new();
        let report = check_from(&format!("{BASE}/pages/2"), &publisher(), |request, _, response| {
            if !with_head && !is_get(request) {
                *response = StoredResponse::status(405);
            }
            got.push(request.url.clone());
        });
        // Without HEAD its own rule fails; the walk must go on by GET.
        assert_eq!(failed(&report).len(), usize::from(!with_head), "{:?}", failed(&report));
        assert!((1..=4).all(|number| got.contains(&format!("{BASE}/pages/{number}"))), "{got:?}");
    }
}

/// "Links must be consistent, i.e. the prev and next links of adjacent pages must match and the feed must not form
/// a loop". This holds for `next` too.
#[test]
fn pagination_violations_along_next_are_found() {
    let cases: Vec<(&str, &str, ResponseChange)> = vec![
        (BASE, "A next link leads to a page", |r, _, a| {
            if r.url == BASE || page(r, 4) {
                add_next(a, 5);
            }
        }),
        (BASE, "The feed forms no loop", |r, _, a| {
            if r.url == BASE || page(r, 4) {
                add_next(a, 1);
            }
        }),
        (BASE, "The feed forms no loop", |r, _, a| {
            if r.url == BASE || page(r, 4) {
                add_next(a, 4);
            }
        }),
        ("/pages/1", "A feed page has its headers", |r, _, a| {
            if page(r, 2) {
                a.headers.insert("content-type", "text/html".parse().unwrap());
            }
        }),
        ("/pages/1", "A next link leads to a page", |r, _, a| {
            if page(r, 3) {
                *a = StoredResponse::status(410);
            }
        }),
        ("/pages/1", "The links of adjacent pages match", |r, _, a| {
            if page(r, 3) {
                a.headers.remove("link");
                for (number, rel) in [(3, "self"), (1, "prev"), (4, "next")] {
                    a.headers.append("link", format!("<{BASE}/pages/{number}>; rel={rel}").parse().unwrap());
                }
            }
        }),
    ];
    let publisher = publisher();
    for (number, (start, rule, change)) in cases.into_iter().enumerate() {
        let url = if start == BASE { BASE.to_owned() } else { format!("{BASE}{start}") };
        let report = check_from(&url, &publisher, change);
        let failed: Vec<_> = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail).collect();
        assert!(failed.iter().any(|f| f.rule == rule), "{number} {rule}: {failed:?}");
    }
}

/// Changes a response, given the number of earlier equal requests.
type ResponseChange = fn(&Request, usize, &mut StoredResponse);

fn text(response: &mut StoredResponse, from: &str, to: &str) {
    let body = String::from_utf8(response.body.to_vec()).unwrap();
    response.body = body.replace(from, to).into();
}

fn page(request: &Request, number: u64) -> bool {
    request.url == format!("{BASE}/pages/{number}")
}

fn is_get(request: &Request) -> bool {
    request.method == http::Method::GET
}

/// Each case breaks responses and names the rule that must fail.
#[test]
fn planted_faults_are_named() {
    let cases: Vec<(&str, ResponseChange)> = vec![
        ("A request results in status 200", |r, _, a| {
            if page(r, 2) && is_get(r) {
                a.status = 302;
            }
        }),
        ("Pages answer HEAD", |r, _, a| {
            if !is_get(r) {
                *a = StoredResponse::status(405);
            }
        }),
        ("HEAD and GET have the same", |r, _, a| {
            if page(r, 2) && !is_get(r) {
                a.headers.insert("etag", "\"other\"".parse().unwrap());
            }
        }),
        ("The links of adjacent pages", |r, _, a| {
            if page(r, 2) {
                a.headers.remove("link");
                for (number, rel) in [(2, "self"), (1, "prev"), (4, "next")] {
                    a.headers.append("link", format!("<{BASE}/pages/{number}>; rel={rel}").parse().unwrap());
                }
            }
        }),
        ("No page links to itself", |r, _, a| {
            if page(r, 2) {
                a.headers.append("link", format!("<{BASE}/pages/2>; rel=prev").parse().unwrap());
                let mut links: Vec<_> = a.headers.get_all("link").iter().cloned().collect();
                links.reverse();
                a.headers.remove("link");
                for link in links {
                    a.headers.append("link", link);
                }
            }
        }),
        ("A feed page has its headers", |r, _, a| {
            if page(r, 2) {
                a.headers.remove("link");
            }
        }),
        ("A page has a multipart Content-Type", |r, _, a| {
            if page(r, 2) {
                a.headers.remove("last-modified");
            }
        }),
        ("A page is whole", |r, _, a| {
            if page(r, 2) {
                a.body.truncate(a.body.len() / 2);
            }
        }),
        ("A page has at least one entity", |r, _, a| {
            if page(r, 2) && is_get(r) {
                a.headers.insert("content-type", "multipart/mixed; boundary=x".parse().unwrap());
                a.body = "--x--".into();
            }
        }),
        ("The boundary is not found", |r, _, a| {
            if page(r, 2) && is_get(r) {
                let kind = a.headers["content-type"].to_str().unwrap();
                let boundary = kind.split('"').nth(1).unwrap().to_owned();
                text(a, "content of item 3\r\n--", &boundary);
                text(a, "Content-Length: 21\r\n", "");
            }
        }),
        ("A Content-Length is", |r, _, a| {
            text(a, "content of item 3", if page(r, 2) { "x" } else { "content of item 3" });
        }),
        ("Every entity has a Content-Type", |_, _, a| text(a, "Content-Type: text/plain\r\n", "")),
        ("has a Content-ID", |_, _, a| text(a, "Content-ID: <3@news>\r\n", "")),
        ("has an Operation-Type", |_, _, a| text(a, "Operation-Type: http-equiv=PUT\r\n", "")),
        ("A Content-ID is unique", |_, _, a| text(a, "<3@news>", "<2@news>")),
        ("An Operation-Type is PUT", |_, _, a| text(a, "=PUT", "=CUT")),
        ("An Operation-Type is written", |_, _, a| text(a, "http-equiv=PUT", "PUT")),
        // Later than the entities after it, while times may not decrease.
        ("Timestamps never decrease within", |_, _, a| text(a, "22:13:22", "22:59:22")),
        ("Timestamps have the form", |_, _, a| text(a, "Tue, 14 Nov", "Tue, 99 Nov")),
        ("A page's Last-Modified", |r, _, a| {
            if page(r, 2) {
                a.headers.insert("last-modified", "Tue, 14 Nov 2023 22:13:59 GMT".parse().unwrap());
            }
        }),
        ("A page with a next link does not change", |r, before, a| {
            if page(r, 2) && before == 1 {
                text(a, "content of item 3", "content of item X");
            }
        }),
        ("A page with a next link does not change", |r, before, a| {
            if page(r, 2) && before == 1 {
                a.body.truncate(a.body.len() / 2);
            }
        }),
        ("A snapshot's page does not change", |r, before, a| {
            if r.url.ends_with("snapshots/s/pages/0") && before == 1 {
                text(a, "content of item 1", "content of item X");
            }
        }),
        ("The index has the content type", |r, _, a| {
            if r.url == SNAPSHOT {
                a.headers.insert("content-type", "text/json".parse().unwrap());
            }
        }),
        ("The index fits its schema", |r, _, a| {
            if r.url == SNAPSHOT {
                text(a, "createdAt", "created");
            }
        }),
        ("Page addresses are absolute", |r, _, a| {
            if r.url == SNAPSHOT {
                text(a, "https://pub.example", "");
            }
        }),
        ("Every entity has a Last-Modified", |_, _, a| {
            text(a, "Last-Modified: Tue, 14 Nov 2023 22:13:22 GMT\r\n", "");
        }),
        ("Timestamps are written as IMF-fixdate", |_, _, a| {
            text(a, "Tue, 14 Nov 2023 22:13:22 GMT", "Tuesday, 14-Nov-23 22:13:22 GMT");
        }),
        // The last entity of a page, later than those of the next page.
        ("Timestamps never decrease across", |_, _, a| text(a, "22:13:23", "22:59:23")),
        ("The newest page only gains", |r, before, a| {
            if (r.url == BASE || page(r, 4)) && is_get(r) && before == 1 {
                text(a, "content of item 7", "content of item X");
            }
        }),
        ("A snapshot's index does not change", |r, before, a| {
            if r.url == SNAPSHOT && before == 1 {
                text(a, "\"createdAt\"", "\"x\":1,\"createdAt\"");
            }
        }),
        ("The feed forms no loop", |r, _, a| {
            if r.url == BASE || page(r, 4) {
                add_next(a, 1);
            }
        }),
        ("A next link leads to a page", |r, _, a| {
            if r.url == BASE || page(r, 4) {
                add_next(a, 5);
            }
        }),
    ];
    let publisher = publisher();
    let mut planted = PlantedFaults::new("Data Replication");
    for (number, (rule, change)) in cases.into_iter().enumerate() {
        let report = check(&publisher, change);
        let failed =
            report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail && !f.detail.is_empty());
        planted.judge(rule, &number.to_string(), failed.map(|finding| finding.rule.as_str()));
    }
    planted.assert_complete(replication_rules().iter().map(|rule| rule.text));
}
