//! The driver with a follower of a minimal protocol: each line of a document is a change, each document a checkpoint.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use raw_server::{RawServer, ScriptStep, answer, send};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use towpath_client::Stop;
use towpath_client::{
    FetchOptions, Fetcher, FollowNotice, FollowSummary, MemoryBudget, Output, PrivateFetches, drive,
};
use towpath_proto::follow::{
    Event, Exchange, FollowError, FollowMode, Followed, Follower, Monotonic, Now, Request, RequestId,
    ResponseHead, StartFrom, TransferError,
};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::{Item, Op};

/// Follows documents of lines; several are read concurrently.
#[derive(Default)]
struct LineFollower {
    to_ask: VecDeque<String>,
    in_flight: BTreeMap<RequestId, (String, Vec<u8>)>,
    events: VecDeque<Event>,
    asked: u64,
    wake: Option<Monotonic>,
    for_ever: bool,
    /// Number of requests after which it has caught up.
    rests_after: Option<u64>,
    one_at_a_time: bool,
    /// Number of calls of `poll_request`.
    polls: u64,
    /// Number of these calls at which a test fails, instead of spinning without end.
    most_polls: Option<u64>,
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
    fn poll_request(&mut self, _: Now) -> Option<Request> {
        self.polls += 1;
        assert!(self.most_polls.is_none_or(|most| self.polls < most), "polled {} times", self.polls);
        if self.one_at_a_time && !self.in_flight.is_empty() {
            return None;
        }
        let url = self.to_ask.pop_front()?;
        self.asked += 1;
        let id = RequestId(self.asked);
        self.in_flight.insert(id, (url.clone(), Vec::new()));
        let mut request = Request::get(id, url);
        // The backpressure test streams more than the default limit.
        (request.max_body, request.is_streamed) = (u64::MAX, true);
        Some(request)
    }

    fn handle_head(&mut self, _: Now, id: RequestId, head: ResponseHead) {
        assert_eq!(self.in_flight[&id].0, head.url);
    }

    fn handle_chunk(&mut self, _: Now, id: RequestId, chunk: Bytes) {
        assert!(self.events.is_empty(), "events are drained before more is fed");
        let (_, text) = self.in_flight.get_mut(&id).unwrap();
        text.extend_from_slice(&chunk);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            self.events.push_back(change(&line[..end]));
        }
    }

    fn handle_end(&mut self, _: Now, id: RequestId, result: Result<(), TransferError>) {
        let (url, rest) = self.in_flight.remove(&id).unwrap();
        self.events.push_back(match result {
            Ok(()) if rest.is_empty() => Event::Checkpoint(json!(url)),
            // Without its line feed a document may be truncated, so no checkpoint may cover it.
            Ok(()) => Event::Incomplete("half a line".into()),
            Err(source) => Event::Failed(FollowError::Transfer { url, source }),
        });
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        self.wake
    }

    fn is_finished(&self) -> bool {
        !self.for_ever && self.to_ask.is_empty() && self.in_flight.is_empty() && self.events.is_empty()
    }
}

impl Follower for LineFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_caught_up(&self) -> bool {
        self.in_flight.is_empty() && self.rests_after == Some(self.asked)
    }
}

/// Records deliveries.
#[derive(Default)]
struct RecordingOutput {
    ids: Vec<String>,
    /// Each checkpoint with the number of changes before it.
    checkpoints: Vec<(usize, Value)>,
    notices: Vec<FollowNotice>,
    largest_batch: usize,
    /// Number of changes that were delivered so far.
    delivered: watch::Sender<usize>,
    /// Maximum number of changes; a delivery beyond it fails.
    room: Option<usize>,
}

impl Output for RecordingOutput {
    type Error = String;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), String> {
        self.largest_batch = self.largest_batch.max(changes.len());
        if self.room.is_some_and(|room| self.ids.len() + changes.len() > room) {
            return Err("full".into());
        }
        self.ids.extend(changes.into_iter().map(|change| change.item.id));
        self.checkpoints.extend(checkpoint.map(|state| (self.ids.len(), state)));
        self.delivered.send_replace(self.ids.len());
        Ok(())
    }

    fn notice(&mut self, notice: FollowNotice) {
        self.notices.push(notice);
    }
}

/// Longest time that a step may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

fn fetcher() -> Fetcher {
    Fetcher::new(FetchOptions::default().with_private(PrivateFetches::All)).unwrap()
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
    let mut output = RecordingOutput::default();
    let mut follower = LineFollower::of([server.url("/a")]);
    let ended = drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
    assert_eq!(ended, FollowSummary::default());
    assert_eq!(output.ids, (0..2500).map(|n| format!("a{n}")).collect::<Vec<_>>());
    assert_eq!(output.checkpoints, [(2500, json!(server.url("/a")))]);
    assert!(output.largest_batch <= 1000);
}

#[tokio::test]
async fn requests_run_concurrently_up_to_a_limit() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (current, highest) = (Arc::clone(&now), Arc::clone(&most));
    let server = RawServer::start(move |_| {
        highest.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let after = Arc::clone(&current);
        let mut steps = vec![
            // Long enough for all requests that may run beside this one to arrive.
            ScriptStep::Pause(Duration::from_millis(100)),
            ScriptStep::Do(Arc::new(move || {
                after.fetch_sub(1, Ordering::SeqCst);
            })),
        ];
        steps.extend(answer("200 OK", "", "x\n"));
        steps
    })
    .await;
    let mut output = RecordingOutput::default();
    let mut follower = LineFollower::of((0..20).map(|n| server.url(&format!("/{n}"))));
    drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
    assert_eq!(output.ids.len(), 20);
    // Eight is the driver's limit of requests in flight.
    assert_eq!(most.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn failures_and_gaps_are_reported_and_returned() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/half" => answer("200 OK", "", "one\ntw"),
        // Cut inside its Content-Length: the transfer fails, while "/half" ends properly.
        "/cut" => vec![send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\none\n"), ScriptStep::Close],
        _ => vec![ScriptStep::Close],
    })
    .await;
    // Changes before the failure are delivered, but no checkpoint covers them.
    for (path, incomplete, changes) in [("/half", true, 1), ("/cut", false, 1), ("/none", false, 0)] {
        let mut output = RecordingOutput::default();
        let mut follower = LineFollower::of([server.url(path)]);
        let ended = drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
        assert_eq!((ended.incomplete, ended.failed.is_some()), (incomplete, !incomplete), "{path}");
        assert_eq!(
            (output.ids.len(), output.checkpoints.len(), output.notices.len()),
            (changes, 0, 1),
            "{path}"
        );
    }
}

/// A page of Data Replication is never in memory as a whole, so it needs no part of the budget for bodies.
#[tokio::test]
async fn a_streamed_page_needs_no_room_for_a_body() {
    let server = RawServer::start(|asked| {
        let entity = |n: u32| {
            format!(
                "--b\r\nContent-ID: <{n}@x>\r\nOperation-Type: http-equiv=PUT\r\nContent-Type: text/plain\r\n\
                 Last-Modified: Mon, 27 Nov 2023 03:10:00 GMT\r\nContent-Length: 100000\r\n\r\n{}\r\n",
                "x".repeat(100_000)
            )
        };
        let head = "Content-Type: multipart/mixed; boundary=b\r\nLink: </f>; rel=self\r\n\
                    Last-Modified: Mon, 27 Nov 2023 03:10:00 GMT\r\n";
        let body: String = (0..20).map(entity).collect::<String>() + "--b--\r\n";
        answer("200 OK", head, if asked.method == "HEAD" { String::new() } else { body })
    })
    .await;
    let memory = MemoryBudget::new(1 << 20);
    let mut other = memory.body();
    other.grow(256 << 10, Duration::ZERO).await.unwrap();
    let fetcher = Fetcher::new(FetchOptions::default().with_memory(memory).with_private(PrivateFetches::All));
    let options = ReplicationOptions { mode: FollowMode::CatchUp, ..ReplicationOptions::default() };
    let mut follower =
        ReplicationFollower::new(&server.url("/f"), StartFrom::Beginning, None, options).unwrap();
    let mut output = RecordingOutput::default();
    let ended = drive(&mut follower, &fetcher.unwrap(), &mut output, &never()).await.unwrap();
    assert_eq!((ended, output.ids.len()), (FollowSummary::default(), 20), "{:?}", output.notices);
}

/// Ids that no feed can hold are left out, with a report, and what comes after them is delivered.
#[tokio::test]
async fn an_item_with_an_impossible_id_is_left_out_and_named() {
    let long = "z".repeat(3000);
    let server = RawServer::start(move |_| answer("200 OK", "", format!("a\n{long}\n\nb\n"))).await;
    let mut output = RecordingOutput::default();
    let mut follower = LineFollower::of([server.url("/")]);
    let ended = drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
    assert!(ended.incomplete && ended.failed.is_none(), "{ended:?}");
    assert_eq!((&output.ids[..], output.checkpoints.len()), (&["a".to_owned(), "b".to_owned()][..], 1));
    let told: Vec<String> = output.notices.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("3000 bytes") && told[0].contains("\"zzz"), "{told:?}");
    assert!(told[1].contains("id is empty") && told[1].contains("lines"), "{told:?}");
}

#[tokio::test]
async fn a_failing_output_ends_the_follow_before_any_checkpoint() {
    let server = RawServer::start(|_| answer("200 OK", "", "x\n".repeat(3000))).await;
    let mut output = RecordingOutput { room: Some(1500), ..RecordingOutput::default() };
    let mut follower = LineFollower::of([server.url("/")]);
    let refused = drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap_err();
    assert_eq!(refused, "full");
    assert!(output.checkpoints.is_empty() && output.ids.len() <= 1500);
}

#[tokio::test]
async fn changes_do_not_wait_for_a_slow_document_and_a_stop_is_clean() {
    let server = RawServer::start(|_| {
        vec![
            // The third line is half there: a stop must not deliver it.
            send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\none\ntwo\nthr"),
            ScriptStep::Pause(Duration::from_secs(60)),
        ]
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let url = server.url("/");
    let mut output = RecordingOutput::default();
    let mut delivered = output.delivered.subscribe();
    let driven = tokio::spawn(async move {
        let ended = drive(&mut LineFollower::of([url]), &fetcher(), &mut output, &stopped).await.unwrap();
        (ended, output)
    });
    // The server sends no more before a minute is over.
    tokio::time::timeout(PATIENCE, delivered.wait_for(|count| *count == 2)).await.unwrap().unwrap();
    stop.send(true).unwrap();
    let (ended, output) = tokio::time::timeout(PATIENCE, driven).await.unwrap().unwrap();
    assert_eq!((ended.stopped, ended.failed, ended.incomplete), (true, None, false));
    assert_eq!((output.ids, output.checkpoints), (vec!["one".to_owned(), "two".into()], vec![]));
}

/// Blocks each delivery until notified.
#[derive(Default)]
struct BlockedOutput {
    go: Arc<Notify>,
    /// Tells that a delivery began.
    began: Arc<Notify>,
    taken: usize,
}

impl Output for BlockedOutput {
    type Error = ();

    async fn deliver(&mut self, changes: Vec<Followed>, _: Option<Value>) -> Result<(), ()> {
        self.began.notify_one();
        self.go.notified().await;
        self.taken += changes.len();
        Ok(())
    }

    fn notice(&mut self, _: FollowNotice) {}
}

#[tokio::test]
async fn a_slow_output_applies_backpressure() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let server = RawServer::start(move |_| {
        let (line, counter) = (format!("{}\n", "x".repeat(1999)).repeat(50), Arc::clone(&counter));
        let mut steps = vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")];
        for _ in 0..2000 {
            let (counter, length) = (Arc::clone(&counter), line.len());
            steps.push(send(&line));
            steps.push(ScriptStep::Do(Arc::new(move || {
                counter.fetch_add(length, Ordering::SeqCst);
            })));
        }
        steps
    })
    .await;
    let (stop, stopped) = watch::channel(false);
    let go = Arc::new(Notify::new());
    let mut slow = BlockedOutput { go: Arc::clone(&go), ..BlockedOutput::default() };
    let (url, began) = (server.url("/"), Arc::clone(&slow.began));
    let driven = tokio::spawn(async move {
        let ended = drive(&mut LineFollower::of([url]), &fetcher(), &mut slow, &stopped).await;
        (ended, slow.taken)
    });
    tokio::time::timeout(PATIENCE, began.notified()).await.unwrap();
    // The server stands still once nothing is read, and otherwise when all is sent.
    let mut ahead = usize::MAX;
    while std::mem::replace(&mut ahead, sent.load(Ordering::SeqCst)) != ahead {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // Socket buffers and one batch may be read ahead, but not the whole 200 MB.
    assert!(ahead < 40 << 20, "{ahead} bytes were read for an output that takes nothing");
    stop.send(true).unwrap();
    // The first permit releases the pending delivery, the second a last batch after it.
    go.notify_one();
    go.notify_one();
    let (ended, taken) = tokio::time::timeout(PATIENCE, driven).await.unwrap().unwrap();
    assert!(ended.unwrap().stopped && taken > 0);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_output_is_abandoned_after_a_stop() {
    let (stop, stopped) = watch::channel(false);
    let mut follower = LineFollower::default();
    follower.events.extend([change(b"one"), Event::Checkpoint(json!(1))]);
    follower.for_ever = true;
    // Without a wake time the driver would end with an error, as the next test shows.
    follower.wake = Some(Monotonic::NEVER);
    let mut slow = BlockedOutput::default();
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

#[tokio::test]
async fn the_first_changes_after_a_rest_are_delivered_at_once() {
    let server = RawServer::start(|asked| answer("200 OK", "", format!("{}\n", asked.path))).await;
    let mut follower = LineFollower::of(["/a", "/b", "/c"].map(|path| server.url(path)));
    follower.rests_after = Some(1);
    // One at a time: the second document is the first after the rest.
    follower.one_at_a_time = true;
    let mut output = RecordingOutput::default();
    drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
    assert_eq!((output.ids.len(), output.checkpoints.len()), (3, 3));
    // Merged with the third, it would have waited for it.
    assert_eq!(output.largest_batch, 1);
}

#[tokio::test(start_paused = true)]
async fn a_follower_is_polled_at_its_timer_and_fails_without_one() {
    let mut follower = LineFollower { for_ever: true, ..LineFollower::default() };
    let mut output = RecordingOutput::default();
    let ended = drive(&mut follower, &fetcher(), &mut output, &never()).await.unwrap();
    assert!(ended.failed.is_some() && output.notices.len() == 1);

    // A timer in the past that the follower never moves: the driver must not spin.
    follower.wake = Some(Monotonic::ORIGIN);
    (follower.polls, follower.most_polls) = (0, Some(50));
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.send(true).unwrap();
    });
    let ended = drive(&mut follower, &fetcher(), &mut output, &stopped).await.unwrap();
    assert!(ended.stopped && follower.polls > 1);
}
