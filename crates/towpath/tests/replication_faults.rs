//! Data Replication from publishers that violate it: each fault is reported with the page's address and the entity,
//! entities before it are delivered, and the position is persisted.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use towpath_client::{
    FetchOptions, Fetcher, FollowNotice, FollowSummary, Output as Sink, PrivateFetches, drive,
};
use towpath_proto::follow::{FollowError, FollowMode, Followed, StartFrom};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};

use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, send};

const HTTP_TIME: &str = "Mon, 27 Nov 2023 03:10:00 GMT";

/// Entity whose body is its own id.
fn entity(id: &str) -> String {
    entity_at(id, HTTP_TIME)
}

fn entity_at(id: &str, time: &str) -> String {
    format!(
        "--b\r\nOperation-Type: http-equiv=PUT\r\nContent-Type: text/plain\r\nContent-ID: <{id}>\r\n\
         Last-Modified: {time}\r\nContent-Length: {}\r\n\r\n{id}\r\n",
        id.len()
    )
}

fn body(entities: &[String]) -> String {
    entities.concat() + "--b--"
}

const TYPE: &str = "Content-Type: multipart/mixed; boundary=\"b\"\r\n";
const MODIFIED: &str = "Last-Modified: Mon, 27 Nov 2023 03:10:00 GMT\r\n";

fn link(url: &str, rel: &str) -> String {
    format!("Link: <{url}>; rel={rel}\r\n")
}

fn headers(links: &[String]) -> String {
    format!("{TYPE}{MODIFIED}{}", links.concat())
}

/// Response to GET or HEAD.
fn reply(asked: &ReceivedRequest, headers: &str, body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    let body = body.as_ref();
    let head = send(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", body.len()));
    if asked.method == "HEAD" { vec![head] } else { vec![head, send(body)] }
}

/// Feed of one page, `/1`, with these headers and this body.
async fn one_page(headers: String, body: String) -> RawServer {
    RawServer::start(move |asked| reply(asked, &headers, &body)).await
}

async fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn follow(url: &str, more: &[&str]) -> (Option<i32>, Vec<String>, String) {
    let output = run(&[&["follow", url, "--protocol", "replication", "--once"], more].concat()).await;
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    let received = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), lines.map(id).collect(), received)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_of_a_page_is_named() {
    let good = headers(&[link("/1", "self")]);
    let two = [entity("a"), entity("c")];
    let second = |from: &str, to: &str| body(&[entity("a"), entity("c").replace(from, to)]);
    let whole = body(&two);
    for (headers, body, what, delivered) in [
        (good.clone(), whole[..whole.len() - 30].to_owned(), "entity 1", vec!["<a>"]),
        // Only the delimiter after an entity marks its end.
        (good.clone(), whole.replace("--b--", ""), "entity 1", vec!["<a>"]),
        (good.clone(), "<html>".to_owned(), "entity 0", vec![]),
        (good.replace(TYPE, ""), whole.clone(), "no Content-Type header", vec![]),
        (good.replace(TYPE, "Content-Type: text/html\r\n"), "<html>".to_owned(), "text/html", vec![]),
        (good.replace("; boundary=\"b\"", ""), whole.clone(), "boundary", vec![]),
        (good.replace(MODIFIED, ""), whole.clone(), "no Last-Modified header", vec![]),
        (good.replace("27 Nov", "99 Nov"), whole.clone(), "the page's Last-Modified", vec![]),
        (format!("{TYPE}{MODIFIED}"), whole.clone(), "no Link header with rel=self", vec![]),
        (good.clone(), second("Content-ID", "X-Id"), "entity 1 has no Content-ID header", vec!["<a>"]),
        (good.clone(), second("Content-Type", "X-Type"), "entity 1 has no Content-Type header", vec!["<a>"]),
        (
            good.clone(),
            second("Last-Modified", "X-Time"),
            "entity 1 has no Last-Modified header",
            vec!["<a>"],
        ),
        (good.clone(), second("27 Nov", "Nov"), "entity 1: Last-Modified", vec!["<a>"]),
        (
            good.clone(),
            second("Operation-Type", "X-Op"),
            "entity 1 has no Operation-Type header",
            vec!["<a>"],
        ),
        (good.clone(), second("=PUT", "=CUT"), "entity 1: Operation-Type \"CUT\" is none of", vec!["<a>"]),
        (good.clone(), second("Length: 1", "Length: 7"), "entity 1", vec!["<a>"]),
        (
            headers(&[link("/1", "self"), link("/1", "next")]),
            whole.clone(),
            "forms a loop",
            vec!["<a>", "<c>"],
        ),
        (headers(&[link("/1", "self"), link("/1", "prev")]), whole.clone(), "forms a loop", vec![]),
    ] {
        let server = one_page(headers.clone(), body.clone()).await;
        let url = server.url("/1");
        let (exit, ids, received) = follow(&url, &[]).await;
        assert_eq!(
            (exit, ids),
            (Some(1), delivered.iter().map(|id| (*id).to_owned()).collect()),
            "{headers}{body}\n{received}"
        );
        assert!(received.contains(what) && received.contains(&url), "{headers}{body}\n{received}");
    }
}

/// "Links must be consistent, i.e. the prev and next links of adjacent pages must match and the feed must not form a
/// loop."
#[tokio::test(flavor = "multi_thread")]
async fn links_that_do_not_match() {
    for (first, second, what) in [
        // Prev and next link to the same page.
        ("prev=/2 next=/2", "prev=/1 next=/1", "loop"),
        ("next=/3", "prev=/1", "do not match"),
        ("", "prev=/1", "no Link header with rel=next"),
    ] {
        let links = |own: &str, list: &str| {
            let others = list.split_whitespace().filter_map(|one| one.split_once('='));
            headers(&[vec![link(own, "self")], others.map(|(rel, url)| link(url, rel)).collect()].concat())
        };
        let (one, two) = (links("/1", first), links("/2", second));
        let server = RawServer::start(move |asked| {
            if asked.path == "/1" {
                reply(asked, &one, body(&[entity("a")]))
            } else {
                reply(asked, &two, body(&[entity("b")]))
            }
        })
        .await;
        let (exit, ids, received) = follow(&server.url("/2"), &[]).await;
        assert_eq!((exit, ids.len()), (Some(1), 0), "{received}");
        assert!(received.contains(what), "{first} {second}: {received}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_end_early_or_stall() {
    let good = headers(&[link("/1", "self")]);
    let whole = body(&[entity("a"), entity("c")]);
    // More is announced than sent, so the transfer fails and not the format.
    let (sent, length) = (whole[..whole.len() - 20].to_owned(), whole.len() + 1000);
    let head = format!("HTTP/1.1 200 OK\r\n{good}Content-Length: {length}\r\n\r\n");
    for end in [ScriptStep::Close, ScriptStep::Pause(Duration::from_secs(20))] {
        let stalls = matches!(end, ScriptStep::Pause(_));
        let (head, sent) = (head.clone(), sent.clone());
        let server = RawServer::start(move |asked| {
            let is_head = asked.method == "HEAD";
            let rest = if is_head { Vec::new() } else { vec![send(&sent), end.clone()] };
            [vec![send(&head)], rest].concat()
        })
        .await;
        let private = PrivateFetches::All;
        let stall_timeout = Duration::from_millis(500);
        let options = FetchOptions::default().with_stall_timeout(stall_timeout).with_private(private);
        let options = (
            Fetcher::new(options).unwrap(),
            ReplicationOptions { mode: FollowMode::CatchUp, ..ReplicationOptions::default() },
        );
        let url = server.url("/1");
        let mut follower = ReplicationFollower::new(&url, StartFrom::Beginning, None, options.1).unwrap();
        let mut kept = DeliveredIds::default();
        let (_stop, stop) = tokio::sync::watch::channel(false);
        let ended: FollowSummary = drive(&mut follower, &options.0, &mut kept, &stop).await.unwrap();
        assert_eq!(kept.ids, ["<a>"]);
        assert_eq!(kept.state.unwrap()["position"]["content_id"], "<a>");
        let Some(FollowError::Transfer { url: failed, source }) = ended.failed else { unreachable!() };
        assert_eq!(failed, url);
        let what = if stalls { "timed out" } else { "cut off" };
        assert!(source.to_string().contains(what), "{source}");
    }
}

/// Output that collects the delivered items.
#[derive(Default)]
struct DeliveredIds {
    ids: Vec<String>,
    state: Option<Value>,
}

impl Sink for DeliveredIds {
    type Error = std::convert::Infallible;

    async fn deliver(&mut self, changes: Vec<Followed>, state: Option<Value>) -> Result<(), Self::Error> {
        self.ids.extend(changes.into_iter().map(|change| change.item.id));
        self.state = state.or(self.state.take());
        Ok(())
    }

    fn notice(&mut self, _: FollowNotice) {}
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// After a cut-off page, following continues after the delivered entities.
#[tokio::test(flavor = "multi_thread")]
async fn the_position_is_persisted() {
    let round = Arc::new(AtomicUsize::new(0));
    let now = round.clone();
    let server = RawServer::start(move |asked| {
        let all = body(&[entity("a"), entity("c"), entity("d")]);
        let good = headers(&[link("/1", "self")]);
        let cut = all.find("<d>").unwrap();
        reply(asked, &good, if now.load(Ordering::SeqCst) == 0 { &all[..cut] } else { &all })
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let (exit, ids, received) = follow(&server.url("/1"), &["--state", text(&state)]).await;
    assert_eq!((exit, ids), (Some(1), vec!["<a>".to_owned(), "<c>".to_owned()]), "{received}");
    round.store(1, Ordering::SeqCst);
    let (exit, ids, received) = follow(&server.url("/1"), &["--state", text(&state)]).await;
    assert_eq!((exit, ids), (Some(0), vec!["<d>".to_owned()]), "{received}");
}

/// A server among several at an address may be behind: its page is shorter or missing. No item is delivered twice
/// because of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_behind_is_polled_again() {
    let round = Arc::new(AtomicUsize::new(0));
    let now = round.clone();
    let server = RawServer::start(move |asked| {
        let ids: &[&str] = match now.load(Ordering::SeqCst) {
            0 => &["a", "c"],
            1 => &["a"],
            2 => return vec![send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")],
            _ => &["a", "c", "d"],
        };
        let entities: Vec<String> = ids.iter().map(|id| entity(id)).collect();
        reply(asked, &headers(&[link("/1", "self")]), body(&entities))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    for (at, exit, received) in
        [(0, 0, vec!["<a>", "<c>"]), (1, 1, vec![]), (2, 1, vec![]), (3, 0, vec!["<d>"])]
    {
        round.store(at, Ordering::SeqCst);
        let (ended, ids, said) = follow(&server.url("/1"), &["--state", text(&state)]).await;
        assert_eq!(
            (ended, ids),
            (Some(exit), received.into_iter().map(str::to_owned).collect()),
            "{at}: {said}"
        );
    }
}

/// Ages the state of a follower by half a minute: the state has the time at which a feed ended too early.
fn half_a_minute_passes(state: &std::path::Path) {
    let kept = std::fs::read_to_string(state).unwrap();
    let (before, rest) = kept.split_once("\"behind_since\":").unwrap();
    let since = rest.find(['}', ',']).unwrap();
    // A feed that ends too early is not believed for 30 seconds.
    let earlier = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(31);
    std::fs::write(state, format!("{before}\"behind_since\":\"{earlier}\"{}", &rest[since..])).unwrap();
}

/// "Immutability of pages"; "missing content ID"; "timestamps not old enough": reported, and the remaining items are
/// delivered.
#[tokio::test(flavor = "multi_thread")]
async fn unavailable_entities_are_reported_as_missing() {
    let round = Arc::new(AtomicUsize::new(0));
    let now = round.clone();
    let server = RawServer::start(move |asked| {
        let entities = match now.load(Ordering::SeqCst) {
            0 => body(&[entity("a"), entity("c")]),
            1 => body(&[entity("changed"), entity("c"), entity("d")]),
            _ => body(&[entity("e"), entity("f")]),
        };
        reply(asked, &headers(&[link("/1", "self")]), entities)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let url = server.url("/1");
    let (exit, ids, received) = follow(&url, &["--state", text(&state)]).await;
    assert_eq!((exit, ids.len()), (Some(0), 2), "{received}");
    round.store(1, Ordering::SeqCst);
    let (exit, ids, received) = follow(&url, &["--state", text(&state)]).await;
    assert_eq!((exit, ids), (Some(3), vec!["<d>".to_owned()]), "{received}");
    assert!(received.contains("a published page was changed"), "{received}");
    round.store(2, Ordering::SeqCst);
    for _ in 0..3 {
        // The feed is shorter than before: the server may be behind another one.
        let (exit, ids, received) = follow(&url, &["--state", text(&state)]).await;
        assert_eq!((exit, ids.len()), (Some(1), 0), "{received}");
    }
    half_a_minute_passes(&state);
    let (exit, ids, received) = follow(&url, &["--state", text(&state)]).await;
    assert_eq!((exit, ids.len()), (Some(3), 2), "{received}");
    assert!(received.contains("missing content ID: <d>"), "{received}");
    let (exit, ids, received) = follow(&url, &["--from", "2020-01-01"]).await;
    assert_eq!((exit, ids.len()), (Some(3), 2), "{received}");
    assert!(received.contains("timestamps not old enough"), "{received}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timestamps_that_decrease_are_reported() {
    let good = headers(&[link("/1", "self")]);
    let backwards = body(&[entity("a"), entity_at("b", "Mon, 27 Nov 2023 03:09:00 GMT"), entity("c")]);
    let server = one_page(good, backwards).await;
    let (exit, ids, received) = follow(&server.url("/1"), &[]).await;
    assert_eq!((exit, ids.len()), (Some(0), 3), "{received}");
    assert!(received.contains("entity 1: timestamps go backwards"), "{received}");
    let checked = run(&["check", &server.url("/1"), "--protocol", "replication"]).await;
    assert_eq!(checked.status.code(), Some(1), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// The check names each violation, and passes on a conforming feed.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_finds_violations() {
    let good = headers(&[link("/1", "self")]);
    let whole = body(&[entity("a"), entity("c")]);
    let visits = Arc::new(AtomicUsize::new(0));
    for (headers, body, changes, what) in [
        (good.clone(), whole.clone(), false, None),
        (good.replace(MODIFIED, ""), whole.clone(), false, Some("Last-Modified")),
        (good.clone(), whole.replace("Content-ID", "X-Id"), false, Some("Content-ID")),
        (headers(&[link("/1", "self"), link("/1", "prev")]), whole.clone(), false, Some("loop")),
        (good.clone(), whole.clone(), true, Some("Immutability")),
        (good.clone(), whole[..whole.len() - 4].to_owned(), false, Some("FAIL")),
    ] {
        let count = visits.clone();
        count.store(0, Ordering::SeqCst);
        let (shown, text) = (headers.clone(), body.clone());
        let server = RawServer::start(move |asked| {
            let visit = if asked.method == "GET" { count.fetch_add(1, Ordering::SeqCst) } else { 0 };
            let text =
                if changes && visit > 0 { text.replace("\r\n\r\na", "\r\n\r\nz") } else { text.clone() };
            reply(asked, &shown, text)
        })
        .await;
        let checked = run(&["check", &server.url("/1"), "--protocol", "replication"]).await;
        let report = String::from_utf8_lossy(&checked.stdout).into_owned();
        let exit = if what.is_some() { Some(1) } else { Some(0) };
        assert_eq!(checked.status.code(), exit, "{headers}{body}\n{report}");
        assert!(what.is_none_or(|what| report.contains(what)), "{what:?}\n{report}");
    }
}
