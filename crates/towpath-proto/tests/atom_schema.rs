//! Written Atom is valid by the schema of RFC 4287 (appendix B), for any items.
//!
//! `xmllint` (Debian: libxml2-utils) validates. If it is not installed, the test prints that and checks nothing, unless
//! `REQUIRE_XMLLINT` is set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::{DeletedEntry, SmartHead, atom};
use towpath_proto::{Item, Timestamp};

fn documents(folder: &Path) -> Vec<PathBuf> {
    let modified: Timestamp = "2025-01-24T09:00:00.5Z".parse().unwrap();
    let mut head = DocumentHead::new("https://a.example/feeds/x", " title ", modified);
    head.links = common::items::head_links();
    head.home = Some("https://a.example/");
    head.stateful = Some(false);
    head.complete = true;
    head.smart = SmartHead { total: Some(3), last_cursor: Some("a b".into()), prev_cursor: Some("c".into()) };
    // Neither an IRI nor a known time: such a deletion must still be written validly.
    head.deleted = vec![DeletedEntry { id: "x y".into(), when: None }];
    // The same documents in every run, so that a failure can be looked at again.
    let mut runner = TestRunner::deterministic();
    let mut any = || common::items::any_item().new_tree(&mut runner).unwrap().current();
    let mut paths = Vec::new();
    for number in 0..60 {
        let items: Vec<Item> = (0..6).map(|_| any()).collect();
        let entries = items.iter().map(|item| DocumentEntry::new(item, modified));
        let feed = atom::write(&head, entries);
        let entry = atom::write_entry(&DocumentEntry::new(&items[0], modified), &head.ids, head.title);
        for (kind, text) in [("feed", feed), ("entry", entry)] {
            let path = folder.join(format!("{kind}{number}.xml"));
            std::fs::write(&path, text).unwrap();
            paths.push(path);
        }
    }
    paths
}

#[test]
fn any_items_are_written_valid_by_rfc_4287() {
    if Command::new("xmllint").arg("--version").output().is_err() {
        assert!(std::env::var_os("REQUIRE_XMLLINT").is_none(), "xmllint is not installed");
        eprintln!("xmllint is not installed: nothing was validated");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("atom_schema");
    std::fs::create_dir_all(&folder).unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rfc4287-atom.rng");
    let mut command = Command::new("xmllint");
    command.arg("--noout").arg("--relaxng").arg(schema).args(documents(&folder));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
