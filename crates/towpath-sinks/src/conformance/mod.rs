//! Tests that every kind of sink passes, against a model in memory.
//!
//! A kind implements [`SinkFixture`] and calls [`conformance_tests!`](crate::conformance_tests) in a test file of its own.

mod model;
mod samples;
mod suite;

use std::collections::BTreeMap;

use async_trait::async_trait;
use towpath_client::Sink;
use towpath_proto::Item;
use towpath_proto::follow::Followed;

pub use self::suite::*;

/// Live items by feed and id.
pub type LiveItems = BTreeMap<(String, String), Item>;

/// An entry of the history: feed, operation, id and position; the last two are empty for a reset.
pub type HistoryEntry = (String, String, String, String);

/// A destination of one kind, empty at first.
#[async_trait]
pub trait SinkFixture: Send {
    /// Creates a sink on the destination, as a new process does.
    async fn sink(&mut self) -> Box<dyn Sink>;

    /// Reads the live items, as a user of the destination does. Times and content types are compared too.
    async fn items(&mut self) -> LiveItems;

    /// Reads the history in its order; `None` if the kind has none.
    async fn history(&mut self) -> Option<Vec<HistoryEntry>> {
        None
    }

    /// Makes the destination unavailable, or available again. Returns false if the kind cannot.
    async fn set_available(&mut self, _is_available: bool) -> bool {
        false
    }

    /// Returns false if the destination refuses U+0000 in text.
    fn takes_nul(&self) -> bool {
        true
    }

    /// Returns a change that the destination refuses, if there is one.
    fn poison(&self) -> Option<Followed> {
        None
    }

    /// Number of refused items that the destination itself keeps.
    async fn refused(&mut self) -> usize {
        0
    }
}

/// Defines a test function for each case of the suite. The argument makes a fixture.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_tests!(@each $make;
            changes_become_the_current_state,
            a_patch_applies_to_the_held_item,
            a_reset_removes_the_items_of_its_feed,
            several_sources_share_the_destination,
            a_new_process_resumes_at_the_checkpoint,
            a_repeated_unit_takes_effect_once,
            a_newer_version_at_one_position_is_kept,
            refused_items_are_set_aside,
            an_unavailable_destination_loses_nothing,
            huge_items_are_kept,
            hostile_ids_are_kept_apart,
            random_histories_with_kills_end_in_the_model,
        );
    };
    (@each $make:expr; $($case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let mut fixture = $make;
                $crate::conformance::$case(&mut fixture).await;
            }
        )*
    };
}
