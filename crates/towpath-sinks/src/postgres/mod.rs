//! PostgreSQL: current items and the history of changes in tables, with the position in the same transaction.
//!
//! Every change takes effect exactly once, whatever is killed when: follower, database, or the connection between them.
//! A batch whose commit got no answer is recognised by the number of commits that its source's row has.

mod address;
mod connect;
mod copy;
mod destination;
mod failure;
mod plan;
mod schema;
mod write;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;
use towpath_client::sink::{RefusedItem, Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;

use self::connect::{PgConnection, connect};
pub use self::destination::PostgresDestination;
use self::failure::PgFailure;
use self::plan::BatchPlan;
use self::schema::TableNames;
use self::write::StoredPosition;
use crate::tables::{KeepChanges, Repeats, position};

/// Timeout of a TCP connection to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which old changes are removed.
const FORGET_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of refused items that are looked for in one batch.
// Each costs some transactions; those that are left are found in the next round.
const MAX_REFUSED: usize = 50;

/// Sink that writes to a PostgreSQL database.
pub struct PostgresSink {
    to: PostgresDestination,
    session: Option<Session>,
    /// Positions that this sink has read or written, by source.
    positions: HashMap<String, KnownPosition>,
    /// True once the server has accepted the user: later refusals may pass, such as while a password is changed.
    was_connected: bool,
    forgotten: Option<Instant>,
}

struct Session {
    connection: PgConnection,
    names: TableNames,
    /// Temporary table for many items; `None` until the first large batch.
    has_staging: Option<bool>,
}

impl Session {
    /// Creates the temporary table for a large batch. Returns true if there is one.
    async fn stage(&mut self, batch: &SinkBatch) -> bool {
        if batch.events.len() < copy::COPY_ROWS {
            return false;
        }
        if self.has_staging.is_none() {
            // Outside of the batch's transaction, which a refusal would end.
            self.has_staging = Some(copy::create_staging(&self.connection.client).await);
        }
        self.has_staging == Some(true)
    }
}

/// Position of a source, and what comes again of its open unit.
#[derive(Debug, Clone, Default)]
struct KnownPosition {
    stored: StoredPosition,
    /// Rows of the open unit that an earlier run wrote.
    repeats: Repeats,
    /// Feeds that the tables have for the source.
    feeds: BTreeSet<String>,
}

impl fmt::Debug for PostgresSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresSink({})", self.to)
    }
}

impl PostgresSink {
    /// Creates the sink of a database. It connects when it is opened.
    pub fn new(to: PostgresDestination) -> Self {
        Self { to, session: None, positions: HashMap::new(), was_connected: false, forgotten: None }
    }

    /// Returns the open session, or opens one.
    async fn session(&mut self) -> Result<&mut Session, PgFailure> {
        if self.session.as_ref().is_some_and(|session| session.connection.client.is_closed()) {
            self.session = None;
        }
        if self.session.is_none() {
            let mut connection = connect(&self.to.address).await?;
            let names = schema::prepare(&mut connection.client, &self.to).await?;
            self.session = Some(Session { connection, names, has_staging: None });
            self.was_connected = true;
        }
        self.session.as_mut().ok_or_else(|| PgFailure::Unavailable("there is no connection".into()))
    }

    /// Makes the sink's error, and drops the connection: the next attempt opens a new one.
    fn failed(&mut self, what: &str, failure: &PgFailure) -> SinkError {
        self.session = None;
        let message = format!("cannot {what} {}: {failure}", self.to);
        match failure {
            PgFailure::Unavailable(_) => SinkError::unavailable(message),
            // The password of a running follow may be on its way to being changed on both sides.
            PgFailure::Refused(_) if self.was_connected && message.contains("SQLSTATE 28") => {
                SinkError::unavailable(message)
            }
            PgFailure::Refused(_) | PgFailure::Data(_) => SinkError::refused(message),
        }
    }

    async fn read_position(&mut self, source: &str) -> Result<KnownPosition, PgFailure> {
        let Session { connection, names, .. } = self.session().await?;
        let transaction = connection.client.transaction().await.map_err(|e| PgFailure::of(&e))?;
        let stored = write::lock_position(&transaction, names, source).await?;
        let repeats = match stored.unit_start {
            Some(start) => write::load_repeats(&transaction, names, source, start).await?,
            None => Repeats::default(),
        };
        transaction.commit().await.map_err(|e| PgFailure::of(&e))?;
        Ok(KnownPosition { stored, repeats, feeds: BTreeSet::new() })
    }

    /// Writes a batch in one transaction.
    async fn write(&mut self, batch: &SinkBatch) -> Result<(), WriteFailure> {
        let known = self.positions.get(&*batch.source).cloned().unwrap_or_default();
        let history = self.to.tables.changes;
        let written = commit_batch(self.session().await?, batch, known, history).await?;
        self.positions.insert(batch.source.to_string(), written);
        Ok(())
    }

    /// Finds the items that the database refuses, by trying parts of the batch and undoing them.
    async fn find_refused(&mut self, batch: &SinkBatch) -> Result<Vec<RefusedItem>, PgFailure> {
        let known = self.positions.get(&*batch.source).cloned().unwrap_or_default();
        let history = self.to.tables.changes;
        let Session { connection, names, .. } = self.session().await?;
        let mut refused = Vec::new();
        let whole = 0..batch.events.len();
        let mut parts = Vec::from([whole]);
        while let Some(part) = parts.pop() {
            let transaction = connection.client.transaction().await.map_err(|e| PgFailure::of(&e))?;
            let events = part.clone().zip(&batch.events[part.clone()]);
            // Each part is undone, so each begins with the same knowledge.
            let mut known = known.clone();
            let written =
                write_events(&transaction, names, &batch.source, events, &mut known, history, false).await;
            // Always undone: only the whole batch counts.
            transaction.rollback().await.map_err(|e| PgFailure::of(&e))?;
            match written {
                Ok(_) => {}
                Err(WriteFailure::Items(items)) => refused.extend(items),
                Err(WriteFailure::Database(PgFailure::Data(message))) if part.len() == 1 => {
                    refused.push(RefusedItem { index: part.start, message });
                }
                Err(WriteFailure::Database(PgFailure::Data(_))) => {
                    // Halves: a bad item among n is found in about 2 log n attempts. The error names no row
                    // that could be looked up.
                    let middle = part.start + part.len() / 2;
                    parts.extend([part.start..middle, middle..part.end]);
                }
                Err(WriteFailure::Database(failure)) => return Err(failure),
            }
            if refused.len() >= MAX_REFUSED {
                break;
            }
        }
        refused.sort_unstable_by_key(|item| item.index);
        Ok(refused)
    }

    async fn forget_old(&mut self) -> Result<(), PgFailure> {
        let KeepChanges::For(age) = self.to.tables.changes else { return Ok(()) };
        if self.forgotten.is_some_and(|at| at.elapsed() < FORGET_INTERVAL) {
            return Ok(());
        }
        let Session { connection, names, .. } = self.session().await?;
        schema::forget_old(&connection.client, names, age).await?;
        self.forgotten = Some(Instant::now());
        Ok(())
    }
}

/// Returns true if a stored position is the one after a batch.
fn is_after(stored: &StoredPosition, batch: &SinkBatch) -> bool {
    match &batch.checkpoint {
        Some(checkpoint) => stored.checkpoint.as_deref() == Some(checkpoint),
        None => stored.unit_start.is_some(),
    }
}

/// Failure of writing a batch.
enum WriteFailure {
    Items(Vec<RefusedItem>),
    Database(PgFailure),
}

impl From<PgFailure> for WriteFailure {
    fn from(failure: PgFailure) -> Self {
        Self::Database(failure)
    }
}

/// Writes a batch, its history and its position. Returns what is known of the source then.
async fn commit_batch(
    session: &mut Session,
    batch: &SinkBatch,
    mut known: KnownPosition,
    history: KeepChanges,
) -> Result<KnownPosition, WriteFailure> {
    let can_stage = session.stage(batch).await;
    let Session { connection, names, .. } = session;
    let transaction = connection.client.transaction().await.map_err(|e| PgFailure::of(&e))?;
    let stored = write::lock_position(&transaction, names, &batch.source).await?;
    if stored.commits == known.stored.commits + 1 && is_after(&stored, batch) {
        // The last attempt was kept, though its answer did not come.
        plan::take_all(&mut known.repeats, &batch.events);
        return Ok(KnownPosition { stored, ..known }.after(batch));
    }
    if stored != known.stored {
        return Err(WriteFailure::Database(PgFailure::Refused(format!(
            "another process copies {} into the same tables: stop one of them",
            batch.source
        ))));
    }
    let unit_start = match (&batch.checkpoint, known.stored.unit_start) {
        (Some(_), _) => None,
        (None, Some(start)) => Some(start),
        (None, None) => Some(write::last_change(&transaction, names).await?),
    };
    let events = batch.events.iter().enumerate();
    write_events(&transaction, names, &batch.source, events, &mut known, history, can_stage).await?;
    let checkpoint = batch.checkpoint.as_ref().map(|checkpoint| checkpoint.to_vec());
    let position = StoredPosition {
        checkpoint: checkpoint.or_else(|| known.stored.checkpoint.clone()),
        commits: known.stored.commits + 1,
        unit_start,
    };
    // In the transaction of the changes: that makes the delivery exactly once.
    write::save_position(&transaction, names, &batch.source, &position).await?;
    transaction.commit().await.map_err(|e| PgFailure::of(&e))?;
    Ok(KnownPosition { stored: position, ..known }.after(batch))
}

impl KnownPosition {
    /// A unit that has its checkpoint does not come again.
    fn after(mut self, batch: &SinkBatch) -> Self {
        if batch.checkpoint.is_some() {
            self.repeats = Repeats::default();
        }
        self
    }
}

/// Writes events, without the position. Takes what it writes out of the known repeats, and adds new feeds.
async fn write_events<'a>(
    transaction: &Transaction<'_>,
    names: &TableNames,
    source: &str,
    events: impl Iterator<Item = (usize, &'a SinkEvent)> + Clone,
    known: &mut KnownPosition,
    history: KeepChanges,
    can_stage: bool,
) -> Result<(), WriteFailure> {
    let patched = plan::patched(events.clone().map(|(_, event)| event));
    let items = write::load_items(transaction, names, &patched).await?;
    let resets = plan::reset_feeds(events.clone().map(|(_, event)| event));
    let named =
        if resets.is_empty() { resets } else { write::with_items(transaction, names, &resets).await? };
    let mut plan = BatchPlan::new(events, items, &named, history).map_err(WriteFailure::Items)?;
    plan.changes.retain(|change| !known.repeats.take(&change.line));
    let feeds: Vec<String> = plan.feeds.difference(&known.feeds).cloned().collect();
    if !feeds.is_empty() {
        write::claim_feeds(transaction, names, source, &feeds).await?;
    }
    write::write_plan(transaction, names, source, &plan, can_stage).await?;
    known.feeds.extend(feeds);
    Ok(())
}

#[async_trait]
impl Sink for PostgresSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        if source.contains('\0') {
            return Err(SinkError::refused("the name of the source has a NUL character"));
        }
        let opened = self.read_position(source).await;
        let known = opened.map_err(|failure| self.failed("open", &failure))?;
        let checkpoint = known.stored.checkpoint.clone();
        self.positions.insert(source.to_owned(), known);
        Ok(checkpoint)
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        match self.write(batch).await {
            Ok(()) => {}
            Err(WriteFailure::Items(items)) => return Err(SinkError::Items(items)),
            Err(WriteFailure::Database(PgFailure::Data(reason))) => {
                let refused =
                    self.find_refused(batch).await.map_err(|failure| self.failed("write to", &failure))?;
                if refused.is_empty() {
                    return Err(self.failed("write to", &PgFailure::Refused(reason)));
                }
                return Err(SinkError::Items(refused));
            }
            Err(WriteFailure::Database(failure)) => return Err(self.failed("write to", &failure)),
        }
        // After the batch: a slow removal must not hold it up, and a failed one is tried again.
        if let Err(failure) = self.forget_old().await {
            tracing::warn!(to = %self.to, error = %failure, "cannot remove old changes");
            self.forgotten = Some(Instant::now());
        }
        Ok(())
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        let kept = self.keep_refused(source, change, reason).await;
        kept.map(|()| true).map_err(|failure| self.failed("keep a refused item in", &failure))
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.session = None;
        Ok(())
    }
}

impl PostgresSink {
    async fn keep_refused(&mut self, source: &str, change: &Followed, reason: &str) -> Result<(), PgFailure> {
        let Session { connection, names, .. } = self.session().await?;
        let sql = format!(
            "INSERT INTO {} (source, feed, id, position, reason, change) VALUES ($1, $2, $3, $4, $5, $6)",
            names.refused
        );
        // What it is refused for may be a NUL here: the line, which escapes it, has the exact text.
        let plain = |text: &str| text.replace('\0', "\u{fffd}");
        let line = serde_json::to_string(&change.line()).unwrap_or_default();
        let (feed, id, at) = (plain(&change.feed), plain(&change.item.id), plain(&position(change)));
        let (source, reason) = (plain(source), plain(reason));
        let values = [&source, &feed, &id, &at, &reason, &line];
        let parameters: Vec<_> = values.iter().map(|value| (*value as _, Type::TEXT)).collect();
        connection.client.execute_typed(&sql, &parameters).await.map(drop).map_err(|e| PgFailure::of(&e))
    }
}
