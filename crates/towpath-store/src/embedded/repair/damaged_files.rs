//! A working copy of a store that the engine does not open: without its damaged files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::OpenError;
use crate::embedded::EmbeddedOptions;
use crate::embedded::engine_error::engine_reason;
use crate::embedded::folder::{DataFolder, remove_folder};
use crate::embedded::journal_batches::leave_out_damage;
use crate::embedded::journal_mark::{ENGINE_VERSION, lost_commits};
use crate::embedded::migration::copy_entry;
use crate::embedded::storage_engine::{StorageEngine, last_commit};
use crate::embedded::table_lists::{
    self, TableList, content_file, display_name, is_damaged, is_unreadable, keyspace_folders, number_of,
};

/// Folder of the working copy, below the data folder.
pub(super) const WORKING_COPY: &str = "towpath.repair-source";
/// Keyspaces that the log gives: feeds, ids and three orders of the log. The engine numbers them as they are created.
const REBUILT: [u64; 5] = [1, 3, 4, 5, 6];
/// Keyspace of the names of all others.
const NAMES: u64 = 0;
/// Content of the file [`ENGINE_VERSION`].
const VERSION: &[u8] = b"FJL\x03";

/// Files that were left out of a working copy.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Files whose entries the log gives.
    pub(super) rebuilt: Vec<String>,
    /// Files whose entries may be nowhere else.
    pub(super) lost: Vec<String>,
}

/// Opens a working copy of a folder that does not open itself.
///
/// Only what keeps the engine from opening is left out: of a table with a damaged block the rest can be read.
///
/// # Errors
///
/// If the copy cannot be written, or does not open either.
pub(super) fn open_without(folder: &DataFolder) -> Result<(StorageEngine, LeftOut), OpenError> {
    let refuse = |reason: String| {
        folder.refuse(format!("it cannot be repaired: {reason}; bring it back with `towpath restore`"))
    };
    let mut last = String::new();
    for is_left_out in [is_unreadable, is_damaged] {
        let copy = folder.copy_for_repair(WORKING_COPY)?;
        let spare = Spare::make(&copy.join("spare"))?;
        let left_out = leave_out(&copy.join("engine"), &spare, &is_left_out);
        let mut left_out = left_out.map_err(|e| refuse(e.to_string()))?;
        match DataFolder::open(&copy).and_then(open_readable) {
            Ok(engine) => {
                if left_out.lost.is_empty() {
                    let commit = last_commit(&engine.tables).unwrap_or_default();
                    let lost = lost_commits(folder.path(), &folder.engine(), commit);
                    left_out.lost.extend(lost.map(|damage| format!("the {damage}")));
                }
                return Ok((engine, left_out));
            }
            Err(e) => last = e.reason,
        }
    }
    Err(refuse(last))
}

/// Opens the engine of a folder, if what every opening reads of it can be read.
pub(super) fn open_readable(folder: DataFolder) -> Result<StorageEngine, OpenError> {
    let engine = StorageEngine::open(folder, &EmbeddedOptions::default())?;
    engine.opened_as_replica()?;
    Ok(engine)
}

/// Parts of an engine that take the place of damaged ones.
struct Spare {
    /// File of contents in which nothing is that is asked for.
    content: PathBuf,
    /// Folder of empty keyspaces.
    keyspaces: PathBuf,
}

impl Spare {
    /// Makes the parts in a new folder.
    fn make(folder: &Path) -> Result<Self, OpenError> {
        let engine = StorageEngine::open(DataFolder::open(folder)?, &EmbeddedOptions::default())?;
        let failed = |reason: String| engine.refuse(&reason);
        let keyspaces = folder.join("empty");
        let copied = copy_entry(&engine.path.join("keyspaces"), &keyspaces);
        copied.map_err(|e| failed(e.to_string()))?;
        // Longer than what the engine keeps in its tables.
        engine.documents.insert("spare", [0; 4096]).map_err(|e| failed(engine_reason(&e)))?;
        engine.compact().map_err(|e| failed(e.to_string()))?;
        let content = content_file(&engine.path);
        let content = content.ok_or_else(|| failed("the engine wrote no file of contents".into()))?;
        Ok(Self { content, keyspaces })
    }
}

fn leave_out(
    engine: &Path,
    spare: &Spare,
    is_left_out: &dyn Fn(table_lists::ListedFile, &Path) -> bool,
) -> io::Result<LeftOut> {
    let mut left_out = LeftOut::default();
    if !engine.join(ENGINE_VERSION).exists() {
        fs::write(engine.join(ENGINE_VERSION), VERSION)?;
        left_out.rebuilt.push(format!("engine/{ENGINE_VERSION}"));
    }
    left_out.lost = leave_out_damage(engine)?;
    for folder in keyspace_folders(engine)? {
        let number = number_of(&folder);
        let files = match TableList::read(&folder) {
            Ok(None) => continue,
            Ok(Some(list)) => list.leave_out(&spare.content, is_left_out)?,
            Err(damaged) if number == Some(NAMES) => vec![folder.join(damaged)],
            Err(damaged) => {
                // Which tables count, and in which order, is unknown. What the journal has comes into the empty one.
                remove_folder(&folder)?;
                copy_entry(&spare.keyspaces.join(folder.file_name().unwrap_or_default()), &folder)?;
                vec![folder.join(damaged)]
            }
        };
        // Without their names the engine would remove all others.
        if number == Some(NAMES) && !files.is_empty() {
            return Err(io::Error::other(format!("{} names all keyspaces", display_name(engine, &files[0]))));
        }
        let names = files.iter().map(|path| format!("the file {}", display_name(engine, path)));
        if number.is_some_and(|number| REBUILT.contains(&number)) {
            left_out.rebuilt.extend(names);
        } else {
            left_out.lost.extend(names);
        }
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::feed_id::FeedId;
    use towpath_proto::item::{Content, Item};

    use super::super::{FolderRepair, RepairReport};
    use crate::embedded::verify::VerifyProgress;
    use crate::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::{Expected, ReadLimit, Store as _, Table, TableWrite};

    use super::*;

    const ALL: ReadLimit = ReadLimit { items: 1000, bytes: usize::MAX };

    fn open(folder: &Path) -> Result<EmbeddedStore, OpenError> {
        EmbeddedStore::open(folder, EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() })
    }

    fn feed() -> FeedId {
        FeedId::new("f1").unwrap()
    }

    async fn append(store: &EmbeddedStore, ids: std::ops::Range<u32>) {
        for id in ids {
            // Contents of their own file.
            let content = Content::new("text/plain", format!("{id} ").repeat(400));
            let item = Item { content: Some(content), ..Item::new(id.to_string()) };
            store.append(&feed(), Expected::Any, vec![NewChange::put(item)]).await.unwrap();
        }
    }

    /// Writes a folder whose log is in tables, in contents and in the journal.
    async fn write(folder: &Path) {
        let store = open(folder).unwrap();
        append(&store, 0..20).await;
        for table in [Table::Sources, Table::Documents] {
            let row = TableWrite { table, key: b"a".to_vec(), value: Some(vec![b'x'; 1000].into()) };
            store.write(vec![row], Vec::new()).await.unwrap();
        }
        store.compact().await.unwrap();
        append(&store, 20..30).await;
        store.close().await;
    }

    /// Files of the engine below a folder that hold data.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else if !path.ends_with("lock") {
                found.push(path);
            }
        }
        found.sort();
        found
    }

    async fn repaired(folder: &Path, case: &str) -> (Vec<u64>, RepairReport) {
        let repair = FolderRepair::begin(folder).unwrap_or_else(|e| panic!("{case}: {e}"));
        let (_, report) = repair.build(&VerifyProgress::default()).unwrap();
        let kept = repair.install().unwrap();
        assert!(kept.join("engine").exists() && !folder.join(WORKING_COPY).exists());
        let store = open(folder).unwrap();
        assert!(store.verify().await.unwrap().is_sound(), "{report:?}");
        let read = store.read(&feed(), 0, ALL).await.unwrap();
        store.close().await;
        (read.iter().map(|change| change.seq).collect(), report)
    }

    /// A folder opens by its tables' ends, and then reads the first rows of one of them.
    #[tokio::test]
    async fn a_damaged_first_block_is_named_and_left_out() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).await;
        let [table] = &files(&folder.path().join("engine/keyspaces/7/tables"))[..] else { panic!() };
        let mut bytes = fs::read(table).unwrap();
        bytes[40] ^= 1;
        fs::write(table, bytes).unwrap();
        let shown = table.strip_prefix(folder.path()).unwrap().display().to_string();
        let error = open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(&shown) && error.contains("towpath repair"), "{error}");
        let (read, report) = repaired(folder.path(), &shown).await;
        assert_eq!(read, (1..=30).collect::<Vec<_>>());
        assert!(report.lost_rows.iter().any(|row| row.contains(&shown)), "{report:?}");
    }

    /// Deletes and shortens every file of the engine, one after the other.
    #[tokio::test]
    async fn every_file_is_named_and_left_out() {
        let whole = tempfile::tempdir().unwrap();
        write(whole.path()).await;
        let all = files(&whole.path().join("engine"));
        assert!(all.len() > 25, "{all:?}");
        // One keyspace that the log gives, and one that it does not.
        let alike = [1, 4, 5, 6, 7, 8].map(|number| whole.path().join(format!("engine/keyspaces/{number}")));
        for file in all.iter().filter(|file| !alike.iter().any(|keyspace| file.starts_with(keyspace))) {
            let name = file.strip_prefix(whole.path()).unwrap();
            let shown = name.display().to_string();
            for is_removed in [true, false] {
                let folder = tempfile::tempdir().unwrap();
                for other in files(whole.path()) {
                    let to = folder.path().join(other.strip_prefix(whole.path()).unwrap());
                    fs::create_dir_all(to.parent().unwrap()).unwrap();
                    fs::copy(other, to).unwrap();
                }
                let damaged = folder.path().join(name);
                match is_removed {
                    true => fs::remove_file(&damaged).unwrap(),
                    false => {
                        let length = fs::metadata(&damaged).unwrap().len() / 2;
                        fs::File::options().write(true).open(&damaged).unwrap().set_len(length).unwrap();
                    }
                }
                // The engine sweeps up what no list names.
                let Some(error) = open(folder.path()).err().map(|e| e.to_string()) else {
                    // A list that has a later one.
                    assert!(shown.contains("/v"), "{shown} is not missed");
                    continue;
                };
                assert!(error.contains(&shown), "{shown}: {error}");
                if shown.starts_with("engine/keyspaces/0/") || (shown == "engine/version" && !is_removed) {
                    assert!(error.contains("restore"), "{shown}: {error}");
                    assert!(!error.contains("repair` does it"), "{shown}: {error}");
                    let refused = FolderRepair::begin(folder.path()).err().unwrap().to_string();
                    assert!(refused.contains("`towpath restore`"), "{shown}: {refused}");
                    assert!(!folder.path().join(WORKING_COPY).exists());
                    continue;
                }
                assert!(error.contains("towpath repair"), "{shown}: {error}");
                let (read, report) = repaired(folder.path(), &shown).await;
                let case = format!("{shown}, removed {is_removed}: {read:?}, {report:?}");
                let number = |keyspace: &[u64]| {
                    keyspace.iter().any(|number| shown.starts_with(&format!("engine/keyspaces/{number}/")))
                };
                if number(&REBUILT) || shown == "engine/version" {
                    assert!(report.lost.is_empty() && report.lost_rows.is_empty(), "{case}");
                    assert!(report.rebuilt_files.iter().any(|file| file.contains(&shown)), "{case}");
                    assert_eq!(read, (1..=30).collect::<Vec<_>>(), "{case}");
                } else {
                    assert!(report.lost_rows.iter().any(|row| row.contains(&shown)), "{case}");
                    // What the journal has is there, or what the tables have.
                    let is_log = number(&[2]);
                    assert!(!is_log || read.ends_with(&(21..=30).collect::<Vec<_>>()), "{case}");
                    assert!(is_log || read.starts_with(&(1..=20).collect::<Vec<_>>()), "{case}");
                }
            }
        }
    }

    /// A flipped bit of the journal costs the batch that it is in, and those after it come back.
    #[tokio::test]
    async fn a_damaged_batch_of_the_journal_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).unwrap();
        append(&store, 0..10).await;
        store.close().await;
        let journal = folder.path().join("engine/0.jnl");
        let mut bytes = fs::read(&journal).unwrap();
        let content = "5 ".repeat(400).into_bytes();
        let at = bytes.windows(content.len()).position(|part| part == content).unwrap();
        bytes[at + 100] ^= 1;
        fs::write(&journal, bytes).unwrap();
        let error = open(folder.path()).err().unwrap().to_string();
        assert!(
            error.contains("engine/0.jnl is damaged from byte") && error.contains("`towpath repair`"),
            "{error}"
        );
        let (read, report) = repaired(folder.path(), "a flipped bit").await;
        let lost: Vec<_> = report.lost.iter().map(|lost| lost.position).collect();
        assert_eq!(lost, [6]);
        assert!(report.lost_rows[0].contains("engine/0.jnl is damaged from byte"), "{report:?}");
        assert!(read.ends_with(&[7, 8, 9, 10]), "{read:?}");
    }
}
