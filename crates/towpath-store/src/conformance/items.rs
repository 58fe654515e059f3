//! Item orders.

use std::collections::HashMap;

use towpath_proto::change::{NewChange, Seq};

use super::{Backend, append, feed, ids, log, open, put, seqs};
use crate::{ItemOrder, ReadLimit, SeqRange};

const ALL: ReadLimit = ReadLimit { items: usize::MAX, bytes: usize::MAX };

fn backwards() -> SeqRange {
    SeqRange { descending: true, ..SeqRange::default() }
}

pub async fn created_order_is_stable(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
    append(&*store, &f, vec![put("a", "2"), NewChange::delete("b"), put("d", "1"), put("a", "3")]).await;
    let items = store.items(&f, ItemOrder::Created, SeqRange::default(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["a", "b", "c", "d"]);
    assert_eq!(seqs(&items), [7, 5, 3, 6], "each at its latest version");
    let items = store.items(&f, ItemOrder::Created, backwards(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["d", "c", "b", "a"]);
    // Created again after its deletion, an item keeps its old position.
    append(&*store, &f, vec![put("b", "2")]).await;
    let items = store.items(&f, ItemOrder::Created, SeqRange::default(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["a", "b", "c", "d"]);
}

pub async fn modified_order_follows_changes(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("a", "2"), put("c", "1")]).await;
    append(&*store, &f, vec![NewChange::delete("b")]).await;
    let items = store.items(&f, ItemOrder::Modified, SeqRange::default(), ALL).await.unwrap();
    assert_eq!((ids(&items), seqs(&items)), (vec!["a", "c", "b"], vec![3, 4, 5]));
    let items = store.items(&f, ItemOrder::Modified, backwards(), ALL).await.unwrap();
    assert_eq!(seqs(&items), [5, 4, 3]);
}

pub async fn ranges_have_two_bounds(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, (1..=20).map(|n| put(&n.to_string(), "1")).collect()).await;
    append(&*store, &f, (1..=20).step_by(3).map(|n| put(&n.to_string(), "2")).collect()).await;
    append(&*store, &feed("f2"), vec![put("x", "1")]).await;
    let ends = [None, Some(0), Some(1), Some(7), Some(20), Some(24), Some(27), Some(99), Some(Seq::MAX)];
    for order in [ItemOrder::Created, ItemOrder::Modified] {
        let all = store.items(&f, order, SeqRange::default(), ALL).await.unwrap();
        for (after, before) in ends.iter().flat_map(|after| ends.iter().map(|before| (*after, *before))) {
            let position = |c: &towpath_proto::change::Change| {
                if order == ItemOrder::Created { c.first_seq } else { c.seq }
            };
            let within = all.iter().filter(|change| {
                after.is_none_or(|after| position(change) > after)
                    && before.is_none_or(|before| position(change) < before)
            });
            let mut expected: Vec<_> = within.cloned().collect();
            let range = SeqRange { after, before, descending: false };
            assert_eq!(store.items(&f, order, range, ALL).await.unwrap(), expected, "{order:?} {range:?}");
            expected.reverse();
            let range = SeqRange { descending: true, ..range };
            assert_eq!(store.items(&f, order, range, ALL).await.unwrap(), expected, "{order:?} {range:?}");
        }
    }
}

pub async fn items_respect_limits(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let text = "x".repeat(10_000);
    append(&*store, &f, (1..=10).map(|n| put(&n.to_string(), &text)).collect()).await;
    for order in [ItemOrder::Created, ItemOrder::Modified] {
        let items = async |items, bytes| {
            let found = store.items(&f, order, backwards(), ReadLimit { items, bytes }).await.unwrap();
            assert_eq!(
                found.first().map(|change| change.seq),
                Some(10),
                "the limit cuts the far end of the range"
            );
            found.len()
        };
        assert_eq!(items(3, usize::MAX).await, 3);
        // A change has its text twice: as title and in its content.
        assert_eq!(items(10, 65_000).await / 2 * 2, items(10, 65_000).await.min(6) / 2 * 2);
        // The limit is approximate: backends count stored records, the model counts contents.
        assert!((2..=6).contains(&items(10, 65_000).await));
        assert_eq!(items(10, 0).await, 1);
        assert_eq!(items(0, 0).await, 1);
    }
}

pub async fn orders_hold_many_items(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let count = 1_000;
    for start in (0..count).step_by(250) {
        append(&*store, &f, (start..start + 250).map(|n| put(&n.to_string(), "1")).collect()).await;
    }
    // Every other item changes, from the last to the first.
    append(&*store, &f, (0..count).rev().step_by(2).map(|n| put(&n.to_string(), "2")).collect()).await;
    let (mut range, mut found) = (SeqRange::default(), Vec::new());
    loop {
        let page = store.items(&f, ItemOrder::Modified, range, ReadLimit::items(64)).await.unwrap();
        let Some(last) = page.last() else { break };
        range.after = Some(last.seq);
        found.extend(page.into_iter().map(|change| change.item.id));
    }
    let unchanged = (0..count).step_by(2);
    let changed = (0..count).rev().step_by(2);
    assert_eq!(found, unchanged.chain(changed).map(|n| n.to_string()).collect::<Vec<_>>());
    // In one read, along both orders and in both directions: the last version of each, as the log has it.
    let last: HashMap<_, _> =
        log(&*store, &f).await.into_iter().map(|change| (change.item.id.clone(), change)).collect();
    for order in [ItemOrder::Created, ItemOrder::Modified] {
        let mut expected: Vec<_> = last.values().cloned().collect();
        expected
            .sort_by_key(|change| if order == ItemOrder::Created { change.first_seq } else { change.seq });
        assert!(store.items(&f, order, SeqRange::default(), ALL).await.unwrap() == expected, "{order:?}");
        expected.reverse();
        assert!(store.items(&f, order, backwards(), ALL).await.unwrap() == expected, "{order:?}, backwards");
    }
}
