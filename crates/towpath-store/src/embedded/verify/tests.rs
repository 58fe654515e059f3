//! Tests of the check: every difference is found, however it is looked for.

use jiff::Timestamp;
use towpath_proto::change::NewChange;
use towpath_proto::item::Item;

use super::*;
use crate::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::{Expected, Store as _};

fn put(id: &str, title: &str) -> NewChange {
    NewChange::put(Item { title: Some(title.into()), ..Item::new(id) })
}

fn open(folder: &std::path::Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() }).unwrap()
}

fn verify(engine: &StorageEngine) -> VerifyReport {
    engine.verify(&VerifyProgress::default()).unwrap()
}

async fn store_with_log(folder: &std::path::Path, horizon: u64) -> (EmbeddedStore, FeedId) {
    let (store, feed) = (open(folder), FeedId::new("f1").unwrap());
    let batch = vec![put("a", "1"), put("b", "1"), put("a", "2"), NewChange::delete("b"), put("c", "1")];
    store.append(&feed, Expected::Any, batch).await.unwrap();
    store.append(&feed, Expected::Any, vec![put("c", "2"), put("d", "1")]).await.unwrap();
    store.let_go(&feed, horizon).await.unwrap();
    (store, feed)
}

/// Removes, adds and changes every entry of every index in turn, in a whole log and in one with a horizon.
#[tokio::test]
async fn every_difference_is_reported() {
    for (horizon, changes, items) in [(0, 7, 4), (4, 4, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = store_with_log(folder.path(), horizon).await;
        let found = store.verify().await.unwrap();
        assert_eq!(found, VerifyReport { feeds: 1, changes, items, ..Default::default() });

        let engine = store.engine().unwrap();
        let keyspaces = [&engine.log, &engine.ids, &engine.modified, &engine.created, &engine.times];
        for keyspace in keyspaces {
            let entries: Vec<_> = keyspace.iter().map(|entry| entry.into_inner().unwrap()).collect();
            assert!(!entries.is_empty());
            for (key, value) in entries {
                // Up to the horizon, an entry of the time index and an old version may be missing.
                let may_miss = &**keyspace.name() == "times" && keys::read_seq(&value).unwrap() <= horizon;
                // Behind the store's back, as a bug or a damaged disk would.
                keyspace.remove(key.clone()).unwrap();
                let is_sound = verify(&engine).is_sound();
                assert_eq!(is_sound, may_miss, "{} without {key:?}", keyspace.name());
                keyspace.insert(key, value).unwrap();
            }
            let more: Vec<u8> = match &**keyspace.name() {
                "times" => keys::time_key(0, Timestamp::MAX).to_vec(),
                "ids" => keys::id(0, "more").to_vec(),
                _ => keys::position_key(0, 9).to_vec(),
            };
            keyspace.insert(more.clone(), 9u64.to_be_bytes()).unwrap();
            let found = verify(&engine);
            assert!(!found.is_sound() && !found.problems.is_empty(), "{} with more", keyspace.name());
            keyspace.remove(more).unwrap();
            assert!(verify(&engine).is_sound(), "{} as it was", keyspace.name());
        }
        let (key, value) = engine.feeds.iter().next().unwrap().into_inner().unwrap();
        // The bytes after 40 are the time of the last append, which no log record repeats.
        for place in 0..40 {
            let mut wrong = value.to_vec();
            wrong[place] ^= 1;
            engine.feeds.insert(key.clone(), wrong).unwrap();
            assert!(!verify(&engine).is_sound(), "head with another byte {place}");
        }
        engine.feeds.insert(key, value).unwrap();
        engine.tables.remove(keys::feed_name(0)).unwrap();
        assert!(verify(&engine).problems[0].to_string().starts_with("feed f1: the row with its name"));
    }
}

/// Flips every byte of every record and of every index value.
#[tokio::test]
async fn every_changed_byte_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store_with_log(folder.path(), 4).await;
    let engine = store.engine().unwrap();
    for keyspace in [&engine.log, &engine.ids, &engine.created, &engine.times] {
        let entries: Vec<_> = keyspace.iter().map(|entry| entry.into_inner().unwrap()).collect();
        for (key, value) in entries {
            for place in 0..value.len() {
                let mut wrong = value.to_vec();
                wrong[place] ^= 1;
                keyspace.insert(key.clone(), wrong).unwrap();
                // The fourth byte of a record is unused. Up to the horizon nothing repeats a change's time, and its
                // earlier version may be missing, wherever it was.
                let is_old = keys::read_position(&key).is_ok_and(|seq| seq <= 4);
                let is_alone = is_old && ((28..40).contains(&place) || (60..68).contains(&place));
                let is_free = &**keyspace.name() == "log" && (place == 3 || is_alone);
                let is_old = &**keyspace.name() == "times" && keys::read_seq(&value).unwrap() <= 4;
                let is_sound = verify(&engine).is_sound();
                assert!(is_free || is_old || !is_sound, "{} {key:?}, byte {place}", keyspace.name());
            }
            keyspace.insert(key, value).unwrap();
        }
    }
    assert!(verify(&engine).is_sound());
}

/// The threads of a large feed check the same as one does.
#[tokio::test]
async fn a_large_feed_is_read_by_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (store, feed) = (open(folder.path()), FeedId::new("f1").unwrap());
    for round in 0..5 {
        let batch = (0..5000).map(|n| put(&(n % 3000).to_string(), &round.to_string())).collect();
        store.append(&feed, Expected::Any, batch).await.unwrap();
    }
    for horizon in [0, 12_345] {
        while store.head(&feed).await.unwrap().horizon < horizon {
            store.let_go(&feed, horizon).await.unwrap();
        }
        let progress = VerifyProgress::default();
        let found = store.engine().unwrap().verify(&progress).unwrap();
        assert!(found.is_sound() && found.items == 3000, "{found:?}");
        assert_eq!(progress.total(), 25_000 - horizon);
    }
    let engine = store.engine().unwrap();
    engine.log.remove(keys::position_key(0, 20_000)).unwrap();
    let found = verify(&engine);
    assert_eq!(found.problems[0].position, Some(20_000));
}
