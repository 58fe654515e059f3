//! Planted faults in Atom, RSS and JSON Feed documents are named, and sound documents have none.
//!
//! The corpus is `data/check/*.toml`: a sound document for each format, and replacements that plant one fault each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;

use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use towpath_proto::follow::{Checker, Exchange, Now, ResponseHead};
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::{FeedLink, atom, json_feed, rss};
use towpath_proto::history::check::{HistoryCheckOptions, HistoryChecker, document_rules};
use towpath_proto::report::{Finding, FindingOutcome, Report};
use towpath_proto::{Author, Content, Item, Timestamp};

/// A format's part of the corpus.
#[derive(Deserialize)]
struct Corpus {
    media_type: String,
    base: String,
    /// Section, part of the rule's text, then pairs of text and replacement.
    faults: Vec<Vec<String>>,
    /// Pairs of text and replacement.
    sound: Vec<Vec<String>>,
}

fn corpora() -> [Corpus; 3] {
    [
        include_str!("data/check/atom.toml"),
        include_str!("data/check/rss.toml"),
        include_str!("data/check/json_feed.toml"),
    ]
    .map(|text| toml::from_str(text).unwrap())
}

fn replaced(base: &str, pairs: &[String]) -> String {
    let mut text = base.to_owned();
    for pair in pairs.chunks(2) {
        assert!(text.contains(&pair[0]), "{:?} is not in the document", pair[0]);
        text = text.replacen(&pair[0], &pair[1], 1);
    }
    text
}

fn check(media_type: &str, body: &str) -> Report {
    let now = Now::simulated("2024-06-01T00:00:00Z".parse().unwrap());
    let options = HistoryCheckOptions { history: false, ..HistoryCheckOptions::default() };
    let mut checker = HistoryChecker::new("http://a.example/feed", options);
    let mut headers = HeaderMap::new();
    headers.insert("content-type", media_type.parse().unwrap());
    headers.insert("etag", "\"1\"".parse().unwrap());
    while let Some(request) = checker.poll_request(now) {
        let status = if request.headers.contains_key("if-none-match") { 304 } else { 200 };
        let head = ResponseHead { status, url: request.url, headers: headers.clone() };
        checker.handle_head(now, request.id, head);
        checker.handle_chunk(now, request.id, Bytes::from(body.to_owned()));
        checker.handle_end(now, request.id, Ok(()));
    }
    checker.report().clone()
}

fn failures(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.outcome == FindingOutcome::Fail).collect()
}

#[test]
fn planted_faults_are_named() {
    let (mut missed, mut count) = (Vec::new(), 0);
    for corpus in corpora() {
        for fault in &corpus.faults {
            let (section, rule) = (&fault[0], &fault[1]);
            let report = check(&corpus.media_type, &replaced(&corpus.base, &fault[2..]));
            let named = failures(&report)
                .into_iter()
                .any(|finding| finding.section.starts_with(section) && finding.rule.contains(rule));
            count += 1;
            if !named {
                missed.push(format!("{fault:?}: {:#?}", failures(&report)));
            }
        }
    }
    println!(
        "single documents: {} of {count} planted faults named, {} rules",
        count - missed.len(),
        document_rules().count()
    );
    assert!(count > 360, "{count}");
    assert!(missed.is_empty(), "{} of {count} missed: {}", missed.len(), missed.join("\n"));
}

#[test]
fn every_rule_has_a_planted_fault() {
    let mut unplanted: BTreeSet<(String, String)> =
        document_rules().map(|rule| (rule.section.to_owned(), rule.text.to_owned())).collect();
    for corpus in corpora() {
        for fault in &corpus.faults {
            let report = check(&corpus.media_type, &replaced(&corpus.base, &fault[2..]));
            for finding in failures(&report) {
                unplanted.remove(&(finding.section.clone(), finding.rule.clone()));
            }
        }
    }
    // The media type is not in the document.
    unplanted.retain(|(_, rule)| !rule.contains("served with its media type"));
    assert!(unplanted.is_empty(), "{unplanted:#?}");
}

#[test]
fn sound_documents_have_no_findings() {
    let mut count = 0;
    let mut sound = |media_type: &str, body: &str| {
        let report = check(media_type, body);
        assert!(failures(&report).is_empty(), "{:#?}\n{body}", failures(&report));
        count += 1;
    };
    for corpus in corpora() {
        sound(&corpus.media_type, &corpus.base);
        for pairs in &corpus.sound {
            sound(&corpus.media_type, &replaced(&corpus.base, pairs));
        }
    }
    // The same documents in every run, so that a failure can be looked at again.
    let mut random = fastrand::Rng::with_seed(16);
    let modified: Timestamp = "2025-01-24T09:00:00.5Z".parse().unwrap();
    let mut head = DocumentHead::new("https://a.example/feeds/x", "A title", modified);
    head.links =
        [("self", "https://a.example/feeds/x/atom?a=1&b=2"), ("hub", "https://a.example/feeds/x/hub")]
            .map(|(rel, href)| FeedLink { rel: rel.into(), href: href.into(), media_type: None })
            .into();
    head.home = Some("https://a.example/");
    for _ in 0..80 {
        let items: Vec<Item> = (0..6).map(|number| sound_item(number, &mut random)).collect();
        let entries = || items.iter().map(|item| DocumentEntry::new(item, modified));
        sound("application/atom+xml", &text(atom::write(&head, entries())));
        sound("application/rss+xml", &text(rss::write(&head, entries())));
        sound("application/feed+json", &text(json_feed::write(&head, entries())));
    }
    assert!(count > 280, "{count}");
}

/// Returns an item whose addresses and dates are sound, with any text and content.
fn sound_item(number: u32, random: &mut fastrand::Rng) -> Item {
    let words = ["a & b", "<p>x</p>", "é 😀", "]]>", " spaced ", "line\nbreak", "\"quoted\"", "plain"];
    let contents: [(&str, &[u8]); 8] = [
        ("text/html", b"<p>Hello <b>you</b> &amp; me</p>"),
        ("text/plain", b"a < b && c"),
        ("text/markdown", b"# x\n\n<y>"),
        ("application/xhtml+xml", b"<div xmlns=\"http://www.w3.org/1999/xhtml\"><p>x</p></div>"),
        ("application/json", b"{\"a\": [1, null]}"),
        ("application/xml", b"<?xml version=\"1.0\"?><a b=\"c\"><d/></a>"),
        ("image/png", &[0x89, 0x50, 0, 0xFF]),
        ("application/octet-stream", b""),
    ];
    let mut word = || random.choice(words).unwrap().to_owned();
    let (title, summary, name, tag) = (word(), word(), word(), word());
    let ids =
        [format!("urn:x:{number}"), format!("{number} any text"), format!("http://a.example/{number}?é=1")];
    let mut item = Item::new(random.choice(ids).unwrap());
    item.title = random.bool().then_some(title);
    item.summary = random.bool().then_some(summary);
    item.url = random.bool().then(|| format!("https://a.example/{number}"));
    item.tags = if random.bool() { vec![tag, "t".into()] } else { Vec::new() };
    let email = random.bool().then(|| "ann@a.example".to_owned());
    let url = random.bool().then(|| "https://a.example/ann".to_owned());
    item.authors = if random.bool() { vec![Author { name, email, url }] } else { Vec::new() };
    let seconds = random.i64(0..4_000_000_000);
    item.published = random.bool().then(|| Timestamp::from_second(seconds).unwrap());
    item.updated = random.bool().then(|| Timestamp::from_millisecond(seconds * 1000 + 5).unwrap());
    let (media_type, bytes) = random.choice(contents).unwrap();
    item.content = (random.u8(..) > 40)
        .then(|| Content { media_type: media_type.into(), bytes: Bytes::from_static(bytes) });
    item
}

fn text(bytes: impl Into<Vec<u8>>) -> String {
    String::from_utf8(bytes.into()).unwrap()
}

/// Every entry is tested, and the place of the first fault is told with the number of the others.
#[test]
fn all_entries_are_tested() {
    let [corpus, ..] = corpora();
    let entry = |n: usize, date: &str| {
        format!(
            "<entry><id>urn:{n}x</id><title>t</title><updated>{date}</updated><content>c</content></entry>\n"
        )
    };
    let many: String =
        (0..5000).map(|n| entry(n, if n >= 4998 { "yesterday" } else { "2024-05-06T07:08:09Z" })).collect();
    let text = corpus.base.replacen("<at:deleted-entry", &format!("{many}<at:deleted-entry"), 1);
    let report = check("application/atom+xml", &text);
    let dates = failures(&report).into_iter().find(|finding| finding.rule == "Dates are dates").unwrap();
    assert!(dates.detail.contains("entry 5004, line "), "{}", dates.detail);
    assert!(dates.detail.contains("(and 1 more)"), "{}", dates.detail);
}
