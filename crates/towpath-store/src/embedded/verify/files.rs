//! Names the damaged files of the engine, whose errors have no names.
//!
//! The engine keeps a checksum of each table and of each file of contents. Reads check single blocks only.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use fjall::AbstractTree as _;
use xxhash_rust::xxh3::Xxh3Default;

use super::VerifyReport;
use crate::embedded::apply::StorageEngine;

/// Bytes of one read.
const READ: usize = 1 << 20;

/// Reads every file of the engine, and reports those that are not as they were written.
pub(super) fn check_files(engine: &StorageEngine, report: &mut VerifyReport) {
    for keyspace in engine.keyspaces() {
        let version = keyspace.tree.current_version();
        let tables =
            version.iter_tables().map(|table| (table.path.to_path_buf(), table.checksum().into_u128()));
        let contents = version.blob_files.iter();
        let contents = contents.map(|file| (file.path().to_path_buf(), file.checksum().into_u128()));
        for (path, written) in tables.chain(contents) {
            match checksum(&path) {
                Ok(found) if found == written => {}
                Ok(_) => report.add_file(format!("the file {} is damaged", in_folder(&path).display())),
                Err(e) => report.add_file(format!("the file {}: {e}", in_folder(&path).display())),
            }
        }
    }
}

fn checksum(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3Default::new();
    let mut buffer = vec![0; READ];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.digest128()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

/// The path below the data folder.
fn in_folder(path: &Path) -> PathBuf {
    let parts: Vec<_> = path.components().collect();
    let begin = parts.iter().rposition(|part| part.as_os_str() == "engine").unwrap_or_default();
    parts[begin..].iter().collect()
}
