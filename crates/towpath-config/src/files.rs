//! Texts of a configuration: the file, the files that it includes, and environment variables.
//!
//! All texts share one range of offsets, so that an offset alone tells the file, the line and the column.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::ConfigProblem;

/// Text of one file of a configuration.
pub(super) struct ConfigText {
    /// Name in errors: the path of a file, or an environment variable.
    pub(super) name: String,
    /// Path, if it is a file.
    pub(super) path: Option<PathBuf>,
    pub(super) text: String,
    /// Offset of its first byte.
    pub(super) start: usize,
}

/// All texts of a configuration, in the order of their offsets.
#[derive(Default)]
pub(super) struct ConfigTexts {
    texts: Vec<ConfigText>,
}

impl ConfigTexts {
    /// Adds a text, and returns its offset.
    pub(super) fn add(&mut self, name: String, path: Option<PathBuf>, text: String) -> usize {
        // One more than the end, so that the end of a text is not the start of the next.
        let start = self.texts.last().map_or(0, |last| last.start + last.text.len() + 1);
        self.texts.push(ConfigText { name, path, text, start });
        start
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ConfigText> {
        self.texts.iter()
    }

    /// Returns true if the file is one of the texts already.
    pub(super) fn has_file(&self, path: &Path) -> bool {
        self.texts.iter().any(|text| text.path.as_deref() == Some(path))
    }

    /// Paths of all files.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.texts.iter().filter_map(|text| text.path.clone()).collect()
    }

    /// Returns the problem at an offset; without one, it is in the main file.
    pub(super) fn problem(&self, at: Option<usize>, message: String) -> ConfigProblem {
        let text = match at {
            Some(at) => self.texts.iter().rev().find(|text| text.start <= at),
            None => self.texts.first(),
        };
        let Some(ConfigText { name, path, text, start }) = text else {
            return ConfigProblem { source: String::new(), place: None, message };
        };
        // A variable has one line, which is the value itself.
        let offset = at.filter(|_| path.is_some()).map(|at| at - start);
        let before = offset.and_then(|offset| text.get(..offset));
        let place = before.map(end_of);
        ConfigProblem { source: name.clone(), place, message }
    }
}

/// Line and column behind a text.
fn end_of(text: &str) -> (usize, usize) {
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (text.matches('\n').count() + 1, column)
}

/// Returns the text of a file, or the place of the first byte that is no text.
pub(super) fn utf8_text(path: &Path, bytes: Vec<u8>) -> Result<String, ConfigProblem> {
    String::from_utf8(bytes).map_err(|e| {
        let end = e.utf8_error().valid_up_to();
        let before = std::str::from_utf8(&e.as_bytes()[..end]).unwrap_or_default();
        let message = format!("the byte 0x{:02X} is not UTF-8: save the file as UTF-8", e.as_bytes()[end]);
        ConfigProblem { source: path.display().to_string(), place: Some(end_of(before)), message }
    })
}

/// Moves a range to the offsets of its text.
pub(super) fn shifted(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}
