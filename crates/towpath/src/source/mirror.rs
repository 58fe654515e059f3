//! Feeds that follow another feed: a follow is also a source.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;
use towpath_proto::follow::{FollowError, Followed, StartFrom};
use towpath_proto::{Change, Content, ContentHash, Item, NewChange, Op};
use towpath_store::{AppendError, Expected, StoreError, Table, Write};

use super::poll::fingerprint;
use super::state::{SourceError, SourceState};
use crate::client::{
    DiscoverError, Fetcher, Follow, Notice, Output, Protocol, backoff, discover, drive, drive_called,
    follower, pushed_follower,
};
use crate::engine::diffdelta::{Run, publish};
use crate::engine::roles::{self, Lease, Shard, conditions};
use crate::engine::{Engine, Feed, push};
use crate::shown;
use crate::stop::{Stop, stopped};

/// The longest time between two attempts to follow.
const LONGEST: Duration = Duration::from_secs(600);
/// How often it is kept that a publisher answers.
const KEPT_EVERY: SignedDuration = SignedDuration::from_secs(10);

/// Follows every feed of a shard that the configuration says to mirror, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, fetcher: Arc<Fetcher>, shard: Shard, lease: Lease, stop: Stop) {
    let mut follows = tokio::task::JoinSet::new();
    for feed in engine.feeds().into_iter().filter(|feed| shard.has(feed.id().as_str())) {
        let Some((source, url)) = feed.config.mirrored().filter(|(source, _)| source.enabled) else {
            continue;
        };
        let (configured, url) = (fingerprint(source), url.to_owned());
        let fetcher = fetcher.with_headers(&url, source.header_map());
        let state = SourceState::load(engine.store.as_ref(), feed.id(), &configured).await;
        let state = state.unwrap_or_else(|e| {
            tracing::error!(feed = %feed.id(), "{e}");
            SourceState { configured, ..SourceState::default() }
        });
        let (engine, lease, state) = (engine.clone(), lease.clone(), Arc::new(Mutex::new(state)));
        let own = Own { engine, feed, lease, state };
        follows.spawn(mirror(own, fetcher, url, stop.clone()));
    }
    while follows.join_next().await.is_some() {}
}

/// A feed of ours that mirrors another one.
#[derive(Clone)]
struct Own {
    engine: Arc<Engine>,
    feed: Arc<Feed>,
    lease: Lease,
    /// How it is, for people to see.
    state: Arc<Mutex<SourceState>>,
}

impl Own {
    /// Notes that the publisher answered; makes that last where it is news.
    async fn well(&self) {
        let now = self.engine.now();
        let mut state = self.state.lock().await;
        let is_fresh = |at: Timestamp| now.duration_since(at) < KEPT_EVERY;
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

    /// Notes that an attempt failed.
    async fn failed(&self, error: SourceError) {
        let run = Run::Failed { code: error.code.clone(), http_status: error.http_status };
        let mut state = self.state.lock().await;
        state.last_attempt = Some(self.engine.now());
        state.failures = state.failures.saturating_add(1);
        state.error = Some(error);
        self.save(&state).await;
        self.publish(run).await;
    }

    /// How long to wait before following is tried again: longer and longer, until all is well.
    async fn pause(&self) -> Duration {
        let failures = self.state.lock().await.failures.max(1);
        backoff(failures, Duration::from_secs(2), LONGEST, fastrand::u64(..))
    }

    async fn save(&self, state: &SourceState) {
        let Self { engine, feed, lease, .. } = self;
        if let Err(e) = state.save(engine.store.as_ref(), lease, feed.id()).await {
            tracing::error!(feed = %feed.id(), "cannot keep how the mirror is: {e}");
        }
    }

    async fn publish(&self, run: Run) {
        if let Err(e) = publish(&self.engine, &self.feed, run).await {
            tracing::error!(feed = %self.feed.id(), "cannot publish: {e}");
        }
    }
}

async fn mirror(own: Own, fetcher: Fetcher, url: String, stop: Stop) {
    while !*stop.borrow() {
        if let Err(e) = follow(&own, &fetcher, &url, &stop).await {
            let (place, reason) = (shown::address(&url), shown::text(&e.to_string()));
            tracing::warn!(feed = %own.feed.id(), "cannot mirror {place}: {reason}");
            own.failed(e.kept()).await;
        }
        tokio::select! {
            () = tokio::time::sleep(own.pause().await) => {}
            () = stopped(&stop) => {}
        }
    }
}

/// Why a mirror stopped for now.
#[derive(Debug, thiserror::Error)]
enum MirrorError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl MirrorError {
    fn kept(&self) -> SourceError {
        let message = self.to_string();
        let code = match self {
            Self::Discover(DiscoverError::Transfer { source, .. }) => {
                return SourceError::of_transfer(source, message);
            }
            Self::Discover(DiscoverError::Status { status, .. }) => {
                return SourceError::of_status(*status, message);
            }
            Self::Discover(DiscoverError::Unknown { .. }) => "NOT_FOLLOWABLE",
            Self::Follow(error) => return failed(error),
            // Of a type that cannot be applied here, or to something else than the publisher had: the mirror
            // stays where it is.
            Self::Append(AppendError::Patch { .. }) => "PATCH_NOT_APPLICABLE",
            Self::Append(_) => "STORE_ERROR",
        };
        SourceError::new(code, message)
    }
}

impl From<StoreError> for MirrorError {
    fn from(error: StoreError) -> Self {
        Self::Append(error.into())
    }
}

async fn follow(own: &Own, fetcher: &Fetcher, url: &str, stop: &Stop) -> Result<(), MirrorError> {
    let Own { engine, feed, .. } = own;
    let kept = Kept::load(engine, feed, url).await?;
    let (place, protocol, state) = match kept {
        Some(kept) => (kept.follows, kept.protocol, Some(kept.state)),
        None => {
            // A feed that is empty may let this wait for its first item.
            let offer = tokio::select! {
                offer = discover(fetcher, url) => offer,
                () = stopped(stop) => return Ok(()),
            };
            let offer = offer?;
            tracing::info!(feed = %feed.id(), "mirroring {} by {}, because {}", shown::address(&offer.url), offer.protocol, offer.why);
            (offer.url, offer.protocol.name().to_owned(), None)
        }
    };
    let known: Protocol = protocol.parse().map_err(FollowError::Usage)?;
    let every = feed.config.source.as_ref().and_then(|source| source.every);
    let follow = Follow { url: place.clone(), from: StartFrom::Beginning, state, once: false, every };
    let kept = Kept { url: url.to_owned(), follows: place, protocol, seq: 0, state: Value::Null };
    let mut mirror = Mirror::new(own.clone(), kept).await?;
    if feed.config.source.as_ref().is_some_and(|source| source.push) && known == Protocol::Smart {
        let callback = format!("{}/feeds/{}/callback", engine.base_url, feed.id());
        let (mut follower, key) = pushed_follower(follow, &callback)?;
        let calls = push::open_inbox(engine, feed, &key, &own.lease).await?;
        drive_called(&mut follower, fetcher, &mut mirror, stop, calls).await?;
    } else {
        drive(follower(known, follow)?.as_mut(), fetcher, &mut mirror, stop).await?;
    }
    Ok(())
}

/// How far a mirror is.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    /// The configured address; another one begins anew.
    url: String,
    /// The address that is followed, as discovered.
    follows: String,
    protocol: String,
    /// Where our own log ended when `state` was current.
    seq: u64,
    state: Value,
}

/// The protocol that a mirror follows by, once that is known.
pub(crate) async fn protocol(engine: &Engine, feed: &Feed, url: &str) -> Result<Option<String>, StoreError> {
    Ok(Kept::load(engine, feed, url).await?.map(|kept| kept.protocol))
}

fn key(feed: &Feed) -> Vec<u8> {
    format!("follow/{}", feed.id()).into_bytes()
}

impl Kept {
    async fn load(engine: &Engine, feed: &Feed, url: &str) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = engine.store.get(Table::Sources, &key(feed)).await? else { return Ok(None) };
        let kept: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the mirror state of {}: {e}", feed.id())))?;
        Ok(Some(kept).filter(|kept| kept.url == url))
    }
}

/// The log as a follow's output.
///
/// Changes are appended first, the checkpoint is kept after them. Whatever was appended without its checkpoint
/// before a crash is told again by the publisher and recognised here, so that nothing is appended twice.
struct Mirror {
    own: Own,
    kept: Kept,
    /// Where our own log ends, as far as this mirror knows.
    seq: u64,
    /// What was appended after the kept checkpoint: oldest first, told again soon.
    unconfirmed: VecDeque<Appended>,
}

/// What is kept in memory of a change that was appended, to know it when it is told again.
#[derive(Debug, PartialEq)]
struct Appended {
    op: Op,
    id: String,
    /// Of what was told: the item of a put, the patch of a patch, nothing of a deletion.
    hash: ContentHash,
    entry_id: Option<String>,
}

impl Appended {
    /// What the log holds.
    fn stored(change: Change) -> Self {
        let Change { op, item, patch, entry_id, hash, .. } = change;
        // A patch's change has the hash of the item that it made.
        let hash = if op == Op::Patch { hash_of_patch(patch) } else { hash };
        Self { op, id: item.id, hash, entry_id }
    }

    /// The same of a change that is told.
    fn told(change: &NewChange) -> Self {
        let hash = match change.op {
            Op::Put => change.hash.unwrap_or_else(|| change.item.content_hash()),
            Op::Patch => hash_of_patch(change.patch.clone()),
            Op::Delete => ContentHash::default(),
        };
        Self { op: change.op, id: change.item.id.clone(), hash, entry_id: change.entry_id.clone() }
    }
}

/// That of an item that is nothing but the patch.
fn hash_of_patch(patch: Option<Content>) -> ContentHash {
    Item { content: patch, ..Item::default() }.content_hash()
}

impl Mirror {
    async fn new(own: Own, mut kept: Kept) -> Result<Self, StoreError> {
        let Own { engine, feed, .. } = &own;
        if let Some(known) = Kept::load(engine, feed, &kept.url).await? {
            kept = known;
        }
        let mut unconfirmed = VecDeque::new();
        let mut after = kept.seq;
        loop {
            let page = engine.store.read(feed.id(), after, towpath_store::Limit::items(1000)).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            unconfirmed.extend(page.into_iter().map(Appended::stored));
        }
        Ok(Self { own, kept, seq: after, unconfirmed })
    }

    /// Whether this change is the next of those that were appended already.
    fn is_told_again(&mut self, change: &NewChange) -> bool {
        let Some(next) = self.unconfirmed.front() else { return false };
        if *next == Appended::told(change) {
            self.unconfirmed.pop_front();
            return true;
        }
        // The publisher tells another story now: from here on everything is news.
        self.unconfirmed.clear();
        false
    }
}

impl Mirror {
    /// Appends changes; where a patch among them cannot be applied, what stands before it. That is told again
    /// with the patch, and recognised.
    async fn append(&mut self, changes: Vec<NewChange>) -> Result<(), AppendError> {
        let has_patch = changes.iter().any(|change| change.op == Op::Patch);
        let mut before = if has_patch { changes.clone() } else { Vec::new() };
        let appended = self.append_all(changes).await;
        if let Err(AppendError::Patch { index, .. }) = appended {
            before.truncate(index);
            self.append_all(before).await?;
        }
        appended
    }

    async fn append_all(&mut self, changes: Vec<NewChange>) -> Result<(), AppendError> {
        let Own { engine, feed, lease, .. } = &self.own;
        // Another node may mirror it by now: what that appends, this one does not.
        roles::check(lease)?;
        let expected = if engine.is_shared() { Expected::Last(self.seq) } else { Expected::Any };
        self.seq = engine.store.append(feed.id(), expected, changes).await?.head.seq;
        Ok(())
    }
}

impl Output for Mirror {
    type Error = MirrorError;

    async fn deliver(
        &mut self,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), Self::Error> {
        let Own { engine, feed, lease, .. } = self.own.clone();
        let changes: Vec<NewChange> = changes
            .into_iter()
            .map(new_change)
            .filter_map(|change| (!self.is_told_again(&change)).then_some(change))
            .collect();
        if !changes.is_empty() {
            self.append(changes).await?;
        }
        let Some(state) = checkpoint else { return Ok(()) };
        self.kept.state = state;
        self.kept.seq = if engine.is_shared() { self.seq } else { engine.store.head(feed.id()).await?.seq };
        let value = serde_json::to_vec(&self.kept).unwrap_or_default();
        let write = Write { table: Table::Sources, key: key(&feed), value: Some(value.into()) };
        engine.store.write(vec![write], conditions(&lease)).await?;
        Ok(())
    }

    fn notice(&mut self, notice: Notice) {
        let feed = self.own.feed.id();
        match notice {
            Notice::Warning(text) => tracing::warn!(%feed, "{}", shown::text(&text)),
            Notice::Incomplete(text) => tracing::error!(%feed, "items are missing: {text}"),
            Notice::Failed(error) => {
                tracing::warn!(%feed, "{}", shown::text(&error.to_string()));
                let own = self.own.clone();
                tokio::spawn(async move { own.failed(failed(&error)).await });
            }
        }
    }

    async fn well(&mut self) {
        self.own.well().await;
    }
}

fn failed(error: &FollowError) -> SourceError {
    let message = error.to_string();
    match error {
        FollowError::Transfer { source, .. } => SourceError::of_transfer(source, message),
        FollowError::Status { status, .. } => SourceError::of_status(*status, message),
        FollowError::Protocol { .. } => SourceError::new("PROTOCOL_ERROR", message),
        FollowError::Usage(_) => SourceError::new("CONFIG_ERROR", message),
    }
}

fn new_change(followed: Followed) -> NewChange {
    let Followed { op, item, patch, modified, entry_id, .. } = followed;
    NewChange { op, item, patch, modified, entry_id, hash: None }
}

#[cfg(test)]
mod tests;
