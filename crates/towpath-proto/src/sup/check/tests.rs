//! Checks of our own publisher and of broken ones.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::follow::{Checker, Exchange, Now, ResponseHead};
use crate::planted::PlantedFaults;
use crate::report::{FindingOutcome, Level, Report};
use crate::sup::check::{SupChecker, rules, sup_rules};
use crate::sup::publish::RecentUpdates;
use crate::sup::wire::discovery::{REL, SupLink, X_SUP_ID};
use crate::sup::wire::id::SupId;

const FEED: &str = "https://a.example/feeds/x/atom";
const SUP: &str = "https://a.example/sup.json";

/// Responses by URL: headers and body. An unknown URL responds with 404.
#[derive(Clone, Default)]
struct SupSite(HashMap<String, (SiteHeaders, String)>);

type SiteHeaders = Vec<(&'static str, String)>;

impl SupSite {
    fn put(&mut self, url: &str, headers: &[(&'static str, &str)], body: &str) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.0.insert(url.into(), (headers, body.to_owned()));
    }

    fn check(&self, url: &str) -> Report {
        let (mut checker, now) = (SupChecker::new(url), "2024-01-01T00:00:00Z".parse().unwrap());
        while let Some(request) = checker.poll_request(Now::simulated(now)) {
            let mut headers = HeaderMap::new();
            let response = self.0.get(&request.url);
            for (name, value) in response.iter().flat_map(|(headers, _)| headers) {
                headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
            }
            let status = if response.is_some() { 200 } else { 404 };
            checker.handle_head(
                Now::simulated(now),
                request.id,
                ResponseHead { status, url: request.url, headers },
            );
            let body = response.map_or(String::new(), |(_, body)| body.clone());
            checker.handle_chunk(Now::simulated(now), request.id, Bytes::from(body));
            checker.handle_end(Now::simulated(now), request.id, Ok(()));
        }
        assert!(checker.is_finished());
        checker.report().clone()
    }
}

/// Our own publisher's site.
fn ours() -> SupSite {
    let (mut site, now) = (SupSite::default(), "2024-01-01T00:00:00Z".parse().unwrap());
    let mut recent = RecentUpdates::default();
    recent.record(SupId::of(FEED), 7, now);
    for seconds in [60, 300, 3600, 86400] {
        let body = recent.document(now, seconds, SUP).body;
        site.put(&format!("{SUP}?seconds={seconds}"), &[("content-type", "application/json")], &body);
        if seconds == 60 {
            site.put(SUP, &[("content-type", "application/json")], &body);
        }
    }
    let link = SupLink::new(SUP, FEED);
    let feed = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><id>x</id><title>x</title><updated>2024-01-01T00:00:00Z\
         </updated><link rel='{REL}' type='application/json' href='{}'/></feed>",
        link.href()
    );
    site.put(FEED, &[("content-type", "application/atom+xml"), ("x-sup-id", &link.href())], &feed);
    site
}

fn failed(report: &Report) -> Vec<&str> {
    let failed = report.findings.iter().filter(|finding| finding.outcome == FindingOutcome::Fail);
    failed.map(|finding| finding.rule.as_str()).collect()
}

#[test]
fn our_own_feeds_pass_everything() {
    let report = ours().check(FEED);
    assert!(report.findings.iter().all(|f| f.outcome == FindingOutcome::Pass), "{report:#?}");
    assert_eq!(report.findings.len(), 22, "every rule is tested");
    assert!(ours().check(SUP).conforms());
    assert_eq!(ours().check(SUP).count(Level::Must, FindingOutcome::Skipped), 3);
}

/// The page of a feed, in JSON, leads to the document.
#[test]
fn a_page_in_json_leads_to_the_document() {
    let mut site = ours();
    let link = SupLink::new(SUP, FEED).href();
    let page = "https://a.example/feeds/x";
    site.put(page, &[("content-type", "application/json"), ("x-sup-id", &link)], "{\"id\": \"x\"}");
    let report = site.check(page);
    assert_eq!(failed(&report), [""; 0], "{report:#?}");
    assert!(report.count(Level::Must, FindingOutcome::Pass) > 10, "{report:#?}");
}

/// Sections 3 to 5: each case breaks one thing, and only its rules fail.
#[test]
fn sections_3_to_5_document_errors_are_found() {
    for (from, to, rules) in [
        ("\"updates\"", "\"changes\"", vec![rules::UPDATES]),
        ("],\"period\"", ",],\"period\"", vec![rules::JSON]),
        ("\"period\":60", "\"period\":\"60\"", vec![rules::PERIOD]),
        ("\"period\":60", "\"period\":0", vec![rules::PERIOD]),
        ("\"period\":60", "\"period\":130", vec![rules::OVERLAP, rules::USUAL_PERIOD]),
        ("\"period\":60", "\"period\":131", vec![rules::WINDOW, rules::OVERLAP, rules::USUAL_PERIOD]),
        ("\"since_time\":\"2023-12-31T", "\"since_time\":\"2023-12-31 ", vec![rules::SINCE_TIME]),
        (
            "\"updated_time\":\"2024-01-01T00:00:00Z\"",
            "\"updated_time\":1704067200",
            vec![rules::UPDATED_TIME],
        ),
        ("\"2024-01-01T00:00:00Z\"", "\"2025-01-01T00:00:00Z\"", vec![rules::RECENT]),
        ("{\"300\"", "{\"5 minutes\"", vec![rules::PERIODS]),
        ("\"https://a.example/sup.json?seconds=300\"", "300", vec![rules::PERIODS]),
        (".json?seconds=300", ".json?seconds=3600", vec![rules::SAME_PERIOD]),
        (".json?seconds=300", ".json?seconds=301", vec![rules::REACHED]),
        (",\"7\"]", ",7]", vec![rules::UPDATES]),
        (",\"7\"]", ",\"7/8\"]", vec![rules::UPDATE_ID]),
        (",\"7\"]", ",\"\"]", vec![rules::UPDATE_ID]),
        ("[[\"", "[[\"a/b", vec![rules::SUP_ID]),
    ] {
        let mut site = ours();
        let (_, body) = &site.0[SUP];
        let body = body.replacen(from, to, 1);
        assert_ne!(body, site.0[SUP].1, "{from}");
        site.put(SUP, &[("content-type", "application/json")], &body);
        let report = site.check(SUP);
        let expected: Vec<&str> = rules.iter().map(|rule| rule.text).collect();
        assert_eq!(failed(&report), expected, "{from} → {to}: {report:#?}");
    }
}

#[test]
fn section_3_other_media_types_and_other_json_fail() {
    let mut site = ours();
    let (_, body) = site.0[SUP].clone();
    site.put(SUP, &[("content-type", "text/html")], &body);
    assert_eq!(failed(&site.check(SUP)), [rules::MEDIA_TYPE.text]);
    site.put(SUP, &[("content-type", "application/json")], "{\"updates\"");
    assert_eq!(failed(&site.check(SUP)), [rules::JSON.text]);
    for other in ["[]", "null", "7"] {
        site.put(SUP, &[("content-type", "application/json")], other);
        assert_eq!(failed(&site.check(SUP)), [rules::JSON.text], "{other}");
    }
    site.put(SUP, &[("content-type", "text/html")], "<!doctype html><title>x</title>");
    assert_eq!(failed(&site.check(SUP)), [rules::MEDIA_TYPE.text, rules::JSON.text]);
    assert_eq!(failed(&site.check("https://a.example/none")), [rules::REACHED.text]);
}

/// Sections 4 and 6: missing and wrong links of a feed.
#[test]
fn sections_4_and_6_feed_errors_are_found() {
    let mut site = ours();
    let (_, body) = site.0[FEED].clone();
    let bare = body.split_once("<link").map(|(start, _)| format!("{start}</feed>")).unwrap();
    let atom = ("content-type", "application/atom+xml");
    let good = SupLink::new(SUP, FEED).href();
    for (headers, body, expected) in [
        (vec![atom], &bare, vec![rules::ANNOUNCED, rules::HEADER]),
        (vec![atom], &body, vec![rules::HEADER]),
        (vec![atom, ("x-sup-id", &good)], &bare, vec![]),
        (vec![atom, ("x-sup-id", "/sup.json#ab")], &bare, vec![rules::HEADER_FORM]),
        (
            vec![atom, ("x-sup-id", &good)],
            &body.replace("application/json", "text/json"),
            vec![rules::LINK_FORM],
        ),
        (vec![atom, ("x-sup-id", "https://a.example/sup.json#ab")], &body, vec![rules::AGREE]),
    ] {
        site.put(FEED, &headers, body);
        let expected: Vec<&str> = expected.iter().map(|rule| rule.text).collect();
        assert_eq!(failed(&site.check(FEED)), expected, "{headers:?} {body}");
    }
}

/// Section 4: "A single feed MUST always map to a single, stable SUP ID".
#[test]
fn section_4_a_changed_id_is_found() {
    assert_eq!(failed(&changed_id()), [rules::STABLE_ID.text]);
}

/// Checks a feed whose second response has another SUP ID.
fn changed_id() -> Report {
    let now = "2024-01-01T00:00:00Z".parse().unwrap();
    let mut checker = SupChecker::new(FEED);
    for id in ["a", "b"] {
        let request = checker.poll_request(Now::simulated(now)).unwrap();
        let value = HeaderValue::from_str(&format!("{SUP}#{id}")).unwrap();
        let head = ResponseHead {
            status: 200,
            url: FEED.into(),
            headers: HeaderMap::from_iter([(X_SUP_ID, value)]),
        };
        checker.handle_head(Now::simulated(now), request.id, head);
        checker.handle_end(Now::simulated(now), request.id, Ok(()));
    }
    checker.report().clone()
}

/// Text to replace in the document, its replacement, and the rule that is to be named.
#[test]
fn planted_faults_are_named() {
    let json = ("content-type", "application/json");
    let mut planted = PlantedFaults::new("SUP");
    for (from, to, rule) in [
        ("\"updates\"", "\"changes\"", rules::UPDATES),
        ("[[\"", "[\"", rules::JSON),
        ("\"updates\":[[", "\"updates\":{\"x\":[", rules::JSON),
        (",\"7\"]", ",7]", rules::UPDATES),
        (",\"7\"]", "]", rules::UPDATES),
        (",\"7\"]", ",\"7\",\"8\"]", rules::UPDATES),
        (",\"7\"]", ",\"7/8\"]", rules::UPDATE_ID),
        (",\"7\"]", ",\"\"]", rules::UPDATE_ID),
        ("[[\"", "[[\"a/b", rules::SUP_ID),
        ("[[\"", "[[\"é", rules::SUP_ID),
        ("],\"period\"", ",],\"period\"", rules::JSON),
        ("\"period\":60", "\"length\":60", rules::PERIOD),
        ("\"period\":60", "\"period\":\"60\"", rules::PERIOD),
        ("\"period\":60", "\"period\":0", rules::PERIOD),
        ("\"period\":60", "\"period\":-60", rules::PERIOD),
        ("\"period\":60", "\"period\":60.5", rules::PERIOD),
        ("\"period\":60", "\"period\":130", rules::OVERLAP),
        ("\"period\":60", "\"period\":130", rules::USUAL_PERIOD),
        ("\"period\":60", "\"period\":5", rules::USUAL_PERIOD),
        ("\"period\":60", "\"period\":131", rules::WINDOW),
        ("\"since_time\":\"2023-12-31T", "\"since_time\":\"2023-12-31 ", rules::SINCE_TIME),
        ("\"since_time\"", "\"since\"", rules::SINCE_TIME),
        ("\"updated_time\":\"2024-01-01T00:00:00Z\"", "\"updated_time\":1704067200", rules::UPDATED_TIME),
        ("\"updated_time\":\"2024-01-01T00:00:00Z\"", "\"updated_time\":\"2024-01-01\"", rules::UPDATED_TIME),
        ("\"updated_time\"", "\"updated\"", rules::UPDATED_TIME),
        ("\"2024-01-01T00:00:00Z\"", "\"2025-01-01T00:00:00Z\"", rules::RECENT),
        ("{\"300\"", "{\"5 minutes\"", rules::PERIODS),
        ("\"https://a.example/sup.json?seconds=300\"", "300", rules::PERIODS),
        ("\"https://a.example/sup.json?seconds=300\"", "\"ftp://a.example/\"", rules::PERIODS),
        ("\"available_periods\"", "\"periods\"", rules::TWO_PERIODS),
        (".json?seconds=300", ".json?seconds=3600", rules::SAME_PERIOD),
        (".json?seconds=300", ".json?seconds=301", rules::REACHED),
    ] {
        let mut site = ours();
        let body = site.0[SUP].1.replacen(from, to, 1);
        assert_ne!(body, site.0[SUP].1, "{from}");
        site.put(SUP, &[json], &body);
        planted.judge(rule.text, &format!("{from} -> {to}"), failed(&site.check(SUP)));
    }
    let mut site = ours();
    let body = site.0[SUP].1.clone();
    site.put(SUP, &[("content-type", "text/html")], &body);
    planted.judge(rules::MEDIA_TYPE.text, "text/html", failed(&site.check(SUP)));
    planted.judge(rules::REACHED.text, "404", failed(&ours().check("https://a.example/none")));

    let good = SupLink::new(SUP, FEED).href();
    let atom = ("content-type", "application/atom+xml");
    let announced = ours().0[FEED].1.clone();
    let bare = announced.split_once("<link").map(|(start, _)| format!("{start}</feed>")).unwrap();
    for (header, body, rule) in [
        (None, &bare, rules::ANNOUNCED),
        (None, &announced, rules::HEADER),
        (Some("/sup.json#ab"), &bare, rules::HEADER_FORM),
        (Some("https://a.example/sup.json"), &bare, rules::HEADER_FORM),
        (Some("https://a.example/sup.json#a%20b"), &bare, rules::HEADER_FORM),
        (Some(good.as_str()), &announced.replace("application/json", "text/json"), rules::LINK_FORM),
        (Some(good.as_str()), &announced.replace(good.as_str(), SUP), rules::LINK_FORM),
        (Some("https://a.example/sup.json#ab"), &announced, rules::AGREE),
    ] {
        let mut site = ours();
        let headers: Vec<(&'static str, &str)> =
            std::iter::once(atom).chain(header.map(|value| ("x-sup-id", value))).collect();
        site.put(FEED, &headers, body);
        planted.judge(rule.text, &format!("{headers:?}"), failed(&site.check(FEED)));
    }
    planted.judge(rules::STABLE_ID.text, "another id", failed(&changed_id()));
    planted.assert_complete(sup_rules().iter().map(|rule| rule.text));
}
