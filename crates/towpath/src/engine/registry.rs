//! The engine: everything that requests, sources and protocols share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use tokio::sync::watch;
use towpath_client::BodyBudget;
use towpath_client::random::unguessable;
use towpath_proto::FeedId;
use towpath_proto::risk::{RiskError, Scorer};
use towpath_store::{FeedSummary, ReadError, Store, StoreDamage, StoreFailure};

use crate::config::{AlertsConfig, Config, FeedConfig, ServerConfig, origins_for};
use crate::document::cache::Documents;
use crate::document::cors::CorsPolicy;
use crate::document::response_memory::ResponseMemory;
use crate::document::sup_links::SupLinks;
use crate::engine::failures::Failures;
use crate::engine::feed_map::{FeedMap, SortedFeeds};
use crate::engine::feed_records::StoredFeeds;
use crate::engine::identity::identity;
use crate::engine::log_health::LogUpkeepHealth;
use crate::engine::rate_limit::RateLimit;
use crate::engine::removed_feed::RemovedFeed;
use crate::engine::replica_age::ReplicaAge;
use crate::engine::sinks::Sinks;
use crate::engine::store_health::StoreHealth;
use crate::engine::tokens::TokenSet;
use crate::engine::written_feeds::WrittenFeeds;
use crate::engine::{Extensions, Feed, Metrics, private_feeds};
use crate::store_error::StoreError;
use crate::wall_clock;

/// The registry of a running towpath.
pub struct Engine {
    /// The configuration of the start. Later ones replace [`Self::server`], the alerts, the feeds, the tokens and
    /// the sinks.
    pub config: Config,
    /// `[server]` as it is in effect, with the keys that a reload takes over.
    pub server: Arc<ArcSwap<ServerConfig>>,
    /// `[alerts]` as it is in effect.
    pub(crate) alerts: ArcSwapOption<AlertsConfig>,
    /// Address that readers use, without a slash at its end.
    pub base_url: String,
    /// True while it makes documents of a static tree, which nobody can subscribe to.
    pub is_tree: bool,
    /// Tokens that are valid now. Reading the configuration again replaces them.
    pub tokens: Arc<ArcSwap<TokenSet>>,
    /// The log.
    pub store: Arc<dyn Store>,
    /// Cache of prebuilt documents.
    pub documents: Documents,
    /// Bodies of responses that wait to be sent.
    pub response_memory: Arc<ResponseMemory>,
    /// Memory of requests' bodies that are held whole.
    pub(crate) body_memory: BodyBudget,
    /// SUP links of all feeds.
    pub sup_links: Arc<SupLinks>,
    /// Origins whose pages may read.
    pub cors: Arc<ArcSwap<CorsPolicy>>,
    /// True while requests are logged. One load for each request, where `server` would take several.
    pub(super) logs_requests: AtomicBool,
    /// Risk scorer with the rules of the configuration.
    pub scorer: Scorer,
    /// Counters.
    pub metrics: Metrics,
    /// Sinks of the configuration, with their states.
    pub sinks: Sinks,
    /// Runtime of work that does not serve requests.
    pub runtime: tokio::runtime::Handle,
    /// State that protocols keep.
    pub extensions: Extensions,
    /// Secret identity of the data folder.
    pub(crate) identity: String,
    /// Start of this run.
    pub(crate) started: Timestamp,
    /// Identity of this run, which `/feeds?instance` shows: by it commands know the server that has their data folder open.
    pub(crate) instance: String,
    /// Limit of expensive requests; `None` for a static tree.
    pub(crate) rate_limit: Option<RateLimit>,
    replica_age: ReplicaAge,
    pub(super) store_health: StoreHealth,
    pub(super) log_upkeep: LogUpkeepHealth,
    /// Publishing work that failed.
    pub(crate) failures: Failures,
    is_shared: bool,
    pub(super) feeds: Arc<FeedMap>,
    /// Feeds with a log that are not served any more.
    pub(super) removed: Arc<RwLock<HashMap<FeedId, RemovedFeed>>>,
    /// Number of changes of the feeds since the start.
    pub(super) feed_changes: Arc<watch::Sender<u64>>,
    /// Calls after a feed was removed.
    pub(super) removal_hooks: OnceLock<&'static [FeedRemovedHook]>,
}

/// Called after a feed was removed, when requests do not find it any more: it must return at once.
pub type FeedRemovedHook = fn(&Engine, &Arc<Feed>);

/// Reason why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The rules of the configuration cannot be read.
    #[error("cannot read the risk rules {path}: {reason}")]
    Rules {
        /// Path of the file.
        path: String,
        /// Cause.
        reason: String,
    },
}

impl From<ReadError> for EngineError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.into())
    }
}

impl Engine {
    /// Opens an engine on a store, with the feeds of the configuration and of the log.
    ///
    /// Also returns the end of each feed's log. Appends move no head before `listen` was called.
    ///
    /// # Errors
    ///
    /// A store that cannot be read, or invalid risk rules.
    pub async fn open(
        config: Config,
        store: Arc<dyn Store>,
    ) -> Result<(Arc<Self>, Vec<FeedSummary>), EngineError> {
        let scorer = risk_scorer(&config)?;
        // Only a node of a cluster has a replica, and with it the writes of other nodes.
        let is_shared = store.replica_status().is_some();
        let identity = identity(store.as_ref(), is_shared).await?;
        let private = config.feeds.iter().filter(|feed| !feed.is_public()).map(|feed| feed.id().clone());
        let sup_links = Arc::new(SupLinks::new(&config.base_url(), private.collect(), &identity));
        let cors = Arc::new(ArcSwap::from_pointee(cors_policy(&config.server, &config.base_url())));
        let LoadedFeeds { feeds, removed, heads } = load_feeds(&config, store.as_ref(), &sup_links).await?;
        let metrics = Metrics::default();
        let removed = Arc::new(RwLock::new(removed));
        let notes = removed.clone();
        let is_removed = Box::new(move |feed: &str| notes.read().contains_key(feed));
        let engine = Self {
            base_url: config.base_url(),
            is_tree: false,
            tokens: Arc::new(ArcSwap::from_pointee(TokenSet::new(&config))),
            documents: Documents::new(config.server.cache_mib << 20, sup_links.clone())
                .with_cors(cors.clone())
                .without_removed(is_removed),
            response_memory: ResponseMemory::new(config.server.response_mib << 20),
            body_memory: BodyBudget::new(config.server.body_mib << 20),
            sup_links,
            cors,
            logs_requests: config.server.access_log.is_some().into(),
            store,
            scorer,
            failures: Failures::new(metrics.publish_failed.clone()),
            sinks: Sinks::new(&config.sinks, &metrics.sinks),
            metrics,
            runtime: tokio::runtime::Handle::current(),
            extensions: Extensions::default(),
            identity,
            started: wall_clock::now(),
            instance: hex::encode(unguessable().to_be_bytes()),
            rate_limit: Some(RateLimit::new(config.server.rate_limit)),
            server: Arc::new(ArcSwap::from_pointee(config.server.clone())),
            alerts: ArcSwapOption::from_pointee(config.alerts.clone()),
            replica_age: ReplicaAge::default(),
            store_health: StoreHealth::default(),
            log_upkeep: LogUpkeepHealth::default(),
            is_shared,
            feeds: Arc::new(FeedMap::new(feeds)),
            removed,
            feed_changes: Arc::default(),
            removal_hooks: OnceLock::new(),
            config,
        };
        Ok((Arc::new(engine), heads))
    }

    /// Returns the same log and feeds as readers of a static tree at `base_url` see them.
    ///
    /// Every document has the tree's addresses, and none is cached. Appends call no hooks here.
    pub fn at_base_url(&self, base_url: &str) -> Arc<Self> {
        let sup_links = Arc::new(self.sup_links.for_tree(base_url));
        let metrics = Metrics::default();
        Arc::new(Self {
            base_url: base_url.to_owned(),
            is_tree: true,
            tokens: self.tokens.clone(),
            // An export builds each document once, so a cache would only cost memory.
            documents: Documents::new(0, sup_links.clone()),
            response_memory: self.response_memory.clone(),
            body_memory: self.body_memory.clone(),
            sup_links,
            cors: Arc::new(ArcSwap::from_pointee(cors_policy(&self.server.load(), base_url))),
            logs_requests: AtomicBool::new(false),
            store: self.store.clone(),
            scorer: self.scorer.clone(),
            failures: Failures::new(metrics.publish_failed.clone()),
            sinks: Sinks::new(&self.config.sinks, &metrics.sinks),
            metrics,
            runtime: self.runtime.clone(),
            extensions: Extensions::default(),
            identity: self.identity.clone(),
            started: self.started,
            instance: self.instance.clone(),
            rate_limit: None,
            server: self.server.clone(),
            alerts: ArcSwapOption::empty(),
            replica_age: ReplicaAge::default(),
            store_health: StoreHealth::default(),
            log_upkeep: LogUpkeepHealth::default(),
            is_shared: self.is_shared,
            feeds: self.feeds.clone(),
            removed: self.removed.clone(),
            feed_changes: self.feed_changes.clone(),
            removal_hooks: OnceLock::new(),
            config: self.config.clone(),
        })
    }

    /// Returns the feed of an existing log. If publishing may create feeds, another node may have created it.
    pub(super) fn feed_of_log(&self, id: &FeedId) -> Option<Arc<Feed>> {
        // The map's read lock is taken first: creating takes the write lock, and appends come often.
        if let Some(feed) = self.feed(id.as_str()) {
            return Some(feed);
        }
        let new = self.unlisted_feed(id)?;
        // Another thread may have created it since the look-up above.
        Some(self.feeds.get_or_insert(new))
    }

    /// Returns the feed of a name.
    pub fn feed(&self, id: &str) -> Option<Arc<Feed>> {
        self.feeds.get(id)
    }

    /// Returns the feed of a name to publish to. Where publishing may create feeds, a new one is listed only once an
    /// append to it has succeeded.
    pub fn feed_to_publish(&self, id: &FeedId) -> Option<Arc<Feed>> {
        self.feed(id.as_str()).or_else(|| self.unlisted_feed(id))
    }

    fn unlisted_feed(&self, id: &FeedId) -> Option<Arc<Feed>> {
        // A feed that another node made has its settings soon; until then it could be shown to strangers.
        let may_create = self.server.load().create_feeds
            && !self.removed.read().get(id).is_some_and(|removed| removed.is_deleted)
            && !self.extensions.get::<WrittenFeeds>().is_some_and(|written| written.contains(id));
        let was_private = || self.removed.read().get(id).is_some_and(|removed| !removed.is_public);
        may_create.then(|| Arc::new(Feed::new(private_feeds::unnamed(id, was_private()))))
    }

    /// Returns the number of feeds.
    pub(crate) fn feed_count(&self) -> usize {
        self.feeds.len()
    }

    /// Returns all feeds, sorted by name.
    pub fn feeds(&self) -> SortedFeeds {
        self.feeds.sorted()
    }

    /// Returns the time. Everything below the engine gets it as an argument.
    pub fn now(&self) -> Timestamp {
        wall_clock::now()
    }

    /// Returns true if `[server.access_log]` is configured.
    pub(crate) fn logs_requests(&self) -> bool {
        self.logs_requests.load(Ordering::Relaxed)
    }

    /// Returns the origins whose pages may read at this base URL, by the settings that are in effect.
    pub(crate) fn cors_policy(&self) -> CorsPolicy {
        cors_policy(&self.server.load(), &self.base_url)
    }

    /// Returns true if other nodes write to the store that this one reads.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the replica's age in seconds, `Some(None)` if it is unknown, or `None` if the replica is current.
    pub fn replica_age(&self) -> Option<Option<u64>> {
        self.replica_age.get()
    }

    /// Returns true if the replica is so old, or of unknown age, that a load balancer should prefer other nodes.
    pub(crate) fn has_stale_replica(&self) -> bool {
        self.replica_age.is_stale()
    }

    /// Returns the failure for which the store takes no writes.
    pub fn store_failure(&self) -> Option<Arc<StoreFailure>> {
        self.store_health.failure()
    }

    /// Returns why the cluster's log is not kept, on the node that has the role.
    pub(crate) fn log_failure(&self) -> Option<String> {
        self.log_upkeep.failure()
    }

    /// Returns the damaged data that readers met.
    pub(crate) fn store_damage(&self) -> Option<Arc<StoreDamage>> {
        self.store_health.damage()
    }

    /// Measures the replica's age.
    pub(crate) fn refresh_replica_age(&self) {
        if let Some(status) = self.store.replica_status() {
            let seconds = self.replica_age.set(status.current_at, self.now());
            self.metrics.replica_age.set(seconds);
        }
    }
}

/// Feeds of the configuration and of the log, as a start finds them.
struct LoadedFeeds {
    feeds: HashMap<FeedId, Arc<Feed>>,
    removed: HashMap<FeedId, RemovedFeed>,
    /// End of each served feed's log.
    heads: Vec<FeedSummary>,
}

async fn load_feeds(
    config: &Config,
    store: &dyn Store,
    sup_links: &SupLinks,
) -> Result<LoadedFeeds, EngineError> {
    let mut feeds = configured(config);
    let StoredFeeds { feeds: stored, mut removed } = StoredFeeds::load(store).await?;
    let of_file: HashSet<&FeedId> = config.feeds.iter().map(|feed| feed.id()).collect();
    removed.retain(|id, _| !of_file.contains(id));
    for stored in stored {
        if of_file.contains(stored.id()) {
            tracing::warn!(feed = %stored.id(), "made over HTTP, and in the configuration file: the file's settings count");
            continue;
        }
        if !stored.is_public() {
            sup_links.add_private([stored.id().clone()]);
        }
        feeds.insert(stored.id().clone(), Arc::new(Feed::new(stored)));
    }
    let filters = filters(config, &feeds);
    let mut heads = store.heads().await?;
    let private = private_feeds::update(store, config.feeds.iter().map(AsRef::as_ref)).await?;
    // The log of a feed that left the configuration stays on disk, but is not served.
    heads.retain(|head| {
        let is_deleted = removed.contains_key(&head.feed);
        let is_served = feeds.contains_key(&head.feed) || (config.server.create_feeds && !is_deleted);
        if !is_served && !is_deleted {
            let is_public = !private.contains(&head.feed);
            removed.insert(head.feed.clone(), RemovedFeed::of_file(is_public));
        }
        is_served
    });
    feeds.reserve(heads.len());
    for FeedSummary { feed: id, head, appended } in &heads {
        warn_of_future(id, head.modified);
        let new = || Arc::new(Feed::new(private_feeds::unnamed(id, private.contains(id))));
        let feed = feeds.entry(id.clone()).or_insert_with(new);
        feed.head.store(head.seq, Ordering::Release);
        feed.set_last_append(*appended, head.modified);
        feed.set_live(head.live);
        feed.set_horizon(head.horizon);
    }
    // A log of the same name as a filter is an old one; the filter shows the log that it is configured on.
    feeds.extend(filters);
    Ok(LoadedFeeds { feeds, removed, heads })
}

/// Warns of a log whose last change is dated ahead of this machine's clock: later changes get that time, too.
fn warn_of_future(feed: &FeedId, modified: Timestamp) {
    let now = wall_clock::now();
    // Clocks of publishers that are mirrored differ by minutes.
    if modified.duration_since(now) > SignedDuration::from_hours(1) {
        tracing::warn!(
            %feed,
            %modified,
            "the log is dated ahead of this machine's clock, and its changes keep that time until then; check the clock, \
             here or at the publisher that is mirrored"
        );
    }
}

/// Makes the feeds of the configuration that have a log of their own.
fn configured(config: &Config) -> HashMap<FeedId, Arc<Feed>> {
    let feeds = config.feeds.iter().filter(|feed| feed.filter.is_none());
    feeds.map(|feed| (feed.id().clone(), Arc::new(Feed::new(feed.clone())))).collect()
}

/// Makes the feeds that show items of other feeds.
fn filters(config: &Config, logs: &HashMap<FeedId, Arc<Feed>>) -> Vec<(FeedId, Arc<Feed>)> {
    let filter = |feed: &Arc<FeedConfig>| {
        let of = logs.get(&feed.filter.as_ref()?.of)?;
        Some((feed.id().clone(), Arc::new(Feed::on(feed.clone(), of.head.clone()))))
    };
    config.feeds.iter().filter_map(filter).collect()
}

/// Makes the CORS policy of what is read at a base URL.
fn cors_policy(server: &ServerConfig, base_url: &str) -> CorsPolicy {
    CorsPolicy::new(&origins_for(server.cors_origins.as_deref(), base_url))
}

/// Returns the risk rules of a configuration, from its file if it names one.
///
/// # Errors
///
/// [`EngineError::Rules`] for a file that cannot be read, or has a rule that is none.
pub(crate) fn risk_scorer(config: &Config) -> Result<Scorer, EngineError> {
    let Some(path) = &config.risk.rules else { return Ok(Scorer::default()) };
    let error = |reason: String| EngineError::Rules { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
    Scorer::with_rules(&text).map_err(|e: RiskError| error(e.to_string()))
}
