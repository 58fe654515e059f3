//! Tables beside the log.

use std::sync::Arc;

use bytes::Bytes;

use super::{Backend, append, feed, open, put};
use crate::{Precondition, Table, TableWrite, WriteError};

const TABLES: [Table; 5] =
    [Table::Sources, Table::Chains, Table::Documents, Table::Subscriptions, Table::Leases];

fn write(table: Table, key: &[u8], value: Option<&[u8]>) -> TableWrite {
    TableWrite { table, key: key.to_vec(), value: value.map(Bytes::copy_from_slice) }
}

fn condition(table: Table, key: &[u8], value: Option<&[u8]>) -> Precondition {
    Precondition { table, key: key.to_vec(), value: value.map(Bytes::copy_from_slice) }
}

pub async fn values_are_written_and_removed(backend: &dyn Backend) {
    let store = open(backend).await;
    let big = vec![7; 3 << 20];
    for table in TABLES {
        for key in [&b"k"[..], b"", b"\0", b"\xff\xff", b"k/1"] {
            assert_eq!(store.get(table, key).await.unwrap(), None);
            store.write(vec![write(table, key, Some(b"1"))], vec![]).await.unwrap();
            assert_eq!(store.get(table, key).await.unwrap().as_deref(), Some(&b"1"[..]));
            store.write(vec![write(table, key, Some(b""))], vec![]).await.unwrap();
            assert_eq!(store.get(table, key).await.unwrap().as_deref(), Some(&b""[..]));
            store.write(vec![write(table, key, Some(&big))], vec![]).await.unwrap();
            assert!(store.get(table, key).await.unwrap().unwrap() == big);
            store.write(vec![write(table, key, None), write(table, b"other", None)], vec![]).await.unwrap();
            assert_eq!(store.get(table, key).await.unwrap(), None);
        }
    }
    // Of two writes to one key, the last one wins.
    let twice = vec![write(Table::Chains, b"k", Some(b"1")), write(Table::Chains, b"k", Some(b"2"))];
    store.write(twice, vec![]).await.unwrap();
    assert_eq!(store.get(Table::Chains, b"k").await.unwrap().as_deref(), Some(&b"2"[..]));
    store.write(vec![], vec![]).await.unwrap();
}

pub async fn tables_are_independent(backend: &dyn Backend) {
    let store = open(backend).await;
    append(&*store, &feed("f1"), vec![put("a", "1")]).await;
    for (n, table) in TABLES.into_iter().enumerate() {
        store.write(vec![write(table, b"k", Some(&[n as u8]))], vec![]).await.unwrap();
    }
    for (n, table) in TABLES.into_iter().enumerate() {
        let found = store.scan(table, b"", None, 9).await.unwrap();
        assert_eq!(found, [(Bytes::from_static(b"k"), Bytes::copy_from_slice(&[n as u8]))]);
    }
}

pub async fn scans_are_ordered(backend: &dyn Backend) {
    let store = open(backend).await;
    let keys: [&[u8]; 9] = [b"", b"a", b"a\0", b"a/", b"a/1", b"a/2", b"a/\xff", b"b", b"\xff\xff"];
    for table in [Table::Sources, Table::Documents] {
        store
            .write(keys.iter().rev().map(|key| write(table, key, Some(key))).collect(), vec![])
            .await
            .unwrap();
        // A prefix of 0xFF bytes has no successor of its length: no scan may compute one.
        let prefixes: [&[u8]; 7] = [b"", b"a", b"a/", b"a/1", b"c", b"\xff", b"\xff\xff\xff"];
        let afters =
            keys.iter().map(|key| Some(*key)).chain([None, Some(&b"a/0"[..]), Some(b"\xff\xff\xff")]);
        for (prefix, after) in afters.flat_map(|after| prefixes.map(|prefix| (prefix, after))) {
            let wanted = |key: &&[u8]| key.starts_with(prefix) && after.is_none_or(|after| *key > after);
            let expected: Vec<_> = keys.into_iter().filter(wanted).collect();
            for limit in [0, 1, 3, usize::MAX] {
                let found = store.scan(table, prefix, after, limit).await.unwrap();
                let found: Vec<_> = found
                    .iter()
                    .map(|(key, value)| {
                        assert_eq!(key, value);
                        &key[..]
                    })
                    .collect();
                let expected = &expected[..expected.len().min(limit)];
                assert_eq!(found, expected, "prefix {prefix:?} after {after:?} limit {limit}");
            }
        }
    }
}

pub async fn writes_are_all_or_nothing(backend: &dyn Backend) {
    let store = open(backend).await;
    let writes = vec![write(Table::Chains, b"a", Some(b"1")), write(Table::Documents, b"b", Some(b"1"))];
    let fails = vec![condition(Table::Sources, b"x", None), condition(Table::Sources, b"y", Some(b"1"))];
    let error = store.write(writes.clone(), fails).await.unwrap_err();
    assert!(matches!(error, WriteError::Precondition { .. }), "{error}");
    assert_eq!(store.get(Table::Chains, b"a").await.unwrap(), None);
    assert_eq!(store.get(Table::Documents, b"b").await.unwrap(), None);
    store.write(writes, vec![]).await.unwrap();
    assert!(store.get(Table::Chains, b"a").await.unwrap().is_some());
    assert!(store.get(Table::Documents, b"b").await.unwrap().is_some());
}

pub async fn preconditions_are_compared(backend: &dyn Backend) {
    let store = open(backend).await;
    let lease = |value: Option<&[u8]>| vec![write(Table::Leases, b"l", value)];
    let is = |value: Option<&[u8]>| vec![condition(Table::Leases, b"l", value)];
    let refused = async |value, held| {
        let result = store.write(lease(value), is(held)).await;
        matches!(result, Err(WriteError::Precondition { .. }))
    };
    assert!(refused(Some(b"1"), Some(b"")).await);
    store.write(lease(Some(b"")), is(None)).await.unwrap();
    assert!(refused(Some(b"1"), None).await, "an empty value is not an absent row");
    store.write(lease(Some(b"1")), is(Some(b""))).await.unwrap();
    assert!(refused(Some(b"2"), Some(b"10")).await);
    assert!(refused(None, None).await);
    store.write(lease(None), is(Some(b"1"))).await.unwrap();
    store.write(lease(Some(b"3")), is(None)).await.unwrap();
    // A precondition without writes is checked, too.
    store.write(vec![], is(Some(b"3"))).await.unwrap();
    assert!(matches!(store.write(vec![], is(None)).await, Err(WriteError::Precondition { .. })));
}

pub async fn one_writer_wins_a_precondition(backend: &dyn Backend) {
    let store = open(backend).await;
    for round in 0..5u8 {
        let tries: Vec<_> = (0..40u8)
            .map(|n| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let writes = vec![write(Table::Leases, &[round], Some(&[n]))];
                    store.write(writes, vec![condition(Table::Leases, &[round], None)]).await
                })
            })
            .collect();
        let mut winners = Vec::new();
        for (n, attempt) in tries.into_iter().enumerate() {
            match attempt.await.unwrap() {
                Ok(()) => winners.push(n as u8),
                Err(error) => assert!(matches!(error, WriteError::Precondition { .. }), "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(store.get(Table::Leases, &[round]).await.unwrap().unwrap(), winners);
    }
}
