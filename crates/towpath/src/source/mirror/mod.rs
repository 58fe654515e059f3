//! Mirrors: feeds that follow another feed.

mod error;
mod files;
mod large;
mod redelivery;
mod run;
mod target;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;
use towpath_client::{
    Fetcher, FileStore, FollowNotice, FollowPace, FollowRoute, FollowerOptions, Output, Protocol,
    RouteOrigin, RouteRequest, drive, drive_with_calls, follower, pushed_follower, redact,
};
use towpath_proto::follow::{Followed, LargePart};
use towpath_proto::{NewChange, Op};
use towpath_store::{AppendError, Expected, Table, TableWrite};
use tracing::Instrument as _;

use self::error::{MirrorError, source_failure};
use self::files::MirrorFiles;
use self::large::LargeEntities;
use self::redelivery::UnconfirmedChanges;
use self::target::{MirrorEvent, MirrorTarget};
use crate::engine::attachments;
use crate::engine::mirror_state::{MirrorState, key};
use crate::engine::roles::{self, conditions};
use crate::protocols::websub;
use crate::stop::{Stop, stopped, unless_stopped};
use crate::store_error::StoreError;

pub use run::run;

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
    let held = saved.map(|saved| FollowRoute::held(saved.protocol, saved.follows, Some(saved.state)));
    let pace = if every.is_some() { FollowPace::Polled } else { FollowPace::Held };
    // An empty Smart Feed may hold the probe until its first item, so this must be interruptible.
    let finding = FollowRoute::find(fetcher, url, held, RouteRequest::default().with_pace(pace));
    let Some(route) = unless_stopped(stop, finding).await else { return Ok(()) };
    let route = route?;
    if let RouteOrigin::Discovered(why) = &route.origin {
        let (url, protocol) = (redact::url(&route.url), route.protocol);
        tracing::info!(feed = %feed.id(), url, %protocol, because = why, "mirroring");
    }
    let limits = feed.config.source.as_ref().map(|source| source.read_limits()).unwrap_or_default();
    let options = FollowerOptions::default().with_every(every).with_limits(limits);
    let saved = MirrorState {
        url: url.to_owned(),
        follows: route.url.clone(),
        protocol: route.protocol,
        seq: 0,
        source: None,
        state: Value::Null,
    };
    let (events, recorded) = mpsc::unbounded_channel();
    let mirror = Mirror::new(target.clone(), saved, events).await?;
    let options = options.with_large_folder(mirror.files.is_some().then(|| large::BASE.to_owned()));
    let driving = drive_mirror(mirror, route, options, fetcher, stop);
    // Beside the follow, which saving must not delay, and within it: what ends the follow ends this.
    let (driven, ()) = tokio::join!(driving, target.record_all(recorded));
    driven
}

async fn drive_mirror(
    mut mirror: Mirror,
    route: FollowRoute,
    options: FollowerOptions,
    fetcher: &Fetcher,
    stop: &Stop,
) -> Result<(), MirrorError> {
    let MirrorTarget { engine, feed, lease, .. } = mirror.target.clone();
    let is_pushed = feed.config.source.as_ref().is_some_and(|source| source.push);
    let driven = if is_pushed && route.protocol.has_hubs() {
        let callback = format!("{}/feeds/{}/callback", engine.base_url, feed.id());
        let (mut follower, key) = pushed_follower(route, options, &callback)?;
        let calls = websub::open_inbox(&engine, &feed, &key, &lease).await?;
        drive_with_calls(follower.as_mut(), fetcher, &mut mirror, stop, calls).await
    } else {
        let mut follower = follower(route, options)?;
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
    /// Changes appended after the saved checkpoint. The publisher will deliver them again.
    unconfirmed: UnconfirmedChanges,
    /// Events for the status. `notice` cannot wait for a save.
    events: mpsc::UnboundedSender<MirrorEvent>,
    /// Copies of files, if there are to be any.
    files: Option<MirrorFiles>,
    /// Entities of Data Replication that become files.
    large: LargeEntities,
}

impl Mirror {
    async fn new(
        target: MirrorTarget,
        mut saved: MirrorState,
        events: mpsc::UnboundedSender<MirrorEvent>,
    ) -> Result<Self, StoreError> {
        let MirrorTarget { engine, feed, .. } = &target;
        // The caller names URL and protocol only; the stored state has the position.
        if let Some(stored) = MirrorState::load(engine, feed, &saved.url).await? {
            saved = stored;
        }
        let mut unconfirmed = UnconfirmedChanges::default();
        let mut after = saved.seq;
        loop {
            // Usually empty: only a crash between append and checkpoint leaves changes here.
            let page = engine.store.read(feed.id(), after, towpath_store::ReadLimit::items(1000)).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            // Hashes only: after a crash there may be many, and items can be large.
            page.into_iter().for_each(|change| unconfirmed.push(change));
        }
        // A log that was restored from a copy may end before the checkpoint.
        after = after.min(engine.store.head(feed.id()).await?.seq);
        let files = MirrorFiles::of(engine, feed, &target.lease);
        Ok(Self { target, saved, seq: after, unconfirmed, events, files, large: LargeEntities::default() })
    }

    /// Fails at a change of a second source.
    ///
    /// DiffDelta's global feed has several, and an id may be in each: their items would overwrite each other.
    fn check_source(&mut self, changes: &[Followed]) -> Result<(), MirrorError> {
        if self.saved.protocol != Protocol::DiffDelta {
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

    fn record(&self, event: MirrorEvent) {
        // An error means that the follow ends.
        let _ = self.events.send(event);
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
        self.unconfirmed.forget_ambiguous(&changes);
        let changes: Vec<NewChange> =
            changes.into_iter().filter(|change| !self.unconfirmed.take(change)).collect();
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
        // Up to here everything is delivered.
        self.saved.seq = self.unconfirmed.first().map_or(self.seq, |first| first - 1);
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
                self.record(MirrorEvent::Problem(problem));
            }
            FollowNotice::Reset(text) => {
                let problem = redact::text(&text);
                tracing::error!(%feed, reason = problem, "the mirrored feed began anew");
                // Items that are gone stay in the mirror.
                self.record(MirrorEvent::Problem(problem));
            }
            FollowNotice::Failed(error) => {
                tracing::warn!(%feed, error = redact::text(&error.to_string()), "cannot follow");
                self.record(MirrorEvent::Failed(source_failure(&error)));
            }
            other => {
                tracing::warn!(%feed, reason = redact::text(&other.to_string()), "notice of the mirrored feed");
            }
        }
    }

    async fn caught_up(&mut self) {
        self.record(MirrorEvent::CaughtUp);
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
