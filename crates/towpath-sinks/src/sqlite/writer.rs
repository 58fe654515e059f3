//! Writes the events of a batch, inside of its transaction.

use jiff::Timestamp;
use rusqlite::{CachedStatement, OptionalExtension as _, Row, Transaction, params};
use towpath_client::{SinkBatch, SinkError, SinkEvent, redact};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Content, Item, Op};

use super::error::is_about_row;
use super::statements::Statements;
use super::store::{ApplyError, OpenSource};
use crate::tables::{ItemRow, TableOptions, position};
use crate::whole::whole;

/// Writer of one batch, inside of its transaction.
pub(super) struct BatchWriter<'a> {
    transaction: &'a Transaction<'a>,
    sql: &'a Statements,
    source: &'a str,
    recorded: String,
    open: &'a mut OpenSource,
    /// Statements of every event, which are not looked up for each.
    upsert: CachedStatement<'a>,
    /// `None` if no history is kept.
    change: Option<CachedStatement<'a>>,
}

/// Columns of an event that `items` and `changes` share.
struct EventColumns {
    feed: String,
    position: Option<String>,
    modified: Option<String>,
}

impl<'a> BatchWriter<'a> {
    /// Prepares the statements of a batch of `source`.
    pub(super) fn new(
        transaction: &'a Transaction<'a>,
        sql: &'a Statements,
        tables: &TableOptions,
        source: &'a str,
        open: &'a mut OpenSource,
    ) -> rusqlite::Result<Self> {
        let change = tables.keeps_changes().then(|| transaction.prepare_cached(&sql.change)).transpose()?;
        let (upsert, recorded) = (transaction.prepare_cached(&sql.upsert)?, Timestamp::now().to_string());
        Ok(Self { transaction, sql, source, recorded, open, upsert, change })
    }

    /// Returns the number of the last change.
    pub(super) fn last_change(&self, tables: &TableOptions) -> rusqlite::Result<i64> {
        // An open unit keeps the start that its first batch has stored.
        if self.open.is_unit_open {
            return Ok(0);
        }
        let mut statement = self.transaction.prepare_cached(&self.sql.last)?;
        let last = statement.query_row([tables.name("changes")], |row| row.get(0)).optional()?;
        Ok(last.unwrap_or(0))
    }

    /// Writes one event. The inner error is the reason why its item is refused.
    pub(super) fn write(&mut self, event: &SinkEvent) -> Result<Result<(), String>, ApplyError> {
        let change = event.change();
        let columns = EventColumns {
            feed: event.feed(),
            position: change.map(position),
            modified: change.and_then(|change| change.modified).map(|time| time.to_string()),
        };
        // Before its first row: two sources with one feed would overwrite each other's items.
        self.claim(&columns.feed)?;
        let written = match event {
            SinkEvent::Change(change) => self.write_item(&columns, change),
            SinkEvent::Reset(reset) => self.clear(reset).map(Ok),
        };
        let written = written.and_then(|outcome| match outcome {
            Ok(()) => self.write_change(&columns, event).map(Ok),
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

    fn write_item(
        &mut self,
        columns: &EventColumns,
        change: &Followed,
    ) -> rusqlite::Result<Result<(), String>> {
        let EventColumns { feed, position, modified } = columns;
        if change.op == Op::Delete {
            self.transaction.prepare_cached(&self.sql.delete)?.execute([feed, &change.item.id])?;
            return Ok(Ok(()));
        }
        let item = match whole(change, || self.stored_item(feed, &change.item.id))? {
            Ok(item) => item,
            Err(reason) => return Ok(Err(reason)),
        };
        let row = ItemRow::of(&item);
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        // Text where it is text, so that SQL can search it; a blob otherwise.
        let (text, bytes) = (row.text(), row.bytes());
        let content: &dyn rusqlite::ToSql = if text.is_some() { &text } else { &bytes };
        self.upsert.execute(params![
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
            modified,
            position,
        ])?;
        Ok(Ok(()))
    }

    /// Reads the item that a patch applies to.
    fn stored_item(&self, feed: &str, id: &str) -> rusqlite::Result<Option<Item>> {
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
        self.transaction.prepare_cached(&self.sql.has_items)?.exists([feed])
    }

    /// Appends the event to the history, unless an earlier run did.
    fn write_change(&mut self, columns: &EventColumns, event: &SinkEvent) -> rusqlite::Result<()> {
        let Some(statement) = &mut self.change else { return Ok(()) };
        let EventColumns { feed, position, modified } = columns;
        let line = String::from_utf8(event.to_json()).unwrap_or_default();
        if self.open.repeats.take(&line) {
            return Ok(());
        }
        let change = event.change();
        let op = change.map_or("reset", |change| change.op.as_str());
        let id = change.map(|change| change.item.id.as_str());
        statement.execute(params![feed, op, id, position, modified, self.recorded, line])?;
        Ok(())
    }

    /// Keeps the position of the source, unless another process has moved it.
    pub(super) fn save_position(&mut self, batch: &SinkBatch, unit_start: i64) -> Result<(), ApplyError> {
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
