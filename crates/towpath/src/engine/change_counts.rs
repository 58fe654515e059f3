//! Numbers of new, changed and removed items by hour, kept in the store.
//!
//! A log of a million changes takes seconds to read, so no page counts it. One node counts, beside other work and slowly:
//! a row for each feed and day, and a row with the position up to which the feed is counted. Both are written together.
//! What came after that position is for the reader of the rows to count.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use towpath_proto::change::{Change, Seq};
use towpath_proto::{FeedId, Op};
use towpath_store::{FeedSummary, Precondition, ReadLimit, Store, Table, TableWrite};

use super::finding::Findings;
use super::roles::{Lease, conditions};
use super::table_keys::{from_sortable, sortable};
use super::table_scan::{TableScan, remove_all};
use super::work::share_thread;
use super::{Engine, Feed, json_record};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Limit of a single read of the log.
pub(crate) const PAGE: ReadLimit = ReadLimit { items: 1000, bytes: 8 << 20 };
/// Most changes whose counts are written together.
const BATCH: usize = 20_000;
/// Time between two rounds, and the first round.
const ROUND: Duration = Duration::from_secs(15);
const FIRST: Duration = Duration::from_secs(2);
/// Changes of a feed from which it is counted in the next round. Every [`PATIENCE`] rounds all feeds are.
const MANY: Seq = 500;
const PATIENCE: u32 = 40;
/// Time that the counting rests, in times of the time that a read took.
const REST: u32 = 4;
/// Attempts to read rows that belong together.
const TRIES: usize = 5;

/// Changes of a period by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChangeCounts {
    pub(crate) new: u32,
    pub(crate) changed: u32,
    pub(crate) removed: u32,
}

impl ChangeCounts {
    /// Returns the number of all changes.
    pub(crate) fn total(self) -> u32 {
        self.new.saturating_add(self.changed).saturating_add(self.removed)
    }

    /// Counts a change.
    pub(crate) fn add(&mut self, change: &Change) {
        let count = match (change.op, change.previous) {
            (Op::Delete, _) => &mut self.removed,
            (_, None) => &mut self.new,
            (_, Some(_)) => &mut self.changed,
        };
        *count = count.saturating_add(1);
    }

    /// Adds the counts of another period.
    pub(crate) fn add_all(&mut self, other: Self) {
        self.new = self.new.saturating_add(other.new);
        self.changed = self.changed.saturating_add(other.changed);
        self.removed = self.removed.saturating_add(other.removed);
    }
}

/// Counts of a feed by hour since 1970.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HourlyCounts {
    /// Position up to which the log is counted.
    pub(crate) upto: Seq,
    pub(crate) hours: BTreeMap<i64, ChangeCounts>,
}

impl HourlyCounts {
    /// Counts the changes after [`Self::upto`].
    pub(crate) fn add(&mut self, changes: &[Change]) {
        for change in changes {
            self.upto = change.seq;
            self.hours.entry(hour_of(change.modified)).or_default().add(change);
        }
    }

    /// Returns the counts of a period of whole hours.
    pub(crate) fn between(&self, from: Timestamp, to: Timestamp) -> ChangeCounts {
        let mut sum = ChangeCounts::default();
        self.hours.range(hour_of(from)..hour_of(to)).for_each(|(_, counts)| sum.add_all(*counts));
        sum
    }
}

/// Row of a day: new, changed and removed items by hour.
#[derive(Debug, Default, Serialize, Deserialize)]
struct DayRow(BTreeMap<u8, [u32; 3]>);

/// Row of the position up to which a feed is counted.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CountedRow {
    upto: Seq,
}

/// Returns the number of an hour since 1970.
pub(crate) fn hour_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(3600)
}

fn counted_key(feed: &FeedId) -> Vec<u8> {
    format!("counted/{feed}").into_bytes()
}

fn days_prefix(feed: &FeedId) -> Vec<u8> {
    format!("counts/{feed}/").into_bytes()
}

/// Returns the key of a day's row: days sort by time, also those before 1970.
fn day_key(feed: &FeedId, day: i64) -> Vec<u8> {
    [days_prefix(feed), sortable(day).to_vec()].concat()
}

fn day_of_key(key: &[u8]) -> Option<i64> {
    Some(from_sortable(*key.last_chunk::<8>()?))
}

/// Reads the counts that are kept of a period, and the position up to which they count.
///
/// # Errors
///
/// [`StoreError`] if the counts cannot be read, or a row of them is damaged.
pub(crate) async fn read(
    engine: &Engine,
    feed: &Feed,
    from: Timestamp,
    to: Timestamp,
) -> Result<HourlyCounts, StoreError> {
    let store = engine.store.as_ref();
    let (key, prefix) = (counted_key(feed.log()), days_prefix(feed.log()));
    let (first, last) = (hour_of(from).div_euclid(24), hour_of(to).div_euclid(24));
    let mut counts = HourlyCounts::default();
    for _ in 0..TRIES {
        let before: CountedRow = json_record::load(store, &key).await?.unwrap_or_default();
        counts = HourlyCounts { upto: before.upto, hours: BTreeMap::new() };
        // A scan begins after its key, so this is the day before the first.
        let mut after = day_key(feed.log(), first.saturating_sub(1));
        'days: loop {
            let rows = store.scan(Table::Chains, &prefix, Some(&after), 1000).await?;
            let Some((end, _)) = rows.last() else { break };
            after = end.to_vec();
            for (key, value) in &rows {
                let Some(day) = day_of_key(key).filter(|day| *day <= last) else { break 'days };
                let DayRow(hours) = json_record::parse(key, value)?;
                for (hour, [new, changed, removed]) in hours {
                    let counted = ChangeCounts { new, changed, removed };
                    counts.hours.insert(day * 24 + i64::from(hour), counted);
                }
            }
        }
        // Written meanwhile, the rows would be of another position.
        let now: CountedRow = json_record::load(store, &key).await?.unwrap_or_default();
        if now.upto == before.upto {
            return Ok(counts);
        }
    }
    // Counted faster than they are read, five times: slightly wrong bars are better than none.
    Ok(counts)
}

/// Checks the counts of a feed against its log. A log that let go of old versions gives no counts of before.
///
/// # Errors
///
/// [`StoreError`] if the store cannot be read. Counts that are wrong are findings, not errors.
pub(crate) async fn verify(
    store: &dyn Store,
    feed: &FeedSummary,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let (id, head) = (&feed.feed, feed.head);
    let stored = store.get(Table::Chains, &counted_key(id)).await?;
    // After retention the first changes are gone, and with them what the counts could be compared with.
    let Some(stored) = stored.filter(|_| head.horizon == 0) else { return Ok(()) };
    let row = json_record::parse::<CountedRow>(&counted_key(id), &stored);
    let Some(upto) = row.ok().map(|row| row.upto).filter(|upto| *upto <= head.seq) else {
        findings.add(Some(id.as_str()), "counts of changes", "their position is not one of the log");
        return Ok(());
    };
    let mut due = HourlyCounts::default();
    while due.upto < upto {
        let changes = store.read(id, due.upto, PAGE).await?;
        let end = changes.iter().take_while(|change| change.seq <= upto).count();
        due.add(&changes[..end]);
        if end == 0 || end < changes.len() {
            break;
        }
    }
    let mut hours = BTreeMap::new();
    let prefix = days_prefix(id);
    let mut scan = TableScan::new(store, Table::Chains, &prefix);
    while let Some(rows) = scan.next().await? {
        for (key, value) in &rows {
            let (Some(day), Ok(DayRow(counted))) = (day_of_key(key), json_record::parse(key, value)) else {
                findings.add(Some(id.as_str()), "counts of changes", "a day of them cannot be read");
                continue;
            };
            for (hour, [new, changed, removed]) in counted {
                hours.insert(day * 24 + i64::from(hour), ChangeCounts { new, changed, removed });
            }
        }
    }
    findings.expect(hours == due.hours, id, "counts of changes", "they are not those of the log");
    Ok(())
}

/// Removes the counts of a feed, so that it is counted from its begin.
pub(crate) async fn forget(store: &dyn Store, feed: &FeedId) -> Result<(), StoreError> {
    store.write(vec![json_record::remove(counted_key(feed))], Vec::new()).await?;
    remove_all(store, Table::Chains, &days_prefix(feed)).await
}

/// Returns the position up to which a feed's changes are counted.
pub(crate) async fn counted_up_to(store: &dyn Store, feed: &FeedId) -> Result<Seq, StoreError> {
    let row: Option<CountedRow> = json_record::load(store, &counted_key(feed)).await?;
    Ok(row.unwrap_or_default().upto)
}

/// Counts the logs of all feeds, beside other work, until `stop` turns true.
pub(crate) async fn run(engine: &Arc<Engine>, lease: &Lease, stop: Stop) {
    let mut counted: HashMap<FeedId, Seq> = HashMap::new();
    let (mut round, mut wait) = (0_u32, FIRST);
    loop {
        tokio::select! {
            () = sleep(wait) => {}
            () = stopped(&stop) => return,
        }
        for feed in engine.feeds() {
            let upto = counted.get(feed.id()).copied();
            let behind = feed.head.load(Ordering::Acquire).saturating_sub(upto.unwrap_or(0));
            // Each write costs a sync, so feeds with few changes wait for the round that takes them all.
            let is_due = behind >= MANY || (behind > 0 && round % PATIENCE == 0);
            if feed.is_filter() || !is_due {
                continue;
            }
            // A million feeds to compare would otherwise hold the thread.
            share_thread().await;
            match count(engine, &feed, lease, &stop).await {
                Ok(upto) => drop(counted.insert(feed.id().clone(), upto)),
                // Tried again in the next round. The pages show what is counted, and say what is not.
                Err(e) => tracing::debug!(feed = %feed.id(), error = %e, "cannot count the changes"),
            }
            if *stop.borrow() {
                return;
            }
        }
        round = round.wrapping_add(1);
        wait = ROUND;
    }
}

/// Counts a feed's log to its head, and stores the counts; returns the position that it reached.
pub(crate) async fn count(
    engine: &Engine,
    feed: &Feed,
    lease: &Lease,
    stop: &Stop,
) -> Result<Seq, StoreError> {
    let store = engine.store.as_ref();
    let key = counted_key(feed.id());
    let mut stored = store.get(Table::Chains, &key).await?;
    let row = stored.as_ref().map(|value| json_record::parse::<CountedRow>(&key, value)).transpose()?;
    let mut upto = row.unwrap_or_default().upto;
    loop {
        // In batches: after a crash or a lost lease only the last one is counted again.
        let (mut counts, mut number) = (HourlyCounts { upto, ..HourlyCounts::default() }, 0);
        while number < BATCH && !*stop.borrow() {
            let begun = Instant::now();
            let changes = store.read(feed.id(), counts.upto, PAGE).await?;
            if changes.is_empty() {
                break;
            }
            number += changes.len();
            counts.add(&changes);
            // Requests and other tasks have the rest of the time.
            sleep(begun.elapsed() * REST).await;
        }
        if number == 0 {
            return Ok(upto);
        }
        upto = counts.upto;
        let mut writes = day_rows(engine, feed, &counts).await?;
        let position = json_record::put(key.clone(), &CountedRow { upto });
        // Another node may have counted the same changes.
        let mut conditions = conditions(lease);
        conditions.push(Precondition { table: Table::Chains, key: key.clone(), value: stored });
        stored = position.value.clone();
        writes.push(position);
        store.write(writes, conditions).await?;
    }
}

/// Counts a feed's log to its head, for tests.
#[cfg(test)]
pub(crate) async fn count_now(engine: &Engine, feed: &Feed) {
    let (_keep, stop) = tokio::sync::watch::channel(false);
    assert!(count(engine, feed, &Lease::alone("upkeep"), &stop).await.is_ok());
}

/// Makes the writes of the days' rows, with what they had before.
async fn day_rows(
    engine: &Engine,
    feed: &Feed,
    counts: &HourlyCounts,
) -> Result<Vec<TableWrite>, StoreError> {
    let mut rows: BTreeMap<i64, DayRow> = BTreeMap::new();
    for (hour, counted) in &counts.hours {
        let day = hour.div_euclid(24);
        if let Entry::Vacant(entry) = rows.entry(day) {
            let row = json_record::load(engine.store.as_ref(), &day_key(feed.id(), day)).await?;
            entry.insert(row.unwrap_or_default());
        }
        // Between 0 and 23.
        let hour = u8::try_from(hour.rem_euclid(24)).unwrap_or(0);
        if let Some(DayRow(hours)) = rows.get_mut(&day) {
            let [new, changed, removed] = hours.entry(hour).or_default();
            *new = new.saturating_add(counted.new);
            *changed = changed.saturating_add(counted.changed);
            *removed = removed.saturating_add(counted.removed);
        }
    }
    Ok(rows.iter().map(|(day, row)| json_record::put(day_key(feed.id(), *day), row)).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::watch;
    use towpath_proto::{Item, NewChange};
    use towpath_store::Expected;
    use towpath_store::memory::MemoryStore;

    use super::*;
    use crate::config::Config;

    #[test]
    fn days_sort_by_time() {
        let feed = FeedId::new("aa").unwrap();
        let keys: Vec<Vec<u8>> = [-3, -1, 0, 20_000].map(|day| day_key(&feed, day)).to_vec();
        assert!(keys.is_sorted());
        assert_eq!(day_of_key(&keys[0]), Some(-3));
    }

    /// A second pass counts what came since, and the rows of a day add up.
    #[tokio::test]
    async fn counts_are_kept_and_go_on() {
        let config = Config::parse("[[feed]]\nid = \"notes\"\n", Path::new("towpath.toml")).unwrap();
        let store = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
        let (engine, _) = Engine::open(config, store).await.unwrap();
        let (feed, lease) = (engine.feed("notes").unwrap(), Lease::alone("upkeep"));
        let (_keep, stop) = watch::channel(false);
        let append = async |change: NewChange| {
            engine.store.append(feed.id(), Expected::Any, vec![change]).await.unwrap();
        };
        append(NewChange::put(Item::new("a"))).await;
        append(NewChange::put(Item::new("b"))).await;
        assert_eq!(count(&engine, &feed, &lease, &stop).await.unwrap(), 2);
        let changed = Item { title: Some("other".into()), ..Item::new("a") };
        append(NewChange::put(changed)).await;
        append(NewChange::delete("b")).await;
        assert_eq!(count(&engine, &feed, &lease, &stop).await.unwrap(), 4);
        let day = jiff::SignedDuration::from_hours(24);
        let (from, to) = (engine.now() - day, engine.now() + day);
        let counts = read(&engine, &feed, from, to).await.unwrap();
        let expected = ChangeCounts { new: 2, changed: 1, removed: 1 };
        assert_eq!((counts.upto, counts.between(from, to)), (4, expected));
        let before = read(&engine, &feed, from - day, from).await.unwrap();
        assert_eq!(before.between(from - day, from), ChangeCounts::default());
    }
}
