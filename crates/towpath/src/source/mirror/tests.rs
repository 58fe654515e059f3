//! Tests of a mirror on a store of its own, without its publisher.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use towpath_client::{DiscoverError, FetchOptions, OpenedFile};
use towpath_proto::follow::{ContentFolder, Event, FileChange, FollowError, FollowMode, TransferError};
use towpath_proto::{Content, Item};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

use super::super::state::{SourceFailure, SourceState};
use super::files::mirrored_file;
use super::*;
use crate::config::Config;
use crate::engine::attachments::Attachment;
use crate::engine::mirror_state;
use crate::engine::roles::{Lease, Shard};
use crate::protocols::failing_store;

const CONFIG: &str = "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"http://a.example/feed\"\n";

async fn target(folder: &Path) -> MirrorTarget {
    target_with(folder, CONFIG).await
}

async fn target_with(folder: &Path, config: &str) -> MirrorTarget {
    let config = Config::parse(config, Path::new("towpath.toml")).unwrap();
    let store = EmbeddedStore::open(folder.join("data"), EmbeddedOptions::default()).unwrap();
    let engine = crate::protocols::start(config, Arc::new(store)).await.unwrap();
    let feed = engine.feed("copy").unwrap();
    MirrorTarget { engine, feed, lease: Lease::alone("sources"), state: Arc::default() }
}

/// The clock was a year ahead when the last success was saved.
#[tokio::test]
async fn a_success_replaces_one_in_the_future() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let year = SignedDuration::from_hours(365 * 24);
    target.state.lock().await.last_ok = Some(Timestamp::now().checked_add(year).unwrap());
    target.record_success().await;
    assert!(target.state.lock().await.last_ok.unwrap() <= Timestamp::now());
}

/// After a recovery the next failure waits only briefly again.
#[tokio::test]
async fn the_wait_grows_until_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    for _ in 0..8 {
        target.record_failure(SourceFailure::new("STORE_ERROR", "full".into())).await;
    }
    assert!(target.retry_wait().await >= Duration::from_secs(128));
    target.record_success().await;
    target.record_failure(SourceFailure::new("STORE_ERROR", "full".into())).await;
    assert!(target.retry_wait().await <= Duration::from_secs(2));
}

/// The codes are those of a poll.
#[test]
fn failures_have_the_same_codes_as_polls() {
    let url = || "http://a.example/".to_owned();
    for (source, code) in [
        (TransferError::Timeout("x".into()), "TIMEOUT"),
        (TransferError::TooLarge { limit: 1 }, "TOO_LARGE"),
        (TransferError::Connect("x".into()), "NETWORK_ERROR"),
    ] {
        let followed = source_failure(&FollowError::Transfer { url: url(), source: source.clone() });
        assert_eq!(followed.code, code);
        let discovered =
            MirrorError::Discover(DiscoverError::Transfer { url: url(), source }).to_source_error();
        assert_eq!(discovered.code, code);
    }
    let followed = source_failure(&FollowError::status(url(), 503));
    assert_eq!((followed.code.as_str(), followed.http_status), ("HTTP_503", Some(503)));
    let found = DiscoverError::Status { url: url(), status: 404, detail: None, retry_after: None };
    assert_eq!(MirrorError::Discover(found).to_source_error().code, "HTTP_404");
}

async fn new_mirror(target: &MirrorTarget) -> Mirror {
    let saved = MirrorState {
        url: "http://a.example/feed".into(),
        follows: "http://a.example/feed".into(),
        protocol: Protocol::Smart,
        seq: 0,
        source: None,
        state: Value::Null,
    };
    Mirror::new(target.clone(), saved, mpsc::unbounded_channel().0).await.unwrap()
}

/// The success after a failure and a problem is what the state tells in the end.
#[tokio::test]
async fn events_are_recorded_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let (events, recorded) = mpsc::unbounded_channel();
    let failure = || SourceFailure::new("STORE_ERROR", "full".into());
    for event in [MirrorEvent::Failed(failure()), MirrorEvent::Problem("lost".into()), MirrorEvent::CaughtUp]
    {
        events.send(event).unwrap();
    }
    drop(events);
    target.record_all(recorded).await;
    let (store, feed) = (target.engine.store.as_ref(), target.feed.id());
    let saved = SourceState::load(store, feed, "").await.unwrap();
    assert_eq!((saved.error, saved.failures, saved.problems), (None, 0, vec!["lost".to_owned()]));
    assert!(saved.last_ok.is_some());
}

/// Ids are unique in each source of the global feed, and not among them.
#[tokio::test]
async fn a_second_source_stops_the_mirror_before_its_items_mix() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let of = |feed: &str| Followed { feed: feed.into(), ..followed(Op::Put, "1", feed) };
    let mut mirror = new_mirror(&target).await;
    mirror.saved.protocol = Protocol::DiffDelta;
    mirror.deliver(vec![of("aa"), of("aa")], Some(Value::Null)).await.unwrap();
    // After a restart, too.
    let mut mirror = new_mirror(&target).await;
    for changes in [vec![of("bb")], vec![of("aa"), of("bb")]] {
        let error = mirror.deliver(changes, Some(Value::Null)).await.unwrap_err();
        let SourceFailure { code, message, .. } = error.to_source_error();
        assert_eq!(code, "SEVERAL_SOURCES");
        assert!(message.contains("aa and bb") && message.contains("/diff/bb/head.json"), "{message}");
    }
    assert_eq!(target.engine.store.head(target.feed.id()).await.unwrap().seq, 2);
    mirror.deliver(vec![of("aa")], None).await.unwrap();
    // Names in other protocols are addresses, which may change.
    mirror.saved.protocol = Protocol::History;
    mirror.deliver(vec![of("bb")], None).await.unwrap();
}

fn followed(op: Op, id: &str, text: &str) -> Followed {
    let content = Some(Content::new("application/json", text.to_owned()));
    let patch = Some(Content::new("application/merge-patch+json", text.to_owned()));
    Followed {
        feed: "feed".into(),
        op,
        item: Item { content: content.filter(|_| op == Op::Put), ..Item::new(id) },
        patch: patch.filter(|_| op == Op::Patch),
        modified: None,
        position: "1".into(),
        entry_id: Some(format!("{id} {text}")),
    }
}

/// Changes appended before a crash are recognised when they are delivered again.
#[tokio::test]
async fn redelivered_changes_are_recognised_and_different_ones_are_new() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let all = || {
        vec![
            followed(Op::Put, "a", "{\"b\":1}"),
            followed(Op::Patch, "a", "{\"b\":2}"),
            followed(Op::Put, "c", "x"),
            followed(Op::Delete, "c", ""),
        ]
    };
    let seq = async || target.engine.store.head(target.feed.id()).await.unwrap().seq;
    new_mirror(&target).await.deliver(all(), None).await.unwrap();
    assert_eq!(seq().await, 4);
    // Each position once: the crash may have happened after any change.
    for changed in 0..all().len() {
        let mut mirror = new_mirror(&target).await;
        mirror.deliver(all()[..changed].to_vec(), None).await.unwrap();
        assert_eq!(seq().await, 4, "delivered again");
        let right = &all()[changed];
        let entry_id = right.entry_id.clone();
        let others = [
            Followed { entry_id: entry_id.clone(), ..followed(right.op, &right.item.id, "{\"b\":3}") },
            Followed { entry_id, ..followed(right.op, "d", "") },
            Followed { entry_id: None, ..right.clone() },
        ];
        // A deletion has no content that could be another.
        for other in others.into_iter().skip(usize::from(right.op == Op::Delete)) {
            let change = new_change(other);
            assert!(!mirror.unconfirmed.is_next(&change), "{change:?}");
        }
        mirror.deliver(all()[changed..].to_vec(), None).await.unwrap();
        assert_eq!(seq().await, 4, "delivered again");
        assert_eq!(mirror.unconfirmed.first(), None);
    }
    new_mirror(&target).await.deliver(all()[1..].to_vec(), Some(Value::Null)).await.unwrap();
    assert_eq!(seq().await, 7, "new");
}

/// An append whose outcome was unknown comes to be in the log after the next attempt has read it.
#[tokio::test]
async fn a_late_append_is_not_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let all = || vec![followed(Op::Put, "a", "x"), followed(Op::Put, "b", "x")];
    let seq = async || target.engine.store.head(target.feed.id()).await.unwrap().seq;
    let (mut late, mut next) = (new_mirror(&target).await, new_mirror(&target).await);
    late.deliver(all(), None).await.unwrap();
    let refused = next.deliver(all(), Some(Value::Null)).await;
    assert!(matches!(refused, Err(MirrorError::Append(AppendError::Conflict { .. }))), "{refused:?}");
    new_mirror(&target).await.deliver(all(), Some(Value::Null)).await.unwrap();
    assert_eq!(seq().await, 2);
}

/// A log that was restored from an older copy than the checkpoint grows again.
#[tokio::test]
async fn a_log_that_ends_before_the_checkpoint_is_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let mut saved = new_mirror(&target).await.saved;
    saved.seq = 9;
    let write = TableWrite {
        table: Table::Sources,
        key: key(&target.feed),
        value: Some(serde_json::to_vec(&saved).unwrap().into()),
    };
    target.engine.store.write(vec![write], Vec::new()).await.unwrap();
    new_mirror(&target).await.deliver(vec![followed(Op::Put, "a", "x")], Some(Value::Null)).await.unwrap();
    assert_eq!(target.engine.store.head(target.feed.id()).await.unwrap().seq, 1);
}

/// A publisher that collapses its history delivers only the last version of each item.
#[tokio::test]
async fn an_item_that_was_set_back_is_set_back_in_the_copy() {
    let plain = |op, text| Followed { entry_id: None, ..followed(op, "a", text) };
    let (first, second) = (|| plain(Op::Put, "1"), || plain(Op::Put, "2"));
    let gone = || plain(Op::Delete, "");
    for (before, delivered, seq) in [
        (vec![first(), second()], vec![first()], 3),
        (vec![gone(), second()], vec![gone()], 3),
        // Whole, as it was before.
        (vec![first(), second()], vec![first(), second()], 2),
        (vec![first(), second()], vec![first(), gone()], 3),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path()).await;
        let (store, feed) = (target.engine.store.as_ref(), target.feed.id());
        let last = delivered.last().unwrap().clone();
        new_mirror(&target).await.deliver(before, None).await.unwrap();
        new_mirror(&target).await.deliver(delivered, Some(Value::Null)).await.unwrap();
        let latest = store.latest(feed, "a").await.unwrap().unwrap();
        assert_eq!((latest.op, latest.item.content), (last.op, last.item.content));
        assert_eq!(store.head(feed).await.unwrap().seq, seq);
    }
}

/// The entity that a Content-ID names is one change, however the deliveries are cut.
#[tokio::test]
async fn redelivered_entries_are_recognised_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let all = || vec![followed(Op::Put, "a", "1"), followed(Op::Put, "a", "2")];
    new_mirror(&target).await.deliver(all(), None).await.unwrap();
    for change in all() {
        // The checkpoint of the first leaves the second to be recognised.
        new_mirror(&target).await.deliver(vec![change], Some(Value::Null)).await.unwrap();
    }
    assert_eq!(target.engine.store.head(target.feed.id()).await.unwrap().seq, 2);
}

/// A fault of the program ends one attempt of a mirror, and not the mirror.
#[tokio::test(start_paused = true)]
async fn a_mirror_is_begun_again_after_a_panic() {
    let config = CONFIG.replace("http://a.example/feed", "http://127.0.0.1:1/feed");
    let (engine, store) = failing_store::engine(&config).await;
    *store.read_panic.lock() = Some("follow/copy");
    let fetcher = Arc::new(Fetcher::new(FetchOptions::default()).unwrap());
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let shard = Shard::all(&engine).find(|shard| shard.has("copy")).unwrap();
    let running = tokio::spawn(run(engine.clone(), fetcher, shard, Lease::alone("sources"), stopping));
    let read_again = async {
        while store.read_panic.lock().is_some() {
            tokio::task::yield_now().await;
        }
        *store.read_fault.lock() = Some("follow/copy");
        let wait = Duration::from_millis(100);
        let mut looks = tokio::time::interval(wait);
        while store.read_fault.lock().is_some() {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read_again).await.expect("the mirror is begun again");
    stop.send_replace(true);
    running.await.unwrap();
}

/// Retention of the log leaves the changes that a redelivery is compared with.
#[tokio::test]
async fn changes_after_the_checkpoint_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let needed = async || mirror_state::confirmed_up_to(&target.engine, &target.feed).await.unwrap();
    let mut mirror = new_mirror(&target).await;
    assert_eq!(needed().await, Some(0), "nothing is confirmed");
    mirror.deliver(vec![followed(Op::Put, "a", "x")], None).await.unwrap();
    assert_eq!(needed().await, Some(0));
    mirror.deliver(vec![followed(Op::Put, "b", "x")], Some(Value::Null)).await.unwrap();
    assert_eq!(needed().await, Some(2));
    mirror.deliver(vec![followed(Op::Put, "c", "x")], None).await.unwrap();
    assert_eq!(needed().await, Some(2));
}

/// The files of an item go when it is deleted, unless it came back.
#[tokio::test]
async fn files_of_deleted_items_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path()).await;
    let (store, feed) = (target.engine.store.as_ref(), target.feed.id());
    let file = Attachment::new("a", "a.txt".into(), b"text");
    let put = || followed(Op::Put, "a", "x");
    let delete = || followed(Op::Delete, "a", "");
    let keep = async || store.write(attachments::keep(feed, &file, "text/plain", b"text"), Vec::new()).await;
    let count = async || attachments::list(store, feed).await.unwrap().len();
    keep().await.unwrap();
    new_mirror(&target).await.deliver(vec![put(), delete()], None).await.unwrap();
    assert_eq!(count().await, 0);
    // A crash came after a later put, and the deletion is delivered again.
    keep().await.unwrap();
    new_mirror(&target).await.deliver(vec![put(), delete(), put()], None).await.unwrap();
    assert_eq!(count().await, 1);
    new_mirror(&target).await.deliver(vec![put(), delete()], None).await.unwrap();
    assert_eq!(count().await, 1);
}

fn file_change(title: Option<&str>, media_type: Option<&str>, url: &str) -> FileChange {
    let described = json!({"url": url, "title": title, "media_type": media_type, "sha256": "0".repeat(64)});
    let mut change = followed(Op::Put, "films/a", "x");
    change.item.content = None;
    change.item.extra.insert("attachments".into(), json!([described]));
    let folder = ContentFolder { base: "".into(), max_file: 1, mode: FollowMode::Continuous };
    match folder.detach(Event::Change(Box::new(change))) {
        Event::File(change) => *change,
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_have_the_publishers_name_and_media_type() {
    for (title, url, name) in [
        (Some("b.mp4"), "http://a.example/f/c.mp4", "b.mp4"),
        (Some("x/../b.mp4"), "http://a.example/f/c.mp4", "b.mp4"),
        (None, "http://a.example/f/c%20%C3%BC%2Emp4?x=/y", "c ü.mp4"),
        (None, "http://a.example/f/%2e%2e%2fc.mp4", "c.mp4"),
        (None, "http://a.example/", "a"),
    ] {
        let found = mirrored_file(&file_change(title, Some("video/mp4"), url));
        assert_eq!((found.file.name.as_str(), found.media_type.as_str()), (name, "video/mp4"), "{url}");
        assert_eq!((found.item.as_str(), found.file.sha256()), ("films/a", "0".repeat(64).as_str()));
    }
    for media_type in [None, Some(""), Some("vidéo"), Some("text/html\r\nX: y")] {
        let found = mirrored_file(&file_change(None, media_type, "http://a.example/f"));
        assert_eq!(found.media_type, "application/octet-stream", "{media_type:?}");
    }
}

/// The mirror waits before a file that the disk has no room for, and refuses one above the limit at once.
#[tokio::test]
async fn a_full_disk_is_told_before_the_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let server = format!("[server]\ndata = {:?}\nreserve_mib = 1000000000\n", folder.path());
    let config = format!("{CONFIG}large_content = true\n{server}large_content_mib = 1\n");
    let target = target_with(folder.path(), &config).await;
    let files = new_mirror(&target).await.files().unwrap();
    let mut change = file_change(None, None, "http://user:secret@a.example/film");
    change.file.size = Some(1 << 20);
    let Err(error) = files.open(&change).await else { panic!("there is room") };
    let SourceFailure { code, message, .. } = error.to_source_error();
    assert_eq!(code, "STORE_ERROR");
    assert!(message.contains("a.example/film") && message.contains("free some space"), "{message}");
    assert!(!message.contains("secret"), "{message}");
    change.file.size = Some((1 << 20) + 1);
    assert!(matches!(files.open(&change).await.unwrap(), OpenedFile::Part(_)));
    assert_eq!(files.limit(&change).bytes, 1 << 20);
}
