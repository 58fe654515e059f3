//! SQLite's errors, by whose fault they are and what to do.

use std::path::Path;

use rusqlite::{Error, ErrorCode};
use towpath_client::SinkError;

/// Returns the error of an operation on the database.
pub(super) fn classify(path: &Path, error: &Error) -> SinkError {
    let name = path.display();
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return SinkError::unavailable(format!("the database {name} is locked by another program"));
        }
        Some(ErrorCode::DiskFull) => {
            return SinkError::unavailable(format!("the disk of {name} is full: free space"));
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory) => {
            return SinkError::unavailable(format!("cannot write the database {name}: {error}"));
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "give write permission for the file and its folder"
        }
        Some(ErrorCode::DatabaseCorrupt) => "restore a copy, or remove the file to follow from the start",
        Some(ErrorCode::NotADatabase) => "name another file",
        Some(ErrorCode::CannotOpen) => "check that its folder exists and can be written",
        _ => return SinkError::refused(format!("cannot use the database {name}: {error}")),
    };
    SinkError::refused(format!("cannot use the database {name}: {error}; {advice}"))
}

/// Returns whether the error is about the values of one row.
pub(super) fn is_about_row(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)
    )
}
