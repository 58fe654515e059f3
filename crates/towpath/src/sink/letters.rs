//! Dead letters: items that a destination refused, kept in the store until somebody sends them again or drops them.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_client::sink::{SinkEvent, SinkFailure, SinkOpener};
use towpath_config::DestinationKind;
use towpath_proto::follow::Followed;
use towpath_proto::line::Line;
use towpath_proto::{FeedId, Op};
use towpath_store::{Precondition, Table, WriteError};

use crate::engine::roles::{Lease, conditions};
use crate::engine::sinks::SinkEntry;
use crate::engine::table_scan::TableScan;
use crate::engine::{Engine, json_record};
use crate::store_error::StoreError;

/// Maximum number of letters of a sink. With more, it waits for an operator instead of emptying a feed into them.
const MAX_LETTERS: u64 = 10_000;
/// Maximum size of a sink's letters together, beyond which no more are kept. The last one may exceed it.
// Letters are listed, sent again and dropped many at a time, so this bounds the memory of all that.
const MAX_LETTER_BYTES: u64 = 64 << 20;
/// Letters that are read at a time to be sent again.
const RESENT: usize = 100;

/// An item that a destination refused.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DeadLetter {
    /// Number of the letter, ascending.
    pub(crate) number: u64,
    /// Time of the refusal.
    pub(crate) time: Timestamp,
    /// Reason, in the destination's words.
    pub(crate) reason: String,
    /// Name of the position that covers the change.
    pub(crate) source: String,
    /// The change, as a line of the change format.
    pub(crate) change: Value,
    /// True if an operator asked to send this letter again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_ordered: bool,
}

impl DeadLetter {
    /// Returns the change as it was sent.
    fn followed(&self) -> Option<Followed> {
        let text = |name: &str| self.change[name].as_str().unwrap_or_default().to_owned();
        let (feed, position) = (text("feed"), text("position"));
        let line = serde_json::to_vec(&self.change).ok()?;
        let change = Line::parse(&line).and_then(Line::into_change).ok()?;
        let (op, item, patch, modified) = (change.op, change.item, change.patch, change.modified);
        Some(Followed { feed, op, item, patch, modified, position, entry_id: None })
    }
}

fn prefix(sink: &SinkEntry) -> Vec<u8> {
    sink.key("dead/")
}

fn key(sink: &SinkEntry, number: u64) -> Vec<u8> {
    // Digits of equal number, so that the order of keys is that of the letters.
    sink.key(&format!("dead/{number:020}"))
}

/// Writes of dead letters, numbered on from the last one.
pub(super) struct LetterBox {
    engine: Arc<Engine>,
    sink: Arc<SinkEntry>,
    lease: Lease,
    last: u64,
}

impl LetterBox {
    /// Counts the letters of a sink.
    pub(super) async fn open(
        engine: Arc<Engine>,
        sink: Arc<SinkEntry>,
        lease: Lease,
    ) -> Result<Self, StoreError> {
        let LetterCounts { last, letters, bytes } = count(&engine, &sink).await?;
        sink.update(|record| (record.dead_letters, record.dead_letter_bytes) = (letters, bytes));
        Ok(Self { engine, sink, lease, last })
    }

    /// Returns true if no more may be kept until some are sent again or dropped.
    pub(super) fn is_full(&self) -> bool {
        let record = self.sink.record();
        record.dead_letters >= MAX_LETTERS || record.dead_letter_bytes >= MAX_LETTER_BYTES
    }

    /// Keeps a change aside.
    pub(super) async fn keep(
        &mut self,
        source: &str,
        change: &Followed,
        reason: &str,
    ) -> Result<(), StoreError> {
        let number = self.last + 1;
        let line = serde_json::to_value(change.line()).map_err(|e| StoreError::Encode(e.to_string()))?;
        let (time, reason, source) = (self.engine.now(), reason.to_owned(), source.to_owned());
        let letter = DeadLetter { number, time, reason, source, change: line, is_ordered: false };
        let write = json_record::put(key(&self.sink, number), &letter);
        let bytes = write.value.as_ref().map_or(0, size);
        self.engine.store.write(vec![write], conditions(&self.lease)).await?;
        // Only after the write: a number must not be skipped, nor used twice.
        self.last = number;
        self.sink.update(|record| {
            record.dead_letters += 1;
            record.dead_letter_bytes += bytes;
        });
        Ok(())
    }
}

/// Size of a stored value.
fn size(value: &Bytes) -> u64 {
    value.len() as u64
}

/// Letters of a sink in the store.
#[derive(Debug, Default)]
struct LetterCounts {
    /// Number of the last letter.
    last: u64,
    letters: u64,
    bytes: u64,
}

async fn count(engine: &Engine, sink: &SinkEntry) -> Result<LetterCounts, StoreError> {
    let prefix = prefix(sink);
    let mut scan = TableScan::new(engine.store.as_ref(), Table::Chains, &prefix);
    let mut counts = LetterCounts::default();
    while let Some(page) = scan.next().await? {
        counts.letters += page.len() as u64;
        counts.bytes += page.iter().map(|(_, value)| size(value)).sum::<u64>();
        if let Some((key, _)) = page.last() {
            let digits = key.get(prefix.len()..).and_then(|digits| std::str::from_utf8(digits).ok());
            // Keys are in the order of numbers, so the last of a page is the largest so far.
            counts.last = digits.and_then(|digits| digits.parse().ok()).unwrap_or(counts.last);
        }
    }
    Ok(counts)
}

/// Takes letters that are gone off a sink's counts.
fn uncount(sink: &SinkEntry, letters: u64, bytes: u64) {
    sink.update(|record| {
        // Saturating: the counts are this process's, and another node may have dropped the same letters.
        record.dead_letters = record.dead_letters.saturating_sub(letters);
        record.dead_letter_bytes = record.dead_letter_bytes.saturating_sub(bytes);
    });
}

/// Returns the oldest letters of a sink.
///
/// # Errors
///
/// [`StoreError`] if the letters cannot be read, or one is damaged.
pub(crate) async fn list(
    engine: &Engine,
    sink: &SinkEntry,
    limit: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let rows = engine.store.scan(Table::Chains, &prefix(sink), None, limit).await?;
    rows.iter().map(|(key, value)| json_record::parse(key, value)).collect()
}

/// Returns the oldest letters of a sink after a number.
///
/// # Errors
///
/// [`StoreError`] if the letters cannot be read, or one is damaged.
pub(crate) async fn list_after(
    engine: &Engine,
    sink: &SinkEntry,
    after: u64,
    limit: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let after = key(sink, after);
    let rows = engine.store.scan(Table::Chains, &prefix(sink), Some(&after), limit).await?;
    rows.iter().map(|(key, value)| json_record::parse(key, value)).collect()
}

/// Drops one letter. Returns false if there is no such letter any more.
///
/// # Errors
///
/// [`StoreError`] if the letter cannot be read or removed.
pub(crate) async fn drop_letter(engine: &Engine, sink: &SinkEntry, number: u64) -> Result<bool, StoreError> {
    let key = key(sink, number);
    let Some(value) = engine.store.get(Table::Chains, &key).await? else { return Ok(false) };
    let bytes = size(&value);
    // The sink may have sent it meanwhile, and counted it.
    let condition = Precondition { table: Table::Chains, key: key.clone(), value: Some(value) };
    match engine.store.write(vec![json_record::remove(key)], vec![condition]).await {
        Ok(()) => {}
        Err(WriteError::Precondition { .. }) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    uncount(sink, 1, bytes);
    Ok(true)
}

/// Orders to send one letter again, and wakes the sink. Returns false if there is no such letter any more.
///
/// # Errors
///
/// [`StoreError`] if the letter cannot be read or written.
pub(crate) async fn order_letter(engine: &Engine, sink: &SinkEntry, number: u64) -> Result<bool, StoreError> {
    let key = key(sink, number);
    let Some(value) = engine.store.get(Table::Chains, &key).await? else { return Ok(false) };
    let letter = DeadLetter { is_ordered: true, ..json_record::parse(&key, &value)? };
    // Without the condition, a letter that was sent meanwhile would be back.
    let condition = Precondition { table: Table::Chains, key: key.clone(), value: Some(value) };
    match engine.store.write(vec![json_record::put(key, &letter)], vec![condition]).await {
        Ok(()) => {}
        Err(WriteError::Precondition { .. }) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    sink.wake();
    Ok(true)
}

/// Drops all letters, and returns how many there were.
///
/// # Errors
///
/// [`StoreError`] if the letters cannot be read or removed.
pub(crate) async fn drop_letters(engine: &Engine, sink: &SinkEntry) -> Result<u64, StoreError> {
    let prefix = prefix(sink);
    let mut scan = TableScan::new(engine.store.as_ref(), Table::Chains, &prefix);
    let mut dropped = 0;
    while let Some(page) = scan.next().await? {
        let letters = page.len() as u64;
        let bytes = page.iter().map(|(_, value)| size(value)).sum();
        let removals = page.into_iter().map(|(key, _)| json_record::remove(key.to_vec())).collect();
        // Without conditions: that a letter was sent meanwhile changes nothing of its being dropped.
        engine.store.write(removals, Vec::new()).await?;
        uncount(sink, letters, bytes);
        dropped += letters;
    }
    Ok(dropped)
}

/// Reason why letters were not sent again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResendError {
    #[error(transparent)]
    Sink(#[from] SinkFailure),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sends letters again that the sink has now: all of them, or those that were ordered one by one. One that is refused again
/// is kept as a new letter.
pub(super) async fn resend(
    engine: &Engine,
    sink: &SinkEntry,
    opener: &SinkOpener,
    lease: &Lease,
    all: bool,
) -> Result<(), ResendError> {
    // One that is refused again gets a number after this: else it would be sent for ever.
    let last = count(engine, sink).await?.last;
    let mut after = 0;
    while after < last {
        let letters = list_after(engine, sink, after, RESENT).await?;
        after = letters.last().map_or(last, |letter| letter.number);
        for letter in letters.into_iter().filter(|letter| letter.number <= last && (all || letter.is_ordered))
        {
            resend_letter(engine, sink, opener, lease, &letter).await?;
        }
    }
    Ok(())
}

async fn resend_letter(
    engine: &Engine,
    sink: &SinkEntry,
    opener: &SinkOpener,
    lease: &Lease,
    letter: &DeadLetter,
) -> Result<(), ResendError> {
    let Some(change) = letter.followed() else {
        tracing::error!(sink = %sink.config.name, letter = letter.number, "cannot be sent again: it is damaged");
        return Ok(());
    };
    if !is_superseded(engine, sink, &change).await? {
        let source: Arc<str> = letter.source.as_str().into();
        // With the position that the destination has: the batch must not look like a part of a larger one.
        let kept = opener.open(&source).await?;
        opener.write(&source, vec![SinkEvent::Change(Box::new(change))], kept).await?;
        // Before the letter is removed: a crash in between sends it twice, and loses nothing.
        opener.flush().await?;
    }
    let key = key(sink, letter.number);
    let stored = engine.store.get(Table::Chains, &key).await.map_err(StoreError::from)?;
    let remove = vec![json_record::remove(key)];
    engine.store.write(remove, conditions(lease)).await.map_err(StoreError::from)?;
    uncount(sink, 1, stored.as_ref().map_or(0, size));
    Ok(())
}

/// Returns true if the destination keeps current items, and the item of an own feed has changed since.
///
/// Sent again, the older version would replace the newer one.
async fn is_superseded(engine: &Engine, sink: &SinkEntry, change: &Followed) -> Result<bool, StoreError> {
    // A webhook gets events: each is of its own time, and an old one that comes late is what was asked for.
    let keeps_items = sink.config.kind().is_some_and(DestinationKind::keeps_items);
    let (Ok(feed), Ok(seq)) = (FeedId::new(&change.feed), change.position.parse::<u64>()) else {
        return Ok(false);
    };
    if !keeps_items || sink.config.url.is_some() {
        return Ok(false);
    }
    let latest = engine.store.latest(&feed, &change.item.id).await?;
    Ok(latest.is_some_and(|latest| latest.seq > seq && (latest.op != Op::Delete || change.op != Op::Delete)))
}
