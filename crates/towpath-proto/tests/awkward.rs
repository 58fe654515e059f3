//! Awkward documents, compared with feedparser 6: `data/awkward/documents.ndjson`, which `make.py` beside it writes.
//!
//! Where the results differ, `differs.ndjson` has the reason and what towpath reads. `UPDATE_GOLDEN=1` rewrites what is
//! read; the reasons are for people to write.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use towpath_proto::Item;
use towpath_proto::format::html::to_text;
use towpath_proto::format::{FeedDocument, FormatError, ReadOptions, read};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/awkward").join(name)
}

fn lines(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn name(line: &Value) -> &str {
    line["name"].as_str().unwrap()
}

fn bytes(line: &Value) -> Vec<u8> {
    match line["base64"].as_str() {
        Some(base64) => STANDARD.decode(base64).unwrap(),
        None => line["document"].as_str().unwrap().as_bytes().to_vec(),
    }
}

fn lenient(bytes: &[u8]) -> Result<FeedDocument, FormatError> {
    let options =
        ReadOptions { content_type: Some("application/xml"), repair: true, ..ReadOptions::default() };
    read(bytes, &options)
}

/// The words of a text. Readers differ in white space and in the spelling of tags.
fn words(text: Option<&str>) -> Option<String> {
    let is_control = |c: char| c.is_control() && !c.is_whitespace() || matches!(c, '\u{b}' | '\u{c}');
    let text: String = text?.chars().map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect();
    Some(to_text(&text, usize::MAX)).filter(|text| !text.is_empty())
}

fn of_towpath(item: &Item) -> Value {
    let content = item.content.as_ref().and_then(|content| content.text());
    json!({
        "id": item.id,
        "link": item.url,
        "title": words(item.title.as_deref()),
        "text": words(content.or(item.summary.as_deref())),
        "date": item.published.or(item.updated).map(|date| date.to_string()),
    })
}

fn of_feedparser(entry: &Value) -> Value {
    let text = |key: &str| entry[key].as_str();
    json!({
        "id": entry["id"],
        "link": entry["link"],
        "title": words(text("title")),
        "text": words(text("content").or(text("summary"))),
        "date": text("published").or(text("updated")),
    })
}

/// Parts of a document's result that are compared.
fn result(title: Option<&str>, entries: &[Value]) -> Value {
    json!({ "title": words(title), "entries": entries })
}

#[test]
fn awkward_documents_are_read_as_feedparser_reads_them() {
    let documents = lines("documents.ndjson");
    assert!(documents.len() >= 300, "{}", documents.len());
    let known = lines("differs.ndjson");
    let mut why: BTreeMap<&str, &Value> = known.iter().map(|line| (name(line), line)).collect();
    let (mut differing, mut wrong) = (Vec::new(), Vec::new());
    for document in &documents {
        let theirs = &document["feedparser"];
        let entries: Vec<Value> = theirs["entries"].as_array().unwrap().iter().map(of_feedparser).collect();
        let theirs = result(theirs["title"].as_str(), &entries);
        let ours = match lenient(&bytes(document)) {
            Ok(feed) => {
                let items: Vec<Value> = feed.items.iter().map(of_towpath).collect();
                result(feed.title.as_deref(), &items)
            }
            Err(error) => json!({ "refused": error.to_string() }),
        };
        if ours == theirs {
            continue;
        }
        let reason = why.remove(name(document)).filter(|line| line["towpath"] == ours);
        if reason.is_none_or(|line| line["why"].as_str().is_none_or(str::is_empty)) {
            wrong.push(format!("{}\n  feedparser {theirs}\n  towpath    {ours}", name(document)));
        }
        let why =
            known.iter().find(|line| name(line) == name(document)).map_or(json!(""), |l| l["why"].clone());
        differing.push(json!({ "name": name(document), "why": why, "towpath": ours }));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = differing.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(path("differs.ndjson"), text).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), documents.len(), wrong.join("\n"));
    assert!(why.is_empty(), "no longer different: {:?}", why.keys());
}

/// A warning of each document that strict reading refuses names line and column.
#[test]
fn repairs_are_told_with_line_and_column() {
    let mut repaired = 0;
    for document in lines("documents.ndjson") {
        let bytes = bytes(&document);
        let strict = read(&bytes, &ReadOptions::default());
        let (Err(FormatError::Malformed { .. }), Ok(feed)) = (strict, lenient(&bytes)) else { continue };
        repaired += 1;
        let has_place = |problem: &String| problem.starts_with("line ") && problem.contains(", column ");
        assert!(feed.problems.iter().any(has_place), "{}: {:?}", name(&document), feed.problems);
        assert_eq!(feed.counts.left_out, 0, "{}: {:?}", name(&document), feed.problems);
    }
    assert!(repaired >= 150, "{repaired}");
}

#[test]
fn repairs_take_linear_time() {
    let documents: [fn(usize) -> String; 8] = [
        |n| {
            format!(
                "<rss><channel>{}</channel></rss>",
                (0..n).map(|i| format!("<a{i}></b{i}>")).collect::<String>()
            )
        },
        |n| format!("<rss>{}</rss>", "<a b=\"x>y<a b='x>".repeat(n)),
        |n| format!("<rss>{}</rss>", "<a b='".repeat(n)),
        |n| format!("<rss>{}</rss>", "<".repeat(n)),
        |n| format!("<rss>{}</rss>", "&amp".repeat(n)),
        |n| format!("<rss>{}</rss>", "</a>".repeat(n)),
        |n| format!("<rss>{}</rss>", "<item><title>".repeat(n)),
        |n| format!("<rss>{}</rss>", "<![CDATA[".repeat(n)),
    ];
    for document in documents {
        let fastest = |text: &str| {
            let run = |_| {
                let start = Instant::now();
                let _ = lenient(text.as_bytes());
                start.elapsed()
            };
            (0..3).map(run).min().unwrap_or_default()
        };
        let (small, large) = (fastest(&document(2_000)), fastest(&document(32_000)));
        let allowed = small * 96 + Duration::from_millis(50);
        assert!(large < allowed, "{}: {small:?}, {large:?}", &document(2));
    }
}
