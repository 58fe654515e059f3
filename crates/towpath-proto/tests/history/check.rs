//! The conformance check.

use bytes::Bytes;
use towpath_proto::follow::{Checker, Exchange, Now, Request};
use towpath_proto::history::check::{HistoryCheckOptions, HistoryChecker, chain_rules};
use towpath_proto::history::wire::Syntax;
use towpath_proto::report::{FindingOutcome, Level, Report};
use towpath_proto::{Item, Op};

use crate::planted::PlantedFaults;
use crate::publisher::HistoryPublisher;
use crate::web::{HistorySite, SiteResponse, atom, give, link, serve, site, start};

const FEED: &str = "http://a.example/feed";

fn check_as(url: &str, history: bool, mut serve: impl FnMut(&Request) -> Option<SiteResponse>) -> Report {
    let mut check =
        HistoryChecker::new(url, HistoryCheckOptions { history, ..HistoryCheckOptions::default() });
    let mut asked = 0;
    while let Some(request) = check.poll_request(Now::simulated(start())) {
        asked += 1;
        assert!(asked < 100, "requests without end");
        give(&mut check, start(), &request, serve(&request));
    }
    assert!(check.is_finished());
    check.report().clone()
}

fn check(site: &HistorySite) -> Report {
    check_as(FEED, true, serve(site))
}

#[track_caller]
fn fails(report: &Report, section: &str, rule: &str) {
    let found = report.findings.iter().find(|f| f.section == section && f.rule.contains(rule));
    let found = found.unwrap_or_else(|| panic!("{section}: {rule} was not tested: {:#?}", report.findings));
    assert_eq!(found.outcome, FindingOutcome::Fail, "{found:?}");
}

fn failures(report: &Report) -> Vec<String> {
    let failed = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail);
    failed.map(|f| format!("{} {}: {}", f.section, f.rule, f.detail)).collect()
}

#[test]
fn our_own_documents_conform() {
    for syntax in Syntax::ALL {
        let mut publisher = HistoryPublisher::new(3);
        for number in 0..30 {
            let id = format!("item {}", number % 12);
            let op = if number % 7 == 6 { Op::Delete } else { Op::Put };
            let modified = start() + std::time::Duration::from_secs(number);
            publisher.append(op, Item { title: Some(format!("v{number}")), ..Item::new(id) }, modified);
        }
        let url = publisher.info.newest_url(syntax);
        let report = check_as(&url, true, |request| Some(publisher.serve(request)));
        // No failures is also what a check that tests nothing reports.
        assert_eq!(failures(&report), Vec::<String>::new(), "{syntax:?}");
        assert!(report.count(Level::Should, FindingOutcome::Pass) > 8);
        let report = check_as(&url, false, |request| Some(publisher.serve(request)));
        assert_eq!(failures(&report), Vec::<String>::new(), "{syntax:?}");
    }
}

/// -00, sections 3 and 4.
#[test]
fn the_flag_and_its_links() {
    let report = check(&site(&[(FEED, atom("<fh:Stateful>maybe</fh:Stateful>", &[]))]));
    fails(&report, "draft-00 §3", "The flag is 0 or 1");
    let report = check(&site(&[(FEED, atom("<fh:Stateful>1</fh:Stateful>", &[]))]));
    fails(&report, "draft-00 §4", "has a link 'this'");
    assert!(report.findings.iter().all(|f| f.section != "draft-00 §4" || f.level == Level::Should));
    let flag = "<fh:Stateful>1</fh:Stateful>";
    // A permanent address may not be the one whose content changes.
    let own = atom(&format!("{flag}{}", link("this", "/feed")), &[]);
    fails(&check(&site(&[(FEED, own)])), "draft-00 §4", "unique to the document");
    let bad = atom(&format!("{flag}{}", link("this", "urn:x")), &[]);
    fails(&check(&site(&[(FEED, bad)])), "draft-00 §4", "'this' is a URI that can be");
    let newest = atom(&format!("{flag}{}{}", link("this", "/2"), link("prev", "/1")), &[("urn:a", "a", 1)]);
    let old = atom(&format!("{flag}{}", link("this", "/0")), &[]);
    let documents = [(FEED, newest), ("http://a.example/1", old.clone()), ("http://a.example/2", old)];
    let report = check(&site(&documents));
    fails(&report, "draft-00 §4", "'prev' is the last document's 'this'");
    fails(&report, "draft-00 §4", "has the entries of the document that names it");
    let complete = atom(&format!("<fh:Stateful>0</fh:Stateful>{}", link("prev-archive", "/1")), &[]);
    fails(&check(&site(&[(FEED, complete)])), "draft-01 §3", "links to no older one");
}

/// RFC 5005, section 4; the drafts' elements.
#[test]
fn archives() {
    let newest = atom(&link("prev-archive", "/2"), &[("urn:a", "new", 1)]);
    let second = atom(&link("prev-archive", "/1"), &[("urn:a", "old", 1)]);
    let documents = [(FEED, newest), ("http://a.example/2", second), ("http://a.example/1", atom("", &[]))];
    let report = check(&site(&documents));
    fails(&report, "RFC 5005 §4", "have fh:archive");
    fails(&report, "RFC 5005 §4", "'current'");
    fails(&report, "RFC 5005 §4", "'next-archive'");
    fails(&report, "RFC 5005 §4.1", "different dates");
    let looped = atom(&link("prev-archive", "/feed"), &[]);
    fails(&check(&site(&[(FEED, looped)])), "RFC 5005 §4", "no loop");
    let scheme = atom(&link("prev-archive", "ftp://a.example/1"), &[]);
    fails(&check(&site(&[(FEED, scheme)])), "RFC 5005 §4", "are URIs");
    let twice = atom("<fh:archive/><fh:archive/>", &[]);
    let report = check(&site(&[(FEED, twice)]));
    fails(&report, "draft-04 §4", "once");
    fails(&report, "draft-04 §4", "not marked as an archive");
    let gone = site(&[(FEED, atom(&link("prev-archive", "/1"), &[]))]);
    // RFC 5005, section 4.1: publishers may remove archives, so nothing was tested.
    let skipped = check(&gone).findings.into_iter().find(|f| f.section == "RFC 5005 §4.1").unwrap();
    assert_eq!(skipped.outcome, FindingOutcome::Skipped, "{skipped:?}");
    let mut broken = gone;
    broken.insert("http://a.example/1".into(), SiteResponse::status(500));
    fails(&check(&broken), "RFC 5005 §4.1", "Linked documents exist");
}

#[test]
fn changed_permanent_documents_are_reported() {
    let newest = atom(&format!("{}{}", link("this", "/t"), link("prev-archive", "/1")), &[("urn:a", "a", 1)]);
    let mut visits = 0;
    let report = check_as(FEED, true, |request| {
        // Other entries at each visit, as from a server that renders old pages anew.
        visits += 1;
        let head = if request.url == FEED { return Some(SiteResponse::ok(newest.clone())) } else { "" };
        Some(SiteResponse::ok(atom(head, &[(&format!("urn:{visits}"), "x", 1)])))
    });
    fails(&report, "draft-00 §4", "does not change");
    fails(&report, "RFC 5005 §4", "do not change");
}

/// RFC 4287, sections 3.3, 4.1 and 4.2.6.
#[test]
fn atom_basics() {
    let report =
        check(&site(&[(FEED, atom("", &[("urn:a", "a", 1), ("urn:a", "b", 1), ("urn:b", "c", 77)]))]));
    fails(&report, "RFC 4287 §3.3", "Dates");
    fails(&report, "RFC 4287 §4.1.1", "one updated");
    fails(&report, "RFC 4287 §4.1.1", "has an author");
    fails(&report, "RFC 4287 §4.1.1", "link to itself");
    fails(&report, "RFC 4287 §4.1.1", "different dates");
    fails(&report, "RFC 4287 §4.1.2", "content or a link");
    fails(&report, "RFC 4287 §7", "media type");
    fails(&report, "RFC 5005 §4", "has a history");
    fails(&report, "RFC 9110 §8.8", "ETag");
    assert!(!report.conforms());
    let bad_id = atom("", &[]).replace("urn:f", "no iri");
    fails(&check(&site(&[(FEED, bad_id)])), "RFC 4287 §4.2.6", "IRI");
    fails(&check(&site(&[(FEED, "<feed>&bad;".into())])), "XML 1.0 §2.1, RFC 8259", "well-formed");
    fails(&check(&HistorySite::new()), "RFC 5005 §4", "The newest document exists");
}

/// RFC 4287, sections 3.3 and 4.2.7.1; RFC 6721, section 3; and the dates of RSS 2.0: defects that tolerant parsers accept.
#[test]
fn defects_that_tolerant_parsers_accept_are_reported() {
    let updated = |text: &str| {
        let entry = format!("<entry><id>urn:a</id><title>a</title><updated>{text}</updated></entry>");
        check(&site(&[(FEED, atom(&entry, &[]))]))
    };
    for bad in [
        "Mon, 01 Jan 2020 00:00:00 GMT",
        "2020-01-01 00:00:00Z",
        // RFC 3339 allows "t" and " "; RFC 4287, section 3.3 demands an upper-case "T".
        "2020-01-01t00:00:00Z",
        "2020-01-01",
        // As many bytes as a date: cutting at fixed offsets would panic inside a character.
        "2020-01-01T\u{302}\u{302}45678",
    ] {
        fails(&updated(bad), "RFC 4287 §3.3", "Dates");
    }
    let is_date = |report: &Report| {
        !report.findings.iter().any(|f| f.rule == "Dates are dates" && f.outcome == FindingOutcome::Fail)
    };
    for good in ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00.5+01:00"] {
        assert!(is_date(&updated(good)), "{good}");
    }
    let head = |text: &str| check(&site(&[(FEED, atom(text, &[]))]));
    fails(&head("<link href='x y'/>"), "RFC 4287 §4.2.7.1", "IRI");
    fails(&head("<at:deleted-entry when='2020-01-01T00:00:00Z'/>"), "RFC 6721 §3", "ref and when");
    fails(&head("<at:deleted-entry ref='urn:a' when='nope'/>"), "RFC 6721 §3", "ref and when");
    let rss = |date: &str| {
        let item = format!("<item><title>t</title><pubDate>{date}</pubDate></item>");
        let rss = format!("<rss version='2.0'><channel>{item}</channel></rss>");
        check_as(FEED, false, |_| Some(SiteResponse::ok(rss.clone())))
    };
    fails(&rss("2020-01-01"), "RSS 2.0 and JSON Feed, dates", "Dates");
    // RFC 822: the weekday is optional, years may have two digits, zones may have names.
    for good in ["Wed, 01 Jan 2020 00:00:00 GMT", "1 Jan 20 00:00 EST"] {
        assert!(is_date(&rss(good)), "{good}");
    }
}

#[test]
fn rss_and_json_feed_basics() {
    let item = "<item><guid>1</guid></item>";
    let rss = format!("<rss version='0.91'><channel>{item}{item}</channel></rss>");
    let report = check_as(FEED, false, |_| Some(SiteResponse::ok(rss.clone())));
    for rule in ["title", "link", "description"] {
        fails(&report, "RSS 2.0, required channel elements", rule);
    }
    fails(&report, "RSS 2.0", "version");
    fails(&report, "RSS 2.0, elements of item", "title or a description");
    fails(&report, "RSS 2.0, elements of item", "different guids");
    assert!(report.findings.iter().all(|f| !f.section.starts_with("RFC 5005")), "the history is not checked");
    let json =
        // JSON Feed 1.1: ids are text. Readers should coerce numbers, so only a check notices.
        r#"{"version":"https://jsonfeed.org/version/1","items":[{"id":1},{"id":1,"date_published":"x"}]}"#;
    let report = check_as(FEED, false, |_| Some(SiteResponse::ok(Bytes::from_static(json.as_bytes()))));
    for rule in ["title", "id that is text", "content_html", "different ids"] {
        fails(&report, "JSON Feed 1.1", rule);
    }
    fails(&report, "RSS 2.0 and JSON Feed, dates", "Dates");
}

/// A chain of three documents with a `this`, and one fault planted in it.
#[test]
fn planted_faults_are_named() {
    let base = "http://a.example";
    let entry = |n: u32| {
        format!("<entry><id>urn:{n}</id><title>t</title><updated>2025-01-0{n}T00:00:00Z</updated></entry>")
    };
    let document = |head: &str, updated: &str, entries: &[u32]| {
        let entries: String = entries.iter().map(|n| entry(*n)).collect();
        let updated = format!("<updated>2025-01-{updated}T00:00:00Z</updated>");
        atom(&format!("{head}{updated}{entries}"), &[])
    };
    let archive = |newer: &str, older: &str| {
        let links = [("current", "/feed"), ("next-archive", newer), ("prev-archive", older)];
        let links: String =
            links.iter().filter(|(_, to)| !to.is_empty()).map(|(rel, to)| link(rel, to)).collect();
        format!("<fh:archive/>{links}")
    };
    let flag = "<fh:Stateful>1</fh:Stateful>";
    let newest = |links: &str| document(&format!("{flag}{links}"), "09", &[8, 9]);
    let sound: HistorySite = site(&[
        (FEED, newest(&format!("{}{}", link("this", "/this"), link("prev-archive", "/2")))),
        (
            "http://a.example/this",
            newest(&format!("{}{}", link("this", "/this"), link("prev-archive", "/2"))),
        ),
        ("http://a.example/2", document(&archive("", "/1"), "06", &[5, 6])),
        ("http://a.example/1", document(&archive("/2", ""), "04", &[3, 4])),
    ])
    .into_iter()
    .map(|(url, response)| (url, response.with("etag", "\"1\"")))
    .collect();
    let check_site = |site: &HistorySite| {
        check_as(FEED, true, |request| {
            let known = site.get(&request.url).cloned().unwrap_or_else(|| SiteResponse::status(404));
            let is_known = request.headers.get("if-none-match") == known.headers.get("etag");
            let is_same = request.headers.contains_key("if-none-match") && is_known;
            Some(if is_same { SiteResponse::status(304) } else { known })
        })
    };
    let failed = |report: &Report| -> Vec<String> {
        let failed = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail);
        let chain: Vec<&str> = chain_rules().iter().map(|rule| rule.text).collect();
        failed
            .filter(|f| chain.contains(&f.rule.as_str()))
            .map(|f| format!("{} {}", f.section, f.rule))
            .collect()
    };
    assert_eq!(failed(&check_site(&sound)), Vec::<String>::new());
    let mut planted = PlantedFaults::new("Feed History, chains");
    // Path of the document, text to replace, replacement, rule.
    let old_this = "<link rel='prev-archive' href='/2'/>";
    let faults = [
        ("/feed", "<link rel='this' href='/this'/>", "", "draft-00 §4 A document with the flag 1"),
        ("/feed", "href='/this'", "href='urn:x'", "draft-00 §4 The target of 'this' is a URI"),
        (
            "/feed",
            old_this,
            "<link rel='prev' href='mailto:x'/>",
            "draft-00 §4 The target of 'prev' is a URI",
        ),
        ("/feed", "href='/2'", "href='ftp://a.example/2'", "RFC 5005 §4 Links between"),
        ("/2", "rel='current' href='/feed'", "rel='current' href='urn:feed'", "RFC 5005 §4 Links between"),
        ("/feed", flag, "<fh:Stateful>0</fh:Stateful>", "draft-01 §3 A complete document"),
        ("/feed", flag, "<fh:Stateful>1</fh:Stateful><fh:archive/>", "draft-04 §4 The subscription document"),
        ("/feed", "href='/this'", "href='/feed'", "draft-00 §4 The target of 'this' is unique"),
        ("/this", "urn:8", "urn:7", "draft-00 §4 The document at 'this' has the entries"),
        ("/this", "urn:9", "urn:7", "draft-00 §4 The document at 'this' has the entries"),
        ("/2", "urn:6", "urn:9", "RFC 5005 §4.1 Two versions"),
        (
            "/2",
            "2025-01-06T00:00:00Z</updated><entry",
            "2025-02-06T00:00:00Z</updated><entry",
            "RFC 5005 §4 Older documents",
        ),
        ("/2", "<fh:archive/>", "", "RFC 5005 §4 Archive documents have fh:archive"),
        ("/1", "<fh:archive/>", "", "RFC 5005 §4 Archive documents have fh:archive"),
        (
            "/2",
            "<link rel='current' href='/feed'/>",
            "",
            "RFC 5005 §4 Archive documents name the subscription",
        ),
        (
            "/1",
            "rel='current' href='/feed'",
            "rel='current' href='/1'",
            "RFC 5005 §4 Archive documents name the subscription",
        ),
        (
            "/1",
            "<link rel='next-archive' href='/2'/>",
            "",
            "RFC 5005 §4 Archive documents name the archive after",
        ),
        (
            "/1",
            "rel='next-archive' href='/2'",
            "rel='next-archive' href='/3'",
            "RFC 5005 §4 Archive documents name the archive after",
        ),
        (
            "/1",
            "<fh:archive/>",
            "<fh:archive/><link rel='prev-archive' href='/2'/>",
            "RFC 5005 §4 The documents form no loop",
        ),
        (
            "/1",
            "<fh:archive/>",
            "<fh:archive/><link rel='prev-archive' href='/feed'/>",
            "RFC 5005 §4 The documents form no loop",
        ),
    ];
    for (path, from, to, rule) in faults {
        let mut site = sound.clone();
        let response = site.get_mut(&format!("{base}{path}")).unwrap();
        let text = String::from_utf8(response.body.to_vec()).unwrap();
        assert!(text.contains(from), "{from} is not in {path}");
        let replaced = if from == "urn:6" {
            // The version of an entry of the newest document, with its date and another title.
            text.replace(&entry(6), &entry(9).replace("<title>t", "<title>older"))
        } else {
            text.replacen(from, to, 1)
        };
        response.body = replaced.into();
        let named = failed(&check_site(&site));
        planted.judge(rule, &format!("{path} {from} -> {to}"), named.iter().map(String::as_str));
    }
    // A chain of the first draft, whose `prev` leads to a document with another permanent URL.
    let first = |this: &str, prev: &str, n: u32| {
        document(&format!("{flag}{}{}", link("this", this), link("prev", prev)), "09", &[n])
    };
    let drafts = site(&[
        (FEED, first("/b", "/a", 9)),
        ("http://a.example/b", first("/b", "/a", 9)),
        ("http://a.example/a", first("/other", "", 8)),
    ]);
    let named = failed(&check_site(&drafts));
    planted.judge(
        "draft-00 §4 The target of 'prev' is the last document's 'this'",
        "prev",
        named.iter().map(String::as_str),
    );
    // Documents that are missing or fail.
    for (path, status, rule) in [
        ("/feed", 404, "RFC 5005 §4 The newest document exists"),
        ("/this", 404, "draft-00 §4 Linked documents exist"),
        ("/2", 500, "RFC 5005 §4.1 Linked documents exist"),
        ("/1", 503, "RFC 5005 §4.1 Linked documents exist"),
    ] {
        let mut site = sound.clone();
        site.insert(format!("{base}{path}"), SiteResponse::status(status));
        planted.judge(
            rule,
            &format!("{path} {status}"),
            failed(&check_site(&site)).iter().map(String::as_str),
        );
    }
    // Documents that change between two requests, and validators.
    for (path, rule) in [
        ("/this", "draft-00 §4 The document at 'this' does not"),
        ("/2", "RFC 5005 §4 Archive documents do not"),
    ] {
        let mut visits = 0;
        let report = check_as(FEED, true, |request| {
            let mut response = sound.get(&request.url).cloned()?;
            if request.url == format!("{base}{path}") {
                visits += 1;
                response.body = [&response.body[..], " ".repeat(visits).as_bytes()].concat().into();
            }
            Some(response)
        });
        planted.judge(rule, path, failed(&report).iter().map(String::as_str));
    }
    let report = check_as(FEED, true, |request| sound.get(&request.url).cloned());
    planted.judge("RFC 9110 §13 A conditional request", "200", failed(&report).iter().map(String::as_str));
    let mut bare = sound.clone();
    bare.insert(FEED.into(), SiteResponse::ok(sound[FEED].body.clone()));
    planted.judge(
        "RFC 9110 §8.8 The newest document",
        "no ETag",
        failed(&check_site(&bare)).iter().map(String::as_str),
    );
    let plain = site(&[(FEED, document("", "09", &[8, 9]))]);
    planted.judge(
        "RFC 5005 §4 The feed has a history",
        "plain",
        failed(&check_site(&plain)).iter().map(String::as_str),
    );
    let rules: Vec<String> =
        chain_rules().iter().map(|rule| format!("{} {}", rule.section, rule.text)).collect();
    planted.assert_complete(rules.iter().map(String::as_str));
}

/// Items may be stored with any address and any id: by an earlier version, or because somebody published them so.
#[test]
fn our_own_documents_of_odd_items_conform() {
    let link = |attributes: &str| {
        format!(
            "<link xmlns=\"http://www.w3.org/2005/Atom\" rel=\"enclosure\" href=\"http://a.example/my file.mp3\"{attributes}/>"
        )
    };
    let extra = |value: serde_json::Value| value.as_object().unwrap().clone();
    let address = || Some("http://a.example/c d.html?q=100%|{x}".to_owned());
    let items = [
        Item { url: address(), ..Item::new("1") },
        Item { url: address(), ..Item::new(address().unwrap()) },
        Item { extra: extra(serde_json::json!({"xml": [link(" length=\"\"")]})), ..Item::new("2") },
        Item {
            extra: extra(serde_json::json!({"xml": [link(" type=\"audio/mpeg\" length=\"1.5 MB\"")]})),
            ..Item::new("3")
        },
        Item {
            extra: extra(serde_json::json!({"json_feed": {"image": "http://a.example/an image.png",
                "attachments": [{"url": "http://a.example/a b.mp3", "mime_type": "audio/mpeg"}]}})),
            ..Item::new("4")
        },
        Item {
            authors: vec![towpath_proto::Author {
                name: "A".into(),
                email: None,
                url: Some("http://a.example/a b".into()),
            }],
            ..Item::new("5")
        },
        Item::new("  "),
    ];
    for syntax in Syntax::ALL {
        let mut publisher = HistoryPublisher::new(3);
        for (number, item) in (0..).zip(&items) {
            let item = Item { title: Some("t".into()), ..item.clone() };
            publisher.append(Op::Put, item, start() + std::time::Duration::from_secs(number));
        }
        let url = publisher.info.newest_url(syntax);
        let report = check_as(&url, true, |request| Some(publisher.serve(request)));
        assert_eq!(failures(&report), Vec::<String>::new(), "{syntax:?}");
        let mut site = HistorySite::new();
        let result = crate::web::drive(
            &mut towpath_proto::history::follow::HistoryFollower::new(
                &url,
                towpath_proto::follow::StartFrom::Beginning,
                None,
                crate::web::once(),
            )
            .unwrap(),
            &mut start(),
            towpath_proto::Timestamp::MAX,
            |request| {
                Some(site.entry(request.url.clone()).or_insert_with(|| publisher.serve(request)).clone())
            },
        );
        let found: Vec<_> = result.changes.iter().map(|change| (&change.item.id, &change.item.url)).collect();
        let expected: Vec<_> = items.iter().map(|item| (&item.id, &item.url)).collect();
        assert_eq!(found, expected, "{syntax:?}: a follower finds the items as they are");
    }
}

/// RFC 4287, section 4.2.7.2: a registered relation and its IRI are equal.
#[test]
fn a_self_link_may_have_its_relation_as_an_iri() {
    let own = link("http://www.iana.org/assignments/relation/self", "/feed");
    let report = check(&site(&[(FEED, atom(&own, &[("urn:a", "a", 1)]))]));
    assert!(failures(&report).iter().all(|failure| !failure.contains("self")), "{:#?}", failures(&report));
}

#[test]
fn findings_show_values_as_they_are_written() {
    let entry = "<entry><id>urn:a</id><title>a</title><updated>2025-01-01T00:00:00Z</updated>\
        <content type='multipart/mixed'>x</content></entry>";
    let report = check(&site(&[(FEED, atom(entry, &[]))]));
    let failure = failures(&report).into_iter().find(|failure| failure.contains("multipart")).unwrap();
    assert!(failure.contains("type is \"multipart/mixed\""), "{failure}");
}
