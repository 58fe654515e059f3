//! Keeping a tree current while feeds move.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use towpath_proto::FeedId;
use towpath_store::Head;

use super::target::Target;
use super::{ExportError, Summary, Tree, Which};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// How often all feeds are looked at: for what changes without a move, as snapshots do.
const ALL: Duration = Duration::from_secs(300);
/// The shortest and the longest wait after an export that failed.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Feeds that moved since they were exported.
#[derive(Default)]
struct Moved {
    feeds: Mutex<HashSet<FeedId>>,
    bell: Notify,
}

impl Moved {
    fn note(&self, feeds: impl IntoIterator<Item = FeedId>) {
        self.feeds.lock().extend(feeds);
        self.bell.notify_one();
    }

    fn take(&self) -> Vec<FeedId> {
        self.feeds.lock().drain().collect()
    }
}

/// Keeps the tree at a place current until `stop` turns true: exports what moved, at most once in `every`.
///
/// What is under way then is left as it is, with no link broken; the next start goes on from there.
pub async fn keep(
    engine: Arc<Engine>,
    target: Arc<dyn Target>,
    base_url: String,
    every: Duration,
    stop: Stop,
) {
    let moved = Arc::new(Moved::default());
    let noted = moved.clone();
    engine.store.on_move(Arc::new(move |id: &FeedId, _: Head| noted.note([id.clone()])));
    let keeper = Keeper { engine, target, base_url, every, moved };
    tokio::select! {
        () = keeper.run() => {}
        () = stopped(&stop) => {}
    }
}

struct Keeper {
    engine: Arc<Engine>,
    target: Arc<dyn Target>,
    base_url: String,
    every: Duration,
    moved: Arc<Moved>,
}

impl Keeper {
    async fn run(&self) {
        let mut tree = None;
        let mut trouble = Trouble::default();
        let mut next_all = Instant::now();
        loop {
            let (which, is_all) = match Instant::now() >= next_all {
                true => (Which::All, true),
                false => (Which::These(self.moved.take()), false),
            };
            let taken = if is_all { self.moved.take() } else { Vec::new() };
            match self.export(&mut tree, which.clone()).await {
                Ok(summary) => {
                    trouble.is_over(&summary);
                    if is_all {
                        next_all = Instant::now() + ALL;
                    }
                    let late = tree.as_ref().map(Tree::take_late).unwrap_or_default();
                    // What was put may be told of over all feeds a moment later only.
                    if summary.feeds > 0 || !late.is_empty() {
                        self.moved.note(late);
                    }
                    tokio::time::sleep(self.every).await;
                }
                Err(e) => {
                    self.engine.metrics.exports_failed.inc();
                    if let Which::These(ids) = which {
                        self.moved.note(ids);
                    }
                    self.moved.note(taken);
                    tokio::time::sleep(trouble.goes_on(&e)).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.moved.bell.notified() => {}
                () = tokio::time::sleep_until(next_all) => {}
            }
        }
    }

    async fn export(&self, tree: &mut Option<Tree>, which: Which) -> Result<Summary, ExportError> {
        let tree = match tree {
            Some(tree) => tree,
            None => tree.insert(Tree::open(&self.engine, self.target.clone(), &self.base_url).await?),
        };
        let summary = tree.export(which).await?;
        self.engine.metrics.exports_ok.inc();
        self.engine.metrics.export_documents.inc_by(summary.written);
        Ok(summary)
    }
}

/// What went wrong, told of once.
#[derive(Default)]
struct Trouble {
    told: Option<String>,
    wait: Duration,
}

impl Trouble {
    fn goes_on(&mut self, error: &ExportError) -> Duration {
        let message = error.to_string();
        if self.told.as_ref() != Some(&message) {
            tracing::warn!("{message}; it is tried again");
            self.told = Some(message);
        }
        self.wait = (self.wait * 2).clamp(SHORTEST, LONGEST);
        self.wait
    }

    fn is_over(&mut self, summary: &Summary) {
        let message = (!summary.failed.is_empty()).then(|| summary.failed.join("; "));
        match &message {
            Some(message) if self.told.as_ref() != Some(message) => tracing::warn!("{message}"),
            None if self.told.is_some() => tracing::info!("exporting again"),
            _ => {}
        }
        tracing::debug!(written = summary.written, removed = summary.removed, "exported");
        (self.told, self.wait) = (message, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::TargetError;
    use super::*;

    #[test]
    fn waits_grow_to_a_minute_and_begin_anew() {
        let mut trouble = Trouble::default();
        let storage = |reason: &str| TargetError::Storage { address: "s3://a".into(), reason: reason.into() };
        let waits: Vec<u64> =
            (0..8).map(|_| trouble.goes_on(&storage("no network").into()).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        trouble.is_over(&Summary::default());
        assert_eq!(trouble.goes_on(&storage("no network").into()), SHORTEST);
    }
}
