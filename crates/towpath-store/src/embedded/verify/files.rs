//! Names the damaged files of the engine, whose errors have no names.
//!
//! The engine keeps a checksum of each table and of each file of contents. Reads check single blocks only.

use std::path::Path;

use fjall::AbstractTree as _;

use super::VerifyReport;
use crate::embedded::file_checksum::file_checksum;
use crate::embedded::storage_engine::StorageEngine;

/// Reads every file of the engine, and reports those that are not as they were written.
pub(super) fn check_files(engine: &StorageEngine, report: &mut VerifyReport) {
    let folder = std::path::absolute(&engine.path).unwrap_or_else(|_| engine.path.clone());
    let shown = |path: &Path| {
        path.strip_prefix(folder.parent().unwrap_or(&folder)).unwrap_or(path).display().to_string()
    };
    for keyspace in engine.keyspaces() {
        let version = keyspace.tree.current_version();
        let tables =
            version.iter_tables().map(|table| (table.path.to_path_buf(), table.checksum().into_u128()));
        let contents = version.blob_files.iter();
        let contents = contents.map(|file| (file.path().to_path_buf(), file.checksum().into_u128()));
        for (path, written) in tables.chain(contents) {
            match file_checksum(&path) {
                Ok(found) if found == written => {}
                Ok(_) => report.add_file(format!("the file {} is damaged", shown(&path))),
                Err(e) => report.add_file(format!("the file {}: {e}", shown(&path))),
            }
        }
    }
}
