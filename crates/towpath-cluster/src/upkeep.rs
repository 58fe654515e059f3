//! Upkeep of the log, by one node at a time: its feature level, its snapshots, and removal of what they cover.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::timeout;
use towpath_store::backup::{self, BACKUPS, BackupStorage, Manifest};
use towpath_store::embedded::EmbeddedStore;
use towpath_store::embedded::command::LogCommand;
use towpath_store::lease::Lease;
use towpath_store::{LogSnapshot, LogUpkeepError, Store, Table, TableWrite, WallClock, WriteError};

use crate::frame::LogId;
use crate::health::NodeHealth;
use crate::nodes::{self, LiveNode};
use crate::producer::ReplySender;
use crate::request_queue::RequestQueue;
use crate::retention::{self, SnapshotPoint};
use crate::snapshots::{self, SnapshotOptions};
use crate::stream::{self, LogExtent};

/// Key of the row in [`Table::Sources`] that tells all nodes of the last snapshot.
const SNAPSHOT_ROW: &[u8] = b"log/snapshot";
/// Timeout of a request to JetStream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two removals up to one snapshot. Each reads the snapshot again.
const REMOVAL_PAUSE: Duration = Duration::from_secs(600);

/// Upkeep of a log by this node.
pub(crate) struct LogUpkeep {
    pub(crate) client: Client,
    pub(crate) context: Context,
    /// Name of the stream.
    pub(crate) name: String,
    pub(crate) log: LogId,
    /// Identity of this node.
    pub(crate) node: u64,
    /// Highest level to which the cluster is raised.
    pub(crate) max_level: u8,
    pub(crate) replica: Arc<EmbeddedStore>,
    pub(crate) requests: Arc<RequestQueue>,
    pub(crate) health: Arc<NodeHealth>,
    pub(crate) clock: WallClock,
    pub(crate) snapshots: Option<SnapshotOptions>,
    pub(crate) state: Mutex<UpkeepState>,
}

/// State between two passes.
#[derive(Default)]
pub(crate) struct UpkeepState {
    /// Lease of the last pass. With another one, other nodes may have written snapshots since.
    lease: Option<Lease>,
    /// Snapshots in the storage, in the order of their sequence numbers; `None` before they are listed.
    known: Option<Vec<SnapshotPoint>>,
    /// True once a snapshot was found damaged, until the next one is written.
    is_damaged: bool,
    /// Last snapshot up to which messages were removed, and the time.
    removal: Option<(u64, Instant)>,
    /// Number of live nodes that keep the cluster from its next level.
    holding_back: usize,
}

fn failed(what: &str) -> impl Fn(&dyn std::fmt::Display) -> LogUpkeepError + '_ {
    move |reason| LogUpkeepError(format!("{what}: {reason}"))
}

/// Reads the row of the last snapshot.
pub(crate) async fn last_snapshot(replica: &EmbeddedStore) -> Option<LogSnapshot> {
    let row = replica.get(Table::Sources, SNAPSHOT_ROW).await.ok().flatten()?;
    let (sequence, made) = row.split_first_chunk::<8>()?;
    let made = i64::from_be_bytes(made.try_into().ok()?);
    Some(LogSnapshot {
        sequence: u64::from_be_bytes(*sequence),
        made: Timestamp::from_millisecond(made).ok()?,
    })
}

impl LogUpkeep {
    /// Does what is due: raises the level, writes a snapshot, removes messages.
    pub(crate) async fn run(&self, lease: &Lease) -> Result<(), LogUpkeepError> {
        // Held for the whole pass: two passes at once would write one snapshot twice, and remove twice.
        let mut state = self.state.lock().await;
        // Another node may have held the role in between. What this node remembers of the storage is out of
        // date then.
        if state.lease.as_ref() != Some(lease) {
            *state = UpkeepState { lease: Some(lease.clone()), ..UpkeepState::default() };
        }
        let error = failed("cannot keep the cluster's log");
        let stream = timeout(REQUEST_TIMEOUT, self.context.get_stream(&self.name)).await;
        let stream = stream.map_err(|_| error(&"the cluster does not answer"))?.map_err(|e| error(&e))?;
        let nodes =
            timeout(REQUEST_TIMEOUT, nodes::live_nodes(&self.client, &stream, &self.name, self.log)).await;
        // Asked before anything is decided. Without the answers a level could be raised above a node, or
        // messages removed that it needs.
        let nodes = nodes.map_err(|_| error(&"the cluster does not answer"))?.map_err(LogUpkeepError)?;
        self.raise_level(&mut state, lease, &nodes).await?;
        match &self.snapshots {
            Some(options) => self.keep_snapshots(&mut state, lease, options, &stream, &nodes).await,
            None => Ok(()),
        }
    }

    /// Raises the cluster to the next level, if all live nodes have it.
    async fn raise_level(
        &self,
        state: &mut UpkeepState,
        lease: &Lease,
        nodes: &[LiveNode],
    ) -> Result<(), LogUpkeepError> {
        let error = failed("cannot raise the cluster's feature level");
        let current = self.health.level();
        let next = current + 1;
        // Without this node the answers are incomplete.
        if next > self.max_level || nodes.iter().all(|node| node.node != self.node) {
            return Ok(());
        }
        let holding_back = nodes.iter().filter(|node| node.level < next).count();
        if holding_back > 0 {
            if holding_back != state.holding_back {
                tracing::info!(
                    level = current,
                    nodes = holding_back,
                    "nodes of an earlier version keep the feature level"
                );
            }
            state.holding_back = holding_back;
            return Ok(());
        }
        // Just before the effect: finding the nodes took seconds, in which the lease may have ended.
        lease.check().map_err(|e| error(&e))?;
        let raised = self.requests.request(&LogCommand::raise_level(next), ReplySender::Level).await;
        raised.and_then(|level| level).map(drop).map_err(|e| error(&e))
    }

    async fn keep_snapshots(
        &self,
        state: &mut UpkeepState,
        lease: &Lease,
        options: &SnapshotOptions,
        stream: &Stream,
        nodes: &[LiveNode],
    ) -> Result<(), LogUpkeepError> {
        let storage = snapshots::storage_of(options, &self.name, self.log);
        let known = match state.known.take() {
            Some(known) => known,
            None => list(storage.as_ref()).await?,
        };
        let known = state.known.insert(known);
        let log = LogExtent::of(&stream.cached_info().state);
        let applied = *self.health.position().borrow();
        let now = (self.clock)();
        // A node that lost messages, or cannot apply them, has nothing that others should begin from.
        let is_sound = self.health.stopped().is_none();
        if is_sound && (state.is_damaged || retention::is_due(options, known, &log, applied, now)) {
            let point = self.write(lease, &storage, now).await?;
            // A snapshot at the same sequence number replaces the one before.
            known.retain(|known| known.sequence < point.sequence);
            known.push(point);
            state.is_damaged = false;
        }
        let Some(index) = retention::removable(options, known, &log, (self.clock)()) else { return Ok(()) };
        let (snapshot, is_oldest) = (known[index].sequence, index == 0);
        let paused = |(sequence, at): (u64, Instant)| sequence == snapshot && at.elapsed() < REMOVAL_PAUSE;
        let first = retention::first_kept(snapshot, &log, nodes.iter().map(|node| node.applied));
        if state.removal.is_some_and(paused) || first.is_none() && is_oldest {
            return Ok(());
        }
        self.remove(state, lease, &storage, stream, snapshot, first).await
    }

    async fn write(
        &self,
        lease: &Lease,
        storage: &Arc<dyn BackupStorage>,
        now: Timestamp,
    ) -> Result<SnapshotPoint, LogUpkeepError> {
        let error = failed("cannot write a snapshot of the cluster's log");
        let summary = snapshots::write(&self.replica, storage, now).await.map_err(|e| error(&e))?;
        let sequence = summary.manifest.log.map_or(0, |point| point.sequence);
        tracing::info!(
            sequence,
            pieces = summary.manifest.pieces.len(),
            new = summary.written,
            bytes = summary.written_bytes,
            "wrote a snapshot of the cluster's log"
        );
        let value: Bytes = [sequence.to_be_bytes(), now.as_millisecond().to_be_bytes()].concat().into();
        let row = TableWrite { table: Table::Sources, key: SNAPSHOT_ROW.to_vec(), value: Some(value) };
        let command = LogCommand::write(vec![row], lease.condition().into_iter().collect());
        let written = self.requests.request(&command.map_err(|e| error(&e))?, ReplySender::Write).await;
        match written.map_err(|e| error(&e))? {
            Ok(()) => Ok(SnapshotPoint { sequence, made: now }),
            // The row is written under the lease. A node that was paused must not announce a snapshot that the
            // new holder has removed.
            Err(WriteError::Precondition { .. }) => Err(error(&"another node has taken over the role")),
            Err(e) => Err(error(&e)),
        }
    }

    /// Removes the messages before `first`, which a snapshot covers, and older snapshots. Reads the snapshot before.
    async fn remove(
        &self,
        state: &mut UpkeepState,
        lease: &Lease,
        storage: &Arc<dyn BackupStorage>,
        stream: &Stream,
        snapshot: u64,
        first: Option<u64>,
    ) -> Result<(), LogUpkeepError> {
        let error = failed("nothing was removed from the cluster's log");
        // Also after a failure: a storage that is down is not asked every few seconds.
        state.removal = Some((snapshot, Instant::now()));
        let manifest = match readable(storage.as_ref(), snapshot).await {
            Ok(manifest) => manifest,
            Err(reason) => {
                // Listed again, and written anew: the pieces that were damaged are gone by now.
                (state.known, state.is_damaged) = (None, true);
                return Err(error(&reason));
            }
        };
        // The snapshot may be of an earlier log of the same name. Removing messages of this one by it would
        // lose them.
        if let Some(mark) = manifest.log.as_ref().and_then(snapshots::mark_of) {
            let info = stream.get_info().await.map_err(|e| error(&e))?;
            let checked = stream::check_mark(stream, &info, &mark).await;
            checked.map_err(|e| error(&e.into_reason()))?;
        }
        // Reading the snapshot may take minutes. Nothing is removed that another node is responsible for by
        // now.
        lease.check().map_err(|e| error(&e))?;
        if let Some(first) = first {
            let purged = stream.purge().sequence(first).await.map_err(|e| error(&e))?;
            tracing::info!(
                first,
                messages = purged.purged,
                snapshot,
                "removed messages that a snapshot covers"
            );
        }
        // Afterwards: until now a new node might have needed one of them.
        let error = failed("cannot remove old snapshots");
        let names = storage.names(BACKUPS).await.map_err(|e| error(&e))?;
        let kept =
            names.iter().filter(|name| sequence_of(name).is_none_or(|sequence| sequence >= snapshot)).count();
        lease.check().map_err(|e| error(&e))?;
        let removed = backup::keep_newest(storage.as_ref(), kept).await.map_err(|e| error(&e))?;
        if removed > 0 {
            tracing::info!(snapshots = removed, "removed old snapshots of the cluster's log");
        }
        if let Some(known) = &mut state.known {
            known.retain(|point| point.sequence >= snapshot);
        }
        Ok(())
    }
}

/// Returns the sequence number in the name of a snapshot's file.
fn sequence_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}

/// Lists the snapshots. One whose list is damaged is left out.
async fn list(storage: &dyn BackupStorage) -> Result<Vec<SnapshotPoint>, LogUpkeepError> {
    let error = failed("cannot list the snapshots of the cluster's log");
    let mut points = Vec::new();
    for name in storage.names(BACKUPS).await.map_err(|e| error(&e))? {
        match backup::read(storage, &name).await {
            Ok(Manifest { made, log: Some(log), .. }) => {
                points.push(SnapshotPoint { sequence: log.sequence, made });
            }
            Ok(_) => {}
            // The storage failed, so the list is incomplete. With half a list, newer snapshots would seem to be
            // missing.
            Err(backup::RestoreError::Storage(e)) => return Err(error(&e)),
            Err(e) => tracing::warn!(error = %e, "a snapshot of the log cannot be read"),
        }
    }
    Ok(points)
}

/// Reads a whole snapshot.
///
/// # Errors
///
/// That it cannot be used, as text. Its damaged pieces are removed, so that the next snapshot writes them.
async fn readable(storage: &dyn BackupStorage, sequence: u64) -> Result<Manifest, String> {
    let unusable =
        |reason: &dyn std::fmt::Display| format!("the snapshot {sequence} cannot be read back: {reason}");
    let manifest = backup::read(storage, &format!("{sequence:020}.json")).await.map_err(|e| unusable(&e))?;
    match backup::check_and_clear(storage, &manifest).await.map_err(|e| unusable(&e))? {
        None => Ok(manifest),
        Some(fault) => Err(unusable(&fault)),
    }
}
