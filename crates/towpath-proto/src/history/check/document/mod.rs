//! Rules of each syntax for any document, with or without history.
//!
//! [`rules`] and the grammars are tables: each element, attribute and value has the rule that it is tested by. A
//! document is read once, and all of its entries are tested.

mod atom;
mod atom_grammar;
mod findings;
mod grammar;
mod history;
mod json_feed;
mod json_names;
mod rss;
mod rss_grammar;
pub(in crate::history) mod rules;
mod values;
mod walk;
mod xml;
mod xml_name;
mod xml_prolog;

use std::collections::HashMap;

use self::atom::AtomDialect;
use self::findings::DocumentFindings;
use self::json_feed::test_json_feed;
use self::json_names::repeated_name;
use self::rss::RssDialect;
use self::walk::walk;
use crate::follow::ResponseHead;
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use crate::format::media_type;
use crate::format::{DocumentLimits, FeedDocument, Format, sniff};
use crate::report::{Report, Rule};

crate::report::rules! {
    WELL_FORMED: "XML 1.0 §2.1, RFC 8259" Must "Documents are well-formed RSS, Atom or JSON Feed";
    ENCODING: "XML 1.0 §4.3.3, RFC 8259 §8.1" Must "The bytes are text in the document's character set";
    ATOM_TYPE: "RFC 4287 §7" Should "The document is served with its media type";
    RSS_TYPE: "RSS 2.0, media type" Should "The document is served with its media type";
    JSON_TYPE: "JSON Feed 1.1" Should "The document is served with its media type";
    SAME_IDS: "RFC 4287 §4.1.1" Should "Entries with one id have different dates";
}

/// Returns the rules for single documents.
pub(super) fn rules() -> impl Iterator<Item = &'static Rule> {
    [ALL, rules::atom::ALL, rules::history::ALL, rules::rss::ALL, rules::json_feed::ALL].into_iter().flatten()
}

/// Tests one document.
pub(super) fn test_document(
    report: &mut Report,
    url: &str,
    head: &ResponseHead,
    body: &[u8],
    feed: &FeedDocument,
    limits: DocumentLimits,
) {
    content_type(report, url, head, feed.format);
    let (text, problems) = sniff::decode(body, head.header("content-type"));
    report.judge(ENCODING, problems.first().map(|problem| format!("{url}: {problem}")));
    match feed.format {
        Format::JsonFeed => {
            // The same budget as of reading the feed, so a document that was read fits.
            let mut budget = Budget::new(text.len(), limits);
            let value = read_value(&text, &mut budget).unwrap_or_default();
            test_json_feed(&value).report(report, url);
            let repeated = repeated_name(&text);
            let problem = repeated.map(|name| format!("{url}: {name:?} occurs twice"));
            report.judge(rules::json_feed::UNIQUE_NAMES, problem);
        }
        Format::Atom => record(report, url, walk(&text, &mut AtomDialect::default())),
        Format::Rss | Format::Json | Format::Ndjson | Format::Html => {
            record(report, url, walk(&text, &mut RssDialect::default()));
            let unnamed = feed.problems.iter().find(|problem| problem.contains("without id")).cloned();
            report.judge(rules::rss::ITEM_NAMED, unnamed);
        }
    }
    // Dates of modules, such as Dublin Core's, are not in the grammar.
    let unread = feed.problems.iter().find(|problem| problem.contains("is not a date"));
    let rule = if feed.format == Format::Atom { rules::atom::DATE } else { rules::rss::DATE };
    report.judge(rule, unread.map(|problem| format!("{url}: {problem}")));
    same_ids(report, url, feed);
}

/// Returns the first violation of a MUST in an Atom document.
pub(super) fn atom_problem(text: &str) -> Option<String> {
    let (findings, result) = walk(text, &mut AtomDialect::default());
    let fault = result.err().map(|(line, fault)| format!("line {line}: {}", fault.reason));
    fault.or_else(|| findings.first_must())
}

/// Moves the findings of a walk to the report.
fn record(
    report: &mut Report,
    url: &str,
    (findings, result): (DocumentFindings, Result<(), (usize, xml::XmlFault)>),
) {
    findings.report(report, url);
    let problem = result.err().map(|(line, fault)| format!("{url}: line {line}: {}", fault.reason));
    report.judge(WELL_FORMED, problem);
}

fn content_type(report: &mut Report, url: &str, head: &ResponseHead, format: Format) {
    let given = head.header("content-type").unwrap_or_default();
    let essence = media_type::essence(given).to_ascii_lowercase();
    let (rule, good): (Rule, &[&str]) = match format {
        Format::Atom => (ATOM_TYPE, &["application/atom+xml"]),
        Format::JsonFeed => (JSON_TYPE, &["application/feed+json", "application/json"]),
        // RSS 2.0 has no registered media type; these are in use.
        Format::Rss | Format::Json | Format::Ndjson | Format::Html => {
            (RSS_TYPE, &["application/rss+xml", "application/xml", "text/xml", "application/rdf+xml"])
        }
    };
    let problem = (!good.contains(&essence.as_str())).then(|| format!("{url}: {given:?}"));
    report.judge(rule, problem);
}

/// RFC 4287, section 4.1.1: entries with one id are one entry, and their dates SHOULD differ; RSS: "a string
/// that uniquely identifies the item".
fn same_ids(report: &mut Report, url: &str, feed: &FeedDocument) {
    let mut dates = HashMap::new();
    let duplicate = feed.items.iter().find(|item| {
        let other = dates.insert(item.id.as_str(), item.updated);
        // Two dated versions of an item are no repetition: an archive document holds both. RFC 4287 has dates always.
        other.is_some_and(|updated| updated == item.updated || updated.is_none() || item.updated.is_none())
    });
    let rule = match feed.format {
        Format::Atom => SAME_IDS,
        Format::JsonFeed => rules::json_feed::IDS,
        Format::Rss | Format::Json | Format::Ndjson | Format::Html => rules::rss::GUIDS,
    };
    report.judge(rule, duplicate.map(|item| format!("{url}: {:?}", item.id)));
}
