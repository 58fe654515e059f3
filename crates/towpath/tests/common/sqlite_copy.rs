//! Copies that a sink makes in a SQLite database, read by a connection of their own.

use std::path::PathBuf;

use rusqlite::Connection;

use super::PATIENCE;

/// A copy in a SQLite database.
pub struct SqliteCopy(pub PathBuf);

impl SqliteCopy {
    pub fn rows<T>(&self, sql: &str, read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
        let connection = Connection::open(&self.0).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        statement.query_map([], read).unwrap().collect::<Result<_, _>>().unwrap()
    }
}
