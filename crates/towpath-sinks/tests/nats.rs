//! The NATS sink against a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "shared test helpers")]

#[path = "../../towpath-cluster/tests/common/mod.rs"]
mod nats_server;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use nats_server::{NatsServer, SingleServer, free_port, single};
use tempfile::TempDir;
use towpath_client::sink::SinkStateFile;
use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::line::{Line, ResetLine};
use towpath_proto::{Content, Item, NewChange, Op, patch};
use towpath_sinks::conformance::{LiveItems, SinkFixture};
use towpath_sinks::{conformance_tests, open, open_with_state};

/// Makes a stream that knows message ids for so long.
async fn make_stream(url: &str, window: Duration) -> stream::Stream {
    make_stream_by(async_nats::connect(url).await.unwrap(), window).await
}

async fn make_stream_by(client: async_nats::Client, window: Duration) -> stream::Stream {
    let context = jetstream::new(client);
    let config = stream::Config {
        name: "CHANGES".into(),
        subjects: vec!["changes.>".into()],
        duplicate_window: window,
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap()
}

/// Reads the payloads of a stream, in its order.
async fn payloads(url: &str) -> Vec<Vec<u8>> {
    let context = jetstream::new(async_nats::connect(url).await.unwrap());
    let mut stream = context.get_stream("CHANGES").await.unwrap();
    let last = stream.info().await.unwrap().state.last_sequence;
    let mut payloads = Vec::new();
    for sequence in 1..=last {
        payloads.push(stream.get_raw_message(sequence).await.unwrap().payload.to_vec());
    }
    payloads
}

/// A stream of a server of its own.
struct NatsFixture {
    server: SingleServer,
    state: TempDir,
    is_made: bool,
}

impl NatsFixture {
    fn new() -> Self {
        // The suite has changes of 20 MiB.
        let server = single("max_payload: 33554432");
        Self { server, state: tempfile::tempdir().unwrap(), is_made: false }
    }
}

#[async_trait]
impl SinkFixture for NatsFixture {
    async fn sink(&mut self) -> Box<dyn Sink> {
        let url = self.server.server.url();
        if !std::mem::replace(&mut self.is_made, true) {
            // Short, because the sink waits for it after a reset.
            make_stream(&url, Duration::from_millis(500)).await;
        }
        let state = self.state.path().join("state");
        while SinkStateFile::open("x", &state).is_err_and(|error| error.to_string().contains("in use")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        open_with_state(&format!("{url}/changes.{{feed}}").parse().unwrap(), Some(&state)).unwrap()
    }

    async fn items(&mut self) -> LiveItems {
        let mut items = LiveItems::new();
        for payload in payloads(&self.server.server.url()).await {
            if ResetLine::is(&payload) {
                let reset: ResetLine = serde_json::from_slice(&payload).unwrap();
                items.retain(|(feed, _), _| *feed != reset.feed);
                continue;
            }
            let line = Line::parse(&payload).unwrap();
            let feed = line.feed.clone().unwrap();
            let NewChange { op, item, patch, .. } = line.into_change().unwrap();
            let key = (feed, item.id.clone());
            match op {
                Op::Put => drop(items.insert(key, item)),
                Op::Delete => drop(items.remove(&key)),
                Op::Patch => {
                    let patched = patch::apply(&items[&key], &patch.unwrap()).unwrap();
                    items.insert(key, patched);
                }
            }
        }
        items
    }

    async fn set_available(&mut self, is_available: bool) -> bool {
        if is_available {
            self.server.server.start();
        } else {
            self.server.server.kill();
        }
        true
    }
}

conformance_tests!(NatsFixture::new());

fn change(feed: &str, id: &str, position: &str) -> SinkEvent {
    SinkEvent::Change(Box::new(Followed {
        feed: feed.into(),
        op: Op::Put,
        item: Item::new(id),
        patch: None,
        modified: None,
        position: position.into(),
        entry_id: None,
    }))
}

fn batch(events: Vec<SinkEvent>) -> SinkBatch {
    SinkBatch { source: "s".into(), events: Arc::new(events), checkpoint: Some((*b"1").into()) }
}

async fn opened(url: &str) -> Result<Box<dyn Sink>, SinkError> {
    let mut sink = open(&url.parse().unwrap());
    sink.open("s").await?;
    Ok(sink)
}

fn refusal(result: Result<Box<dyn Sink>, SinkError>) -> String {
    match result.err().unwrap() {
        SinkError::Refused { message } => message,
        other => panic!("{other:?}"),
    }
}

fn ids(payloads: &[Vec<u8>]) -> Vec<String> {
    let id = |payload: &Vec<u8>| {
        let line: serde_json::Value = serde_json::from_slice(payload).unwrap();
        line["id"].as_str().unwrap_or("reset").to_owned()
    };
    payloads.iter().map(id).collect()
}

#[tokio::test]
async fn a_repetition_by_another_process_is_dropped_and_order_is_kept() {
    let server = single("");
    let url = server.server.url();
    make_stream(&url, Duration::from_secs(120)).await;
    let to = format!("{url}/changes.all");
    let events: Vec<SinkEvent> =
        (0..1000).map(|n| change(["f", "g"][n % 2], &n.to_string(), &n.to_string())).collect();
    // Killed after a part, and in the middle of the rest.
    opened(&to).await.unwrap().apply(&batch(events[..700].to_vec())).await.unwrap();
    opened(&to).await.unwrap().apply(&batch(events.clone())).await.unwrap();
    let wanted: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    assert_eq!(ids(&payloads(&url).await), wanted);
}

#[tokio::test]
async fn what_follows_a_reset_is_not_taken_for_a_repetition() {
    let server = single("");
    let url = server.server.url();
    make_stream(&url, Duration::from_secs(2)).await;
    let mut sink = opened(&format!("{url}/changes.all")).await.unwrap();
    sink.apply(&batch(vec![change("f", "a", "1")])).await.unwrap();
    let reset = SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "anew".into() });
    let anew = batch(vec![reset, change("f", "a", "1")]);
    // The same change at the same position: the stream would drop it within its window.
    loop {
        match sink.apply(&anew).await {
            Ok(()) => break,
            Err(SinkError::Unavailable { message, retry_after }) => {
                assert!(message.contains("began anew"), "{message}");
                tokio::time::sleep(retry_after.unwrap()).await;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(ids(&payloads(&url).await), ["a", "reset", "a"]);
}

/// A queue merges what waits while the destination is busy, also across a reset.
#[tokio::test]
async fn a_reset_within_a_batch_loses_nothing_behind_it() {
    let server = single("");
    let url = server.server.url();
    make_stream(&url, Duration::from_millis(500)).await;
    let mut sink = opened(&format!("{url}/changes.all")).await.unwrap();
    let reset = || SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "anew".into() });
    let put = || change("f", "a", "1");
    let merged = batch(vec![put(), reset(), put(), change("f", "b", "2"), reset(), put()]);
    while let Err(error) = sink.apply(&merged).await {
        let SinkError::Unavailable { retry_after, .. } = error else { panic!("{error:?}") };
        tokio::time::sleep(retry_after.unwrap()).await;
    }
    assert_eq!(ids(&payloads(&url).await), ["a", "reset", "a", "b", "reset", "a"]);
}

#[tokio::test]
async fn a_subject_without_a_stream_is_refused_with_advice() {
    let server = single("");
    let url = server.server.url();
    let message = refusal(opened(&format!("{url}/changes.all")).await);
    assert!(message.contains("changes.all") && message.contains("nats stream add"), "{message}");
    make_stream(&url, Duration::from_secs(120)).await;
    let mut sink = opened(&format!("{url}/changes.all")).await.unwrap();
    // Deleted while it runs: it is waited for, and nothing is lost.
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    context.delete_stream("CHANGES").await.unwrap();
    let lost = sink.apply(&batch(vec![change("f", "a", "1")])).await;
    assert!(
        matches!(&lost, Err(SinkError::Unavailable { message, .. }) if message.contains("nats stream add")),
        "{lost:?}"
    );
    make_stream(&url, Duration::from_secs(120)).await;
    sink.apply(&batch(vec![change("f", "a", "1")])).await.unwrap();
    assert_eq!(ids(&payloads(&url).await), ["a"]);
}

#[tokio::test]
async fn credentials_are_checked_and_never_shown() {
    let server = single("authorization { user: me, password: \"h@sh\" }");
    let at = format!("127.0.0.1:{}", server.server.port);
    let login = async_nats::ConnectOptions::with_user_and_password("me".into(), "h@sh".into());
    make_stream_by(login.connect(&at).await.unwrap(), Duration::from_secs(120)).await;
    opened(&format!("nats://me:h%40sh@{at}/changes.all")).await.unwrap();
    for wrong in ["me:hush", "you:h%40sh", "me"] {
        let message = refusal(opened(&format!("nats://{wrong}@{at}/changes.all")).await);
        assert!(message.contains("check user and password") && !message.contains("hush"), "{message}");
    }
    let missing = refusal(opened(&format!("nats://{at}/changes.all?credentials=/nowhere")).await);
    assert!(missing.contains("/nowhere"), "{missing}");
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = NatsServer::new(&folder.path().join("one"), free_port(), "one", "");
    let to = format!("{}/changes.all", server.url());
    assert!(matches!(opened(&to).await, Err(SinkError::Unavailable { .. })));
    server.start();
    make_stream(&server.url(), Duration::from_secs(120)).await;
    let mut sink = opened(&to).await.unwrap();
    sink.apply(&batch(vec![change("f", "a", "1")])).await.unwrap();
    server.kill();
    let second = batch(vec![change("f", "a", "1"), change("f", "b", "2")]);
    assert!(matches!(sink.apply(&second).await, Err(SinkError::Unavailable { .. })));
    server.start();
    // The stream knows the first one again after its restart.
    while let Err(error) = sink.apply(&second).await {
        assert!(matches!(error, SinkError::Unavailable { .. }), "{error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ids(&payloads(&server.url()).await), ["a", "b"]);
}

#[tokio::test]
async fn a_change_beyond_the_servers_limit_is_named() {
    let server = single("max_payload: 4096");
    let url = server.server.url();
    make_stream(&url, Duration::from_secs(120)).await;
    let mut sink = opened(&format!("{url}/changes.all")).await.unwrap();
    let SinkEvent::Change(mut large) = change("f", "large", "2") else { unreachable!() };
    large.item.content = Some(Content::new("text/plain", "x".repeat(4000)));
    let events = vec![change("f", "a", "1"), SinkEvent::Change(large)];
    let refused = sink.apply(&batch(events)).await;
    assert!(
        matches!(&refused, Err(SinkError::Items(items)) if items.len() == 1 && items[0].index == 1 && items[0].message.contains("4096")),
        "{refused:?}"
    );
}
