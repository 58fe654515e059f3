//! Feeds of a configuration that was read again: added, changed and removed while the server runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedMutexGuard;
use towpath_proto::FeedId;
use towpath_store::{FeedSummary, ReadError};

use crate::config::{Config, FeedConfig, ServerConfig};
use crate::engine::feed_records::StoredFeeds;
use crate::engine::removed_feed::RemovedFeed;
use crate::engine::work::share_thread;
use crate::engine::{Engine, Feed, private_feeds};
use crate::store_error::StoreError;

/// Changes of the feeds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FeedChanges {
    /// Feeds that are served from now on.
    pub added: Vec<FeedId>,
    /// Feeds with new settings.
    pub changed: Vec<FeedId>,
    /// Feeds that are not served any more. Their logs stay.
    pub removed: Vec<FeedId>,
    /// Changes that only a restart makes.
    pub left: Vec<String>,
}

/// Feeds as they are to be, before any of it is visible.
pub struct FeedPlan {
    changes: FeedChanges,
    feeds: Vec<(FeedId, Arc<Feed>)>,
    private: Vec<FeedId>,
    /// Publishing creates feeds, so every log is served.
    may_create: bool,
    /// Held until the plan is applied: a feed that was made meanwhile would be taken for a removed one.
    lock: OwnedMutexGuard<()>,
}

impl FeedPlan {
    /// Configurations of the feeds as they will be served.
    pub fn configs(&self) -> impl Iterator<Item = &FeedConfig> {
        self.feeds.iter().map(|(_, feed)| &*feed.config)
    }

    /// Adds feeds for the logs that no feed of the plan has.
    fn add_unnamed(
        &mut self,
        logs: HashMap<FeedId, FeedSummary>,
        private: &HashSet<FeedId>,
        is_deleted: impl Fn(&FeedId) -> bool,
    ) {
        let planned: HashSet<&FeedId> = self.feeds.iter().map(|(id, _)| id).collect();
        let is_unnamed = |(id, _): &(FeedId, FeedSummary)| !planned.contains(id) && !is_deleted(id);
        let unnamed: Vec<_> = logs.into_iter().filter(is_unnamed).collect();
        for (id, log) in unnamed {
            let config = private_feeds::unnamed(&id, private.contains(&id));
            if !config.is_public() {
                self.private.push(id.clone());
            }
            self.feeds.push((id.clone(), added(&Arc::new(config), Some(&log))));
            self.changes.added.push(id);
        }
        self.changes.added.sort_unstable();
    }
}

impl Engine {
    /// Compares the feeds with those of a configuration. Nothing changes yet, except that names of private feeds are kept.
    /// Until the plan is applied or dropped, no feed is made, changed or removed otherwise.
    ///
    /// # Errors
    ///
    /// A store that cannot be read.
    pub async fn plan_feeds(&self, config: &Config) -> Result<FeedPlan, StoreError> {
        let may_create = config.server.create_feeds;
        let (changes, feeds, private) = Default::default();
        let lock = self.changing_feeds().await;
        let mut plan = FeedPlan { changes, feeds, private, may_create, lock };
        // Read at most once, and only if a feed is new: it walks over every log.
        let mut logs = None;
        for new in &config.feeds {
            share_thread().await;
            let id = new.id();
            if !new.is_public() {
                plan.private.push(id.clone());
            }
            let feed = match self.feed(id.as_str()) {
                Some(old) if old.config == *new => old,
                Some(old) => changed(&old, new, &mut plan.changes),
                // The views of filters are made at the start.
                None if new.filter.is_some() => {
                    plan.changes.left.push(format!("feed {id} is a new filter"));
                    continue;
                }
                None => {
                    let logs = match &mut logs {
                        Some(logs) => logs,
                        None => logs.insert(self.logs().await?),
                    };
                    plan.changes.added.push(id.clone());
                    added(new, logs.get(id))
                }
            };
            plan.feeds.push((id.clone(), feed));
        }
        // The file's settings count for a feed that is in both.
        let named: HashSet<&FeedId> = config.feeds.iter().map(|feed| feed.id()).collect();
        let stored = StoredFeeds::load(self.store.as_ref()).await?;
        for stored in stored.feeds.iter().filter(|stored| !named.contains(stored.id())) {
            share_thread().await;
            let feed = match self.feed(stored.id().as_str()) {
                // One that left the file has the settings that were made over HTTP.
                Some(known) => changed(&known, stored, &mut plan.changes),
                None => {
                    let logs = match &mut logs {
                        Some(logs) => logs,
                        None => logs.insert(self.logs().await?),
                    };
                    plan.changes.added.push(stored.id().clone());
                    added(stored, logs.get(stored.id()))
                }
            };
            if !feed.config.is_public() {
                plan.private.push(stored.id().clone());
            }
            plan.feeds.push((stored.id().clone(), feed));
        }
        if may_create && !self.server.load().create_feeds {
            let logs = match logs {
                Some(logs) => logs,
                None => self.logs().await?,
            };
            let private = private_feeds::load(self.store.as_ref()).await?;
            plan.add_unnamed(logs, &private, |id| stored.removed.contains_key(id));
        }
        // Before any of them can be removed.
        private_feeds::update(self.store.as_ref(), plan.configs()).await?;
        Ok(plan)
    }

    async fn logs(&self) -> Result<HashMap<FeedId, FeedSummary>, ReadError> {
        Ok(self.store.heads().await?.into_iter().map(|log| (log.feed.clone(), log)).collect())
    }

    /// Makes a plan's changes visible, all at once.
    pub fn apply_feeds(&self, plan: FeedPlan) -> FeedChanges {
        let FeedPlan { mut changes, feeds: planned, private, may_create, lock: _lock } = plan;
        // Before the feeds are: no document of a private feed may be cached as a public one's.
        self.sup_links.add_private(private);
        let mut planned: HashMap<FeedId, Arc<Feed>> = planned.into_iter().collect();
        let mut removed = Vec::new();
        self.feeds.replace(|feeds| {
            for (id, feed) in feeds {
                if let Some(new) = planned.get_mut(id) {
                    // Publishing has created it since the plan, and its log has begun.
                    if !Arc::ptr_eq(&new.head, &feed.head) {
                        *new = feed.with_config(new.config.clone());
                    }
                    continue;
                }
                if feed.is_filter() {
                    changes.left.push(format!("feed {id} is a filter that was removed"));
                    planned.insert(id.clone(), feed.clone());
                } else if may_create {
                    // The log is there, and any log is served: with the settings of a feed that is not named.
                    let unnamed = private_feeds::unnamed(id, !feed.config.is_public());
                    let is_unnamed = *feed.config == unnamed;
                    if !is_unnamed {
                        changes.changed.push(id.clone());
                    }
                    let feed = if is_unnamed { feed.clone() } else { feed.with_config(unnamed.into()) };
                    planned.insert(id.clone(), feed);
                } else {
                    changes.removed.push(id.clone());
                    removed.push(feed.clone());
                }
            }
            // Before the feeds go: a request that does not find one finds why.
            let note = |feed: &Arc<Feed>| (feed.id().clone(), RemovedFeed::of_file(feed.config.is_public()));
            self.removed.write().extend(removed.iter().map(note));
            planned
        });
        changes.changed.sort_unstable();
        changes.removed.sort_unstable();
        changes.left.sort_unstable();
        let mut all_removed = self.removed.write();
        for id in &changes.added {
            all_removed.remove(id);
        }
        // Released first: what is told of the change looks up why feeds are gone.
        drop(all_removed);
        if !(changes.added.is_empty() && changes.changed.is_empty() && changes.removed.is_empty()) {
            self.announce_feed_change();
        }
        self.call_removal_hooks(&removed);
        changes
    }

    /// Takes over the keys of `[server]` that a reload takes over. Feeds have theirs from [`Self::apply_feeds`] and
    /// [`Self::renew_feed_limits`].
    pub(crate) fn apply_server(&self, new: &ServerConfig) {
        let old = self.server.load_full();
        self.server.store(Arc::new(old.reloaded(new)));
        self.logs_requests.store(new.access_log.is_some(), Ordering::Relaxed);
        self.response_memory.set_limit(new.response_mib << 20);
        if old.cache_mib != new.cache_mib {
            self.documents.set_capacity(new.cache_mib << 20);
        }
        if old.rate_limit != new.rate_limit
            && let Some(limit) = &self.rate_limit
        {
            limit.set(new.rate_limit);
        }
        if old.cors_origins != new.cors_origins {
            // Before the cache is cleared, which `Documents::with_cors` relies on.
            self.cors.store(Arc::new(self.cors_policy()));
            // Prebuilt documents have the headers of the earlier policy, and so has a static tree's configuration.
            self.announce_feed_change();
        }
    }

    /// Has all feeds compute the limits of their requests again, which each of them keeps.
    pub(crate) fn renew_feed_limits(&self) {
        self.feeds.replace(|feeds| {
            let limited = |feed: &Arc<Feed>| feed.with_config(feed.config.clone());
            feeds.iter().map(|(id, feed)| (id.clone(), limited(feed))).collect()
        });
    }

    /// Calls the hooks of these feeds, which were removed.
    pub(super) fn call_removal_hooks(&self, feeds: &[Arc<Feed>]) {
        let hooks = self.removal_hooks.get().copied().unwrap_or_default();
        for feed in feeds {
            hooks.iter().for_each(|hook| hook(self, feed));
        }
    }

    /// Announces to tasks and documents that feeds were added, changed or removed.
    pub(super) fn announce_feed_change(&self) {
        // Documents show titles and lists of feeds. They are made again from the log when they are asked for.
        self.documents.clear();
        self.feed_changes.send_modify(|number| *number += 1);
    }

    /// Subscribes to changes of the feeds.
    pub fn feed_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.feed_changes.subscribe()
    }

    /// Returns a feed that was served once, and is not configured any more.
    pub(crate) fn removed_feed(&self, id: &str) -> Option<RemovedFeed> {
        self.removed.read().get(id).cloned()
    }
}

/// Returns the feed with the settings that can change while it is served.
pub(super) fn changed(old: &Arc<Feed>, new: &Arc<FeedConfig>, changes: &mut FeedChanges) -> Arc<Feed> {
    let id = new.id();
    let fixed: Vec<_> = old.config.fixed_changes(new).collect();
    if !fixed.is_empty() {
        changes.left.extend(fixed.iter().map(|name| format!("feed {id} has another {name}")));
        return old.clone();
    }
    // The tokens of readers are replaced elsewhere. Their filters have the places of those at the start.
    let config = if old.config.readers == new.readers {
        new.clone()
    } else {
        Arc::new(FeedConfig { readers: old.config.readers.clone(), ..FeedConfig::clone(new) })
    };
    if old.config == config {
        return old.clone();
    }
    changes.changed.push(id.clone());
    old.with_config(config)
}

pub(super) fn added(config: &Arc<FeedConfig>, log: Option<&FeedSummary>) -> Arc<Feed> {
    let feed = Feed::new(config.clone());
    if let Some(log) = log {
        feed.head.store(log.head.seq, Ordering::Release);
        feed.set_last_append(log.appended, log.head.modified);
        feed.set_live(log.head.live);
        feed.set_horizon(log.head.horizon);
    }
    Arc::new(feed)
}
