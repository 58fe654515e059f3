//! Appends.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use towpath_proto::change::{NewChange, Op};
use towpath_proto::item::{Author, Content, ContentHash, Item, MAX_ID_BYTES};
use towpath_proto::patch::PatchError;

use super::{Backend, ManualClock, append, feed, ids, item, log, open, patch, put, seqs, time};
use crate::{AppendError, Expected, LogHead};

pub async fn a_batch_is_in_order_and_dense(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let appended = append(&*store, &f, vec![put("a", "1"), put("b", "2"), put("c", "3")]).await;
    assert_eq!((appended.first, appended.head.seq), (1, 3));
    let appended = append(&*store, &f, vec![put("d", "4"), put("a", "5")]).await;
    assert_eq!((appended.first, appended.head.seq), (4, 5));
    assert_eq!(store.head(&f).await.unwrap(), appended.head);
    let log = log(&*store, &f).await;
    assert_eq!(seqs(&log), [1, 2, 3, 4, 5]);
    assert_eq!(ids(&log), ["a", "b", "c", "d", "a"]);
}

pub async fn an_empty_batch_returns_the_head(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let nothing = append(&*store, &f, vec![]).await;
    assert_eq!((nothing.first, nothing.head), (1, LogHead::EMPTY));
    assert!(store.feeds().await.unwrap().is_empty());
    let one = append(&*store, &f, vec![put("a", "1")]).await;
    let nothing = append(&*store, &f, vec![]).await;
    assert_eq!((nothing.first, nothing.head), (2, one.head));
    assert_eq!(log(&*store, &f).await.len(), 1);
}

pub async fn a_refused_batch_stores_nothing(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1")]).await;
    let before = store.head(&f).await.unwrap();
    let batch = vec![put("a", "2"), put("b", "1"), put("", "no id")];
    let error = store.append(&f, Expected::Any, batch).await.unwrap_err();
    assert!(matches!(error, AppendError::Invalid { index: 2, .. }), "{error}");
    let batch = vec![put("a", "2"), put("b", "1"), patch("nobody", "{}")];
    let error = store.append(&f, Expected::Any, batch).await.unwrap_err();
    assert!(matches!(error, AppendError::Patch { index: 2, .. }), "{error}");

    assert_eq!(store.head(&f).await.unwrap(), before);
    assert_eq!(store.latest(&f, "a").await.unwrap().unwrap().item.title.as_deref(), Some("1"));
    assert_eq!(store.latest(&f, "b").await.unwrap(), None);
    // A feed whose only append was refused does not exist.
    let error = store.append(&feed("f2"), Expected::Any, vec![patch("x", "{}")]).await;
    assert!(error.is_err());
    assert_eq!(store.feeds().await.unwrap(), std::slice::from_ref(&f));
    // The next append gets the next position.
    assert_eq!(append(&*store, &f, vec![put("b", "1")]).await.first, 2);
}

pub async fn appends_compare_the_last_position(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    store.append(&f, Expected::Last(0), vec![put("a", "1")]).await.unwrap();
    for wrong in [0, 2, u64::MAX] {
        let error = store.append(&f, Expected::Last(wrong), vec![put("b", "1")]).await.unwrap_err();
        let AppendError::Conflict { expected, actual, .. } = error else { panic!("{error}") };
        assert_eq!((expected, actual), (wrong, 1));
    }
    let empty = store.append(&f, Expected::Last(7), vec![]).await;
    assert!(matches!(empty, Err(AppendError::Conflict { .. })), "an empty batch compares too");
    store.append(&f, Expected::Last(1), vec![put("b", "1")]).await.unwrap();
    assert_eq!(store.head(&f).await.unwrap().seq, 2);
}

pub async fn appends_compare_the_version_of_an_item(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let refused = async |expected, change: NewChange| match store
        .append(&f, Expected::Version(expected), vec![change])
        .await
        .unwrap_err()
    {
        AppendError::ItemConflict { id, actual, .. } => (id, actual),
        error => panic!("{error}"),
    };
    assert_eq!(refused(Some(1), put("a", "1")).await, ("a".to_owned(), None));
    assert!(store.feeds().await.unwrap().is_empty(), "a refused append creates no feed");
    store.append(&f, Expected::Version(None), vec![put("a", "1")]).await.unwrap();
    // Changes of other items are no conflict.
    append(&*store, &f, vec![put("b", "1"), put("c", "1")]).await;
    store.append(&f, Expected::Version(Some(1)), vec![put("a", "2")]).await.unwrap();
    assert_eq!(refused(None, put("a", "3")).await, ("a".to_owned(), Some(4)));
    assert_eq!(refused(Some(1), NewChange::delete("a")).await, ("a".to_owned(), Some(4)));
    store.append(&f, Expected::Version(Some(4)), vec![NewChange::delete("a")]).await.unwrap();
    // A deleted item counts as absent.
    assert_eq!(refused(Some(5), NewChange::delete("a")).await, ("a".to_owned(), None));
    store.append(&f, Expected::Version(None), vec![put("a", "4")]).await.unwrap();
    // Only the first change's item is compared, and nothing of a refused batch is there.
    refused(Some(1), put("b", "2")).await;
    store.append(&f, Expected::Version(Some(2)), vec![put("b", "2"), put("a", "5")]).await.unwrap();
    store.append(&f, Expected::Version(Some(99)), vec![]).await.unwrap();
    assert_eq!(store.head(&f).await.unwrap().seq, 8);
}

pub async fn one_of_several_first_versions_wins(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let (store, f) = (Arc::clone(&store), f.clone());
            let change = put("a", &format!("{n}"));
            tokio::spawn(async move { store.append(&f, Expected::Version(None), vec![change]).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => won += 1,
            Err(error) => {
                assert!(matches!(error, AppendError::ItemConflict { actual: Some(1), .. }), "{error}");
            }
        }
    }
    assert_eq!((won, store.head(&f).await.unwrap().seq), (1, 1));
}

pub async fn feeds_are_independent(backend: &dyn Backend) {
    let store = open(backend).await;
    // One name is a prefix of the other.
    let (short, long) = (feed("ab"), feed("ab-c"));
    append(&*store, &short, vec![put("x", "1"), put("y", "1")]).await;
    append(&*store, &long, vec![put("x", "2")]).await;
    append(&*store, &short, vec![NewChange::delete("x")]).await;
    assert_eq!(seqs(&log(&*store, &short).await), [1, 2, 3]);
    assert_eq!(seqs(&log(&*store, &long).await), [1]);
    let x = store.latest(&long, "x").await.unwrap().unwrap();
    assert_eq!((x.op, x.item.title.as_deref()), (Op::Put, Some("2")));
    assert_eq!(store.content_hashes(&long, None).await.unwrap().len(), 1);
}

pub async fn times_never_decrease(backend: &dyn Backend) {
    let clock = ManualClock::at("2024-01-01T00:00:10Z");
    let (store, f) = (backend.open(clock.clock()).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1")]).await;
    clock.set("2024-01-01T00:00:05Z");
    append(&*store, &f, vec![put("a", "2"), put("b", "1")]).await;
    clock.set("2024-01-01T00:00:20Z");
    let last = append(&*store, &f, vec![put("a", "3")]).await;
    assert_eq!(last.head.modified, time("2024-01-01T00:00:20Z"));
    let times: Vec<_> = log(&*store, &f).await.iter().map(|c| c.modified.as_second() % 60).collect();
    // The clock went back to 5: those changes keep the 10 of the one before.
    assert_eq!(times, [10, 10, 10, 20]);
    // Each feed has its own time.
    clock.set("2024-01-01T00:00:01Z");
    append(&*store, &feed("f2"), vec![put("a", "1")]).await;
    assert_eq!(store.head(&feed("f2")).await.unwrap().modified, time("2024-01-01T00:00:01Z"));
}

pub async fn explicit_times_are_stored(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let at = |t: &str, id: &str| NewChange { modified: Some(time(t)), ..put(id, "1") };
    // Before 1970, with nanoseconds, earlier than the one before it, and later than the clock.
    let (first, second, last) =
        ("1969-07-20T20:17:40.000000001Z", "1971-01-01T00:00:00Z", "2999-01-01T00:00:00Z");
    append(&*store, &f, vec![at(first, "a"), at(second, "b"), at(first, "c"), at(last, "d")]).await;
    append(&*store, &f, vec![put("e", "1")]).await;
    let times: Vec<_> = log(&*store, &f).await.iter().map(|change| change.modified).collect();
    assert_eq!(times, [time(first), time(second), time(second), time(last), time(last)]);
    let a = store.latest(&f, "a").await.unwrap().unwrap();
    assert_eq!(a.created, time(first));
}

pub async fn versions_are_chained(backend: &dyn Backend) {
    let clock = ManualClock::at("2024-01-01T00:00:00Z");
    let (store, f) = (backend.open(clock.clock()).await, feed("f1"));
    // Twice in one batch, then in a batch of its own, deleted, and created again.
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("a", "2")]).await;
    for change in [put("a", "3"), NewChange::delete("a"), put("a", "4")] {
        clock.advance(60);
        append(&*store, &f, vec![change]).await;
    }
    let log = log(&*store, &f).await;
    let a: Vec<_> = log.iter().filter(|change| change.item.id == "a").collect();
    assert_eq!(a.iter().map(|c| c.seq).collect::<Vec<_>>(), [1, 3, 4, 5, 6]);
    assert_eq!(a.iter().map(|c| c.previous).collect::<Vec<_>>(), [None, Some(1), Some(3), Some(4), Some(5)]);
    assert!(a.iter().all(|c| c.first_seq == 1 && c.created == time("2024-01-01T00:00:00Z")));
    assert!(a[0].is_first() && log[1].is_first() && !a[4].is_first());
}

pub async fn patches_are_applied(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1")]).await;
    // To a stored version; then two in one batch, the second to the result of the first.
    append(&*store, &f, vec![patch("a", r#"{"x":1}"#)]).await;
    append(&*store, &f, vec![patch("a", r#"{"y":2}"#), put("b", "1"), patch("a", r#"{"x":null}"#)]).await;
    let log = log(&*store, &f).await;
    let text = |seq: usize| log[seq - 1].item.content.as_ref().unwrap().text().unwrap();
    assert_eq!(text(2), r#"{"title":"1","x":1}"#);
    assert_eq!(text(3), r#"{"title":"1","x":1,"y":2}"#);
    assert_eq!(text(5), r#"{"title":"1","y":2}"#);
    let last = store.latest(&f, "a").await.unwrap().unwrap();
    assert_eq!((last.op, last.previous), (Op::Patch, Some(3)));
    assert_eq!(last.item.title.as_deref(), Some("1"), "only the content is patched");
    assert_eq!(last.patch.as_ref().unwrap().text(), Some(r#"{"x":null}"#));
    assert_eq!(last.hash, last.item.content_hash());
    assert_eq!(log[0].patch, None);
}

pub async fn patches_that_do_not_apply_are_refused(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let mut text = item("text", "1");
    text.content = Some(Content::new("text/plain", "hello"));
    append(&*store, &f, vec![NewChange::put(text), put("gone", "1"), NewChange::delete("gone")]).await;
    let refusal = async |change| match store.append(&f, Expected::Any, vec![change]).await.unwrap_err() {
        AppendError::Patch { index: 0, source, .. } => source,
        other => panic!("{other}"),
    };
    assert_eq!(refusal(patch("new", "{}")).await, PatchError::NoItem("new".into()));
    assert_eq!(refusal(patch("gone", "{}")).await, PatchError::NoItem("gone".into()));
    assert!(matches!(refusal(patch("text", "{}")).await, PatchError::Content(_)));
    assert!(matches!(refusal(patch("text", "{")).await, PatchError::Patch(_)));
    let none = NewChange { patch: None, ..patch("text", "{}") };
    let error = store.append(&f, Expected::Any, vec![none]).await.unwrap_err();
    assert!(matches!(error, AppendError::Invalid { index: 0, .. }), "{error}");
}

pub async fn tombstones_have_id_and_times(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let (published, updated) = (Some(time("2020-01-01T00:00:00Z")), Some(time("2021-01-01T00:00:00Z")));
    let whole = Item { published, updated, tags: vec!["t".into()], ..item("a", "1") };
    append(&*store, &f, vec![NewChange::put(whole), NewChange::delete("a"), NewChange::delete("a")]).await;
    let deleted = store.latest(&f, "a").await.unwrap().unwrap();
    assert_eq!((deleted.seq, deleted.op, deleted.previous), (3, Op::Delete, Some(2)));
    assert_eq!(deleted.item, Item { published, updated, ..Item::new("a") });
    assert_eq!(deleted.hash, ContentHash::default());
    assert_eq!(store.change(&f, 2).await.unwrap().unwrap().item, deleted.item);
    // Everything but the id of the caller's item is ignored.
    let more = NewChange { item: item("a", "x"), ..NewChange::delete("a") };
    append(&*store, &f, vec![more]).await;
    assert_eq!(store.latest(&f, "a").await.unwrap().unwrap().item, deleted.item);
}

pub async fn unknown_ids_can_be_deleted(backend: &dyn Backend) {
    // A mirror that starts in the middle of its publisher's log receives them.
    let (store, f) = (open(backend).await, feed("f1"));
    let appended = append(&*store, &f, vec![NewChange::delete("a")]).await;
    assert_eq!((appended.head.items, appended.head.live), (1, 0));
    let deleted = store.latest(&f, "a").await.unwrap().unwrap();
    assert_eq!((deleted.op, deleted.previous, deleted.first_seq), (Op::Delete, None, 1));
    assert_eq!(deleted.item, Item::new("a"));
}

pub async fn heads_count_items(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let counts = |head: LogHead| (head.seq, head.items, head.live);
    let steps: [(Vec<NewChange>, _); 6] = [
        (vec![put("a", "1"), put("b", "1"), put("a", "2")], (3, 2, 2)),
        (vec![NewChange::delete("a")], (4, 2, 1)),
        (vec![NewChange::delete("a")], (5, 2, 1)),
        (vec![put("a", "3"), NewChange::delete("b"), put("b", "2"), NewChange::delete("b")], (9, 2, 1)),
        (vec![put("c", "1"), NewChange::delete("c")], (11, 3, 1)),
        (vec![patch("a", "{}")], (12, 3, 1)),
    ];
    for (batch, expected) in steps {
        let appended = append(&*store, &f, batch).await;
        assert_eq!(counts(appended.head), expected);
        assert_eq!(counts(store.head(&f).await.unwrap()), expected);
    }
}

pub async fn any_id_is_stored(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let longest = "x".repeat(MAX_ID_BYTES);
    let longest_wide = "é".repeat(MAX_ID_BYTES / 2);
    // Separators, quotes, NUL, byte order and bidi marks, and ids of the greatest length.
    let all = [
        "a",
        "a/",
        "a/b",
        "a/b/../c",
        "\n",
        "a\nb",
        "\"",
        "'",
        "\0",
        "a\0",
        "a\0b",
        "a\u{10ffff}",
        "😀",
        "\u{feff}",
        "\u{202e}",
        " ",
        "%2F",
        "urn:uuid:1?x=y#z",
        "\\",
        &longest,
        &longest_wide,
        &longest[1..],
    ];
    for id in all {
        append(&*store, &f, vec![put(id, id)]).await;
    }
    append(&*store, &f, vec![NewChange::delete("a")]).await;
    for id in &all[1..] {
        let latest = store.latest(&f, id).await.unwrap().unwrap();
        assert_eq!((latest.item.id.as_str(), latest.item.title.as_deref()), (*id, Some(*id)));
    }
    let known = store.content_hashes(&f, None).await.unwrap();
    assert_eq!(known.len(), all.len());
    assert!(all[1..].iter().all(|id| known[*id].is_some()) && known["a"].is_none());
    assert_eq!(store.head(&f).await.unwrap().items, all.len() as u64);
}

pub async fn bad_ids_are_refused(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let long = "x".repeat(MAX_ID_BYTES + 1);
    for bad in [put("", "1"), put(&long, "1"), NewChange::delete(""), patch(&long, "{}")] {
        let error = store.append(&f, Expected::Any, vec![put("good", "1"), bad]).await.unwrap_err();
        assert!(matches!(error, AppendError::Invalid { index: 1, .. }), "{error}");
    }
    assert_eq!(store.head(&f).await.unwrap(), LogHead::EMPTY);
    assert_eq!(store.latest(&f, &long).await.unwrap(), None);
    assert_eq!(store.latest(&f, "").await.unwrap(), None);
}

pub async fn items_roundtrip(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let extra = json!({ "float": 0.1, "small": 5e-324, "deep": [{ "k": null }], "text": "\u{0}\n\u{2028}" });
    let whole = Item {
        id: "x".into(),
        url: Some("https://example.com/?a=b".into()),
        title: Some("T <b>&amp;</b>".into()),
        summary: Some(String::new()),
        content: Some(Content::new("image/png", vec![0, 255, 0, 10, 13])),
        authors: vec![Author::named("A"), Author { email: Some("b@c".into()), ..Author::default() }],
        tags: vec![String::new(), "t".into()],
        published: Some(Timestamp::MIN),
        updated: Some(time("2024-02-29T23:59:59.999999999Z")),
        extra: extra.as_object().unwrap().clone(),
    };
    let empty_content = Item { content: Some(Content::new("", "")), ..Item::new("empty") };
    let entry_id = Some("<1@example.com>".to_owned());
    let batch = vec![
        NewChange { entry_id: entry_id.clone(), ..NewChange::put(whole.clone()) },
        NewChange::put(empty_content.clone()),
        NewChange { entry_id: Some(String::new()), ..NewChange::delete("empty") },
    ];
    append(&*store, &f, batch).await;
    let log = log(&*store, &f).await;
    assert_eq!((&log[0].item, &log[0].entry_id), (&whole, &entry_id));
    assert_eq!(log[0].hash, whole.content_hash());
    assert_eq!((&log[1].item, &log[1].entry_id), (&empty_content, &None));
    assert_eq!(log[2].entry_id.as_deref(), Some(""));
    assert_eq!(store.latest(&f, "x").await.unwrap().unwrap(), log[0]);
}

pub async fn given_hashes_are_stored(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let a = item("a", "1");
    let given = NewChange { hash: Some(a.content_hash()), ..NewChange::put(a.clone()) };
    append(&*store, &f, vec![given]).await;
    assert_eq!(store.latest(&f, "a").await.unwrap().unwrap().hash, a.content_hash());
    assert_eq!(store.content_hashes(&f, None).await.unwrap()["a"], Some(a.content_hash()));
}

pub async fn large_items_are_stored(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let content: Vec<u8> =
        (0..5_000_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()).collect();
    let big = Item { content: Some(Content::new("application/octet-stream", content)), ..Item::new("big") };
    append(&*store, &f, vec![NewChange::put(big.clone()), put("small", "1")]).await;
    assert!(store.latest(&f, "big").await.unwrap().unwrap().item == big);
}
