//! The state file of many feeds: a log of their states.
//!
//! Each line is a JSON object: first the file's form, then a feed's state, or when each feed is due. The last
//! line of a feed counts. A line is appended, and synced, after the feed's changes have been flushed; what a
//! crash leaves of a line that was not whole is cut off at the next start. When more of the file is outdated
//! than not, it is written anew and replaced in one step. In memory a state is a place in the file.

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

use super::state_file::StateError;
use crate::client::Protocol;
use crate::client::fleet::{Kept, Way};

/// The file's first line.
const HEADER: &str = "{\"towpath_states\":1}\n";

/// How much of the file may be outdated whatever there is beside, in bytes.
const SLACK: u64 = 4 << 20;

/// A line of the log: a feed's, or that of the schedule.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Line<'a> {
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

/// Where a line is, its line end included.
#[derive(Debug, Clone, Copy)]
struct Span {
    at: u64,
    length: u64,
}

/// A feed's state to be kept.
pub(super) struct Entry {
    pub(super) feed: Arc<str>,
    pub(super) way: Way,
    pub(super) state: Value,
}

/// The log, open and locked.
#[derive(Debug)]
pub(super) struct StateLog {
    path: PathBuf,
    file: File,
    feeds: HashMap<Arc<str>, Span>,
    schedule: Option<Span>,
    /// Where the next line goes.
    end: u64,
    /// How many bytes of lines count.
    live: u64,
}

impl StateLog {
    /// Opens the log at `path`, or begins one. `asked` is the protocol that the user names, for all feeds;
    /// a feed that is kept with another one is an error, as is a second process.
    pub(super) fn open(path: &Path, asked: Option<Protocol>) -> Result<Self, StateError> {
        // A link is followed: what it points to is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |error| StateError::Write { path: path.clone(), error };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        lock(&file, &path)?;
        // While it was opened, another process may have put a new file in its place.
        let is_current = fs::metadata(&path).and_then(|there| Ok(there.ino() == file.metadata()?.ino()));
        if !is_current.map_err(failed)? {
            return Err(StateError::InUse { path });
        }
        let (feeds, schedule) = (HashMap::new(), None);
        let mut log = Self { file, feeds, schedule, end: 0, live: 0, path: path.clone() };
        log.read(asked)?;
        if log.end == 0 {
            log.write(HEADER.as_bytes()).map_err(failed)?;
        }
        Ok(log)
    }

    /// Finds the lines that count.
    fn read(&mut self, asked: Option<Protocol>) -> Result<(), StateError> {
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
            let taken = if number == 1 { self.take_header(&line) } else { self.take_line(&line, asked) };
            match taken {
                Ok(()) => self.end += read,
                // The last line was being written when the process or the machine stopped.
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

    fn take_header(&self, line: &[u8]) -> Result<(), StateError> {
        if line == HEADER.as_bytes() {
            return Ok(());
        }
        if line.starts_with(b"{\"towpath_state\":") {
            return Err(StateError::OfOneFeed { path: self.path.clone() });
        }
        Err(self.damaged("it is no state file of many feeds"))
    }

    fn take_line(&mut self, line: &[u8], asked: Option<Protocol>) -> Result<(), StateError> {
        if !line.ends_with(b"\n") {
            return Err(self.damaged("cut off"));
        }
        let parsed: Line<'_> = serde_json::from_slice(line).map_err(|e| self.damaged(e.to_string()))?;
        let span = Span { at: self.end, length: line.len() as u64 };
        match parsed {
            Line { url: Some(url), protocol: Some(protocol), state: Some(_), .. } => {
                let protocol: Protocol = protocol.parse().map_err(|e: String| self.damaged(e))?;
                if let Some(asked) = asked.filter(|asked| *asked != protocol) {
                    let path = self.path.clone();
                    return Err(StateError::FeedProtocol { path, url: url.to_string(), protocol, asked });
                }
                self.note_feed(url.into(), span);
            }
            Line { schedule: Some(_), .. } => self.note_schedule(span),
            _ => return Err(self.damaged("it is neither a feed's state nor a schedule")),
        }
        Ok(())
    }

    fn note_feed(&mut self, feed: Arc<str>, span: Span) {
        let before = self.feeds.insert(feed, span);
        self.live = self.live + span.length - before.map_or(0, |before| before.length);
    }

    fn note_schedule(&mut self, span: Span) {
        let before = self.schedule.replace(span);
        self.live = self.live + span.length - before.map_or(0, |before| before.length);
    }

    /// What was kept of a feed.
    pub(super) fn load(&self, feed: &str) -> Result<Option<Kept>, StateError> {
        let Some(span) = self.feeds.get(feed) else { return Ok(None) };
        let bytes = self.bytes(*span)?;
        let line: Line<'_> = serde_json::from_slice(&bytes).map_err(|e| self.damaged(e.to_string()))?;
        let (Some(protocol), Some(state)) = (line.protocol, line.state) else {
            return Err(self.damaged("another process wrote to it"));
        };
        let protocol = protocol.parse().map_err(|e: String| self.damaged(e))?;
        let state = serde_json::from_str(state.get()).map_err(|e| self.damaged(e.to_string()))?;
        let follows = line.follows.map(|follows| follows.as_ref().into());
        Ok(Some(Kept { way: Way { protocol, follows }, state }))
    }

    /// When each feed is due, as it was kept last.
    pub(super) fn load_schedule(&self) -> Result<Option<Box<RawValue>>, StateError> {
        let Some(span) = self.schedule else { return Ok(None) };
        let bytes = self.bytes(span)?;
        let line: Line<'_> = serde_json::from_slice(&bytes).map_err(|e| self.damaged(e.to_string()))?;
        Ok(line.schedule.map(ToOwned::to_owned))
    }

    fn bytes(&self, span: Span) -> Result<Vec<u8>, StateError> {
        let mut bytes = vec![0; span.length as usize];
        let read = self.file.read_exact_at(&mut bytes, span.at);
        read.map_err(|error| StateError::Read { path: self.path.clone(), error })?;
        Ok(bytes)
    }

    /// Keeps states. When it returns, they are on the disk.
    pub(super) fn save(
        &mut self,
        entries: Vec<Entry>,
        schedule: Option<Box<RawValue>>,
    ) -> Result<(), StateError> {
        let kept = self.append(entries, schedule).and_then(|()| self.compact_if_due());
        kept.map_err(|error| StateError::Write { path: self.path.clone(), error })
    }

    fn append(&mut self, entries: Vec<Entry>, schedule: Option<Box<RawValue>>) -> io::Result<()> {
        let (mut bytes, mut feeds) = (Vec::new(), Vec::with_capacity(entries.len()));
        let place = |bytes: &[u8], from: usize| Span {
            at: self.end + from as u64,
            length: (bytes.len() - from) as u64,
        };
        for Entry { feed, way, state } in entries {
            let from = bytes.len();
            let state = to_raw_value(&state)?;
            let line = Line {
                url: Some(feed.as_ref().into()),
                protocol: Some(way.protocol.name().into()),
                follows: way.follows.as_deref().map(Into::into),
                state: Some(&state),
                schedule: None,
            };
            serde_json::to_writer(&mut bytes, &line)?;
            bytes.push(b'\n');
            feeds.push((feed, place(&bytes, from)));
        }
        let mut scheduled = None;
        if let Some(schedule) = schedule {
            let from = bytes.len();
            serde_json::to_writer(&mut bytes, &Line { schedule: Some(&schedule), ..Line::default() })?;
            bytes.push(b'\n');
            scheduled = Some(place(&bytes, from));
        }
        self.write(&bytes)?;
        feeds.into_iter().for_each(|(feed, span)| self.note_feed(feed, span));
        scheduled.into_iter().for_each(|span| self.note_schedule(span));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        // What a crash left behind the last whole line must not follow a shorter one.
        self.file.set_len(self.end + bytes.len() as u64)?;
        self.file.sync_data()?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn compact_if_due(&mut self) -> io::Result<()> {
        if self.end <= 2 * self.live + SLACK {
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
        file.try_lock()?;
        let mut out = BufWriter::with_capacity(1 << 18, &file);
        out.write_all(HEADER.as_bytes())?;
        let mut end = HEADER.len() as u64;
        let mut buffer = Vec::new();
        let mut copy = |span: Span| -> io::Result<Span> {
            buffer.resize(span.length as usize, 0);
            self.file.read_exact_at(&mut buffer, span.at)?;
            out.write_all(&buffer)?;
            let moved = Span { at: end, length: span.length };
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
