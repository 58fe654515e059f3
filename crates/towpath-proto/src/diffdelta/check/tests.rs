use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use super::*;
use crate::diffdelta::publish::testing::{TestSource, at};
use crate::diffdelta::publish::{PublishedDocuments, Repeats};
use crate::diffdelta::wire::headers::Resource;
use crate::diffdelta::{GlobalChain, GlobalPublisher, PendingDeltas, discovery};
use crate::follow::{Exchange as _, Now, ResponseHead};
use crate::item::Item;
use crate::planted::PlantedFaults;
use crate::report::{FindingOutcome, Level};

const BASE: &str = "http://127.0.0.1:8080";

/// A site in memory: every document with its headers.
struct SiteInMemory {
    documents: Vec<(String, HeaderMap, Vec<u8>)>,
    /// Ignores conditional requests: every document is answered with 200.
    ignores_validators: bool,
}

impl SiteInMemory {
    /// Builds a site with a source of four mints, an optional carry, and the global feed.
    fn new(carried: bool) -> Self {
        let mut p = TestSource::new("ab");
        let (mut pending, mut global_snapshots) = (PendingDeltas::new(), Vec::new());
        let mut state = GlobalChain::default();
        let mut global_latest = None;
        for n in 1..=4 {
            for id in 0..n {
                let title = Some(format!("{n}"));
                p.put(Item { title, published: Some(at(9 - id)), ..Item::new(format!("i{id}")) }, at(n));
            }
            pending.add(p.run_rendered(at(n)).1);
            let global = GlobalPublisher { site: &p.site, ttl_sec: 60 };
            let chains = [(p.source(), &p.chain)];
            let snapshot = global_latest.as_ref().map(|last: &PublishedDocuments| last.latest.clone());
            let repeats = Repeats::of(&state.chain, 60, &snapshot.unwrap_or_default(), at(n));
            let (published, next) =
                global.mint(&state, &chains, std::mem::take(&mut pending), repeats, at(n));
            state = next;
            global_snapshots.push((published.snapshot.clone().unwrap().entry, published.latest.to_vec()));
            global_latest = Some(published);
        }
        if carried {
            p.chain.health.failed("TIMEOUT", None);
            p.carry(at(70));
        }
        let mut site = Self { documents: Vec::new(), ignores_validators: false };
        let global = global_latest.unwrap();
        let cursor = p.chain.cursor;
        site.add("/diff/ab/head.json", Resource::Head, cursor, &p.head);
        site.add("/diff/ab/latest.json", Resource::Latest, cursor, &p.latest);
        site.add("/archive/ab/index.json", Resource::ArchiveIndex, cursor, &p.index());
        site.add("/diff/head.json", Resource::Head, state.chain.cursor, &global.head);
        site.add("/diff/latest.json", Resource::Latest, state.chain.cursor, &global.latest);
        for (snapshot, document) in p.snapshots.iter().chain(&global_snapshots) {
            site.add(&snapshot.url, Resource::Snapshot, cursor, document);
        }
        let entries = global_snapshots.into_iter().map(|(s, _)| s).collect();
        let index = discovery::archive_index("_global", entries);
        site.add("/archive/_global/index.json", Resource::ArchiveIndex, cursor, &index);
        let manifest = discovery::manifest(&p.site, &[p.source()], 60, at(5));
        site.add("/.well-known/diffdelta.json", Resource::Manifest, cursor, &manifest);
        for (path, schema) in discovery::schemas(&p.site) {
            site.add(&path, Resource::Schema, cursor, &schema);
        }
        site
    }

    fn add(&mut self, path: &str, resource: Resource, cursor: Cursor, body: &[u8]) {
        self.documents.push((path.to_owned(), resource.headers(cursor, body), body.to_vec()));
    }

    fn document(&mut self, path: &str) -> &mut (String, HeaderMap, Vec<u8>) {
        self.documents.iter_mut().find(|(p, ..)| p.contains(path)).unwrap()
    }

    /// Replaces a member of a JSON document.
    fn set(&mut self, path: &str, pointer: &str, value: Value) {
        let (_, _, body) = self.document(path);
        let mut document: Value = serde_json::from_slice(body).unwrap();
        match document.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => {
                let (parent, name) = pointer.rsplit_once('/').unwrap();
                document.pointer_mut(parent).unwrap()[name] = value;
            }
        }
        *body = serde_json::to_vec(&document).unwrap();
    }

    fn remove(&mut self, path: &str) {
        self.documents.retain(|(p, ..)| !p.contains(path));
    }

    fn answer(&self, request: &Request) -> (u16, HeaderMap, &[u8]) {
        let path = request.url.strip_prefix(BASE).unwrap();
        let Some((_, headers, body)) = self.documents.iter().find(|(p, ..)| p == path) else {
            return (404, HeaderMap::new(), b"");
        };
        let same = request.headers.get("if-none-match").is_some_and(|v| Some(v) == headers.get("etag"));
        if same && !self.ignores_validators {
            (304, headers.clone(), b"")
        } else {
            (200, headers.clone(), body)
        }
    }

    fn check(&self, address: &str) -> Report {
        self.check_with(address, |_, body| body.to_vec())
    }

    /// Runs the check; `change` may replace the body of each response.
    fn check_with(&self, address: &str, mut change: impl FnMut(&str, &[u8]) -> Vec<u8>) -> Report {
        let mut checker = DiffDeltaChecker::new(&format!("{BASE}{address}")).unwrap();
        let mut asked = 0;
        while let Some(request) = checker.poll_request(Now::simulated(at(0))) {
            asked += 1;
            assert!(asked < 100, "an unbounded check");
            let (status, headers, body) = self.answer(&request);
            let body = change(&request.url, body);
            checker.handle_head(
                Now::simulated(at(0)),
                request.id,
                ResponseHead { status, url: request.url, headers },
            );
            checker.handle_chunk(Now::simulated(at(0)), request.id, Bytes::from(body));
            checker.handle_end(Now::simulated(at(0)), request.id, Ok(()));
        }
        assert!(checker.is_finished());
        let report = checker.report().clone();
        assert_eq!(report.findings.len(), rules::ALL.len(), "every rule is reported");
        report
    }
}

fn failures(report: &Report) -> Vec<(&str, &str)> {
    let failed = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Fail);
    failed.map(|f| (f.rule.as_str(), f.detail.as_str())).collect()
}

/// Asserts that this rule fails; if `alone`, that no other rule does.
fn assert_fails(report: &Report, rule: Rule, alone: bool) {
    let failures = failures(report);
    assert!(failures.iter().any(|(text, _)| *text == rule.text), "{}: {failures:#?}", rule.text);
    assert!(!alone || failures.len() == 1, "{failures:#?}");
}

#[test]
fn our_own_documents_conform() {
    for carried in [false, true] {
        let site = SiteInMemory::new(carried);
        for address in ["", "/diff/ab", "/diff/ab/head.json", "/diff/latest.json"] {
            let report = site.check(address);
            assert_eq!(failures(&report), [], "{address}");
            let passed = report.count(Level::Must, FindingOutcome::Pass)
                + report.count(Level::Should, FindingOutcome::Pass);
            assert!(passed >= 30, "{address}: only {passed} rules were seen");
        }
    }
    let report = SiteInMemory::new(true).check("");
    let skipped: Vec<_> = report.findings.iter().filter(|f| f.outcome == FindingOutcome::Skipped).collect();
    assert!(skipped.iter().all(|f| f.section == "§1.3"), "{skipped:#?}");
}

/// Members to corrupt, by document and pointer, and the rules that they violate.
fn members() -> Vec<(&'static str, &'static str, Value, Rule)> {
    let zero = Cursor::ZERO.to_string();
    vec![
        ("/diff/ab/head.json", "/latest_url", Value::Null, rules::HEAD_FIELDS),
        ("/diff/ab/head.json", "/cursor", json!(zero), rules::HEAD_AGREES),
        ("/diff/ab/head.json", "/hash", json!(zero), rules::HASH),
        ("/diff/ab/head.json", "/ttl_sec", json!(5), rules::TTL),
        ("/diff/ab/head.json", "/changed", json!(false), rules::CHANGED),
        ("/diff/ab/latest.json", "/cursor", json!("sha256:AB"), rules::CURSOR_FORM),
        ("/diff/ab/latest.json", "/generated_at", json!("yesterday"), rules::GENERATED),
        ("/diff/ab/latest.json", "/cursor_basis", json!("other"), rules::BASIS),
        ("/diff/ab/latest.json", "/sources_included", json!(["bb", "aa"]), rules::INCLUDED),
        ("/diff/ab/latest.json", "/sources/ab/changed", json!(false), rules::CHANGED_SOURCES),
        ("/diff/ab/latest.json", "/sources/ab/status", json!("error"), rules::STALE),
        ("/diff/ab/latest.json", "/sources/ab/status", json!("error"), rules::STALE_CODE),
        ("/diff/ab/latest.json", "/sources/ab/status", json!("disabled"), rules::STALE_CODE),
        ("/diff/ab/latest.json", "/sources/ab/status", json!("disabled"), rules::STALE_SINCE),
        ("/diff/ab/latest.json", "/cursor", json!(zero), rules::ZERO),
        ("/diff/ab/latest.json", "/buckets/new", json!({}), rules::SCHEMA),
        ("/diff/ab/latest.json", "/sources_included", json!(["ab", "zz"]), rules::NAMED),
        ("/diff/ab/latest.json", "/sources", json!({}), rules::NAMED),
        ("/diff/ab/latest.json", "/sources/ab/delta_counts/updated", json!(7), rules::COUNTS),
        ("/diff/ab/latest.json", "/ttl_sec", json!(61), rules::ARCHIVE_SAME),
        ("/archive/ab/2026", "/ttl_sec", json!(61), rules::CANONICAL),
        // `prev_hash` is volatile: the cursor still holds, and only the file's hash differs.
        ("/archive/ab/2026", "/prev_hash", json!("x"), rules::HASH),
        ("/archive/ab/2026", "/generated_at", json!("2020-01-01T00:00:00Z"), rules::ARCHIVE),
        ("/archive/ab/index.json", "/snapshots/2/prev_cursor", json!("x"), rules::CHAIN),
        ("/archive/ab/index.json", "/snapshots/0/prev_cursor", json!("x"), rules::FIRST),
        ("/archive/ab/index.json", "/snapshots/1/generated_at", json!("2036-01-01T00:00:00Z"), rules::TIMES),
        ("/archive/ab/index.json", "/snapshots/3/url", json!("/gone"), rules::ARCHIVE),
        ("/.well-known", "/capabilities/etag_supported", json!(false), rules::MANIFEST_CAPABLE),
        ("/.well-known", "/polling", json!({}), rules::MANIFEST_FIELDS),
        ("/.well-known", "/limits", json!({}), rules::MANIFEST_SCHEMA),
    ]
}

fn texts(report: &Report) -> impl Iterator<Item = &str> {
    failures(report).into_iter().map(|(text, _)| text)
}

/// Members, headers and whole documents, one fault at a time. The tests below say more of some of them.
#[test]
fn planted_faults_are_named() {
    let mut planted = PlantedFaults::new("DiffDelta");
    for (path, pointer, value, rule) in members() {
        let mut site = SiteInMemory::new(false);
        site.set(path, pointer, value.clone());
        planted.judge(rule.text, &format!("{path}{pointer} = {value}"), texts(&site.check("/diff/ab")));
    }
    for (path, header, value, rule) in HEADERS {
        let mut site = SiteInMemory::new(false);
        set_header(&mut site.document(path).1, header, value);
        planted.judge(rule.text, &format!("{path} {header}: {value}"), texts(&site.check("/diff/ab")));
    }
    for (path, rule) in MISSING {
        let mut site = SiteInMemory::new(false);
        site.remove(path);
        planted.judge(rule.text, &format!("no {path}"), texts(&site.check("/diff/ab")));
    }
    let mut site = SiteInMemory::new(false);
    site.ignores_validators = true;
    planted.judge(rules::NOT_MODIFIED.text, "no 304", texts(&site.check("/diff/ab")));
    planted.judge(rules::ARCHIVE_STAYS.text, "another snapshot", texts(&changed_snapshot()));
    for (site, rule) in [
        (repeated_item(), rules::ONCE),
        (wrong_age(), rules::STALE_AGE),
        (unsorted(), rules::SORTED),
        (unsorted(), rules::FLAGGED),
        (python_number(), rules::JCS),
        (unsorted_sources(), rules::SOURCES),
        (equal_cursors(), rules::CURSOR_SAME),
    ] {
        planted.judge(rule.text, "a document", texts(&site.check("/diff/ab")));
    }
    planted.judge(
        rules::AVAILABLE.text,
        "a source that is not there",
        texts(&unavailable_source().check("")),
    );
    planted.assert_complete(diffdelta_rules().iter().map(|rule| rule.text));
}

/// A run within the second of the one before changes the hash, and no time.
#[test]
fn a_document_that_changes_between_two_requests_does_not_contradict_its_head() {
    let mut site = SiteInMemory::new(true);
    site.ignores_validators = true;
    let has_failed = |changes: bool| {
        let mut heads = 0;
        let report = site.check_with("/diff/ab", |url, body| {
            heads += u32::from(url.ends_with("/head.json"));
            if !url.ends_with("/head.json") || (changes && heads > 1) {
                return body.to_vec();
            }
            let mut head: Value = serde_json::from_slice(body).unwrap();
            head["hash"] = json!(Cursor::ZERO.to_string());
            serde_json::to_vec(&head).unwrap()
        });
        failures(&report).iter().any(|(rule, _)| *rule == rules::HASH.text)
    };
    assert!(has_failed(false));
    assert!(!has_failed(true));
}

/// A snapshot whose second visit has other bytes.
fn changed_snapshot() -> Report {
    let site = SiteInMemory::new(false);
    let mut seen = std::collections::HashSet::new();
    site.check_with("/diff/ab", |url, body| {
        let is_again = url.contains("/archive/ab/2026") && !seen.insert(url.to_owned());
        if is_again { [body, b" "].concat() } else { body.to_vec() }
    })
}

/// Keys of `sources` in another order than the alphabet's.
fn unsorted_sources() -> SiteInMemory {
    let mut site = SiteInMemory::new(false);
    let (_, _, body) = site.document("/diff/ab/latest.json");
    let text = String::from_utf8(body.clone()).unwrap();
    assert!(text.contains("\"sources\":{\"ab\":"), "{text}");
    *body = text.replacen("\"sources\":{", "\"sources\":{\"zz\":{},", 1).into_bytes();
    site
}

/// A carried document that shows other items than the snapshot with its cursor.
fn equal_cursors() -> SiteInMemory {
    let mut site = SiteInMemory::new(true);
    for bucket in ["new", "updated", "flagged"] {
        site.set("/diff/ab/latest.json", &format!("/buckets/{bucket}"), json!([]));
    }
    site
}

/// Sections 4, 5 and 8: items twice, a wrong age, a source that is listed and does not exist.
#[test]
fn whole_documents_are_tested() {
    assert_fails(&repeated_item().check("/diff/ab"), rules::ONCE, false);
    assert_fails(&wrong_age().check("/diff/ab"), rules::STALE_AGE, false);
    assert_fails(&unavailable_source().check(""), rules::AVAILABLE, true);
}

fn repeated_item() -> SiteInMemory {
    let mut site = SiteInMemory::new(false);
    let document: Value = serde_json::from_slice(&site.document("/diff/ab/latest.json").2).unwrap();
    let mut items: Vec<Value> = Vec::new();
    for bucket in ["new", "updated", "flagged"] {
        items.extend(document["buckets"][bucket].as_array().unwrap().clone());
    }
    site.set("/diff/ab/latest.json", "/buckets/removed", json!([items[0].clone()]));
    site
}

fn wrong_age() -> SiteInMemory {
    let mut site = SiteInMemory::new(true);
    site.set("/diff/ab/latest.json", "/sources/ab/stale_age_sec", json!(9_000_000));
    site
}

fn unavailable_source() -> SiteInMemory {
    let mut site = SiteInMemory::new(false);
    site.set("/.well-known", "/sources_supported", json!(["ab", "gone"]));
    site
}

/// Sections 4 and 9: unsorted items, and risky items outside the flagged bucket.
#[test]
fn buckets_out_of_order_or_in_the_wrong_place_are_found() {
    let report = unsorted().check("/diff/ab");
    assert_fails(&report, rules::SORTED, false);
    assert_fails(&report, rules::FLAGGED, false);
}

fn unsorted() -> SiteInMemory {
    let mut site = SiteInMemory::new(false);
    let document: Value = serde_json::from_slice(&site.document("/diff/ab/latest.json").2).unwrap();
    let mut all: Vec<Value> = Vec::new();
    for bucket in ["new", "updated", "flagged"] {
        all.extend(document["buckets"][bucket].as_array().unwrap().clone());
    }
    all.sort_by_key(|i| i["published_at"].as_str().unwrap().to_owned());
    all.reverse();
    let risky = all.iter().any(|i| i["risk"]["score"].as_f64().unwrap() >= 0.4);
    assert!(risky && all.len() > 1);
    for bucket in ["new", "updated", "flagged", "removed"] {
        site.set("/diff/ab/latest.json", &format!("/buckets/{bucket}"), json!([]));
    }
    site.set("/diff/ab/latest.json", "/buckets/updated", json!(all));
    site
}

/// Sections 1 and 6: document, header, value (empty for none) and rule.
const HEADERS: [(&str, &str, &str, Rule); 8] = [
    ("/diff/ab/head.json", "etag", "", rules::ETAG),
    ("/diff/ab/latest.json", "etag", "\"md5\"", rules::ETAG_CURSOR),
    ("/diff/ab/head.json", "content-type", "application/json", rules::TYPE),
    ("/diff/ab/latest.json", "cdn-cache-control", "", rules::CDN),
    ("/archive/ab/index.json", "content-type", "text/plain", rules::TYPE),
    ("/diff/ab/head.json", "cache-control", "max-age=300", rules::CACHE),
    ("/archive/ab/2026", "cache-control", "max-age=300", rules::CACHE_ARCHIVE),
    ("/schema/v1/diff", "cache-control", "max-age=300", rules::CACHE_SCHEMA),
];

/// Sections 1 and 6: each header for itself.
#[test]
fn every_missing_header_is_found() {
    for (path, header, value, rule) in HEADERS {
        let mut site = SiteInMemory::new(false);
        set_header(&mut site.document(path).1, header, value);
        // What caches are told is told twice, so one wrong value has two findings.
        assert_fails(&site.check("/diff/ab"), rule, header != "cache-control");
    }
}

fn set_header(headers: &mut HeaderMap, name: &'static str, value: &'static str) {
    let name = HeaderName::from_static(name);
    if value.is_empty() {
        headers.remove(name);
    } else {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Section 6.2.
#[test]
fn a_server_that_never_answers_304_is_found() {
    let mut site = SiteInMemory::new(false);
    site.ignores_validators = true;
    assert_fails(&site.check("/diff/ab"), rules::NOT_MODIFIED, true);
}

/// Sections 1 and 8: documents, and the rules that demand them.
const MISSING: [(&str, Rule); 5] = [
    ("/.well-known", rules::MANIFEST),
    ("/diff/latest.json", rules::GLOBAL),
    ("/diff/ab/head.json", rules::HEAD_FIELDS),
    ("/diff/ab/latest.json", rules::LATEST),
    ("/archive/ab/2026", rules::ARCHIVE),
];

#[test]
fn missing_documents_are_found() {
    for (path, rule) in MISSING {
        let mut site = SiteInMemory::new(false);
        site.remove(path);
        assert_fails(&site.check("/diff/ab"), rule, true);
    }
}

/// A publisher without our archive index: its newest snapshot is requested at the path of section 1.3.
#[test]
fn a_publisher_without_an_index_is_checked_too() {
    let mut site = SiteInMemory::new(false);
    site.remove("index.json");
    let report = site.check("/diff/ab");
    assert_eq!(failures(&report), []);
    let outcome = |rule: Rule| report.findings.iter().find(|f| f.rule == rule.text).unwrap().outcome;
    assert_eq!(outcome(rules::CHAIN), FindingOutcome::Skipped);
    for rule in [rules::CANONICAL, rules::ARCHIVE_SAME, rules::ARCHIVE_STAYS] {
        assert_eq!(outcome(rule), FindingOutcome::Pass, "{}", rule.text);
    }
    site.remove("/.well-known");
    let report = site.check("");
    assert_fails(&report, rules::MANIFEST, true);
    assert_eq!(
        report.findings.iter().find(|f| f.rule == rules::LATEST.text).unwrap().outcome,
        FindingOutcome::Pass
    );
}

/// Section 3.1: a number that only Python writes this way still proves the cursor, with a finding.
#[test]
fn either_form_proves_a_cursor() {
    let report = python_number().check("/diff/ab");
    let of = |rule: Rule| report.findings.iter().find(|f| f.rule == rule.text).unwrap().outcome;
    assert_eq!((of(rules::CANONICAL), of(rules::JCS)), (FindingOutcome::Pass, FindingOutcome::Fail));
}

fn python_number() -> SiteInMemory {
    let mut site = SiteInMemory::new(false);
    site.remove("index.json");
    site.remove("/archive/");
    let (_, _, body) = site.document("/diff/ab/latest.json");
    // Python writes 60.0 as it is, and RFC 8785 writes 60.
    let text = String::from_utf8(body.clone()).unwrap().replace("\"ttl_sec\":60}", "\"ttl_sec\":60.0}");
    let cursor =
        crate::diffdelta::wire::cursor::recompute(text.as_bytes(), crate::format::jcs::Style::Python)
            .unwrap();
    *body = text.into_bytes();
    site.set("/diff/ab/latest.json", "/cursor", json!(cursor.to_string()));
    site
}

/// Section 4: the order is checked on the text as served, because parsers lose it.
#[test]
fn the_order_of_sources_is_checked_in_the_text() {
    assert_eq!(rules::source_order(br#"{"sources":{"a":{},"b":{}}}"#), None);
    assert!(rules::source_order(br#"{"sources":{"b":{},"a":{}}}"#).unwrap().contains("b stands before a"));
}

#[test]
fn a_dead_server_fails_the_check_and_ends_it() {
    for address in ["", "/diff/ab"] {
        let mut checker = DiffDeltaChecker::new(&format!("{BASE}{address}")).unwrap();
        while let Some(request) = checker.poll_request(Now::simulated(at(0))) {
            checker.handle_end(
                Now::simulated(at(0)),
                request.id,
                Err(TransferError::Connect("refused".into())),
            );
        }
        assert!(checker.is_finished() && !checker.report().conforms());
    }
    assert!(DiffDeltaChecker::new("nowhere").is_err());
}
