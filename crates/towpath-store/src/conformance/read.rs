//! Reads.

use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::NewChange;
use towpath_proto::item::{Content, Item};

use super::{Backend, ManualClock, append, feed, item, log, open, put, seqs, time};
use crate::{ItemOrder, LogHead, ReadLimit, SeqRange};

pub async fn an_unknown_feed_is_empty(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    assert_eq!(store.head(&f).await.unwrap(), LogHead::EMPTY);
    assert!(store.feeds().await.unwrap().is_empty());
    assert!(store.read(&f, 0, ReadLimit::items(9)).await.unwrap().is_empty());
    assert_eq!(store.change(&f, 1).await.unwrap(), None);
    assert_eq!(store.latest(&f, "a").await.unwrap(), None);
    assert_eq!(store.last_before(&f, Timestamp::MAX).await.unwrap(), 0);
    let items = store.items(&f, ItemOrder::Created, SeqRange::default(), ReadLimit::items(9)).await;
    assert!(items.unwrap().is_empty());
    assert!(store.content_hashes(&f, None).await.unwrap().is_empty());
    assert!(store.content_hashes(&f, Some(&["a".into()])).await.unwrap().is_empty());
}

pub async fn feeds_are_listed_by_name(backend: &dyn Backend) {
    let store = open(backend).await;
    for name in ["zz", "b-b", "a1", "b_b", "bb"] {
        append(&*store, &feed(name), vec![put("a", "1")]).await;
    }
    let names = store.feeds().await.unwrap();
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["a1", "b-b", "b_b", "bb", "zz"]);
}

pub async fn heads_are_listed_with_append_times(backend: &dyn Backend) {
    let clock = ManualClock::at("2024-01-01T00:00:00Z");
    let store = backend.open(clock.clock()).await;
    assert!(store.heads().await.unwrap().is_empty());
    append(&*store, &feed("f2"), vec![put("a", "1")]).await;
    clock.advance(60);
    // A mirror stores its publisher's times.
    let mirrored = NewChange { modified: Some(time("2020-05-05T00:00:00Z")), ..put("a", "1") };
    append(&*store, &feed("f1"), vec![mirrored]).await;
    clock.advance(60);
    append(&*store, &feed("f2"), vec![put("a", "2"), put("b", "1")]).await;
    append(&*store, &feed("f1"), vec![]).await;
    store.close().await;
    let store = backend.open(clock.clock()).await;
    let heads = store.heads().await.unwrap();
    let listed: Vec<_> = heads.iter().map(|listed| (listed.feed.as_str(), listed.appended)).collect();
    let times = ["2024-01-01T00:01:00Z", "2024-01-01T00:02:00Z"].map(time);
    assert_eq!(listed, [("f1", times[0]), ("f2", times[1])]);
    for listed in heads {
        assert_eq!(listed.head, store.head(&listed.feed).await.unwrap());
    }
}

pub async fn reads_continue_after_a_position(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, (0..300).map(|n| put(&format!("i{}", n % 70), &n.to_string())).collect()).await;
    // Feeds with adjacent numbers do not leak into the read.
    append(&*store, &feed("f0"), vec![put("x", "1")]).await;
    append(&*store, &feed("f2"), vec![put("x", "1")]).await;
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let page = store.read(&f, after, ReadLimit::items(37)).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        found.extend(page);
    }
    assert_eq!(seqs(&found), (1..=300).collect::<Vec<_>>());
    let titles: Vec<_> = found.iter().map(|c| c.item.title.clone().unwrap()).collect();
    assert_eq!(titles, (0..300).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    assert!(store.read(&f, 300, ReadLimit::items(9)).await.unwrap().is_empty());
    assert!(store.read(&f, u64::MAX, ReadLimit::items(9)).await.unwrap().is_empty());
}

pub async fn reads_respect_limits(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let big = |id: &str| {
        let content = Some(Content::new("text/plain", vec![b'x'; 10_000]));
        NewChange::put(Item { content, ..Item::new(id) })
    };
    append(&*store, &f, (0..10).map(|n| big(&n.to_string())).collect()).await;
    let read = async |items, bytes| store.read(&f, 0, ReadLimit { items, bytes }).await.unwrap().len();
    assert_eq!(read(3, usize::MAX).await, 3);
    assert_eq!(read(10, 35_000).await, 3);
    assert_eq!(read(2, 35_000).await, 2);
    // A read returns at least one change where there is one.
    assert_eq!(read(10, 0).await, 1);
    assert_eq!(read(10, 5_000).await, 1);
    assert_eq!(read(0, usize::MAX).await, 1);
    assert_eq!(store.read(&f, 10, ReadLimit { items: 0, bytes: 0 }).await.unwrap(), []);
}

pub async fn changes_are_read_by_position(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("a", "2"), NewChange::delete("a")]).await;
    for change in log(&*store, &f).await {
        assert_eq!(store.change(&f, change.seq).await.unwrap(), Some(change));
    }
    for none in [0, 4, u64::MAX] {
        assert_eq!(store.change(&f, none).await.unwrap(), None);
    }
}

pub async fn latest_is_the_last_version(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("a", "2")]).await;
    assert_eq!(store.latest(&f, "a").await.unwrap().unwrap().seq, 3);
    append(&*store, &f, vec![NewChange::delete("a")]).await;
    assert_eq!(store.latest(&f, "a").await.unwrap().unwrap().seq, 4);
    assert_eq!(store.latest(&f, "b").await.unwrap().unwrap().seq, 2);
    assert_eq!(store.latest(&f, "A").await.unwrap(), None);
}

pub async fn last_before_a_time(backend: &dyn Backend) {
    let clock = ManualClock::at("2024-01-01T00:00:00Z");
    let (store, f) = (backend.open(clock.clock()).await, feed("f1"));
    // 200 changes: two appends and three changes a second.
    for n in 0..40 {
        append(&*store, &f, vec![put(&format!("a{}", n % 7), &n.to_string()), put("b", &n.to_string())])
            .await;
        append(&*store, &f, vec![put("c", &n.to_string())]).await;
        clock.advance(1);
    }
    append(&*store, &feed("f2"), vec![put("x", "1")]).await;
    let log = log(&*store, &f).await;
    let start = time("2024-01-01T00:00:00Z");
    for tenths in -5..420 {
        let at = start + SignedDuration::from_millis(tenths * 100);
        let expected = log.iter().filter(|change| change.modified < at).count() as u64;
        assert_eq!(store.last_before(&f, at).await.unwrap(), expected, "{at}");
    }
    assert_eq!(store.last_before(&f, Timestamp::MIN).await.unwrap(), 0);
    assert_eq!(store.last_before(&f, Timestamp::MAX).await.unwrap(), 120);
}

pub async fn content_hashes_of_a_feed(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("ab", "1"), put("c", "1")]).await;
    append(&*store, &f, vec![put("a", "2"), NewChange::delete("c")]).await;
    append(&*store, &feed("f2"), vec![put("d", "1")]).await;
    let all = store.content_hashes(&f, None).await.unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(all["a"], Some(item("a", "2").content_hash()));
    assert_eq!(all["ab"], Some(item("ab", "1").content_hash()));
    assert_eq!(all["c"], None);
    let asked = ["a", "c", "d", ""].map(str::to_owned);
    let some = store.content_hashes(&f, Some(&asked)).await.unwrap();
    assert_eq!(some.len(), 2);
    assert_eq!((some["a"], some["c"]), (all["a"], None));
    assert!(store.content_hashes(&f, Some(&[])).await.unwrap().is_empty());
}
