//! `towpath follow` and `towpath check` for Feed History and plain feeds, as programs.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::raw_server::{RawServer, ScriptStep, answer};

fn document(head: &str, ids: &[&str]) -> String {
    let entry = |id: &&str| {
        format!(
            "<entry><id>urn:{id}</id><title>{id}</title><updated>2025-01-01T00:00:00Z</updated><content/></entry>"
        )
    };
    let entries: String = ids.iter().map(entry).collect();
    format!(
        "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fh='http://purl.org/syndication/history/1.0'>\
         <id>urn:f</id><title>f</title><updated>2025-01-01T00:00:00Z</updated><author><name>n</name></author>\
         {head}{entries}</feed>"
    )
}

fn atom(document: String) -> Vec<ScriptStep> {
    answer("200 OK", "Content-Type: application/atom+xml\r\n", document)
}

/// Serves the newest document and two before it; the oldest one only while `whole` is true.
async fn server(whole: Arc<AtomicBool>) -> RawServer {
    RawServer::start(move |asked| match asked.path.as_str() {
        "/feed" => atom(document("<link rel='prev-archive' href='/2'/>", &["c"])),
        "/2" => atom(document("<fh:archive/><link rel='prev-archive' href='/1'/>", &["b"])),
        "/1" if whole.load(Ordering::SeqCst) => atom(document("<fh:archive/>", &["a"])),
        "/1" => answer("410 Gone", "", String::new()),
        "/plain" => atom(document("", &["x", "y"])),
        _ => answer("404 Not Found", "", String::new()),
    })
    .await
}

async fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn ids(output: &Output) -> Vec<String> {
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    lines.map(id).collect()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_followed_and_a_missing_document_exits_with_3() {
    let whole = Arc::new(AtomicBool::new(true));
    let server = server(Arc::clone(&whole)).await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let (url, state) = (server.url("/feed"), state.to_str().unwrap());
    let args = ["follow", &url, "--protocol", "history", "--once", "--state", state];
    let first = run(&args).await;
    assert_eq!(
        (first.status.code(), ids(&first)),
        (Some(0), vec!["urn:a".into(), "urn:b".into(), "urn:c".into()])
    );
    let again = run(&args).await;
    assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{}", stderr_text(&again));
    whole.store(false, Ordering::SeqCst);
    let partly = run(&["follow", &url, "--protocol", "history", "--once"]).await;
    assert_eq!((partly.status.code(), ids(&partly)), (Some(3), vec!["urn:b".into(), "urn:c".into()]));
    assert!(stderr_text(&partly).contains("/1 is gone"), "{}", stderr_text(&partly));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_feed_is_followed_with_a_warning_of_its_limits() {
    let server = server(Arc::default()).await;
    let plain = run(&["follow", &server.url("/plain"), "--protocol", "rss", "--once"]).await;
    // Oldest first: a feed has its newest entry at the top.
    assert_eq!((plain.status.code(), ids(&plain)), (Some(0), vec!["urn:y".into(), "urn:x".into()]));
    assert!(stderr_text(&plain).contains("has no history"), "{}", stderr_text(&plain));
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_and_plain_feeds_are_checked() {
    let server = server(Arc::default()).await;
    let history = run(&["check", &server.url("/feed"), "--protocol", "history", "--format", "json"]).await;
    assert_eq!(history.status.code(), Some(0), "{}", String::from_utf8_lossy(&history.stdout));
    let report: Value = serde_json::from_slice(&history.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["section"] == "RFC 5005 §4"), "{report}");
    let rss = run(&["check", &server.url("/plain"), "--protocol", "rss"]).await;
    let text = String::from_utf8_lossy(&rss.stdout).into_owned();
    assert!(rss.status.code() == Some(0) && text.contains("RFC 4287"), "{text}");
    let missing = run(&["check", &server.url("/none"), "--protocol", "rss"]).await;
    assert_eq!(missing.status.code(), Some(1));
}
