//! Kills of followers into databases, of their publisher and of the database: nothing is lost, nothing is repeated.
//!
//! `cargo xtask sink-kills [N]` runs the long form.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::common::sink_kill::{self, HistoryRow, KilledCopy};
use crate::common::sqlite_copy::SqliteCopy;
use crate::postgres_server::PostgresServer;

/// Protocols by which the copies are made.
const PROTOCOLS: [&str; 3] = ["smart", "replication", "diffdelta"];

impl KilledCopy for SqliteCopy {
    fn destination(&self) -> String {
        format!("sqlite:{}", self.0.display())
    }

    fn items(&self) -> BTreeMap<String, String> {
        self.rows("SELECT id, content FROM items", |row| Ok((row.get(0)?, row.get(1)?))).into_iter().collect()
    }

    fn history(&self) -> Vec<HistoryRow> {
        self.rows("SELECT op, id, position FROM changes ORDER BY n", |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
    }
}

/// A copy in tables of a PostgreSQL database, whose server all copies share.
struct PostgresCopy<'a> {
    server: &'a RefCell<PostgresServer>,
    prefix: &'static str,
}

impl PostgresCopy<'_> {
    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let text = self.server.borrow().query(sql);
        text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
    }
}

impl KilledCopy for PostgresCopy<'_> {
    fn destination(&self) -> String {
        format!("{}?table={}", self.server.borrow().url(), self.prefix)
    }

    fn items(&self) -> BTreeMap<String, String> {
        let rows = self.rows(&format!("SELECT id, content FROM {}_items", self.prefix));
        rows.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect()
    }

    fn history(&self) -> Vec<HistoryRow> {
        let rows = self.rows(&format!("SELECT op, id, position FROM {}_changes ORDER BY n", self.prefix));
        rows.into_iter().map(|row| (row[0].clone(), row[1].clone(), row[2].clone())).collect()
    }

    fn kill_destination(&self) -> bool {
        let mut server = self.server.borrow_mut();
        server.kill();
        server.run();
        true
    }
}

#[test]
fn kills_leave_an_exact_copy_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let copies =
        PROTOCOLS.map(|protocol| (protocol, SqliteCopy(folder.path().join(format!("{protocol}.db")))));
    let copies = copies.each_ref().map(|(protocol, copy)| (*protocol, copy as &dyn KilledCopy));
    sink_kill::run("SQLite", &copies);
}

#[test]
fn kills_leave_an_exact_copy_in_postgresql() {
    let server = RefCell::new(PostgresServer::start());
    let copies = PROTOCOLS.map(|prefix| (prefix, PostgresCopy { server: &server, prefix }));
    let copies = copies.each_ref().map(|(protocol, copy)| (*protocol, copy as &dyn KilledCopy));
    sink_kill::run("PostgreSQL", &copies);
}
