//! State file of several feeds: an append-only log of their states.
//!
//! Each line is a JSON object: first a header with the version, then a feed's state, or the schedule. The last line
//! of a feed wins. A line is appended and synced after the feed's changes were flushed. A partial line left by a
//! crash is truncated at the next start. When more than half of the file is obsolete, it is rewritten and replaced
//! atomically. Memory holds only the file range of each state.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use towpath_client::Protocol;
use towpath_client::fleet::{FeedRoute, SavedFeed};
use towpath_client::state_file::StateError;

/// First line of the file.
const HEADER: &str = "{\"towpath_states\":1}\n";

/// Obsolete bytes that never trigger a compaction, however small the rest.
const COMPACTION_SLACK: u64 = 4 << 20;

/// A line of the log: a feed's state, or the schedule.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StateLogLine<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    url: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    protocol: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    follows: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    state: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a RawValue>,
}

/// File range of a line, including its newline.
#[derive(Debug, Clone, Copy)]
struct FileRange {
    at: u64,
    length: u64,
}

/// A feed's state to save.
pub(super) struct StateEntry {
    pub(super) feed: Arc<str>,
    pub(super) route: FeedRoute,
    pub(super) state: Value,
}

/// The open and locked log.
#[derive(Debug)]
pub(super) struct StateLog {
    path: PathBuf,
    file: File,
    feeds: HashMap<Arc<str>, FileRange>,
    schedule: Option<FileRange>,
    /// Offset of the next line.
    end: u64,
    /// Number of bytes in current lines.
    live: u64,
}

impl StateLog {
    /// Opens or creates the log at `path`, and locks it.
    ///
    /// `requested` is the protocol on the command line. A feed saved with another one is an error.
    pub(super) fn open(path: &Path, requested: Option<Protocol>) -> Result<Self, StateError> {
        // Resolves symbolic links: compaction must replace the link's target, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |error| StateError::Write { path: path.clone(), error };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        lock(&file, &path)?;
        // Between open and lock another process may have compacted: then this is a deleted file.
        let is_current = fs::metadata(&path).and_then(|there| Ok(there.ino() == file.metadata()?.ino()));
        if !is_current.map_err(failed)? {
            return Err(StateError::InUse { path });
        }
        let (feeds, schedule) = (HashMap::new(), None);
        let mut log = Self { file, feeds, schedule, end: 0, live: 0, path: path.clone() };
        log.read(requested)?;
        if log.end == 0 {
            log.write(HEADER.as_bytes()).map_err(failed)?;
        }
        Ok(log)
    }

    /// Reads the log and indexes its current lines.
    fn read(&mut self, requested: Option<Protocol>) -> Result<(), StateError> {
        let failed = |path: &Path, error| StateError::Read { path: path.into(), error };
        let length = self.file.metadata().map_err(|e| failed(&self.path, e))?.len();
        let file = self.file.try_clone().map_err(|e| failed(&self.path, e))?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(|e| failed(&self.path, e))? as u64;
            number += 1;
            if read == 0 {
                return Ok(());
            }
            let indexed =
                if number == 1 { self.check_header(&line) } else { self.index_line(&line, requested) };
            match indexed {
                Ok(()) => self.end += read,
                // A crash during the write of the last line leaves it incomplete.
                Err(StateError::Damaged { .. }) if self.end + read == length && number > 1 => return Ok(()),
                Err(StateError::Damaged { path, reason }) => {
                    return Err(StateError::Damaged { path, reason: format!("line {number}: {reason}") });
                }
                Err(other) => return Err(other),
            }
        }
    }

    fn damaged(&self, reason: impl Into<String>) -> StateError {
        StateError::Damaged { path: self.path.clone(), reason: reason.into() }
    }

    fn check_header(&self, line: &[u8]) -> Result<(), StateError> {
        if line == HEADER.as_bytes() {
            return Ok(());
        }
        // A clearer error than a parse failure: the two formats are easily confused.
        if line.starts_with(b"{\"towpath_state\":") {
            return Err(StateError::SingleFeed { path: self.path.clone() });
        }
        Err(self.damaged("it is not a state file of several feeds"))
    }

    fn index_line(&mut self, line: &[u8], requested: Option<Protocol>) -> Result<(), StateError> {
        if !line.ends_with(b"\n") {
            return Err(self.damaged("truncated"));
        }
        let parsed: StateLogLine<'_> =
            serde_json::from_slice(line).map_err(|e| self.damaged(e.to_string()))?;
        let span = FileRange { at: self.end, length: line.len() as u64 };
        match parsed {
            StateLogLine { url: Some(url), protocol: Some(protocol), state: Some(_), .. } => {
                let protocol: Protocol = protocol.parse().map_err(|e: String| self.damaged(e))?;
                if let Some(requested) = requested.filter(|requested| *requested != protocol) {
                    let path = self.path.clone();
                    return Err(StateError::FeedProtocol { path, url: url.to_string(), protocol, requested });
                }
                self.record_feed(url.into(), span);
            }
            StateLogLine { schedule: Some(_), .. } => self.record_schedule(span),
            _ => return Err(self.damaged("it is neither a feed's state nor a schedule")),
        }
        Ok(())
    }

    fn record_feed(&mut self, feed: Arc<str>, span: FileRange) {
        let before = self.feeds.insert(feed, span);
        self.live = self.live + span.length - before.map_or(0, |before| before.length);
    }

    fn record_schedule(&mut self, span: FileRange) {
        let before = self.schedule.replace(span);
        self.live = self.live + span.length - before.map_or(0, |before| before.length);
    }

    /// Loads the saved route and state of a feed.
    pub(super) fn load(&self, feed: &str) -> Result<Option<SavedFeed>, StateError> {
        let Some(span) = self.feeds.get(feed) else { return Ok(None) };
        let bytes = self.bytes(*span)?;
        let line: StateLogLine<'_> =
            serde_json::from_slice(&bytes).map_err(|e| self.damaged(e.to_string()))?;
        let (Some(protocol), Some(state)) = (line.protocol, line.state) else {
            return Err(self.damaged("another process has modified it"));
        };
        let protocol = protocol.parse().map_err(|e: String| self.damaged(e))?;
        let state = serde_json::from_str(state.get()).map_err(|e| self.damaged(e.to_string()))?;
        let follows = line.follows.map(|follows| follows.as_ref().into());
        Ok(Some(SavedFeed { route: FeedRoute { protocol, follows }, state }))
    }

    /// Loads the schedule that was saved last.
    pub(super) fn load_schedule(&self) -> Result<Option<Box<RawValue>>, StateError> {
        let Some(span) = self.schedule else { return Ok(None) };
        let bytes = self.bytes(span)?;
        let line: StateLogLine<'_> =
            serde_json::from_slice(&bytes).map_err(|e| self.damaged(e.to_string()))?;
        Ok(line.schedule.map(ToOwned::to_owned))
    }

    fn bytes(&self, span: FileRange) -> Result<Vec<u8>, StateError> {
        let mut bytes = vec![0; span.length as usize];
        let read = self.file.read_exact_at(&mut bytes, span.at);
        read.map_err(|error| StateError::Read { path: self.path.clone(), error })?;
        Ok(bytes)
    }

    /// Saves states durably: they are synced when it returns.
    pub(super) fn save(
        &mut self,
        entries: Vec<StateEntry>,
        schedule: Option<Box<RawValue>>,
    ) -> Result<(), StateError> {
        let saved = self.append(entries, schedule).and_then(|()| self.compact_if_due());
        saved.map_err(|error| StateError::Write { path: self.path.clone(), error })
    }

    fn append(&mut self, entries: Vec<StateEntry>, schedule: Option<Box<RawValue>>) -> io::Result<()> {
        let (mut bytes, mut feeds) = (Vec::new(), Vec::with_capacity(entries.len()));
        let range = |bytes: &[u8], from: usize| FileRange {
            at: self.end + from as u64,
            length: (bytes.len() - from) as u64,
        };
        for StateEntry { feed, route, state } in entries {
            let from = bytes.len();
            let state = to_raw_value(&state)?;
            let line = StateLogLine {
                url: Some(feed.as_ref().into()),
                protocol: Some(route.protocol.name().into()),
                follows: route.follows.as_deref().map(Into::into),
                state: Some(&state),
                schedule: None,
            };
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
            feeds.push((feed, range(&bytes, from)));
        }
        let mut scheduled = None;
        if let Some(schedule) = schedule {
            let from = bytes.len();
            serde_json::to_writer(
                &mut bytes,
                &StateLogLine { schedule: Some(&schedule), ..StateLogLine::default() },
            )?;
            bytes.push(b'\n');
            scheduled = Some(range(&bytes, from));
        }
        self.write(&bytes)?;
        feeds.into_iter().for_each(|(feed, span)| self.record_feed(feed, span));
        scheduled.into_iter().for_each(|span| self.record_schedule(span));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        // Removes the rest of a partial line that a crash left behind: this write may be shorter.
        self.file.set_len(self.end + bytes.len() as u64)?;
        // The changes were flushed before: a state on disk never covers changes that were not printed.
        self.file.sync_data()?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn compact_if_due(&mut self) -> io::Result<()> {
        // Compaction at half obsolete keeps the total cost linear in what is written.
        if self.end <= 2 * self.live + COMPACTION_SLACK {
            return Ok(());
        }
        let folder = self.path.parent().filter(|folder| *folder != Path::new(""));
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let draft = folder.join(format!(".{name}.{}.tmp", std::process::id()));
        let replaced = self.compact(&draft, &folder);
        if replaced.is_err() {
            let _ = fs::remove_file(&draft);
        }
        replaced
    }

    fn compact(&mut self, draft: &Path, folder: &Path) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(draft)?;
        // The new file is locked before the rename: no other process can slip in between.
        file.try_lock()?;
        let mut out = BufWriter::with_capacity(1 << 18, &file);
        out.write_all(HEADER.as_bytes())?;
        let mut end = HEADER.len() as u64;
        let mut buffer = Vec::new();
        let mut copy = |span: FileRange| -> io::Result<FileRange> {
            buffer.resize(span.length as usize, 0);
            self.file.read_exact_at(&mut buffer, span.at)?;
            out.write_all(&buffer)?;
            let moved = FileRange { at: end, length: span.length };
            end += span.length;
            Ok(moved)
        };
        let mut feeds = HashMap::with_capacity(self.feeds.len());
        for (feed, span) in &self.feeds {
            feeds.insert(feed.clone(), copy(*span)?);
        }
        let schedule = self.schedule.map(copy).transpose()?;
        out.flush()?;
        drop(out);
        file.sync_all()?;
        fs::rename(draft, &self.path)?;
        // The rename is durable only once the folder is synced.
        File::open(folder)?.sync_all()?;
        (self.file, self.feeds, self.schedule, self.end) = (file, feeds, schedule, end);
        Ok(())
    }
}

fn lock(file: &File, path: &Path) -> Result<(), StateError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StateError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => Err(StateError::Write { path: path.into(), error }),
    }
}

#[cfg(test)]
mod tests;
