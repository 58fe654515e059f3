//! File of items that a destination refused, one JSON object per line.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::value::RawValue;

use super::SinkEvent;
use crate::durable_file::sync_folder;

/// Appends refused items to a file: `{"time","source","reason","change"}`, where `change` is the item's line.
#[derive(Debug)]
pub struct DeadLetterFile {
    path: PathBuf,
    /// True once the file's name is durable.
    has_name: bool,
}

#[derive(Serialize)]
struct DeadLetter<'a> {
    time: jiff::Timestamp,
    source: &'a str,
    reason: &'a str,
    change: &'a RawValue,
}

impl DeadLetterFile {
    /// Names the file. It is created with the first item.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), has_name: false }
    }

    /// Names the file beside a state file: `STATE.refused.ndjson`.
    pub fn beside(state: &Path) -> Self {
        let mut name = state.as_os_str().to_owned();
        name.push(".refused.ndjson");
        Self::new(name)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends an item durably.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn append(&mut self, source: &str, event: &SinkEvent, reason: &str) -> io::Result<()> {
        let change = RawValue::from_string(String::from_utf8(event.to_json()).map_err(io::Error::other)?)?;
        let letter = DeadLetter { time: jiff::Timestamp::now(), source, reason, change: &change };
        let mut line = serde_json::to_vec(&letter)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        file.write_all(&line)?;
        // The item is in no other place once the follow has gone on.
        file.sync_all()?;
        if !self.has_name {
            sync_folder(&self.path)?;
            self.has_name = true;
        }
        Ok(())
    }
}
