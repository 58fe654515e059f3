//! COPY of many rows in the binary format, which costs the server less than inserts do.
//!
//! The history is copied as it is. Items are copied into a temporary table, and merged from it by one statement.

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::SinkExt as _;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{CopyInSink, GenericClient, Transaction};

use super::failure::PgFailure;
use super::plan::{ChangeValues, ItemValues};
use super::schema::TableNames;
use super::write::{ITEM_COLUMNS, MERGE};

/// Number of rows from which COPY pays: it costs two round trips more than an insert.
pub(super) const COPY_ROWS: usize = 500;
/// Bytes that are sent at once, while the next rows are encoded.
const CHUNK: usize = 256 << 10;
/// Start of every copy: signature, flags and the length of the header's extension (documentation of COPY).
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Temporary table of items. It is seen by its own session alone, and emptied with each transaction.
const STAGING: &str = "pg_temp.towpath_staging";

/// Text of a JSON value, which the server parses.
#[derive(Debug)]
struct JsonValue<'a>(&'a str);

impl ToSql for JsonValue<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if *ty == Type::JSONB {
            // Version of the binary form, which is the text behind it.
            out.put_u8(1);
        }
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::JSON | Type::JSONB)
    }

    to_sql_checked!();
}

/// Creates the temporary table. Returns false if the user may not: then items are inserted.
pub(super) async fn create_staging(client: &impl GenericClient) -> bool {
    // Of simple types, without keys: `items` itself may have columns and constraints of its owner.
    let sql = "CREATE TEMPORARY TABLE towpath_staging (
         feed text, id text, title text, url text, summary text, published timestamptz, updated timestamptz,
         authors jsonb, tags jsonb, content_type text, content text, content_bytes bytea, extra jsonb,
         modified timestamptz, position text) ON COMMIT DELETE ROWS";
    client.batch_execute(sql).await.is_ok()
}

/// Writes items by way of the temporary table.
pub(super) async fn copy_items(
    transaction: &Transaction<'_>,
    names: &TableNames,
    rows: &[ItemValues],
) -> Result<(), PgFailure> {
    const TYPES: [Type; 15] = [
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TIMESTAMPTZ,
        Type::TIMESTAMPTZ,
        Type::JSONB,
        Type::JSONB,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::JSONB,
        Type::TIMESTAMPTZ,
        Type::TEXT,
    ];
    let mut copy = CopyWriter::start(transaction, &format!("{STAGING} ({ITEM_COLUMNS})"), &TYPES).await?;
    for row in rows {
        let item = &row.item;
        copy.row(&[
            &row.feed,
            &item.id,
            &item.title,
            &item.url,
            &item.summary,
            &item.published,
            &item.updated,
            &JsonValue(&row.authors),
            &JsonValue(&row.tags),
            &item.content.as_ref().map(|content| content.media_type.as_str()),
            &row.text(),
            &row.bytes(),
            &JsonValue(&row.extra),
            &row.modified,
            &row.position,
        ])
        .await?;
    }
    copy.finish().await?;
    let merge =
        format!("INSERT INTO {} ({ITEM_COLUMNS}) SELECT {ITEM_COLUMNS} FROM {STAGING} {MERGE}", names.items);
    transaction.execute_typed(&merge, &[]).await.map(drop).map_err(PgFailure::from)
}

/// Appends to the history.
pub(super) async fn copy_changes(
    transaction: &Transaction<'_>,
    names: &TableNames,
    rows: &[ChangeValues],
) -> Result<(), PgFailure> {
    const TYPES: [Type; 6] = [Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::TIMESTAMPTZ, Type::JSON];
    let to = format!("{} (feed, op, id, position, modified, change)", names.changes);
    let mut copy = CopyWriter::start(transaction, &to, &TYPES).await?;
    for row in rows {
        let line = JsonValue(&row.line);
        copy.row(&[&row.feed, &row.op, &row.id, &row.position, &row.modified, &line]).await?;
    }
    copy.finish().await
}

/// Rows on their way to the server. Without [`finish`](Self::finish) the server undoes the copy.
struct CopyWriter<'a> {
    sink: std::pin::Pin<Box<CopyInSink<Bytes>>>,
    types: &'a [Type],
    buffer: BytesMut,
}

impl<'a> CopyWriter<'a> {
    async fn start(transaction: &Transaction<'_>, to: &str, types: &'a [Type]) -> Result<Self, PgFailure> {
        let sql = format!("COPY {to} FROM STDIN WITH (FORMAT binary)");
        let sink = transaction.copy_in(&sql).await.map_err(PgFailure::from)?;
        Ok(Self { sink: Box::pin(sink), types, buffer: BytesMut::from(HEADER) })
    }

    async fn row(&mut self, values: &[&(dyn ToSql + Sync)]) -> Result<(), PgFailure> {
        // There are as many values as types: both lists stand beside each other.
        self.buffer.put_i16(i16::try_from(values.len()).unwrap_or_default());
        for (value, ty) in values.iter().zip(self.types) {
            let at = self.buffer.len();
            self.buffer.put_i32(-1);
            let written = value.to_sql_checked(ty, &mut self.buffer);
            if let IsNull::No = written.map_err(|e| PgFailure::Data(format!("cannot be encoded: {e}")))? {
                let length = i32::try_from(self.buffer.len() - at - 4);
                let length = length.map_err(|_| PgFailure::Data("a value exceeds 2 GB".into()))?;
                self.buffer[at..at + 4].copy_from_slice(&length.to_be_bytes());
            }
        }
        if self.buffer.len() >= CHUNK {
            // Not flushed: the server reads while the next rows are encoded.
            let chunk = std::mem::take(&mut self.buffer).freeze();
            self.buffer.reserve(CHUNK + (CHUNK >> 4));
            self.sink.feed(chunk).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), PgFailure> {
        self.buffer.put_i16(-1);
        self.sink.feed(self.buffer.freeze()).await?;
        self.sink.as_mut().finish().await.map(drop).map_err(PgFailure::from)
    }
}
