//! Random operations, compared with the model in memory.

use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use towpath_proto::change::{NewChange, Op, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_proto::patch::MERGE_PATCH;

use super::{Backend, ManualClock, feed};
use crate::memory::MemoryStore;
use crate::{Expected, ItemOrder, Precondition, ReadLimit, SeqRange, Store, Table, TableWrite};

/// Step of a run.
#[derive(Debug, Clone)]
enum ModelStep {
    Append {
        feed: usize,
        expected: Option<Seq>,
        changes: Vec<NewChange>,
    },
    Write {
        writes: Vec<TableWrite>,
        conditions: Vec<Precondition>,
    },
    Read {
        feed: usize,
        after: Seq,
        items: usize,
        order: ItemOrder,
        range: SeqRange,
        id: String,
        seconds: i64,
    },
    /// Moves the clock, possibly backwards.
    Clock(i64),
    Reopen,
}

const START: &str = "2024-01-01T00:00:00Z";

fn id() -> impl Strategy<Value = String> {
    // Few ids, so that versions, patches and deletions meet.
    prop_oneof![8 => "[a-e]", 1 => "[a-e]{2}", 1 => Just(String::new()), 1 => "\\PC{1,4}"]
}

fn new_change() -> impl Strategy<Value = NewChange> {
    let content = prop_oneof![
        3 => "[a-c]".prop_map(|key| Content::new("application/json", format!(r#"{{"{key}":1}}"#))),
        1 => vec(any::<u8>(), 0..2000).prop_map(|bytes| Content::new("application/octet-stream", bytes)),
    ];
    let item = (id(), option::of("[a-c]"), option::of(content), option::of(0..1000i64));
    let item = item.prop_map(|(id, title, content, published)| Item {
        title,
        content,
        published: published.map(|seconds| Timestamp::from_second(seconds).unwrap()),
        ..Item::new(id)
    });
    let patch = "[a-c]".prop_map(|key| Content::new(MERGE_PATCH, format!(r#"{{"{key}":null,"p":2}}"#)));
    let change = prop_oneof![
        6 => item.prop_map(NewChange::put),
        2 => (id(), patch).prop_map(|(id, patch)| NewChange::patch(id, patch)),
        2 => id().prop_map(NewChange::delete),
    ];
    (change, option::weighted(0.2, -100..100i64), option::weighted(0.1, "[a-z]{0,3}")).prop_map(
        |(change, seconds, entry_id)| {
            let modified =
                seconds.map(|s| START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(s));
            NewChange { modified, entry_id, ..change }
        },
    )
}

fn key() -> impl Strategy<Value = (Table, Vec<u8>)> {
    let table = prop_oneof![Just(Table::Chains), Just(Table::Documents), Just(Table::Leases)];
    (table, vec(prop_oneof![Just(0u8), Just(b'a'), Just(255)], 0..3))
}

fn value() -> impl Strategy<Value = Option<Bytes>> {
    // Few values, so that preconditions often hold.
    option::of(vec(0..3u8, 0..2).prop_map(Bytes::from))
}

fn step() -> impl Strategy<Value = ModelStep> {
    let place = || option::of(0..25u64);
    let order = prop_oneof![Just(ItemOrder::Created), Just(ItemOrder::Modified)];
    let range = (place(), place(), any::<bool>());
    let range = range.prop_map(|(after, before, descending)| SeqRange { after, before, descending });
    let writes = vec((key(), value()), 0..4).prop_map(|writes| {
        writes.into_iter().map(|((table, key), value)| TableWrite { table, key, value }).collect()
    });
    let conditions = vec((key(), value()), 0..2).prop_map(|conditions| {
        conditions.into_iter().map(|((table, key), value)| Precondition { table, key, value }).collect()
    });
    prop_oneof![
        10 => (0..3usize, option::weighted(0.2, 0..20u64), vec(new_change(), 0..6))
            .prop_map(|(feed, expected, changes)| ModelStep::Append { feed, expected, changes }),
        3 => (writes, conditions).prop_map(|(writes, conditions)| ModelStep::Write { writes, conditions }),
        6 => (0..3usize, 0..25u64, 0..10usize, order, range, id(), -100..100i64).prop_map(
            |(feed, after, items, order, range, id, seconds)| ModelStep::Read { feed, after, items, order, range, id, seconds }
        ),
        2 => (-50..100i64).prop_map(ModelStep::Clock),
        1 => Just(ModelStep::Reopen),
    ]
}

/// Run: equal steps on the store under test and on the model.
struct ModelRun<'a> {
    backend: &'a dyn Backend,
    hand: ManualClock,
    store: Arc<dyn Store>,
    model: MemoryStore,
    feeds: [FeedId; 3],
    /// Prefix of this run's keys in the tables.
    prefix: [u8; 4],
}

pub async fn agrees_with_the_model(backend: &dyn Backend) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let run = std::cell::Cell::new(0u32);
    // The runner is synchronous, and the store needs the runtime.
    tokio::task::block_in_place(|| {
        let runtime = tokio::runtime::Handle::current();
        let result = runner.run(&vec(step(), 1..50), |steps| {
            run.set(run.get() + 1);
            runtime.block_on(compare(backend, run.get(), steps));
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

async fn compare(backend: &dyn Backend, run: u32, steps: Vec<ModelStep>) {
    let hand = ManualClock::at(START);
    let mut run = ModelRun {
        backend,
        store: backend.open(hand.clock()).await,
        model: MemoryStore::new(hand.clock()),
        hand,
        // The backend's data stays between runs: each run needs its own feeds and keys.
        feeds: ["a", "b", "c"].map(|name| feed(&format!("run{run}-{name}"))),
        prefix: run.to_be_bytes(),
    };
    for step in steps {
        run.step(step).await;
    }
    run.reopen().await;
    run.compare_everything().await;
    run.store.close().await;
}

impl ModelRun<'_> {
    async fn step(&mut self, step: ModelStep) {
        match step {
            ModelStep::Append { feed, expected, changes } => {
                let expected = expected.map_or(Expected::Any, Expected::Last);
                let real = self.store.append(&self.feeds[feed], expected, changes.clone()).await;
                let model = self.model.append(&self.feeds[feed], expected, changes).await;
                // Texts are compared as well: they name the same feed, index and positions.
                assert_eq!(real.map_err(|e| e.to_string()), model.map_err(|e| e.to_string()));
            }
            ModelStep::Write { writes, conditions } => {
                let (writes, conditions) = (self.own(writes), self.own(conditions));
                let real = self.store.write(writes.clone(), conditions.clone()).await;
                let model = self.model.write(writes, conditions).await;
                assert_eq!(real.map_err(|e| e.to_string()), model.map_err(|e| e.to_string()));
            }
            ModelStep::Read { .. } => self.read(step).await,
            ModelStep::Clock(seconds) => self.hand.advance(seconds),
            ModelStep::Reopen => self.reopen().await,
        }
    }

    /// Prepends the run's prefix to each key.
    fn own<T: Keyed>(&self, mut entries: Vec<T>) -> Vec<T> {
        entries.iter_mut().for_each(|entry| drop(entry.key().splice(..0, self.prefix)));
        entries
    }

    async fn read(&self, step: ModelStep) {
        let ModelStep::Read { feed, after, items, order, range, id, seconds } = step else { return };
        let feed = &self.feeds[feed];
        let time = START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds);
        let both: [&dyn Store; 2] = [&*self.store, &self.model];
        let mut answers = Vec::new();
        for store in both {
            let limit = ReadLimit::items(items);
            answers.push((
                store.read(feed, after, limit).await.unwrap(),
                store.items(feed, order, range, limit).await.unwrap(),
                store.latest(feed, &id).await.unwrap(),
                store.change(feed, after).await.unwrap(),
                store.content_hashes(feed, Some(&[id.clone(), "a".into()])).await.unwrap(),
                store.last_before(feed, time).await.unwrap(),
                store
                    .scan(Table::Chains, &self.prefix, Some(&[&self.prefix[..], b"a"].concat()), items)
                    .await
                    .unwrap(),
            ));
        }
        assert_eq!(answers[0], answers[1]);
    }

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = self.backend.open(self.hand.clock()).await;
    }

    async fn compare_everything(&self) {
        let limit = ReadLimit { items: usize::MAX, bytes: usize::MAX };
        for feed in &self.feeds {
            assert_eq!(self.store.head(feed).await.unwrap(), self.model.head(feed).await.unwrap());
            let log = self.store.read(feed, 0, limit).await.unwrap();
            assert_eq!(log, self.model.read(feed, 0, limit).await.unwrap());
            for (n, change) in log.iter().enumerate() {
                assert_eq!(change.seq, n as Seq + 1);
                assert_eq!(change.hash == Default::default(), change.op == Op::Delete);
            }
            assert_eq!(
                self.store.content_hashes(feed, None).await.unwrap(),
                self.model.content_hashes(feed, None).await.unwrap()
            );
            for (order, descending) in [(ItemOrder::Created, false), (ItemOrder::Modified, true)] {
                let range = SeqRange { descending, ..SeqRange::default() };
                let real = self.store.items(feed, order, range, limit).await.unwrap();
                assert_eq!(real, self.model.items(feed, order, range, limit).await.unwrap());
            }
        }
        for table in [Table::Chains, Table::Documents, Table::Leases] {
            let real = self.store.scan(table, &self.prefix, None, 999).await.unwrap();
            assert_eq!(real, self.model.scan(table, &self.prefix, None, 999).await.unwrap());
        }
    }
}

trait Keyed {
    fn key(&mut self) -> &mut Vec<u8>;
}

impl Keyed for TableWrite {
    fn key(&mut self) -> &mut Vec<u8> {
        &mut self.key
    }
}

impl Keyed for Precondition {
    fn key(&mut self) -> &mut Vec<u8> {
        &mut self.key
    }
}
