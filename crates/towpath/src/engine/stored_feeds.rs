//! Feeds that were made over HTTP. They are records of the store, so they outlast restarts, and all nodes have them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{Mutex, OwnedMutexGuard};
use towpath_proto::FeedId;
use towpath_store::Table;

use super::feed_changes::{FeedChanges, added, changed};
use super::feed_records::{FeedRecord, StoredFeeds, id_of, key};
use super::removed_feed::RemovedFeed;
use super::written_feeds::WrittenFeeds;
use super::{Engine, Feed, json_record, private_feeds};
use crate::config::{FeedConfig, FeedOrigin, NOT_IN_A_CLUSTER};
use crate::document::route_error::RouteError;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Time until a record that could not be read is read again.
const RETRY: Duration = Duration::from_secs(1);

/// Held while feeds are made, changed or removed.
#[derive(Default)]
struct FeedsLock(Arc<Mutex<()>>);

impl Engine {
    /// Waits until nothing else makes, changes or removes feeds, and keeps it so while the guard is held.
    pub(super) async fn changing_feeds(&self) -> OwnedMutexGuard<()> {
        let lock = self.extensions.get_or_insert_with(FeedsLock::default);
        lock.0.clone().lock_owned().await
    }

    /// Reads the head of a feed that was added: an append since its head was read found no feed to tell.
    ///
    /// # Errors
    ///
    /// A store that cannot be read.
    pub(crate) async fn refresh_head(&self, feed: &Feed) -> Result<(), StoreError> {
        let head = self.store.head(feed.id()).await?;
        if feed.head.fetch_max(head.seq, Ordering::AcqRel) < head.seq {
            feed.set_last_append(self.now(), head.modified);
            feed.set_live(head.live);
            self.announce_feed_change();
        }
        Ok(())
    }

    /// Makes a feed, or changes one that was made so or by publishing. Returns true for a new one.
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
        let _changing = self.changing_feeds().await;
        let config = FeedConfig::from_json(id, &keys).map(Arc::new).map_err(RouteError::bad_request)?;
        if config.log.is_bounded() && self.is_shared() {
            return Err(RouteError::bad_request(NOT_IN_A_CLUSTER));
        }
        let known = self.feed(id.as_str());
        let (feed, is_new) = match &known {
            Some(known) if known.config.origin == FeedOrigin::File => {
                return Err(RouteError::conflict(format!(
                    "feed {id} is in the configuration file: change it there, and reload"
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
            None => (self.feed_on_log(&config).await?, true),
        };
        if known.is_none_or(|known| known.config.origin != FeedOrigin::Http) {
            let most = self.server.load().http_feeds;
            if self.feeds.count_from_http() >= most {
                return Err(RouteError::forbidden(format!(
                    "{most} feeds may be made over HTTP, and there are as many: remove one, or set [server] http_feeds"
                )));
            }
        }
        let record = FeedRecord {
            keys: Some(keys),
            reason: None,
            is_public: config.is_public(),
            by: by.to_owned(),
            at: self.now(),
        };
        self.write_record(id, &record).await?;
        private_feeds::update(self.store.as_ref(), std::iter::once(&*config)).await?;
        self.show_feed(feed);
        Ok(is_new)
    }

    /// Removes a feed that was made over HTTP, or by publishing. Its log stays, and the feed is 410 from then on.
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
        let _changing = self.changing_feeds().await;
        let known = self.feed(id.as_str()).ok_or_else(|| super::request::no_feed(self, id.as_str()))?;
        if known.config.origin == FeedOrigin::File {
            return Err(RouteError::conflict(format!(
                "feed {id} is in the configuration file: remove it there, and reload"
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
    async fn feed_on_log(&self, config: &Arc<FeedConfig>) -> Result<Arc<Feed>, StoreError> {
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
        // After the feed is there, so that no request finds neither.
        self.removed.write().remove(&id);
        self.announce_feed_change();
    }

    fn hide_feed(&self, id: &FeedId, removed: RemovedFeed) {
        self.removed.write().insert(id.clone(), removed);
        // After the note of the removal: a request that does not find the feed finds why.
        let feed = self.feeds.remove(id);
        self.announce_feed_change();
        self.call_removal_hooks(feed.as_slice());
    }
}

/// Notes a record that another node wrote, or a write that seemed to have failed. Runs on the store's thread, before later appends are told of.
pub(crate) fn on_table_write(engine: &Arc<Engine>, table: Table, key: &[u8]) {
    if table != Table::Chains {
        return;
    }
    if let Some(id) = id_of(key) {
        written(engine).add(id);
    }
}

fn written(engine: &Engine) -> &WrittenFeeds {
    engine.extensions.get_or_insert_with(WrittenFeeds::default)
}

/// Takes over the feeds whose records [`on_table_write`] notes, until `stop` turns true.
pub(crate) async fn run(engine: Arc<Engine>, stop: Stop) {
    let mut done = match engine.is_shared() {
        // Writes may have come between the engine's start and the first hook.
        true => take_over_all(&engine).await,
        false => Ok(()),
    };
    loop {
        if let Err(e) = &done {
            tracing::warn!("cannot read which feeds were made or removed: {e}");
        }
        tokio::select! {
            () = written(&engine).added() => {}
            () = tokio::time::sleep(RETRY), if done.is_err() => {}
            () = stopped(&stop) => return,
        }
        done = take_over_written(&engine).await;
    }
}

async fn take_over_all(engine: &Engine) -> Result<(), StoreError> {
    let _changing = engine.changing_feeds().await;
    let stored = StoredFeeds::load(engine.store.as_ref()).await?;
    for config in &stored.feeds {
        take_over(engine, config).await?;
    }
    for (id, removed) in stored.removed {
        take_over_removal(engine, &id, removed);
    }
    Ok(())
}

async fn take_over_written(engine: &Engine) -> Result<(), StoreError> {
    let written = written(engine);
    for (id, number) in written.all() {
        let _changing = engine.changing_feeds().await;
        let record: Option<FeedRecord> = json_record::load(engine.store.as_ref(), &key(&id)).await?;
        match record.as_ref().map(|record| (record, record.config(&id))) {
            Some((_, Ok(Some(config)))) => take_over(engine, &config).await?,
            Some((record, Ok(None))) => take_over_removal(engine, &id, record.as_removed()),
            Some((_, Err(e))) => tracing::error!(feed = %id, "{e}"),
            None => {}
        }
        // After the feed is there: an append that comes between must not create another one.
        written.remove(&id, number);
    }
    Ok(())
}

async fn take_over(engine: &Engine, config: &Arc<FeedConfig>) -> Result<(), StoreError> {
    let feed = match engine.feed(config.id().as_str()) {
        // The file's settings count.
        Some(known) if known.config.origin == FeedOrigin::File || known.config == *config => return Ok(()),
        Some(known) if known.config.fixed_changes(config).next().is_none() => {
            changed(&known, config, &mut FeedChanges::default())
        }
        // An append created it here while another node made it with other settings, or after a removal.
        _ => engine.feed_on_log(config).await?,
    };
    engine.show_feed(feed.clone());
    engine.refresh_head(&feed).await
}

fn take_over_removal(engine: &Engine, id: &FeedId, removed: RemovedFeed) {
    match engine.feed(id.as_str()) {
        Some(known) if known.config.origin == FeedOrigin::File => {}
        Some(_) => engine.hide_feed(id, removed),
        None => drop(engine.removed.write().insert(id.clone(), removed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::failing_store;

    /// A feed that is made between a reload's plan and its end is in no plan, and is no removed feed.
    #[tokio::test]
    async fn feeds_are_made_before_or_after_a_reload() {
        let (engine, _store) = failing_store::engine("").await;
        let plan = engine.plan_feeds(&engine.config).await.unwrap();
        let id = FeedId::new("made").unwrap();
        let mut making = std::pin::pin!(engine.put_feed(&id, Map::new(), "a test"));
        tokio::time::timeout(Duration::from_millis(100), &mut making).await.unwrap_err();
        engine.apply_feeds(plan);
        assert!(making.await.unwrap());
        assert!(engine.feed("made").is_some());
    }

    /// The sync of a feed's record fails, and the record is there once the store is open again.
    #[tokio::test]
    async fn a_feed_whose_record_turns_out_to_be_stored_is_shown() {
        let (engine, store) = failing_store::engine("").await;
        let (stopper, stop) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(run(engine.clone(), stop));
        *store.doubt_fault.lock() = Some("made");
        let id = FeedId::new("made").unwrap();
        engine.put_feed(&id, Map::new(), "a test").await.unwrap_err();
        assert!(engine.feed("made").is_none());
        store.reopen(true).await;
        let shown = async {
            while engine.feed("made").is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), shown).await.expect("the feed is never shown");
        stopper.send(true).unwrap();
        running.await.unwrap();
    }
}
