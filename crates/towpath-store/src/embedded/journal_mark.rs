//! Mark of the journal: how far it reached when a write was last acknowledged.
//!
//! The engine takes a journal that is missing or shortened for one that ended there, and what it held is gone without
//! a word. So the mark is compared with the files before the engine opens them, and with the engine's own count of
//! commits afterwards.
//!
//! ```text
//! towpath.journal  "towpath journal 1 commit 20 digits, file 20 digits, length 20 digits\n", or "accept"
//! ```
//!
//! It is written after the journal's sync and never synced itself. So it may be behind the journal, and never ahead.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Name of the mark's file.
pub(super) const MARK: &str = "towpath.journal";
const PREFIX: &str = "towpath journal 1 ";
/// Word with which a repair, or an operator, accepts the loss of what a missing journal held.
pub(super) const ACCEPT: &str = "accept";
/// File that the engine writes when it is created, and never removes.
pub(super) const ENGINE_VERSION: &str = "version";

/// End of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JournalEnd {
    /// Number of the last commit.
    commit: u64,
    /// Number of the journal file that it is in.
    file: u64,
    /// Length that the file had then.
    length: u64,
}

/// Mark of a data folder's journal.
pub(crate) struct JournalMark {
    engine: PathBuf,
    path: PathBuf,
    is_accepted: bool,
    state: Mutex<MarkState>,
}

struct MarkState {
    file: File,
    end: JournalEnd,
}

impl JournalMark {
    /// Opens the mark of a folder, or creates it, and compares it with the engine's files. `is_new` is true for a
    /// folder without an engine.
    pub(crate) fn open(folder: &Path, engine: PathBuf, is_new: bool) -> Result<Self, String> {
        let path = folder.join(MARK);
        let text = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => None,
            Err(e) => return Err(format!("its file {MARK} cannot be read: {e}")),
        };
        let is_accepted = text.as_deref().is_some_and(|text| text.trim() == ACCEPT);
        // An unreadable mark, as a power loss may leave it, is none.
        let end = text.as_deref().and_then(JournalEnd::parse).filter(|_| !is_new).unwrap_or_default();
        if !is_new && !is_accepted {
            check_files(&engine, end).map_err(|damage| refusal(&damage))?;
        }
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(|e| format!("its file {MARK} cannot be written: {e}"))?;
        let mark = Self { engine, path, is_accepted, state: Mutex::new(MarkState { file, end }) };
        // Opening cuts the journal behind its last whole batch. A crash after that must not look like damage.
        mark.write(JournalEnd { length: 0, ..end }, true)?;
        Ok(mark)
    }

    /// Compares the mark with the last commit that the engine has, and moves it there.
    pub(crate) fn check(&self, commit: u64) -> Result<(), String> {
        let marked = self.state.lock().end;
        if commit < marked.commit && !self.is_accepted {
            return Err(refusal(&marked.without(commit)));
        }
        let files = journals(&self.engine).map_err(|e| e.to_string())?;
        let file = files.last().copied().unwrap_or_default();
        self.write(JournalEnd { commit, file, length: self.length(file) }, false)
    }

    /// Number of the next commit.
    pub(crate) fn next(&self) -> u64 {
        self.state.lock().end.commit + 1
    }

    /// Moves the mark to a commit that is synced.
    pub(crate) fn advance(&self, commit: u64) {
        let mut file = self.state.lock().end.file;
        // The engine continues in the next file when one is full.
        while self.journal(file + 1).exists() {
            file += 1;
        }
        // The commit is durable. A mark that stays behind only finds less.
        if let Err(e) = self.write(JournalEnd { commit, file, length: self.length(file) }, false) {
            tracing::debug!(error = %e, "cannot move the mark of the journal");
        }
    }

    fn journal(&self, file: u64) -> PathBuf {
        self.engine.join(format!("{file}.jnl"))
    }

    fn length(&self, file: u64) -> u64 {
        fs::metadata(self.journal(file)).map_or(0, |found| found.len())
    }

    fn write(&self, end: JournalEnd, sync: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        state.end = end;
        let JournalEnd { commit, file, length } = end;
        // Always as long as the text before, so that it is overwritten in place.
        let text = format!("{PREFIX}commit {commit:020}, file {file:020}, length {length:020}\n");
        let mut write = || {
            state.file.seek(SeekFrom::Start(0))?;
            state.file.write_all(text.as_bytes())?;
            if sync { state.file.sync_data() } else { Ok(()) }
        };
        write().map_err(|e: io::Error| format!("{} cannot be written: {e}", self.path.display()))
    }
}

impl JournalEnd {
    /// Describes a journal that ends with an earlier commit, without an article.
    fn without(self, commit: u64) -> String {
        let (file, marked) = (self.file, self.commit);
        format!(
            "journal engine/{file}.jnl is damaged: of {marked} commits the last {} are missing",
            marked.saturating_sub(commit)
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.trim_end().strip_prefix(PREFIX)?.split(", ");
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.trim().parse().ok();
        Some(Self { commit: field("commit")?, file: field("file")?, length: field("length")? })
    }
}

/// Returns what the journals of a folder lack, by its mark, without an article. `commit` is the last one that the engine
/// has.
pub(super) fn lost_commits(folder: &Path, engine: &Path, commit: u64) -> Option<String> {
    let end = JournalEnd::parse(&fs::read_to_string(folder.join(MARK)).ok()?)?;
    let files = check_journals(engine, end).err();
    files.or_else(|| (commit < end.commit).then(|| end.without(commit)))
}

/// Returns the numbers of the engine's journal files, ascending.
pub(super) fn journals(engine: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(engine)? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Fails where a file is missing or shorter than it was, with a description without an article.
fn check_files(engine: &Path, end: JournalEnd) -> Result<(), String> {
    // The engine creates itself anew where this file is missing.
    if !engine.join(ENGINE_VERSION).exists() {
        return Err(format!("file engine/{ENGINE_VERSION} is missing"));
    }
    check_journals(engine, end)
}

fn check_journals(engine: &Path, end: JournalEnd) -> Result<(), String> {
    let found = journals(engine).map_err(|e| format!("folder engine cannot be read: {e}"))?;
    let Some(last) = found.last() else {
        return Err(format!("journal engine/{}.jnl is missing", end.file));
    };
    // Files are removed from the first on, once the tables have what is in them.
    if let Some(gap) = found.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        return Err(format!("journal engine/{}.jnl is missing", gap[0] + 1));
    }
    if *last < end.file {
        return Err(format!("journal engine/{}.jnl is missing", end.file));
    }
    if found.contains(&end.file) {
        let path = engine.join(format!("{}.jnl", end.file));
        let unreadable = |e: io::Error| format!("journal engine/{}.jnl cannot be read: {e}", end.file);
        let length = fs::metadata(&path).map_err(unreadable)?.len();
        if length < end.length {
            return Err(format!(
                "journal engine/{}.jnl is shortened: it has {length} bytes of {}",
                end.file, end.length
            ));
        }
    }
    Ok(())
}

/// Adds the next step to a description of damage to a folder.
fn refusal(damage: &str) -> String {
    format!(
        "its {damage}; changes that were acknowledged may be nowhere else. Bring the file back, or restore a backup with `towpath \
         restore`. To go on without them, run `towpath repair`"
    )
}
