//! The tests that every backend passes: one case for every sentence of [`Store`]'s contract.
//!
//! A backend's crate calls [`battery!`](crate::battery!) once, with an expression that makes an empty
//! [`Backend`].

#![allow(missing_docs, reason = "the cases' names say what they test")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

pub mod append;
pub mod concurrent;
pub mod items;
pub mod lifecycle;
pub mod model;
pub mod read;
pub mod tables;
pub mod tell;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_proto::patch::MERGE_PATCH;

use crate::{Appended, Clock, Expected, Limit, Store};

/// A backend under test: data that is opened, closed and opened again.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens the data. What was opened before was closed.
    async fn open(&self, clock: Clock) -> Arc<dyn Store>;
}

/// Makes a `#[tokio::test]` of every case, on a backend that `$make` makes anew for each.
#[macro_export]
macro_rules! battery {
    ($make:expr) => {
        $crate::battery!($make;
            append: a_batch_is_in_order_and_dense, an_empty_batch_returns_the_head,
                a_refused_batch_leaves_nothing, appends_compare_the_last_place, feeds_are_apart,
                times_never_decrease, times_of_a_mirror_are_kept, versions_are_chained, patches_are_applied,
                patches_that_do_not_apply_say_why, deletions_leave_id_and_times, deletions_of_unknown_ids_are_kept,
                heads_count_items, any_id_is_kept, bad_ids_are_refused, items_come_back_whole,
                given_hashes_are_kept, large_items_are_kept;
            read: an_unknown_feed_is_empty, feeds_are_listed_by_name,
                heads_are_listed_with_when_they_moved_here, reads_go_on_after_a_place,
                reads_keep_their_limits, changes_are_found_by_place, latest_is_the_last_version,
                last_before_a_time, known_hashes;
            items: created_order_does_not_move, modified_order_moves, stretches_have_two_ends,
                items_keep_the_limits, orders_hold_many_items;
            tell: hooks_come_before_the_acknowledgement, hooks_are_called_in_order, a_refused_append_tells_nobody,
                wait_returns_at_once, wait_returns_later, many_wait_for_one_feed, waiting_may_be_dropped,
                closing_ends_the_waiting,
                writes_are_told;
            tables: values_are_written_and_removed, tables_are_apart, scans_are_ordered, writes_are_all_or_nothing,
                conditions_are_compared, one_of_many_wins_a_condition;
            concurrent: concurrent_appends_are_all_kept, one_of_many_wins_a_compare,
                one_id_written_by_many, readers_see_whole_batches;
            lifecycle: everything_is_there_after_opening_again, a_closed_store_refuses,
                closing_acknowledges_what_is_under_way;
            model: agrees_with_the_model
        );
    };
    ($make:expr; $($group:ident: $($case:ident),+);+) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = $make;
                $crate::battery::$group::$case(&backend).await;
            }
        )+)+
    };
}

/// A clock that is set by hand.
#[derive(Clone)]
pub struct Hand(Arc<Mutex<Timestamp>>);

impl Hand {
    pub fn at(time: &str) -> Self {
        Self(Arc::new(Mutex::new(time.parse().unwrap())))
    }

    pub fn set(&self, time: &str) {
        *self.0.lock() = time.parse().unwrap();
    }

    pub fn advance(&self, seconds: i64) {
        *self.0.lock() += SignedDuration::from_secs(seconds);
    }

    pub fn clock(&self) -> Clock {
        let time = Arc::clone(&self.0);
        Arc::new(move || *time.lock())
    }
}

/// The store of a backend, on a clock that stands still in 2024.
pub async fn open(backend: &dyn Backend) -> Arc<dyn Store> {
    backend.open(Hand::at("2024-01-01T00:00:00Z").clock()).await
}

pub fn feed(name: &str) -> FeedId {
    FeedId::new(name).unwrap()
}

pub fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// An item with a title and JSON content.
pub fn item(id: &str, title: &str) -> Item {
    let json = serde_json::json!({ "title": title }).to_string();
    let content = Some(Content::new("application/json", json));
    Item { title: Some(title.into()), content, ..Item::new(id) }
}

pub fn put(id: &str, title: &str) -> NewChange {
    NewChange::put(item(id, title))
}

pub fn patch(id: &str, patch: &str) -> NewChange {
    NewChange::patch(id, Content::new(MERGE_PATCH, patch.to_owned()))
}

pub async fn append(store: &dyn Store, feed: &FeedId, changes: Vec<NewChange>) -> Appended {
    store.append(feed, Expected::Any, changes).await.unwrap()
}

/// The whole log of a feed.
pub async fn log(store: &dyn Store, feed: &FeedId) -> Vec<Change> {
    store.read(feed, 0, Limit { items: usize::MAX, bytes: usize::MAX }).await.unwrap()
}

pub fn seqs(changes: &[Change]) -> Vec<Seq> {
    changes.iter().map(|change| change.seq).collect()
}

pub fn ids(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| change.item.id.as_str()).collect()
}
