//! A stream of changes with acknowledgement: what comes again, what does not, and how it fails.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, send};
use serde_json::{Value, json};
use towpath_client::state_file::StateError;
use towpath_client::{Changes, ChangesError, DriverActivity, DriverClock, FeedChange, Follow, FollowError};
use towpath_proto::follow::{Monotonic, Now};

/// Content of a page of a Smart Feed.
fn page(ids: &[&str], cursor: &str) -> String {
    let items: Vec<Value> =
        ids.iter().map(|id| json!({"id": id, "displayName": format!("Title {id}")})).collect();
    let count = ids.len();
    json!({"count": count, "totalItems": 9, "url": "x", "last_cursor": cursor, "items": items}).to_string()
}

fn json_answer(body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

/// A feed of the items a to d, with a cursor after them all.
fn four_items(request: &ReceivedRequest) -> Vec<ScriptStep> {
    if !request.path.contains("c4") {
        return json_answer(page(&["a", "b", "c", "d"], "c4"));
    }
    // A long poll without news, or at once for a follow that ends.
    let held = if request.path.contains("timeout=0") { Duration::ZERO } else { Duration::from_secs(2) };
    [vec![ScriptStep::Pause(held)], json_answer(page(&[], "c4"))].concat()
}

async fn take(changes: &mut Changes, count: usize) -> Vec<FeedChange> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.push(changes.try_next().await.unwrap().unwrap());
    }
    taken
}

fn ids(changes: &[FeedChange]) -> Vec<&str> {
    changes.iter().map(FeedChange::id).collect()
}

/// Waits at the end of the feed, as a reader does, until the state is as `wanted`.
async fn wait_until_saved(changes: &mut Changes, path: &Path, wanted: impl Fn(&Value) -> bool) {
    let waiting = async {
        while !(path.exists() && wanted(&saved(path))) {
            let waited = tokio::time::timeout(Duration::from_millis(20), changes.try_next()).await;
            assert!(waited.is_err(), "nothing more comes");
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
}

fn saved(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_does_not_come_again_and_the_rest_does() {
    let server = RawServer::start(four_items).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let follow = || Follow::new(server.url("/feed")).state(&path);
    let mut first = follow().changes();
    let taken = take(&mut first, 3).await;
    assert_eq!(ids(&taken), ["a", "b", "c"]);
    assert_eq!((taken[0].op(), taken[0].item().unwrap().title.as_deref()), ("put", Some("Title a")));
    // The second was processed out of turn: only the first is finished with all before it.
    first.acknowledge(&taken[0]);
    drop(first);
    let mut second = follow().changes();
    let taken = take(&mut second, 3).await;
    assert_eq!(ids(&taken), ["b", "c", "d"]);
    second.acknowledge(&taken[2]);
    // The feed's checkpoint follows its last change.
    wait_until_saved(&mut second, &path, |state| state.get("acknowledged").is_none()).await;
    second.close().await.unwrap();
    let state = saved(&path);
    assert_eq!((&state["towpath_state"], &state["protocol"]), (&json!(1), &json!("smart")));
    assert_eq!(state.get("acknowledged"), None, "{state}");
    assert_eq!(follow().once().changes().try_next().await.unwrap(), None);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the state and its lock, and no draft");
}

#[tokio::test]
async fn a_stream_that_waits_has_saved() {
    let server = RawServer::start(four_items).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut changes = Follow::new(server.url("/feed")).state(&path).changes();
    let last = take(&mut changes, 4).await.pop().unwrap();
    assert!(!path.exists(), "nothing was acknowledged");
    changes.acknowledge(&last);
    wait_until_saved(&mut changes, &path, |state| state["state"].is_object()).await;
}

#[tokio::test]
async fn it_is_a_stream_of_the_futures_crate() {
    let server = RawServer::start(four_items).await;
    let changes = Follow::new(server.url("/feed")).once().changes();
    let all: Vec<FeedChange> = TryStreamExt::try_collect(changes).await.unwrap();
    assert_eq!(ids(&all), ["a", "b", "c", "d"]);
    let line: Value = serde_json::from_slice(&all[0].to_json()).unwrap();
    assert_eq!(
        (&line["op"], &line["id"], &line["item"]["title"]),
        (&json!("put"), &json!("a"), &json!("Title a"))
    );
}

/// The caller keeps the state, as in the transaction of a database.
#[tokio::test]
async fn batches_carry_the_state_that_covers_them() {
    let server = RawServer::start(four_items).await;
    let url = server.url("/feed");
    let mut changes = Follow::new(&url).state_content("the table", None).changes();
    let mut state = None;
    let mut sizes = Vec::new();
    while state.is_none() {
        let batch = changes.next_batch(3).await.unwrap().unwrap();
        sizes.push(batch.changes.len());
        assert_eq!(batch.has_more, batch.state.is_none());
        state = batch.state;
    }
    assert_eq!(sizes, [3, 1]);
    drop(changes);
    let mut resumed = Follow::new(&url).once().state_content("the table", state.clone()).changes();
    while let Some(batch) = resumed.next_batch(3).await.unwrap() {
        assert_eq!(batch.changes, []);
    }
    let mut other = Follow::new(server.url("/other")).state_content("the table", state).changes();
    let error = other.try_next().await.unwrap_err();
    assert!(error.to_string().contains("the table belongs to http"), "{error}");
}

#[tokio::test]
async fn a_unit_that_breaks_off_is_given_once() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let server = RawServer::start(move |request| {
        let is_first = !request.path.contains("c4");
        if is_first && count.fetch_add(1, Ordering::SeqCst) == 1 {
            // The second answer, after discovery's: its connection ends within the document.
            let body = page(&["a", "b", "c", "d"], "c4");
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            return vec![
                send(head),
                send(&body[..body.len() - 60]),
                ScriptStep::Pause(Duration::from_millis(300)),
                ScriptStep::Close,
            ];
        }
        four_items(request)
    })
    .await;
    let mut changes = Follow::new(server.url("/feed")).changes();
    assert_eq!(ids(&take(&mut changes, 4).await), ["a", "b", "c", "d"]);
    assert!(asked.load(Ordering::SeqCst) >= 3, "the document was asked for again");
}

#[tokio::test]
async fn an_outage_is_told_and_outlasted() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let server = RawServer::start(move |request| match count.fetch_add(1, Ordering::SeqCst) {
        0 => json_answer(page(&[], "c0")),
        1 => answer("502 Bad Gateway", "Content-Type: text/html\r\n", "<h1>Bad Gateway</h1>"),
        2 => vec![ScriptStep::Close],
        3 => answer("200 OK", "Content-Type: text/html\r\n", "<title>Sign in</title>"),
        _ => four_items(request),
    })
    .await;
    let (sender, mut notices) = tokio::sync::mpsc::unbounded_channel();
    let mut changes = Follow::new(server.url("/feed")).protocol(towpath_client::Protocol::Smart).changes();
    changes = changes.on_notice(move |notice| sender.send(notice.to_string()).unwrap());
    assert_eq!(ids(&take(&mut changes, 4).await), ["a", "b", "c", "d"]);
    let first = notices.recv().await.unwrap();
    assert!(first.starts_with("failed: http") && first.contains("502"), "{first}");
    assert!(!changes.is_incomplete());
}

#[tokio::test]
async fn errors_say_what_failed_and_where() {
    let server = RawServer::start(|request| match request.path.split('?').next().unwrap() {
        "/page" => answer("200 OK", "Content-Type: text/html\r\n", "<!doctype html><title>Hello</title>"),
        "/other" => json_answer(r#"{"swagger": "2.0"}"#),
        "/gone" => answer("404 Not Found", "", ""),
        _ => answer("200 OK", "Content-Type: application/json\r\n", "{"),
    })
    .await;
    let error = async |path: &str| Follow::new(server.url(path)).changes().try_next().await.unwrap_err();
    for path in ["/page", "/other", "/broken"] {
        let error = error(path).await;
        assert!(
            matches!(&error, ChangesError::Follow(FollowError::Protocol { url, .. }) if url.ends_with(path)),
            "{error}"
        );
        assert!(error.to_string().contains(path) && !error.to_string().contains("--"), "{error}");
    }
    let page = error("/page").await.to_string();
    assert!(page.contains("a page that links to no feed"), "{page}");
    let gone = error("/gone").await;
    assert!(matches!(gone, ChangesError::Follow(FollowError::Status { status: 404, .. })), "{gone}");
    let mut away = Follow::new("http://user:secret@127.0.0.1:1/feed").changes();
    let error = away.try_next().await.unwrap_err();
    assert!(matches!(error, ChangesError::Follow(FollowError::Transfer { .. })), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1") && !error.to_string().contains("secret"), "{error}");
    assert_eq!(away.try_next().await.unwrap(), None, "an error is the end");
    let misspelled = Follow::new("example.com/feed").changes().try_next().await.unwrap_err();
    assert!(matches!(misspelled, ChangesError::Follow(FollowError::Usage(_))), "{misspelled}");
}

#[tokio::test]
async fn a_state_that_does_not_fit_is_an_error_before_any_request() {
    let server = RawServer::start(four_items).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let error = async |follow: Follow| match follow.changes().try_next().await {
        Err(ChangesError::State(error)) => error,
        other => panic!("{other:?}"),
    };
    let url = server.url("/feed");
    std::fs::write(&path, r#"{"towpath_state":1,"url":"https://a.example/","protocol":"smart","state":{}}"#)
        .unwrap();
    assert!(matches!(error(Follow::new(&url).state(&path)).await, StateError::OtherFeed { .. }));
    std::fs::write(&path, r#"{"towpath_state":9,"url":"https://a.example/","protocol":"smart","state":{}}"#)
        .unwrap();
    assert!(matches!(error(Follow::new(&url).state(&path)).await, StateError::Damaged { .. }));
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(error(Follow::new(&url).state(&path)).await, StateError::Damaged { .. }));
    assert_eq!(server.asked().len(), 0);
    let nowhere = folder.path().join("no/such/folder");
    assert!(matches!(error(Follow::new(&url).state(nowhere)).await, StateError::Write { .. }));
    let opened = Follow::new(&url).state(&path).open().await;
    assert!(matches!(opened, Err(FollowError::Usage(_))), "a state is never ignored");
}

#[tokio::test]
async fn a_dropped_stream_leaves_no_task() {
    let server = RawServer::start(four_items).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for given in [0, 1, 4] {
        let mut changes = Follow::new(server.url("/feed")).changes();
        take(&mut changes, given).await;
        if given == 4 {
            // In the middle of a long poll.
            let _ = tokio::time::timeout(Duration::from_millis(100), changes.try_next()).await;
        }
        drop(changes);
    }
    // Tasks end at their next step, those of the server with their connections.
    while tasks() > before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Otherwise half a feed would look like a whole one.
#[test]
fn a_runtime_that_closes_is_an_error_and_loses_nothing() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (servers, first, second) = (runtime(), runtime(), runtime());
    let server = servers.block_on(RawServer::start(four_items));
    let folder = tempfile::tempdir().unwrap();
    let follow = || Follow::new(server.url("/feed")).state(folder.path().join("state"));
    let mut changes = follow().changes();
    let given = first.block_on(changes.try_next()).unwrap().unwrap();
    changes.acknowledge(&given);
    drop(first);
    let error = second.block_on(async {
        loop {
            // What has arrived is still given.
            if changes.try_next().await?.is_none() {
                return Ok::<_, ChangesError>(());
            }
        }
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/feed: the Tokio runtime in which this follow began has ended"), "{error}");
    assert_eq!(second.block_on(changes.try_next()).unwrap(), None, "an error is the end");
    drop(changes);
    let again = second.block_on(follow().once().changes().try_collect::<Vec<_>>()).unwrap();
    assert_eq!(again.len(), 3, "what was not acknowledged comes again");
}

/// A clock that goes where it is waited for, while nothing is under way: hours pass in milliseconds.
#[derive(Debug)]
struct LeapingClock(Mutex<Timestamp>);

impl DriverClock for LeapingClock {
    fn now(&self) -> Now {
        Now::simulated(*self.0.lock().unwrap())
    }

    fn sleep_until(&self, until: Monotonic, activity: DriverActivity) -> BoxFuture<'static, ()> {
        if activity == DriverActivity::Busy {
            return Box::pin(std::future::pending());
        }
        let mut now = self.0.lock().unwrap();
        *now = until.simulated_wall().max(*now);
        Box::pin(tokio::task::yield_now())
    }
}

/// Attempts get rarer, the stream neither ends nor hangs, and what was published meanwhile arrives once.
#[tokio::test]
async fn a_server_that_is_away_for_an_hour_is_followed_on() {
    let began = Timestamp::from_second(1_700_000_000).unwrap();
    let clock = Arc::new(LeapingClock(Mutex::new(began)));
    let (time, failures) = (clock.clone(), Arc::new(AtomicU32::new(0)));
    let failed = failures.clone();
    let is_back = move || time.now().wall >= began + SignedDuration::from_hours(1);
    let asked = Arc::new(AtomicU32::new(0));
    let server = RawServer::start(move |request| {
        let before_the_outage = asked.fetch_add(1, Ordering::SeqCst) < 2;
        if !before_the_outage && !is_back() {
            failed.fetch_add(1, Ordering::SeqCst);
            return vec![ScriptStep::Close];
        }
        match before_the_outage {
            true => json_answer(page(&["a", "b"], "c2")),
            false if request.path.contains("c2") => json_answer(page(&["c", "d"], "c4")),
            false => four_items(request),
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut changes = Follow::new(server.url("/feed")).state(&state).clock(clock.clone()).changes();
    changes = changes.on_notice(|_| {});
    let taken = take(&mut changes, 4).await;
    assert_eq!(ids(&taken), ["a", "b", "c", "d"]);
    changes.acknowledge(&taken[3]);
    changes.close().await.unwrap();
    let away = clock.now().wall.duration_since(began);
    assert!(away < SignedDuration::from_mins(90), "back {away:#} after the outage began");
    let failures = failures.load(Ordering::SeqCst);
    assert!((8..60).contains(&failures), "{failures} attempts in an hour");
    let mut rest = Follow::new(server.url("/feed")).state(&state).once().changes();
    assert_eq!(rest.try_next().await.unwrap(), None, "nothing comes twice");
}
