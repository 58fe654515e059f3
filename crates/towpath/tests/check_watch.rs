//! `towpath check`: reports for build servers, and checks on a schedule that say what changed.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::raw_server::{RawServer, answer};

fn feed(title: &str) -> String {
    format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{title}<updated>2024-01-01T00:00:00Z</updated>\
         <link rel='self' href='http://a.example/'/></feed>"
    )
}

/// Runs `towpath check URL --protocol rss` with more arguments. Returns the exit code and both outputs.
async fn check(url: String, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(["check", &url, "--protocol", "rss"]).args(more).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A server whose feed loses its title after so many requests for the document.
async fn failing_after(requests: usize) -> RawServer {
    let served = Arc::new(AtomicUsize::new(0));
    RawServer::start(move |_| {
        let title = if served.fetch_add(1, Ordering::SeqCst) < requests { "<title>t</title>" } else { "" };
        // Without a validator, each check is one request.
        answer("200 OK", "Content-Type: application/atom+xml\r\n", feed(title))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_what_changed() {
    // The first request finds the feed.
    let server = failing_after(3).await;
    let more = ["--watch", "--every", "1s", "--times", "4"];
    let (code, out, errors) = check(server.url("/feed"), &more).await;
    assert_eq!(code, Some(1), "the last check failed: {out}{errors}");
    assert_eq!(out.matches("A feed has one id").count(), 1, "one whole report: {out}");
    assert!(out.contains("conforms: MUST"), "{out}");
    let (_, told) = out.split_once("does not conform; what changed:\n").unwrap();
    assert!(told.starts_with("  PASS -> FAIL  MUST    RFC 4287 §4.1.1: A feed has one title\n"), "{told}");
    assert_eq!(errors.matches("nothing changed").count(), 2, "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_file_carries_the_last_report() {
    let server = failing_after(2).await;
    let folder =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("check_{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("report.json");
    let more = ["--watch", "--times", "1", "--format", "json", "--state", state.to_str().unwrap()];
    let (code, first, _) = check(server.url("/feed"), &more).await;
    assert_eq!(code, Some(0), "{first}");
    let (code, second, _) = check(server.url("/feed"), &more).await;
    assert_eq!(code, Some(1));
    let lines: Vec<Value> = second.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{second}");
    assert_eq!((&lines[0]["before"], &lines[0]["after"]), (&Value::from("pass"), &Value::from("fail")));
    assert_eq!(lines[0]["conforms"], false);
    let (code, _, errors) = check(server.url("/other"), &more).await;
    assert!(code == Some(2) && errors.contains("separate file"), "{code:?} {errors}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The protocol's address is found from the feed's page.
#[tokio::test(flavor = "multi_thread")]
async fn a_feeds_page_is_enough() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/feed" => answer("200 OK", "Content-Type: application/atom+xml\r\n", feed("<title>t</title>")),
        _ => {
            let link = "<link rel=alternate type=application/atom+xml href=/feed>";
            let page = format!("<!DOCTYPE html><html><head>{link}</head></html>");
            answer("200 OK", "Content-Type: text/html\r\n", page)
        }
    })
    .await;
    let (code, out, errors) = check(server.url("/blog"), &[]).await;
    assert_eq!(code, Some(0), "{out}{errors}");
    assert!(out.starts_with(&format!("{} as rss\n", server.url("/feed"))), "{out}");
}

/// Readers of both formats find the same: a test for each rule, the failed one with its line.
#[tokio::test(flavor = "multi_thread")]
async fn build_servers_get_their_formats() {
    let server = failing_after(0).await;
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for format in ["junit", "sarif"] {
        let (code, report, errors) = check(server.url("/feed?a=1&b=2"), &["--format", format]).await;
        assert_eq!(code, Some(1), "{errors}");
        let file = folder.path().join(format);
        std::fs::write(&file, report).unwrap();
        files.push(file);
    }
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/reports.py");
    let read = tokio::task::spawn_blocking(move || {
        Command::new(crate::common::python()).arg(script).args(files).output().unwrap()
    });
    let read = read.await.unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    let junit = &read["junit"];
    let failed = serde_json::json!(["RFC 4287 §4.1.1: MUST A feed has one title"]);
    assert_eq!(junit["failed"], failed, "{read}");
    assert!(junit["tests"].as_u64().unwrap() > 15, "{read}");
    let results = read["sarif"].as_array().unwrap();
    let error = results.iter().find(|result| result["level"] == "error").unwrap();
    assert_eq!(error["rule"], "rfc-4287-4.1.1-a-feed-has-one-title", "{read}");
    assert_eq!((&error["url"], &error["line"]), (&server.url("/feed?a=1&b=2").into(), &1.into()), "{read}");
}
