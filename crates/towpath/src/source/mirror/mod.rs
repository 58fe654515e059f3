//! Mirrors: feeds that follow another feed.

mod error;
mod files;
mod large;
mod run;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::Mutex;
use towpath_client::{
    Fetcher, FileStore, FollowNotice, FollowPace, FollowerConfig, Output, Protocol, discover, drive,
    drive_with_calls, follower, pushed_follower, redact,
};
use towpath_proto::follow::{Backoff, FollowError, FollowMode, Followed, LargePart, StartFrom};
use towpath_proto::{Change, Content, ContentHash, Item, NewChange, Op};
use towpath_store::{AppendError, Expected, Table, TableWrite};
use tracing::Instrument as _;

use self::error::{MirrorError, source_failure};
use self::files::MirrorFiles;
use self::large::LargeEntities;
use super::metrics::SourceMetrics;
use super::poll::SAVED_PROBLEMS;
use super::state::{SourceFailure, SourceState};
use crate::engine::attachments;
use crate::engine::mirror_state::{MirrorState, key};
use crate::engine::roles::{self, Lease, conditions};
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::{Run, publish};
use crate::protocols::websub;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

pub use run::run;

/// Waits between attempts to follow.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(600));
/// Minimum time between two saves of a healthy mirror's state.
const SAVE_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// A local feed that mirrors another one.
#[derive(Clone)]
struct MirrorTarget {
    engine: Arc<Engine>,
    feed: Arc<Feed>,
    lease: Lease,
    /// State of the source, as shown in its status.
    state: Arc<Mutex<SourceState>>,
}

impl MirrorTarget {
    /// Records a successful sync, and saves it if it is a recovery or the last save is old.
    async fn record_success(&self) {
        let now = self.engine.now();
        let mut state = self.state.lock().await;
        // A date in the future is from a clock that was ahead: saving it again corrects it.
        let is_fresh =
            |at: Timestamp| (SignedDuration::ZERO..SAVE_INTERVAL).contains(&now.duration_since(at));
        // A recovery is published at once, so that readers of the status see it.
        let has_recovered = state.error.take().is_some();
        if !has_recovered && state.last_ok.is_some_and(is_fresh) {
            return;
        }
        (state.last_ok, state.failures) = (Some(now), 0);
        self.save(&state).await;
        if has_recovered {
            self.publish(Run::Polled).await;
        }
    }

    /// Records a failed attempt.
    async fn record_failure(&self, error: SourceFailure) {
        let run = Run::Failed { code: error.code.clone(), http_status: error.http_status };
        let mut state = self.state.lock().await;
        state.last_attempt = Some(self.engine.now());
        state.failures = state.failures.saturating_add(1);
        state.error = Some(error);
        self.save(&state).await;
        self.publish(run).await;
    }

    /// Records items that are missing, for the status. The state keeps the last few.
    async fn record_problem(&self, problem: String) {
        let mut state = self.state.lock().await;
        if state.problems.contains(&problem) {
            return;
        }
        if state.problems.len() >= SAVED_PROBLEMS {
            // The last ones: a feed that loses items for a month is known by what it loses now.
            state.problems.remove(0);
        }
        state.problems.push(problem);
        self.save(&state).await;
    }

    /// Wait before the next attempt: grows with consecutive failures.
    async fn retry_wait(&self) -> Duration {
        // A follow that ended without an error waits as well, or a publisher that closes at once would be asked
        // without pause.
        let failures = self.state.lock().await.failures.max(1);
        BACKOFF.jittered(failures, fastrand::u64(..))
    }

    async fn save(&self, state: &SourceState) {
        let Self { engine, feed, lease, .. } = self;
        if let Err(e) = state.save(engine.store.as_ref(), lease, feed.id()).await {
            tracing::error!(feed = %feed.id(), error = %e, "cannot save the state of the mirror");
        }
        SourceMetrics::record(feed, state);
    }

    async fn publish(&self, run: Run) {
        if let Err(e) = publish(&self.engine, &self.feed, run).await {
            tracing::error!(feed = %self.feed.id(), error = %e, "cannot publish");
        }
    }
}

async fn mirror(target: MirrorTarget, fetcher: Fetcher, url: String, stop: Stop) {
    while !*stop.borrow() {
        if let Err(e) = follow(&target, &fetcher, &url, &stop).await {
            let (url, reason) = (redact::url(&url), redact::text(&e.to_string()));
            tracing::warn!(feed = %target.feed.id(), url, reason, "cannot mirror");
            target.record_failure(e.to_source_error()).await;
        }
        tokio::select! {
            () = tokio::time::sleep(target.retry_wait().await) => {}
            () = stopped(&stop) => {}
        }
    }
}

async fn follow(target: &MirrorTarget, fetcher: &Fetcher, url: &str, stop: &Stop) -> Result<(), MirrorError> {
    let MirrorTarget { engine, feed, .. } = target;
    let saved = MirrorState::load(engine, feed, url).await?;
    let every = feed.config.source.as_ref().and_then(|source| source.every);
    let (followed_url, protocol, state) = match saved {
        Some(saved) => (saved.follows, saved.protocol, Some(saved.state)),
        None => {
            // An empty Smart Feed may hold the probe until its first item, so this must be interruptible.
            let pace = if every.is_some() { FollowPace::Polled } else { FollowPace::Held };
            let offer = tokio::select! {
                offer = discover(fetcher, url, pace) => offer,
                () = stopped(stop) => return Ok(()),
            };
            let offer = offer?;
            tracing::info!(
                feed = %feed.id(),
                url = redact::url(&offer.url),
                protocol = %offer.protocol,
                because = %offer.why,
                "mirroring"
            );
            (offer.url, offer.protocol.name().to_owned(), None)
        }
    };
    let follow_protocol: Protocol = protocol.parse().map_err(FollowError::Usage)?;
    let limits = feed.config.source.as_ref().map(|source| source.read_limits()).unwrap_or_default();
    let (url_followed, from) = (followed_url.clone(), StartFrom::Beginning);
    let config = FollowerConfig {
        url: url_followed,
        from,
        name: None,
        fixed_name: None,
        state,
        mode: FollowMode::Continuous,
        every,
        limits,
        large_folder: None,
    };
    let saved = MirrorState {
        url: url.to_owned(),
        follows: followed_url,
        protocol,
        seq: 0,
        source: None,
        state: Value::Null,
    };
    let mut mirror = Mirror::new(target.clone(), saved).await?;
    let config =
        FollowerConfig { large_folder: mirror.files.is_some().then(|| large::BASE.to_owned()), ..config };
    let is_pushed = feed.config.source.as_ref().is_some_and(|source| source.push);
    let driven = if is_pushed && follow_protocol.has_hubs() {
        let callback = format!("{}/feeds/{}/callback", engine.base_url, feed.id());
        let (mut follower, key) = pushed_follower(follow_protocol, config, &callback)?;
        let calls = websub::open_inbox(engine, feed, &key, &target.lease).await?;
        drive_with_calls(follower.as_mut(), fetcher, &mut mirror, stop, calls).await
    } else {
        let mut follower = follower(follow_protocol, config)?;
        drive(follower.as_mut(), fetcher, &mut mirror, stop).await
    };
    // Also after an error: the parts are in the store, and nothing else would end them before a day.
    mirror.large.clear().await;
    driven.map(drop)
}

/// Output that appends to the local log.
///
/// Changes are appended before their checkpoint is saved. After a crash between the two, the publisher delivers them
/// again. The mirror recognises them, so that nothing is appended twice.
struct Mirror {
    target: MirrorTarget,
    saved: MirrorState,
    /// Last `seq` of the local log, as far as this mirror knows.
    seq: u64,
    /// Changes appended after the saved checkpoint, oldest first, with their positions. The publisher will deliver them
    /// again.
    unconfirmed: VecDeque<(u64, AppendedChange)>,
    /// Copies of files, if there are to be any.
    files: Option<MirrorFiles>,
    /// Entities of Data Replication that become files.
    large: LargeEntities,
}

/// Identity of an appended change, to recognise its redelivery without holding the item in memory.
#[derive(Debug, PartialEq)]
struct AppendedChange {
    op: Op,
    id: String,
    /// Hash of the item for a put, of the patch for a patch, zero for a deletion.
    hash: ContentHash,
    entry_id: Option<String>,
}

impl AppendedChange {
    /// Identity and position of a change in the log.
    fn from_log(change: Change) -> (u64, Self) {
        let Change { seq, op, item, patch, entry_id, hash, .. } = change;
        // The hash of a patch's change is that of the resulting item.
        let hash = if op == Op::Patch { hash_of_patch(patch) } else { hash };
        (seq, Self { op, id: item.id, hash, entry_id })
    }

    /// Identity of a delivered change.
    fn from_delivery(change: &NewChange) -> Self {
        let hash = match change.op {
            Op::Put => change.hash.unwrap_or_else(|| change.item.content_hash()),
            Op::Patch => hash_of_patch(change.patch.clone()),
            Op::Delete => ContentHash::default(),
        };
        Self { op: change.op, id: change.item.id.clone(), hash, entry_id: change.entry_id.clone() }
    }
}

/// Hashes a patch as an item that has only the patch as content.
fn hash_of_patch(patch: Option<Content>) -> ContentHash {
    Item { content: patch, ..Item::default() }.content_hash()
}

impl Mirror {
    async fn new(target: MirrorTarget, mut saved: MirrorState) -> Result<Self, StoreError> {
        let MirrorTarget { engine, feed, .. } = &target;
        // The caller names URL and protocol only; the stored state has the position.
        if let Some(stored) = MirrorState::load(engine, feed, &saved.url).await? {
            saved = stored;
        }
        let mut unconfirmed = VecDeque::new();
        let mut after = saved.seq;
        loop {
            // Usually empty: only a crash between append and checkpoint leaves changes here.
            let page = engine.store.read(feed.id(), after, towpath_store::ReadLimit::items(1000)).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            // Hashes only: after a crash there may be many, and items can be large.
            unconfirmed.extend(page.into_iter().map(AppendedChange::from_log));
        }
        // A log that was restored from a copy may end before the checkpoint.
        after = after.min(engine.store.head(feed.id()).await?.seq);
        let files = MirrorFiles::of(engine, feed, &target.lease);
        Ok(Self { target, saved, seq: after, unconfirmed, files, large: LargeEntities::default() })
    }

    /// Fails at a change of a second source.
    ///
    /// DiffDelta's global feed has several, and an id may be in each: their items would overwrite each other.
    fn check_source(&mut self, changes: &[Followed]) -> Result<(), MirrorError> {
        if self.saved.protocol != Protocol::DiffDelta.name() {
            return Ok(());
        }
        for change in changes {
            let first = self.saved.source.get_or_insert_with(|| change.feed.clone());
            if *first != change.feed {
                let (url, first, second) = (self.saved.follows.clone(), first.clone(), change.feed.clone());
                return Err(MirrorError::SeveralSources { url, first, second });
            }
        }
        Ok(())
    }

    /// Returns true if this change is the redelivery of the next unconfirmed one.
    fn is_redelivered(&mut self, change: &NewChange) -> bool {
        let Some((_, next)) = self.unconfirmed.front() else { return false };
        if *next == AppendedChange::from_delivery(change) {
            self.unconfirmed.pop_front();
            return true;
        }
        // The publisher's history differs from the log. From here on every change is new.
        self.unconfirmed.clear();
        false
    }

    /// Forgets unconfirmed changes that may only look like those of a unit.
    ///
    /// A publisher that collapses its history delivers the last change of an item alone. It may have set the item back to
    /// what it was before a later unconfirmed change.
    fn forget_ambiguous(&mut self, changes: &[NewChange]) {
        if self.unconfirmed.is_empty() {
            return;
        }
        let pairs = changes.iter().zip(&self.unconfirmed);
        let same =
            pairs.take_while(|(change, (_, known))| AppendedChange::from_delivery(change) == *known).count();
        let later: HashSet<&str> =
            self.unconfirmed.range(same..).map(|(_, known)| known.id.as_str()).collect();
        let new: HashSet<&str> = changes[same..].iter().map(|change| change.item.id.as_str()).collect();
        let is_ambiguous = |change: &NewChange| {
            let id = change.item.id.as_str();
            change.entry_id.is_none() && later.contains(id) && !new.contains(id)
        };
        if let Some(first) = changes[..same].iter().position(is_ambiguous) {
            self.unconfirmed.truncate(first);
        }
    }

    /// Returns the position in the log up to which everything is delivered.
    fn confirmed(&self) -> u64 {
        self.unconfirmed.front().map_or(self.seq, |(seq, _)| seq - 1)
    }
}

impl Mirror {
    /// Records a problem beside the follow: notice() is synchronous, and saving must not delay the follower.
    fn record_problem(&self, problem: String) {
        let target = self.target.clone();
        tokio::spawn(async move { target.record_problem(problem).await }.boxed());
    }

    /// Appends changes. If a patch among them cannot be applied, appends those before it and fails.
    ///
    /// The next attempt delivers these again with the patch, and they are recognised.
    async fn append(&mut self, changes: Vec<NewChange>) -> Result<(), MirrorError> {
        let has_patch = changes.iter().any(|change| change.op == Op::Patch);
        let mut applicable = if has_patch { changes.clone() } else { Vec::new() };
        let appended = self.append_all(changes).await;
        if let Err(MirrorError::Append(AppendError::Patch { index, .. })) = appended {
            applicable.truncate(index);
            self.append_all(applicable).await?;
        }
        appended
    }

    async fn append_all(&mut self, changes: Vec<NewChange>) -> Result<(), MirrorError> {
        let MirrorTarget { engine, feed, lease, .. } = &self.target;
        // If another node has taken over the mirror, both would append the same changes.
        roles::check(lease)?;
        // An earlier append whose sync failed, or whose follow was ended, may come to be in the log after it was read.
        let expected = Expected::Last(self.seq);
        let span = crate::spans::span!("append", feed = %feed.id(), changes = changes.len());
        let appended = engine.store.append(feed.id(), expected, changes).instrument(span).await?;
        self.seq = appended.head.seq;
        Ok(())
    }
}

impl Output for Mirror {
    type Error = MirrorError;

    async fn deliver(
        &mut self,
        mut changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), Self::Error> {
        self.check_source(&changes)?;
        let MirrorTarget { engine, feed, lease, .. } = self.target.clone();
        if let Some(files) = &self.files {
            for change in &mut changes {
                self.large.place(files, change).await?;
            }
        }
        let changes: Vec<NewChange> = changes.into_iter().map(new_change).collect();
        let (deleted, present) = changes.iter().partition::<Vec<_>, _>(|change| change.op == Op::Delete);
        let [deleted, present] = [deleted, present].map(ids);
        self.forget_ambiguous(&changes);
        let changes: Vec<NewChange> =
            changes.into_iter().filter(|change| !self.is_redelivered(change)).collect();
        if !changes.is_empty() {
            self.append(changes).await?;
        }
        // Of redelivered changes, too: a crash may have come between the append and this.
        if let Some(files) = &self.files {
            files.finish(&present).await;
        }
        attachments::forget(&engine, feed.id(), &deleted).await?;
        let Some(state) = checkpoint else { return Ok(()) };
        self.saved.state = state;
        self.saved.seq = self.confirmed();
        let value = serde_json::to_vec(&self.saved).unwrap_or_default();
        let write = TableWrite { table: Table::Sources, key: key(&feed), value: Some(value.into()) };
        engine.store.write(vec![write], conditions(&lease)).await?;
        Ok(())
    }

    fn files(&self) -> Option<Arc<dyn FileStore<Self::Error>>> {
        let files = self.files.clone()?;
        Some(Arc::new(files))
    }

    async fn store_part(&mut self, part: LargePart) -> Result<Option<LargePart>, Self::Error> {
        let Some(files) = &self.files else { return Ok(Some(part)) };
        self.large.take(files, part).await?;
        Ok(None)
    }

    fn notice(&mut self, notice: FollowNotice) {
        let feed = self.target.feed.id();
        match notice {
            FollowNotice::Warning(text) => {
                tracing::warn!(%feed, reason = redact::text(&text), "warning of the mirrored feed");
            }
            FollowNotice::Incomplete(text) => {
                let problem = redact::text(&text);
                tracing::error!(%feed, reason = problem, "items are missing");
                self.record_problem(problem);
            }
            FollowNotice::Reset(text) => {
                let problem = redact::text(&text);
                tracing::error!(%feed, reason = problem, "the mirrored feed began anew");
                // Items that are gone stay in the mirror.
                self.record_problem(problem);
            }
            FollowNotice::Failed(error) => {
                tracing::warn!(%feed, error = redact::text(&error.to_string()), "cannot follow");
                let target = self.target.clone();
                tokio::spawn(async move { target.record_failure(source_failure(&error)).await }.boxed());
            }
        }
    }

    async fn caught_up(&mut self) {
        self.target.record_success().await;
    }
}

fn ids(changes: Vec<&NewChange>) -> Vec<String> {
    changes.into_iter().map(|change| change.item.id.clone()).collect()
}

fn new_change(followed: Followed) -> NewChange {
    let Followed { op, item, patch, modified, entry_id, .. } = followed;
    NewChange { op, item, patch, modified, entry_id, hash: None }
}

#[cfg(test)]
mod tests;
