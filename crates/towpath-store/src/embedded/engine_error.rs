//! Errors of the engine as texts for operators: the files at fault, and the next step.

use std::path::Path;

use super::folder::PROGRAM;
use super::journal_batches::damaged_journal;
use super::table_lists::damaged_files;
use crate::error::StorageError;

/// Returns the error of a read.
pub(super) fn read_error(error: &fjall::Error) -> StorageError {
    let reason = engine_reason(error);
    match error {
        fjall::Error::Storage(fjall::LsmError::Io(_)) => StorageError::Read(reason),
        fjall::Error::Storage(_) | fjall::Error::Decompress(_) => {
            StorageError::Damaged(format!("a table in engine/keyspaces is damaged ({reason})"))
        }
        _ => StorageError::Read(reason),
    }
}

/// Next step where the engine does not open.
const ADVICE: &str = "`towpath repair --dry-run` says what can be rebuilt without it, and `towpath repair` does it; \
    or move the folder away and bring it back with `towpath restore`";

/// Next step where a repair needs the damaged file, too.
const RESTORE: &str =
    "`towpath repair` cannot do without it, so move the folder away and bring it back with `towpath restore`";

/// Returns the next step for damaged files of the engine.
pub(super) fn advice_for(files: &[String]) -> &'static str {
    // This keyspace has the names of the others. No file says what they are without it.
    if files.iter().any(|file| file.starts_with("engine/keyspaces/0/")) { RESTORE } else { ADVICE }
}

/// Text of the error of an engine that cannot be opened: the files at fault, and the next step.
pub(super) fn open_reason(error: &fjall::Error, engine: &Path) -> String {
    let reason = engine_reason(error);
    match error {
        fjall::Error::JournalRecovery(_) => {
            let damaged = damaged_journal(engine).unwrap_or_else(|| format!("is damaged ({reason})"));
            format!("its journal {damaged}; {ADVICE}")
        }
        fjall::Error::Storage(_) | fjall::Error::Unrecoverable => damaged_table(&reason, engine),
        fjall::Error::InvalidVersion(_) => format!(
            "its file engine/version is damaged, or of another version of the engine; use the towpath that {PROGRAM} \
             names, or restore the whole folder from a backup"
        ),
        _ => reason,
    }
}

/// Text of the error of a first read, without which a folder is not opened: the files at fault, and the next step.
pub(super) fn first_read_reason(error: &StorageError, engine: &Path) -> String {
    match error {
        StorageError::Damaged(reason) => damaged_table(reason, engine),
        _ => error.to_string(),
    }
}

fn damaged_table(reason: &str, engine: &Path) -> String {
    let files = damaged_files(engine);
    let damaged = match &files[..] {
        [] => format!("a table in its folder engine/keyspaces is damaged or missing ({reason})"),
        [only] => format!("its file {only} is damaged or missing"),
        files => format!("its files {} are damaged or missing", files.join(", ")),
    };
    format!("{damaged}; {}", advice_for(&files))
}

/// Text of an engine error for operators.
pub(super) fn engine_reason(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(e) => e.to_string(),
        fjall::Error::Storage(e) => format!("{e:?}"),
        fjall::Error::Poisoned => "an earlier background write failed".into(),
        fjall::Error::Locked => "another process has it open".into(),
        fjall::Error::InvalidVersion(_) => "it was written by another version of the engine".into(),
        other => format!("{other:?}"),
    }
}
