//! Model of the disks: what of a store's journals is durable, and what a lost power leaves.
//!
//! The files are real ones, in memory, and the storage engine that writes them is the program's. Of a journal the model
//! knows the end of what was synced. A kill leaves all that was written, as the kernel would write it. A lost power takes
//! any part of what was not synced: it cuts a journal there, or leaves zeros in the place of its end or of one block. Other
//! files are left as they are: `cargo xtask lost-power` has the changes of all files.
//!
//! A disk that fills up has so many bytes left for what the store's own threads write in new places; after that writes
//! fail, some of them half-way, until there is space again.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::gate::{Gate, Stop, Verdict};
use crate::system;

/// Bytes that a disk writes whole or not at all.
const SECTOR: u64 = 512;
/// Bytes that a file system writes at once.
const BLOCK: u64 = 4096;

/// Disk of one run of a node: a folder.
pub struct Disk {
    folder: PathBuf,
    /// Stop of the commit thread in a sync; `None` once the machine is off.
    pub gate: Arc<Gate>,
    /// Ends of what is durable, by journal.
    durable: Mutex<HashMap<PathBuf, u64>>,
    /// Bytes that are free while the disk fills up; `None` where there is more than anybody needs.
    free: Mutex<Option<u64>>,
    /// Writes that found no space, since the last look.
    refused: AtomicU64,
    /// True if writes to the full disk look as if they had worked: a planted bug.
    is_pretending: AtomicBool,
}

/// Disks of the nodes that run.
static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());
/// True while a disk fills up or is full, so that no other write is looked at.
static IS_ANY_FULL: AtomicBool = AtomicBool::new(false);

impl Disk {
    /// Registers the disk in a folder.
    pub fn mount(folder: &Path) -> io::Result<Arc<Self>> {
        fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        let disk = Arc::new(Self {
            folder,
            gate: Arc::default(),
            durable: Mutex::default(),
            free: Mutex::default(),
            refused: AtomicU64::default(),
            is_pretending: AtomicBool::default(),
        });
        DISKS.lock().push(disk.clone());
        Ok(disk)
    }

    /// Folder of the node's data.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Name of the folder.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Copies what is there at this moment to another folder, which is the disk from now on.
    ///
    /// `remains` chooses what a lost power leaves of so many bytes that were not synced. Without it the process alone was
    /// killed, and all is there.
    pub fn crash(
        &self,
        to: &Path,
        mut remains: Option<&mut dyn FnMut(u64) -> Remains>,
    ) -> io::Result<Arc<Self>> {
        copy_at_once(&self.folder, to)?;
        let new = Self::mount(to)?;
        let durable = self.durable.lock();
        let mut ends: Vec<_> = durable.iter().collect();
        ends.sort();
        for (path, end) in ends {
            let Ok(rest) = path.strip_prefix(&self.folder) else { continue };
            let copied = new.folder.join(rest);
            if !copied.is_file() {
                continue;
            }
            if let Some(remains) = remains.as_deref_mut() {
                lose(&copied, *end, remains)?;
            }
            new.durable.lock().insert(copied, *end);
        }
        // Last: the model itself needs no space.
        new.is_pretending.store(self.is_pretending.load(Ordering::Relaxed), Ordering::Relaxed);
        *new.free.lock() = *self.free.lock();
        Ok(new)
    }

    /// Leaves so many bytes free; `None` for more than anybody needs.
    pub fn set_free(&self, free: Option<u64>, is_pretending: bool) {
        *self.free.lock() = free;
        self.is_pretending.store(is_pretending, Ordering::Relaxed);
        IS_ANY_FULL.store(DISKS.lock().iter().any(|disk| disk.free.lock().is_some()), Ordering::Relaxed);
    }

    /// Returns true if it fills up or is full.
    pub fn is_limited(&self) -> bool {
        self.free.lock().is_some()
    }

    /// Returns the number of writes that found no space since the last call.
    pub fn take_refused(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// Copies the disk to a folder that is no disk of a node, with one bit of the storage engine's files flipped.
    /// `choose` chooses numbers below the ones that it gets. Returns the place of the bit.
    pub fn flip(&self, to: &Path, choose: &mut dyn FnMut(u64) -> u64) -> io::Result<String> {
        copy_at_once(&self.folder, to)?;
        let mut files = Vec::new();
        list_files(&to.join("engine"), &mut files)?;
        // Not the lists of tables: earlier ones stay for a while, and nobody reads them. The store's own test has these.
        let is_data = |path: &Path| path.extension().is_some_and(|e| e == "jnl") || is_written_once(path);
        files.retain(|path| is_data(path));
        files.sort();
        let mut ends = Vec::new();
        for file in files {
            let end = end_of_journal(&file, 0)?;
            ends.push((file, end));
        }
        ends.retain(|(_, end)| *end > 0);
        let (path, end) = &ends[choose(ends.len() as u64) as usize];
        let (at, bit) = (choose(*end), choose(8));
        if is_written_once(path) {
            stop_sharing(path)?;
        }
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut byte = [0];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut byte)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&[byte[0] ^ (1 << bit)])?;
        let name = path.strip_prefix(to).unwrap_or(path).display();
        Ok(format!("bit {bit} of byte {at} of {name}"))
    }

    /// Makes everything durable that the journals have.
    pub fn sync_all(&self) {
        for (path, durable) in &mut *self.durable.lock() {
            if let Ok(end) = end_of_journal(path, *durable) {
                *durable = end;
            }
        }
    }

    /// Forgets the disk and removes its folder. Call it when no thread uses it.
    pub fn remove(&self) {
        DISKS.lock().retain(|disk| disk.folder != self.folder);
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Part of a write that has room on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// All of it.
    All,
    /// So many bytes, at least one.
    Part(usize),
    /// Nothing.
    None,
    /// Nothing, and the write says that it worked.
    Pretended,
}

/// Returns true if any disk fills up or is full.
pub(crate) fn is_any_full() -> bool {
    IS_ANY_FULL.load(Ordering::Relaxed)
}

/// Takes the room of a write to a file. `in_place` tells how many of its bytes have their place already: they need no space.
pub(crate) fn room(path: &Path, length: usize, in_place: impl FnOnce() -> usize) -> Room {
    let disk = DISKS.lock().iter().find(|disk| path.starts_with(&disk.folder)).cloned();
    let Some(disk) = disk else { return Room::All };
    let mut free = disk.free.lock();
    let Some(free) = free.as_mut() else { return Room::All };
    let in_place = in_place();
    let new = length.saturating_sub(in_place) as u64;
    let taken = new.min(*free);
    *free -= taken;
    match in_place.min(length) + taken as usize {
        fits if fits == length => Room::All,
        _ if disk.is_pretending.load(Ordering::Relaxed) => Room::Pretended,
        0 => {
            disk.refused.fetch_add(1, Ordering::Relaxed);
            Room::None
        }
        fits => Room::Part(fits),
    }
}

/// Part of the bytes that were not synced that a lost power leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// So many, and the file ends there.
    Short(u64),
    /// So many, and zeros in the place of the others.
    Torn(u64),
    /// All but the block that has this one of them: zeros.
    Hole(u64),
}

/// Takes a sync of a file, and returns the error number that it fails with.
pub(crate) fn synced(path: &Path, end: impl FnOnce() -> u64) -> Result<(), i32> {
    if path.extension().is_none_or(|extension| extension != "jnl") {
        return Ok(());
    }
    let disk = DISKS.lock().iter().find(|disk| path.starts_with(&disk.folder)).cloned();
    let Some(disk) = disk else { return Ok(()) };
    let verdict = if system::is_commit_thread() { disk.gate.arrive(Stop::Sync) } else { Verdict::Done };
    match verdict {
        Verdict::Done => {
            let mut durable = disk.durable.lock();
            let known = durable.entry(path.to_owned()).or_default();
            // Whoever cuts a file does so by a descriptor of its own, whose position tells nothing.
            let length = path.metadata().map_or(0, |file| file.len());
            *known = end().max((*known).min(length));
            Ok(())
        }
        Verdict::Ignored => Ok(()),
        Verdict::Failed => Err(libc::EIO),
    }
}

/// Returns the end of what is in a journal behind a position.
fn end_of_journal(journal: &Path, from: u64) -> io::Result<u64> {
    let mut file = File::open(journal)?;
    file.seek(SeekFrom::Start(from))?;
    let mut rest = Vec::new();
    file.take(8 << 20).read_to_end(&mut rest)?;
    Ok(from + rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1))
}

/// Takes from a journal what a lost power takes.
fn lose(journal: &Path, durable: u64, remains: &mut dyn FnMut(u64) -> Remains) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(journal)?;
    let length = file.metadata()?.len();
    // A new journal is a file of zeros, behind what was written.
    let written = end_of_journal(journal, durable)? - durable;
    if written == 0 {
        return Ok(());
    }
    let (zeros, is_short) = match remains(written) {
        Remains::Short(keep) => (keep..written, true),
        Remains::Torn(keep) => {
            let keep = ((durable + keep) / SECTOR * SECTOR).saturating_sub(durable);
            (keep..written, false)
        }
        Remains::Hole(at) => {
            let block = (durable + at) / BLOCK * BLOCK;
            (block.saturating_sub(durable)..(block + BLOCK - durable).min(written), false)
        }
    };
    file.seek(SeekFrom::Start(durable + zeros.start))?;
    file.write_all(&vec![0; (zeros.end - zeros.start) as usize])?;
    // A file that grew with its writes is shorter; one that was made with its length keeps it.
    if is_short && length == durable + written {
        file.set_len(durable + zeros.start)?;
    }
    Ok(())
}

/// Replaces a file that several disks share by a copy.
fn stop_sharing(path: &Path) -> io::Result<()> {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy)?;
    fs::rename(&copy, path)
}

fn list_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Copies a folder as it is at one moment: the engine's own thread may change files meanwhile.
fn copy_at_once(from: &Path, to: &Path) -> io::Result<()> {
    loop {
        let before = states(from)?;
        let copied = copy_folder(from, to);
        if states(from)? == before {
            return copied;
        }
        fs::remove_dir_all(to)?;
    }
}

/// Returns the names, lengths and times of all files in a folder.
fn states(folder: &Path) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut files = Vec::new();
    list_files(folder, &mut files)?;
    files.sort();
    let state = |path: PathBuf| {
        let file = path.metadata()?;
        Ok((path, file.len(), file.modified()?))
    };
    // A file that goes meanwhile is none of this moment.
    Ok(files.into_iter().map(state).filter_map(io::Result::ok).collect())
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&path, &target)?;
        } else if is_written_once(&path) {
            fs::hard_link(&path, &target)?;
        } else {
            copy_file(&path, &target)?;
        }
    }
    Ok(())
}

/// Returns true for a file of the engine's that nobody writes to once its list names it. A copy of a disk can share it.
fn is_written_once(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::file_name);
    folder.is_some_and(|folder| folder == "tables" || folder == "blobs")
}

/// Copies a file without the zeros at its end: a new journal has 64 MiB of them.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::open(from)?;
    let length = source.metadata()?.len();
    let mut target = File::create(to)?;
    let mut piece = vec![0; 64 << 10];
    let mut copied = 0;
    loop {
        let read = source.read(&mut piece)?;
        // Nothing is written behind a whole piece of zeros.
        if read == 0 || (length > 1 << 20 && piece[..read].iter().all(|byte| *byte == 0)) {
            break;
        }
        target.write_all(&piece[..read])?;
        copied += read as u64;
    }
    if copied < length {
        target.set_len(length)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks share the files that nobody writes to, and a flipped bit is in one of them alone.
    #[test]
    fn a_flipped_bit_is_on_one_disk() {
        let scratch = std::env::temp_dir().join(format!("towpath-simulation-test-{}", std::process::id()));
        let (own, copy) = (scratch.join("own"), scratch.join("copy"));
        let table = "engine/keyspaces/1/tables/7";
        let disk = Disk::mount(&own).unwrap();
        fs::create_dir_all(own.join(table).parent().unwrap()).unwrap();
        fs::write(own.join(table), b"table").unwrap();
        let place = disk.flip(&copy, &mut |_| 0).unwrap();
        assert_eq!(place, format!("bit 0 of byte 0 of {table}"));
        assert_eq!(fs::read(copy.join(table)).unwrap(), b"uable");
        assert_eq!(fs::read(own.join(table)).unwrap(), b"table");
        disk.remove();
        fs::remove_dir_all(&scratch).unwrap();
    }
}
