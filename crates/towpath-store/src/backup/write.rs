//! Making a backup: pieces that the place does not have, then the list that names them all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Progress;
use super::background::in_background;
use super::entries::{CopyError, CopySource};
use super::manifest::{BACKUPS, LogPoint, Manifest, PIECES, PieceRow, piece_path};
use super::pieces::{Piece, PieceCutter, read_piece};
use super::storage::{BackupStorage, StorageAccessError, StoredFile};

/// Pieces that are written at once. Object storage answers after some milliseconds.
const WRITES: usize = 4;
/// Pieces that wait to be written.
const QUEUE: usize = 2;

/// Failure of a backup. Nothing that was complete before is lost.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The storage fails.
    #[error(transparent)]
    Storage(#[from] StorageAccessError),
    /// A fault of this program.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Check of the pieces that the place has already. Damaged ones are written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceCheck {
    /// Compares their sizes with those that the newest backup wrote down.
    Size,
    /// Reads them.
    Content,
}

/// Result of a backup.
#[derive(Debug)]
pub struct BackupSummary {
    /// List of the backup.
    pub manifest: Manifest,
    /// Number of pieces that were written.
    pub written: u64,
    /// Number of these that took the place of a damaged one.
    pub mended: u64,
    /// Bytes of these pieces after compression.
    pub written_bytes: u64,
}

/// Makes a backup of a copy, with the point of the cluster's log that it covers.
///
/// # Errors
///
/// All of [`BackupError`]. Pieces may be left over, which the next backup uses or [`keep_newest`] removes.
pub async fn back_up(
    mut source: impl CopySource + Send + 'static,
    made: Timestamp,
    log: Option<LogPoint>,
    storage: &Arc<dyn BackupStorage>,
    check: PieceCheck,
    progress: Progress<'_>,
) -> Result<BackupSummary, BackupError> {
    let known = storage.files(PIECES).await?.into_iter().map(|StoredFile { name, size }| (name, size));
    let known: HashMap<String, u64> = known.collect();
    let mut sizes = written_sizes(storage.as_ref()).await?;
    let (sender, mut pieces) = mpsc::channel::<Piece>(QUEUE);
    // Reading and hashing take a core; writing goes on beside them.
    let reading = in_background(move || {
        let mut cutter = PieceCutter::default();
        let ended = || CopyError::Store("the backup has ended".into());
        let send = |piece| sender.blocking_send(piece).map_err(|_| ended());
        while let Some(page) = source.next()? {
            cutter.push(&page, send)?;
        }
        cutter.finish().map_or(Ok(()), send)
    });
    let mut summary =
        BackupSummary { manifest: Manifest::new(made, log), written: 0, mended: 0, written_bytes: 0 };
    let mut seen = HashSet::new();
    let mut writes: JoinSet<Result<CheckedPiece, BackupError>> = JoinSet::new();
    while let Some(piece) = pieces.recv().await {
        progress(piece.bytes.len() as u64);
        summary.manifest.pieces.push(PieceRow::of(&piece));
        // One piece may stand at several places of the list. Two writes of it at once would race for one file.
        if !seen.insert(piece.sha256.clone()) {
            continue;
        }
        let stored = known.get(&format!("{}.zst", piece.sha256)).copied();
        // A disk that was full, or lost its power, leaves a file that is cut.
        let is_sized = |stored: u64| sizes.get(&piece.sha256).map_or(stored > 0, |size| *size == stored);
        if check == PieceCheck::Size && stored.is_some_and(is_sized) {
            continue;
        }
        if writes.len() >= WRITES
            && let Some(checked) = next_write(&mut writes).await?
        {
            summary.count(checked, &mut sizes);
        }
        writes.spawn(write(Arc::clone(storage), piece, stored, check));
    }
    while let Some(checked) = next_write(&mut writes).await? {
        summary.count(checked, &mut sizes);
    }
    for row in &mut summary.manifest.pieces {
        row.stored = sizes.get(&row.sha256).copied();
    }
    // A failed read ends the channel like a complete one, so it is asked before the list is written.
    reading.await.map_err(|e| BackupError::Internal(e.to_string()))??;
    // Before the list, which must not name what a power loss takes.
    storage.sync()?;
    let manifest = &summary.manifest;
    check_presence(storage.as_ref(), manifest).await?;
    let list = serde_json::to_vec(manifest).map_err(|e| BackupError::Internal(e.to_string()))?;
    storage.put(&format!("{BACKUPS}/{}.json", manifest.name()), list.into()).await?;
    storage.sync()?;
    Ok(summary)
}

/// Fails where a piece is gone: another process may have removed it as one of a removed backup.
async fn check_presence(storage: &dyn BackupStorage, manifest: &Manifest) -> Result<(), BackupError> {
    let present: HashSet<String> = storage.names(PIECES).await?.into_iter().collect();
    match manifest.pieces.iter().find(|piece| !present.contains(&format!("{}.zst", piece.sha256))) {
        Some(piece) => {
            let at = format!("{}/{}", storage.address(), piece_path(&piece.sha256));
            let reason = "another process removed it during the backup; make the backup again".into();
            Err(StorageAccessError { at, reason }.into())
        }
        None => Ok(()),
    }
}

/// Returns the sizes of files by the SHA-256 of their pieces, as the newest backup wrote them down.
async fn written_sizes(storage: &dyn BackupStorage) -> Result<HashMap<String, u64>, BackupError> {
    let Some(newest) = storage.names(BACKUPS).await?.pop() else { return Ok(HashMap::new()) };
    let list = storage.get(&format!("{BACKUPS}/{newest}")).await?.unwrap_or_default();
    // A damaged list says nothing, and does not keep a new one from being made.
    let pieces =
        serde_json::from_slice::<Manifest>(&list).map(|manifest| manifest.pieces).unwrap_or_default();
    Ok(pieces.into_iter().filter_map(|piece| Some((piece.sha256, piece.stored?))).collect())
}

/// A piece that was written, or read and found whole.
struct CheckedPiece {
    sha256: String,
    /// Size of its file.
    bytes: u64,
    is_written: bool,
    /// True if a damaged file was there.
    is_mended: bool,
}

impl BackupSummary {
    fn count(&mut self, checked: CheckedPiece, sizes: &mut HashMap<String, u64>) {
        if checked.is_written {
            self.written += 1;
            self.written_bytes += checked.bytes;
            self.mended += u64::from(checked.is_mended);
        }
        sizes.insert(checked.sha256, checked.bytes);
    }
}

/// Waits for one of the writes; `None` if there is none.
async fn next_write(
    writes: &mut JoinSet<Result<CheckedPiece, BackupError>>,
) -> Result<Option<CheckedPiece>, BackupError> {
    match writes.join_next().await {
        Some(Ok(checked)) => checked.map(Some),
        Some(Err(e)) => Err(BackupError::Internal(e.to_string())),
        None => Ok(None),
    }
}

/// Writes a piece. With a check of the content, one that the place has whole is not. `stored` is the size of its file.
async fn write(
    storage: Arc<dyn BackupStorage>,
    piece: Piece,
    stored: Option<u64>,
    check: PieceCheck,
) -> Result<CheckedPiece, BackupError> {
    let (path, sha256) = (piece_path(&piece.sha256), piece.sha256.clone());
    if let (Some(bytes), PieceCheck::Content) = (stored, check)
        && is_whole(storage.as_ref(), &path, &piece).await?
    {
        return Ok(CheckedPiece { sha256, bytes, is_written: false, is_mended: false });
    }
    let compressed = in_background(move || piece.compressed()).await;
    let compressed = compressed.map_err(|e| BackupError::Internal(e.to_string()))?;
    let compressed = compressed.map_err(BackupError::Internal)?;
    let bytes = compressed.len() as u64;
    storage.put(&path, compressed.into()).await?;
    Ok(CheckedPiece { sha256, bytes, is_written: true, is_mended: stored.is_some() })
}

/// Reads a piece, and returns true if it has its content.
async fn is_whole(storage: &dyn BackupStorage, path: &str, piece: &Piece) -> Result<bool, BackupError> {
    let stored = storage.get(path).await?;
    let length = piece.bytes.len() as u64;
    Ok(stored.is_some_and(|stored| read_piece(&stored, &piece.sha256, length).is_ok()))
}

/// Removes all but the newest backups, and the pieces that only they had. Returns the number of removed backups.
///
/// # Errors
///
/// The storage's, and a kept list that cannot be read.
pub async fn keep_newest(storage: &dyn BackupStorage, keep: usize) -> Result<usize, StorageAccessError> {
    let names = storage.names(BACKUPS).await?;
    let (old, kept) = names.split_at(names.len().saturating_sub(keep));
    if old.is_empty() {
        return Ok(0);
    }
    let mut used = HashSet::new();
    for name in kept {
        let path = format!("{BACKUPS}/{name}");
        let list = storage.get(&path).await?.unwrap_or_default();
        // A list that cannot be read might name any piece, so none is removed.
        let manifest = Manifest::parse(&list)
            .map_err(|reason| StorageAccessError { at: format!("{}/{path}", storage.address()), reason })?;
        used.extend(manifest.pieces.into_iter().map(|piece| piece.sha256));
    }
    // The lists first: a backup whose pieces are missing must not be listed.
    for name in old {
        storage.remove(&format!("{BACKUPS}/{name}")).await?;
    }
    storage.sync()?;
    // Listed only now: a piece that a crash left over before is removed as well.
    for name in storage.names(PIECES).await? {
        if let Some(sha256) = name.strip_suffix(".zst").filter(|sha256| !used.contains(*sha256)) {
            storage.remove(&piece_path(sha256)).await?;
        }
    }
    Ok(old.len())
}
