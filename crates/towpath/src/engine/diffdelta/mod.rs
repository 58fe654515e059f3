//! Every feed as DiffDelta: chains of documents kept beside the log, and the global feed over all of them.
//!
//! A source's run ends in [`publish`], whatever it found. Feeds that are published to have no runs: each time
//! their log moves they are published, many changes at a time where they come fast ([`run`]).

mod global;
mod kept;
pub mod served;
mod source;
pub(crate) mod tree;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::publish::Health;
use towpath_store::StoreError;

use super::roles::{self, DIFFDELTA, Lease};
use super::{Engine, Feed};
use crate::stop::{Stop, stopped};

/// The shortest time between two mints of a feed that is published to.
const SHORTEST: Duration = Duration::from_millis(250);
/// When a feed is published again that could not be written for now.
const AGAIN: Duration = Duration::from_secs(2);
/// How long the global feed waits for more sources to finish their runs.
const TOGETHER: Duration = Duration::from_millis(100);
/// The shortest time between two documents of the global feed that say nothing new.
const CARRIES: Duration = Duration::from_secs(10);
/// The same where each is written to a cluster's log, which keeps it.
const SHARED_CARRIES: Duration = Duration::from_secs(60);

/// How long it may take to get a role that nobody has, or a node had that ran on the same folder.
const TAKING: Duration = Duration::from_secs(5);

/// What the engine holds for DiffDelta.
pub struct DiffDelta {
    global: global::GlobalFeed,
    moved: Mutex<HashSet<FeedId>>,
    bell: Notify,
    /// Whether somebody takes what moved.
    is_watched: AtomicBool,
}

/// How a source's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// A poll succeeded, whether or not it found anything.
    Polled,
    /// Somebody published to the feed, or nobody yet: a feed without a source is well from the start.
    Moved,
    /// A poll failed.
    Failed {
        /// For programs: `HTTP_503`, `TIMEOUT`, …
        code: String,
        /// The status, where there was one.
        http_status: Option<u16>,
    },
    /// The source is not polled any more.
    Disabled,
}

impl Run {
    fn apply(&self, health: &mut Health, now: Timestamp) {
        match self {
            Self::Polled | Self::Moved => health.succeeded(now),
            Self::Failed { code, http_status } => health.failed(code.clone(), *http_status),
            Self::Disabled => health.disabled = true,
        }
    }

    fn is_success(&self) -> bool {
        matches!(self, Self::Polled | Self::Moved)
    }

    /// Whether the run is told of although nothing changed.
    fn is_told(&self) -> bool {
        *self != Self::Moved
    }
}

/// Takes a run of a source into its chain, and tells the global feed.
pub async fn publish(engine: &Arc<Engine>, feed: &Arc<Feed>, run: Run) -> Result<(), StoreError> {
    let _alone = feed.publishing.lock().await;
    let outcome = source::run(engine, feed, &run).await?;
    // Where others publish as well, documents are made from what is stored, on every node alike.
    let Some(published) = outcome.filter(|_| !engine.is_shared()) else { return Ok(()) };
    let name = feed.id().as_str();
    let minted = published.minted.then_some(published.chain.minted_seq);
    served::put(engine, name, &published.chain, published.head, published.latest);
    if let Some(seq) = minted {
        engine.sup.shown_late(feed, seq, engine.now());
    }
    Ok(())
}

impl DiffDelta {
    /// Nothing noted; `is_watched` where what moves is to be noted from the start.
    pub(super) fn new(is_watched: bool) -> Self {
        let global = global::GlobalFeed::default();
        Self { global, moved: Mutex::default(), bell: Notify::new(), is_watched: is_watched.into() }
    }

    /// Notes that a feed's log moved. Called on the store's thread.
    pub(super) fn note(&self, feed: &Feed) {
        if !feed.is_polled() && self.is_watched.load(Ordering::Acquire) {
            self.moved.lock().insert(feed.id().clone());
            self.bell.notify_one();
        }
    }

    /// The same for one that could not be published for now.
    fn note_again(&self, feed: FeedId) {
        self.moved.lock().insert(feed);
        self.bell.notify_one();
    }

    fn take(&self) -> Vec<FeedId> {
        self.moved.lock().drain().collect()
    }
}

/// Publishes feeds as they move, and the global feed, until `stop` turns true. [`begin`] comes before where nobody else
/// could publish.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    engine.diffdelta.is_watched.store(true, Ordering::Release);
    if engine.is_shared() {
        engine.diffdelta.global.take_over(lease).await;
        if let Err(e) = begin(&engine).await {
            tracing::error!("cannot publish: {e}");
        }
    }
    tokio::join!(run_feeds(&engine, stop.clone()), run_global(&engine, stop));
    if engine.is_shared() {
        engine.diffdelta.is_watched.store(false, Ordering::Release);
        engine.diffdelta.take();
        engine.diffdelta.global.hand_over().await;
    }
}

/// Reads every source's chain, where another node may be the one that publishes.
pub async fn look(engine: &Arc<Engine>) -> Result<(), StoreError> {
    for feed in engine.feeds().into_iter().filter(|feed| feed.is_listed()) {
        engine.diffdelta.global.look(engine, &feed).await?;
    }
    Ok(())
}

/// Takes in that a chain was written, by whichever node.
pub(super) async fn take_in(engine: &Arc<Engine>, name: &str) -> Result<(), StoreError> {
    let Some(feed) = engine.feed(name).filter(|feed| feed.is_listed()) else { return Ok(()) };
    if let Some(seq) = engine.diffdelta.global.look(engine, &feed).await? {
        engine.sup.shown_late(&feed, seq, engine.now());
    }
    Ok(())
}

/// Publishes everything that is not published yet, once. Where a node of the cluster has this role, it does. With
/// `in_doubt` it is waited for a moment whether the node that had it last is still there.
pub async fn settle(engine: &Arc<Engine>, in_doubt: bool) -> Result<(), StoreError> {
    if !engine.is_shared() {
        return settle_now(engine).await;
    }
    if !in_doubt && !roles::is_free(engine, DIFFDELTA).await? {
        return Ok(());
    }
    let mut holding = engine.store.hold(DIFFDELTA);
    let Ok(lease) = timeout(TAKING, holding.held()).await else { return Ok(()) };
    engine.diffdelta.global.take_over(lease).await;
    let settled = settle_now(engine).await;
    engine.diffdelta.global.hand_over().await;
    settled
}

async fn settle_now(engine: &Arc<Engine>) -> Result<(), StoreError> {
    begin(engine).await?;
    publish_moved(engine).await;
    if engine.is_shared() {
        // What was minted just now: nobody watches the replica for it.
        look(engine).await?;
    }
    engine.diffdelta.global.run(engine).await
}

/// Publishes what happened while nobody published: appends to a folder, a crash between an append and its mint.
///
/// To be done before anybody is answered: until then no document shows how a source is. A feed that cannot be
/// published does not keep the others from it; the first such error is returned.
pub async fn begin(engine: &Arc<Engine>) -> Result<(), StoreError> {
    engine.diffdelta.global.load(engine).await?;
    let mut result = Ok(());
    for feed in engine.feeds().into_iter().filter(|feed| !feed.is_filter()) {
        let published = begin_feed(engine, &feed).await;
        result = result.and(published);
    }
    engine.diffdelta.global.run(engine).await?;
    result
}

async fn begin_feed(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    let run = match &feed.config.source {
        Some(source) if !source.enabled => Run::Disabled,
        // Never polled with success: nothing to tell yet.
        Some(_) if engine.store.head(feed.id()).await?.seq == 0 => return Ok(()),
        _ => Run::Moved,
    };
    publish(engine, feed, run).await
}

async fn run_feeds(engine: &Arc<Engine>, stop: Stop) {
    loop {
        tokio::select! {
            () = engine.diffdelta.bell.notified() => {}
            () = stopped(&stop) => break,
        }
        publish_moved(engine).await;
        tokio::time::sleep(SHORTEST).await;
    }
    // What was acknowledged is published before the end, too.
    publish_moved(engine).await;
}

async fn publish_moved(engine: &Arc<Engine>) {
    for id in engine.diffdelta.take() {
        let Some(feed) = engine.feed(id.as_str()) else { continue };
        if let Err(e) = publish(engine, &feed, Run::Moved).await {
            tracing::error!(feed = %id, "cannot publish: {e}");
            if let StoreError::Unavailable { .. } | StoreError::Write(_) = e {
                let engine = engine.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(AGAIN).await;
                    engine.diffdelta.note_again(id);
                });
            }
        }
    }
}

async fn run_global(engine: &Arc<Engine>, stop: Stop) {
    let global = &engine.diffdelta.global;
    let carries = if engine.is_shared() { SHARED_CARRIES } else { CARRIES };
    let mut last = Instant::now();
    let mut waiting = false;
    loop {
        let due = last + carries;
        tokio::select! {
            () = global.moved() => tokio::time::sleep(TOGETHER).await,
            () = tokio::time::sleep_until(due), if waiting => {}
            () = stopped(&stop) => break,
        }
        waiting = !global.has_news().await && Instant::now() < due;
        if waiting {
            continue;
        }
        last = Instant::now();
        if let Err(e) = global.run(engine).await {
            report(&e);
            waiting = true;
        }
    }
    if let Err(e) = global.run(engine).await {
        report(&e);
    }
}

fn report(error: &StoreError) {
    match error {
        StoreError::Condition => tracing::info!("another node makes the global feed"),
        error => tracing::error!("cannot publish the global feed: {error}"),
    }
}
