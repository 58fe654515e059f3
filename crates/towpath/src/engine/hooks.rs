//! Calls that follow a write to the store, in a fixed order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::{Appended, FeedSummary, Table, TableHook};

use crate::engine::append_counts::AppendCounts;
use crate::engine::{Engine, Feed, FeedRemovedHook};
use crate::store_error::StoreError;

/// An append that is durable and not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Append {
    /// Last position of the feed with it.
    pub seq: Seq,
    /// Time of the append by this machine's clock.
    pub at: Timestamp,
}

/// Called after an append to a feed's log, on the store's thread: it must return at once.
pub type FeedAppendHook = fn(&Arc<Engine>, &Arc<Feed>, Append);

/// Called on the store's thread after a write to a table of which its caller does not know: one of another node, or one
/// that seemed to have failed.
pub type TableWriteHook = fn(&Arc<Engine>, Table, &[u8]);

/// Calls after writes to the store, and after removals of feeds. Each list runs in its order.
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// Run before the feed's head moves: a reader that sees the new head finds what these hooks did.
    pub before_head: &'static [FeedAppendHook],
    /// Run after the feed's head has moved.
    pub after_head: &'static [FeedAppendHook],
    /// Run after a write to a table of which its caller does not know.
    pub table_write: &'static [TableWriteHook],
    /// Run after a feed was removed.
    pub feed_removed: &'static [FeedRemovedHook],
}

impl Engine {
    /// Keeps every feed's head current and runs the hooks, before an append is acknowledged.
    ///
    /// So a document that was built before the append is not served after it.
    pub fn listen(self: &Arc<Self>, hooks: Hooks) {
        // An engine listens once.
        let _ = self.removal_hooks.set(hooks.feed_removed);
        // Weak: the store keeps the closure and the engine keeps the store, so a strong one would leak both.
        let engine = Arc::downgrade(self);
        self.store.on_append(Arc::new(move |id: &FeedId, appended: &Appended| {
            let Some(engine) = engine.upgrade() else { return };
            engine.metrics.appends.inc();
            if let Some(feed) = engine.feed_of_log(id) {
                engine.appended(&feed, appended, hooks);
            }
        }));
        let engine = Arc::downgrade(self);
        let hook: TableHook = Arc::new(move |table, key| {
            if let Some(engine) = engine.upgrade() {
                hooks.table_write.iter().for_each(|hook| hook(&engine, table, key));
            }
        });
        // A single process makes every write to the tables itself, and its caches know of those that succeeded.
        if self.is_shared() {
            self.store.on_table_write(hook);
        } else {
            self.store.on_late_write(hook);
        }
    }

    fn appended(self: &Arc<Self>, feed: &Arc<Feed>, appended: &Appended, hooks: Hooks) {
        let append = Append { seq: appended.head.seq, at: self.now() };
        // Before the head moves: a reader that sees the head knows at least that time.
        feed.set_last_append(append.at, appended.head.modified);
        feed.set_live(appended.head.live);
        AppendCounts::of(feed).add(appended.ops);
        hooks.before_head.iter().for_each(|hook| hook(self, feed, append));
        feed.head.store(append.seq, Ordering::Release);
        // Waiters are woken here. Woken earlier, they would read the old head and go back to sleep.
        hooks.after_head.iter().for_each(|hook| hook(self, feed, append));
    }

    /// Moves heads to appends of other nodes that came between `open` and [`Self::listen`]. Returns what moved.
    ///
    /// # Errors
    ///
    /// A store that cannot be read.
    pub async fn catch_up_heads(&self) -> Result<Vec<(Arc<Feed>, Append)>, StoreError> {
        let mut moved = Vec::new();
        for FeedSummary { feed: id, head, appended } in self.store.heads().await? {
            let Some(feed) = self.feed_of_log(&id) else { continue };
            // A hook may have moved the head past this summary by now; a plain store would move it back.
            if feed.head.fetch_max(head.seq, Ordering::AcqRel) < head.seq {
                feed.set_last_append(appended, head.modified);
                feed.set_live(head.live);
                moved.push((feed, Append { seq: head.seq, at: appended }));
            }
        }
        Ok(moved)
    }
}
