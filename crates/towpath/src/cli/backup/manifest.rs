//! List of the pieces of one backup: the file that makes them a backup. It is written last.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_store::embedded::copy::{COPY_FORMAT, CopySection};

use super::pieces::Piece;

/// Version of the list.
const FORMAT: u32 = 1;
/// Folder of lists.
pub(super) const BACKUPS: &str = "backups";
/// Folder of pieces.
pub(super) const PIECES: &str = "pieces";

/// List of a backup.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    /// Version of the stored format of the entries.
    copy_format: u32,
    /// Version of the program that made it.
    pub(super) version: String,
    /// Time at which the copy was begun.
    pub(super) made: Timestamp,
    /// Pieces, in the order of the copy.
    pub(super) pieces: Vec<PieceRow>,
}

/// Piece in a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PieceRow {
    /// Name of the section.
    pub(super) section: String,
    /// SHA-256 of the bytes before compression, in hex.
    pub(super) sha256: String,
    /// Number of bytes before compression.
    pub(super) bytes: u64,
    /// Number of entries.
    pub(super) entries: u64,
}

impl PieceRow {
    pub(super) fn of(piece: &Piece) -> Self {
        Self {
            section: piece.section.name().to_owned(),
            sha256: piece.sha256.clone(),
            bytes: piece.bytes.len() as u64,
            entries: piece.entries,
        }
    }

    /// Returns the path of the piece in the backup's place.
    pub(super) fn path(&self) -> String {
        piece_path(&self.sha256)
    }
}

/// Returns the path of a piece by its SHA-256.
pub(super) fn piece_path(sha256: &str) -> String {
    // Two letters of the name keep folders small.
    format!("{PIECES}/{}/{sha256}.zst", sha256.get(..2).unwrap_or_default())
}

impl Manifest {
    pub(super) fn new(made: Timestamp) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, copy_format: COPY_FORMAT, version, made, pieces: Vec::new() }
    }

    /// Returns the name of the backup: its time, to the millisecond.
    pub(super) fn name(&self) -> String {
        // No colons, which some file systems do not have.
        self.made.strftime("%Y-%m-%dT%H%M%S.%3fZ").to_string()
    }

    pub(super) fn entries(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.entries).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Reads a list.
    ///
    /// # Errors
    ///
    /// The damage or the unknown format, as text.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
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
