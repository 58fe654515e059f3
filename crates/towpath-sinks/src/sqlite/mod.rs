//! SQLite: current items, history and position in one database file, each change exactly once.
//!
//! `sqlite:PATH[?table=PREFIX&changes=all|off|30d&search=on]`. Tables and columns are those of [`tables`](crate::tables).
//! Text content is stored as text, other content as a blob. `search=on` keeps an FTS5 index in `items_search`.
//!
//! The database is in WAL mode with `synchronous=NORMAL`: a power loss may undo the last transactions whole, with their
//! position, so the follow repeats them.

mod error;
mod schema;
mod search;
mod statements;
mod store;
mod writer;

use std::path::PathBuf;

use async_trait::async_trait;
use towpath_client::{Sink, SinkBatch, SinkError};
use towpath_proto::follow::Followed;

use self::store::SqliteStore;
use crate::blocking_store::BlockingStore;
use crate::query::Query;
use crate::tables::TableOptions;

/// Parsed `sqlite:` destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteDestination {
    /// Database file.
    pub path: PathBuf,
    /// Tables in it.
    pub tables: TableOptions,
}

impl SqliteDestination {
    /// Parses the text behind `sqlite:`.
    ///
    /// # Errors
    ///
    /// The message for a bad path or option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, mut query) = Query::split(text);
        if path.is_empty() {
            return Err("expected a path, as in sqlite:copy.db".into());
        }
        if path == ":memory:" {
            return Err("a database in memory would lose its position at the end; name a file".into());
        }
        let tables = TableOptions::take(&mut query)?;
        query.finish(TableOptions::KEYS)?;
        Ok(Self { path: path.into(), tables })
    }
}

/// Sink of one SQLite database.
pub struct SqliteSink {
    destination: SqliteDestination,
    store: BlockingStore<SqliteStore>,
}

impl SqliteSink {
    /// Creates the sink. The file is opened with the first source.
    pub fn new(destination: SqliteDestination) -> Self {
        Self { destination, store: BlockingStore::closed() }
    }

    /// Runs work on the database in a thread for blocking work.
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut SqliteStore) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let destination = self.destination.clone();
        self.store.run(move || SqliteStore::open(&destination), work).await
    }
}

#[async_trait]
impl Sink for SqliteSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let source = source.to_owned();
        self.run(move |store| store.open_source(&source)).await
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let batch = batch.clone();
        self.run(move |store| store.apply(&batch)).await
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        let (source, change, reason) = (source.to_owned(), change.clone(), reason.to_owned());
        self.run(move |store| store.set_aside(&source, &change, &reason)).await?;
        Ok(true)
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        // Closing the last connection folds the write-ahead log into the database.
        let store = self.store.take();
        let closed = tokio::task::spawn_blocking(move || drop(store)).await;
        closed.map_err(|error| SinkError::refused(error.to_string()))
    }
}
