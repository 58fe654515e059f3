//! Checksum by which the engine knows a file of its own.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3Default;

/// Most bytes of one read.
const READ: u64 = 1 << 20;

/// Returns the checksum of a whole file: XXH3 of 128 bits.
///
/// # Errors
///
/// If the file cannot be read.
pub(super) fn file_checksum(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3Default::new();
    // Most files are lists of some hundred bytes, and each keyspace has one that is read at every start.
    let length = file.metadata()?.len().clamp(1, READ);
    let mut buffer = vec![0; length as usize];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.digest128()),
            count => hasher.update(&buffer[..count]),
        }
    }
}
