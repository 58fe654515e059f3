//! The orders of items.

use towpath_proto::change::{NewChange, Seq};

use super::{Backend, append, feed, ids, open, put, seqs};
use crate::{Limit, Order, Stretch};

const ALL: Limit = Limit { items: usize::MAX, bytes: usize::MAX };

fn backwards() -> Stretch {
    Stretch { descending: true, ..Stretch::default() }
}

pub async fn created_order_does_not_move(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
    append(&*store, &f, vec![put("a", "2"), NewChange::delete("b"), put("d", "1"), put("a", "3")]).await;
    let items = store.items(&f, Order::Created, Stretch::default(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["a", "b", "c", "d"]);
    assert_eq!(seqs(&items), [7, 5, 3, 6], "each at its latest version");
    let items = store.items(&f, Order::Created, backwards(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["d", "c", "b", "a"]);
    // Made again after its deletion, an item has its old place.
    append(&*store, &f, vec![put("b", "2")]).await;
    let items = store.items(&f, Order::Created, Stretch::default(), ALL).await.unwrap();
    assert_eq!(ids(&items), ["a", "b", "c", "d"]);
}

pub async fn modified_order_moves(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1"), put("b", "1"), put("a", "2"), put("c", "1")]).await;
    append(&*store, &f, vec![NewChange::delete("b")]).await;
    let items = store.items(&f, Order::Modified, Stretch::default(), ALL).await.unwrap();
    assert_eq!((ids(&items), seqs(&items)), (vec!["a", "c", "b"], vec![3, 4, 5]));
    let items = store.items(&f, Order::Modified, backwards(), ALL).await.unwrap();
    assert_eq!(seqs(&items), [5, 4, 3]);
}

pub async fn stretches_have_two_ends(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, (1..=20).map(|n| put(&n.to_string(), "1")).collect()).await;
    append(&*store, &f, (1..=20).step_by(3).map(|n| put(&n.to_string(), "2")).collect()).await;
    append(&*store, &feed("f2"), vec![put("x", "1")]).await;
    let ends = [None, Some(0), Some(1), Some(7), Some(20), Some(24), Some(27), Some(99), Some(Seq::MAX)];
    for order in [Order::Created, Order::Modified] {
        let all = store.items(&f, order, Stretch::default(), ALL).await.unwrap();
        for (after, before) in ends.iter().flat_map(|after| ends.iter().map(|before| (*after, *before))) {
            let position =
                |c: &towpath_proto::change::Change| if order == Order::Created { c.first_seq } else { c.seq };
            let within = all.iter().filter(|change| {
                after.is_none_or(|after| position(change) > after)
                    && before.is_none_or(|before| position(change) < before)
            });
            let mut expected: Vec<_> = within.cloned().collect();
            let stretch = Stretch { after, before, descending: false };
            assert_eq!(
                store.items(&f, order, stretch, ALL).await.unwrap(),
                expected,
                "{order:?} {stretch:?}"
            );
            expected.reverse();
            let stretch = Stretch { descending: true, ..stretch };
            assert_eq!(
                store.items(&f, order, stretch, ALL).await.unwrap(),
                expected,
                "{order:?} {stretch:?}"
            );
        }
    }
}

pub async fn items_keep_the_limits(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let text = "x".repeat(10_000);
    append(&*store, &f, (1..=10).map(|n| put(&n.to_string(), &text)).collect()).await;
    for order in [Order::Created, Order::Modified] {
        let items = async |items, bytes| {
            let found = store.items(&f, order, backwards(), Limit { items, bytes }).await.unwrap();
            assert_eq!(found.first().map(|change| change.seq), Some(10), "the limit cuts the far end");
            found.len()
        };
        assert_eq!(items(3, usize::MAX).await, 3);
        // A change has its text twice: as title and in its content.
        assert_eq!(items(10, 65_000).await / 2 * 2, items(10, 65_000).await.min(6) / 2 * 2);
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
    let (mut stretch, mut found) = (Stretch::default(), Vec::new());
    loop {
        let page = store.items(&f, Order::Modified, stretch, Limit::items(64)).await.unwrap();
        let Some(last) = page.last() else { break };
        stretch.after = Some(last.seq);
        found.extend(page.into_iter().map(|change| change.item.id));
    }
    let unchanged = (0..count).step_by(2);
    let changed = (0..count).rev().step_by(2);
    assert_eq!(found, unchanged.chain(changed).map(|n| n.to_string()).collect::<Vec<_>>());
}
