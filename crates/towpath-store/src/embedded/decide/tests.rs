//! Decisions without a storage engine.

use std::cell::RefCell;

use towpath_proto::change::NewChange;
use towpath_proto::item::Content;

use super::*;
use crate::Precondition;

/// Stored state in maps, and a log of the lookups.
#[derive(Default)]
struct StoredMaps {
    feeds: BTreeMap<FeedId, FeedRow>,
    next_feed: FeedNumber,
    ids: HashMap<Slice, IdRow>,
    records: BTreeMap<(FeedNumber, Seq), NewRecord>,
    values: HashMap<(Table, Vec<u8>), Bytes>,
    level: u8,
    fails: bool,
    lookups: RefCell<Vec<String>>,
}

impl StoredMaps {
    /// Applies a decided group, as the storage engine does.
    fn apply(&mut self, decided: DecidedGroup) {
        self.feeds.extend(decided.feeds);
        self.next_feed = decided.next_feed.unwrap_or(self.next_feed);
        self.ids.extend(decided.ids.into_iter().map(|(key, update)| (key, update.after)));
        self.records.extend(decided.records.iter().map(|(position, record)| (position, record.clone())));
        self.level = decided.level.unwrap_or(self.level);
        for (key, value) in decided.values {
            match value {
                Some(value) => drop(self.values.insert(key, value)),
                None => drop(self.values.remove(&key)),
            }
        }
    }

    fn look_up(&self, target: &str) -> Result<(), StorageError> {
        self.lookups.borrow_mut().push(target.to_owned());
        if self.fails { Err(StorageError::Read("on purpose".into())) } else { Ok(()) }
    }
}

impl Lookup for StoredMaps {
    fn feed(&self, feed: &FeedId) -> Result<Option<FeedRow>, StorageError> {
        self.look_up("feed").map(|()| self.feeds.get(feed).copied())
    }
    fn next_feed(&self) -> Result<FeedNumber, StorageError> {
        self.look_up("next").map(|()| self.next_feed)
    }
    fn version(&self, key: &[u8]) -> Result<Option<IdRow>, StorageError> {
        self.look_up("version").map(|()| self.ids.get(key).copied())
    }
    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StorageError> {
        self.look_up("record").map(|()| record::bytes_of(self.records[&(feed, seq)].encode()))
    }
    fn level(&self) -> Result<u8, StorageError> {
        self.look_up("level").map(|()| self.level)
    }
    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.look_up("value").map(|()| self.values.get(&(table, key.to_vec())).cloned())
    }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Grouping makes no difference: a raise sees the ones before it, stored or not.
#[test]
fn a_level_is_raised_one_by_one() {
    for is_grouped in [true, false] {
        let mut stored = StoredMaps { level: 1, ..StoredMaps::default() };
        let raises = [3, 2, 2, 1, 3, 255];
        let mut after = Vec::new();
        let mut pending = raises.as_slice();
        while !pending.is_empty() {
            let (now, later) = pending.split_at(if is_grouped { pending.len() } else { 1 });
            let mut group = CommitGroup::new(&stored, NOW);
            after.extend(now.iter().map(|to| group.raise_level(*to).unwrap()));
            let decided = group.finish();
            stored.apply(decided);
            pending = later;
        }
        assert_eq!((after, stored.level), (vec![1, 2, 2, 2, 3, 3], 3));
    }
}

fn name(text: &str) -> FeedId {
    FeedId::new(text).unwrap()
}

fn put(id: &str, title: &str) -> PreparedChange {
    let content = Some(Content::new("application/json", "{}"));
    let item = Item { title: Some(title.into()), content, ..Item::new(id) };
    PreparedChange::new(NewChange::put(item)).unwrap()
}

fn patch(id: &str) -> PreparedChange {
    let patch = Content::new(patch::MERGE_PATCH, r#"{"p":1}"#);
    PreparedChange::new(NewChange::patch(id, patch)).unwrap()
}

fn delete(id: &str) -> PreparedChange {
    PreparedChange::new(NewChange::delete(id)).unwrap()
}

fn title(decided: &DecidedGroup, feed: FeedNumber, seq: Seq) -> Option<String> {
    record::decode(seq, &record::bytes_of(decided.records.get(feed, seq).unwrap().encode()))
        .unwrap()
        .item
        .title
}

#[test]
fn requests_see_earlier_requests_of_their_group() {
    let stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, NOW);
    group.append(&name("f1"), Expected::Last(0), vec![put("a", "1"), put("b", "1")]).unwrap();
    group.append(&name("f1"), Expected::Last(2), vec![put("a", "2"), patch("a")]).unwrap();
    let last = group.append(&name("f1"), Expected::Last(4), vec![delete("b")]).unwrap();
    assert_eq!((last.first, last.head.items, last.head.live), (5, 2, 1));
    let decided = group.finish();
    assert_eq!(decided.records.iter().count(), 5);
    assert_eq!(decided.ids.len(), 2);
    let a = decided.ids[&keys::id(0, "a")];
    assert_eq!((a.before, a.after.first, a.after.latest), (None, 1, 4));
    assert_eq!(title(&decided, 0, 4).as_deref(), Some("2"), "the patch was applied to what the group has");
    assert_eq!(decided.ids[&keys::id(0, "b")].after.hash, None);
}

#[test]
fn the_index_removes_the_position_before_the_group() {
    let mut stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("b", "1")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    let mut group = CommitGroup::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "2")]).unwrap();
    group.append(&name("f1"), Expected::Any, vec![put("a", "3"), put("a", "4")]).unwrap();
    let update = group.finish().ids[&keys::id(0, "a")];
    // The index has position 1 to remove. The positions between were never in it.
    assert_eq!((update.before, update.after.latest), (Some(1), 5));
}

#[test]
fn a_refused_request_leaves_no_trace() {
    let decide = |with_refused: bool| {
        let stored = StoredMaps::default();
        let mut group = CommitGroup::new(&stored, NOW);
        group.append(&name("f1"), Expected::Any, vec![put("a", "1")]).unwrap();
        if with_refused {
            let refused = [
                group.append(&name("f1"), Expected::Last(7), vec![put("b", "1")]),
                group.append(&name("f1"), Expected::Any, vec![put("a", "2"), put("b", "1"), patch("c")]),
                group.append(&name("new"), Expected::Any, vec![put("a", "1"), patch("c")]),
            ];
            assert!(refused.iter().all(Result::is_err));
            let condition = Precondition { table: Table::Chains, key: vec![1], value: Some(Bytes::new()) };
            let write = TableWrite { table: Table::Chains, key: vec![2], value: Some(Bytes::new()) };
            assert!(group.write(vec![write], vec![condition]).is_err());
        }
        group.append(&name("f2"), Expected::Any, vec![put("a", "1")]).unwrap();
        group.append(&name("f1"), Expected::Last(1), vec![patch("a"), put("b", "2")]).unwrap();
        group.finish()
    };
    assert_eq!(decide(true), decide(false));
}

#[test]
fn new_feeds_of_one_group_get_distinct_numbers() {
    let mut stored = StoredMaps { next_feed: 7, ..StoredMaps::default() };
    let mut group = CommitGroup::new(&stored, NOW);
    for feed in ["f1", "f2", "f1", "f3"] {
        group.append(&name(feed), Expected::Any, vec![put("a", "1")]).unwrap();
    }
    let decided = group.finish();
    let numbers: Vec<_> = decided.feeds.values().map(|feed| feed.number).collect();
    assert_eq!((numbers, decided.next_feed), (vec![7, 8, 9], Some(10)));
    stored.apply(decided);
    let mut group = CommitGroup::new(&stored, NOW);
    group.append(&name("f2"), Expected::Any, vec![put("a", "2")]).unwrap();
    assert_eq!(group.finish().next_feed, None);
}

#[test]
fn a_failed_lookup_refuses_only_its_own_request() {
    let mut stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    stored.fails = true;
    let mut group = CommitGroup::new(&stored, NOW);
    let error = group.append(&name("f1"), Expected::Any, vec![put("a", "2")]).unwrap_err();
    assert!(matches!(error, AppendError::Read(ReadError::Storage { .. })), "{error}");
    // Without preconditions a write looks up nothing, so it cannot fail.
    group
        .write(
            vec![TableWrite { table: Table::Chains, key: vec![], value: None }],
            Vec::<Precondition>::new(),
        )
        .unwrap();
    let decided = group.finish();
    assert!(decided.records.is_empty() && decided.values.len() == 1);
}

#[test]
fn preconditions_see_earlier_writes_of_their_group() {
    let stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, NOW);
    let key = || (Table::Leases, vec![1]);
    let write = |value: &'static str| {
        let (table, key) = key();
        vec![TableWrite { table, key, value: Some(value.into()) }]
    };
    let is = |value: Option<&'static str>| {
        let (table, key) = key();
        vec![Precondition { table, key, value: value.map(Bytes::from) }]
    };
    group.write(write("a"), is(None)).unwrap();
    assert!(group.write(write("b"), is(None)).is_err());
    group.write(write("c"), is(Some("a"))).unwrap();
    assert_eq!(group.finish().values[&key()], Some("c".into()));
}

#[test]
fn a_precondition_on_a_long_value_compares_digests() {
    let mut stored = StoredMaps::default();
    let (table, key, value) = (Table::Chains, vec![1], Bytes::from(vec![7; 1000]));
    let precondition = |value: &[u8]| {
        let value = Some(Bytes::copy_from_slice(value));
        vec![LoggedPrecondition::from(Precondition { table, key: key.clone(), value }).shorten()]
    };
    let is_refused = |stored: &StoredMaps, value: &[u8]| {
        let written = CommitGroup::new(stored, NOW).write(Vec::new(), precondition(value));
        matches!(written, Err(WriteError::Precondition { .. }))
    };
    assert!(is_refused(&stored, &value), "the row does not exist");
    stored.values.insert((table, key.clone()), value.clone());
    assert!(!is_refused(&stored, &value));
    assert!(is_refused(&stored, &value[1..]) && is_refused(&stored, b"short"));
}

#[test]
fn a_bulk_append_to_a_new_feed_looks_up_no_ids() {
    let stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, NOW);
    let changes = (0..100).map(|n| put(&n.to_string(), "1")).collect();
    group.append(&name("f1"), Expected::Any, changes).unwrap();
    // 100 new ids and not one lookup: the feed did not exist.
    assert_eq!(*stored.lookups.borrow(), ["feed", "next"]);
}

/// Decoded changes of all records.
fn changes(stored: &StoredMaps) -> Vec<Change> {
    let records = stored.records.iter();
    records
        .map(|((_, seq), record)| record::decode(*seq, &record::bytes_of(record.encode())).unwrap())
        .collect()
}

#[test]
fn a_replica_decides_the_same() {
    let mut first = StoredMaps::default();
    let mut group = CommitGroup::new(&first, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("b", "1"), patch("a")]).unwrap();
    group.append(&name("f1"), Expected::Any, vec![delete("b"), put("b", "2"), delete("c")]).unwrap();
    let decided = group.finish();
    first.apply(decided);

    let log = changes(&first);
    // Any division of the log into groups must give the same replica.
    for split in 0..=log.len() {
        let mut replica = StoredMaps::default();
        for part in [&log[..split], &log[split..]] {
            // A wrong clock must not matter: replicated changes bring their times.
            let mut group = CommitGroup::new(&replica, Timestamp::MAX);
            group.replicate(&name("f1"), part).unwrap();
            let decided = group.finish();
            replica.apply(decided);
        }
        // All but the time of the append, which each store takes from its own clock.
        let heads =
            |stored: &StoredMaps| stored.feeds.values().map(|f| (f.number, f.head)).collect::<Vec<_>>();
        assert_eq!(
            (&replica.records, &replica.ids, heads(&replica)),
            (&first.records, &first.ids, heads(&first))
        );
    }
}

#[test]
fn a_replica_refuses_changes_that_do_not_follow() {
    let mut stored = StoredMaps::default();
    let mut group = CommitGroup::new(&stored, Timestamp::UNIX_EPOCH);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("a", "2")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    let [first, second] = &changes(&stored)[..] else { panic!("two changes") };
    let third = Change { seq: 3, previous: Some(2), ..second.clone() };
    let replicate = |changes: &[Change]| CommitGroup::new(&stored, NOW).replicate(&name("f1"), changes);

    replicate(std::slice::from_ref(&third)).unwrap();
    for gap in [first, second, &Change { seq: 4, ..third.clone() }] {
        assert!(matches!(replicate(std::slice::from_ref(gap)), Err(AppendError::Conflict { actual: 2, .. })));
    }
    // Each breaks the chain of versions, the order of times, or the rules for ids.
    let wrong = [
        Change { previous: Some(1), ..third.clone() },
        Change { previous: None, ..third.clone() },
        Change { first_seq: 2, ..third.clone() },
        Change { created: Timestamp::MIN, ..third.clone() },
        Change { modified: Timestamp::MIN, ..third.clone() },
        Change { item: Item::new("new"), ..third.clone() },
        Change { item: Item::new(""), ..third },
    ];
    for change in &wrong {
        let error = replicate(std::slice::from_ref(change)).unwrap_err();
        assert!(matches!(error, AppendError::Invalid { index: 0, .. }), "{error}");
    }
}
