//! Errors of the engine as texts for operators: the files at fault, and the next step.

use std::path::Path;

use super::folder::PROGRAM;
use super::journal_mark::journal_names;
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

/// Text of the error of an engine that cannot be opened: the files at fault, and the next step.
pub(super) fn open_reason(error: &fjall::Error, engine: &Path) -> String {
    let reason = engine_reason(error);
    match error {
        fjall::Error::JournalRecovery(_) => format!(
            "its journal is damaged ({reason}), in one of these files: {}; restore the whole folder from a backup",
            journal_names(engine)
        ),
        fjall::Error::Storage(_) | fjall::Error::Unrecoverable => format!(
            "a table in its folder engine/keyspaces is damaged or missing ({reason}); restore the whole folder from a \
             backup"
        ),
        fjall::Error::InvalidVersion(_) => format!(
            "its file engine/version is damaged, or of another version of the engine; use the towpath that {PROGRAM} \
             names, or restore the whole folder from a backup"
        ),
        _ => reason,
    }
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
