//! Every document that can live without a server, as a static tree: in a folder, or on object storage.
//!
//! The documents are the server's own, with the tree's addresses. What was put is remembered beside the log
//! ([`state`]), so that an export touches what changed only, and looks at nothing of a feed that stands still but a
//! few records.
//!
//! No reader ever finds a broken link: what is led to is put before what leads there, and removed after it. That
//! holds for each feed by itself ([`feed`]), and then for the documents over all feeds ([`around`]).

mod around;
mod document;
mod feed;
mod folder;
mod keep;
mod made;
mod objects;
mod paths;
mod served_by;
mod state;
mod summary;
pub mod target;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use towpath_proto::FeedId;
use towpath_proto::sup::publish::RecentMoves;
use towpath_store::{StoreError, Write};

use super::roles::{self, Lease, conditions};
use super::{Engine, Feed};
use feed::Staged;
use state::{Exported, States};
use summary::Counted;
use target::{Target, TargetError};

pub use document::TreeDocument;
pub use folder::Folder;
pub use keep::{Kept, keep};
pub use objects::Objects;
pub use summary::Summary;

/// How many feeds are looked at or put at the same time, and how many documents of each.
const TOGETHER: usize = 8;
/// How many feeds share a sync, and how many bytes of their documents are in memory until then.
const GROUP: usize = 256;
const GROUP_BYTES: usize = 32 << 20;
/// How often a feed is begun anew because it moved on while it was exported.
const TRIES: usize = 5;
/// Where the tree has its name.
const NAME: &str = "/.towpath/tree.json";

/// Why an export does not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The place's fault, or the network's on the way to it.
    #[error("cannot export: {0}")]
    Target(#[from] TargetError),
    /// The data folder's fault.
    #[error("cannot export: {0}")]
    Store(#[from] StoreError),
    /// A feed moves on faster than it is exported; it is left for the next time.
    #[error("the feed {0} moved on while it was exported")]
    Moved(FeedId),
    /// A complete feed with more than one document can hold.
    #[error("the feed {0} is complete = true and has more items than one document can hold")]
    TooLarge(FeedId),
}

/// Which feeds are looked at.
#[derive(Debug, Clone)]
pub enum Which {
    /// All of them.
    All,
    /// Those that moved.
    These(Vec<FeedId>),
}

/// A tree that is being kept.
pub struct Tree {
    /// As the tree's readers see it.
    engine: Arc<Engine>,
    target: Arc<dyn Target>,
    states: States,
    lease: Lease,
    /// What the export under way did.
    counted: Counted,
    /// The feeds that are there, and when they moved; none before all were looked at.
    there: Mutex<Option<There>>,
    /// Feeds that are to be looked at again.
    late: Mutex<Vec<FeedId>>,
}

#[derive(Default)]
struct There {
    feeds: HashSet<FeedId>,
    moves: RecentMoves,
    /// When the last of them moved.
    last_move: Timestamp,
}

/// The name of the tree at a place; where there is none, one is begun. Whoever keeps this tree says the same.
///
/// # Errors
///
/// A place that cannot be read from or written to.
pub async fn name_of(target: &dyn Target) -> Result<String, ExportError> {
    loop {
        let known = target.read(NAME).await?;
        let is_there = known.is_some();
        let known = known.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        let name = known.as_ref().and_then(|known| known["tree"].as_str()).filter(|name| is_name(name));
        if let Some(name) = name {
            return Ok(name.to_owned());
        }
        let name = format!("{:032x}", fastrand::u128(..));
        let body = Bytes::from(json!({ "tree": name }).to_string());
        let document = TreeDocument { path: NAME.into(), body, headers: HeaderMap::new() };
        match is_there {
            // What cannot be read is replaced.
            true => drop(target.put(&document).await?),
            false => drop(target.create(&document).await?),
        }
        target.settle().await?;
    }
}

impl Tree {
    /// Opens the tree of this name at a place. `base_url` is the address at which its readers find it, without a slash
    /// at its end. What is done to it is done under the lease of its role.
    ///
    /// # Errors
    ///
    /// A place that cannot be written to.
    pub async fn open(
        engine: &Engine,
        target: Arc<dyn Target>,
        name: &str,
        base_url: &str,
        lease: Lease,
    ) -> Result<Self, ExportError> {
        target.take_over().await?;
        Ok(Self {
            engine: engine.for_tree(base_url),
            target,
            states: States::of(name),
            lease,
            counted: Counted::default(),
            there: Mutex::default(),
            late: Mutex::default(),
        })
    }

    /// Brings the tree to where the feeds are now. Where it ends early, what it did stays, and no link is broken.
    ///
    /// # Errors
    ///
    /// The place's or the store's. A feed's own trouble is in [`Summary::failed`], and keeps no other from being
    /// exported.
    pub fn export(&self, which: Which) -> BoxFuture<'_, Result<Summary, ExportError>> {
        async move {
            let begun = Instant::now();
            let mut summary = Summary::default();
            // What an export counted that failed is not this one's.
            self.counted.take(&mut Summary::default());
            let is_first = self.there.lock().is_none();
            let is_whole = is_first || matches!(which, Which::All);
            let feeds = match which {
                Which::These(ids) if !is_first => {
                    ids.iter().filter_map(|id| self.engine.feed(id.as_str())).collect()
                }
                _ => self.engine.feeds(),
            };
            let feeds: Vec<Arc<Feed>> = feeds.into_iter().filter(|feed| feed.is_listed()).collect();
            if is_first {
                self.look_around(&feeds).await?;
            }
            self.export_feeds(feeds, &mut summary).await?;
            self.export_around(&mut summary).await?;
            if is_whole {
                self.drop_feeds(&mut summary).await?;
            }
            self.counted.take(&mut summary);
            summary.took = begun.elapsed();
            Ok(summary)
        }
        .boxed()
    }

    /// Reads which feeds are there, and when they moved. What an export that was killed did not tell of moves now.
    async fn look_around(&self, feeds: &[Arc<Feed>]) -> Result<(), ExportError> {
        let (store, now) = (self.engine.store.as_ref(), self.engine.now());
        let told = self.states.around(store).await?.told;
        let mut there = There::default();
        let mut moves = Vec::new();
        for feed in feeds {
            let mut known = self.states.load(store, feed.id()).await?;
            let Some(seq) = known.done.as_ref().map(|done| done.seq) else { continue };
            there.feeds.insert(feed.id().clone());
            if known.moved > told {
                known.moved = now;
                there.last_move = now;
                self.write(vec![self.states.save(feed.id(), &known)]).await?;
            }
            moves.push((known.moved, feed.id().clone(), seq));
        }
        moves.sort_unstable();
        for (at, id, seq) in moves.into_iter().filter(|(.., seq)| *seq > 0) {
            there.moves.record(self.engine.announcer.sup_id(&id), seq, at);
        }
        *self.there.lock() = Some(there);
        Ok(())
    }

    /// Exports feeds, some at a time.
    async fn export_feeds(&self, feeds: Vec<Arc<Feed>>, summary: &mut Summary) -> Result<(), ExportError> {
        let mut staged: Vec<Staged> = Vec::new();
        let mut bytes = 0;
        let (mut feeds, mut under_way) = (feeds.into_iter(), FuturesUnordered::new());
        loop {
            for feed in feeds.by_ref().take(TOGETHER - under_way.len()) {
                under_way.push(self.try_stage(feed));
            }
            let Some(done) = under_way.next().await else { break };
            match done {
                Ok(Some(one)) => {
                    bytes += one.bytes();
                    staged.push(one);
                }
                Ok(None) => {}
                Err(e @ (ExportError::Moved(_) | ExportError::TooLarge(_) | ExportError::Store(_))) => {
                    summary.failed.push(e.to_string());
                }
                Err(e) => return Err(e),
            }
            if staged.len() >= GROUP || bytes >= GROUP_BYTES {
                self.finish(std::mem::take(&mut staged), summary).await?;
                bytes = 0;
            }
        }
        self.finish(staged, summary).await
    }

    fn try_stage(&self, feed: Arc<Feed>) -> BoxFuture<'_, Result<Option<Staged>, ExportError>> {
        async move {
            for _ in 1..TRIES {
                match self.stage(feed.clone()).await {
                    Err(ExportError::Moved(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                    done => return self.count_feed(&feed, done).await,
                }
            }
            let done = self.stage(feed.clone()).await;
            if let Err(ExportError::Moved(_)) = done {
                self.late.lock().push(feed.id().clone());
            }
            self.count_feed(&feed, done).await
        }
        .boxed()
    }

    async fn count_feed(
        &self,
        feed: &Feed,
        done: Result<Option<Staged>, ExportError>,
    ) -> Result<Option<Staged>, ExportError> {
        if let Ok(None) = done {
            let known = self.states.load(self.engine.store.as_ref(), feed.id()).await?;
            self.count_unchanged(known.documents());
        }
        done
    }

    /// Notes what of a feed is about to be put.
    async fn begin(&self, staged: &Staged) -> Result<(), ExportError> {
        let begun = staged.before.begin(&staged.extent);
        let write = self.states.save(staged.feed.id(), &begun);
        self.write(vec![write]).await
    }

    /// Puts the documents at which readers of these feeds begin, and then removes what nothing leads to.
    async fn finish(&self, staged: Vec<Staged>, summary: &mut Summary) -> Result<(), ExportError> {
        if staged.is_empty() {
            return Ok(());
        }
        self.target.settle().await?;
        let mut puts = Vec::new();
        for one in &staged {
            puts.push(self.point(one));
        }
        together(puts).await?;
        self.target.settle().await?;
        let mut removals = Vec::new();
        for one in &staged {
            removals.push(self.tidy(one));
        }
        together(removals).await?;
        summary.feeds += staged.len() as u64;
        self.keep(staged).await
    }

    /// Notes what is there now.
    async fn keep(&self, staged: Vec<Staged>) -> Result<(), ExportError> {
        let now = self.engine.now();
        let mut writes: Vec<Write> = Vec::new();
        for one in staged {
            let has_moved = one.has_moved();
            if let Some(there) = self.there.lock().as_mut() {
                there.feeds.insert(one.feed.id().clone());
                if has_moved && one.extent.seq > 0 {
                    there.last_move = now;
                    there.moves.record(self.engine.announcer.sup_id(one.feed.id()), one.extent.seq, now);
                }
            }
            let moved = if has_moved { now } else { one.before.moved };
            let exported = Exported { done: Some(one.extent), begun: None, moved };
            writes.push(self.states.save(one.feed.id(), &exported));
        }
        self.write(writes).await
    }

    /// Removes feeds that are not there any more, or not everybody's any more.
    async fn drop_feeds(&self, summary: &mut Summary) -> Result<(), ExportError> {
        let store = self.engine.store.as_ref();
        for id in self.states.feeds(store).await? {
            if self.engine.feed(id.as_str()).is_some_and(|feed| feed.is_listed()) {
                continue;
            }
            let known = self.states.load(store, &id).await?;
            self.drop_feed(&id, &known).await?;
            self.write(vec![self.states.forget(&id)]).await?;
            summary.feeds += 1;
        }
        Ok(())
    }

    /// Notes what is or is about to be there, as long as no other node keeps the tree.
    async fn write(&self, writes: Vec<Write>) -> Result<(), ExportError> {
        Ok(self.engine.store.write(writes, conditions(&self.lease)).await?)
    }

    async fn put(&self, document: &TreeDocument) -> Result<(), ExportError> {
        roles::check(&self.lease)?;
        let bytes = self.target.put(document).await?;
        self.counted.written.fetch_add(1, Ordering::Relaxed);
        self.counted.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<(), ExportError> {
        roles::check(&self.lease)?;
        self.target.remove(path).await?;
        self.counted.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Feeds to be looked at again soon: they moved on meanwhile, or DiffDelta did not tell of their last changes yet.
    pub fn take_late(&self) -> Vec<FeedId> {
        std::mem::take(&mut *self.late.lock())
    }

    fn count_unchanged(&self, documents: u64) {
        self.counted.unchanged.fetch_add(documents, Ordering::Relaxed);
    }

    /// Whether a feed is in the tree.
    fn has(&self, id: &FeedId) -> bool {
        self.there.lock().as_ref().is_some_and(|there| there.feeds.contains(id))
    }
}

/// Does all, some at a time, to the end or the first error.
async fn together<'a>(
    all: impl IntoIterator<Item = BoxFuture<'a, Result<(), ExportError>>>,
) -> Result<(), ExportError> {
    let (mut all, mut under_way) = (all.into_iter(), FuturesUnordered::new());
    loop {
        under_way.extend(all.by_ref().take(TOGETHER - under_way.len()));
        match under_way.next().await {
            Some(done) => done?,
            None => return Ok(()),
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())
}
