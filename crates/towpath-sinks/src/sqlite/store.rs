//! The open database: applies a batch, its history and its position in one transaction.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use towpath_client::sink::RefusedItem;
use towpath_client::{SinkBatch, SinkError, SinkEvent, redact};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Content, Item, Op};

use super::SqliteDestination;
use super::error::{classify, is_about_row};
use super::schema::{prepare, with_prefix};
use crate::tables::{CHANGE_COLUMNS, ITEM_COLUMNS, ItemRow, KeepChanges, TableOptions, position, repeat_key};
use crate::whole::whole;

/// Time that a statement waits for another program's lock before the batch is tried again.
const BUSY: Duration = Duration::from_secs(5);
/// Maximum number of old changes that one batch removes, so that no batch takes long.
const TRIM: usize = 20_000;

/// The database with its prepared statements.
pub(super) struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    /// Number of the file, to see that it was replaced.
    inode: u64,
    tables: TableOptions,
    sql: Statements,
    sources: HashMap<String, OpenSource>,
}

/// An open source.
#[derive(Default)]
struct OpenSource {
    /// Number of transactions so far, to see that another process writes for the same source.
    commits: i64,
    /// Changes of an unfinished unit that an earlier run applied. They come again.
    repeats: HashMap<u128, u32>,
    /// True if the last batch had no checkpoint.
    is_unit_open: bool,
    /// Feeds that are known to be this source's.
    feeds: HashSet<String>,
}

/// Texts of the statements.
struct Statements {
    upsert: String,
    delete: String,
    change: String,
    item: String,
    feed: String,
    feed_source: String,
    feeds: String,
    clear: String,
    position: String,
    open: String,
    unfinished: String,
    last: String,
    trim: String,
    refused: String,
}

impl Statements {
    fn new(tables: &TableOptions) -> Self {
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
            position: sql("INSERT INTO {p}positions (source, checkpoint, unit_start, commits, updated)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (source) DO UPDATE SET
                 checkpoint = coalesce(excluded.checkpoint, checkpoint),
                 unit_start = CASE WHEN excluded.checkpoint IS NULL
                              THEN coalesce(unit_start, excluded.unit_start) END,
                 commits = excluded.commits, updated = excluded.updated
                 WHERE commits = excluded.commits - 1"),
            open: sql("SELECT checkpoint, unit_start, commits FROM {p}positions WHERE source = ?1"),
            unfinished: sql("SELECT feed, op, id, position FROM {p}changes
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

/// Failure inside of a transaction, which is rolled back.
enum ApplyError {
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
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        connection.pragma_update(None, "cache_size", -65_536).map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(32);
        prepare(&mut connection, destination)?;
        let inode = std::fs::metadata(&path).map(|file| file.ino()).map_err(|error| {
            SinkError::unavailable(format!("cannot use the database {}: {error}", path.display()))
        })?;
        let (tables, sql) = (destination.tables.clone(), Statements::new(&destination.tables));
        Ok(Self { connection, path, inode, tables, sql, sources: HashMap::new() })
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
                let text = |column| row.get::<_, Option<String>>(column).map(Option::unwrap_or_default);
                let key = repeat_key(&text(0)?, &text(1)?, &text(2)?, &text(3)?);
                *open.repeats.entry(key).or_default() += 1;
            }
        }
        self.sources.insert(source.to_owned(), open);
        Ok(checkpoint)
    }

    /// Applies a batch: all of it, or nothing.
    pub(super) fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let is_same = std::fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if !is_same {
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
                open.repeats = HashMap::new();
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
        let mut writer = BatchWriter {
            transaction: &transaction,
            sql: &self.sql,
            keeps_changes: self.tables.keeps_changes(),
            source: &batch.source,
            recorded: Timestamp::now().to_string(),
            open,
        };
        let unit_start = writer.last_change(&self.tables)?;
        let mut refused = Vec::new();
        for (index, event) in batch.events.iter().enumerate() {
            if let Err(message) = writer.write(event)? {
                refused.push(RefusedItem { index, message });
            }
        }
        if !refused.is_empty() {
            return Err(ApplyError::Sink(SinkError::Items(refused)));
        }
        writer.save_position(batch, unit_start)?;
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

/// Writer of one batch, inside of its transaction.
struct BatchWriter<'a> {
    transaction: &'a Transaction<'a>,
    sql: &'a Statements,
    keeps_changes: bool,
    source: &'a str,
    recorded: String,
    open: &'a mut OpenSource,
}

impl BatchWriter<'_> {
    /// Returns the number of the last change.
    fn last_change(&self, tables: &TableOptions) -> rusqlite::Result<i64> {
        if self.open.is_unit_open {
            return Ok(0);
        }
        let mut statement = self.transaction.prepare_cached(&self.sql.last)?;
        let last = statement.query_row([tables.name("changes")], |row| row.get(0)).optional()?;
        Ok(last.unwrap_or(0))
    }

    /// Writes one event. The inner error is the reason why its item is refused.
    fn write(&mut self, event: &SinkEvent) -> Result<Result<(), String>, ApplyError> {
        let feed = event.feed();
        self.claim(&feed)?;
        let written = match event {
            SinkEvent::Change(change) => self.write_item(&feed, change),
            SinkEvent::Reset(reset) => self.clear(reset).map(Ok),
        };
        let written = written.and_then(|outcome| match outcome {
            Ok(()) => self.write_change(&feed, event).map(Ok),
            Err(reason) => Ok(Err(reason)),
        });
        match written {
            Err(error) if is_about_row(&error) => Ok(Err(error.to_string())),
            other => Ok(other?),
        }
    }

    /// Checks that the feed's rows come from this source.
    fn claim(&mut self, feed: &str) -> Result<(), ApplyError> {
        if self.open.feeds.contains(feed) {
            return Ok(());
        }
        let inserted = self.transaction.prepare_cached(&self.sql.feed)?.execute([feed, self.source])?;
        if inserted == 0 {
            let mut statement = self.transaction.prepare_cached(&self.sql.feed_source)?;
            let source: String = statement.query_row([feed], |row| row.get(0))?;
            if source != self.source {
                let (source, own) = (redact::url(&source), redact::url(self.source));
                return Err(ApplyError::Sink(SinkError::refused(format!(
                    "the rows of feed {feed:?} come from {source} and would be mixed with those of {own}; \
                     choose other tables with ?table=PREFIX"
                ))));
            }
        }
        self.open.feeds.insert(feed.to_owned());
        Ok(())
    }

    fn write_item(&mut self, feed: &str, change: &Followed) -> rusqlite::Result<Result<(), String>> {
        if change.op == Op::Delete {
            self.transaction.prepare_cached(&self.sql.delete)?.execute([feed, &change.item.id])?;
            return Ok(Ok(()));
        }
        let item = match whole(change, || self.held(feed, &change.item.id))? {
            Ok(item) => item,
            Err(reason) => return Ok(Err(reason)),
        };
        let row = ItemRow::of(&item);
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        // Text where it is text, so that SQL can search it; a blob otherwise.
        let (text, bytes) = (row.text(), row.bytes());
        let content: &dyn rusqlite::ToSql = if text.is_some() { &text } else { &bytes };
        self.transaction.prepare_cached(&self.sql.upsert)?.execute(params![
            feed,
            item.id,
            item.title,
            item.url,
            item.summary,
            time(item.published),
            time(item.updated),
            row.authors,
            row.tags,
            row.content_type(),
            content,
            row.extra,
            time(change.modified),
            position(change),
        ])?;
        Ok(Ok(()))
    }

    /// Reads the item that a patch applies to.
    fn held(&self, feed: &str, id: &str) -> rusqlite::Result<Option<Item>> {
        self.transaction.prepare_cached(&self.sql.item)?.query_row([feed, id], read_item).optional()
    }

    /// Removes the items of a feed that began anew, or of all feeds of the source.
    fn clear(&mut self, reset: &FeedReset) -> rusqlite::Result<()> {
        let named = redact::credentials(&reset.feed);
        let mut statement = self.transaction.prepare_cached(&self.sql.feeds)?;
        let feeds: Result<Vec<String>, _> =
            statement.query_map([self.source], |row| row.get(0)).and_then(Iterator::collect);
        let feeds = feeds?;
        // A publisher of several sources begins anew as a whole, under its own name.
        let is_named = self.has_items(&named)?;
        for feed in feeds.iter().filter(|feed| !is_named || **feed == named) {
            self.transaction.prepare_cached(&self.sql.clear)?.execute([feed])?;
        }
        Ok(())
    }

    fn has_items(&self, feed: &str) -> rusqlite::Result<bool> {
        let sql = self.sql.clear.replacen("DELETE", "SELECT 1", 1);
        self.transaction.prepare_cached(&sql)?.exists([feed])
    }

    /// Appends the event to the history, unless an earlier run did.
    fn write_change(&mut self, feed: &str, event: &SinkEvent) -> rusqlite::Result<()> {
        if !self.keeps_changes {
            return Ok(());
        }
        let change = event.change();
        let (op, id) = change.map_or(("reset", ""), |change| (change.op.as_str(), change.item.id.as_str()));
        let position = change.map(position);
        if !self.open.repeats.is_empty() {
            let key = repeat_key(feed, op, id, position.as_deref().unwrap_or_default());
            // Counted: a unit may hold two resets, which are equal.
            if let Some(count) = self.open.repeats.get_mut(&key).filter(|count| **count > 0) {
                *count -= 1;
                return Ok(());
            }
        }
        let modified = change.and_then(|change| change.modified).map(|time| time.to_string());
        let line = String::from_utf8(event.to_json()).unwrap_or_default();
        let id = change.map(|change| change.item.id.as_str());
        let mut statement = self.transaction.prepare_cached(&self.sql.change)?;
        statement.execute(params![feed, op, id, position, modified, self.recorded, line])?;
        Ok(())
    }

    fn save_position(&mut self, batch: &SinkBatch, unit_start: i64) -> Result<(), ApplyError> {
        let mut statement = self.transaction.prepare_cached(&self.sql.position)?;
        let checkpoint = batch.checkpoint.as_deref();
        let unit_start = checkpoint.is_none().then_some(unit_start);
        let commits = self.open.commits + 1;
        let changed =
            statement.execute(params![self.source, checkpoint, unit_start, commits, self.recorded])?;
        if changed == 1 {
            return Ok(());
        }
        let own = redact::url(self.source);
        Err(ApplyError::Sink(SinkError::refused(format!(
            "another process follows {own} into the same tables; stop one of them"
        ))))
    }
}

/// Reads the columns of [`ITEM_COLUMNS`].
fn read_item(row: &Row<'_>) -> rusqlite::Result<Item> {
    let json = |column: usize| row.get::<_, String>(column);
    let time = |column: usize| {
        row.get::<_, Option<String>>(column).map(|text| text.and_then(|text| text.parse::<Timestamp>().ok()))
    };
    let bytes = match row.get_ref(10)? {
        rusqlite::types::ValueRef::Text(bytes) | rusqlite::types::ValueRef::Blob(bytes) => {
            Some(bytes.to_vec())
        }
        _ => None,
    };
    let media_type = row.get::<_, Option<String>>(9)?.unwrap_or_default();
    Ok(Item {
        id: row.get(1)?,
        title: row.get(2)?,
        url: row.get(3)?,
        summary: row.get(4)?,
        published: time(5)?,
        updated: time(6)?,
        authors: serde_json::from_str(&json(7)?).unwrap_or_default(),
        tags: serde_json::from_str(&json(8)?).unwrap_or_default(),
        content: bytes.map(|bytes| Content::new(media_type, bytes)),
        extra: serde_json::from_str(&json(11)?).unwrap_or_default(),
    })
}
