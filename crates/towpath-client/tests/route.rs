//! Beginning of a follow: the same for events, changes, sinks and fleets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use raw_server::{RawServer, ReceivedRequest, ScriptStep, answer};
use serde_json::{Value, json};
use tokio::sync::watch;
use towpath_client::fleet::{FleetOptions, follow_fleet};
use towpath_client::sink::{
    FleetObserver, FleetSink, IntoSinkError, SinkNotice, SinkObserver, SinkOptions, SinkQueue, SinkWriter,
};
use towpath_client::{
    ChangesError, Checkpoint, FetchOptions, Fetcher, Follow, FollowError, FollowEvent, FollowMode,
    FollowNotice, Offer, Protocol, Sink, SinkBatch, SinkError,
};

/// A page, the feed that it names, and a feed of a server that is busy at first.
fn site(request: &ReceivedRequest) -> Vec<ScriptStep> {
    match request.path.as_str() {
        "/page" => answer(
            "200 OK",
            "Content-Type: text/html\r\n",
            "<!doctype html><title>News</title><link rel='alternate' type='application/feed+json' href='/feed'>",
        ),
        "/feed" => answer("200 OK", "Content-Type: application/feed+json\r\n", feed().to_string()),
        _ => answer("404 Not Found", "", ""),
    }
}

fn feed() -> Value {
    let items: Vec<Value> = ["2", "1"]
        .iter()
        .map(|id| json!({"id": id, "content_text": id, "date_published": format!("2026-01-0{id}T00:00:00Z")}))
        .collect();
    json!({"version": "https://jsonfeed.org/version/1.1", "title": "News", "items": items})
}

/// A sink in memory. Clones share what they have.
#[derive(Clone, Default)]
struct MemorySink {
    ids: Arc<Mutex<Vec<String>>>,
    checkpoint: Arc<Mutex<Option<Vec<u8>>>>,
}

impl MemorySink {
    fn holding(checkpoint: &Checkpoint) -> Self {
        let bytes = serde_json::to_vec(checkpoint).unwrap();
        Self { checkpoint: Arc::new(Mutex::new(Some(bytes))), ..Self::default() }
    }

    fn checkpoint(&self) -> Checkpoint {
        serde_json::from_slice(self.checkpoint.lock().unwrap().as_ref().unwrap()).unwrap()
    }
}

#[async_trait]
impl Sink for MemorySink {
    async fn open(&mut self, _source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.checkpoint.lock().unwrap().clone())
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let changes = batch.events.iter().filter_map(|event| event.change());
        self.ids.lock().unwrap().extend(changes.map(|change| change.item.id.clone()));
        if let Some(checkpoint) = &batch.checkpoint {
            *self.checkpoint.lock().unwrap() = Some(checkpoint.to_vec());
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_page_is_enough_for_a_named_protocol() {
    let server = RawServer::start(site).await;
    let (page, url) = (server.url("/page"), server.url("/feed"));
    let follow = || Follow::new(&page).protocol(Protocol::Rss).once();

    let mut stream = follow().open().await.unwrap();
    let (mut ids, mut checkpoints) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next().await.unwrap() {
        match event {
            FollowEvent::Change(change) => ids.push(change.item.id),
            FollowEvent::Checkpoint(checkpoint) => checkpoints.push(checkpoint),
            FollowEvent::Notice(FollowNotice::Warning(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ids, stream.url()), (vec!["1".to_owned(), "2".to_owned()], url.as_str()));
    let last = checkpoints.pop().unwrap();
    assert_eq!((last.url.as_str(), last.protocol), (url.as_str(), Protocol::Rss));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut changes = follow().state(&path).changes();
    let mut ids = Vec::new();
    while let Some(change) = changes.try_next().await.unwrap() {
        ids.push(change.id().to_owned());
        changes.acknowledge(&change);
    }
    changes.close().await.unwrap();
    assert_eq!(ids, ["1", "2"]);
    let state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&state["url"], &state["follows"]), (&json!(page), &json!(url)));

    let sink = MemorySink::default();
    follow().into_sink(sink.clone()).await.unwrap();
    assert_eq!(*sink.ids.lock().unwrap(), ["1", "2"]);
    assert_eq!(sink.checkpoint().url, url);

    // From there on, nobody reads the page again.
    let asked = server.asked().len();
    assert_eq!(follow().state(&path).changes().try_next().await.unwrap(), None);
    follow().into_sink(sink.clone()).await.unwrap();
    let paths: Vec<String> = server.asked().into_iter().skip(asked).map(|request| request.path).collect();
    assert_eq!(paths, ["/feed", "/feed"]);
}

#[tokio::test]
async fn a_right_url_costs_no_request_more() {
    let server = RawServer::start(site).await;
    let follow = || Follow::new(server.url("/feed")).protocol(Protocol::Rss).once();
    let mut stream = follow().open().await.unwrap();
    while stream.next().await.unwrap().is_some() {}
    let mut changes = follow().changes();
    while changes.try_next().await.unwrap().is_some() {}
    follow().into_sink(MemorySink::default()).await.unwrap();
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_named_protocol_outlasts_an_outage_at_the_start() {
    let server = RawServer::start(|request| match request.connection {
        0 => {
            [answer("503 Service Unavailable", "Connection: close\r\n", ""), vec![ScriptStep::Close]].concat()
        }
        _ if request.path.contains("c1") => vec![ScriptStep::Pause(Duration::from_secs(60))],
        _ => {
            let page =
                json!({"count": 1, "totalItems": 1, "url": "x", "last_cursor": "c1", "items": [{"id": "a"}]});
            answer("200 OK", "Content-Type: application/json\r\n", page.to_string())
        }
    })
    .await;
    let follow = || Follow::new(server.url("/items")).protocol(Protocol::Smart);
    let change = follow().changes().try_next().await.unwrap().unwrap();
    assert_eq!(change.id(), "a");
}

#[derive(Clone, Default)]
struct Notices(Arc<Mutex<Vec<FollowNotice>>>);

impl SinkObserver for Notices {
    fn notice(&self, _source: &str, _notice: SinkNotice) {}
}

impl FleetObserver for Notices {
    fn notice(&self, _feed: &str, notice: FollowNotice) {
        self.0.lock().unwrap().push(notice);
    }

    fn discovered(&self, _feed: &str, _offer: &Offer) {}
}

#[tokio::test]
async fn another_protocol_than_that_of_the_position_is_refused() {
    let server = RawServer::start(site).await;
    let url = server.url("/feed");
    let held = Checkpoint { protocol: Protocol::Rss, url: url.clone(), state: json!({}) };
    let other = || Follow::resume(held.clone()).protocol(Protocol::Smart).once();
    let refused = |error: &FollowError| {
        let text = error.to_string();
        assert!(matches!(error, FollowError::Usage(_)), "{text}");
        assert!(text.contains("by the protocol rss so far, not smart"), "{text}");
    };
    refused(&other().open().await.unwrap_err());
    match other().changes().try_next().await.unwrap_err() {
        ChangesError::Follow(error) => refused(&error),
        error => panic!("{error}"),
    }
    let sink = MemorySink::holding(&held);
    for follow in [other(), Follow::new(&url).protocol(Protocol::Smart).once()] {
        match follow.into_sink(sink.clone()).await.unwrap_err() {
            IntoSinkError::Follow(error) => refused(&error),
            error => panic!("{error}"),
        }
    }
    let (_running, stop) = watch::channel(false);
    let notices = Notices::default();
    let (sink, observer) = (Box::new(sink), Arc::new(notices.clone()));
    let queue = SinkQueue::start(SinkWriter::new(sink, SinkOptions::default(), observer, stop.clone()));
    let output = Arc::new(FleetSink::new(queue.opener(), notices.clone()));
    let options = FleetOptions::default().with_protocol(Some(Protocol::Smart)).with_mode(FollowMode::CatchUp);
    let fetcher = Fetcher::new(FetchOptions::default()).unwrap();
    let summary = follow_fleet(vec![url.as_str().into()], output, &fetcher, options, &stop).await.unwrap();
    assert_eq!((summary.failed, summary.misused), (1, 1));
    match notices.0.lock().unwrap().as_slice() {
        [FollowNotice::Failed(error)] => refused(error),
        others => panic!("{others:?}"),
    }
    assert_eq!(server.asked().len(), 0, "no request by a protocol that does not fit");
}
