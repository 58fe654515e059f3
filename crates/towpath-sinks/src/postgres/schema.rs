//! The tables: created, checked, migrated.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::destination::PostgresDestination;
use super::failure::PgFailure;
use crate::tables::{TableOptions, VERSION, VersionError, assert_complete, steps_from};

/// Qualified and quoted names of the tables.
#[derive(Debug, Clone)]
pub(super) struct TableNames {
    pub(super) schema: String,
    pub(super) items: String,
    pub(super) changes: String,
    pub(super) positions: String,
    pub(super) feeds: String,
    pub(super) refused: String,
    version: String,
    options: TableOptions,
}

/// Quotes an identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl TableNames {
    fn new(schema: String, options: &TableOptions) -> Self {
        let name = |table: &str| format!("{}.{}", quoted(&schema), quoted(&options.name(table)));
        Self {
            items: name("items"),
            changes: name("changes"),
            positions: name("positions"),
            feeds: name("feeds"),
            refused: name("refused"),
            version: name("towpath"),
            options: options.clone(),
            schema,
        }
    }

    /// Unquoted name of an index or a table in the schema.
    fn plain(&self, name: &str) -> String {
        self.options.name(name)
    }
}

/// Creates or migrates the tables, and returns their names.
pub(super) async fn prepare(client: &mut Client, to: &PostgresDestination) -> Result<TableNames, PgFailure> {
    let failed = |e: tokio_postgres::Error| PgFailure::of(&e);
    let transaction = client.transaction().await.map_err(failed)?;
    // Of several that start at once, one creates the tables and the others find them. The number is ours: "towpath".
    transaction.batch_execute("SELECT pg_advisory_xact_lock(8390891570113635432)").await.map_err(failed)?;
    let names = TableNames::new(schema(&transaction, to).await?, &to.tables);
    match version(&transaction, &names).await? {
        None => {
            refuse_foreign(&transaction, &names).await?;
            transaction.batch_execute(&create(&names)).await.map_err(failed)?;
        }
        Some(version) => migrate(&transaction, &names, version).await?,
    }
    // At each start, because an option may be switched on later. The statements do nothing where it is on
    // already.
    transaction.batch_execute(&options(&names)).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(names)
}

/// Statements that lead from one version of the tables to the next: those at index i from version i + 1.
const MIGRATIONS: [fn(&TableNames) -> String; 0] = [];
const _: () = assert_complete(MIGRATIONS.len());

/// Brings tables of an older version to ours; refuses those of a newer one.
async fn migrate(transaction: &Transaction<'_>, names: &TableNames, version: i64) -> Result<(), PgFailure> {
    let failed = |e: tokio_postgres::Error| PgFailure::of(&e);
    let steps = steps_from(version, VERSION, &MIGRATIONS).map_err(|error| {
        let schema = &names.schema;
        let advice = match error {
            VersionError::Newer(_) => "update this program, or use other tables with ?table=NAME",
            VersionError::Unknown(_) => "use other tables with ?table=NAME",
        };
        PgFailure::Refused(format!("the tables in schema {schema} have {error}: {advice}"))
    })?;
    if steps.is_empty() {
        return Ok(());
    }
    for step in steps {
        transaction.batch_execute(&step(names)).await.map_err(failed)?;
    }
    tracing::info!(schema = names.schema, from = version, to = VERSION, "the tables were migrated");
    let update = format!("UPDATE {} SET version = {VERSION}", names.version);
    transaction.batch_execute(&update).await.map_err(failed)
}

/// Returns the schema, created if it is named and missing.
async fn schema(transaction: &Transaction<'_>, to: &PostgresDestination) -> Result<String, PgFailure> {
    let failed = |e: tokio_postgres::Error| PgFailure::of(&e);
    let Some(named) = &to.schema else {
        let row = transaction.query_typed("SELECT current_schema()::text", &[]).await.map_err(failed)?;
        let current: Option<String> = row.first().and_then(|row| row.get(0));
        return current.ok_or_else(|| {
            PgFailure::Refused("the user's search path has no schema: name one with ?schema=NAME".into())
        });
    };
    let exists = transaction
        .query_typed("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[(named, Type::TEXT)])
        .await
        .map_err(failed)?;
    // Not IF NOT EXISTS: that asks for the right to create schemas even where there is nothing to create.
    if exists.is_empty() {
        transaction.batch_execute(&format!("CREATE SCHEMA {}", quoted(named))).await.map_err(failed)?;
    }
    Ok(named.clone())
}

/// Returns the version of the tables; `None` if there are none.
async fn version(transaction: &Transaction<'_>, names: &TableNames) -> Result<Option<i64>, PgFailure> {
    if !exists(transaction, names, "towpath").await? {
        return Ok(None);
    }
    let read = transaction.query_typed(&format!("SELECT version FROM {}", names.version), &[]).await;
    let foreign = |reason: String| {
        PgFailure::Refused(format!(
            "schema {} has a table {:?} that is not of this program ({reason}): use other tables with ?table=NAME",
            names.schema,
            names.plain("towpath")
        ))
    };
    let rows = match read {
        Ok(rows) => rows,
        Err(e) => {
            return Err(match PgFailure::of(&e) {
                PgFailure::Refused(reason)
                    // A missing right is no foreign table. The database's own message says what to grant.
                    if e.code() != Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) =>
                {
                    foreign(reason)
                }
                other => other,
            });
        }
    };
    let version = rows.first().and_then(|row| row.try_get(0).ok());
    version.map(Some).ok_or_else(|| foreign("it has no version".into()))
}

async fn exists(transaction: &Transaction<'_>, names: &TableNames, table: &str) -> Result<bool, PgFailure> {
    let sql = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = $1 AND c.relname = $2";
    let rows = transaction
        .query_typed(sql, &[(&names.schema, Type::TEXT), (&names.plain(table), Type::TEXT)])
        .await
        .map_err(|e| PgFailure::of(&e))?;
    Ok(!rows.is_empty())
}

/// Refuses to use tables of somebody else that have our names.
async fn refuse_foreign(transaction: &Transaction<'_>, names: &TableNames) -> Result<(), PgFailure> {
    for table in ["items", "changes", "positions", "feeds", "refused"] {
        if exists(transaction, names, table).await? {
            return Err(PgFailure::Refused(format!(
                "schema {} has a table {:?} that is not of this program: use other tables with ?table=NAME, or another \
                 schema with ?schema=NAME",
                names.schema,
                names.plain(table)
            )));
        }
    }
    Ok(())
}

/// Statements that create the tables of version 1.
fn create(names: &TableNames) -> String {
    let TableNames { items, changes, positions, feeds, refused, version, .. } = names;
    let index = |name: &str| quoted(&names.plain(name));
    let (by_modified, by_item, by_time) =
        (index("items_modified"), index("changes_item"), index("changes_recorded"));
    let (position, history) = (quoted(&names.plain("items_pkey")), quoted(&names.plain("changes_pkey")));
    format!(
        "CREATE TABLE {version} (version bigint NOT NULL, created timestamptz NOT NULL DEFAULT now());
         INSERT INTO {version} (version) VALUES ({VERSION});
         CREATE TABLE {items} (
             feed text NOT NULL, id text NOT NULL,
             title text, url text, summary text, published timestamptz, updated timestamptz,
             authors jsonb NOT NULL, tags jsonb NOT NULL,
             content_type text, content text, content_bytes bytea, extra jsonb NOT NULL,
             modified timestamptz, position text NOT NULL,
             CONSTRAINT {position} PRIMARY KEY (feed, id));
         CREATE INDEX {by_modified} ON {items} (feed, modified);
         CREATE TABLE {changes} (
             n bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT {history} PRIMARY KEY,
             feed text NOT NULL, op text NOT NULL, id text, position text, modified timestamptz,
             recorded timestamptz NOT NULL DEFAULT now(), change json NOT NULL);
         CREATE INDEX {by_item} ON {changes} (feed, id, n);
         CREATE INDEX {by_time} ON {changes} USING brin (recorded);
         CREATE TABLE {positions} (
             source text PRIMARY KEY, checkpoint bytea, commits bigint NOT NULL DEFAULT 0,
             unit_start bigint, updated timestamptz NOT NULL DEFAULT now());
         CREATE TABLE {feeds} (feed text PRIMARY KEY, source text NOT NULL);
         CREATE TABLE {refused} (
             n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, recorded timestamptz NOT NULL DEFAULT now(),
             source text NOT NULL, feed text NOT NULL, id text NOT NULL, position text, reason text NOT NULL,
             change text NOT NULL);
         COMMENT ON TABLE {items} IS 'towpath: one row per live item';
         COMMENT ON TABLE {changes} IS 'towpath: every change, append only';
         COMMENT ON TABLE {positions} IS 'towpath: position in each source, written with its changes';"
    )
}

/// Statements for options that may be switched on later.
fn options(names: &TableNames) -> String {
    if !names.options.search {
        return String::new();
    }
    let (items, index) = (&names.items, quoted(&names.plain("items_search")));
    // A tsvector has a limit of 1 MB: the beginning of a long text is what people search for.
    format!(
        "ALTER TABLE {items} ADD COLUMN IF NOT EXISTS search tsvector GENERATED ALWAYS AS (
             setweight(to_tsvector('simple', left(coalesce(title, ''), 10000)), 'A')
             || setweight(to_tsvector('simple', left(coalesce(summary, ''), 50000)), 'B')
             || to_tsvector('simple', left(coalesce(content, ''), 100000))) STORED;
         CREATE INDEX IF NOT EXISTS {index} ON {items} USING gin (search);"
    )
}

/// Removes changes that are older than the configured age.
pub(super) async fn forget_old(
    client: &impl GenericClient,
    names: &TableNames,
    age: std::time::Duration,
) -> Result<(), PgFailure> {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let sql =
        format!("DELETE FROM {} WHERE recorded < now() - make_interval(secs => $1::bigint)", names.changes);
    client.execute_typed(&sql, &[(&seconds, Type::INT8)]).await.map(drop).map_err(|e| PgFailure::of(&e))
}
