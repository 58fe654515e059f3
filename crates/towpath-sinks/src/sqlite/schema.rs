//! Tables of the database: created, checked and migrated in one transaction.

use std::collections::BTreeSet;

use rusqlite::{Connection, ErrorCode, OptionalExtension as _};
use towpath_client::SinkError;

use super::SqliteDestination;
use super::error::classify;
use super::search;
use crate::tables::{
    CHANGE_COLUMNS, ITEM_COLUMNS, TableOptions, VERSION, VersionError, assert_complete, steps_from,
};

/// Statements that create the tables. `{p}` stands for the prefix.
// AUTOINCREMENT for the history only: readers remember its numbers, so those of removed rows must not be given
// again.
const CREATE: &str = "
CREATE TABLE {p}items (
    n INTEGER PRIMARY KEY,
    feed TEXT NOT NULL,
    id TEXT NOT NULL,
    title TEXT,
    url TEXT,
    summary TEXT,
    published TEXT,
    updated TEXT,
    authors TEXT NOT NULL,
    tags TEXT NOT NULL,
    content_type TEXT,
    content,
    extra TEXT NOT NULL,
    modified TEXT,
    position TEXT NOT NULL,
    UNIQUE (feed, id)
);
CREATE INDEX {p}items_modified ON {p}items (feed, modified);
CREATE TABLE {p}changes (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    feed TEXT NOT NULL,
    op TEXT NOT NULL,
    id TEXT,
    position TEXT,
    modified TEXT,
    recorded TEXT NOT NULL,
    change TEXT NOT NULL
);
CREATE INDEX {p}changes_item ON {p}changes (feed, id);
CREATE TABLE {p}positions (
    source TEXT PRIMARY KEY,
    checkpoint BLOB,
    unit_start INTEGER,
    commits INTEGER NOT NULL,
    updated TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE {p}feeds (
    feed TEXT PRIMARY KEY,
    source TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE {p}refused (
    n INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    feed TEXT NOT NULL,
    id TEXT NOT NULL,
    position TEXT NOT NULL,
    reason TEXT NOT NULL,
    recorded TEXT NOT NULL,
    change TEXT,
    UNIQUE (source, feed, id, position)
);
CREATE TABLE {p}towpath (version INTEGER NOT NULL);
";

/// Migrations: the statements at index i lead from version i + 1 to the next.
const MIGRATIONS: &[&str] = &[];
const _: () = assert_complete(MIGRATIONS.len());

/// Names of the tables, without prefix.
const TABLES: [&str; 6] = ["items", "changes", "positions", "feeds", "refused", "towpath"];

/// Replaces `{p}` by the prefix.
pub(super) fn with_prefix(sql: &str, tables: &TableOptions) -> String {
    sql.replace("{p}", &tables.name(""))
}

/// Creates the tables, or checks and migrates those that are there.
pub(super) fn prepare(connection: &mut Connection, destination: &SqliteDestination) -> Result<(), SinkError> {
    let failed = |error: rusqlite::Error| classify(&destination.path, &error);
    let tables = &destination.tables;
    // Immediate: of two processes that start at once, one waits and then finds the tables.
    let begun = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate);
    let transaction = begun.map_err(failed)?;
    let there = existing(&transaction, tables).map_err(failed)?;
    if there.contains("towpath") {
        migrate(&transaction, destination, VERSION, MIGRATIONS)?;
        check(&transaction, destination, &there)?;
    } else if let Some(name) = there.first() {
        return Err(refuse(destination, &format!("its table {} is not towpath's", tables.name(name))));
    } else {
        transaction.execute_batch(&with_prefix(CREATE, tables)).map_err(failed)?;
        let insert = with_prefix("INSERT INTO {p}towpath (version) VALUES (?1)", tables);
        transaction.execute(&insert, [VERSION]).map_err(failed)?;
    }
    // In the same transaction: a process that dies in between leaves no tables without their index.
    search::prepare(&transaction, tables).map_err(failed)?;
    transaction.commit().map_err(failed)
}

fn refuse(destination: &SqliteDestination, fault: &str) -> SinkError {
    let advice = "choose other names with ?table=PREFIX, or another file";
    SinkError::refused(format!("cannot use the database {}: {fault}; {advice}", destination.path.display()))
}

/// Returns which of our names exist, as tables, views or indexes.
fn existing(connection: &Connection, tables: &TableOptions) -> rusqlite::Result<BTreeSet<&'static str>> {
    // SQLite tells names apart without case: a table `Items` of somebody else is in the way of `items`.
    let mut statement = connection.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE")?;
    let mut there = BTreeSet::new();
    for table in TABLES {
        if statement.exists([tables.name(table)])? {
            there.insert(table);
        }
    }
    Ok(there)
}

/// Brings tables of an older version to `known`; refuses those of a newer one.
fn migrate(
    connection: &Connection,
    destination: &SqliteDestination,
    known: i64,
    migrations: &[&str],
) -> Result<(), SinkError> {
    let failed = |error: rusqlite::Error| classify(&destination.path, &error);
    let tables = &destination.tables;
    let select = with_prefix("SELECT version FROM {p}towpath", tables);
    let version = connection.query_row(&select, [], |row| row.get::<_, i64>(0)).optional();
    let version = match version {
        Ok(version) => version,
        // A table of this name without our column is somebody else's.
        Err(rusqlite::Error::InvalidColumnType(..)) => None,
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => None,
        Err(error) => return Err(failed(error)),
    };
    let Some(version) = version else {
        return Err(refuse(destination, &format!("its table {} is not towpath's", tables.name("towpath"))));
    };
    let steps = steps_from(version, known, migrations).map_err(|error| match error {
        VersionError::Newer(_) => SinkError::refused(format!(
            "cannot use the database {}: its tables have {error}; update this program",
            destination.path.display()
        )),
        VersionError::Unknown(_) => refuse(destination, &format!("its tables have {error}")),
    })?;
    if steps.is_empty() {
        return Ok(());
    }
    for step in steps {
        connection.execute_batch(&with_prefix(step, tables)).map_err(failed)?;
    }
    tracing::info!(database = %destination.path.display(), from = version, to = known, "the tables were migrated");
    let update = with_prefix("UPDATE {p}towpath SET version = ?1", tables);
    connection.execute(&update, [known]).map(drop).map_err(failed)
}

/// Checks that the tables have our columns. Columns of the user's own beside them are fine.
fn check(
    connection: &Connection,
    destination: &SqliteDestination,
    there: &BTreeSet<&'static str>,
) -> Result<(), SinkError> {
    let failed = |error: rusqlite::Error| classify(&destination.path, &error);
    if let Some(missing) = TABLES.iter().find(|table| !there.contains(**table)) {
        let missing = destination.tables.name(missing);
        return Err(refuse(
            destination,
            &format!("its table {missing} is missing although others are there"),
        ));
    }
    let expected: [(&str, &[&str]); 2] = [("items", &ITEM_COLUMNS), ("changes", &CHANGE_COLUMNS)];
    for (table, columns) in expected {
        let name = destination.tables.name(table);
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)").map_err(failed)?;
        let found: Result<BTreeSet<String>, _> =
            statement.query_map([&name], |row| row.get(0)).and_then(Iterator::collect);
        let found = found.map_err(failed)?;
        if let Some(column) = columns.iter().find(|column| !found.contains(**column)) {
            return Err(refuse(destination, &format!("its table {name} has no column {column}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [&str; 2] = [
        "ALTER TABLE {p}items ADD COLUMN language TEXT; UPDATE {p}items SET language = 'und'",
        "ALTER TABLE {p}items RENAME COLUMN language TO lang",
    ];

    fn tables(folder: &tempfile::TempDir) -> (Connection, SqliteDestination) {
        let path = folder.path().join("copy.db");
        let into = format!("{}?table=kev", path.display());
        let destination = SqliteDestination::parse(&into).unwrap();
        let mut connection = Connection::open(&path).unwrap();
        prepare(&mut connection, &destination).unwrap();
        let row = "INSERT INTO kev_items (feed, id, authors, tags, extra, position) VALUES ('f', 'a', '', '', '', '1')";
        connection.execute_batch(row).unwrap();
        (connection, destination)
    }

    fn version(connection: &Connection) -> i64 {
        connection.query_row("SELECT version FROM kev_towpath", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn older_tables_are_migrated_with_their_rows() {
        let folder = tempfile::tempdir().unwrap();
        let (connection, destination) = tables(&folder);
        // Twice: the second time there is nothing to do.
        for _ in 0..2 {
            migrate(&connection, &destination, 3, &STEPS).unwrap();
            let lang: String = connection
                .query_row("SELECT lang FROM kev_items WHERE id = 'a'", [], |row| row.get(0))
                .unwrap();
            assert_eq!((lang.as_str(), version(&connection)), ("und", 3));
        }
        let error = migrate(&connection, &destination, 2, &STEPS[..1]).unwrap_err().to_string();
        assert!(error.contains("version 3") && error.contains("update this program"), "{error}");
    }

    #[test]
    fn a_migration_that_fails_leaves_the_tables_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let (mut connection, destination) = tables(&folder);
        let transaction = connection.transaction().unwrap();
        migrate(&transaction, &destination, 3, &[STEPS[0], "no such statement"]).unwrap_err();
        drop(transaction);
        assert_eq!(version(&connection), 1);
        prepare(&mut connection, &destination).unwrap();
        assert!(connection.prepare("SELECT language FROM kev_items").is_err());
    }
}
