//! Feeds that were made over HTTP. They are records of the store, so they outlast restarts, and all nodes have them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::Mutex;
use towpath_proto::FeedId;

use super::feed_changes::{FeedChanges, added, changed};
use super::feed_records::{FeedRecord, StoredFeeds, key};
use super::removed_feed::RemovedFeed;
use super::{Engine, Feed, json_record, private_feeds};
use crate::config::{FeedConfig, NOT_IN_A_CLUSTER};
use crate::document::route_error::RouteError;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Interval at which a node of a cluster looks for feeds that another node made.
const INTERVAL: Duration = Duration::from_secs(1);

/// Held while feeds are made, changed or removed.
#[derive(Default)]
struct FeedsLock(Mutex<()>);

impl Engine {
    /// Makes a feed, or changes one that was made so. Returns true for a new one.
    ///
    /// # Errors
    ///
    /// Settings that are not valid; a feed of the configuration file; as many feeds as there may be.
    pub(crate) async fn put_feed(
        &self,
        id: &FeedId,
        keys: Map<String, Value>,
        by: &str,
    ) -> Result<bool, RouteError> {
        let lock = self.extensions.get_or_insert_with(FeedsLock::default);
        let _changing = lock.0.lock().await;
        let config = FeedConfig::from_json(id, &keys).map_err(RouteError::bad_request)?;
        if config.log.is_bounded() && self.is_shared() {
            return Err(RouteError::bad_request(NOT_IN_A_CLUSTER));
        }
        let known = self.feed(id.as_str());
        let (feed, is_new) = match &known {
            Some(known) if !known.config.is_from_http => {
                return Err(RouteError::conflict(format!(
                    "feed {id} was not made over HTTP: change it in the configuration file, and reload"
                )));
            }
            Some(known) => {
                let mut changes = FeedChanges::default();
                let feed = changed(known, &config, &mut changes);
                // Readers, cursors and addresses depend on it.
                if let Some(left) = changes.left.first() {
                    return Err(RouteError::conflict(format!(
                        "{left}, which cannot change: remove the feed, or make another"
                    )));
                }
                (feed, false)
            }
            None => {
                let most = self.server.load().http_feeds;
                let count = self.feeds.count_from_http();
                if count >= most {
                    return Err(RouteError::forbidden(format!(
                        "{most} feeds may be made over HTTP, and there are as many: remove one, or set [server] http_feeds"
                    )));
                }
                (self.feed_on_log(&config).await?, true)
            }
        };
        let record = FeedRecord {
            keys: Some(keys),
            reason: None,
            is_public: config.is_public(),
            by: by.to_owned(),
            at: self.now(),
        };
        self.write_record(id, &record).await?;
        private_feeds::update(self.store.as_ref(), std::iter::once(&config)).await?;
        self.show_feed(feed);
        Ok(is_new)
    }

    /// Removes a feed that was made over HTTP. Its log stays, and the feed is 410 from then on.
    ///
    /// # Errors
    ///
    /// No such feed; a feed of the configuration file.
    pub(crate) async fn remove_feed(
        &self,
        id: &FeedId,
        reason: Option<String>,
        by: &str,
    ) -> Result<(), RouteError> {
        let lock = self.extensions.get_or_insert_with(FeedsLock::default);
        let _changing = lock.0.lock().await;
        let known = self.feed(id.as_str()).ok_or_else(|| super::request::no_feed(self, id.as_str()))?;
        if !known.config.is_from_http {
            return Err(RouteError::conflict(format!(
                "feed {id} was not made over HTTP: remove it from the configuration file, and reload"
            )));
        }
        let is_public = known.config.is_public();
        let record = FeedRecord { keys: None, reason, is_public, by: by.to_owned(), at: self.now() };
        self.write_record(id, &record).await?;
        self.hide_feed(id, record.as_removed());
        Ok(())
    }

    async fn write_record(&self, id: &FeedId, record: &FeedRecord) -> Result<(), StoreError> {
        let writes = vec![json_record::put(key(id), record)];
        Ok(self.store.write(writes, Vec::new()).await?)
    }

    /// Makes a feed on the log of its name, which may be there from earlier.
    async fn feed_on_log(&self, config: &FeedConfig) -> Result<Arc<Feed>, StoreError> {
        // Reading the heads of all logs for each new feed would take quadratic time.
        if self.store.head(config.id()).await?.seq == 0 {
            return Ok(added(config, None));
        }
        let logs = self.store.heads().await?;
        Ok(added(config, logs.iter().find(|log| log.feed == *config.id())))
    }

    fn show_feed(&self, feed: Arc<Feed>) {
        let id = feed.id().clone();
        // Before the feed is there: no document of a private feed may be cached as a public one's.
        if !feed.config.is_public() {
            self.sup_links.add_private([id.clone()]);
        }
        self.feeds.insert(feed);
        self.removed.write().remove(&id);
        self.tell_feed_change();
    }

    fn hide_feed(&self, id: &FeedId, removed: RemovedFeed) {
        self.removed.write().insert(id.clone(), removed);
        let feed = self.feeds.remove(id);
        self.tell_feed_change();
        self.tell_removed(feed.as_slice());
    }
}

/// Takes over the feeds that other nodes made, changed or removed, until `stop` turns true.
pub(crate) async fn run(engine: Arc<Engine>, stop: Stop) {
    if !engine.is_shared() {
        return;
    }
    loop {
        tokio::select! {
            () = stopped(&stop) => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        if let Err(e) = take_over(&engine).await {
            tracing::warn!("cannot read which feeds other nodes made: {e}");
        }
    }
}

async fn take_over(engine: &Engine) -> Result<(), StoreError> {
    let lock = engine.extensions.get_or_insert_with(FeedsLock::default);
    let _changing = lock.0.lock().await;
    let stored = StoredFeeds::load(engine.store.as_ref()).await?;
    for config in &stored.feeds {
        match engine.feed(config.id().as_str()) {
            // The file's settings count.
            Some(known) if !known.config.is_from_http || known.config == *config => {}
            Some(known) => engine.show_feed(changed(&known, config, &mut FeedChanges::default())),
            None => engine.show_feed(engine.feed_on_log(config).await?),
        }
    }
    for (id, removed) in stored.removed {
        if engine.feed(id.as_str()).is_some_and(|known| known.config.is_from_http) {
            engine.hide_feed(&id, removed);
        }
    }
    Ok(())
}
