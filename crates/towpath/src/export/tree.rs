//! A static tree: its target, its state, and the writes to both.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use http::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::sup::publish::RecentUpdates;
use towpath_store::TableWrite;

use crate::engine::Engine;
use crate::engine::roles::{self, Lease, conditions};
use crate::export::summary::ExportCounters;
use crate::export::target::{Pieces, Target, TargetError};
use crate::export::tree_document::TreeDocument;
use crate::export::tree_state::TreeStates;
use crate::protocols::at_base_url;
use crate::store_error::StoreError;

/// Number of feeds, and of documents of each, that are exported at the same time.
pub(super) const CONCURRENCY: usize = 8;
/// Path of the file with the tree's name.
const NAME: &str = "/.towpath/tree.json";

/// Reason why an export stopped.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The target failed, or the network on the way to it.
    #[error("cannot export: {0}")]
    Target(#[from] TargetError),
    /// The store failed.
    #[error("cannot export: {0}")]
    Store(#[from] StoreError),
    /// The feed changes faster than it is exported. The next export includes it.
    #[error("the feed {0} moved on while it was exported")]
    Moved(FeedId),
    /// The feed is complete and has more items than one document can hold.
    #[error("the feed {0} is complete = true and has more items than one document can hold")]
    TooLarge(FeedId),
}

/// Feeds that an export includes.
#[derive(Debug, Clone)]
pub enum ExportedFeeds {
    /// All feeds.
    All,
    /// These feeds, which have new changes.
    These(Vec<FeedId>),
}

/// An open static tree.
pub struct Tree {
    /// Engine with the tree's addresses.
    pub(super) engine: Arc<Engine>,
    pub(super) target: Arc<dyn Target>,
    pub(super) states: TreeStates,
    pub(super) lease: Lease,
    /// Counts of the running export.
    pub(super) counted: ExportCounters,
    /// Feeds of the tree and their last changes; `None` before all states were read.
    pub(super) contents: Mutex<Option<TreeContents>>,
    /// Feeds that the next export must include.
    pub(super) late: Mutex<Vec<FeedId>>,
    /// Feeds whose changes were put, with the last one, and that hubs may be told of.
    pub(super) moved: Mutex<Vec<(FeedId, Seq)>>,
    /// Told how many feeds of how many are exported.
    pub(super) on_progress: Option<OnProgress>,
}

/// Called with the number of feeds that are exported, and of all.
pub type OnProgress = Box<dyn Fn(u64, u64) + Send + Sync>;

#[derive(Default)]
pub(super) struct TreeContents {
    pub(super) feeds: HashSet<FeedId>,
    pub(super) moves: RecentUpdates,
    /// Time of the last change in any feed.
    pub(super) last_move: Timestamp,
}

/// Returns the name of the tree at a target. Without one, a new tree is begun.
///
/// The name is that of the role: two nodes that export to the same target agree on it.
///
/// # Errors
///
/// A target that cannot be read or written.
pub async fn name_of(target: &dyn Target) -> Result<String, ExportError> {
    // Read again after the write: of two writers, the one that comes first names the tree.
    loop {
        let known = target.read(NAME).await?;
        let is_there = known.is_some();
        if let Some(name) = known.and_then(|body| parse_name(&body)) {
            return Ok(name);
        }
        // Not secret, so the fast generator will do: the name only has to differ from other trees'.
        let name = format!("{:032x}", fastrand::u128(..));
        let body = Bytes::from(json!({ "tree": name }).to_string());
        let document = TreeDocument { path: NAME.into(), body, headers: HeaderMap::new() };
        match is_there {
            // A name that cannot be parsed is replaced.
            true => drop(target.put(&document).await?),
            false => drop(target.create(&document).await?),
        }
        // Before the name is used: after a crash the tree must not get another one, and with it another role.
        target.sync().await?;
    }
}

/// Returns the name of the tree at a target; `None` if there is none, or its name cannot be read.
///
/// # Errors
///
/// A target that cannot be read.
pub(super) async fn stored_name(target: &dyn Target) -> Result<Option<String>, ExportError> {
    Ok(target.read(NAME).await?.and_then(|body| parse_name(&body)))
}

fn parse_name(body: &[u8]) -> Option<String> {
    let known: Value = serde_json::from_slice(body).ok()?;
    known["tree"].as_str().filter(|name| is_name(name)).map(str::to_owned)
}

impl Tree {
    /// Opens the tree of this name at a target, under the lease of its role.
    ///
    /// `base_url` is the address that its readers use, without a slash at its end.
    ///
    /// # Errors
    ///
    /// A target that cannot be written.
    pub async fn open(
        engine: &Engine,
        target: Arc<dyn Target>,
        name: &str,
        base_url: &str,
        lease: Lease,
    ) -> Result<Self, ExportError> {
        // Before the first put: the last holder of the role may still be writing.
        target.take_over().await?;
        Ok(Self {
            engine: at_base_url(engine, base_url),
            target,
            states: TreeStates::of(name),
            lease,
            counted: ExportCounters::default(),
            contents: Mutex::default(),
            late: Mutex::default(),
            moved: Mutex::default(),
            on_progress: None,
        })
    }

    /// Tells how far an export is.
    #[must_use]
    pub fn with_progress(self, on_progress: OnProgress) -> Self {
        Self { on_progress: Some(on_progress), ..self }
    }

    /// Stores states of the tree, unless another node has the role.
    pub(super) async fn write(&self, writes: Vec<TableWrite>) -> Result<(), ExportError> {
        Ok(self.engine.store.write(writes, conditions(&self.lease)).await.map_err(StoreError::from)?)
    }

    pub(super) async fn put(&self, document: &TreeDocument) -> Result<(), ExportError> {
        // A put has no precondition, unlike writes to the store, so the lease is checked right before.
        roles::check(&self.lease)?;
        let bytes = self.target.put(document).await?;
        self.counted.written.fetch_add(1, Ordering::Relaxed);
        self.counted.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Puts a document whose body is too large for memory.
    pub(super) async fn put_pieces(
        &self,
        document: &TreeDocument,
        pieces: Pieces,
    ) -> Result<(), ExportError> {
        // Checked once for the whole body: a lease that ends meanwhile is found by the next put.
        roles::check(&self.lease)?;
        let bytes = self.target.put_pieces(document, pieces).await?;
        self.counted.written.fetch_add(1, Ordering::Relaxed);
        self.counted.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn remove(&self, path: &str) -> Result<(), ExportError> {
        roles::check(&self.lease)?;
        self.target.remove(path).await?;
        self.counted.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a document that will not come back.
    pub(super) async fn remove_for_good(&self, path: &str) -> Result<(), ExportError> {
        roles::check(&self.lease)?;
        self.target.remove_for_good(path).await?;
        self.counted.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the feeds that the next export must include: they changed during this one, or DiffDelta has not published
    /// their last changes yet.
    pub fn take_late(&self) -> Vec<FeedId> {
        std::mem::take(&mut *self.late.lock())
    }

    /// Takes the feeds whose changes the tree shows since the last call, with their last positions. The first call returns
    /// every feed of the tree: what an earlier process did not tell is told then.
    pub(crate) fn take_moved(&self) -> Vec<(FeedId, Seq)> {
        std::mem::take(&mut *self.moved.lock())
    }

    pub(super) fn count_unchanged(&self, documents: u64) {
        self.counted.unchanged.fetch_add(documents, Ordering::Relaxed);
    }

    /// Returns true if a feed is in the tree.
    pub(super) fn has(&self, id: &FeedId) -> bool {
        self.contents.lock().as_ref().is_some_and(|there| there.feeds.contains(id))
    }
}

/// Runs all futures, some at a time, until the end or the first error.
pub(super) async fn together<'a>(
    all: impl IntoIterator<Item = BoxFuture<'a, Result<(), ExportError>>>,
) -> Result<(), ExportError> {
    let (mut all, mut under_way) = (all.into_iter(), FuturesUnordered::new());
    loop {
        under_way.extend(all.by_ref().take(CONCURRENCY - under_way.len()));
        match under_way.next().await {
            Some(done) => done?,
            None => return Ok(()),
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())
}
