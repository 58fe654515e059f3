//! State of paging: feeds with appends that are on no page yet, and what follows from a sealed or a removed page.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_proto::replication::publish::MultipartPage;

use crate::engine::{Append, Engine, Feed};
use crate::protocols::pages::feed_cleanup::VersionedCleanup;
use crate::protocols::pages::table::SealedPage;

/// The engine's part of paging.
pub struct Pages {
    /// Feeds with appends since the last look.
    dirty: Mutex<HashSet<FeedId>>,
    /// Woken when a feed becomes dirty.
    pub(super) feed_dirty: Notify,
    /// True while a task seals pages on this node.
    is_sealing: AtomicBool,
    listeners: OnceLock<&'static [PageListener]>,
}

/// A protocol that serves pages, called when they change.
#[derive(Debug, Clone, Copy)]
pub struct PageListener {
    /// Called with a page that was just sealed, and its body.
    pub(crate) sealed: fn(&Engine, &Arc<Feed>, &SealedPage, &MultipartPage, VersionedCleanup),
    /// Called with the number of a page that was removed, or lost its link to the page before.
    pub(crate) changed: fn(&Engine, &Feed, u64),
}

impl Pages {
    /// Returns the engine's part of paging.
    pub fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(|| Self {
            dirty: Mutex::default(),
            feed_dirty: Notify::new(),
            // In a cluster only the node with the role seals. A static tree leaves it to the server.
            is_sealing: (!engine.is_shared() && !engine.is_tree).into(),
            listeners: OnceLock::new(),
        })
    }

    /// Sets the protocols that serve pages. Only the first call counts.
    pub(crate) fn set_listeners(&self, listeners: &'static [PageListener]) {
        let _ = self.listeners.set(listeners);
    }

    pub(super) fn listeners(&self) -> &'static [PageListener] {
        self.listeners.get().copied().unwrap_or_default()
    }

    pub(super) fn take_dirty(&self) -> Vec<FeedId> {
        self.dirty.lock().drain().collect()
    }

    /// Marks a feed for sealing, if this node seals pages.
    pub(super) fn mark_dirty(&self, feed: &FeedId) {
        if self.is_sealing.load(Ordering::Acquire) {
            self.dirty.lock().insert(feed.clone());
            self.feed_dirty.notify_one();
        }
    }

    /// Sets whether this node seals pages. Without that, appends are not marked: the set would only grow.
    pub(super) fn set_sealing(&self, is_sealing: bool) {
        self.is_sealing.store(is_sealing, Ordering::Release);
    }
}

/// Marks a feed for sealing after an append.
pub(crate) fn on_append(engine: &Arc<Engine>, feed: &Arc<Feed>, _: Append) {
    // Only a note: reading and sealing would hold up the store's thread.
    Pages::of(engine).mark_dirty(feed.id());
}
