//! Every Atom document is valid by the schema of RFC 4287 (appendix B), for any items.
//!
//! `xmllint` validates. If it is not installed, the test prints that and checks nothing, unless `REQUIRE_XMLLINT` is
//! set.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use towpath_proto::Op;
use towpath_proto::format::FeedLink;
use towpath_proto::history::publish::HistoryDocument;
use towpath_proto::history::wire::{SUP, Syntax};

use crate::common::items::any_item;
use crate::publisher::HistoryPublisher;
use crate::web::start;

#[test]
fn documents_are_valid_by_rfc_4287() {
    if Command::new("xmllint").arg("--version").output().is_err() {
        assert!(std::env::var_os("REQUIRE_XMLLINT").is_none(), "xmllint is not installed");
        eprintln!("xmllint is not installed: nothing was validated");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("history_schema");
    std::fs::create_dir_all(&folder).unwrap();
    let mut publisher = HistoryPublisher::new(7);
    let link = |rel: &str, href: &str| FeedLink { rel: rel.into(), href: href.into(), media_type: None };
    publisher.info.links =
        vec![link("hub", "https://a.example/hub"), link(SUP, "https://a.example/sup.json#0123456789")];
    publisher.info.home = Some("https://a.example/".into());
    publisher.info.lang = Some("de".into());
    let mut runner = TestRunner::deterministic();
    for number in 0..210 {
        let item = any_item().new_tree(&mut runner).unwrap().current();
        let op = if number % 5 == 0 { Op::Delete } else { Op::Put };
        publisher.append(op, item, start() + Duration::from_secs(number));
    }
    let window = publisher.newest();
    let names = (1..publisher.sealed()).map(|number| number.to_string());
    let names = names.chain([String::new(), format!("{}-{}", window.first, window.last)]);
    let mut documents: Vec<_> =
        names.map(|name| publisher.document(Syntax::Atom, &name).unwrap().body).collect();
    documents.push(publisher.info.document(Syntax::Atom, &HistoryDocument::Complete, &publisher.log).into());
    // A complete feed may lose its last item, and is then valid without entries.
    documents.push(publisher.info.document(Syntax::Atom, &HistoryDocument::Complete, &[]).into());
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rfc4287-atom.rng");
    let mut command = Command::new("xmllint");
    command.arg("--noout").arg("--relaxng").arg(schema);
    for (number, document) in documents.iter().enumerate() {
        let path = folder.join(format!("{number}.xml"));
        std::fs::write(&path, document).unwrap();
        command.arg(path);
    }
    assert!(documents.len() > 30);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
