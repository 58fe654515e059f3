//! Conformance suite of backends: one case for every sentence of [`Store`]'s contract.
//!
//! A backend's crate calls [`conformance!`](crate::conformance!) once, with an expression that creates an empty
//! [`Backend`].

#![allow(missing_docs, reason = "the cases' names say what they test")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

pub mod append;
pub mod concurrent;
pub mod items;
pub mod lifecycle;
pub mod model;
pub mod notify;
pub mod read;
pub mod tables;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_proto::patch::MERGE_PATCH;

use crate::{Appended, Expected, ReadLimit, Store, WallClock};

/// Backend under test: data that is opened, closed and opened again.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens the data. The store that was opened before is closed.
    async fn open(&self, clock: WallClock) -> Arc<dyn Store>;
}

/// Expands to one `#[tokio::test]` per case, each on a new backend from `$make`.
#[macro_export]
macro_rules! conformance {
    ($make:expr) => {
        $crate::conformance!($make;
            append: a_batch_is_in_order_and_dense, an_empty_batch_returns_the_head,
                a_refused_batch_stores_nothing, appends_compare_the_last_position,
                appends_compare_the_version_of_an_item, one_of_several_first_versions_wins, feeds_are_independent,
                times_never_decrease, explicit_times_are_stored, versions_are_chained, patches_are_applied,
                patches_that_do_not_apply_are_refused, tombstones_have_id_and_times, unknown_ids_can_be_deleted,
                heads_count_items, any_id_is_stored, bad_ids_are_refused, items_roundtrip,
                given_hashes_are_stored, large_items_are_stored;
            read: an_unknown_feed_is_empty, feeds_are_listed_by_name,
                heads_are_listed_with_append_times, reads_continue_after_a_position,
                reads_respect_limits, changes_are_read_by_position, latest_is_the_last_version,
                last_before_a_time, content_hashes_of_a_feed;
            items: created_order_is_stable, modified_order_follows_changes, ranges_have_two_bounds,
                items_respect_limits, orders_hold_many_items;
            notify: hooks_come_before_the_acknowledgement, hooks_are_called_in_order, a_refused_append_runs_no_hook,
                wait_returns_at_once, wait_returns_later, many_waiters_of_one_feed, waits_can_be_dropped,
                closing_ends_waits,
                table_writes_run_hooks;
            tables: values_are_written_and_removed, tables_are_independent, scans_are_ordered, writes_are_all_or_nothing,
                preconditions_are_compared, one_writer_wins_a_precondition;
            concurrent: concurrent_appends_are_all_stored, one_writer_wins_a_compare,
                concurrent_writes_to_one_id, readers_see_whole_batches;
            lifecycle: reopening_restores_everything, a_closed_store_refuses,
                closing_acknowledges_pending_appends;
            model: agrees_with_the_model
        );
    };
    ($make:expr; $($group:ident: $($case:ident),+);+) => {
        $($(
            // The model's case calls `block_in_place`, which panics on a single-threaded runtime.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = $make;
                $crate::conformance::$group::$case(&backend).await;
            }
        )+)+
    };
}

/// WallClock that a test sets.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    pub fn at(time: &str) -> Self {
        Self(Arc::new(Mutex::new(time.parse().unwrap())))
    }

    pub fn set(&self, time: &str) {
        *self.0.lock() = time.parse().unwrap();
    }

    pub fn advance(&self, seconds: i64) {
        *self.0.lock() += SignedDuration::from_secs(seconds);
    }

    pub fn clock(&self) -> WallClock {
        let time = Arc::clone(&self.0);
        Arc::new(move || *time.lock())
    }
}

/// Opens a backend with a clock that stands still in 2024.
pub async fn open(backend: &dyn Backend) -> Arc<dyn Store> {
    backend.open(ManualClock::at("2024-01-01T00:00:00Z").clock()).await
}

pub fn feed(name: &str) -> FeedId {
    FeedId::new(name).unwrap()
}

pub fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Item with a title and JSON content.
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

/// Reads the whole log of a feed.
pub async fn log(store: &dyn Store, feed: &FeedId) -> Vec<Change> {
    store.read(feed, 0, ReadLimit { items: usize::MAX, bytes: usize::MAX }).await.unwrap()
}

pub fn seqs(changes: &[Change]) -> Vec<Seq> {
    changes.iter().map(|change| change.seq).collect()
}

pub fn ids(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| change.item.id.as_str()).collect()
}
