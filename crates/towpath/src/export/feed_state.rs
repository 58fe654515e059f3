//! State of a feed that decides whether its documents in a tree are up to date.

use sha2::{Digest, Sha256};
use towpath_proto::format::FeedAbout;
use towpath_proto::replication::pages::Cleanup;

use crate::engine::feed_about::feed_about;
use crate::engine::{Engine, Feed};
use crate::export::tree_state::FeedExtent;
use crate::protocols::diffdelta::export as chains;
use crate::protocols::pages::cleanup;
use crate::protocols::replication::snapshot;
use crate::store_error::StoreError;

/// Version of the exported documents. Increment it when the same feed gives other documents.
const FORM: &str = "towpath tree 2";

/// State of a feed, from a few records.
pub(super) struct ExportState {
    pub(super) settings: String,
    pub(super) seq: u64,
    pub(super) chain: chains::ChainProgress,
    pub(super) cleanup: Cleanup,
    pub(super) snapshots: Vec<snapshot::Snapshot>,
}

impl ExportState {
    /// Reads the state of a feed.
    pub(super) async fn of(engine: &Engine, feed: &Feed) -> Result<Self, StoreError> {
        Ok(Self {
            settings: settings(engine, feed, &feed_about(engine, feed).await?),
            seq: engine.store.head(feed.id()).await?.seq,
            chain: chains::progress(engine, feed).await?,
            cleanup: cleanup(engine, feed).await?,
            snapshots: snapshot::list(engine, feed).await?,
        })
    }

    /// Returns true if a tree has this state already.
    pub(super) fn is(&self, done: &FeedExtent) -> bool {
        let snapshots = self.snapshots.iter().map(|one| (one.id, one.pages));
        self.settings == done.settings
            && self.seq == done.seq
            && self.chain.snapshots == done.archives
            && (self.cleanup.first_page, self.cleanup.gone_below) == (done.first_page, done.gone_below)
            && snapshots.eq(done.snapshots.iter().copied())
    }
}

/// Returns a digest of the settings that a feed's documents depend on.
fn settings(engine: &Engine, feed: &Feed, about: &FeedAbout) -> String {
    let config = &feed.config;
    let grace = config.retention.map(|retention| retention.grace);
    let all = format!(
        "{FORM}\n{}\n{}\n{about:?}\n{:?}\n{:?}\n{}\n{grace:?}\n{}\n{:?}",
        // Another version may render differently, so an upgrade exports everything once.
        env!("CARGO_PKG_VERSION"),
        engine.base_url,
        config.title(),
        config.ttl,
        config.complete,
        config.recent_items,
        engine.hubs_of(feed),
    );
    hex::encode(&Sha256::digest(all)[..12])
}
