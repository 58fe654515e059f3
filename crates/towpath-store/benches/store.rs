//! Cost of the embedded store over its bare storage engine, and duration of its reads.
//!
//! `cargo bench -p towpath-store`, or with `-- append`, `-- read` or `-- feeds` for a part. Every ratio is the median of
//! rounds in which both sides take turns. `TOWPATH_BENCH_ITEMS` sets the size of the largest feed (1,000,000).

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, ItemOrder, ReadLimit, SeqRange, Store};

const ROUNDS: usize = 7;
const CONTENT: usize = 1000;

#[tokio::main]
async fn main() {
    let part = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("append") {
        appends().await;
    }
    if wanted("read") {
        reads().await;
    }
    if wanted("feeds") {
        feeds().await;
    }
}

/// Item of 1 kB that does not compress.
fn item(n: usize) -> NewChange {
    let mut bytes = vec![0; CONTENT];
    // Seeded by the item, so that both sides write equal bytes.
    fastrand::Rng::with_seed(n as u64).fill(&mut bytes);
    let content = Some(Content::new("application/octet-stream", bytes));
    NewChange::put(Item {
        title: Some(format!("item {n}")),
        content,
        ..Item::new(format!("urn:item:{n:010}"))
    })
}

fn feed(n: usize) -> FeedId {
    FeedId::new(&format!("feed-{n}")).unwrap()
}

/// CPU time of this process in hundredths of a second; zero where the system does not report it.
///
/// On a loaded machine, the ratio of CPU times is more reliable than the ratio of durations.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

fn largest() -> usize {
    let largest = std::env::var("TOWPATH_BENCH_ITEMS").ok().and_then(|items| items.parse().ok());
    largest.unwrap_or(1_000_000)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

// ---- appends ----

/// Workload: number of writers, of batches per writer, and of items per batch.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    writers: usize,
    batches: usize,
    items: usize,
}

const LOADS: [Load; 4] = [
    Load { name: "1 writer, 1 item", writers: 1, batches: 300, items: 1 },
    Load { name: "64 writers, 1 item", writers: 64, batches: 100, items: 1 },
    Load { name: "1 writer, 100 items", writers: 1, batches: 100, items: 100 },
    Load { name: "1 writer, 1000 items", writers: 1, batches: 20, items: 1000 },
];

async fn appends() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path().join("store"), options()).unwrap();
    let store = Arc::new(store);
    let bare = Arc::new(Bare::open(&folder.path().join("bare")));
    println!("appends of 1 kB items, durable; items/s, median of {ROUNDS} rounds");
    println!("{:<24} {:>10} {:>12} {:>7} {:>7}", "", "towpath", "bare engine", "ratio", "CPU");
    let mut next = 0;
    let mut rates = Vec::new();
    for load in LOADS {
        let count = load.writers * load.batches * load.items;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut our_work, mut their_work) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let start = cpu();
            let a = count as f64 / store_run(&store, load, next).await.as_secs_f64();
            our_work += cpu() - start;
            let start = cpu();
            let engine = Arc::clone(&bare);
            let run = tokio::task::spawn_blocking(move || bare_run(&engine, load, next)).await;
            let b = count as f64 / run.unwrap().as_secs_f64();
            their_work += cpu() - start;
            next += count;
            ours.push(a);
            theirs.push(b);
            // Of one round: both sides then see the same load of the machine.
            ratios.push(b / a);
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let work = our_work / their_work;
        println!("{:<24} {ours:>10.0} {theirs:>12.0} {:>7.2} {work:>7.2}", load.name, median(ratios));
        rates.push(ours);
    }
    println!("64 writers over 1 writer: {:.1} times", rates[1] / rates[0]);
}

fn options() -> EmbeddedOptions {
    EmbeddedOptions::default()
}

async fn store_run(store: &Arc<EmbeddedStore>, load: Load, first: usize) -> Duration {
    let work: Vec<Vec<Vec<NewChange>>> = (0..load.writers)
        .map(|writer| {
            let batch = |n| {
                let start = first + (writer * load.batches + n) * load.items;
                (start..start + load.items).map(item).collect()
            };
            (0..load.batches).map(batch).collect()
        })
        .collect();
    let start = Instant::now();
    let tasks: Vec<_> = work
        .into_iter()
        .enumerate()
        .map(|(writer, batches)| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let feed = feed(writer);
                for batch in batches {
                    store.append(&feed, Expected::Any, batch).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    start.elapsed()
}

/// The bare engine with equal keyspaces, keys and values, written in a loop.
struct Bare {
    db: Database,
    small: [Keyspace; 5],
    log: Keyspace,
}

impl Bare {
    fn open(path: &Path) -> Self {
        let options = options();
        let db = Database::builder(path)
            .cache_size(options.cache)
            .max_journaling_size(options.journal)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .open()
            .unwrap();
        let small = ["feeds", "ids", "modified", "created", "times"].map(|name| {
            let small = || KeyspaceCreateOptions::default().max_memtable_size(options.memtable / 4);
            db.keyspace(name, small).unwrap()
        });
        let log = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(options.memtable)
                .with_kv_separation(Some(KvSeparationOptions::default().separation_threshold(256)))
        };
        let log = db.keyspace("log", log).unwrap();
        Self { db, small, log }
    }

    /// Writes a group with new items for each of `feeds`.
    fn write(&self, feeds: usize, items: usize, seq: &mut u64, record: &[u8]) {
        let [heads, ids, modified, created, times] = &self.small;
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for feed in 0..feeds as u32 {
            let place = |seq: u64| [&feed.to_be_bytes()[..], &seq.to_be_bytes()].concat();
            for _ in 0..items {
                *seq += 1;
                let id = [&feed.to_be_bytes()[..], format!("urn:item:{seq:010}").as_bytes()].concat();
                batch.insert(&self.log, place(*seq), record);
                batch.insert(ids, id, [7; 60]);
                batch.insert(modified, place(*seq), []);
                batch.insert(created, place(*seq), seq.to_be_bytes());
            }
            batch.insert(times, [&place(*seq)[..], &[0; 4]].concat(), seq.to_be_bytes());
            batch.insert(heads, format!("feed-{feed}"), [7; 40]);
        }
        batch.commit().unwrap();
    }
}

/// Writes the items of [`store_run`] in the groups that concurrent writers form: one item of each.
fn bare_run(bare: &Bare, load: Load, first: usize) -> Duration {
    let mut record = vec![0; CONTENT + 175];
    fastrand::Rng::with_seed(first as u64).fill(&mut record);
    let mut seq = first as u64;
    let start = Instant::now();
    for _ in 0..load.batches {
        bare.write(load.writers, load.items, &mut seq, &record);
    }
    start.elapsed()
}

// ---- reads ----

async fn reads() {
    let largest = largest();
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(parking_lot::Mutex::new(Timestamp::UNIX_EPOCH));
    let hand = Arc::clone(&clock);
    let options = EmbeddedOptions { clock: Arc::new(move || *hand.lock()), ..options() };
    let store = EmbeddedStore::open(folder.path(), options).unwrap();
    println!("\nreads of 1 kB items; microseconds, median of single calls");
    println!(
        "{:>10} {:>9} {:>9} {:>12} {:>14} {:>14} {:>10} {:>10}",
        "items", "load/s", "by id", "by place", "50 created", "50 modified", "50 of log", "by time"
    );
    for size in [largest / 100, largest / 10, largest] {
        let feed = feed(size);
        let start = Instant::now();
        for first in (0..size).step_by(500) {
            *clock.lock() += SignedDuration::from_secs(1);
            let batch = (first..(first + 500).min(size)).map(item).collect();
            store.append(&feed, Expected::Any, batch).await.unwrap();
        }
        let rate = size as f64 / start.elapsed().as_secs_f64();
        let row = read_row(&store, &feed, size).await;
        let [id, place, created, modified, log, time] = row;
        println!(
            "{size:>10} {rate:>9.0} {id:>9.1} {place:>12.1} {created:>14.1} {modified:>14.1} {log:>10.1} {time:>10.1}"
        );
    }
    let start = Instant::now();
    let known = store.content_hashes(&feed(largest), None).await.unwrap().len();
    println!("hashes of all {known} ids: {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let found = store.verify().await.unwrap();
    println!(
        "verify {} changes: {:.1} s, {} problems",
        found.changes,
        start.elapsed().as_secs_f64(),
        found.problem_count
    );
    store.close().await;
    let start = Instant::now();
    let store = EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
    println!("opening again: {:.2} s", start.elapsed().as_secs_f64());
    store.close().await;
}

async fn read_row(store: &EmbeddedStore, feed: &FeedId, size: usize) -> [f64; 6] {
    let head = store.head(feed).await.unwrap();
    let last = head.modified.as_second();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut times: [Vec<f64>; 6] = Default::default();
    let limit = ReadLimit::items(50);
    for _ in 0..2000 {
        let seq = rng.u64(1..=head.seq);
        let id = format!("urn:item:{:010}", rng.usize(..size));
        let range = SeqRange { after: Some(seq - 1), descending: rng.bool(), ..SeqRange::default() };
        let at = Timestamp::from_second(rng.i64(0..=last)).unwrap();
        let mut clock = Instant::now();
        let mut lap = |which: usize| {
            times[which].push(clock.elapsed().as_secs_f64() * 1e6);
            clock = Instant::now();
        };
        assert!(store.latest(feed, &id).await.unwrap().is_some());
        lap(0);
        assert!(store.change(feed, seq).await.unwrap().is_some());
        lap(1);
        assert!(!store.items(feed, ItemOrder::Created, range, limit).await.unwrap().is_empty());
        lap(2);
        assert!(!store.items(feed, ItemOrder::Modified, range, limit).await.unwrap().is_empty());
        lap(3);
        assert!(!store.read(feed, seq - 1, limit).await.unwrap().is_empty());
        lap(4);
        store.last_before(feed, at).await.unwrap();
        lap(5);
    }
    times.map(median)
}

// ---- many feeds ----

/// Measures many feeds with one small item each: a fifth of the largest feed's number of items.
async fn feeds() {
    let count = largest() / 5;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path(), options()).unwrap());
    let before = resident();
    let start = Instant::now();
    let writers = 256;
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in (writer..count).step_by(writers) {
                    let item = Item { title: Some(format!("item {n}")), ..Item::new("one") };
                    store.append(&feed(n), Expected::Any, vec![NewChange::put(item)]).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    let grown = (resident() - before) as f64;
    println!("\n{count} feeds of one item: {rate:.0} new feeds/s, {:.0} MB more in memory", grown / 1e6);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut times = Vec::new();
    for _ in 0..20_000 {
        let feed = feed(rng.usize(..count));
        let start = Instant::now();
        assert_eq!(store.head(&feed).await.unwrap().seq, 1);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    println!("head of any of them: {:.1} microseconds", median(times));
    store.close().await;
}

/// Resident memory in bytes; zero where the system does not report it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
