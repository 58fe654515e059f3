//! Keeping a tree current while feeds move.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use towpath_proto::FeedId;
use towpath_store::Head;

use super::target::Target;
use super::{ExportError, Summary, Tree, Which, name_of};
use crate::engine::Engine;
use crate::engine::roles::{self, Lease, Roles};
use crate::stop::{Stop, stopped};

/// How often all feeds are looked at: for what changes without a move, as snapshots do.
const ALL: Duration = Duration::from_secs(300);
/// The shortest and the longest wait after an export that failed.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// A tree that is to be kept.
#[derive(Clone)]
pub struct Kept {
    /// Where.
    pub target: Arc<dyn Target>,
    /// The address of its readers, without a slash at its end.
    pub base_url: String,
    /// The shortest time between two exports.
    pub every: Duration,
}

/// Feeds that moved since they were exported.
#[derive(Default)]
struct Moves {
    feeds: Mutex<HashSet<FeedId>>,
    bell: Notify,
    /// Whether somebody takes them.
    is_watched: AtomicBool,
}

impl Moves {
    /// Listens to all of them.
    fn of(engine: &Engine) -> Arc<Self> {
        let moves = Arc::new(Self::default());
        let noted = moves.clone();
        engine.store.on_move(Arc::new(move |id: &FeedId, _: Head| {
            if noted.is_watched.load(Ordering::Acquire) {
                noted.note([id.clone()]);
            }
        }));
        moves
    }

    fn note(&self, feeds: impl IntoIterator<Item = FeedId>) {
        self.feeds.lock().extend(feeds);
        self.bell.notify_one();
    }

    fn take(&self) -> Vec<FeedId> {
        self.feeds.lock().drain().collect()
    }
}

/// Keeps a tree current whenever this node is the one that does, until `stop` turns true.
///
/// Any number of nodes may be told to keep a tree at the same place: its name is that of the role.
pub async fn keep(engine: Arc<Engine>, roles: Arc<Roles>, kept: Kept, stop: Stop) {
    let Some(name) = name(&engine, &kept, &stop).await else { return };
    let moves = Moves::of(&engine);
    let task = |lease, stop| {
        let (engine, kept, name, moves) = (engine.clone(), kept.clone(), name.clone(), moves.clone());
        keep_now(Keeper { engine, kept, name, moves, lease }, stop)
    };
    roles.run_while_held(&roles::export(&name), stop, task).await;
}

/// The tree's name, as soon as its place answers.
async fn name(engine: &Engine, kept: &Kept, stop: &Stop) -> Option<String> {
    let mut trouble = Trouble::default();
    loop {
        let wait = match name_of(kept.target.as_ref()).await {
            Ok(name) => return Some(name),
            Err(e) => {
                engine.metrics.exports_failed.inc();
                trouble.goes_on(&e)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped(stop) => return None,
        }
    }
}

/// Exports what moved, at most once in so long. What is under way when `stop` turns true is left as it is, with no link
/// broken: whoever comes next goes on from there.
async fn keep_now(keeper: Keeper, stop: Stop) {
    let moves = keeper.moves.clone();
    moves.is_watched.store(true, Ordering::Release);
    tokio::select! {
        () = keeper.run() => {}
        () = stopped(&stop) => {}
    }
    moves.is_watched.store(false, Ordering::Release);
    moves.take();
}

struct Keeper {
    engine: Arc<Engine>,
    kept: Kept,
    name: String,
    moves: Arc<Moves>,
    lease: Lease,
}

impl Keeper {
    async fn run(&self) {
        let mut tree = None;
        let mut trouble = Trouble::default();
        let mut next_all = Instant::now();
        loop {
            let (which, is_all) = match Instant::now() >= next_all {
                true => (Which::All, true),
                false => (Which::These(self.moves.take()), false),
            };
            let taken = if is_all { self.moves.take() } else { Vec::new() };
            match self.export(&mut tree, which.clone()).await {
                Ok(summary) => {
                    trouble.is_over(&summary);
                    if is_all {
                        next_all = Instant::now() + ALL;
                    }
                    let late = tree.as_ref().map(Tree::take_late).unwrap_or_default();
                    // What was put may be told of over all feeds a moment later only.
                    if summary.feeds > 0 || !late.is_empty() {
                        self.moves.note(late);
                    }
                    tokio::time::sleep(self.kept.every).await;
                }
                Err(e) => {
                    self.engine.metrics.exports_failed.inc();
                    if let Which::These(ids) = which {
                        self.moves.note(ids);
                    }
                    self.moves.note(taken);
                    tokio::time::sleep(trouble.goes_on(&e)).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.moves.bell.notified() => {}
                () = tokio::time::sleep_until(next_all) => {}
            }
        }
    }

    async fn export(&self, tree: &mut Option<Tree>, which: Which) -> Result<Summary, ExportError> {
        let tree = match tree {
            Some(tree) => tree,
            None => {
                let Kept { target, base_url, .. } = &self.kept;
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
