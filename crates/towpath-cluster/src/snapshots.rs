//! Snapshots of replicas: writing one, and replacing a replica by one.
//!
//! A snapshot is a backup of a replica, with everything that the log made of it: feeds, tables, the position, and the
//! sessions of producers. So a replica of a snapshot and the messages after it equals one of the whole log.
//!
//! Each log has a folder of its own in the storage. Snapshots are named by the last message that they cover.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use jiff::Timestamp;
use tokio::runtime::Handle;
use towpath_store::backup::{
    self, BACKUPS, BackupError, BackupStorage, BackupSummary, CopyError, LocalCopy, LogPoint, Manifest,
    PieceCheck, RestoreError, SubfolderStorage,
};
use towpath_store::embedded::copy::replace_store;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{ReadError, Store};

use crate::checkpoint::{self, LogMark, POSITION};
use crate::frame::LogId;
use crate::health::NodeHealth;
use crate::level;
use crate::stream::{self, LogExtent, StreamError};

/// Options of a cluster's snapshots.
#[derive(Clone)]
pub struct SnapshotOptions {
    /// Storage of the snapshots, the same for all nodes.
    pub storage: Arc<dyn BackupStorage>,
    /// Minimum time between two snapshots.
    pub every: Duration,
    /// Time for which the log keeps messages that a snapshot covers.
    pub keep: Duration,
    /// Size of the log that is aimed at, in bytes. A longer log gets snapshots earlier, and keeps less.
    pub max_stream_bytes: Option<u64>,
}

/// Returns the storage of a log's snapshots.
pub(crate) fn storage_of(options: &SnapshotOptions, name: &str, log: LogId) -> Arc<dyn BackupStorage> {
    Arc::new(SubfolderStorage::new(Arc::clone(&options.storage), &format!("{name}-{log:016x}")))
}

fn unreadable(error: &ReadError) -> BackupError {
    CopyError::Store(error.to_string()).into()
}

/// Writes a snapshot of a replica as it is now.
pub(crate) async fn write(
    replica: &EmbeddedStore,
    storage: &Arc<dyn BackupStorage>,
    made: Timestamp,
) -> Result<BackupSummary, BackupError> {
    let copy = replica.copy_now().map_err(|e| unreadable(&e))?;
    let position = copy.metadata(POSITION).map_err(|e| unreadable(&e))?.unwrap_or_default();
    let position = checkpoint::decode_position(&position).map_err(|e| CopyError::Store(e.to_string()))?;
    let point = LogPoint {
        log: position.log,
        sequence: position.at,
        level: copy.level().map_err(|e| unreadable(&e))?,
        mark: position.mark.map(|mark| [mark.at, mark.session, mark.number, mark.time]),
    };
    backup::back_up(LocalCopy::new(copy), made, Some(point), storage, PieceCheck::Size, &|_| {}).await
}

/// Returns the mark of a point, which the log must have if it is the one that was copied.
pub(crate) fn mark_of(point: &LogPoint) -> Option<LogMark> {
    point.mark.map(|[at, session, number, time]| LogMark { at, session, number, time })
}

/// Replaces the replica in a folder, which is closed, by the newest snapshot that can be used. Damaged and missing ones
/// are passed over.
///
/// # Errors
///
/// The reasons why no snapshot can be used, as text. The folder is as it was.
pub(crate) async fn begin(
    storage: &Arc<dyn BackupStorage>,
    stream: &Stream,
    log: LogId,
    supported: u8,
    folder: &Path,
    health: &NodeHealth,
) -> Result<LogPoint, String> {
    let names = storage.names(BACKUPS).await.map_err(|e| format!("cannot list the snapshots: {e}"))?;
    if names.is_empty() {
        return Err(format!("there is no snapshot in {}", storage.address()));
    }
    let mut reasons = Vec::new();
    for name in names.iter().rev() {
        match begin_from(storage, name, stream, log, supported, folder, health).await {
            Ok(point) => return Ok(point),
            Err(reason) => {
                let snapshot = name.trim_end_matches(".json").trim_start_matches('0');
                tracing::warn!(snapshot, reason, "cannot begin from this snapshot");
                reasons.push(format!("snapshot {snapshot}: {reason}"));
            }
        }
    }
    Err(format!("no snapshot in {} can be used ({})", storage.address(), reasons.join("; ")))
}

async fn begin_from(
    storage: &Arc<dyn BackupStorage>,
    name: &str,
    stream: &Stream,
    log: LogId,
    supported: u8,
    folder: &Path,
    health: &NodeHealth,
) -> Result<LogPoint, String> {
    let manifest = backup::read(storage.as_ref(), name).await.map_err(|e| e.to_string())?;
    let point = manifest.log.filter(|point| point.log == log).ok_or("it is not one of this log")?;
    if point.level > supported {
        return Err(level::too_old(point.level, supported));
    }
    let info = stream.get_info().await.map_err(|e| format!("the cluster does not answer: {e}"))?;
    if !LogExtent::of(&info.state).continues(point.sequence) {
        return Err(format!("the log begins at {}, which is after it", info.state.first_sequence));
    }
    let mark = mark_of(&point);
    if let Some(mark) = &mark {
        let checked = stream::check_mark(stream, &info, mark).await;
        checked.map_err(StreamError::into_reason)?;
    }
    // From now on the log keeps the messages after it.
    health.begin_at(point.sequence, mark);
    tracing::info!(sequence = point.sequence, made = %manifest.made, "this node begins from a snapshot");
    let (handle, storage, folder) = (Handle::current(), Arc::clone(storage), folder.to_owned());
    let replacing =
        tokio::task::spawn_blocking(move || replace(&handle, storage.as_ref(), &manifest, &folder));
    let replaced = replacing.await.map_err(|e| format!("internal error: {e}"))?;
    replaced.map_err(|e| e.to_string()).map(|()| point)
}

/// Replaces the replica in a folder by a snapshot. Blocks.
pub(crate) fn replace(
    handle: &Handle,
    storage: &dyn BackupStorage,
    manifest: &Manifest,
    folder: &Path,
) -> Result<(), RestoreError> {
    replace_store(folder, |building| {
        backup::build(handle, storage, manifest, building, &|_| {})?;
        // The list has no digest of its own: its position must be the one that the pieces have.
        let (reader, replica) = EmbeddedStore::open_replica(building, &EmbeddedOptions::default())?;
        let loaded = checkpoint::load(&replica);
        drop(replica);
        handle.block_on(reader.close());
        let found =
            loaded.ok().and_then(|(position, _)| position).map(|position| (position.log, position.at));
        if found == manifest.log.map(|point| (point.log, point.sequence)) {
            return Ok(());
        }
        let reason = "its list and its pieces are of different positions".into();
        Err(RestoreError::Damaged { name: manifest.name(), reason })
    })
}
