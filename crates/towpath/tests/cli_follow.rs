//! `towpath follow` and `towpath check` as programs: output, state files and exit codes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use towpath_client::{Changes, Follow, Protocol};

use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect};

/// Smart Feed with `count` items, two on each page; its cursors are counters.
fn smart_feed(asked: &ReceivedRequest, count: usize) -> Vec<ScriptStep> {
    let since = asked.path.split("since=cursor%3A").nth(1).or(asked.path.split("since=cursor:").nth(1));
    let since = since.map_or(0, |rest| rest.split('&').next().unwrap().parse().unwrap());
    let last = count.min(since + 2);
    let items: Vec<Value> = (since + 1..=last)
        .map(|n| serde_json::json!({ "id": format!("item {n}"), "objectType": "note", "content": "x".repeat(200) }))
        .collect();
    let page = serde_json::json!({ "items": items, "last_cursor": last.to_string() });
    answer("200 OK", "Content-Type: application/json\r\n", page.to_string())
}

fn towpath(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command
        .args(args)
        // A developer's own token must not reach these servers.
        .env_remove("TOWPATH_READ_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

async fn run(args: &[&str]) -> Output {
    let mut command = towpath(args);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ids(output: &Output) -> Vec<String> {
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    lines.map(id).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_item_is_printed_once_over_several_runs() {
    let there = Arc::new(AtomicUsize::new(5));
    let count = Arc::clone(&there);
    let server = RawServer::start(move |asked| smart_feed(asked, count.load(Ordering::SeqCst))).await;
    let folder = tempfile::tempdir().unwrap();
    let (url, state) = (server.url("/items"), folder.path().join("state"));
    let args = ["follow", &url, "--state", text(&state), "--once"];

    let first = run(&args).await;
    assert_eq!(first.status.code(), Some(0), "{}", stderr_text(&first));
    assert_eq!(ids(&first), ["item 1", "item 2", "item 3", "item 4", "item 5"]);
    assert!(stderr_text(&first).contains("by smart, because"), "{}", stderr_text(&first));
    let kept: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    assert_eq!((&kept["towpath_state"], &kept["protocol"]), (&1.into(), &"smart".into()));

    let again = run(&args).await;
    assert_eq!((again.status.code(), again.stdout.len(), stderr_text(&again)), (Some(0), 0, String::new()));

    there.store(6, Ordering::SeqCst);
    assert_eq!(ids(&run(&args).await), ["item 6"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_the_user_exit_with_2_and_say_what_to_do() {
    let server = RawServer::start(|asked| smart_feed(asked, 1)).await;
    let folder = tempfile::tempdir().unwrap();
    let (url, other) = (server.url("/items"), server.url("/other"));
    let state = folder.path().join("state");
    run(&["follow", &url, "--state", text(&state), "--once"]).await;
    let damaged = folder.path().join("damaged");
    std::fs::write(&damaged, "{\"towpath_state\":1,").unwrap();
    let nowhere = folder.path().join("no/folder/state");
    for (args, what) in [
        (vec!["follow", "example.com/feed"], "must begin with http"),
        (vec!["follow", "ftp://example.com/feed"], "neither http nor https"),
        (vec!["follow", &url, "--protocol", "gopher"], "is not a protocol; expected one of auto, diffdelta"),
        (vec!["follow", &url, "--protocol", "diffdelta", "--from", "garbage"], "64 lower-case hex digits"),
        (vec!["follow", &url, "--protocol", "history", "--from", "garbage"], "URL of a permanent document"),
        (vec!["follow", &url, "--from", "begining"], "did you mean beginning?"),
        (vec!["follow", &url, "--from", "2024-13-01"], "there is no such day"),
        (vec!["follow", &url, "--from", "2024-01-01T10:00:00"], "a time has an offset"),
        (vec!["status", "--server", "nonsense"], "must begin with http"),
        (vec!["follow", &url, "--from", ""], "start position is empty"),
        (vec!["follow", &other, "--state", text(&state)], "use a separate state file for each feed"),
        (
            vec!["follow", &url, "--protocol", "rss", "--state", text(&state)],
            "for the protocol smart, not rss",
        ),
        (vec!["follow", &url, "--state", text(&damaged)], "damaged"),
        (vec!["follow", &url, "--state", text(&nowhere)], "cannot write the state file"),
        (vec!["check", "example.com/feed"], "must begin with http"),
    ] {
        let output = run(&args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains(what), "{args:?}: {}", stderr_text(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_feeds_exit_with_1() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/text" => answer("200 OK", "Content-Type: text/plain\r\n", "hello"),
        "/500" => answer("500 Broken", "", "no"),
        "/hang-up" => vec![ScriptStep::Close],
        _ => answer("200 OK", "Content-Type: application/json\r\n", "{\"items\":[{\"id\":"),
    })
    .await;
    for (path, more, what) in [
        ("/text", None, "text/plain, not a feed that can be recognised"),
        ("/500", None, "the server answers 500"),
        ("/hang-up", None, "closed the connection"),
        ("/cut", Some("smart"), "EOF"),
    ] {
        let url = server.url(path);
        let mut args = vec!["follow", &url, "--once"];
        args.extend(more.iter().flat_map(|protocol| ["--protocol", protocol]));
        let output = run(&args).await;
        assert_eq!(output.status.code(), Some(1), "{path}: {}", stderr_text(&output));
        assert!(
            stderr_text(&output).contains(what) && stderr_text(&output).contains(&url),
            "{path}: {}",
            stderr_text(&output)
        );
        assert!(output.stdout.is_empty(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_certificates_still_follows() {
    let server = RawServer::start(|asked| smart_feed(asked, 1)).await;
    let url = server.url("/items");
    let mut command = towpath(&["follow", &url, "--once"]);
    command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!((output.status.code(), ids(&output).len()), (Some(0), 1), "{}", stderr_text(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_it_quietly_without_loss() {
    let server = RawServer::start(|asked| smart_feed(asked, 20_000)).await;
    let folder = tempfile::tempdir().unwrap();
    let (url, state) = (server.url("/items"), folder.path().join("state"));
    let args = ["follow", &url, "--state", text(&state), "--once"].map(str::to_owned);
    let (read, status, errors) = tokio::task::spawn_blocking(move || {
        let mut child = towpath(&args.each_ref().map(String::as_str)).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        for _ in 0..10 {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        let read = serde_json::from_str::<Value>(&line).unwrap()["position"].as_str().unwrap().to_owned();
        drop(lines);
        let status = child.wait().unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (read, status, errors)
    })
    .await
    .unwrap();
    assert_eq!(read, "10");
    assert_eq!(status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "only what it follows by: {errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_running_follow_cleanly() {
    // Two items, then silence: the publisher holds the long poll open.
    let hold = |asked: &ReceivedRequest| {
        let holds = asked.path.contains("timeout=55");
        if holds { vec![ScriptStep::Pause(Duration::from_secs(60))] } else { smart_feed(asked, 2) }
    };
    let server = RawServer::start(hold).await;
    let folder = tempfile::tempdir().unwrap();
    let (url, state) = (server.url("/items"), folder.path().join("state"));
    let args = ["follow", &url, "--state", text(&state)].map(str::to_owned);
    let status = tokio::task::spawn_blocking(move || {
        let mut child = towpath(&args.each_ref().map(String::as_str)).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("item 1"));
        assert!(lines.next().unwrap().unwrap().contains("item 2"));
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        child.wait().unwrap()
    })
    .await
    .unwrap();
    assert_eq!(status.code(), Some(0));
    let again = run(&["follow", &url, "--state", text(&state), "--once"]).await;
    assert!(again.stdout.is_empty(), "what was stderr_text is in the state");
}

/// A server that answers nothing holds a command while it looks for the protocol.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_command_before_it_has_found_the_feed() {
    for (command, code) in [(&["follow"][..], 0), (&["follow", "--once"], 1), (&["check"], 1)] {
        let (asked, mut is_asked) = tokio::sync::mpsc::unbounded_channel();
        let silent = move |_: &ReceivedRequest| {
            let _ = asked.send(());
            vec![ScriptStep::Pause(Duration::from_secs(600))]
        };
        let server = RawServer::start(silent).await;
        let url = server.url("/items");
        let mut child = towpath(&[command, &[url.as_str()]].concat()).spawn().unwrap();
        is_asked.recv().await.unwrap();
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
        assert_eq!(status.code(), Some(code), "{command:?}");
    }
}

/// A page of a snapshot is missing while another is under way: that one is delivered, and the failure is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_page_of_a_snapshot_leaves_the_others() {
    let base = Arc::new(std::sync::OnceLock::<String>::new());
    let own = base.clone();
    let server = RawServer::start(move |asked| {
        let base = own.get().unwrap();
        let index = serde_json::json!({
            "id": "x", "createdAt": "2023-10-07T15:00:00Z",
            "pages": [format!("{base}/missing"), format!("{base}/there")],
        });
        let time = "Thu, 05 Oct 2023 03:00:13 GMT";
        let page = format!("--B\r\nContent-Type: text/plain\r\nLast-Modified: {time}\r\n\r\nHello\r\n--B--");
        let headers = format!("Content-Type: multipart/mixed; boundary=B\r\nLast-Modified: {time}\r\n");
        match asked.path.as_str() {
            "/snapshot" => answer("200 OK", "Content-Type: application/json\r\n", index.to_string()),
            "/there" => {
                let mut steps = answer("200 OK", &headers, page);
                // The other page fails first.
                steps.insert(0, ScriptStep::Pause(Duration::from_millis(300)));
                steps
            }
            _ => answer("404 Not Found", "", ""),
        }
    })
    .await;
    base.set(server.base.clone()).unwrap();
    let url = server.url("/snapshot");
    let printed = run(&["follow", &url, "--once", "--protocol", "replication"]).await;
    let (out, errors) = (String::from_utf8_lossy(&printed.stdout), stderr_text(&printed));
    assert!(out.contains("Hello") && errors.contains("/missing: the server answers 404"), "{out}{errors}");
    assert_eq!(printed.status.code(), Some(1), "{errors}");
}

/// At a boot, the publisher may come later than its followers.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_is_not_there_yet_is_tried_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let late = move |request: &ReceivedRequest| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer("503 Not yet", "Retry-After: 0\r\n", ""),
        _ => smart_feed(request, 2),
    };
    let server = RawServer::start(late).await;
    let url = server.url("/items");
    let mut child = towpath(&["follow", &url]).spawn().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    });
    assert!(line.await.unwrap().contains("item 1"));
    // With --once a failure ends it, and so does an answer that stays.
    asked.store(0, Ordering::SeqCst);
    assert_eq!(run(&["follow", &url, "--once"]).await.status.code(), Some(1));
    let gone = RawServer::start(|_| answer("404 Not Found", "", "")).await;
    assert_eq!(run(&["follow", &gone.url("/items")]).await.status.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_prints_its_report_and_fails_with_a_must() {
    let server = RawServer::start(|asked| smart_feed(asked, 5)).await;
    let url = server.url("/items");
    let printed = run(&["check", &url]).await;
    let report = String::from_utf8(printed.stdout.clone()).unwrap();
    // The scripted feed implements neither orders nor bounds nor totals.
    assert_eq!(printed.status.code(), Some(1), "{report}{}", stderr_text(&printed));
    assert!(report.starts_with(&format!("{url} as smart\n")), "{report}");
    assert!(report.lines().last().unwrap().starts_with("does not conform: MUST "), "{report}");
    let json = run(&["check", &url, "--protocol", "smart", "--format", "json"]).await;
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (json.status.code(), &value["conforms"], &value["url"]),
        (Some(1), &false.into(), &url.into())
    );
    let fails = |finding: &Value| finding["level"] == "MUST" && finding["outcome"] == "fail";
    assert!(value["findings"].as_array().unwrap().iter().any(fails));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_goes_to_the_server_of_the_feed_only() {
    let elsewhere = RawServer::start(|asked| smart_feed(asked, 3)).await;
    let (away, other) = (elsewhere.url("/items"), elsewhere.url("/others"));
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/away" => redirect(302, &away),
        _ if asked.head.contains("authorization: bearer s3cret") => smart_feed(asked, 3),
        _ => answer("401 Unauthorized", "", "no"),
    })
    .await;
    let (url, second) = (server.url("/items"), server.url("/more"));
    let refused = run(&["follow", &url, "--once"]).await;
    assert_eq!(refused.status.code(), Some(1), "{}", stderr_text(&refused));
    for (urls, count) in [(vec![url.as_str()], 3), (vec![&url, &second], 6), (vec![&server.url("/away")], 3)]
    {
        let args = [&["follow", "--once", "--token", "s3cret"], urls.as_slice()].concat();
        let followed = run(&args).await;
        assert_eq!(
            (followed.status.code(), ids(&followed).len()),
            (Some(0), count),
            "{}",
            stderr_text(&followed)
        );
    }
    let mut command = towpath(&["check", &url]);
    command.env("TOWPATH_READ_TOKEN", "s3cret");
    let checked = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let report = String::from_utf8(checked.stdout.clone()).unwrap();
    assert!(report.starts_with(&format!("{url} as smart\n")), "{report}{}", stderr_text(&checked));
    for asked in elsewhere.asked() {
        assert!(!asked.head.contains("s3cret"), "{}", asked.head);
    }
    assert!(!elsewhere.asked().is_empty());
    let before = elsewhere.asked().len();
    // One token for two servers, for XMPP, and one that would split the header.
    for args in [["follow", &url, &other], ["follow", "xmpp:a@b.example?;node=x", ""], ["follow", &url, "\n"]]
    {
        let token = if args[2] == "\n" { "\n" } else { "s3cret" };
        let args: Vec<&str> = args.into_iter().filter(|arg| !arg.trim().is_empty()).collect();
        let mistaken = run(&[args.as_slice(), &["--once", "--token", token]].concat()).await;
        assert_eq!(mistaken.status.code(), Some(2), "{}", stderr_text(&mistaken));
        assert!(
            stderr_text(&mistaken).contains("token") && !stderr_text(&mistaken).contains("s3cret"),
            "{}",
            stderr_text(&mistaken)
        );
    }
    assert_eq!(elsewhere.asked().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_go_to_the_server_of_the_feed_only() {
    let elsewhere = RawServer::start(|asked| smart_feed(asked, 3)).await;
    let away = elsewhere.url("/items");
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/away" => redirect(302, &away),
        _ if asked.head.contains("x-key: k3y") && asked.head.contains("x-other: 2") => smart_feed(asked, 3),
        _ => answer("401 Unauthorized", "", "no"),
    })
    .await;
    let headers = ["--header", "X-Key: k3y", "--header", "x-other:2"];
    let (url, away) = (server.url("/items"), server.url("/away"));
    for urls in [vec![url.as_str()], vec![&away]] {
        let followed = run(&[&["follow", "--once"], &headers[..], &urls].concat()).await;
        assert_eq!(
            (followed.status.code(), ids(&followed).len()),
            (Some(0), 3),
            "{}",
            stderr_text(&followed)
        );
    }
    let checked = run(&[&["check", &url, "--protocol", "smart"], &headers[..]].concat()).await;
    assert!(checked.stdout.starts_with(format!("{url} as smart\n").as_bytes()), "{}", stderr_text(&checked));
    assert!(!elsewhere.asked().is_empty());
    assert!(elsewhere.asked().iter().all(|asked| !asked.head.contains("k3y")));
    let other = elsewhere.url("/items");
    for mistake in [
        &["follow", &url, &other, "--header", "X-Key: k3y"][..],
        &["follow", "xmpp:a@b.example?;node=x", "--header", "X-Key: k3y"],
        &["follow", &url, "--header", "Host: k3y"],
        &["follow", &url, "--token", "k3y", "--header", "Authorization: k3y"],
    ] {
        let mistaken = run(mistake).await;
        let said = stderr_text(&mistaken);
        assert_eq!(mistaken.status.code(), Some(2), "{said}");
        assert!(said.contains("header"), "{said}");
    }
}

/// One unit of four items.
fn one_unit(request: &ReceivedRequest) -> Vec<ScriptStep> {
    let is_first = !request.path.contains("c4");
    let items: Vec<Value> = ["a", "b", "c", "d"]
        .iter()
        .filter(|_| is_first)
        .map(|id| serde_json::json!({ "id": id, "objectType": "note" }))
        .collect();
    let page = serde_json::json!({ "last_cursor": "c4", "items": items }).to_string();
    answer("200 OK", "Content-Type: application/json\r\n", page)
}

fn follow_in_rust(url: &str, state: &Path) -> Changes {
    Follow::new(url).protocol(Protocol::Smart).state(state).once().changes()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_within_a_unit_that_a_program_has_begun() {
    let server = RawServer::start(one_unit).await;
    let folder = tempfile::tempdir().unwrap();
    let (url, state) = (server.url("/items"), folder.path().join("state"));
    let mut changes = follow_in_rust(&url, &state);
    for id in ["a", "b"] {
        let change = changes.try_next().await.unwrap().unwrap();
        assert_eq!(change.id(), id);
        changes.acknowledge(&change);
    }
    changes.close().await.unwrap();
    let output = run(&["follow", &url, "--state", text(&state), "--once"]).await;
    assert_eq!(ids(&output), ["c", "d"], "{}", stderr_text(&output));
    assert_eq!(ids(&run(&["follow", &url, "--state", text(&state), "--once"]).await), [""; 0]);
}
