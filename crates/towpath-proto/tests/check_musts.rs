//! Each MUST of the texts names the rules of the check that see it, or says why none can. `data/check/musts.tsv` is the
//! table; the checks have the rules as tables, too.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;

use towpath_proto::diffdelta::check::diffdelta_rules;
use towpath_proto::history::check::{chain_rules, document_rules};
use towpath_proto::push::websub::check::websub_rules;
use towpath_proto::push::xmpp::check::xmpp_rules;
use towpath_proto::replication::check::replication_rules;
use towpath_proto::report::{Level, Rule};
use towpath_proto::smart::check::smart_rules;
use towpath_proto::sup::check::sup_rules;

/// A MUST of a text.
struct Requirement<'a> {
    text: &'a str,
    section: &'a str,
    /// Texts of rules; empty where `reason` says why.
    rules: Vec<&'a str>,
    reason: Option<&'a str>,
}

fn requirements() -> Vec<Requirement<'static>> {
    let table = include_str!("data/check/musts.tsv");
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let [text, section, requirement, seen]: [&str; 4] =
            line.split('\t').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}"));
        assert!(!requirement.is_empty(), "{line}");
        let reason = seen.strip_prefix('-');
        let rules = if reason.is_some() { Vec::new() } else { seen.split('|').collect() };
        Requirement { text, section, rules, reason }
    };
    rows.map(read).collect()
}

/// Returns the rules of all checks.
fn all_rules() -> impl Iterator<Item = &'static Rule> {
    let tables = [
        chain_rules(),
        diffdelta_rules(),
        replication_rules(),
        smart_rules(),
        sup_rules(),
        websub_rules(),
        xmpp_rules(),
    ];
    document_rules().chain(tables.into_iter().flatten())
}

#[test]
fn each_must_names_its_rules_or_why_there_is_none() {
    let known: BTreeSet<&str> = all_rules().map(|rule| rule.text).collect();
    let requirements = requirements();
    assert!(requirements.len() > 200, "{}", requirements.len());
    for Requirement { text, section, rules, reason } in &requirements {
        assert!(reason.is_none_or(|reason| reason.len() > 10), "{text} {section}: no reason");
        for rule in rules {
            assert!(known.contains(rule), "{text} {section}: there is no rule {rule:?}");
        }
    }
    let texts: BTreeSet<&str> = requirements.iter().map(|requirement| requirement.text).collect();
    for text in [
        "RFC 4287",
        "RFC 5005",
        "RFC 6721",
        "RSS 2.0",
        "JSON Feed 1.1",
        "DiffDelta v1",
        "Data Replication",
        "Feed History draft-00",
        "Smart Feeds",
        "SUP",
        "WebSub",
    ] {
        assert!(texts.contains(text), "{text}");
    }
}

#[test]
fn each_rule_of_level_must_names_its_requirement() {
    let mut rules: BTreeSet<&str> =
        all_rules().filter(|rule| rule.level == Level::Must).map(|rule| rule.text).collect();
    assert!(rules.len() > 200, "{}", rules.len());
    for requirement in requirements() {
        rules.retain(|rule| !requirement.rules.contains(rule));
    }
    assert!(rules.is_empty(), "these are in no row: {rules:#?}");
}
