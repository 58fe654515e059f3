use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, watch};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Content, Item, Op};

use super::acks::{AckError, change_digest, reset_digest};
use super::*;
use crate::progress::{FollowProgress, MAX_ACKNOWLEDGED};

pub(super) fn change(id: &str, position: &str) -> SinkEvent {
    let item = Item { content: Some(Content::new("text/plain", id.to_owned())), ..Item::new(id) };
    let (feed, position) = ("f".to_owned(), position.to_owned());
    let followed =
        Followed { feed, op: Op::Put, item, patch: None, modified: None, position, entry_id: None };
    SinkEvent::Change(Box::new(followed))
}

/// Events as `id`s, and the checkpoint, of each batch that was applied.
type Applied = Arc<Mutex<Vec<(Vec<String>, Option<String>)>>>;

/// A sink in memory with scripted faults.
#[derive(Default)]
struct MemorySink {
    applied: Applied,
    /// Errors of the next attempts.
    faults: Arc<Mutex<Vec<SinkError>>>,
    refused_ids: Vec<&'static str>,
    aside: Option<Applied>,
    /// A permit for each batch; `None` lets all pass.
    gate: Option<Arc<Semaphore>>,
}

#[async_trait]
impl Sink for MemorySink {
    async fn open(&mut self, _: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let held = self.applied.lock().unwrap().iter().rev().find_map(|(_, checkpoint)| checkpoint.clone());
        Ok(held.map(String::into_bytes))
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        if let Some(fault) = self.faults.lock().unwrap().pop() {
            return Err(fault);
        }
        let ids: Vec<String> = batch.events.iter().map(|e| e.change().unwrap().item.id.clone()).collect();
        let refused = ids.iter().enumerate().filter(|(_, id)| self.refused_ids.contains(&id.as_str()));
        let refused: Vec<_> = refused.map(|(index, _)| RefusedItem { index, message: "no".into() }).collect();
        if !refused.is_empty() {
            return Err(SinkError::Items(refused));
        }
        let checkpoint = batch.checkpoint.as_ref().map(|c| String::from_utf8(c.to_vec()).unwrap());
        self.applied.lock().unwrap().push((ids, checkpoint));
        Ok(())
    }

    async fn set_aside(&mut self, _: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        let Some(aside) = &self.aside else { return Ok(false) };
        aside.lock().unwrap().push((vec![change.item.id.clone()], Some(reason.into())));
        Ok(true)
    }
}

#[derive(Default)]
struct Notices(Mutex<Vec<SinkNotice>>);

impl SinkObserver for Notices {
    fn notice(&self, _: &str, notice: SinkNotice) {
        self.0.lock().unwrap().push(notice);
    }
}

fn batch(ids: &[&str], checkpoint: Option<&str>) -> SinkBatch {
    SinkBatch {
        source: "s".into(),
        events: Arc::new(ids.iter().map(|id| change(id, id)).collect()),
        checkpoint: checkpoint.map(|c| c.as_bytes().into()),
    }
}

fn applied(ids: &[&str], checkpoint: Option<&str>) -> (Vec<String>, Option<String>) {
    (ids.iter().map(|id| (*id).to_owned()).collect(), checkpoint.map(Into::into))
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_destination_is_tried_again_with_growing_waits() {
    let sink = MemorySink::default();
    let down = || SinkError::unavailable("down");
    let asks = SinkError::Unavailable { message: "busy".into(), retry_after: Some(Duration::from_secs(7)) };
    *sink.faults.lock().unwrap() = vec![asks, down(), down()];
    let (kept, notices) = (sink.applied.clone(), Arc::new(Notices::default()));
    let (_stop, stopped) = watch::channel(false);
    let mut writer = SinkWriter::new(Box::new(sink), SinkOptions::default(), notices.clone(), stopped);
    writer.write(batch(&["a"], Some("1"))).await.unwrap();
    assert_eq!(*kept.lock().unwrap(), [applied(&["a"], Some("1"))]);
    let waits: Vec<_> = notices.0.lock().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        waits,
        [
            "down; trying again in 0.2 seconds",
            "down; trying again in 0.5 seconds",
            "busy; trying again in 7.0 seconds",
            "the destination is available again"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_stop_signal_ends_the_wait_and_a_refusal_ends_the_sink() {
    let sink = MemorySink::default();
    *sink.faults.lock().unwrap() = vec![SinkError::refused("not ours"), SinkError::unavailable("down")];
    let (stop, stopped) = watch::channel(true);
    let notices = Arc::new(Notices::default());
    let mut writer = SinkWriter::new(Box::new(sink), SinkOptions::default(), notices, stopped);
    assert_eq!(writer.write(batch(&["a"], None)).await, Err(SinkFailure::Stopped("down".into())));
    stop.send(false).unwrap();
    assert_eq!(writer.write(batch(&["a"], None)).await, Err(SinkFailure::Refused("not ours".into())));
}

#[tokio::test]
async fn refused_items_are_kept_aside_and_the_rest_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refused.ndjson");
    for has_own_place in [true, false] {
        let aside = has_own_place.then(Applied::default);
        let sink = MemorySink { refused_ids: vec!["b", "d"], aside: aside.clone(), ..MemorySink::default() };
        let (kept, notices) = (sink.applied.clone(), Arc::new(Notices::default()));
        let (_stop, stopped) = watch::channel(false);
        let dead_letters = Some(DeadLetterFile::new(&path));
        let options = SinkOptions { dead_letters, ..SinkOptions::default() };
        let mut writer = SinkWriter::new(Box::new(sink), options, notices.clone(), stopped);
        writer.write(batch(&["a", "b", "c", "d"], Some("4"))).await.unwrap();
        assert_eq!(*kept.lock().unwrap(), [applied(&["a", "c"], Some("4"))]);
        assert_eq!(notices.0.lock().unwrap().len(), 2);
        match aside {
            Some(aside) => assert_eq!(aside.lock().unwrap().len(), 2),
            None => {
                let text = std::fs::read_to_string(&path).unwrap();
                let letter: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
                assert_eq!((&letter["source"], &letter["reason"]), (&"s".into(), &"no".into()));
                assert_eq!(letter["change"]["id"], "d");
            }
        }
    }
}

#[tokio::test]
async fn a_refused_item_stops_the_sink_where_that_is_asked_for() {
    let sink = MemorySink { refused_ids: vec!["b"], ..MemorySink::default() };
    let kept = sink.applied.clone();
    let (_stop, stopped) = watch::channel(false);
    let options = SinkOptions { on_refused_item: OnRefusedItem::Stop, dead_letters: None };
    let mut writer = SinkWriter::new(Box::new(sink), options, Arc::new(Notices::default()), stopped);
    let error = writer.write(batch(&["a", "b"], Some("2"))).await.unwrap_err();
    assert_eq!(error.to_string(), "the destination refuses item \"b\" of f: no");
    assert!(kept.lock().unwrap().is_empty());
}

#[tokio::test]
async fn waiting_batches_are_merged_up_to_the_last_checkpoint() {
    let gate = Arc::new(Semaphore::new(0));
    let sink = MemorySink { gate: Some(gate.clone()), ..MemorySink::default() };
    let kept = sink.applied.clone();
    let (_stop, stopped) = watch::channel(false);
    let options = SinkOptions::default();
    let queue =
        SinkQueue::start(SinkWriter::new(Box::new(sink), options, Arc::new(Notices::default()), stopped));
    let (opener, source, other): (_, Arc<str>, Arc<str>) = (queue.opener(), "s".into(), "t".into());
    let write = async |source, id: &str, checkpoint: Option<&str>| {
        opener.write(source, vec![change(id, id)], checkpoint.map(|c| c.as_bytes().into())).await.unwrap();
    };
    write(&source, "a", None).await;
    // The task holds the first batch now, so all others wait.
    while gate.available_permits() == 0 && opener.jobs_waiting() > 0 {
        tokio::task::yield_now().await;
    }
    write(&source, "b", None).await;
    write(&source, "c", Some("3")).await;
    write(&source, "d", Some("4")).await;
    write(&source, "e", None).await;
    write(&other, "f", Some("6")).await;
    gate.add_permits(100);
    assert_eq!(opener.open(&source).await.unwrap(), Some(b"6".to_vec()));
    drop(opener);
    queue.finish().await.unwrap();
    let expected = [
        applied(&["a"], None),
        applied(&["b", "c", "d"], Some("4")),
        applied(&["e"], None),
        applied(&["f"], Some("6")),
    ];
    assert_eq!(*kept.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_failed_sink_fails_its_senders() {
    let sink = MemorySink::default();
    sink.faults.lock().unwrap().push(SinkError::refused("full of somebody else's tables"));
    let (_stop, stopped) = watch::channel(false);
    let options = SinkOptions::default();
    let queue =
        SinkQueue::start(SinkWriter::new(Box::new(sink), options, Arc::new(Notices::default()), stopped));
    let opener = queue.opener();
    opener.write(&"s".into(), vec![change("a", "1")], None).await.unwrap();
    let error = SinkFailure::Refused("full of somebody else's tables".into());
    assert_eq!(opener.flush().await, Err(error.clone()));
    drop(opener);
    assert_eq!(queue.finish().await, Err(error));
}

/// The sender may be told of the end by the reply that never comes, before the task has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_error_is_the_sinks_own() {
    struct RefusingSink;

    #[async_trait]
    impl Sink for RefusingSink {
        async fn open(&mut self, _: &str) -> Result<Option<Vec<u8>>, SinkError> {
            Err(SinkError::refused("not ours"))
        }

        async fn apply(&mut self, _: &SinkBatch) -> Result<(), SinkError> {
            Ok(())
        }
    }

    for attempt in 0..5000 {
        let (_stop, stopped) = watch::channel(false);
        let notices = Arc::new(Notices::default());
        let writer = SinkWriter::new(Box::new(RefusingSink), SinkOptions::default(), notices, stopped);
        let queue = SinkQueue::start(writer);
        let opened = queue.opener().open(&"s".into()).await;
        assert_eq!(opened, Err(SinkFailure::Refused("not ours".into())), "attempt {attempt}");
    }
}

#[tokio::test]
async fn a_state_file_holds_the_checkpoint_of_each_source_and_one_process_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut sink = WithStateFile::open(MemorySink::default(), "exec:cat", &path).unwrap();
    assert_eq!(sink.open("s").await.unwrap(), None);
    sink.apply(&batch(&["a"], Some(r#"{"n":1}"#))).await.unwrap();
    sink.apply(&batch(&["b"], None)).await.unwrap();
    let busy = WithStateFile::open(MemorySink::default(), "exec:cat", &path);
    assert!(matches!(busy, Err(SinkStateError::InUse { .. })));
    drop(sink);
    let mut sink = WithStateFile::open(MemorySink::default(), "exec:cat", &path).unwrap();
    assert_eq!(sink.open("s").await.unwrap(), Some(br#"{"n":1}"#.to_vec()));
    assert_eq!(sink.open("t").await.unwrap(), None);
    drop(sink);
    let other = WithStateFile::open(MemorySink::default(), "exec:dog", &path).err().unwrap();
    assert!(other.to_string().contains("belongs to exec:cat"), "{other}");
    std::fs::write(&path, "{").unwrap();
    let damaged = WithStateFile::open(MemorySink::default(), "exec:cat", &path).err().unwrap();
    assert!(damaged.to_string().contains("remove it"), "{damaged}");
}

#[test]
fn only_acknowledged_lines_move_the_checkpoint() {
    let (mut acks, source): (_, Arc<str>) = (AckTracker::default(), "s".into());
    let send = |acks: &mut AckTracker, events: &[SinkEvent], checkpoint: &[u8]| {
        events.iter().for_each(|event| acks.add(&source, event, event.to_json().into()));
        acks.add_checkpoint(&source, checkpoint.into())
    };
    let moves = |acks: &mut AckTracker, text: &str| {
        let done = acks.acknowledge(text)?;
        Ok((done.checkpoint.map(|c| String::from_utf8(c.to_vec()).unwrap()), done.lines.len()))
    };
    let lines = [change("a", "1"), change("b", "1"), change("c", "2")];
    assert_eq!(send(&mut acks, &[], b"0").as_deref(), Some(&b"0"[..]));
    assert_eq!(send(&mut acks, &lines, b"A"), None);
    let reset = SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "r".into() });
    assert_eq!(send(&mut acks, &[reset, change("d", "3")], b"B"), None);
    assert_eq!(acks.lines().len(), 5);
    // Two lines have the position 1: it stands for the first that is open.
    assert_eq!(moves(&mut acks, "1"), Ok((None, 1)));
    assert_eq!(moves(&mut acks, r#"{"position":"1","id":"b"}"#), Ok((None, 1)));
    assert_eq!(moves(&mut acks, "1"), Err(AckError::Unknown("1".into())));
    assert_eq!(moves(&mut acks, "2\n"), Ok((Some("A".into()), 0)));
    assert_eq!(moves(&mut acks, r#"{"feed":"f","op":"reset"}"#), Ok((None, 1)));
    assert_eq!((acks.open_lines(), acks.lines().len()), (1, 1));
    assert_eq!(moves(&mut acks, "3"), Ok((Some("B".into()), 0)));
    assert!(matches!(acks.acknowledge("{}"), Err(AckError::Form(_))));
    assert!(matches!(acks.acknowledge(""), Err(AckError::Form(_))));
    // An acknowledgement covers all lines before it; a refusal names the last of them only.
    assert_eq!(send(&mut acks, &lines, b"C"), None);
    let refusal = acks.acknowledge(r#"{"position":"2","refused":"too odd"}"#).unwrap();
    assert_eq!(
        refusal.refused.map(|(change, reason)| (change.item.id, reason)),
        Some(("c".into(), "too odd".into()))
    );
    assert_eq!((acks.open_lines(), acks.open_bytes()), (0, 0));
}

#[tokio::test]
async fn acknowledged_lines_of_an_unfinished_unit_are_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let lines = || AckedLines::new(Some(SinkStateFile::open("stdout", &path).unwrap()));
    let first = lines();
    assert_eq!(first.open("s"), None);
    assert_eq!(first.add(&batch(&["a", "b", "c"], Some("1"))).unwrap().len(), 3);
    assert_eq!(first.acknowledge("b"), Ok(None));
    first.save().unwrap();
    drop(first);
    let second = lines();
    assert_eq!(second.open("s"), None);
    assert_eq!(second.add(&batch(&["a", "b", "c"], Some("1"))).unwrap().len(), 1);
    assert_eq!(second.acknowledge("c"), Ok(None));
    second.save().unwrap();
    drop(second);
    let third = lines();
    assert_eq!(third.open("s"), Some(b"1".to_vec()));
    // The same change may come again later, and is a new one then.
    assert_eq!(third.add(&batch(&["a"], Some("2"))).unwrap().len(), 1);
}

#[test]
fn a_large_unit_is_remembered_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let lines = || AckedLines::new(Some(SinkStateFile::open("stdout", &path).unwrap()));
    let ids: Vec<String> = (0..MAX_ACKNOWLEDGED + 5).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let first = lines();
    first.open("s");
    assert_eq!(first.add(&batch(&ids, None)).unwrap().len(), ids.len());
    assert_eq!(first.acknowledge(ids[ids.len() - 1]), Ok(None));
    assert_eq!(first.finished_lines(), ids.len() as u64);
    // Without a save: the end of the process's follow saves it.
    drop(first);
    let second = lines();
    second.open("s");
    assert_eq!(second.add(&batch(&ids, None)).unwrap().len(), 5);
}

#[test]
fn the_state_waits_for_the_file_of_refused_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let lines = AckedLines::new(Some(SinkStateFile::open("stdout", &path).unwrap()));
    lines.open("s");
    lines.add(&batch(&["a"], Some("1"))).unwrap();
    let refused = lines.acknowledge(r#"{"position":"a","refused":"too odd"}"#).unwrap().unwrap();
    assert_eq!(lines.save_due(), None);
    lines.save().unwrap();
    assert!(!path.exists(), "a crash here would lose the item");
    let mut letters = DeadLetterFile::beside(&path);
    AckReader::new(lines, "c").keeper().keep(&[refused], Some(&mut letters));
    assert!(std::fs::read_to_string(letters.path()).unwrap().contains("too odd"));
    assert!(std::fs::read_to_string(&path).unwrap().contains("\"checkpoint\":1"));
}

/// State files keep them: another digest repeats what was finished.
#[test]
fn digests_are_those_of_earlier_versions() {
    let SinkEvent::Change(mut change) = change("a", "1") else { unreachable!() };
    let digests = |change: &Followed| change_digest(change).to_string();
    assert_eq!(digests(&change), "7eac6fd3ae786c5e0dec86b03b07731e");
    let plain = digests(&change);
    change.item.content = Some(Content::new("text/plain", "longer"));
    let with_content = digests(&change);
    change.modified = Some(jiff::Timestamp::UNIX_EPOCH);
    assert!(plain != with_content && with_content != digests(&change));
    assert_eq!(reset_digest().to_string(), "01be30bb4a27765c37462e6bf2a0bf8b");
    // Of an earlier version, or of another program: unknown, and no error.
    let keys = ["0123456789abcdef0123456789abcdef".to_owned(), "?".to_owned()];
    let mut progress = FollowProgress::resume(None, &keys);
    assert_eq!(progress.give(change_digest(&change)), Some(1));
}
