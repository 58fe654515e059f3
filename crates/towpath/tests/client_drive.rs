//! The driver with a follower of a protocol that is as small as can be: documents of lines, every line a
//! change, every document a checkpoint.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use raw_server::{RawServer, Step, answer, send};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use towpath::client::{Ended, FetchOptions, Fetcher, Notice, Output, drive};
use towpath::stop::Stop;
use towpath_proto::follow::{
    Event, Exchange, FollowError, Followed, Follower, Request, RequestId, ResponseHead, TransferError,
};
use towpath_proto::{Item, Op};

/// Follows documents of lines; those under way are read side by side.
#[derive(Default)]
struct LineFollower {
    to_ask: VecDeque<String>,
    under_way: BTreeMap<RequestId, (String, Vec<u8>)>,
    events: VecDeque<Event>,
    asked: u64,
    wake: Option<Timestamp>,
    for_ever: bool,
}

impl LineFollower {
    fn of(urls: impl IntoIterator<Item = String>) -> Self {
        Self { to_ask: urls.into_iter().collect(), ..Self::default() }
    }
}

fn change(line: &[u8]) -> Event {
    let id = String::from_utf8_lossy(line).into_owned();
    Event::Change(Box::new(Followed {
        feed: "lines".into(),
        op: Op::Put,
        position: id.clone(),
        item: Item::new(id),
        patch: None,
        modified: None,
        entry_id: None,
    }))
}

impl Exchange for LineFollower {
    fn poll_request(&mut self, _: Timestamp) -> Option<Request> {
        let url = self.to_ask.pop_front()?;
        self.asked += 1;
        let id = RequestId(self.asked);
        self.under_way.insert(id, (url.clone(), Vec::new()));
        let mut request = Request::get(id, url);
        request.max_body = u64::MAX;
        Some(request)
    }

    fn handle_head(&mut self, _: Timestamp, id: RequestId, head: ResponseHead) {
        assert_eq!(self.under_way[&id].0, head.url);
    }

    fn handle_chunk(&mut self, _: Timestamp, id: RequestId, chunk: Bytes) {
        assert!(self.events.is_empty(), "events are drained before more is fed");
        let (_, text) = self.under_way.get_mut(&id).unwrap();
        text.extend_from_slice(&chunk);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            self.events.push_back(change(&line[..end]));
        }
    }

    fn handle_end(&mut self, _: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        let (url, rest) = self.under_way.remove(&id).unwrap();
        self.events.push_back(match result {
            Ok(()) if rest.is_empty() => Event::Checkpoint(json!(url)),
            Ok(()) => Event::Incomplete("half a line".into()),
            Err(source) => Event::Failed(FollowError::Transfer { url, source }),
        });
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.wake
    }

    fn is_finished(&self) -> bool {
        !self.for_ever && self.to_ask.is_empty() && self.under_way.is_empty() && self.events.is_empty()
    }
}

impl Follower for LineFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Remembers what it was handed.
#[derive(Default)]
struct Kept {
    ids: Vec<String>,
    /// Each checkpoint with the number of changes before it.
    checkpoints: Vec<(usize, Value)>,
    notices: Vec<Notice>,
    largest_batch: usize,
    /// Refuses what would make it more changes than this.
    room: Option<usize>,
}

impl Output for Kept {
    type Error = String;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), String> {
        self.largest_batch = self.largest_batch.max(changes.len());
        if self.room.is_some_and(|room| self.ids.len() + changes.len() > room) {
            return Err("full".into());
        }
        self.ids.extend(changes.into_iter().map(|change| change.item.id));
        self.checkpoints.extend(checkpoint.map(|state| (self.ids.len(), state)));
        Ok(())
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

fn fetcher() -> Fetcher {
    Fetcher::new(FetchOptions::default()).unwrap()
}

fn never() -> Stop {
    watch::channel(false).1
}

#[tokio::test]
async fn changes_come_in_order_with_the_checkpoint_that_covers_them() {
    let server = RawServer::start(|asked| {
        let name = asked.path.trim_start_matches('/');
        let body: String = (0..2500).map(|n| format!("{name}{n}\n")).collect();
        answer("200 OK", "", body)
    })
    .await;
    let mut kept = Kept::default();
    let mut follower = LineFollower::of([server.url("/a")]);
    let ended = drive(&mut follower, &fetcher(), &mut kept, &never()).await.unwrap();
    assert_eq!(ended, Ended::default());
    assert_eq!(kept.ids, (0..2500).map(|n| format!("a{n}")).collect::<Vec<_>>());
    assert_eq!(kept.checkpoints, [(2500, json!(server.url("/a")))]);
    assert!(kept.largest_batch <= 1000);
}

#[tokio::test]
async fn several_requests_are_under_way_at_once_but_not_all() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (current, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = RawServer::start(move |_| {
        highest.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let after = Arc::clone(&current);
        let mut steps = vec![
            Step::Pause(Duration::from_millis(100)),
            Step::Do(Arc::new(move || {
                after.fetch_sub(1, Ordering::SeqCst);
            })),
        ];
        steps.extend(answer("200 OK", "", "x\n"));
        steps
    })
    .await;
    let mut kept = Kept::default();
    let mut follower = LineFollower::of((0..20).map(|n| server.url(&format!("/{n}"))));
    drive(&mut follower, &fetcher(), &mut kept, &never()).await.unwrap();
    assert_eq!(kept.ids.len(), 20);
    assert_eq!(most.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn failures_and_gaps_are_told_and_remembered() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/half" => answer("200 OK", "", "one\ntw"),
        "/cut" => vec![send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\none\n"), Step::Close],
        _ => vec![Step::Close],
    })
    .await;
    for (path, incomplete, changes) in [("/half", true, 1), ("/cut", false, 1), ("/none", false, 0)] {
        let mut kept = Kept::default();
        let mut follower = LineFollower::of([server.url(path)]);
        let ended = drive(&mut follower, &fetcher(), &mut kept, &never()).await.unwrap();
        assert_eq!((ended.incomplete, ended.failed.is_some()), (incomplete, !incomplete), "{path}");
        assert_eq!((kept.ids.len(), kept.checkpoints.len(), kept.notices.len()), (changes, 0, 1), "{path}");
    }
}

#[tokio::test]
async fn an_output_that_refuses_ends_it_before_any_checkpoint() {
    let server = RawServer::start(|_| answer("200 OK", "", "x\n".repeat(3000))).await;
    let mut kept = Kept { room: Some(1500), ..Kept::default() };
    let mut follower = LineFollower::of([server.url("/")]);
    let refused = drive(&mut follower, &fetcher(), &mut kept, &never()).await.unwrap_err();
    assert_eq!(refused, "full");
    assert!(kept.checkpoints.is_empty() && kept.ids.len() <= 1500);
}

#[tokio::test]
async fn changes_do_not_wait_for_a_slow_document_and_a_stop_is_clean() {
    let server = RawServer::start(|_| {
        vec![
            send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\none\ntwo\nthr"),
            Step::Pause(Duration::from_secs(60)),
        ]
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let url = server.url("/");
    let driven = tokio::spawn(async move {
        let mut kept = Kept::default();
        let ended = drive(&mut LineFollower::of([url]), &fetcher(), &mut kept, &stopped).await.unwrap();
        (ended, kept)
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.send(true).unwrap();
    let (ended, kept) = tokio::time::timeout(Duration::from_secs(5), driven).await.unwrap().unwrap();
    assert_eq!(ended, Ended { stopped: true, ..Ended::default() });
    assert_eq!((kept.ids, kept.checkpoints), (vec!["one".to_owned(), "two".into()], vec![]));
}

/// Takes nothing until it is allowed to.
struct Slow {
    go: Arc<Notify>,
    taken: usize,
}

impl Output for Slow {
    type Error = ();

    async fn deliver(&mut self, changes: Vec<Followed>, _: Option<Value>) -> Result<(), ()> {
        self.go.notified().await;
        self.taken += changes.len();
        Ok(())
    }

    fn notice(&mut self, _: Notice) {}
}

#[tokio::test]
async fn a_slow_output_holds_the_publisher_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = RawServer::start(move |_| {
        let (line, counter) = (format!("{}\n", "x".repeat(9999)).repeat(10), Arc::clone(&counter));
        let mut steps = vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")];
        for _ in 0..2000 {
            let (counter, length) = (Arc::clone(&counter), line.len());
            steps.push(send(&line));
            steps.push(Step::Do(Arc::new(move || {
                counter.fetch_add(length, Ordering::SeqCst);
            })));
        }
        steps
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let go = Arc::new(Notify::new());
    let (url, mut slow) = (server.url("/"), Slow { go: Arc::clone(&go), taken: 0 });
    let driven = tokio::spawn(async move {
        let ended = drive(&mut LineFollower::of([url]), &fetcher(), &mut slow, &stopped).await;
        (ended, slow.taken)
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let ahead = sent.load(Ordering::SeqCst);
    // The buffers of two sockets and one batch; far from the 200 MB there are.
    assert!(ahead < 40 << 20, "{ahead} bytes were read for an output that takes nothing");
    stop.send(true).unwrap();
    go.notify_one();
    go.notify_one();
    let (ended, taken) = tokio::time::timeout(Duration::from_secs(10), driven).await.unwrap().unwrap();
    assert!(ended.unwrap().stopped && taken > 0);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_never_returns_is_given_up_once_following_is_to_stop() {
    let (stop, stopped) = watch::channel(false);
    let mut follower = LineFollower::default();
    follower.events.extend([change(b"one"), Event::Checkpoint(json!(1))]);
    follower.for_ever = true;
    follower.wake = Some(Timestamp::MAX);
    let mut slow = Slow { go: Arc::new(Notify::new()), taken: 0 };
    let driven = tokio::spawn(async move {
        let ended = drive(&mut follower, &fetcher(), &mut slow, &stopped).await;
        (ended, slow.taken)
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.send(true).unwrap();
    let (ended, taken) = driven.await.unwrap();
    assert!(ended.unwrap().stopped);
    assert_eq!(taken, 0);
}

#[tokio::test(start_paused = true)]
async fn a_follower_wakes_when_it_said_and_without_a_wish_it_ends() {
    let mut follower = LineFollower { for_ever: true, ..LineFollower::default() };
    let mut kept = Kept::default();
    let ended = drive(&mut follower, &fetcher(), &mut kept, &never()).await.unwrap();
    assert!(ended.failed.is_some() && kept.notices.len() == 1);

    follower.wake = Some(Timestamp::UNIX_EPOCH);
    let (stop, stopped) = watch::channel(false);
    let begun = tokio::time::Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.send(true).unwrap();
    });
    let ended = drive(&mut follower, &fetcher(), &mut kept, &stopped).await.unwrap();
    assert!(ended.stopped && begun.elapsed() >= Duration::from_secs(1), "a time in the past is no busy loop");
}
