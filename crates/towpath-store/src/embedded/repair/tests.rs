//! Tests of the repair: indexes come back as they were, and what is lost is named.

use std::path::Path;

use jiff::Timestamp;
use towpath_proto::change::{Change, NewChange, Op};
use towpath_proto::item::Item;

use super::*;
use crate::embedded::EmbeddedStore;
use crate::{Expected, LogHead, ReadLimit, Store as _};

const ALL: ReadLimit = ReadLimit { items: 1000, bytes: usize::MAX };
const HORIZONS: [Seq; 2] = [0, 4];

fn put(id: &str, title: &str) -> NewChange {
    NewChange::put(Item { title: Some(title.into()), ..Item::new(id) })
}

fn feed() -> FeedId {
    FeedId::new("f1").unwrap()
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() }).unwrap()
}

/// Makes a folder with a log, and damages it behind the store's back.
async fn damaged(folder: &Path, horizon: Seq, damage: impl FnOnce(&StorageEngine)) -> (LogHead, Vec<Change>) {
    let store = open(folder);
    let batch = vec![put("a", "1"), put("b", "1"), put("a", "2"), NewChange::delete("b"), put("c", "1")];
    store.append(&feed(), Expected::Any, batch).await.unwrap();
    store.append(&feed(), Expected::Any, vec![put("c", "2"), put("d", "1")]).await.unwrap();
    let head = store.let_go(&feed(), horizon).await.unwrap();
    let changes = store.read(&feed(), 0, ALL).await.unwrap();
    assert!(store.verify().await.unwrap().is_sound());
    let engine = store.engine().unwrap();
    damage(&engine);
    drop(engine);
    assert!(!store.verify().await.unwrap().is_sound(), "the damage is none");
    store.close().await;
    (head, changes)
}

/// Repairs a folder, and returns the store that is then in its place. It is sound.
async fn repaired(folder: &Path) -> (EmbeddedStore, RepairReport) {
    let repair = FolderRepair::begin(folder).unwrap();
    let (building, report) = repair.build(&VerifyProgress::default()).unwrap();
    let kept = repair.install().unwrap();
    assert!(kept.join("towpath.format").exists() && !building.exists());
    let store = open(folder);
    let found = store.verify().await.unwrap();
    assert!(found.is_sound(), "{found:?} after {report:?}");
    (store, report)
}

fn change_value(keyspace: &Keyspace, key: &[u8], place: usize) {
    let mut value = keyspace.get(key).unwrap().unwrap().to_vec();
    value[place] ^= 1;
    keyspace.insert(key, value).unwrap();
}

/// Damages each index, the list of feeds and their names.
#[tokio::test]
async fn indexes_are_made_from_the_log() {
    type Damage = fn(&StorageEngine);
    let damages: [(&str, Damage); 9] = [
        ("an id removed", |engine| engine.ids.remove(keys::id(0, "c")).unwrap()),
        ("an id of a missing item", |engine| {
            let row = engine.ids.get(keys::id(0, "c")).unwrap().unwrap();
            engine.ids.insert(keys::id(0, "missing"), row).unwrap();
        }),
        ("a created entry changed", |engine| change_value(&engine.created, &keys::position_key(0, 7), 7)),
        ("a latest version removed", |engine| engine.modified.remove(keys::position_key(0, 7)).unwrap()),
        ("a time removed", |engine| {
            let last = engine.times.iter().next_back().unwrap().key().unwrap();
            engine.times.remove(last).unwrap();
        }),
        ("the number of items changed", |engine| change_value(&engine.feeds, b"f1", 31)),
        ("the number of a feed changed", |engine| change_value(&engine.feeds, b"f1", 3)),
        ("the name of a feed removed", |engine| engine.tables.remove(keys::feed_name(0)).unwrap()),
        ("every index removed", |engine| {
            for index in [&engine.ids, &engine.modified, &engine.created, &engine.times] {
                let keys: Vec<_> = index.iter().map(|entry| entry.key().unwrap()).collect();
                keys.into_iter().for_each(|key| index.remove(key).unwrap());
            }
        }),
    ];
    for (what, damage) in damages {
        for horizon in HORIZONS {
            let folder = tempfile::tempdir().unwrap();
            let (head, changes) = damaged(folder.path(), horizon, damage).await;
            let (store, report) = repaired(folder.path()).await;
            assert_eq!((&report.lost, &report.moved), (&vec![], &vec![]), "{what}");
            assert_eq!(store.head(&feed()).await.unwrap(), head, "{what}");
            assert_eq!(store.read(&feed(), 0, ALL).await.unwrap(), changes, "{what}");
            // The next feed has a number of its own.
            store.append(&FeedId::new("f2").unwrap(), Expected::Any, vec![put("a", "1")]).await.unwrap();
            assert!(store.verify().await.unwrap().is_sound(), "{what}");
        }
    }
}

/// The row of a feed is lost: its log says what it has, up to its first gap from behind.
#[tokio::test]
async fn a_lost_row_of_a_feed_is_made_anew() {
    for horizon in HORIZONS {
        let folder = tempfile::tempdir().unwrap();
        let damage = |engine: &StorageEngine| engine.feeds.remove("f1").unwrap();
        let (head, changes) = damaged(folder.path(), horizon, damage).await;
        let (store, report) = repaired(folder.path()).await;
        assert_eq!(report.lost, []);
        let found = store.head(&feed()).await.unwrap();
        assert_eq!((found.seq, found.items, found.live), (head.seq, head.items, head.live));
        assert!(found.horizon <= horizon);
        assert_eq!(store.read(&feed(), 0, ALL).await.unwrap(), changes);
    }
}

/// Damages and removes each record: it is named with its item, and everything after it is as it was.
#[tokio::test]
async fn a_lost_change_is_named_and_the_rest_is_served() {
    for (horizon, position) in [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 7), (4, 3), (4, 5), (4, 7)] {
        for is_removed in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let key = keys::position_key(0, position);
            let damage = |engine: &StorageEngine| match is_removed {
                true => engine.log.remove(key).unwrap(),
                false => change_value(&engine.log, &key, 101),
            };
            let (head, changes) = damaged(folder.path(), horizon, damage).await;
            let (store, report) = repaired(folder.path()).await;
            let case = format!("change {position}, horizon {horizon}, removed {is_removed}");
            let gone = changes.iter().find(|change| change.seq == position).unwrap();
            // Up to the horizon a change that is missing may have been let go.
            if !(is_removed && position <= horizon) {
                assert_eq!(report.lost.len(), 1, "{case}: {report:?}");
                let LostChange { feed: of, position: at, item, .. } = &report.lost[0];
                assert_eq!((of, *at), (&feed(), position), "{case}");
                assert_eq!(item.as_deref(), Some(&*gone.item.id), "{case}");
            }
            let now = store.head(&feed()).await.unwrap();
            assert_eq!((now.seq, now.modified), (head.seq, head.modified), "{case}");
            let gap = if position == head.seq || position <= horizon { horizon } else { position };
            assert_eq!(now.horizon, gap, "{case}");
            let read = store.read(&feed(), 0, ALL).await.unwrap();
            let after = |changes: &[Change]| -> Vec<(Seq, Op, Item)> {
                let behind = changes.iter().filter(|change| change.seq > gap && change.seq != position);
                behind.map(|change| (change.seq, change.op, change.item.clone())).collect()
            };
            assert_eq!(after(&read), after(&changes), "{case}");
            // A position is never given twice.
            let next = store.append(&feed(), Expected::Any, vec![put("e", "1")]).await.unwrap();
            assert_eq!(next.first, head.seq + 1, "{case}");
        }
    }
}

/// A wrong time would make all later changes wrong, or itself only.
#[tokio::test]
async fn the_change_with_the_wrong_time_is_lost() {
    for place in [28, 35] {
        let folder = tempfile::tempdir().unwrap();
        let key = keys::position_key(0, 5);
        let (_, changes) = damaged(folder.path(), 0, |engine| change_value(&engine.log, &key, place)).await;
        let (store, report) = repaired(folder.path()).await;
        let lost: Vec<_> = report.lost.iter().map(|lost| (lost.position, lost.item.as_deref())).collect();
        assert_eq!(lost, [(5, Some("c"))]);
        let read = store.read(&feed(), 5, ALL).await.unwrap();
        assert_eq!(
            read.iter().map(|change| change.modified).collect::<Vec<Timestamp>>(),
            [changes[5].modified; 2]
        );
    }
}
