//! Contents that publishers keep as files, downloaded from servers that cut, change, lie and refuse.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect, send};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use towpath_client::{
    CallQueue, FetchOptions, Fetcher, FollowNotice, FollowSummary, Output, PendingCall, PrivateFetches, Stop,
    drive, drive_with_calls, large_folder,
};
use towpath_proto::follow::{
    Call, ContentFolder, Event, Exchange, FeedReset, FollowMode, Followed, Follower, Monotonic, Now, Reply,
    Request, RequestId, ResponseHead, TransferError,
};
use towpath_proto::{Item, Op};

/// Follower that has all of its changes already.
struct ReadyFollower(VecDeque<Event>);

impl Exchange for ReadyFollower {
    fn poll_request(&mut self, _: Now) -> Option<Request> {
        None
    }

    fn handle_head(&mut self, _: Now, _: RequestId, _: ResponseHead) {}

    fn handle_chunk(&mut self, _: Now, _: RequestId, _: Bytes) {}

    fn handle_end(&mut self, _: Now, _: RequestId, _: Result<(), TransferError>) {}

    fn poll_timeout(&self) -> Option<Monotonic> {
        None
    }

    fn is_finished(&self) -> bool {
        self.0.is_empty()
    }
}

impl Follower for ReadyFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.0.pop_front()
    }

    fn handle_call(&mut self, _: Now, call: &Call) -> Reply {
        Reply { status: 200, body: call.query.clone().into() }
    }
}

/// Records lines and notices.
#[derive(Default)]
struct RecordingOutput {
    lines: Vec<Value>,
    notices: Vec<FollowNotice>,
    checkpoint: Option<Value>,
    delivered: watch::Sender<usize>,
}

impl Output for RecordingOutput {
    type Error = String;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), String> {
        self.lines.extend(changes.iter().map(|change| serde_json::to_value(change.line()).unwrap()));
        self.checkpoint = checkpoint.or(self.checkpoint.take());
        self.delivered.send_replace(self.lines.len());
        Ok(())
    }

    async fn reset(&mut self, _: FeedReset) -> Result<(), String> {
        Ok(())
    }

    fn notice(&mut self, notice: FollowNotice) {
        self.notices.push(notice);
    }
}

impl RecordingOutput {
    fn ids(&self) -> Vec<&str> {
        self.lines.iter().map(|line| line["id"].as_str().unwrap()).collect()
    }

    /// Returns the URL of the file in the line of the film.
    fn file(&self) -> &str {
        let film = self.lines.iter().find(|line| line["id"] == "film").unwrap();
        film["item"]["attachments"][0]["url"].as_str().unwrap()
    }
}

const TAG: &str = "ETag: \"one\"\r\n";

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn digest() -> String {
    hex(&content())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn change(id: &str, attachments: Option<Value>) -> Event {
    let mut item = Item::new(id);
    item.extra.extend(attachments.map(|list| ("attachments".to_owned(), list)));
    Event::Change(Box::new(Followed {
        feed: "films".into(),
        op: Op::Put,
        item,
        patch: None,
        modified: None,
        position: id.into(),
        entry_id: None,
    }))
}

/// Returns the follower of a feed with a film between two other items.
fn follower(url: &str, folder: &Path, mode: FollowMode) -> Box<dyn Follower> {
    let film = json!({"url": url, "media_type": "video/mp4", "size": content().len(), "title": "film.mp4",
        "sha256": digest()});
    let cover = json!({"url": "https://a.example/cover.png"});
    let events = [
        change("before", None),
        Event::Checkpoint(json!("before")),
        change("film", Some(json!([film, cover]))),
        Event::Checkpoint(json!("film")),
        change("after", None),
        Event::Checkpoint(json!("after")),
    ];
    let folder = ContentFolder { base: large_folder(folder).unwrap().into(), max_file: 6 << 30, mode };
    folder.of(Box::new(ReadyFollower(events.into())))
}

fn fetcher() -> Fetcher {
    Fetcher::new(FetchOptions::default().with_private(PrivateFetches::All)).unwrap()
}

async fn follow(server: &RawServer, folder: &Path) -> (FollowSummary, RecordingOutput) {
    let mut output = RecordingOutput::default();
    let mut follower = follower(&server.url("/film"), folder, FollowMode::Continuous);
    let never: Stop = watch::channel(false).1;
    let fetcher = fetcher();
    let driving = drive(&mut *follower, &fetcher, &mut output, &never);
    let summary = tokio::time::timeout(Duration::from_secs(60), driving).await.unwrap().unwrap();
    (summary, output)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks that the film is in the folder, and nothing else, and that its line names it.
fn assert_downloaded(output: &RecordingOutput, folder: &TempDir) {
    assert_eq!(output.ids(), ["before", "film", "after"]);
    assert_eq!(output.checkpoint, Some(json!("after")));
    let file = url::Url::from_file_path(folder.path().join(digest())).unwrap();
    let first = json!({"url": file.as_str(), "media_type": "video/mp4", "size": content().len(),
        "title": "film.mp4", "sha256": digest()});
    let cover = json!({"url": "https://a.example/cover.png"});
    assert_eq!(output.lines[1]["item"], json!({"attachments": [first, cover]}));
    assert_eq!(names(folder.path()), [digest()]);
    assert_eq!(std::fs::read(folder.path().join(digest())).unwrap(), content());
}

/// Checks that the line keeps the publisher's address, with a warning, and that nothing is left in the folder.
fn assert_refused(output: &RecordingOutput, folder: &TempDir, why: &str) {
    assert_eq!(output.ids(), ["before", "film", "after"]);
    assert_eq!(output.checkpoint, Some(json!("after")));
    assert!(output.file().starts_with("http://"), "{}", output.file());
    let warning = output.notices.iter().find_map(|notice| match notice {
        FollowNotice::Warning(text) => Some(text),
        _ => None,
    });
    let warning = warning.unwrap();
    assert!(warning.contains(why) && warning.contains("film"), "{warning}");
    assert_eq!(names(folder.path()), [""; 0]);
}

fn whole(headers: &str) -> Vec<ScriptStep> {
    answer("200 OK", headers, content())
}

/// Announces the whole file and closes after its first half.
fn cut(headers: &str) -> Vec<ScriptStep> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {}\r\n\r\n", content().len());
    // The pause lets the half arrive before the reset.
    let pause = ScriptStep::Pause(Duration::from_millis(200));
    vec![send(head), send(&content()[..content().len() / 2]), pause, ScriptStep::Close]
}

/// Answers a request for a range.
fn part(asked: &ReceivedRequest, headers: &str) -> Vec<ScriptStep> {
    let start = asked.head.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next());
    let start: usize = start.unwrap().parse().unwrap();
    let (content, size) = (content(), content().len());
    let range = format!("Content-Range: bytes {start}-{}/{size}\r\n{headers}", size - 1);
    answer("206 Partial Content", &range, &content[start..])
}

fn is_range(asked: &ReceivedRequest) -> bool {
    asked.head.contains("\r\nrange: ")
}

#[tokio::test]
async fn a_cut_download_is_continued() {
    let server = RawServer::start(|asked| if is_range(asked) { part(asked, TAG) } else { cut(TAG) }).await;
    let folder = tempfile::tempdir().unwrap();
    let (summary, output) = follow(&server, folder.path()).await;
    assert_eq!(summary, FollowSummary::default());
    assert_downloaded(&output, &folder);
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    let half = content().len() / 2;
    assert!(asked[1].head.contains(&format!("\r\nrange: bytes={half}-\r\n")), "{}", asked[1].head);
    assert!(asked[1].head.contains("\r\nif-range: \"one\"\r\n"), "{}", asked[1].head);
    // The failure is told, and the download goes on.
    assert!(matches!(output.notices[..], [FollowNotice::Failed(_)]), "{:?}", output.notices);
    // It is there already.
    let (_, output) = follow(&server, folder.path()).await;
    assert_downloaded(&output, &folder);
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn a_server_without_ranges_sends_the_file_again() {
    for tag in [TAG, "ETag: \"two\"\r\n", ""] {
        let server = RawServer::start(move |asked| if is_range(asked) { whole(tag) } else { cut(TAG) }).await;
        let folder = tempfile::tempdir().unwrap();
        let (_, output) = follow(&server, folder.path()).await;
        assert_downloaded(&output, &folder);
    }
}

#[tokio::test]
async fn an_earlier_run_is_continued() {
    for tag in [Some("\"one\""), None] {
        let server = RawServer::start(|asked| part(asked, TAG)).await;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("{}.part", digest())), &content()[..1000]).unwrap();
        if let Some(tag) = tag {
            std::fs::write(folder.path().join(format!("{}.etag", digest())), tag).unwrap();
        }
        let (_, output) = follow(&server, folder.path()).await;
        assert_downloaded(&output, &folder);
        let asked = &server.asked()[0].head;
        assert!(asked.contains("\r\nrange: bytes=1000-\r\n"), "{asked}");
        assert_eq!(asked.contains("\r\nif-range: \"one\"\r\n"), tag.is_some(), "{asked}");
    }
}

#[tokio::test]
async fn a_damaged_part_of_an_earlier_run_is_replaced() {
    let server = RawServer::start(|asked| if is_range(asked) { part(asked, TAG) } else { whole(TAG) }).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(format!("{}.part", digest())), [0xff; 1000]).unwrap();
    let (_, output) = follow(&server, folder.path()).await;
    assert_downloaded(&output, &folder);
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn another_file_than_described_keeps_its_address() {
    let other = [&content()[1..], b"x"].concat();
    for (body, why) in [(other.clone(), "SHA-256"), (content()[1..].to_vec(), "bytes, not")] {
        let server = RawServer::start(move |_| answer("200 OK", TAG, &body)).await;
        let folder = tempfile::tempdir().unwrap();
        let (summary, output) = follow(&server, folder.path()).await;
        assert_eq!(summary, FollowSummary::default());
        assert_refused(&output, &folder, why);
        assert_eq!(server.asked().len(), 2);
    }
}

#[tokio::test]
async fn an_endless_body_is_left() {
    let server =
        RawServer::start(|_| vec![send("HTTP/1.1 200 OK\r\n\r\n"), ScriptStep::Flood(vec![0; 65_536])]).await;
    let folder = tempfile::tempdir().unwrap();
    let (_, output) = follow(&server, folder.path()).await;
    assert_refused(&output, &folder, "longer than described");
}

#[tokio::test]
async fn a_file_that_is_gone_keeps_its_address() {
    for status in ["404 Not Found", "410 Gone"] {
        let server = RawServer::start(move |_| answer(status, "", "no")).await;
        let folder = tempfile::tempdir().unwrap();
        let (summary, output) = follow(&server, folder.path()).await;
        assert_eq!(summary, FollowSummary::default());
        assert_refused(&output, &folder, &status[..3]);
        assert_eq!(server.asked().len(), 1);
    }
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let count = AtomicUsize::new(0);
    let server = RawServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer("503 Service Unavailable", "Retry-After: 2\r\n", "busy"),
        _ => whole(""),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let began = std::time::Instant::now();
    let (_, output) = follow(&server, folder.path()).await;
    assert_downloaded(&output, &folder);
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn addresses_that_publishers_may_not_name_are_refused() {
    let elsewhere = RawServer::start(|_| whole("")).await;
    let target = elsewhere.url("/film");
    // Named addresses open their own network, here none.
    let fetcher = Fetcher::new(FetchOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut output = RecordingOutput::default();
    let mut follower = follower(&target, folder.path(), FollowMode::Continuous);
    drive(&mut *follower, &fetcher, &mut output, &watch::channel(false).1).await.unwrap();
    assert_refused(&output, &folder, "address refused");
    assert_eq!(elsewhere.asked().len(), 0);
}

#[tokio::test]
async fn credentials_stay_with_the_origin_of_the_feed() {
    let elsewhere = RawServer::start(|_| whole("")).await;
    let target = elsewhere.url("/film");
    let server = RawServer::start(move |_| redirect(302, &target)).await;
    let secret = HeaderMap::from_iter([(http::header::AUTHORIZATION, "Bearer secret".parse().unwrap())]);
    let fetcher = fetcher().with_headers(&server.url("/feed").parse().unwrap(), secret);
    let folder = tempfile::tempdir().unwrap();
    let mut output = RecordingOutput::default();
    let mut follower = follower(&server.url("/film"), folder.path(), FollowMode::Continuous);
    drive(&mut *follower, &fetcher, &mut output, &watch::channel(false).1).await.unwrap();
    assert_downloaded(&output, &folder);
    assert!(server.asked()[0].head.contains("authorization: bearer secret"));
    assert!(!elsewhere.asked()[0].head.contains("secret"));
}

#[tokio::test]
async fn a_single_pass_fails_and_keeps_its_part() {
    let server = RawServer::start(|asked| match is_range(asked) {
        true => answer("503 Service Unavailable", "Retry-After: 3600\r\n", ""),
        false => cut(TAG),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let mut output = RecordingOutput::default();
    let mut follower = follower(&server.url("/film"), folder.path(), FollowMode::CatchUp);
    let summary = drive(&mut *follower, &fetcher(), &mut output, &watch::channel(false).1).await.unwrap();
    let failed = summary.failed.unwrap().to_string();
    assert!(failed.contains("503") && failed.contains("/film"), "{failed}");
    assert_eq!((output.ids(), &output.checkpoint), (vec!["before"], &Some(json!("before"))));
    let part = folder.path().join(format!("{}.part", digest()));
    assert_eq!(part.metadata().unwrap().len() as usize, content().len() / 2);
}

#[tokio::test]
async fn a_stop_ends_a_download_before_later_changes() {
    let server = RawServer::start(|_| {
        let mut steps = cut(TAG);
        steps.insert(2, ScriptStep::Pause(Duration::from_secs(600)));
        steps
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let mut output = RecordingOutput::default();
    let mut follower = follower(&server.url("/film"), folder.path(), FollowMode::Continuous);
    let (stopper, stop) = watch::channel(false);
    let stopping = async {
        // The first change is delivered before the download.
        while server.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stopper.send_replace(true);
    };
    let fetcher = fetcher();
    let driving = drive(&mut *follower, &fetcher, &mut output, &stop);
    let (summary, ()) = tokio::join!(driving, stopping);
    assert!(summary.unwrap().stopped);
    assert_eq!((output.ids(), &output.checkpoint), (vec!["before"], &Some(json!("before"))));
}

#[tokio::test]
async fn a_hub_is_answered_during_a_download() {
    let (calls, queue) = mpsc::channel(1);
    let (replied, mut reply) = mpsc::channel(3);
    let calling = Arc::new(move || {
        let (calls, replied) = (calls.clone(), replied.clone());
        tokio::spawn(async move {
            for size in [0, 10 << 20, 10 << 20] {
                let call = Call {
                    method: Method::POST,
                    query: "hub.challenge=1".into(),
                    headers: HeaderMap::new(),
                    body: vec![0; size].into(),
                };
                let (sender, receiver) = oneshot::channel();
                calls.send(PendingCall { call, reply: sender }).await.unwrap();
                replied.send(receiver.await.unwrap().status).await.unwrap();
            }
        });
    });
    let server = RawServer::start(move |_| {
        let calling = Arc::clone(&calling);
        let call = ScriptStep::Do(Arc::new(move || calling()));
        let mut steps = vec![call, ScriptStep::Pause(Duration::from_secs(2))];
        steps.extend(whole(""));
        steps
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let mut output = RecordingOutput::default();
    let mut follower = follower(&server.url("/film"), folder.path(), FollowMode::Continuous);
    let calls = CallQueue::from_channel(queue);
    let never: Stop = watch::channel(false).1;
    drive_with_calls(&mut *follower, &fetcher(), &mut output, &never, calls).await.unwrap();
    assert_downloaded(&output, &folder);
    // Deliveries that would fill the memory are for later.
    let mut replies = Vec::new();
    while let Ok(status) = reply.try_recv() {
        replies.push(status);
    }
    assert_eq!(replies, [200, 200, 503]);
}

#[tokio::test]
async fn follows_of_one_folder_download_a_file_once() {
    let server = RawServer::start(|_| {
        let mut steps = vec![ScriptStep::Pause(Duration::from_millis(300))];
        steps.extend(whole(TAG));
        steps
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = tokio::join!(follow(&server, folder.path()), follow(&server, folder.path()));
    for (_, output) in [one, other] {
        assert_downloaded(&output, &folder);
    }
    assert_eq!(server.asked().len(), 1);
}
