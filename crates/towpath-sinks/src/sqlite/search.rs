//! Full-text index: an FTS5 table beside `items`, kept by triggers.

use rusqlite::Connection;

use super::schema::with_prefix;
use crate::tables::TableOptions;

/// The index holds no copy of the text. Blobs are no text, so they are indexed as nothing.
const CREATE: &str = "
CREATE VIRTUAL TABLE {p}items_search USING fts5(title, summary, content, content='{p}items', content_rowid='n');
CREATE TRIGGER {p}items_search_insert AFTER INSERT ON {p}items BEGIN
    INSERT INTO {p}items_search (rowid, title, summary, content)
    VALUES (new.n, new.title, new.summary, CASE typeof(new.content) WHEN 'text' THEN new.content END);
END;
CREATE TRIGGER {p}items_search_delete AFTER DELETE ON {p}items BEGIN
    INSERT INTO {p}items_search ({p}items_search, rowid, title, summary, content)
    VALUES ('delete', old.n, old.title, old.summary, CASE typeof(old.content) WHEN 'text' THEN old.content END);
END;
CREATE TRIGGER {p}items_search_update AFTER UPDATE OF title, summary, content ON {p}items BEGIN
    INSERT INTO {p}items_search ({p}items_search, rowid, title, summary, content)
    VALUES ('delete', old.n, old.title, old.summary, CASE typeof(old.content) WHEN 'text' THEN old.content END);
    INSERT INTO {p}items_search (rowid, title, summary, content)
    VALUES (new.n, new.title, new.summary, CASE typeof(new.content) WHEN 'text' THEN new.content END);
END;
INSERT INTO {p}items_search (rowid, title, summary, content)
    SELECT n, title, summary, CASE typeof(content) WHEN 'text' THEN content END FROM {p}items;
";

const DROP: &str = "
DROP TRIGGER {p}items_search_insert;
DROP TRIGGER {p}items_search_delete;
DROP TRIGGER {p}items_search_update;
DROP TABLE {p}items_search;
";

/// Creates the index of items that are there, or removes it where the option is gone.
pub(super) fn prepare(connection: &Connection, tables: &TableOptions) -> rusqlite::Result<()> {
    let name = tables.name("items_search");
    let is_there = connection.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?1")?.exists([name])?;
    match (tables.search, is_there) {
        (true, false) => connection.execute_batch(&with_prefix(CREATE, tables)),
        (false, true) => connection.execute_batch(&with_prefix(DROP, tables)),
        _ => Ok(()),
    }
}
