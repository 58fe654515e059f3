//! Statements that write a batch, all in one transaction.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};
use towpath_client::sink::acks::LineDigest;
use towpath_proto::{Author, Content, Item};

use super::copy::{COPY_ROWS, copy_changes, copy_items};
use super::failure::PgFailure;
use super::plan::{BatchPlan, ChangeValues, ItemKey, ItemValues};
use super::schema::TableNames;
use crate::tables::Repeats;

/// Columns of `items`.
pub(super) const ITEM_COLUMNS: &str = "feed, id, title, url, summary, published, updated, authors, tags, \
    content_type, content, content_bytes, extra, modified, position";
/// End of a statement that inserts items: an item that is there is replaced.
pub(super) const MERGE: &str = "ON CONFLICT (feed, id) DO UPDATE SET title = excluded.title, url = excluded.url, \
    summary = excluded.summary, published = excluded.published, updated = excluded.updated, \
    authors = excluded.authors, tags = excluded.tags, content_type = excluded.content_type, \
    content = excluded.content, content_bytes = excluded.content_bytes, extra = excluded.extra, \
    modified = excluded.modified, position = excluded.position";

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Position of a source, as the database has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoredPosition {
    pub(super) checkpoint: Option<Vec<u8>>,
    /// Number of batches of the source that were ever applied.
    pub(super) commits: i64,
    /// Last change before a unit whose checkpoint has not come yet.
    pub(super) unit_start: Option<i64>,
}

/// Reads the position of a source, and locks its row: another writer of the same source waits.
pub(super) async fn lock_position(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
) -> Result<StoredPosition, PgFailure> {
    let insert = format!("INSERT INTO {} (source) VALUES ($1) ON CONFLICT DO NOTHING", names.positions);
    let select = format!(
        "SELECT checkpoint, commits, unit_start FROM {} WHERE source = $1 FOR UPDATE",
        names.positions
    );
    let rows = transaction.query_typed(&select, &[(&source, Type::TEXT)]).await.map_err(PgFailure::from)?;
    if let Some(row) = rows.first() {
        return Ok(StoredPosition { checkpoint: row.get(0), commits: row.get(1), unit_start: row.get(2) });
    }
    transaction.execute_typed(&insert, &[(&source, Type::TEXT)]).await.map_err(PgFailure::from)?;
    Ok(StoredPosition::default())
}

/// Reads the rows that a unit has so far, which began after the change `start`.
pub(super) async fn load_repeats(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
    start: i64,
) -> Result<Repeats, PgFailure> {
    let sql = format!(
        "SELECT sha256(convert_to(change::text, 'UTF8')) FROM {} \
         WHERE n > $1 AND feed IN (SELECT feed FROM {} WHERE source = $2)",
        names.changes, names.feeds
    );
    let parameters: [Parameter<'_>; 2] = [(&start, Type::INT8), (&source, Type::TEXT)];
    // By number, and of this source's feeds only: other sources may have written rows since.
    let rows = transaction.query_typed(&sql, &parameters).await.map_err(PgFailure::from)?;
    let mut repeats = Repeats::default();
    rows.iter().for_each(|row| repeats.add(LineDigest::of_hash(row.get(0))));
    Ok(repeats)
}

/// Writes the position of a source.
pub(super) async fn save_position(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
    position: &StoredPosition,
) -> Result<(), PgFailure> {
    let sql = format!(
        "UPDATE {} SET checkpoint = $2, commits = $3, unit_start = $4, updated = now() WHERE source = $1",
        names.positions
    );
    let StoredPosition { checkpoint, commits, unit_start } = position;
    let parameters: [Parameter<'_>; 4] =
        [(&source, Type::TEXT), (checkpoint, Type::BYTEA), (commits, Type::INT8), (unit_start, Type::INT8)];
    transaction.execute_typed(&sql, &parameters).await.map(drop).map_err(PgFailure::from)
}

/// Names the source of each feed. Two sources with one feed would overwrite each other's items.
pub(super) async fn claim_feeds(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
    feeds: &[String],
) -> Result<(), PgFailure> {
    let insert = format!(
        "INSERT INTO {} (feed, source) SELECT feed, $2 FROM unnest($1::text[]) AS feed ON CONFLICT DO NOTHING",
        names.feeds
    );
    let parameters: [Parameter<'_>; 2] = [(&feeds, Type::TEXT_ARRAY), (&source, Type::TEXT)];
    // Inserted before it is read. Of two sources that claim a feed at once, the later one waits here for the
    // other's commit. Then it finds that row.
    transaction.execute_typed(&insert, &parameters).await.map_err(PgFailure::from)?;
    let select = format!("SELECT feed, source FROM {} WHERE feed = ANY($1) AND source <> $2", names.feeds);
    let others = transaction.query_typed(&select, &parameters).await.map_err(PgFailure::from)?;
    let Some(other) = others.first() else { return Ok(()) };
    let (feed, owner): (String, String) = (other.get(0), other.get(1));
    Err(PgFailure::Refused(format!(
        "the tables have a feed {feed:?} already, from {owner}: use other tables for {source} with ?table=NAME"
    )))
}

/// Returns those of some feeds that have items.
pub(super) async fn with_items(
    transaction: &Transaction<'_>,
    names: &TableNames,
    feeds: &[String],
) -> Result<Vec<String>, PgFailure> {
    let sql = format!(
        "SELECT feed FROM unnest($1::text[]) AS feed WHERE EXISTS (SELECT 1 FROM {} i WHERE i.feed = feed.feed)",
        names.items
    );
    let rows = transaction.query_typed(&sql, &[(&feeds, Type::TEXT_ARRAY)]).await.map_err(PgFailure::from)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Reads items that patches apply to.
pub(super) async fn load_items(
    transaction: &Transaction<'_>,
    names: &TableNames,
    keys: &[ItemKey],
) -> Result<HashMap<ItemKey, Item>, PgFailure> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!(
        "SELECT feed, id, title, url, summary, published, updated, authors::text, tags::text, extra::text, \
         content_type, content, content_bytes FROM {} \
         WHERE (feed, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))",
        names.items
    );
    let (feeds, ids) = columns(keys);
    let rows = transaction
        .query_typed(&sql, &[(&feeds, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)])
        .await
        .map_err(PgFailure::from)?;
    Ok(rows.iter().map(|row| ((row.get(0), row.get(1)), item(row))).collect())
}

fn item(row: &Row) -> Item {
    // Our own columns; what somebody else wrote into them is taken as empty.
    fn parsed<T: serde::de::DeserializeOwned + Default>(text: &str) -> T {
        serde_json::from_str(text).unwrap_or_default()
    }
    let text: Option<String> = row.get(11);
    let bytes = text.map(String::into_bytes).or_else(|| row.get(12));
    let media_type: Option<String> = row.get(10);
    let content = bytes.map(|bytes| Content::new(media_type.unwrap_or_default(), bytes));
    Item {
        id: row.get(1),
        title: row.get(2),
        url: row.get(3),
        summary: row.get(4),
        published: row.get(5),
        updated: row.get(6),
        authors: parsed::<Vec<Author>>(row.get(7)),
        tags: parsed(row.get(8)),
        extra: parsed(row.get(9)),
        content,
    }
}

/// Writes items and history. With `can_stage` there is a temporary table for many items.
pub(super) async fn write_plan(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
    plan: &BatchPlan,
    can_stage: bool,
) -> Result<(), PgFailure> {
    // Resets come first. What an item had before a reset is void; what came after it is among the puts.
    if plan.wipes_source {
        let TableNames { items, feeds, .. } = names;
        let sql = format!("DELETE FROM {items} WHERE feed IN (SELECT feed FROM {feeds} WHERE source = $1)");
        transaction.execute_typed(&sql, &[(&source, Type::TEXT)]).await.map_err(PgFailure::from)?;
    }
    if !plan.wiped.is_empty() {
        let feeds: Vec<&str> = plan.wiped.iter().map(String::as_str).collect();
        let sql = format!("DELETE FROM {} WHERE feed = ANY($1)", names.items);
        transaction.execute_typed(&sql, &[(&feeds, Type::TEXT_ARRAY)]).await.map_err(PgFailure::from)?;
    }
    if !plan.deleted.is_empty() {
        let (feeds, ids) = columns(&plan.deleted);
        let sql = format!(
            "DELETE FROM {} WHERE (feed, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))",
            names.items
        );
        let parameters: [Parameter<'_>; 2] = [(&feeds, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
        transaction.execute_typed(&sql, &parameters).await.map_err(PgFailure::from)?;
    }
    if can_stage && plan.puts.len() >= COPY_ROWS {
        copy_items(transaction, names, &plan.puts).await?;
    } else {
        put_items(transaction, names, &plan.puts).await?;
    }
    if plan.changes.len() >= COPY_ROWS {
        return copy_changes(transaction, names, &plan.changes).await;
    }
    append_changes(transaction, names, &plan.changes).await
}

fn columns(keys: &[ItemKey]) -> (Vec<&str>, Vec<&str>) {
    keys.iter().map(|(feed, id)| (feed.as_str(), id.as_str())).unzip()
}

/// Collects a column of rows.
fn column<'a, T: 'a, V>(rows: &'a [T], value: impl Fn(&'a T) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

async fn put_items(
    transaction: &Transaction<'_>,
    names: &TableNames,
    rows: &[ItemValues],
) -> Result<(), PgFailure> {
    if rows.is_empty() {
        return Ok(());
    }
    // Columns as arrays: one statement for any number of rows, whose text is always the same.
    let sql = format!(
        "INSERT INTO {} ({ITEM_COLUMNS}) \
         SELECT a, b, c, d, e, f, g, h::jsonb, i::jsonb, j, k, l, m::jsonb, n, o FROM unnest($1::text[], $2::text[], \
         $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::text[], $9::text[], \
         $10::text[], $11::text[], $12::bytea[], $13::text[], $14::timestamptz[], $15::text[]) \
         AS r(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o) {MERGE}",
        names.items
    );
    let feeds: Vec<&str> = column(rows, |row| row.feed.as_str());
    let ids: Vec<&str> = column(rows, |row| row.item.id.as_str());
    let titles: Vec<Option<&str>> = column(rows, |row| row.item.title.as_deref());
    let urls: Vec<Option<&str>> = column(rows, |row| row.item.url.as_deref());
    let summaries: Vec<Option<&str>> = column(rows, |row| row.item.summary.as_deref());
    let published: Vec<Option<Timestamp>> = column(rows, |row| row.item.published);
    let updated: Vec<Option<Timestamp>> = column(rows, |row| row.item.updated);
    let authors: Vec<&str> = column(rows, |row| row.authors.as_str());
    let tags: Vec<&str> = column(rows, |row| row.tags.as_str());
    let types: Vec<Option<&str>> =
        column(rows, |row| row.item.content.as_ref().map(|content| content.media_type.as_str()));
    let texts: Vec<Option<&str>> = column(rows, ItemValues::text);
    let bytes: Vec<Option<&[u8]>> = column(rows, ItemValues::bytes);
    let extras: Vec<&str> = column(rows, |row| row.extra.as_str());
    let modified: Vec<Option<Timestamp>> = column(rows, |row| row.modified);
    let positions: Vec<&str> = column(rows, |row| row.position.as_str());
    let parameters: [Parameter<'_>; 15] = [
        (&feeds, Type::TEXT_ARRAY),
        (&ids, Type::TEXT_ARRAY),
        (&titles, Type::TEXT_ARRAY),
        (&urls, Type::TEXT_ARRAY),
        (&summaries, Type::TEXT_ARRAY),
        (&published, Type::TIMESTAMPTZ_ARRAY),
        (&updated, Type::TIMESTAMPTZ_ARRAY),
        (&authors, Type::TEXT_ARRAY),
        (&tags, Type::TEXT_ARRAY),
        (&types, Type::TEXT_ARRAY),
        (&texts, Type::TEXT_ARRAY),
        (&bytes, Type::BYTEA_ARRAY),
        (&extras, Type::TEXT_ARRAY),
        (&modified, Type::TIMESTAMPTZ_ARRAY),
        (&positions, Type::TEXT_ARRAY),
    ];
    transaction.execute_typed(&sql, &parameters).await.map(drop).map_err(PgFailure::from)
}

/// Appends to the history.
async fn append_changes(
    transaction: &Transaction<'_>,
    names: &TableNames,
    rows: &[ChangeValues],
) -> Result<(), PgFailure> {
    if rows.is_empty() {
        return Ok(());
    }
    // ORDER BY numbers the rows in the order of the batch. Without it the database may take them in any.
    let sql = format!(
        "INSERT INTO {} (feed, op, id, position, modified, change) SELECT a, b, c, d, e, f::json FROM \
         unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::text[]) WITH ORDINALITY \
         AS r(a, b, c, d, e, f, n) ORDER BY n",
        names.changes
    );
    let feeds: Vec<&str> = column(rows, |row| row.feed.as_str());
    let ops: Vec<&str> = column(rows, |row| row.op);
    let ids: Vec<Option<&str>> = column(rows, |row| row.id.as_deref());
    let positions: Vec<Option<&str>> = column(rows, |row| row.position.as_deref());
    let modified: Vec<Option<Timestamp>> = column(rows, |row| row.modified);
    let lines: Vec<&str> = column(rows, |row| row.line.as_str());
    let parameters: [Parameter<'_>; 6] = [
        (&feeds, Type::TEXT_ARRAY),
        (&ops, Type::TEXT_ARRAY),
        (&ids, Type::TEXT_ARRAY),
        (&positions, Type::TEXT_ARRAY),
        (&modified, Type::TIMESTAMPTZ_ARRAY),
        (&lines, Type::TEXT_ARRAY),
    ];
    transaction.execute_typed(&sql, &parameters).await.map(drop).map_err(PgFailure::from)
}

/// Returns the number of the last row of the history.
pub(super) async fn last_change(transaction: &Transaction<'_>, names: &TableNames) -> Result<i64, PgFailure> {
    let sql = format!("SELECT coalesce(max(n), 0) FROM {}", names.changes);
    let row = transaction.query_typed(&sql, &[]).await.map_err(PgFailure::from)?;
    Ok(row.first().map_or(0, |row| row.get(0)))
}
