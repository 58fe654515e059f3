//! Publishing what came while no server ran, beside the first requests.
//!
//! Tens of thousands of new feeds take seconds, so a server answers meanwhile. A feed's documents are published before
//! they are read ([`Recovery::publish_first`]). Documents over all feeds wait a moment, then say when to ask again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::timeout;
use towpath_proto::diffdelta::publish::DocumentChain;

use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::publish::{publish, publish_global};
use crate::protocols::diffdelta::run::Run;
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::sup::Sup;
use crate::store_error::StoreError;

/// Number of feeds that are published at the same time.
// Writes that wait for the same sync share it, and more at once would only take memory.
pub(super) const AT_ONCE: usize = 256;
/// Time that a request for a document over all feeds waits for them. Most servers have started by then.
const WAIT: Duration = Duration::from_secs(2);
/// Time after which such a request may come again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Progress of the recovery of a server that answers meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// True from [`Recovery::begin`] until the feeds are published.
    is_running: watch::Sender<bool>,
    published: AtomicUsize,
}

impl Recovery {
    /// Returns the recovery of an engine.
    pub(crate) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Begins: requests are answered from now on, and [`recover`] follows.
    pub(crate) fn begin(&self) {
        self.is_running.send_replace(true);
    }

    /// Returns the number of feeds that are published so far; `None` once all are.
    pub(crate) fn progress(&self) -> Option<usize> {
        self.is_running.borrow().then(|| self.published.load(Ordering::Relaxed))
    }

    /// Returns once all feeds are published.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_running.subscribe().wait_for(|is_running| !is_running).await;
    }

    /// Waits for all feeds, for a document that shows them.
    ///
    /// # Errors
    ///
    /// Feeds that take longer, with the time after which to ask again.
    pub(super) async fn wait(&self) -> Result<(), StoreError> {
        timeout(WAIT, self.ended()).await.map_err(|_| StoreError::Unavailable {
            reason: "the server is starting, and not all feeds are published".to_owned(),
            retry_after: RETRY_AFTER,
        })
    }

    /// Publishes a feed before its documents are read, if its turn may not have come.
    pub(super) async fn publish_first(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
        match Self::of(engine).progress() {
            Some(_) => recover_feed(engine, feed).await,
            None => Ok(()),
        }
    }
}

/// Publishes changes that came while no server ran, or just before a crash.
///
/// A feed that fails does not stop the others; the first error is returned.
///
/// # Errors
///
/// [`StoreError`] if a chain cannot be read or written.
pub async fn recover(engine: &Arc<Engine>) -> Result<(), StoreError> {
    let recovered = recover_all(engine).await;
    // After an error, too: what can be served is served, and the rest is in the health of the server.
    Recovery::of(engine).is_running.send_replace(false);
    recovered
}

async fn recover_all(engine: &Arc<Engine>) -> Result<(), StoreError> {
    // Without the global feed's state every feed is looked at: nothing else would publish them before their next append.
    let loaded = DiffDelta::of(engine).global.load(engine).await;
    let chains = DiffDelta::of(engine).global.sources().await;
    let (now, mut feeds) = (engine.now(), Vec::new());
    for feed in engine.feeds().into_iter().filter(|feed| !feed.is_filter()) {
        match chains.get(feed.id()).filter(|chain| is_published(&feed, chain)) {
            Some(chain) => {
                Sup::of(engine).on_recovered_document(&feed, chain.minted_seq, chain.generated_at, now);
            }
            None => feeds.push(feed),
        }
    }
    // Kept, they would be copied when the first of them changes.
    drop(chains);
    Recovery::of(engine)
        .published
        .fetch_add(engine.feed_count().saturating_sub(feeds.len()), Ordering::Relaxed);
    // Many at a time, whose writes share a sync: one for each of thirty thousand new feeds would take minutes.
    let recovering = stream::iter(feeds.into_iter().map(|feed| {
        async move {
            let done = recover_feed(engine, &feed).await;
            if done.is_err() && is_on(&feed) && !feed.is_polled() {
                // No append may come for long, and nothing else would publish it once the disk has room again.
                DiffDelta::of(engine).mark_dirty(feed.id().clone());
            }
            Recovery::of(engine).published.fetch_add(1, Ordering::Relaxed);
            done
        }
        .boxed()
    }));
    // `and` keeps the first error.
    let recovering = recovering.buffer_unordered(AT_ONCE);
    let result = recovering.fold(loaded, |result, done| async move { result.and(done) }).await;
    result.and(publish_global(engine).await.map(|_| ()))
}

/// Returns true if a feed's chain has all of its changes, so that there is nothing to publish.
fn is_published(feed: &Feed, chain: &DocumentChain) -> bool {
    // A disabled source's chain says so, and that may be new.
    is_on(feed) && !chain.is_unpublished() && chain.minted_seq >= feed.head.load(Ordering::Acquire)
}

/// Returns false for a feed whose source is disabled.
fn is_on(feed: &Feed) -> bool {
    feed.config.source.as_ref().is_none_or(|source| source.enabled)
}

async fn recover_feed(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    // A disabled source is never polled, so no other run would show that it is disabled.
    let run = match &feed.config.source {
        Some(source) if !source.enabled => Run::Disabled,
        // Never polled with success: there is nothing to publish.
        Some(_) if engine.store.head(feed.id()).await?.seq == 0 => return Ok(()),
        _ => Run::Moved,
    };
    publish(engine, feed, run).await
}
