//! State of DiffDelta: feeds with unpublished changes, the global feed, and what other nodes wrote.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use towpath_proto::FeedId;

use crate::engine::{Append, Engine, Feed};
use crate::protocols::diffdelta::documents;
use crate::protocols::diffdelta::global::GlobalFeed;

/// Number of write counters. Chains share them by hash: a collision costs one rebuilt document.
// A counter for each chain would have to be kept for feeds that nobody reads.
const COUNTERS: usize = 256;

/// The engine's part of DiffDelta.
pub struct DiffDelta {
    pub(super) global: GlobalFeed,
    /// Feeds with appends that no document shows yet.
    dirty: Mutex<HashSet<FeedId>>,
    /// Feeds whose last mint repeated so much that the next one waits, and until when.
    paused: Mutex<HashMap<FeedId, Instant>>,
    /// Woken when a feed becomes dirty.
    pub(super) feed_dirty: Notify,
    /// True while a task publishes dirty feeds on this node.
    is_publishing: AtomicBool,
    /// Writes to chains, by the hash of the chain's name.
    writes: [AtomicU64; COUNTERS],
    /// Chains that were written and not read again.
    written: Mutex<HashSet<String>>,
}

/// The lock of a feed's chain: it grows one document at a time.
#[derive(Default)]
pub(super) struct ChainLock(pub(super) tokio::sync::Mutex<()>);

impl DiffDelta {
    /// Returns the engine's part of DiffDelta.
    pub fn of(engine: &Engine) -> &Arc<Self> {
        engine.extensions.get_or_insert_with(|| {
            Arc::new(Self {
                global: GlobalFeed::default(),
                dirty: Mutex::default(),
                paused: Mutex::default(),
                feed_dirty: Notify::new(),
                // In a cluster only the node with the role publishes.
                is_publishing: (!engine.is_shared()).into(),
                writes: [const { AtomicU64::new(0) }; COUNTERS],
                written: Mutex::default(),
            })
        })
    }

    /// Returns the lock of a feed's chain.
    pub(super) fn chain_lock(feed: &Feed) -> &tokio::sync::Mutex<()> {
        &feed.extensions.get_or_insert_with(ChainLock::default).0
    }

    /// Marks a feed for publishing.
    pub(super) fn mark_dirty(&self, feed: FeedId) {
        self.dirty.lock().insert(feed);
        self.feed_dirty.notify_one();
    }

    /// Takes the feeds that are to be published now. Returns also the time at which the first of the others is due.
    pub(super) fn take_due(&self) -> (Vec<FeedId>, Option<Instant>) {
        let mut paused = self.paused.lock();
        let now = Instant::now();
        paused.retain(|_, until| *until > now);
        let mut dirty = self.dirty.lock();
        let first = dirty.iter().filter_map(|feed| paused.get(feed)).min().copied();
        (dirty.extract_if(|feed| !paused.contains_key(feed)).collect(), first)
    }

    /// Leaves a feed's further appends for one mint after this time. Only the task that publishes after appends waits.
    pub(super) fn pause_minting(&self, feed: &FeedId, time: Duration) {
        self.paused.lock().insert(feed.clone(), Instant::now() + time);
    }

    /// Takes every feed that is to be published.
    pub(super) fn take_dirty(&self) -> Vec<FeedId> {
        self.dirty.lock().drain().collect()
    }

    /// Sets whether this node publishes dirty feeds. Without that, appends are not marked: the set would only grow.
    pub(super) fn set_publishing(&self, is_publishing: bool) {
        self.is_publishing.store(is_publishing, Ordering::Release);
    }

    fn counter(&self, chain: &str) -> &AtomicU64 {
        &self.writes[crc32fast::hash(chain.as_bytes()) as usize % COUNTERS]
    }

    /// Counts a write to a chain, also one that failed: its outcome may be unknown.
    pub(super) fn count_write(&self, chain: &str) {
        self.counter(chain).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that changes with every write to a chain. A document that was made from an older read must not
    /// stay in the cache.
    pub(super) fn writes(&self, chain: &str) -> u64 {
        self.counter(chain).load(Ordering::Acquire)
    }

    /// Marks a chain for reading.
    pub(super) fn mark_written(&self, chain: String) {
        self.written.lock().insert(chain);
    }

    /// Takes the chains that other nodes wrote.
    pub(super) fn take_written(&self) -> Vec<String> {
        self.written.lock().drain().collect()
    }
}

/// Marks a feed for publishing after an append. The runs of a polled source publish by themselves.
pub(crate) fn on_append(engine: &Arc<Engine>, feed: &Arc<Feed>, _: Append) {
    let diffdelta = DiffDelta::of(engine);
    // A mint here as well would split one run of a source into two documents.
    if !feed.is_polled() && diffdelta.is_publishing.load(Ordering::Acquire) {
        diffdelta.mark_dirty(feed.id().clone());
    }
}

/// Notes that a chain was written, by whichever node: its documents in the cache are old.
pub(crate) fn on_chain_written(engine: &Engine, chain: &str) {
    let diffdelta = DiffDelta::of(engine);
    // The counter comes first: a reader that caches an old document afterwards sees that it must drop it.
    diffdelta.count_write(chain);
    documents::forget(engine, chain);
    diffdelta.mark_written(chain.to_owned());
}
