//! Words and JSON about backups: lists, checks and receipts.

use std::time::Duration;

use indicatif::HumanBytes;
use serde_json::{Value, json};
use towpath_store::backup::{BackupStorage as _, BackupSummary, Manifest};

use super::place::BackupPlace;
use crate::cli::style::table;
use crate::cli::terminal::plain;
use crate::plural::counted;

/// Formats a list of backups as a table, with the damaged lists below.
pub(super) fn list_text(whole: &[Manifest], damaged: &[String]) -> String {
    let row = |manifest: &Manifest| {
        let size = HumanBytes(manifest.bytes()).to_string();
        [manifest.name(), manifest.entries().to_string(), size, plain(&manifest.version)]
    };
    let rows: Vec<_> = whole.iter().map(row).collect();
    let damaged = damaged.iter().map(|problem| format!("{}\n", plain(problem)));
    // Without a backup there is nothing to head.
    let listed =
        if rows.is_empty() { String::new() } else { table(["backup", "entries", "size", "towpath"], &rows) };
    [listed].into_iter().chain(damaged).collect()
}

pub(super) fn list_json(whole: &[Manifest], damaged: &[String]) -> Value {
    let backup = |manifest: &Manifest| {
        let (entries, bytes) = (manifest.entries(), manifest.bytes());
        let Manifest { made, version, .. } = manifest;
        json!({ "name": manifest.name(), "made": made, "entries": entries, "bytes": bytes, "version": version })
    };
    json!({ "backups": whole.iter().map(backup).collect::<Vec<_>>(), "problems": damaged })
}

pub(super) fn check_text(manifest: &Manifest, faults: &[String]) -> String {
    if faults.is_empty() {
        let (entries, bytes) = (counted(manifest.entries(), "entry"), HumanBytes(manifest.bytes()));
        return format!("{}: {entries}, {bytes}: no damage found\n", manifest.name());
    }
    faults.iter().map(|fault| format!("{}\n", plain(fault))).collect()
}

pub(super) fn check_json(manifest: &Manifest, faults: &[String]) -> Value {
    json!({
        "backup": manifest.name(), "entries": manifest.entries(), "bytes": manifest.bytes(), "problems": faults,
    })
}

pub(super) fn backup_text(summary: &BackupSummary, place: &BackupPlace, took: Duration) -> String {
    let BackupSummary { manifest, written, mended, written_bytes } = summary;
    let mended = match mended {
        0 => String::new(),
        count => format!(" ({count} of them damaged in the place)"),
    };
    format!(
        "backed up as {} in {}: {}, {}; {written} of {} pieces were new{mended}, {} on disk; {:.1} s",
        manifest.name(),
        place.address(),
        counted(manifest.entries(), "entry"),
        HumanBytes(manifest.bytes()),
        manifest.pieces.len(),
        HumanBytes(*written_bytes),
        took.as_secs_f64()
    )
}

/// Returns the receipt of a backup. `removed` counts older backups that were removed after it.
pub(super) fn backup_json(
    summary: &BackupSummary,
    place: &BackupPlace,
    took: Duration,
    removed: Option<usize>,
) -> Value {
    let BackupSummary { manifest, written, mended, written_bytes } = summary;
    json!({
        "backup": manifest.name(), "place": place.address(), "entries": manifest.entries(), "bytes": manifest.bytes(),
        "pieces": manifest.pieces.len(), "new_pieces": written, "mended_pieces": mended, "written_bytes": written_bytes,
        "milliseconds": u64::try_from(took.as_millis()).unwrap_or(u64::MAX), "removed": removed,
    })
}
