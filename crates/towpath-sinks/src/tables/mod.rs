//! Tables that all databases share: names, columns and options.
//!
//! | table | row |
//! |---|---|
//! | `items` | a live item: its current state |
//! | `changes` | a change or a reset, append only; optional |
//! | `positions` | a source: the checkpoint up to which the other tables are |
//! | `feeds` | a feed, and the source that it comes from |
//! | `refused` | an item that the database refused, with the reason |
//! | `towpath` | the version of the tables |
//!
//! `?table=kev` puts `kev_` in front of every name. Several feeds share the tables; `feed` is the first column of each
//! key. Times are in RFC 3339 or the database's own type, `authors`, `tags` and `extra` are JSON.

mod version;

use std::collections::HashMap;
use std::time::Duration;

use towpath_client::sink::acks::LineDigest;
use towpath_proto::duration::parse_duration;
use towpath_proto::follow::Followed;
use towpath_proto::{Content, Item};

use crate::query::Query;

pub use version::VERSION;
pub(crate) use version::{VersionError, assert_complete, steps_from};

/// Columns of `items`, in the order in which rows are written.
pub const ITEM_COLUMNS: [&str; 14] = [
    "feed",
    "id",
    "title",
    "url",
    "summary",
    "published",
    "updated",
    "authors",
    "tags",
    "content_type",
    "content",
    "extra",
    "modified",
    "position",
];

/// Columns of `changes`, in the order in which rows are written; `n`, the order itself, is counted by the database.
pub const CHANGE_COLUMNS: [&str; 7] = ["feed", "op", "id", "position", "modified", "recorded", "change"];

/// Longest name of a table prefix: PostgreSQL cuts names after 63 bytes.
const MAX_PREFIX: usize = 40;

/// Options of the tables, from a destination's query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableOptions {
    /// Prefix of all names, without its underscore; empty for none.
    pub prefix: String,
    /// History of changes.
    pub changes: KeepChanges,
    /// Full-text index over title, summary and content.
    pub search: bool,
}

/// Changes that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepChanges {
    /// All of them.
    #[default]
    All,
    /// Changes that are younger than this.
    For(Duration),
    /// None.
    Off,
}

impl TableOptions {
    /// Names of the options, for errors.
    pub const KEYS: &str = "table, changes, search";

    /// Takes the options `table`, `changes` and `search` from a query.
    ///
    /// # Errors
    ///
    /// The message for a bad value.
    pub fn take(query: &mut Query) -> Result<Self, String> {
        let prefix = query.take("table").unwrap_or_default();
        let is_word = prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        // The name becomes part of statements, where anything else would have to be quoted by every reader too.
        if !is_word || prefix.len() > MAX_PREFIX || prefix.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!(
                "table={prefix}: expected up to {MAX_PREFIX} letters, digits and underscores, not a digit first"
            ));
        }
        let changes = match query.take("changes").as_deref() {
            None | Some("all" | "on") => KeepChanges::All,
            Some("off") => KeepChanges::Off,
            Some(time) => match parse_duration(time) {
                Ok(time) if !time.is_zero() => KeepChanges::For(time),
                _ => {
                    return Err(format!("changes={time}: expected all, off, or a time such as changes=30d"));
                }
            },
        };
        Ok(Self { prefix, changes, search: query.take_switch("search", false)? })
    }

    /// Returns the name of a table with the prefix.
    pub fn name(&self, table: &str) -> String {
        if self.prefix.is_empty() { table.to_owned() } else { format!("{}_{table}", self.prefix) }
    }

    /// Returns whether changes are kept.
    pub fn keeps_changes(&self) -> bool {
        self.changes != KeepChanges::Off
    }
}

/// Values of a row of `items`, as text where a database has no better type.
#[derive(Debug)]
pub struct ItemRow<'a> {
    /// The whole item.
    pub item: &'a Item,
    /// `authors` as JSON.
    pub authors: String,
    /// `tags` as JSON.
    pub tags: String,
    /// `extra` as JSON.
    pub extra: String,
}

impl<'a> ItemRow<'a> {
    /// Creates the row of an item.
    pub fn of(item: &'a Item) -> Self {
        // Their keys are text: writing to memory cannot fail.
        let authors = if item.authors.is_empty() { "[]".into() } else { json(&item.authors) };
        let tags = if item.tags.is_empty() { "[]".into() } else { json(&item.tags) };
        let extra = if item.extra.is_empty() { "{}".into() } else { json(&item.extra) };
        Self { item, authors, tags, extra }
    }

    /// Media type of the content.
    pub fn content_type(&self) -> Option<&'a str> {
        self.item.content.as_ref().map(|content| content.media_type.as_str())
    }

    /// Content, if it is text.
    pub fn text(&self) -> Option<&'a str> {
        self.item.content.as_ref().and_then(Content::text)
    }

    /// Content, if it is not text.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        self.item
            .content
            .as_ref()
            .filter(|content| content.text().is_none())
            .map(|content| &content.bytes[..])
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Returns the position of a change as it is kept, without credentials.
pub fn position(change: &Followed) -> String {
    towpath_client::redact::credentials(&change.position)
}

/// Rows of an unfinished unit that an earlier run wrote. They come again, and are not written twice.
///
/// Recognised by the line: one position may have another version of an item the next time, if it is that of a document. A
/// later program that writes the line otherwise repeats the row. Counted, because a unit may hold two resets, which are
/// equal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Repeats(HashMap<LineDigest, u32>);

impl Repeats {
    /// Adds a row that is there.
    pub(crate) fn add(&mut self, line: LineDigest) {
        *self.0.entry(line).or_default() += 1;
    }

    /// Takes a row out. Returns false if it was not there.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        // Nearly always empty.
        if self.0.is_empty() {
            return false;
        }
        let count = self.0.get_mut(&LineDigest::of_line(line.as_bytes())).filter(|count| **count > 0);
        count.map(|count| *count -= 1).is_some()
    }

    /// Returns true if nothing comes again.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_kept_for_a_time() {
        let changes = |text: &str| TableOptions::take(&mut Query::parse(text)).map(|options| options.changes);
        for (text, seconds) in
            [("changes=30d", 2_592_000), ("changes=1h 30m", 5400), ("changes=1h%2030m", 5400)]
        {
            assert_eq!(changes(text), Ok(KeepChanges::For(Duration::from_secs(seconds))), "{text}");
        }
        for bad in ["changes=0s", "changes=-1s", "changes=1", "changes=soon"] {
            assert!(changes(bad).unwrap_err().contains("a time such as changes=30d"), "{bad}");
        }
    }
}
