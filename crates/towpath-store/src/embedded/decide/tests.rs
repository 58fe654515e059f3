//! Deciding without an engine.

use std::cell::RefCell;

use super::*;
use crate::Condition;

/// What is stored, in maps, and how often it was asked for.
#[derive(Default)]
struct Stored {
    feeds: BTreeMap<FeedId, Feed>,
    next_feed: FeedNumber,
    ids: HashMap<Slice, Version>,
    records: BTreeMap<(FeedNumber, Seq), Record>,
    values: HashMap<(Table, Vec<u8>), Bytes>,
    fails: bool,
    asked: RefCell<Vec<String>>,
}

impl Stored {
    /// Applies what was decided, as the engine does.
    fn apply(&mut self, decided: Decided) {
        self.feeds.extend(decided.feeds);
        self.next_feed = decided.next_feed.unwrap_or(self.next_feed);
        self.ids.extend(decided.ids.into_iter().map(|(key, touched)| (key, touched.now)));
        self.records.extend(decided.records.iter().map(|(place, record)| (place, record.clone())));
        for (key, value) in decided.values {
            match value {
                Some(value) => drop(self.values.insert(key, value)),
                None => drop(self.values.remove(&key)),
            }
        }
    }

    fn ask(&self, what: &str) -> Result<(), StoreError> {
        self.asked.borrow_mut().push(what.to_owned());
        if self.fails { Err(StoreError::Read("on purpose".into())) } else { Ok(()) }
    }
}

impl Lookup for Stored {
    fn feed(&self, feed: &FeedId) -> Result<Option<Feed>, StoreError> {
        self.ask("feed").map(|()| self.feeds.get(feed).copied())
    }
    fn next_feed(&self) -> Result<FeedNumber, StoreError> {
        self.ask("next").map(|()| self.next_feed)
    }
    fn version(&self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        self.ask("version").map(|()| self.ids.get(key).copied())
    }
    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StoreError> {
        self.ask("record").map(|()| record::bytes_of(self.records[&(feed, seq)].encode()))
    }
    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.ask("value").map(|()| self.values.get(&(table, key.to_vec())).cloned())
    }
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn name(text: &str) -> FeedId {
    FeedId::new(text).unwrap()
}

fn put(id: &str, title: &str) -> Prepared {
    let content = Some(Content::new("application/json", "{}"));
    let item = Item { title: Some(title.into()), content, ..Item::new(id) };
    Prepared::new(NewChange::put(item)).unwrap()
}

fn patch(id: &str) -> Prepared {
    let patch = Content::new(patch::MERGE_PATCH, r#"{"p":1}"#);
    Prepared::new(NewChange::patch(id, patch)).unwrap()
}

fn delete(id: &str) -> Prepared {
    Prepared::new(NewChange::delete(id)).unwrap()
}

fn title(decided: &Decided, feed: FeedNumber, seq: Seq) -> Option<String> {
    record::decode(seq, &record::bytes_of(decided.records.get(feed, seq).unwrap().encode()))
        .unwrap()
        .item
        .title
}

#[test]
fn requests_of_one_group_see_each_other() {
    let stored = Stored::default();
    let mut group = Group::new(&stored, NOW);
    group.append(&name("f1"), Expected::Last(0), vec![put("a", "1"), put("b", "1")]).unwrap();
    group.append(&name("f1"), Expected::Last(2), vec![put("a", "2"), patch("a")]).unwrap();
    let last = group.append(&name("f1"), Expected::Last(4), vec![delete("b")]).unwrap();
    assert_eq!((last.first, last.head.items, last.head.live), (5, 2, 1));
    let decided = group.finish();
    assert_eq!(decided.records.iter().count(), 5);
    assert_eq!(decided.ids.len(), 2);
    let a = decided.ids[&keys::id(0, "a")];
    assert_eq!((a.before, a.now.first, a.now.latest), (None, 1, 4));
    assert_eq!(title(&decided, 0, 4).as_deref(), Some("2"), "the patch was applied to what the group has");
    assert_eq!(decided.ids[&keys::id(0, "b")].now.hash, None);
}

#[test]
fn what_the_group_replaces_is_what_was_stored() {
    let mut stored = Stored::default();
    let mut group = Group::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("b", "1")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    let mut group = Group::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "2")]).unwrap();
    group.append(&name("f1"), Expected::Any, vec![put("a", "3"), put("a", "4")]).unwrap();
    let touched = group.finish().ids[&keys::id(0, "a")];
    // The index has place 1 to remove, and the places between never were in it.
    assert_eq!((touched.before, touched.now.latest), (Some(1), 5));
}

#[test]
fn a_refused_request_leaves_the_others_as_if_it_were_not_there() {
    let decide = |with_refused: bool| {
        let stored = Stored::default();
        let mut group = Group::new(&stored, NOW);
        group.append(&name("f1"), Expected::Any, vec![put("a", "1")]).unwrap();
        if with_refused {
            let refused = [
                group.append(&name("f1"), Expected::Last(7), vec![put("b", "1")]),
                group.append(&name("f1"), Expected::Any, vec![put("a", "2"), put("b", "1"), patch("c")]),
                group.append(&name("new"), Expected::Any, vec![put("a", "1"), patch("c")]),
            ];
            assert!(refused.iter().all(Result::is_err));
            let condition = Condition { table: Table::Chains, key: vec![1], value: Some(Bytes::new()) };
            let write = Write { table: Table::Chains, key: vec![2], value: Some(Bytes::new()) };
            assert!(group.write(vec![write], vec![condition]).is_err());
        }
        group.append(&name("f2"), Expected::Any, vec![put("a", "1")]).unwrap();
        group.append(&name("f1"), Expected::Last(1), vec![patch("a"), put("b", "2")]).unwrap();
        group.finish()
    };
    assert_eq!(decide(true), decide(false));
}

#[test]
fn new_feeds_of_one_group_have_numbers_of_their_own() {
    let mut stored = Stored { next_feed: 7, ..Stored::default() };
    let mut group = Group::new(&stored, NOW);
    for feed in ["f1", "f2", "f1", "f3"] {
        group.append(&name(feed), Expected::Any, vec![put("a", "1")]).unwrap();
    }
    let decided = group.finish();
    let numbers: Vec<_> = decided.feeds.values().map(|feed| feed.number).collect();
    assert_eq!((numbers, decided.next_feed), (vec![7, 8, 9], Some(10)));
    stored.apply(decided);
    let mut group = Group::new(&stored, NOW);
    group.append(&name("f2"), Expected::Any, vec![put("a", "2")]).unwrap();
    assert_eq!(group.finish().next_feed, None);
}

#[test]
fn a_read_that_fails_refuses_only_what_needs_it() {
    let mut stored = Stored::default();
    let mut group = Group::new(&stored, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    stored.fails = true;
    let mut group = Group::new(&stored, NOW);
    let error = group.append(&name("f1"), Expected::Any, vec![put("a", "2")]).unwrap_err();
    assert!(matches!(error, AppendError::Store(StoreError::Read(_))), "{error}");
    group
        .write(vec![Write { table: Table::Chains, key: vec![], value: None }], Vec::<Condition>::new())
        .unwrap();
    let decided = group.finish();
    assert!(decided.records.is_empty() && decided.values.len() == 1);
}

#[test]
fn conditions_see_the_writes_before_them() {
    let stored = Stored::default();
    let mut group = Group::new(&stored, NOW);
    let key = || (Table::Leases, vec![1]);
    let write = |value: &'static str| {
        let (table, key) = key();
        vec![Write { table, key, value: Some(value.into()) }]
    };
    let is = |value: Option<&'static str>| {
        let (table, key) = key();
        vec![Condition { table, key, value: value.map(Bytes::from) }]
    };
    group.write(write("a"), is(None)).unwrap();
    assert!(group.write(write("b"), is(None)).is_err());
    group.write(write("c"), is(Some("a"))).unwrap();
    assert_eq!(group.finish().values[&key()], Some("c".into()));
}

#[test]
fn a_long_value_may_be_demanded_by_its_digest() {
    let mut stored = Stored::default();
    let (table, key, value) = (Table::Chains, vec![1], Bytes::from(vec![7; 1000]));
    let demand = |value: &[u8]| {
        let value = Some(Bytes::copy_from_slice(value));
        vec![Demand::from(Condition { table, key: key.clone(), value }).short()]
    };
    let is_refused = |stored: &Stored, value: &[u8]| {
        let written = Group::new(stored, NOW).write(Vec::new(), demand(value));
        matches!(written, Err(StoreError::Condition))
    };
    assert!(is_refused(&stored, &value), "nothing is there");
    stored.values.insert((table, key.clone()), value.clone());
    assert!(!is_refused(&stored, &value));
    assert!(is_refused(&stored, &value[1..]) && is_refused(&stored, b"short"));
}

#[test]
fn a_bulk_append_to_a_new_feed_asks_for_no_ids() {
    let stored = Stored::default();
    let mut group = Group::new(&stored, NOW);
    let changes = (0..100).map(|n| put(&n.to_string(), "1")).collect();
    group.append(&name("f1"), Expected::Any, changes).unwrap();
    assert_eq!(*stored.asked.borrow(), ["feed", "next"]);
}

/// All changes of a feed, as its log has them.
fn changes(stored: &Stored) -> Vec<Change> {
    let records = stored.records.iter();
    records
        .map(|((_, seq), record)| record::decode(*seq, &record::bytes_of(record.encode())).unwrap())
        .collect()
}

#[test]
fn a_replica_decides_the_same() {
    let mut first = Stored::default();
    let mut group = Group::new(&first, NOW);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("b", "1"), patch("a")]).unwrap();
    group.append(&name("f1"), Expected::Any, vec![delete("b"), put("b", "2"), delete("c")]).unwrap();
    let decided = group.finish();
    first.apply(decided);

    let log = changes(&first);
    for split in 0..=log.len() {
        let mut replica = Stored::default();
        for part in [&log[..split], &log[split..]] {
            let mut group = Group::new(&replica, Timestamp::MAX);
            group.replicate(&name("f1"), part).unwrap();
            let decided = group.finish();
            replica.apply(decided);
        }
        // All but when it was appended, which is each one's own time.
        let heads = |stored: &Stored| stored.feeds.values().map(|f| (f.number, f.head)).collect::<Vec<_>>();
        assert_eq!(
            (&replica.records, &replica.ids, heads(&replica)),
            (&first.records, &first.ids, heads(&first))
        );
    }
}

#[test]
fn a_replica_takes_nothing_that_does_not_follow() {
    let mut stored = Stored::default();
    let mut group = Group::new(&stored, Timestamp::UNIX_EPOCH);
    group.append(&name("f1"), Expected::Any, vec![put("a", "1"), put("a", "2")]).unwrap();
    let decided = group.finish();
    stored.apply(decided);
    let [first, second] = &changes(&stored)[..] else { panic!("two changes") };
    let third = Change { seq: 3, previous: Some(2), ..second.clone() };
    let replicate = |changes: &[Change]| Group::new(&stored, NOW).replicate(&name("f1"), changes);

    replicate(std::slice::from_ref(&third)).unwrap();
    for gap in [first, second, &Change { seq: 4, ..third.clone() }] {
        assert!(matches!(replicate(std::slice::from_ref(gap)), Err(AppendError::Conflict { actual: 2, .. })));
    }
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
