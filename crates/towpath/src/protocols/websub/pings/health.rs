//! Hubs of others that cannot be told, as operators see them.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use towpath_client::redact;

use super::records::{self, PingStatus};
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Hubs of others by URL, each with the reason if its last ping from this node failed.
#[derive(Default)]
pub(crate) struct PingHealth(Mutex<BTreeMap<String, Option<String>>>);

/// A hub of others, with what it was told about a feed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HubStatus {
    /// URL of the hub.
    pub(crate) url: String,
    /// Last ping; `None` before the first.
    #[serde(flatten)]
    pub(crate) ping: Option<PingStatus>,
}

impl PingHealth {
    /// Returns the health of an engine's pings.
    pub(crate) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Records the result of a ping.
    pub(super) fn record(&self, hub: &str, error: Option<&str>) {
        let mut hubs = self.0.lock();
        let before = hubs.insert(hub.to_owned(), error.map(str::to_owned)).flatten();
        drop(hubs);
        match (before, error) {
            // Once for each reason: a hub that is down for a night must not fill the log.
            (before, Some(error)) if before.as_deref() != Some(error) => {
                tracing::warn!(hub = redact::url(hub), %error, "a hub is not told of changes");
            }
            (Some(_), None) => tracing::info!(hub = redact::url(hub), "a hub is told of changes again"),
            _ => {}
        }
    }

    /// Forgets the hubs that the configuration names no more.
    pub(super) fn forget_unnamed(&self, engine: &Engine) {
        // Most servers have no such hubs, and a server may have a million feeds.
        if self.0.lock().is_empty() {
            return;
        }
        let feeds = engine.feeds();
        let named: BTreeSet<&str> = feeds
            .iter()
            .flat_map(|feed| engine.hubs_of(feed).iter().chain(engine.tree_hubs_of(feed)))
            .map(String::as_str)
            .collect();
        self.0.lock().retain(|hub, _| named.contains(hub.as_str()));
    }

    /// Returns the numbers of hubs that fail, and of all that were told something; `None` if none was.
    pub(crate) fn counts(&self) -> Option<(usize, usize)> {
        let hubs = self.0.lock();
        let failing = hubs.values().filter(|error| error.is_some()).count();
        (!hubs.is_empty()).then_some((failing, hubs.len()))
    }

    /// Describes the hubs that fail, in a sentence; `None` if all is well, or another node tells them.
    pub(crate) fn problem(&self) -> Option<String> {
        let (failing, total) = self.counts()?;
        let hubs = self.0.lock();
        let (hub, error) = hubs.iter().find_map(|(hub, error)| Some((hub, error.as_ref()?)))?;
        let hub = redact::url(hub);
        Some(format!("Of {total} hubs of others, {failing} cannot be told of changes: {hub}: {error}."))
    }
}

/// Returns the hubs of others that a feed's documents name, with what each was told.
pub(crate) async fn ping_statuses(engine: &Engine, feed: &Feed) -> Result<Vec<HubStatus>, StoreError> {
    let hubs = engine.hubs_of(feed);
    if hubs.is_empty() {
        return Ok(Vec::new());
    }
    let mut told = records::load(engine.store.as_ref(), feed.id()).await?;
    Ok(hubs.iter().map(|hub| HubStatus { url: hub.clone(), ping: told.remove(hub) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::failing_store;

    #[tokio::test]
    async fn a_hub_that_is_named_no_more_is_forgotten() {
        let config = "[[feed]]\nid = \"notes\"\nhubs = [\"https://a.example/\"]\n";
        let (engine, _) = failing_store::engine(config).await;
        let health = PingHealth::of(&engine);
        health.record("https://a.example/", Some("it answered 503"));
        health.record("https://b.example/", Some("it answered 503"));
        health.forget_unnamed(&engine);
        assert_eq!(health.counts(), Some((1, 1)));
        assert!(health.problem().unwrap().contains("a.example"));
    }
}
