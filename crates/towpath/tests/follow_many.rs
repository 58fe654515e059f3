//! `towpath follow` with many feeds: output, state and exit codes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer};

/// Smart Feed with `count` items.
fn smart_feed(asked: &ReceivedRequest, count: usize) -> Vec<ScriptStep> {
    let since = asked.path.split("since=cursor%3A").nth(1).map_or(0, |rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    });
    let path = asked.path.split('?').next().unwrap();
    let items: Vec<Value> =
        (since + 1..=count).map(|n| json!({"id": format!("{path}/{n}"), "objectType": "note"})).collect();
    let page = json!({ "items": items, "last_cursor": count.to_string() });
    answer("200 OK", "Content-Type: application/json\r\n", page.to_string())
}

fn towpath(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(args: &[&str]) -> Output {
    let mut command = towpath(args);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Feeds and ids of the printed lines, sorted.
fn lines(output: &Output) -> Vec<(String, String)> {
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| value[name].as_str().unwrap().to_owned();
        (text("feed"), text("id"))
    };
    let mut lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().map(line).collect();
    lines.sort();
    lines
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_item_of_every_feed_is_printed_once_over_several_runs() {
    let there = Arc::new(AtomicUsize::new(2));
    let count = there.clone();
    let server = RawServer::start(move |asked| smart_feed(asked, count.load(Ordering::SeqCst))).await;
    let folder = tempfile::tempdir().unwrap();
    let (list, opml, state) =
        (folder.path().join("list"), folder.path().join("list.opml"), folder.path().join("state"));
    let (a, b, c) = (server.url("/a"), server.url("/b"), server.url("/c"));
    std::fs::write(&list, format!("# feeds\n{b}\n\n{a}\n")).unwrap();
    let outlines = format!(
        "<opml><body><outline><outline xmlUrl='{a}'/></outline><outline xmlUrl='{c}'/></body></opml>"
    );
    std::fs::write(&opml, outlines).unwrap();

    let first = run(&["follow", &a, "--feeds", text(&list), "--state", text(&state), "--once"]).await;
    assert_eq!(first.status.code(), Some(0), "{}", stderr_text(&first));
    let expected = |feed: &str, n: usize| (server.url(feed), format!("{feed}/{n}"));
    assert_eq!(lines(&first), [expected("/a", 1), expected("/a", 2), expected("/b", 1), expected("/b", 2)]);
    assert!(stderr_text(&first).contains(&format!("{a} is listed twice")), "{}", stderr_text(&first));
    assert!(
        stderr_text(&first).contains(&format!("following {b} by smart, because")),
        "{}",
        stderr_text(&first)
    );

    let again = run(&["follow", &a, &b, "--state", text(&state), "--once"]).await;
    assert_eq!((again.status.code(), again.stdout.len(), stderr_text(&again)), (Some(0), 0, String::new()));

    there.store(3, Ordering::SeqCst);
    let third = run(&["follow", "--feeds", text(&opml), "--state", text(&state), "--once"]).await;
    assert_eq!(lines(&third), [expected("/a", 3), expected("/c", 1), expected("/c", 2), expected("/c", 3)]);
    // A feed that is no longer named keeps its position in the state file.
    let fourth = run(&["follow", &b, &c, "--state", text(&state), "--once"]).await;
    assert_eq!(lines(&fourth), [expected("/b", 3)]);

    // SUP decides when a feed is polled, by its own protocol: one feed is followed as several are.
    let alone = folder.path().join("alone");
    let by_sup = ["follow", &c, "--protocol", "sup", "--state", text(&alone), "--once"];
    let all: Vec<_> = (1..=3).map(|n| expected("/c", n)).collect();
    assert_eq!((lines(&run(&by_sup).await), lines(&run(&by_sup).await)), (all, vec![]));
    let database = folder.path().join("copy.db");
    let into = format!("sqlite:{}", database.display());
    let copied = run(&["follow", &c, "--protocol", "sup", "--into", &into, "--once"]).await;
    assert_eq!(copied.status.code(), Some(0), "{}", stderr_text(&copied));
    assert!(stderr_text(&copied).contains("by smart, because"), "{}", stderr_text(&copied));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_the_user_exit_with_2_and_say_what_to_do() {
    let server = RawServer::start(|asked| smart_feed(asked, 1)).await;
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (server.url("/a"), server.url("/b"));
    let (one, many) = (folder.path().join("one"), folder.path().join("many"));
    run(&["follow", &a, "--state", text(&one), "--once"]).await;
    run(&["follow", &a, &b, "--state", text(&many), "--once"]).await;
    let list = folder.path().join("list");
    std::fs::write(&list, "http://a/\nnowhere\n").unwrap();
    let missing = folder.path().join("missing");
    for (args, what) in [
        (vec!["follow"], "URL"),
        (vec!["follow", "--feeds", text(&list)], "line 2: \"nowhere\""),
        (vec!["follow", "--feeds", text(&missing)], "cannot read the list"),
        (vec!["follow", &a, &b, "--state", text(&one)], "for a single feed"),
        (vec!["follow", &a, "--state", text(&many)], "for several feeds"),
        (vec!["follow", &a, &b, "--state", text(&many), "--protocol", "rss"], "smart, not rss"),
        (vec!["follow", &a, &b, "--from", "sha256:ab"], "of a single feed"),
        (vec!["follow", &a, &b, "--every", "0s"], "a second or more"),
        (vec!["follow", &a, "--every", "0s"], "a second or more"),
    ] {
        let output = run(&args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains(what), "{args:?}: {}", stderr_text(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_feed_sets_the_exit_code_and_stops_no_other() {
    let server = RawServer::start(|asked| match asked.path.split('?').next().unwrap() {
        "/500" => answer("500 Broken", "", "no"),
        "/text" => answer("200 OK", "Content-Type: text/plain\r\n", "hello"),
        "/hang-up" => vec![ScriptStep::Close],
        _ => smart_feed(asked, 1),
    })
    .await;
    let urls = ["/a", "/500", "/b", "/text", "/hang-up", "/c"].map(|path| server.url(path));
    let mut args: Vec<&str> = urls.iter().map(String::as_str).collect();
    args.splice(0..0, ["follow", "--once"]);
    // Nothing listens on port 1.
    args.push("http://127.0.0.1:1/refused");
    let output = run(&args).await;
    assert_eq!(output.status.code(), Some(1), "{}", stderr_text(&output));
    assert_eq!(lines(&output).len(), 3);
    for what in ["/500: the server answers 500", "/text: text/plain, not a feed", "/hang-up: ", "refused"] {
        assert!(stderr_text(&output).contains(what), "{what}: {}", stderr_text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_never_answers_delays_no_other_and_a_signal_ends_cleanly() {
    let server = RawServer::start(|asked| match asked.path.split('?').next().unwrap() {
        "/slow" => vec![ScriptStep::Pause(Duration::from_secs(300))],
        _ => smart_feed(asked, 1),
    })
    .await;
    let mut urls = vec![server.url("/slow")];
    urls.extend((0..40).map(|n| server.url(&format!("/{n}"))));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut args = vec!["follow".to_owned(), "--protocol".into(), "smart".into(), "--state".into()];
    args.push(text(&state).to_owned());
    args.extend(urls.clone());
    let ended = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let begun = Instant::now();
        let mut child = towpath(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..40 {
            lines.next().unwrap().unwrap();
        }
        let took = begun.elapsed();
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        (child.wait().unwrap().code(), took)
    });
    let (code, took) = ended.await.unwrap();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(15), "{took:?}");
    // Printed changes are persisted, and so is the time of each feed's next poll.
    let quick: Vec<&str> = urls[1..].iter().map(String::as_str).collect();
    let again = run(&[&["follow", "--once", "--state", text(&state)], quick.as_slice()].concat()).await;
    assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{}", stderr_text(&again));
    assert!(std::fs::read_to_string(&state).unwrap().contains("\"schedule\""));
}

/// A closed pipe ends it, and changes that were not written do not count as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_it_quietly() {
    let server = RawServer::start(|asked| smart_feed(asked, 2000)).await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let urls: Vec<String> = (0..20).map(|n| server.url(&format!("/{n}"))).collect();
    let mut args: Vec<String> =
        ["follow", "--once", "--protocol", "smart", "--state", text(&state)].map(str::to_owned).into();
    args.extend(urls);
    let run_again = args.clone();
    let (read, code) = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = towpath(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let read = (0..5).filter(|_| lines.next().unwrap().is_ok()).count();
        drop(lines);
        (read, child.wait().unwrap().code())
    })
    .await
    .unwrap();
    assert_eq!((read, code), (5, Some(1)));
    let args: Vec<&str> = run_again.iter().map(String::as_str).collect();
    let again = run(&args).await;
    assert_eq!(again.status.code(), Some(0), "{}", stderr_text(&again));
    // Lines that fitted into the pipe count as written and are not printed again.
    assert!(lines(&again).len() >= 20 * 2000 - 10_000, "{}", lines(&again).len());
}

/// Atom feed with `count` entries that links to its SUP document; 304 for a known ETag.
fn atom_feed(asked: &ReceivedRequest, count: usize) -> Vec<ScriptStep> {
    let etag = format!("\"{count}\"");
    if asked.head.contains(&format!("if-none-match: {etag}")) {
        return answer("304 Not Modified", &format!("ETag: {etag}\r\n"), "");
    }
    let entry = |n: usize| {
        format!(
            "<entry><id>urn:{}:{n}</id><title>{n}</title><updated>2025-01-01T00:00:{n:02}Z</updated></entry>",
            asked.path
        )
    };
    let entries: String = (1..=count).rev().map(entry).collect();
    let sup = format!("rel='http://api.friendfeed.com/2008/03#sup' href='/sup.json#{}'", &asked.path[1..]);
    let feed = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:{}</id><title>f</title><link {sup}/>{entries}</feed>",
        asked.path
    );
    answer("200 OK", &format!("Content-Type: application/atom+xml\r\nETag: {etag}\r\n"), feed)
}

/// Section 6.2: the link in the document is enough. Feeds with an interval of an hour are polled as soon as the SUP
/// document names them, and no other feed is.
#[tokio::test(flavor = "multi_thread")]
async fn a_linked_sup_document_decides_which_feeds_are_polled() {
    let moved = Arc::new(AtomicUsize::new(0));
    let flag = moved.clone();
    let server = RawServer::start(move |asked| {
        let moved = flag.load(Ordering::SeqCst);
        if asked.path == "/sup.json" {
            let now = jiff::Timestamp::now();
            let since = now - jiff::SignedDuration::from_secs(60);
            // Documents also name feeds of other readers, which must be skipped.
            let updates = if moved > 0 { json!([["b", "u2"], ["unknown", "u1"]]) } else { json!([]) };
            let document =
                json!({"updates": updates, "period": 10, "since_time": since, "updated_time": now});
            return answer("200 OK", "Content-Type: application/json\r\n", document.to_string());
        }
        atom_feed(asked, if asked.path == "/b" { 1 + moved } else { 1 })
    })
    .await;
    let urls = ["/a", "/b", "/c"].map(|path| server.url(path));
    let mut args = vec!["follow".to_owned(), "--every".into(), "1h".into()];
    args.extend(urls);
    let lines = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = towpath(&args).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr_text: Vec<String> = (0..3).map(|_| lines.next().unwrap().unwrap()).collect();
        moved.store(1, Ordering::SeqCst);
        stderr_text.push(lines.next().unwrap().unwrap());
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        child.wait().unwrap();
        stderr_text
    });
    let stderr_text = lines.await.unwrap();
    let last: Value = serde_json::from_str(&stderr_text[3]).unwrap();
    assert_eq!((&last["id"], &last["feed"]), (&"urn:/b:2".into(), &server.url("/b").into()));
    let asked = |path: &str| server.asked().iter().filter(|asked| asked.path == path).count();
    // Each feed was discovered and polled; the updated one once more.
    assert_eq!((asked("/a"), asked("/b"), asked("/c")), (2, 3, 2));
    // More than once, unless the update came before the first SUP poll.
    assert!(asked("/sup.json") >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_that_did_not_change_cost_one_conditional_request_each() {
    let server = RawServer::start(|asked| atom_feed(asked, 2)).await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let (a, b) = (server.url("/a"), server.url("/b"));
    let args = ["follow", &a, &b, "--once", "--state", text(&state)];
    let first = run(&args).await;
    assert_eq!((first.status.code(), lines(&first).len()), (Some(0), 4), "{}", stderr_text(&first));
    let before = server.asked().len();
    let again = run(&args).await;
    assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{}", stderr_text(&again));
    let asked = server.asked();
    assert_eq!(asked.len() - before, 2);
    assert!(asked[before..].iter().all(|asked| asked.head.contains("if-none-match: \"2\"")));
}

/// RFC 9110, section 10.2.3: a publisher's `Retry-After` is respected, while other feeds are polled at their
/// interval.
#[tokio::test(flavor = "multi_thread")]
async fn feeds_are_polled_at_their_interval_and_not_before_retry_after() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/busy" => answer("503 Busy", "Retry-After: 3600\r\n", ""),
        _ => smart_feed(asked, 1),
    })
    .await;
    let mut child =
        towpath(&["follow", &server.url("/a"), &server.url("/busy"), "--every", "2s"]).spawn().unwrap();
    let asked = |start: &str| server.asked().iter().filter(|asked| asked.path.starts_with(start)).count();
    let end = Instant::now() + Duration::from_secs(30);
    // Discovered, read to the end by two requests, then polled once per interval.
    while asked("/a") < 6 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(asked("/a") >= 6);
    assert_eq!(asked("/busy"), 1);
}
