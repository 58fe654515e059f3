//! Keeping a tree up to date.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use towpath_client::Fetcher;
use towpath_proto::follow::Backoff;

use crate::engine::Engine;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::export_health::ExportHealth;
use crate::engine::roles::{self, Lease, Roles};
use crate::export::summary::ExportSummary;
use crate::export::target::Target;
use crate::export::tree::{ExportError, ExportedFeeds, Tree, name_of, stored_name};
use crate::protocols::diffdelta::Recovery;
use crate::protocols::websub::pings::{PingSite, Pinger};
use crate::stop::{Stop, stopped};

/// Interval of exporting all feeds: snapshots, for example, change without an append.
const FULL_INTERVAL: Duration = Duration::from_secs(300);
/// Waits after failed exports.
// A bucket that is unreachable for a night must not be asked every second.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60));

/// A tree to keep up to date.
#[derive(Clone)]
pub struct KeptTree {
    /// Target of the tree.
    pub target: Arc<dyn Target>,
    /// Address that its readers use, without a slash at its end.
    pub base_url: String,
    /// Shortest time between two exports.
    pub every: Duration,
}

/// Keeps a tree up to date while this node has the role, until `stop` turns true.
///
/// Any number of nodes may be configured with the same target: the role has the tree's name.
pub async fn keep(engine: Arc<Engine>, roles: Arc<Roles>, fetcher: Arc<Fetcher>, kept: KeptTree, stop: Stop) {
    // Shown from the start, and not only once something failed.
    record(&engine, &kept, None);
    // Again for each tree that takes the place of one that was removed.
    while !*stop.borrow() {
        // Before the role is asked for, since the role has the tree's name.
        let Some(name) = name(&engine, &kept, &stop).await else { return };
        let (end, ends) = watch::channel(false);
        let (end, changes) = (Arc::new(end), ChangedFeeds::of(&engine));
        let task = |lease, stop| {
            let (engine, kept, name, changes) = (engine.clone(), kept.clone(), name.clone(), changes.clone());
            let keeper = TreeKeeper { engine, kept, name, changes, lease, end: end.clone() };
            keep_now(keeper, fetcher.clone(), stop)
        };
        let role = roles::export(&name);
        let mut keeping = pin!(roles.run_while_held(&role, ends, task));
        tokio::select! {
            () = &mut keeping => {}
            () = stopped(&stop) => {
                let _ = end.send(true);
                keeping.await;
            }
        }
    }
}

/// Records the end of an export, or of an attempt to begin one.
fn record(engine: &Engine, kept: &KeptTree, failure: Option<&str>) {
    ExportHealth::of(engine).record(&kept.base_url, failure, engine.now());
}

/// Reads the tree's name, as soon as its target responds.
async fn name(engine: &Engine, kept: &KeptTree, stop: &Stop) -> Option<String> {
    let mut backoff = ExportBackoff::default();
    loop {
        let wait = match name_of(kept.target.as_ref()).await {
            Ok(name) => {
                // The failure of an export is over with the next one only.
                if backoff.failures > 0 {
                    record(engine, kept, None);
                }
                return Some(name);
            }
            Err(e) => {
                engine.metrics.exports_failed.inc();
                record(engine, kept, Some(&e.to_string()));
                backoff.failed(&e)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped(stop) => return None,
        }
    }
}

/// Exports changed feeds at the configured interval. An export that `stop` interrupts leaves no broken link, and the next
/// holder of the role continues it.
async fn keep_now(keeper: TreeKeeper, fetcher: Arc<Fetcher>, stop: Stop) {
    let changes = keeper.changes.clone();
    // Before the first export reads any head: an append in between is exported once more, rather than missed.
    let _collecting = changes.collect();
    let site = PingSite::tree(&keeper.name, &keeper.kept.base_url);
    let pinger = Pinger::open(&keeper.engine, fetcher, site, keeper.lease.clone()).await;
    let exporting = async {
        tokio::select! {
            // Broken off wherever it is: puts are atomic, and the stored state tells the next holder.
            () = keeper.run(&pinger) => {}
            () = stopped(&stop) => {}
        }
    };
    // Beside each other: a slow hub delays no export.
    tokio::join!(exporting, pinger.clone().run(stop.clone()));
    // Another node keeps the tree now, and knows how it is. A tree that was removed is not whole before it is written anew.
    if !*keeper.end.borrow() {
        record(&keeper.engine, &keeper.kept, None);
    }
}

struct TreeKeeper {
    engine: Arc<Engine>,
    kept: KeptTree,
    name: String,
    changes: Arc<ChangedFeeds>,
    lease: Lease,
    /// Ends the keeping of this tree.
    end: Arc<watch::Sender<bool>>,
}

impl TreeKeeper {
    async fn run(&self, pinger: &Pinger) {
        // A tree would lack the documents over all feeds.
        Recovery::of(&self.engine).ended().await;
        let mut tree = None;
        let mut backoff = ExportBackoff::default();
        let mut next_all = Instant::now();
        loop {
            if self.is_replaced().await {
                tracing::warn!(
                    tree = self.name,
                    "the exported tree was removed or replaced, and is written anew"
                );
                let _ = self.end.send(true);
                return;
            }
            let (which, is_all) = match Instant::now() >= next_all {
                // The first as well: what changed before this node had the role is not known to it.
                true => (ExportedFeeds::All, true),
                false => (ExportedFeeds::These(self.changes.take()), false),
            };
            // Kept for the case that the export fails: an export of all includes them.
            let taken = if is_all { self.changes.take() } else { Vec::new() };
            match self.export(&mut tree, which.clone()).await {
                Ok(summary) => {
                    let failed = (!summary.failed.is_empty()).then(|| summary.failed.join("; "));
                    record(&self.engine, &self.kept, failed.as_deref());
                    backoff.succeeded(&summary);
                    if is_all {
                        next_all = Instant::now() + FULL_INTERVAL;
                    }
                    let late = tree.as_ref().map(Tree::take_late).unwrap_or_default();
                    // After the export: a hub reads the documents when it is told.
                    for (feed, seq) in tree.as_ref().map(Tree::take_moved).unwrap_or_default() {
                        pinger.handle_change(&feed, seq);
                    }
                    // The global feed may show the exported changes a moment later only, so another round follows.
                    if summary.feeds > 0 || !late.is_empty() {
                        self.changes.mark(late);
                    }
                    // Before waiting for changes: appends meanwhile go into one export.
                    tokio::time::sleep(self.kept.every).await;
                }
                Err(e) => {
                    self.engine.metrics.exports_failed.inc();
                    record(&self.engine, &self.kept, Some(&e.to_string()));
                    if let ExportedFeeds::These(ids) = which {
                        self.changes.mark(ids);
                    }
                    self.changes.mark(taken);
                    tokio::time::sleep(backoff.failed(&e)).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.changes.changed() => {}
                () = tokio::time::sleep_until(next_all) => {}
            }
        }
    }

    /// Returns true if the tree at the target is not this one any more. What is known of its files is wrong then.
    async fn is_replaced(&self) -> bool {
        // A target that does not answer now says nothing of its tree.
        stored_name(self.kept.target.as_ref()).await.is_ok_and(|name| name.as_ref() != Some(&self.name))
    }

    async fn export(
        &self,
        tree: &mut Option<Tree>,
        which: ExportedFeeds,
    ) -> Result<ExportSummary, ExportError> {
        let tree = match tree {
            Some(tree) => tree,
            None => {
                let KeptTree { target, base_url, .. } = &self.kept;
                let opened =
                    Tree::open(&self.engine, target.clone(), &self.name, base_url, self.lease.clone())
                        .await?;
                tree.insert(opened)
            }
        };
        let summary = tree.export(which).await?;
        self.engine.metrics.exports_ok.inc();
        self.engine.metrics.export_documents.inc_by(summary.written);
        Ok(summary)
    }
}

/// Logs repeated errors once, and grows the wait between attempts.
#[derive(Default)]
struct ExportBackoff {
    logged: Option<String>,
    failures: u32,
}

impl ExportBackoff {
    fn failed(&mut self, error: &ExportError) -> Duration {
        let message = error.to_string();
        if self.logged.as_ref() != Some(&message) {
            tracing::warn!(error = message, "cannot export, and try again");
            self.logged = Some(message);
        }
        self.failures = self.failures.saturating_add(1);
        BACKOFF.wait(self.failures)
    }

    fn succeeded(&mut self, summary: &ExportSummary) {
        // Feeds that fail are logged once, not with every export.
        let message = (!summary.failed.is_empty()).then(|| summary.failed.join("; "));
        match &message {
            Some(message) if self.logged.as_ref() != Some(message) => {
                tracing::warn!(error = message, "some feeds are not exported");
            }
            None if self.logged.is_some() => tracing::info!("exporting again"),
            _ => {}
        }
        tracing::debug!(written = summary.written, removed = summary.removed, "exported");
        (self.logged, self.failures) = (message, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::target::TargetError;

    #[test]
    fn waits_grow_to_a_minute_and_begin_anew() {
        let mut backoff = ExportBackoff::default();
        let storage = |reason: &str| TargetError::Storage { address: "s3://a".into(), reason: reason.into() };
        let waits: Vec<u64> =
            (0..8).map(|_| backoff.failed(&storage("no network").into()).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.succeeded(&ExportSummary::default());
        assert_eq!(backoff.failed(&storage("no network").into()), Duration::from_secs(1));
    }
}
