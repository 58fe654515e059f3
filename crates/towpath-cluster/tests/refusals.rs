//! Clusters that are unreachable, foreign, full, or deny access: errors name the reason, reads continue, and nothing is
//! half-applied.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use towpath_cluster::{ClusterAddress, ClusterError, ClusterOptions, ClusterStore};
use towpath_proto::change::NewChange;
use towpath_proto::item::{Content, Item};
use towpath_store::conformance::{append, feed, log, put};
use towpath_store::embedded::EmbeddedStore;
use towpath_store::lease::LeaseHandle;
use towpath_store::{AppendError, Expected, Store, Table, TableWrite, WriteError};

fn options() -> ClusterOptions {
    let mut options = ClusterOptions {
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(3),
        first_connect_timeout: Duration::from_secs(3),
        ..ClusterOptions::default()
    };
    options.replica.reserve = 0;
    options
}

async fn open(url: &str, folder: &Path) -> Result<ClusterStore, ClusterError> {
    ClusterStore::open(&ClusterAddress::parse(url).unwrap(), folder, options()).await
}

/// Returns the error of opening a new node.
async fn refusal(url: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let error = open(url, folder.path()).await.err().unwrap();
    assert!(matches!(error, ClusterError::Unusable { .. }), "{error:?}");
    error.to_string()
}

/// Returns the error of a refused append, after checking that reads continue.
async fn refused(store: &ClusterStore) -> String {
    let before = log(store, &feed("f1")).await.len();
    let error = store.append(&feed("f1"), Expected::Any, vec![put("refused", "1")]).await.unwrap_err();
    let text = error.to_string();
    let (AppendError::Refused { retry_after, .. } | AppendError::UnknownOutcome { retry_after, .. }) = error
    else {
        panic!("{error}")
    };
    assert!(retry_after >= Duration::from_secs(1));
    assert_eq!(log(store, &feed("f1")).await.len(), before);
    text
}

/// Waits until a store reports a problem.
async fn problem(store: &ClusterStore, part: &str) {
    let begun = Instant::now();
    while !store.replica_status().unwrap().problem.is_some_and(|problem| problem.contains(part)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", store.replica_status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a store's appends are refused: servers take some time to apply a new configuration.
async fn is_noticed(store: &ClusterStore) {
    let begun = Instant::now();
    while store.append(&feed("f1"), Expected::Any, vec![put("more", "1")]).await.is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it may still publish");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn recovers(store: &ClusterStore) {
    let begun = Instant::now();
    while let Err(error) = store.append(&feed("f1"), Expected::Any, vec![put("again", "1")]).await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_goes_away_and_comes_back() {
    let mut single = common::single("");
    let (url, folder) = (single.server.url(), tempfile::tempdir().unwrap());
    let store = open(&url, folder.path()).await.unwrap();
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
    problem_free(&store).await;
    single.server.kill();
    // Until the node has noticed the lost connection, for whatever reason it tells.
    problem(&store, "").await;
    let reason = refused(&store).await;
    assert!(reason.contains("no connection") && reason.contains("nothing was written"), "{reason}");
    let current = store.replica_status().unwrap().current_at.unwrap();
    store.close().await;

    // A node with a replica opens without its cluster, and reports its age.
    let store = open(&url, folder.path()).await.unwrap();
    assert_eq!(log(&store, &feed("f1")).await.len(), 1);
    assert_eq!(store.replica_status().unwrap().current_at, None);
    assert!(store.replica_status().unwrap().problem.is_some());
    refused(&store).await;
    let none = refusal(&url).await;
    assert!(none.contains("cannot be reached"), "{none}");

    single.server.start();
    recovers(&store).await;
    problem_free(&store).await;
    assert!(store.replica_status().unwrap().current_at.unwrap() > current);
    assert!(store.verify().await.unwrap().is_sound());
}

/// A whole cluster may be started at once, and its servers take longer than its nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_waits_for_its_cluster() {
    let mut single = common::single("");
    single.server.kill();
    let (url, folder) = (single.server.url(), tempfile::tempdir().unwrap());
    let address = ClusterAddress::parse(&url).unwrap();
    let options = ClusterOptions {
        connect_timeout: Duration::from_millis(100),
        first_connect_timeout: Duration::from_secs(30),
        ..options()
    };
    let opening = tokio::spawn(async move { ClusterStore::open(&address, folder.path(), options).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!opening.is_finished());
    single.server.start();
    let store = opening.await.unwrap().unwrap();
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
}

/// Waits until a store is current.
async fn problem_free(store: &ClusterStore) {
    let begun = Instant::now();
    while store.replica_status().is_none_or(|s| s.current_at.is_none() || s.problem.is_some()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", store.replica_status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_not_ours() {
    let single = common::single("");
    let context = jetstream::new(async_nats::connect(single.server.url()).await.unwrap());
    let stream = |name: &str, description: Option<&str>| stream::Config {
        name: name.into(),
        subjects: vec![format!("{name}.log")],
        description: description.map(str::to_owned),
        ..Default::default()
    };
    context.create_stream(stream("other", None)).await.unwrap();
    let reason = refusal(&format!("{}?name=other", single.server.url())).await;
    assert!(reason.contains("belongs to another program") && reason.contains("?name="), "{reason}");
    context.create_stream(stream("newer", Some("towpath log, format 2, id 1"))).await.unwrap();
    let reason = refusal(&format!("{}?name=newer", single.server.url())).await;
    assert!(reason.contains("has format 2"), "{reason}");

    // A deleted stream, and then a new one with the same name.
    let (url, folder) = (single.server.url(), tempfile::tempdir().unwrap());
    let store = open(&url, folder.path()).await.unwrap();
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
    context.delete_stream("towpath").await.unwrap();
    problem(&store, "is gone").await;
    refused(&store).await;
    let others = tempfile::tempdir().unwrap();
    let other = open(&url, others.path()).await.unwrap();
    append(&other, &feed("f1"), vec![put("b", "1"), put("c", "1")]).await;
    problem(&store, "another log").await;
    let reason = refused(&store).await;
    assert!(reason.contains("another log"), "{reason}");
    store.close().await;
    // Reopened, it reads its own log, and nothing of the new one.
    let store = open(&url, folder.path()).await.unwrap();
    assert_eq!(log(&store, &feed("f1")).await.len(), 1);
    problem(&store, "another log").await;
    assert_eq!(log(&other, &feed("f1")).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_full() {
    let single = common::single("");
    let url = format!("{}?max_bytes=3000000", single.server.url());
    let folder = tempfile::tempdir().unwrap();
    let store = open(&url, folder.path()).await.unwrap();
    let big = |n: usize, bytes: usize| {
        let content = Some(Content::new("text/plain", "x".repeat(bytes)));
        NewChange::put(Item { content, ..Item::new(n.to_string()) })
    };
    let mut stored = 0;
    let error = loop {
        // Larger than a message: some parts of the last one fit.
        match store.append(&feed("f1"), Expected::Any, vec![big(stored, 700_000)]).await {
            Ok(_) => stored += 1,
            Err(error) => break error.to_string(),
        }
        assert!(stored < 10);
    };
    assert!(error.contains("maximum bytes exceeded"), "{error}");
    assert!(stored >= 3);
    assert_eq!(log(&store, &feed("f1")).await.len(), stored);
    // A small change still fits, and no part of the refused one is visible.
    append(&store, &feed("f1"), vec![big(99, 10)]).await;
    assert_eq!(log(&store, &feed("f1")).await.len(), stored + 1);
    store.close().await;
    let rebuilt = tempfile::tempdir().unwrap();
    let store = open(&url, rebuilt.path()).await.unwrap();
    assert_eq!(log(&store, &feed("f1")).await.len(), stored + 1);
    assert!(store.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_are_wrong_or_revoked() {
    let user = |allow: &str| {
        format!("{{ user: u, password: p, permissions: {{ publish: {{ deny: [{allow}] }} }} }}")
    };
    let mut single = common::single(&format!("authorization {{ users: [{}] }}", user("\"none\"")));
    let port = single.server.port;
    for wrong in [format!("nats://u:x@127.0.0.1:{port}"), single.server.url()] {
        let (address, folder) = (ClusterAddress::parse(&wrong).unwrap(), tempfile::tempdir().unwrap());
        let options = ClusterOptions { first_connect_timeout: Duration::from_secs(3600), ..options() };
        let opening = ClusterStore::open(&address, folder.path(), options);
        let opened = tokio::time::timeout(Duration::from_secs(60), opening).await;
        let reason = opened.expect("it does not try for long what cannot succeed").err().unwrap().to_string();
        assert!(reason.to_lowercase().contains("authorization violation"), "{reason}");
    }
    let url = format!("nats://u:p@127.0.0.1:{port}");
    let folder = tempfile::tempdir().unwrap();
    let store = open(&url, folder.path()).await.unwrap();
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
    // The user loses the permission to publish.
    single.server.configure(&user("\"none\""), &user("\"towpath.log\""));
    single.server.reload();
    is_noticed(&store).await;
    let reason = refused(&store).await;
    assert!(reason.to_lowercase().contains("permissions violation"), "{reason}");
    single.server.configure(&user("\"towpath.log\""), &user("\"none\""));
    single.server.reload();
    recovers(&store).await;
    // The user loses the permission to connect.
    single.server.configure("password: p", "password: q");
    single.server.reload();
    is_noticed(&store).await;
    let reason = refused(&store).await;
    assert!(reason.contains("no connection"), "{reason}");
    single.server.configure("password: q", "password: p");
    single.server.reload();
    recovers(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_others_are_passed_over() {
    let url = common::fresh_stream();
    let folders = tempfile::tempdir().unwrap();
    let store = open(&url, &folders.path().join("1")).await.unwrap();
    let client = async_nats::connect(url.split('?').next().unwrap()).await.unwrap();
    let subject = format!("{}.log", url.split("name=").nth(1).unwrap());
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
    for text in ["", "hello", &"x".repeat(100)] {
        client.publish(subject.clone(), text.to_owned().into()).await.unwrap();
    }
    client.flush().await.unwrap();
    append(&store, &feed("f1"), vec![put("b", "1")]).await;
    assert_eq!(store.position(), 5);
    store.close().await;
    let again = open(&url, &folders.path().join("2")).await.unwrap();
    assert_eq!(log(&again, &feed("f1")).await.len(), 2);
    // A message of a newer version stops the node, which cannot know its effect.
    client.publish(subject, [&b"twp\x03"[..], &[0; 60]].concat().into()).await.unwrap();
    problem(&again, "newer version").await;
    let reason = refused(&again).await;
    assert!(reason.contains("newer version"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_belongs_to_one_log_or_to_none() {
    let url = common::fresh_stream();
    let folders = tempfile::tempdir().unwrap();
    let (own, replica) = (folders.path().join("own"), folders.path().join("replica"));
    let options = || towpath_store::embedded::EmbeddedOptions { reserve: 0, ..Default::default() };
    let alone = EmbeddedStore::open(&own, options()).unwrap();
    append(&alone, &feed("f1"), vec![put("a", "1")]).await;
    alone.close().await;
    let error = open(&url, &own).await.err().unwrap().to_string();
    assert!(error.contains("holds a store of its own"), "{error}");
    let store = open(&url, &replica).await.unwrap();
    append(&store, &feed("f1"), vec![put("a", "1")]).await;
    store.close().await;
    let error = EmbeddedStore::open(&replica, options()).err().unwrap().to_string();
    assert!(error.contains("a cluster's replica"), "{error}");
    // A replica of another log.
    let error = open(&common::fresh_stream(), &replica).await;
    let store = error.unwrap();
    problem(&store, "is gone").await;
}

/// Returns the one of two nodes that holds a role, once they agree. Both never do.
async fn holder(pair: &mut [LeaseHandle; 2]) -> usize {
    let begun = Instant::now();
    let mut since = Instant::now();
    let mut last = None;
    loop {
        let holds = [pair[0].lease().is_some(), pair[1].lease().is_some()];
        assert!(holds != [true, true], "a role that is held is not taken");
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody holds it");
        if last != Some(holds) {
            (last, since) = (Some(holds), Instant::now());
        }
        // The role may be handed over to the node that joins later.
        if holds != [false, false] && since.elapsed() > Duration::from_secs(4) {
            return usize::from(holds[1]);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_is_held_by_one_node_and_fences_what_it_writes() {
    let url = common::fresh_stream();
    let folders = tempfile::tempdir().unwrap();
    let node = async |name: &str| {
        let store = Arc::new(open(&url, &folders.path().join(name)).await.unwrap());
        let holding = store.acquire_lease("polls");
        (store, holding)
    };
    let write = |value: &'static str| {
        vec![TableWrite { table: Table::Sources, key: b"k".to_vec(), value: Some(value.into()) }]
    };
    let ((first, mine), (second, theirs)) = (node("1").await, node("2").await);
    let (mut stores, mut pair) = ([first, second], [mine, theirs]);
    let holds = holder(&mut pair).await;
    let lease = pair[holds].lease().unwrap();
    stores[holds].write(write("1"), lease.condition().into_iter().collect()).await.unwrap();
    // A closed node releases its roles at once.
    stores[holds].close().await;
    let other = 1 - holds;
    let next = tokio::time::timeout(Duration::from_secs(5), pair[other].held()).await.unwrap();
    let late = stores[other].write(write("late"), lease.condition().into_iter().collect()).await;
    assert!(matches!(late, Err(WriteError::Precondition { .. })), "{late:?}");
    stores[other].write(write("2"), next.condition().into_iter().collect()).await.unwrap();
    // A crashed node is replaced within fifteen seconds.
    (stores[holds], pair[holds]) = node("3").await;
    let holds = holder(&mut pair).await;
    let ([first, second], [mine, theirs]) = (stores, pair);
    let (gone, (store, mut holding)) = match holds {
        0 => ((first, mine), (second, theirs)),
        _ => ((second, theirs), (first, mine)),
    };
    drop(gone);
    let begun = Instant::now();
    let lease = tokio::time::timeout(Duration::from_secs(15), holding.held()).await.unwrap();
    assert!(begun.elapsed() > Duration::from_secs(5), "it was given time to be heard");
    store.write(write("3"), lease.condition().into_iter().collect()).await.unwrap();
}
