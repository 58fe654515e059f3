//! Lists of the engine's tables, read without the engine: it panics on some that are damaged, and its errors name no file.
//!
//! Each folder in `engine/keyspaces` has a file `current`: the number of the list (8 bytes) and its checksum (16 bytes),
//! both little-endian, and the kind of the checksum (1 byte, 0 for XXH3). The list is the file `v` with that number, an
//! archive with the sections `tables` and `blob_files`. Both name files by number, with their checksums.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::engine_error::advice_for;
use super::file_checksum::file_checksum;

const CURRENT: &str = "current";
/// Number, checksum, kind.
const CURRENT_BYTES: usize = 8 + 16 + 1;
/// Folders of a keyspace, with the sections of the list that name their files.
const FOLDERS: [(&str, &[u8]); 2] = [("tables", b"tables"), ("blobs", b"blob_files")];

/// File that a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListedFile {
    number: u64,
    checksum: u128,
}

/// List of a keyspace's files.
#[derive(Debug)]
pub(super) struct TableList {
    folder: PathBuf,
    path: PathBuf,
    number: u64,
}

/// Returns the folders of all keyspaces by their numbers. A new engine has none.
pub(super) fn keyspace_folders(engine: &Path) -> io::Result<Vec<PathBuf>> {
    let folders = match fs::read_dir(engine.join("keyspaces")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        folders => folders?,
    };
    let mut paths = folders.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // By number and not by name, where 10 comes before 2: reports name damage in the order of the keyspaces.
    paths.sort_by_cached_key(|path| number_of(path));
    Ok(paths)
}

/// Returns the number that is a file's name.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Compares every list with its checksum.
///
/// # Errors
///
/// The damaged file and the next step, as text.
pub(super) fn check_table_lists(engine: &Path) -> Result<(), String> {
    let folders = keyspace_folders(engine).map_err(|e| format!("its folder engine/keyspaces: {e}"))?;
    for folder in folders {
        if let Err(damaged) = TableList::read(&folder) {
            let of = folder.file_name().unwrap_or_default().display();
            let file = format!("engine/keyspaces/{of}/{damaged}");
            let advice = advice_for(std::slice::from_ref(&file));
            return Err(format!("its file {file} is damaged or missing; {advice}"));
        }
    }
    Ok(())
}

/// Returns the files of the keyspaces that are not as they were written, such as `engine/keyspaces/3/tables/7`.
pub(super) fn damaged_files(engine: &Path) -> Vec<String> {
    let mut damaged = Vec::new();
    for folder in keyspace_folders(engine).unwrap_or_default() {
        // A damaged list cannot tell the checksums of its files. `check_table_lists` names the list itself.
        let Ok(Some(list)) = TableList::read(&folder) else { continue };
        for (name, section) in FOLDERS {
            let Ok(files) = list.files(section) else { continue };
            let files = files.into_iter().map(|file| (file, folder.join(name).join(file.number.to_string())));
            damaged.extend(
                files
                    .filter(|(file, path)| !is_as_written(*file, path))
                    .map(|(_, path)| display_name(engine, &path)),
            );
        }
    }
    damaged
}

/// Returns the path of a file as operators know it, from the data folder on.
pub(super) fn display_name(engine: &Path, path: &Path) -> String {
    format!("engine/{}", path.strip_prefix(engine).unwrap_or(path).display())
}

fn is_as_written(file: ListedFile, path: &Path) -> bool {
    file_checksum(path).is_ok_and(|found| found == file.checksum)
}

impl TableList {
    /// Reads which list a keyspace has, and compares it with its checksum. A keyspace whose creation was cut off has none:
    /// the engine creates it again.
    ///
    /// # Errors
    ///
    /// The name of the file that is damaged or missing.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, String> {
        let current = match fs::read(folder.join(CURRENT)) {
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound && !is_used(folder) => return Ok(None),
            Err(_) => return Err(CURRENT.into()),
            Ok(current) => current,
        };
        let whole: Option<[u8; CURRENT_BYTES]> = current.try_into().ok();
        let Some((number, checksum)) = whole.and_then(|bytes| parse_current(&bytes)) else {
            return Err(CURRENT.into());
        };
        let path = folder.join(format!("v{number}"));
        if file_checksum(&path).is_ok_and(|found| found == checksum) {
            return Ok(Some(Self { folder: folder.to_owned(), path, number }));
        }
        // A damaged number names a list that never was.
        Err(if path.exists() {
            format!("v{number} (or {CURRENT})")
        } else {
            format!("v{number} (as {CURRENT} says)")
        })
    }

    /// Returns the files of a section.
    fn files(&self, section: &[u8]) -> io::Result<Vec<ListedFile>> {
        let bytes = self.section(section)?;
        let runs = if section == FOLDERS[0].1 { parse_levels(&bytes) } else { parse_contents(&bytes) };
        let runs =
            runs.ok_or_else(|| io::Error::other(format!("{} is of another form", self.path.display())))?;
        Ok(runs.into_iter().flatten().flatten().map(|(file, _)| file).collect())
    }

    fn section(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let archive = sfa::Reader::new(&self.path).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let entry = archive.toc().section(name).ok_or_else(|| io::Error::other("a section is missing"))?;
        let mut bytes = Vec::new();
        entry.buf_reader(&self.path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Leaves out the files for which `is_left_out` returns true, so that the engine opens the keyspace without them.
    /// Returns their paths.
    ///
    /// A table goes from the list. Entries of other tables refer to contents, so a file of contents stays in it, and another
    /// one takes its place: reading what was in it fails. The engine panics where it is missing.
    pub(super) fn leave_out(
        &self,
        substitute: &Path,
        is_left_out: &dyn Fn(ListedFile, &Path) -> bool,
    ) -> io::Result<Vec<PathBuf>> {
        let mut left_out = Vec::new();
        let path_of = |name: &str, file: ListedFile| self.folder.join(name).join(file.number.to_string());
        let (blobs, section) = FOLDERS[1];
        for file in self.files(section)? {
            let path = path_of(blobs, file);
            if is_left_out(file, &path) {
                replace(&path, substitute)?;
                left_out.push(path);
            }
        }
        let (tables, section) = FOLDERS[0];
        let levels = self.section(section)?;
        let levels =
            parse_levels(&levels).ok_or_else(|| io::Error::other("the list of tables is of another form"))?;
        let mut kept = Vec::new();
        for level in levels {
            let mut runs = Vec::new();
            for run in level {
                let (out, whole): (Vec<_>, Vec<_>) =
                    run.into_iter().partition(|(file, _)| is_left_out(*file, &path_of(tables, *file)));
                left_out.extend(out.into_iter().map(|(file, _)| path_of(tables, file)));
                // The engine knows no empty run.
                if !whole.is_empty() {
                    runs.push(whole);
                }
            }
            kept.push(runs);
        }
        // The list before the files: a crash in between leaves files that nothing names. The other order would
        // leave a list that names missing files, on which the engine panics.
        self.write(&encode_levels(&kept))?;
        for path in
            left_out.iter().filter(|path| path.parent().is_some_and(|parent| parent.ends_with(tables)))
        {
            match fs::remove_file(path) {
                // A missing file may be the damage itself.
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(left_out)
    }

    /// Writes the list with other tables.
    fn write(&self, levels: &[u8]) -> io::Result<()> {
        let archive = sfa::Reader::new(&self.path).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let new = self.folder.join("list.new");
        let mut writer = sfa::Writer::from_writer(BufWriter::new(File::create(&new)?));
        for entry in archive.toc().iter() {
            writer.start(entry.name())?;
            if entry.name() == FOLDERS[0].1 {
                writer.write_all(levels)?;
            } else {
                io::copy(&mut entry.buf_reader(&self.path)?, &mut writer)?;
            }
        }
        writer.finish().map_err(|e| io::Error::other(format!("{e:?}")))?;
        fs::rename(&new, &self.path)?;
        let checksum = file_checksum(&self.path)?;
        let current = [&self.number.to_le_bytes()[..], &checksum.to_le_bytes(), &[0]].concat();
        fs::write(self.folder.join(CURRENT), current)
    }
}

/// Returns true for a file whose own table of contents can be read.
fn opens(path: &Path) -> bool {
    sfa::Reader::new(path).is_ok()
}

/// Returns a file of contents of an engine.
pub(super) fn content_file(engine: &Path) -> Option<PathBuf> {
    let folders = keyspace_folders(engine).ok()?;
    let listed = folders.iter().filter_map(|folder| fs::read_dir(folder.join(FOLDERS[1].0)).ok());
    listed.flatten().flatten().next().map(|entry| entry.path())
}

/// Returns true for a file that the engine does not open, as far as its end tells.
pub(super) fn is_unreadable(_: ListedFile, path: &Path) -> bool {
    !opens(path)
}

/// Returns true for a file that is not as it was written.
pub(super) fn is_damaged(file: ListedFile, path: &Path) -> bool {
    !is_as_written(file, path)
}

/// Puts a copy of a file in the place of another, which may be a link.
fn replace(path: &Path, by: &Path) -> io::Result<()> {
    // The path may be a hard link. A write would go through it into the other copy; a rename replaces only this
    // name.
    let new = path.with_extension("new");
    fs::copy(by, &new)?;
    fs::rename(new, path)
}

/// Returns true for a keyspace whose creation was not cut off: it has tables, contents or a later list than the first.
fn is_used(folder: &Path) -> bool {
    let listed = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    FOLDERS.iter().any(|(name, _)| listed(&folder.join(name)).next().is_some())
        || listed(folder).any(|entry| {
            let name = entry.file_name();
            name.to_str().and_then(|name| name.strip_prefix('v')).is_some_and(|number| number != "0")
        })
}

/// Returns the number of a list and its checksum; none for a checksum of an unknown kind.
fn parse_current(bytes: &[u8; CURRENT_BYTES]) -> Option<(u64, u128)> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    let (checksum, kind) = rest.split_first_chunk::<16>()?;
    (kind == [0]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

/// Levels of runs of tables, each with what follows its checksum.
type Levels = Vec<Vec<Vec<(ListedFile, [u8; 8])>>>;

/// Reads the tables: number of levels (1 byte), of runs (1), of tables (4), and each table.
fn parse_levels(mut bytes: &[u8]) -> Option<Levels> {
    let [levels] = take(&mut bytes)?;
    let mut all = Vec::new();
    for _ in 0..levels {
        let [runs] = take(&mut bytes)?;
        let mut level = Vec::new();
        for _ in 0..runs {
            let tables = u32::from_le_bytes(take(&mut bytes)?);
            let run = (0..tables).map(|_| Some((parse_file(&mut bytes)?, take(&mut bytes)?)));
            level.push(run.collect::<Option<Vec<_>>>()?);
        }
        all.push(level);
    }
    // Bytes that are left over belong to a form that is unknown here. Half of it must not be written back.
    bytes.is_empty().then_some(all)
}

/// Reads the files of contents: their number (4 bytes), and each file.
fn parse_contents(mut bytes: &[u8]) -> Option<Levels> {
    let count = u32::from_le_bytes(take(&mut bytes)?);
    let files = (0..count).map(|_| Some((parse_file(&mut bytes)?, [0; 8]))).collect::<Option<Vec<_>>>()?;
    bytes.is_empty().then(|| vec![vec![files]])
}

/// Reads a file: its number (8 bytes), the kind of its checksum (1, 0 for XXH3), its checksum (16).
fn parse_file(bytes: &mut &[u8]) -> Option<ListedFile> {
    let number = u64::from_le_bytes(take(bytes)?);
    let [kind] = take(bytes)?;
    let checksum = u128::from_le_bytes(take(bytes)?);
    (kind == 0).then_some(ListedFile { number, checksum })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn encode_levels(levels: &Levels) -> Vec<u8> {
    // No count overflows: each was read from a field of this width, and leaving out only lowers it.
    let mut bytes = vec![u8::try_from(levels.len()).unwrap_or(u8::MAX)];
    for level in levels {
        bytes.push(u8::try_from(level.len()).unwrap_or(u8::MAX));
        for run in level {
            bytes.extend(u32::try_from(run.len()).unwrap_or(u32::MAX).to_le_bytes());
            for (ListedFile { number, checksum }, rest) in run {
                bytes.extend([&number.to_le_bytes()[..], &[0], &checksum.to_le_bytes(), rest].concat());
            }
        }
    }
    bytes
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
                    error.contains("engine/keyspaces/1/") && error.contains("`towpath repair`"),
                    "{name} {bit}: {error}"
                );
                damaged += 1;
            }
            fs::write(keyspace.join(&name), whole).unwrap();
        }
        assert!(damaged > 100, "{damaged}");
        open().unwrap().close().await;
    }

    /// Taken for a new one, a keyspace would be empty, and the next write would make it so for good.
    #[tokio::test]
    async fn a_keyspace_that_lost_its_list_is_not_taken_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let open = || EmbeddedStore::open(folder.path(), EmbeddedOptions::default());
        let store = open().unwrap();
        let row = TableWrite { table: Table::Sources, key: b"a".to_vec(), value: Some("b".into()) };
        store.write(vec![row], Vec::new()).await.unwrap();
        store.compact().await.unwrap();
        store.close().await;
        drop(store);
        let engine = folder.path().join("engine");
        let used = keyspace_folders(&engine).unwrap().into_iter().rfind(|folder| is_used(folder)).unwrap();
        fs::remove_file(used.join(CURRENT)).unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains(&display_name(&engine, &used.join(CURRENT))), "{error}");
    }

    #[test]
    fn lists_come_back_as_they_were() {
        let file = |number| (ListedFile { number, checksum: u128::MAX - 3 }, [number as u8; 8]);
        let levels = vec![vec![vec![file(1), file(2)], vec![file(9)]], vec![], vec![vec![file(4)]]];
        let bytes = encode_levels(&levels);
        assert_eq!(parse_levels(&bytes), Some(levels));
        assert_eq!(parse_levels(&bytes[..bytes.len() - 1]), None);
    }
}
