//! What a running towpath is: the log, the feeds it knows, and the documents made from them.

pub mod diffdelta;
pub mod export;
mod feed;
pub mod history;
mod metrics;
pub mod pages;
pub mod push;
mod record;
pub mod replica;
pub mod replication;
pub mod roles;
mod scan;
pub mod smart;
pub mod sup;
mod waiters;
pub mod xmpp;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_proto::diffdelta::publish::Site;
use towpath_proto::risk::{RiskError, Scorer};
use towpath_store::{FeedHead, Head, Store, StoreError};

use crate::config::{Config, FeedConfig};
use crate::server::announce::Announcer;
use crate::server::documents::Documents;

use diffdelta::DiffDelta;
use pages::Pages;
use push::Push;
use replica::Replica;
use smart::Smart;
use sup::{LastMove, Sup};

pub use feed::Feed;
pub use metrics::Metrics;

/// Everything that requests, pollers and publishers share.
pub struct Engine {
    /// The configuration.
    pub config: Config,
    /// The address that readers use, without a slash at its end.
    pub base_url: String,
    /// Whether it makes the documents of a static tree, where nobody can subscribe.
    pub is_tree: bool,
    /// The log.
    pub store: Arc<dyn Store>,
    /// What is served from memory.
    pub documents: Documents,
    /// Which feeds moved lately.
    pub sup: Sup,
    /// What every response for a feed says.
    pub announcer: Arc<Announcer>,
    /// The risk scorer with the user's rules.
    pub scorer: Scorer,
    /// Counters.
    pub metrics: Metrics,
    /// Where DiffDelta's documents are served.
    pub site: Site,
    /// DiffDelta's chains.
    pub diffdelta: Arc<DiffDelta>,
    /// How logs are divided into pages.
    pub pages: Pages,
    /// Smart Feeds' waiters and filters.
    pub smart: Smart,
    /// Those who are pushed to.
    pub push: Push,
    /// The runtime for what does not serve.
    pub runtime: tokio::runtime::Handle,
    replica: Replica,
    is_shared: bool,
    /// Rung when a log has moved, for the XMPP component.
    chat: Notify,
    feeds: Arc<RwLock<HashMap<FeedId, Arc<Feed>>>>,
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store's fault.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The user's rules cannot be read.
    #[error("cannot read the risk rules {path}: {reason}")]
    Rules {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl Engine {
    /// An engine on an open store. Makes the feeds of the configuration and those that the log holds.
    pub async fn new(config: Config, store: Arc<dyn Store>) -> Result<Arc<Self>, EngineError> {
        let scorer = scorer(&config)?;
        let is_shared = store.standing().is_some();
        let identity = smart::identity(store.as_ref(), is_shared).await?;
        let private = config.feeds.iter().filter(|feed| !feed.is_public()).map(|feed| feed.id().clone());
        let announcer = Arc::new(Announcer::new(&config.base_url(), private.collect(), &identity));
        let mut feeds = configured(&config, &announcer);
        let filters = filters(&config, &announcer, &feeds);
        let mut moves = Vec::new();
        for FeedHead { feed: id, head: Head { seq, .. }, appended } in store.heads().await? {
            if config.server.create_feeds || feeds.contains_key(&id) {
                let new = || Arc::new(Feed::new(FeedConfig::unnamed(id.clone()), announcer.sup_id(&id)));
                let feed = feeds.entry(id.clone()).or_insert_with(new);
                feed.head.store(seq, Ordering::Release);
                feed.moves.moved(appended);
                moves.push(LastMove { id, seq, at: appended });
            }
        }
        // What was in the log under a filter's name is not the filter's.
        feeds.extend(filters);
        let metrics = Metrics::default();
        let engine = Arc::new(Self {
            base_url: config.base_url(),
            is_tree: false,
            documents: Documents::new(config.server.cache_mib << 20, announcer.clone()),
            sup: Sup::recover(&config, &announcer, moves, Timestamp::now()),
            smart: Smart::new(&config, identity, &metrics),
            announcer,
            store,
            scorer,
            metrics,
            push: Push::new(&config),
            runtime: tokio::runtime::Handle::current(),
            replica: Replica::default(),
            is_shared,
            chat: Notify::new(),
            site: Site::new(&config.base_url()),
            diffdelta: Arc::new(DiffDelta::new(!is_shared)),
            pages: Pages::new(!is_shared),
            feeds: Arc::new(RwLock::new(feeds)),
            config,
        });
        engine.listen();
        if is_shared {
            engine.miss_nothing().await?;
        }
        Ok(engine)
    }

    /// Takes in what others appended between the reading of the heads and the listening.
    async fn miss_nothing(&self) -> Result<(), StoreError> {
        for FeedHead { feed: id, head: Head { seq, .. }, appended } in self.store.heads().await? {
            let Some(feed) = self.feed_in_log(&id) else { continue };
            if feed.head.fetch_max(seq, Ordering::AcqRel) < seq {
                self.sup.note(&feed, seq, appended, false);
            }
        }
        Ok(())
    }

    /// The same log and feeds as readers of a static tree at `base_url` see them: every document has that tree's
    /// addresses, and none of them is kept in memory. It hears of no moves and pushes to nobody.
    pub fn for_tree(&self, base_url: &str) -> Arc<Self> {
        let metrics = Metrics::default();
        let identity = self.smart.identity.clone();
        let announcer = Arc::new(self.announcer.for_tree(base_url));
        Arc::new(Self {
            base_url: base_url.to_owned(),
            is_tree: true,
            documents: Documents::new(0, announcer.clone()),
            sup: Sup::recover(&self.config, &announcer, [], self.now()),
            smart: Smart::new(&self.config, identity, &metrics),
            announcer,
            store: self.store.clone(),
            scorer: self.scorer.clone(),
            metrics,
            push: Push::new(&self.config),
            runtime: self.runtime.clone(),
            replica: Replica::default(),
            is_shared: self.is_shared,
            chat: Notify::new(),
            site: Site::new(base_url),
            diffdelta: self.diffdelta.clone(),
            pages: Pages::new(false),
            feeds: self.feeds.clone(),
            config: self.config.clone(),
        })
    }

    /// Keeps every feed's head current, before an append is acknowledged: what was built before the append is
    /// not served after it.
    fn listen(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.store.on_move(Arc::new(move |id: &FeedId, head: Head| {
            let Some(engine) = engine.upgrade() else { return };
            engine.metrics.appends.inc();
            if let Some(feed) = engine.feed_in_log(id) {
                // Before the head moves: whoever sees it there knows at least that time.
                engine.sup.note(&feed, head.seq, engine.now(), engine.replica_age().is_some());
                feed.head.store(head.seq, Ordering::Release);
                engine.diffdelta.note(&feed);
                engine.pages.note(&feed);
            }
            engine.smart.waiters.moved(id);
            engine.push.note(id);
            engine.chat.notify_one();
        }));
        if self.is_shared {
            let engine = Arc::downgrade(self);
            self.store.on_write(Arc::new(move |table, key| {
                if let Some(engine) = engine.upgrade() {
                    engine.wrote(table, key);
                }
            }));
        }
    }

    /// The feed of a log that is there. Where feeds are made by publishing to them, another node may have made it.
    fn feed_in_log(&self, id: &FeedId) -> Option<Arc<Feed>> {
        let known = self.feed(id.as_str());
        if known.is_some() || !self.is_shared { known } else { self.feed_to_publish(id) }
    }

    /// The feed of a name.
    pub fn feed(&self, id: &str) -> Option<Arc<Feed>> {
        self.feeds.read().get(id).cloned()
    }

    /// The feed of a name, made where publishing may make it.
    pub fn feed_to_publish(&self, id: &FeedId) -> Option<Arc<Feed>> {
        if let Some(feed) = self.feed(id.as_str()) {
            return Some(feed);
        }
        if !self.config.server.create_feeds {
            return None;
        }
        let sup_id = self.announcer.sup_id(id);
        let mut feeds = self.feeds.write();
        let feed = feeds
            .entry(id.clone())
            .or_insert_with(|| Arc::new(Feed::new(FeedConfig::unnamed(id.clone()), sup_id)));
        Some(feed.clone())
    }

    /// All feeds, in the order of their names.
    pub fn feeds(&self) -> Vec<Arc<Feed>> {
        let mut feeds: Vec<_> = self.feeds.read().values().cloned().collect();
        feeds.sort_unstable_by(|a, b| a.id().cmp(b.id()));
        feeds
    }

    /// The time. Everything below the engine gets it as an argument.
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Runs what takes milliseconds of pure work apart from the threads that serve.
///
/// # Errors
///
/// A panic in it, which is ours.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    let done = crate::blocking::blocking(work).await;
    done.map_err(|e| StoreError::Read(format!("making something of it broke off: {e}")))
}

/// The feeds of the configuration that have a log of their own.
fn configured(config: &Config, announcer: &Announcer) -> HashMap<FeedId, Arc<Feed>> {
    let feeds = config.feeds.iter().filter(|feed| feed.filter.is_none());
    let new = |feed: &FeedConfig| Arc::new(Feed::new(feed.clone(), announcer.sup_id(feed.id())));
    feeds.map(|feed| (feed.id().clone(), new(feed))).collect()
}

/// The feeds that show items of others.
fn filters(
    config: &Config,
    announcer: &Announcer,
    logs: &HashMap<FeedId, Arc<Feed>>,
) -> Vec<(FeedId, Arc<Feed>)> {
    let filter = |feed: &FeedConfig| {
        let of = logs.get(&feed.filter.as_ref()?.of)?;
        let new = Feed::on(feed.clone(), announcer.sup_id(feed.id()), of.head.clone());
        Some((feed.id().clone(), Arc::new(new)))
    };
    config.feeds.iter().filter_map(filter).collect()
}

fn scorer(config: &Config) -> Result<Scorer, EngineError> {
    let Some(path) = &config.risk.rules else { return Ok(Scorer::default()) };
    let error = |reason: String| EngineError::Rules { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
    Scorer::with_rules(&text).map_err(|e: RiskError| error(e.to_string()))
}
