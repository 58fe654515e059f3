//! Each MUST of the texts names the rules of the check that see it, or says why none can. `data/check/musts.tsv` is the
//! table; the rules stand in the folders `check` of the crate's sources.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;
use std::path::Path;

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

/// Sources of the checks, without their tests.
fn sources(folder: &Path, is_check: bool, found: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            sources(&path, is_check || name == "check", found);
        } else if is_check && name.ends_with(".rs") && name != "tests.rs" {
            found.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

fn check_sources() -> String {
    let mut found = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), false, &mut found);
    found
}

/// Returns the texts of all rules of level MUST: those of tables, and those of constants.
fn must_rules(source: &str) -> BTreeSet<&str> {
    let in_tables = source.split("\" Must \"").skip(1).filter_map(|rest| rest.split('"').next());
    // The section is the first of the two texts.
    let built = source.split("Rule::must(").skip(1).filter_map(|rest| rest.split('"').nth(3));
    in_tables.chain(built).collect()
}

#[test]
fn each_must_names_its_rules_or_why_there_is_none() {
    let source = check_sources();
    let requirements = requirements();
    assert!(requirements.len() > 200, "{}", requirements.len());
    for Requirement { text, section, rules, reason } in &requirements {
        assert!(reason.is_none_or(|reason| reason.len() > 10), "{text} {section}: no reason");
        for rule in rules {
            assert!(source.contains(&format!("\"{rule}\"")), "{text} {section}: there is no rule {rule:?}");
        }
    }
    let texts: BTreeSet<&str> = requirements.iter().map(|requirement| requirement.text).collect();
    for text in ["RFC 4287", "RFC 5005", "RFC 6721", "RSS 2.0", "JSON Feed 1.1", "DiffDelta v1", "SUP"] {
        assert!(texts.contains(text), "{text}");
    }
}

#[test]
fn each_rule_of_level_must_names_its_requirement() {
    let source = check_sources();
    let mut rules = must_rules(&source);
    assert!(rules.len() > 200, "{}", rules.len());
    for requirement in requirements() {
        rules.retain(|rule| !requirement.rules.contains(rule));
    }
    assert!(rules.is_empty(), "these are in no row: {rules:#?}");
}
