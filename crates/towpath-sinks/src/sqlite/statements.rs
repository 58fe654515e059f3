//! Texts of the statements.

use super::schema::with_prefix;
use crate::tables::{CHANGE_COLUMNS, ITEM_COLUMNS, TableOptions};

/// Texts of the statements.
pub(super) struct Statements {
    pub(super) upsert: String,
    pub(super) delete: String,
    pub(super) change: String,
    pub(super) item: String,
    pub(super) feed: String,
    pub(super) feed_source: String,
    pub(super) feeds: String,
    pub(super) clear: String,
    pub(super) has_items: String,
    pub(super) position: String,
    pub(super) open: String,
    pub(super) unfinished: String,
    pub(super) last: String,
    pub(super) trim: String,
    pub(super) refused: String,
}

impl Statements {
    pub(super) fn new(tables: &TableOptions) -> Self {
        let sql = |text: &str| with_prefix(text, tables);
        let marks = |count: usize| (1..=count).map(|n| format!("?{n}")).collect::<Vec<_>>().join(", ");
        let (items, changes) = (ITEM_COLUMNS.join(", "), CHANGE_COLUMNS.join(", "));
        let set =
            ITEM_COLUMNS[2..].iter().map(|c| format!("{c} = excluded.{c}")).collect::<Vec<_>>().join(", ");
        Self {
            upsert: sql(&format!(
                "INSERT INTO {{p}}items ({items}) VALUES ({}) ON CONFLICT (feed, id) DO UPDATE SET {set}",
                marks(ITEM_COLUMNS.len())
            )),
            delete: sql("DELETE FROM {p}items WHERE feed = ?1 AND id = ?2"),
            change: sql(&format!(
                "INSERT INTO {{p}}changes ({changes}) VALUES ({})",
                marks(CHANGE_COLUMNS.len())
            )),
            item: sql(&format!("SELECT {items} FROM {{p}}items WHERE feed = ?1 AND id = ?2")),
            feed: sql("INSERT INTO {p}feeds (feed, source) VALUES (?1, ?2) ON CONFLICT (feed) DO NOTHING"),
            feed_source: sql("SELECT source FROM {p}feeds WHERE feed = ?1"),
            feeds: sql("SELECT feed FROM {p}feeds WHERE source = ?1"),
            clear: sql("DELETE FROM {p}items WHERE feed = ?1"),
            has_items: sql("SELECT 1 FROM {p}items WHERE feed = ?1"),
            position: sql("INSERT INTO {p}positions (source, checkpoint, unit_start, commits, updated)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (source) DO UPDATE SET
                 checkpoint = coalesce(excluded.checkpoint, checkpoint),
                 unit_start = CASE WHEN excluded.checkpoint IS NULL
                              THEN coalesce(unit_start, excluded.unit_start) END,
                 commits = excluded.commits, updated = excluded.updated
                 WHERE commits = excluded.commits - 1"),
            open: sql("SELECT checkpoint, unit_start, commits FROM {p}positions WHERE source = ?1"),
            unfinished: sql("SELECT change FROM {p}changes
                 WHERE n > ?1 AND feed IN (SELECT feed FROM {p}feeds WHERE source = ?2)"),
            // AUTOINCREMENT: numbers of removed changes are not used again.
            last: "SELECT seq FROM sqlite_sequence WHERE name = ?1".into(),
            trim: sql("DELETE FROM {p}changes WHERE n IN (SELECT n FROM {p}changes ORDER BY n LIMIT ?2)
                 AND recorded < ?1"),
            refused: sql("INSERT INTO {p}refused (source, feed, id, position, reason, recorded, change)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING"),
        }
    }
}
