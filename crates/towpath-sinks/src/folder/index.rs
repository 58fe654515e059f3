//! Index of a feed's folder: ids and their files, as a log of JSON lines.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use towpath_client::durable_file::replace;

/// Name of the file in each feed's folder. No id has this name: their files end in `.json`.
pub(super) const INDEX: &str = "index.ndjson";
/// Lines of deleted or repeated items beyond which the file is rewritten.
const SLACK: usize = 10_000;

#[derive(Serialize, Deserialize)]
struct IndexLine {
    id: String,
    /// Absent once the item is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// The index of one feed.
pub(super) struct FeedIndex {
    path: PathBuf,
    files: BTreeMap<String, String>,
    lines: usize,
    /// Lines that are not written yet.
    draft: Vec<u8>,
    /// True if the file may end within a line, because a write failed.
    is_torn: bool,
}

impl FeedIndex {
    /// Reads the index. A last line that a crash cut off is ignored: its change comes again.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(INDEX);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut index = Self { path, files: BTreeMap::new(), lines: 0, draft: Vec::new(), is_torn: false };
        for line in text.split(|byte| *byte == b'\n') {
            if let Ok(IndexLine { id, file }) = serde_json::from_slice(line) {
                index.lines += 1;
                match file {
                    Some(file) => drop(index.files.insert(id, file)),
                    None => drop(index.files.remove(&id)),
                }
            }
        }
        if text.last().is_some_and(|last| *last != b'\n') {
            index.rewrite()?;
        }
        Ok(index)
    }

    /// Records an item's file, or its deletion.
    pub(super) fn set(&mut self, id: &str, file: Option<&str>) -> io::Result<()> {
        let before = match file {
            Some(file) => self.files.insert(id.into(), file.into()),
            None => self.files.remove(id),
        };
        if before.as_deref() == file {
            return Ok(());
        }
        serde_json::to_writer(&mut self.draft, &IndexLine { id: id.into(), file: file.map(Into::into) })?;
        self.draft.push(b'\n');
        self.lines += 1;
        Ok(())
    }

    /// Removes all items, and returns their files.
    pub(super) fn clear(&mut self) -> Vec<String> {
        self.draft.clear();
        // Longer than any file: the next write makes it anew.
        self.lines = usize::MAX / 2;
        std::mem::take(&mut self.files).into_values().collect()
    }

    /// Writes what was recorded; the caller syncs the file system.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.is_torn || self.lines > 2 * self.files.len() + SLACK {
            return self.rewrite();
        }
        if self.draft.is_empty() {
            return Ok(());
        }
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        // A full disk takes a part of it. A line behind half a line would be none, and its item lost.
        self.is_torn = true;
        file.write_all(&self.draft)?;
        self.is_torn = false;
        self.draft.clear();
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        for (id, file) in &self.files {
            serde_json::to_writer(&mut text, &IndexLine { id: id.clone(), file: Some(file.clone()) })?;
            text.push(b'\n');
        }
        replace(&self.path, &text)?;
        (self.lines, self.draft, self.is_torn) = (self.files.len(), Vec::new(), false);
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_failed_half_way_loses_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INDEX);
        let mut index = FeedIndex::open(folder.path()).unwrap();
        index.set("a", Some("a.json")).unwrap();
        index.write().unwrap();
        let before = fs::read_to_string(&path).unwrap();
        // A disk that is full.
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        index.set("b", Some("b.json")).unwrap();
        index.write().unwrap_err();
        // What it took before it was.
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("{before}{{\"id\":\"b\",\"fi")).unwrap();
        index.set("c", Some("c.json")).unwrap();
        index.write().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| serde_json::from_str::<IndexLine>(line).is_ok()), "{text}");
        let ids: Vec<String> = FeedIndex::open(folder.path()).unwrap().files.into_keys().collect();
        assert_eq!(ids, ["a", "b", "c"]);
    }
}
