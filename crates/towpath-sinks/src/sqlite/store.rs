//! The open database: applies a batch, its history and its position in one transaction.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use towpath_client::sink::RefusedItem;
use towpath_client::sink::acks::LineDigest;
use towpath_client::{SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;

use super::SqliteDestination;
use super::error::{classify, is_about_row};
use super::schema::prepare;
use super::statements::Statements;
use super::writer::BatchWriter;
use crate::file_identity::FileIdentity;
use crate::tables::{KeepChanges, Repeats, TableOptions, position};

/// Time that a statement waits for another program's lock before the batch is tried again.
const BUSY: Duration = Duration::from_secs(5);
/// Pages of the write-ahead log at which they are moved into the database: 64 MB.
// SQLite's 1000 are less than one batch of a first sync, and every move syncs both files.
const CHECKPOINT_PAGES: i64 = 16_384;
/// Size to which the write-ahead log is cut after a large transaction.
const LOG_BYTES: i64 = 64 << 20;
/// Maximum number of old changes that one batch removes, so that no batch takes long.
const TRIM: usize = 20_000;

/// The database with its prepared statements.
pub(super) struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    identity: FileIdentity,
    tables: TableOptions,
    sql: Statements,
    sources: HashMap<String, OpenSource>,
}

/// An open source.
#[derive(Default)]
pub(super) struct OpenSource {
    /// Number of transactions so far, to see that another process writes for the same source.
    pub(super) commits: i64,
    /// Changes of an unfinished unit that an earlier run applied. They come again.
    pub(super) repeats: Repeats,
    /// True if the last batch had no checkpoint.
    pub(super) is_unit_open: bool,
    /// Feeds that are known to be this source's.
    pub(super) feeds: HashSet<String>,
}

/// Failure inside of a transaction, which is rolled back.
pub(super) enum ApplyError {
    Database(rusqlite::Error),
    Sink(SinkError),
}

impl From<rusqlite::Error> for ApplyError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl SqliteStore {
    pub(super) fn open(destination: &SqliteDestination) -> Result<Self, SinkError> {
        let path = destination.path.clone();
        let failed = |error: rusqlite::Error| classify(&path, &error);
        let mut connection = Connection::open(&path).map_err(failed)?;
        connection.busy_timeout(BUSY).map_err(failed)?;
        // One write for many batches; readers never wait for the writer.
        connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        // A power loss may take the last batches together with their position. They come again, so syncing each
        // is not worth it.
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        connection.pragma_update(None, "cache_size", -65_536).map_err(failed)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(failed)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(32);
        prepare(&mut connection, destination)?;
        let identity = FileIdentity::of(&path).map_err(|error| {
            SinkError::unavailable(format!("cannot use the database {}: {error}", path.display()))
        })?;
        let (tables, sql) = (destination.tables.clone(), Statements::new(&destination.tables));
        Ok(Self { connection, path, identity, tables, sql, sources: HashMap::new() })
    }

    /// Reads the position of a source, and what is applied of its unfinished unit.
    pub(super) fn open_source(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        self.read_source(source).map_err(|error| classify(&self.path, &error))
    }

    fn read_source(&mut self, source: &str) -> rusqlite::Result<Option<Vec<u8>>> {
        let mut position = self.connection.prepare_cached(&self.sql.open)?;
        let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let held: Option<(Option<Vec<u8>>, Option<i64>, i64)> =
            position.query_row([source], columns).optional()?;
        let (checkpoint, unit_start, commits) = held.unwrap_or_default();
        let mut open = OpenSource { commits, is_unit_open: unit_start.is_some(), ..OpenSource::default() };
        if let Some(unit_start) = unit_start {
            let mut statement = self.connection.prepare_cached(&self.sql.unfinished)?;
            let mut rows = statement.query(params![unit_start, source])?;
            while let Some(row) = rows.next()? {
                open.repeats.add(LineDigest::of_line(row.get_ref(0)?.as_bytes()?));
            }
        }
        self.sources.insert(source.to_owned(), open);
        Ok(checkpoint)
    }

    /// Applies a batch: all of it, or nothing.
    pub(super) fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        if !self.identity.is_at(&self.path) {
            // SQLite would go on writing to a file without a name, and all of it would be lost.
            let why = "the file was moved or removed while it was open; start again";
            return Err(SinkError::refused(format!(
                "cannot use the database {}: {why}",
                self.path.display()
            )));
        }
        let mut open = self.sources.remove(batch.source.as_ref()).unwrap_or_default();
        // Usually empty, so the copy costs nothing.
        let repeats = open.repeats.clone();
        let applied = self.apply_in_transaction(batch, &mut open);
        if applied.is_ok() {
            open.commits += 1;
            open.is_unit_open = batch.checkpoint.is_none();
            if batch.checkpoint.is_some() {
                open.repeats = Repeats::default();
            }
        } else {
            // Rolled back: what was seen in the transaction is not known any more.
            open.feeds.clear();
            open.repeats = repeats;
        }
        self.sources.insert(batch.source.as_ref().into(), open);
        applied.map_err(|error| match error {
            ApplyError::Database(error) => classify(&self.path, &error),
            ApplyError::Sink(error) => error,
        })
    }

    fn apply_in_transaction(&mut self, batch: &SinkBatch, open: &mut OpenSource) -> Result<(), ApplyError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut writer = BatchWriter::new(&transaction, &self.sql, &self.tables, &batch.source, open)?;
        // Before the events of the batch, which are part of the unit.
        let unit_start = writer.last_change(&self.tables)?;
        let mut refused = Vec::new();
        for (index, event) in batch.events.iter().enumerate() {
            if let Err(message) = writer.write(event)? {
                refused.push(RefusedItem { index, message });
            }
        }
        // After all events, so that one attempt names every item that is refused.
        if !refused.is_empty() {
            return Err(ApplyError::Sink(SinkError::Items(refused)));
        }
        writer.save_position(batch, unit_start)?;
        drop(writer);
        if let KeepChanges::For(time) = self.tables.changes {
            let oldest = Timestamp::now().checked_sub(time).unwrap_or(Timestamp::MIN).to_string();
            transaction.prepare_cached(&self.sql.trim)?.execute(params![oldest, TRIM as i64])?;
        }
        Ok(transaction.commit()?)
    }

    /// Keeps a refused item in the table `refused`.
    pub(super) fn set_aside(
        &mut self,
        source: &str,
        change: &Followed,
        reason: &str,
    ) -> Result<(), SinkError> {
        let event = SinkEvent::Change(Box::new(change.clone()));
        let line = String::from_utf8(event.to_json()).unwrap_or_default();
        let (feed, recorded) = (event.feed(), Timestamp::now().to_string());
        let keep = |line: Option<&str>| {
            let mut statement = self.connection.prepare_cached(&self.sql.refused)?;
            statement.execute(params![source, feed, change.item.id, position(change), reason, recorded, line])
        };
        // An item that is too large for a row is named without its content.
        let kept =
            keep(Some(&line)).or_else(|error| if is_about_row(&error) { keep(None) } else { Err(error) });
        kept.map(drop).map_err(|error| classify(&self.path, &error))
    }
}
