//! Lists of the engine's tables, checked before the engine reads them: it panics on some that are damaged.
//!
//! Each folder in `engine/keyspaces` has a file `current`: the number of the list (8 bytes) and its checksum (16 bytes),
//! both little-endian, and the kind of the checksum (1 byte, 0 for XXH3). The list is the file `v` with that number.

use std::fs;
use std::io;
use std::path::Path;

use super::file_checksum::file_checksum;

const CURRENT: &str = "current";
/// Number, checksum, kind.
const CURRENT_BYTES: usize = 8 + 16 + 1;

/// Compares every list with its checksum.
///
/// # Errors
///
/// The damaged file and the next step, as text.
pub(super) fn check_table_lists(engine: &Path) -> Result<(), String> {
    let folders = match fs::read_dir(engine.join("keyspaces")) {
        // A new engine.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        folders => folders.map_err(|e| format!("its folder engine/keyspaces: {e}"))?,
    };
    for folder in folders {
        let folder = folder.map_err(|e| format!("its folder engine/keyspaces: {e}"))?.path();
        if let Some(damaged) = damaged_file(&folder) {
            let of = folder.file_name().unwrap_or_default().display();
            return Err(format!(
                "its file engine/keyspaces/{of}/{damaged} is damaged or missing; restore the whole folder from a backup"
            ));
        }
    }
    Ok(())
}

/// Returns the name of the file in a keyspace's folder that is not as it was written.
fn damaged_file(folder: &Path) -> Option<String> {
    let current = match fs::read(folder.join(CURRENT)) {
        // A keyspace whose creation was cut off: the engine creates it again.
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.kind() == io::ErrorKind::NotADirectory => {
            return None;
        }
        Err(_) => return Some(CURRENT.into()),
        Ok(current) => current,
    };
    let whole: Option<[u8; CURRENT_BYTES]> = current.try_into().ok();
    let Some((number, checksum)) = whole.and_then(|bytes| parse_current(&bytes)) else {
        return Some(CURRENT.into());
    };
    let name = format!("v{number}");
    let is_whole = file_checksum(&folder.join(&name)).is_ok_and(|found| found == checksum);
    (!is_whole).then_some(name)
}

/// Returns the number of a list and its checksum; none for a checksum of an unknown kind.
fn parse_current(bytes: &[u8; CURRENT_BYTES]) -> Option<(u64, u128)> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    let (checksum, kind) = rest.split_first_chunk::<16>()?;
    (kind == [0]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::{Store as _, Table, TableWrite};

    /// Every bit matters: the engine panics on some, and aborts the process on others.
    #[tokio::test]
    async fn a_damaged_list_is_named_and_nothing_panics() {
        let folder = tempfile::tempdir().unwrap();
        let open = || EmbeddedStore::open(folder.path(), EmbeddedOptions::default());
        let store = open().unwrap();
        let row = TableWrite { table: Table::Sources, key: b"a".to_vec(), value: Some("b".into()) };
        store.write(vec![row], Vec::new()).await.unwrap();
        store.close().await;
        drop(store);
        let engine = folder.path().join("engine");
        assert_eq!(check_table_lists(&engine), Ok(()));
        let keyspace = engine.join("keyspaces/1");
        let current = fs::read(keyspace.join(CURRENT)).unwrap();
        let (number, _) = parse_current(&current.clone().try_into().unwrap()).unwrap();
        let mut damaged = 0;
        for name in [CURRENT.to_owned(), format!("v{number}")] {
            let whole = fs::read(keyspace.join(&name)).unwrap();
            for bit in (0..whole.len() * 8).step_by(5) {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(keyspace.join(&name), &flipped).unwrap();
                let error = open().err().map(|e| e.to_string()).unwrap_or_default();
                assert!(
                    error.contains("engine/keyspaces/1/") && error.contains("backup"),
                    "{name} {bit}: {error}"
                );
                damaged += 1;
            }
            fs::write(keyspace.join(&name), whole).unwrap();
        }
        assert!(damaged > 100, "{damaged}");
        open().unwrap().close().await;
    }
}
