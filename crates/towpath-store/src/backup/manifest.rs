//! List of the pieces of one backup: the file that makes them a backup. It is written last.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::pieces::Piece;
use crate::embedded::copy::{COPY_FORMAT, CopySection};

/// Version of the list.
const FORMAT: u32 = 1;
/// Folder of lists.
pub const BACKUPS: &str = "backups";
/// Folder of pieces.
pub(crate) const PIECES: &str = "pieces";

/// List of a backup.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// Version of the stored format of the entries.
    copy_format: u32,
    /// Version of the program that made it.
    pub version: String,
    /// Time at which the copy was begun.
    pub made: Timestamp,
    /// Point of a cluster's log up to which the copied replica had applied it; none for a store that is the log itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogPoint>,
    /// Pieces, in the order of the copy.
    pub pieces: Vec<PieceRow>,
}

/// Point of a cluster's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPoint {
    /// Id of the log.
    pub log: u64,
    /// Sequence number of the last applied message.
    pub sequence: u64,
    /// Feature level of the cluster there.
    pub level: u8,
    /// Last message of this log: its sequence number, session, number in it, and time in nanoseconds since 1970.
    pub mark: Option<[u64; 4]>,
}

/// Piece in a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PieceRow {
    /// Name of the section.
    pub section: String,
    /// SHA-256 of the bytes before compression, in hex.
    pub sha256: String,
    /// Number of bytes before compression.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// Size of its file, in bytes; unknown in lists of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stored: Option<u64>,
}

impl PieceRow {
    pub(crate) fn of(piece: &Piece) -> Self {
        Self {
            section: piece.section.name().to_owned(),
            sha256: piece.sha256.clone(),
            bytes: piece.bytes.len() as u64,
            entries: piece.entries,
            stored: None,
        }
    }

    /// Returns the path of the piece in the backup's place.
    pub(crate) fn path(&self) -> String {
        piece_path(&self.sha256)
    }
}

/// Returns the path of a piece by its SHA-256.
pub(crate) fn piece_path(sha256: &str) -> String {
    // Two letters of the name keep folders small.
    format!("{PIECES}/{}/{sha256}.zst", sha256.get(..2).unwrap_or_default())
}

impl Manifest {
    pub(crate) fn new(made: Timestamp, log: Option<LogPoint>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, copy_format: COPY_FORMAT, version, made, log, pieces: Vec::new() }
    }

    /// Returns the name of the backup: its time, to the millisecond, or its sequence number in a cluster's log.
    pub fn name(&self) -> String {
        // Not by time: the clocks of nodes differ, and the newest backup is the one that has most of the log.
        if let Some(log) = &self.log {
            return format!("{:020}", log.sequence);
        }
        // No colons, which some file systems do not have.
        self.made.strftime("%Y-%m-%dT%H%M%S.%3fZ").to_string()
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.entries).sum()
    }

    /// Returns the number of bytes before compression.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Reads a list.
    ///
    /// # Errors
    ///
    /// The damage or the unknown format, as text.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| format!("it is damaged: {e}"))?;
        // Entries of earlier formats are brought to the current one as the folder is built.
        if manifest.format != FORMAT || !(1..=COPY_FORMAT).contains(&manifest.copy_format) {
            return Err(format!(
                "it was made by towpath {}, whose stored format this program does not read",
                manifest.version
            ));
        }
        let unknown = manifest.pieces.iter().find(|piece| CopySection::of_name(&piece.section).is_none());
        match unknown {
            Some(piece) => Err(format!("it has a section {:?}, which is unknown", piece.section)),
            None => Ok(manifest),
        }
    }
}
