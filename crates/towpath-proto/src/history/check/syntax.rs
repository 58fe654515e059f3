//! Rules of each syntax for any document, with or without history.

use std::collections::HashMap;

use super::structure::{ATOM, DocumentStructure, ElementCounts, FH, RSS, json_feed_problems};
use crate::follow::ResponseHead;
use crate::format::is_iri;
use crate::format::{FeedDocument, Format, sniff};
use crate::report::{Level, Report};

const RSS_CHANNEL: &str = "RSS 2.0, required channel elements";
const RSS_ITEM: &str = "RSS 2.0, elements of item";
const JSON_FEED: &str = "JSON Feed 1.1";

/// Tests one document.
pub(super) fn test_document(
    report: &mut Report,
    url: &str,
    head: &ResponseHead,
    body: &[u8],
    feed: &FeedDocument,
) {
    content_type(report, url, head, feed.format);
    let (text, _) = sniff::decode(body, head.header("content-type"));
    let structure =
        if feed.format == Format::JsonFeed { None } else { DocumentStructure::from_xml(&text).ok() };
    dates(report, url, feed, structure.as_ref());
    if feed.format == Format::JsonFeed {
        for (rule, problem) in json_feed_problems(body) {
            report.must(JSON_FEED, rule, problem.map(|detail| at(url, &detail)));
        }
        return same_ids(report, url, feed);
    }
    if let Some(structure) = structure {
        tombstones(report, url, &structure);
        match feed.format {
            Format::Atom => atom(report, url, feed, &structure),
            _ => rss(report, url, feed, &structure),
        }
        history_elements(report, url, &structure);
    }
    same_ids(report, url, feed);
}

/// Tests dates by the feed parser's problems, and as written.
fn dates(report: &mut Report, url: &str, feed: &FeedDocument, structure: Option<&DocumentStructure>) {
    let section = if feed.format == Format::Atom { "RFC 4287 §3.3" } else { "RSS 2.0 and JSON Feed, dates" };
    let read = feed.problems.iter().find(|problem| problem.contains("is not a date"));
    let written = || first_defect(url, structure?, |children| children.bad_date.as_deref());
    report.must(section, "Dates are dates", read.map(|detail| at(url, detail)).or_else(written));
}

fn at(url: &str, detail: &str) -> String {
    // Some rules have no detail, which would leave a colon at the end.
    format!("{url}: {detail}").trim_end_matches([':', ' ']).to_owned()
}

fn content_type(report: &mut Report, url: &str, head: &ResponseHead, format: Format) {
    let given = head.header("content-type").unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (section, good): (_, &[&str]) = match format {
        Format::Atom => ("RFC 4287 §7", &["application/atom+xml"]),
        Format::JsonFeed => (JSON_FEED, &["application/feed+json", "application/json"]),
        // RSS 2.0 has no registered media type; these are in use.
        Format::Rss | Format::Json => (
            "RSS 2.0, media type",
            &["application/rss+xml", "application/xml", "text/xml", "application/rdf+xml"],
        ),
    };
    let problem = (!good.contains(&essence.as_str())).then(|| format!("{url}: {given:?}"));
    report.should(section, "The document is served with its media type", problem);
}

/// Returns the first defect of the feed itself, else of its entries.
fn first_defect(
    url: &str,
    structure: &DocumentStructure,
    bad: impl Fn(&ElementCounts) -> Option<&str>,
) -> Option<String> {
    let of_feed = bad(&structure.head).map(|bad| format!("{url}: {bad}"));
    let mut entries = structure.entries.iter().enumerate();
    of_feed
        .or_else(|| entries.find_map(|(index, e)| Some(format!("{url}: entry {}: {}", index + 1, bad(e)?))))
}

fn tombstones(report: &mut Report, url: &str, structure: &DocumentStructure) {
    let problem = first_defect(url, structure, |children| children.bad_tombstone.as_deref());
    if structure.has_tombstones() {
        report.must("RFC 6721 §3", "A deleted entry has its ref and when", problem);
    }
}

/// Returns the number of the first entry for which `is_bad` returns true.
fn first_bad_entry(
    url: &str,
    entries: &[ElementCounts],
    is_bad: impl Fn(&ElementCounts) -> bool,
) -> Option<String> {
    entries.iter().position(is_bad).map(|index| format!("{url}: entry {}", index + 1))
}

fn atom(report: &mut Report, url: &str, feed: &FeedDocument, structure: &DocumentStructure) {
    let here = || url.to_owned();
    let DocumentStructure { head, entries, .. } = structure;
    // An Entry Document is a legal document too (RFC 4287, section 2), but it has no feed to test.
    if feed.id.is_none() && entries.is_empty() && head.count(ATOM, "title") == 0 {
        return report.skip(
            "RFC 4287 §4.1.1",
            Level::Must,
            "A feed has one id",
            "the document is a single entry",
        );
    }
    for (name, rule) in [
        ("id", "A feed has one id"),
        ("title", "A feed has one title"),
        ("updated", "A feed has one updated"),
    ] {
        report.must("RFC 4287 §4.1.1", rule, (head.count(ATOM, name) != 1).then(here));
    }
    // An entry may have its author in `source` (RFC 4287, section 4.1.2).
    let has_author = |e: &ElementCounts| e.count(ATOM, "author") > 0 || e.count(ATOM, "source") > 0;
    let problem = first_bad_entry(url, entries, |e| head.count(ATOM, "author") == 0 && !has_author(e));
    report.must("RFC 4287 §4.1.1", "The feed or each of its entries has an author", problem);
    let problem = first_defect(url, structure, |children| children.bad_target.as_deref());
    report.must("RFC 4287 §4.2.7.1", "A link leads to an IRI", problem);
    let has_self = head.rels.iter().any(|rel| rel == "self");
    report.should("RFC 4287 §4.1.1", "A feed has a link to itself", (!has_self).then(here));
    let id = feed.id.as_deref().filter(|id| !is_iri(id));
    report.must("RFC 4287 §4.2.6", "The feed's id is an absolute IRI", id.map(|id| format!("{url}: {id:?}")));
    for (name, rule) in [
        ("id", "An entry has one id"),
        ("title", "An entry has one title"),
        ("updated", "An entry has one updated"),
    ] {
        report.must("RFC 4287 §4.1.2", rule, first_bad_entry(url, entries, |e| e.count(ATOM, name) != 1));
    }
    let problem = first_bad_entry(url, entries, |e| e.count(ATOM, "content") > 1);
    report.must("RFC 4287 §4.1.2", "An entry has at most one content", problem);
    let has_text =
        |e: &ElementCounts| e.count(ATOM, "content") > 0 || e.rels.iter().any(|rel| rel == "alternate");
    let problem = first_bad_entry(url, entries, |e| !has_text(e));
    report.must("RFC 4287 §4.1.2", "An entry has content or a link to an alternate", problem);
    let problem = first_bad_entry(url, entries, |e| e.content_has_source && e.count(ATOM, "summary") == 0);
    report.must("RFC 4287 §4.1.2", "An entry with content by reference has a summary", problem);
}

fn rss(report: &mut Report, url: &str, feed: &FeedDocument, structure: &DocumentStructure) {
    let DocumentStructure { head, entries, version } = structure;
    let version = version.as_deref().filter(|version| !version.starts_with("2."));
    let problem = version.map(|version| format!("{url}: {version:?}"));
    report.should("RSS 2.0", "The version is 2.0", problem);
    for (name, rule) in [
        ("title", "A channel has a title"),
        ("link", "A channel has a link"),
        ("description", "A channel has a description"),
    ] {
        report.must(RSS_CHANNEL, rule, (head.count(RSS, name) == 0).then(|| url.to_owned()));
    }
    let problem = first_bad_entry(url, entries, |e| e.count(RSS, "title") + e.count(RSS, "description") == 0);
    report.must(RSS_ITEM, "An item has a title or a description", problem);
    let problem = first_bad_entry(url, entries, |e| e.count(RSS, "guid") == 0);
    report.should(RSS_ITEM, "An item has a guid", problem);
    let problem = feed.problems.iter().find(|problem| problem.contains("without id")).cloned();
    report.must(RSS_ITEM, "Each item has a guid, a link or other identification", problem);
}

/// -04, sections 3 to 5: "It MUST NOT occur there more than once, or elsewhere in a feed document."
fn history_elements(report: &mut Report, url: &str, structure: &DocumentStructure) {
    // Each draft had an element of its own, and a feed may use several for old readers.
    for (name, section) in [
        ("incremental", "draft-04 §3"),
        ("archive", "draft-04 §4"),
        ("prev", "draft-04 §5"),
        ("Stateful", "draft-00 §3"),
        ("complete", "RFC 5005 §2"),
    ] {
        let rule = format!("fh:{name} occurs only in the feed's head, and only once");
        let is_elsewhere = structure.entries.iter().any(|entry| entry.count(FH, name) > 0);
        match structure.head.count(FH, name) {
            0 if !is_elsewhere => {}
            count => report.must(section, &rule, (count != 1 || is_elsewhere).then(|| url.to_owned())),
        }
    }
}

/// RFC 4287, section 4.1.1: entries with one id are one entry, and their dates SHOULD differ; RSS: "a string
/// that uniquely identifies the item".
fn same_ids(report: &mut Report, url: &str, feed: &FeedDocument) {
    let mut dates = HashMap::new();
    let duplicate = feed.items.iter().find(|item| {
        let other = dates.insert(item.id.as_str(), item.updated);
        other.is_some_and(|updated| updated == item.updated)
    });
    let problem = duplicate.map(|item| format!("{url}: {:?}", item.id));
    match feed.format {
        Format::Atom => {
            report.should("RFC 4287 §4.1.1", "Entries with one id have different dates", problem);
        }
        Format::JsonFeed => report.must(JSON_FEED, "Items have different ids", problem),
        Format::Rss | Format::Json => report.must(RSS_ITEM, "Items have different guids", problem),
    }
}
