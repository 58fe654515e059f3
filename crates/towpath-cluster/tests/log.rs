//! Duplicate messages of the log, and messages that were removed from it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream::Stream};
use towpath_cluster::{ClusterAddress, ClusterError, ClusterOptions, ClusterStore};
use towpath_proto::change::NewChange;
use towpath_proto::item::{Content, Item};
use towpath_store::conformance::{append, feed, log, put};
use towpath_store::{AppendError, Expected, Store};

async fn open(url: &str, folder: &Path) -> Result<ClusterStore, ClusterError> {
    let mut options = ClusterOptions {
        timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(10),
        ..ClusterOptions::default()
    };
    options.replica.reserve = 0;
    ClusterStore::open(&ClusterAddress::parse(url).unwrap(), folder, options).await
}

async fn stream(url: &str, name: &str) -> Stream {
    let client = async_nats::connect(url.split('?').next().unwrap()).await.unwrap();
    jetstream::new(client).get_stream(name).await.unwrap()
}

/// A paused server receives a message twice and stores both copies. The compare-and-append of its caller succeeds, and does
/// not conflict with its own copy. A real second append conflicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_message_does_not_conflict_with_itself() {
    let single = common::single("");
    let folders = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&single.server.url(), &folders.path().join("1")).await.unwrap());
    let f = feed("f1");
    let mut stream = stream(&single.server.url(), "towpath").await;
    let mut last = 0;
    for round in 0..10 {
        single.server.signal("STOP");
        let (appending, f1) = (Arc::clone(&store), f.clone());
        let change = vec![put(&round.to_string(), "1")];
        let append = tokio::spawn(async move { appending.append(&f1, Expected::Last(last), change).await });
        // Longer than the window's acknowledgement timeout, so that it publishes again.
        tokio::time::sleep(Duration::from_millis(1900)).await;
        single.server.signal("CONT");
        last = append.await.unwrap().unwrap().head.seq;
        assert_eq!(last, round + 1);
        // One message more than appends: a copy was stored.
        if stream.info().await.unwrap().state.messages > last {
            break;
        }
    }
    assert!(stream.info().await.unwrap().state.messages > last, "nothing was published twice");
    let second = store.append(&f, Expected::Last(last - 1), vec![put("second", "1")]).await.unwrap_err();
    assert!(matches!(second, AppendError::Conflict { actual, .. } if actual == last), "{second}");
    // A copy that arrives much later has no effect, either.
    let client = async_nats::connect(single.server.url()).await.unwrap();
    for at in 1..=stream.info().await.unwrap().state.last_sequence {
        let message = stream.get_raw_message(at).await.unwrap();
        client.publish(message.subject, message.payload).await.unwrap();
    }
    client.flush().await.unwrap();
    append(store.as_ref(), &f, vec![put("after", "1")]).await;
    let all = log(store.as_ref(), &f).await;
    assert_eq!(all.len() as u64, last + 1);
    store.close().await;
    let again = open(&single.server.url(), &folders.path().join("2")).await.unwrap();
    assert_eq!(log(&again, &f).await, all);
    assert!(again.verify().await.unwrap().is_sound());
}

/// Removes the beginning of the log. Existing replicas continue, copies of their folders become new nodes, and a node
/// with an empty folder reports the gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trimmed_log_continues_for_existing_replicas() {
    let url = common::fresh_stream();
    let name = url.split("name=").nth(1).unwrap();
    let folders = tempfile::tempdir().unwrap();
    let path = |node: &str| folders.path().join(node);
    let f = feed("f1");
    let one = open(&url, &path("one")).await.unwrap();
    let two = open(&url, &path("two")).await.unwrap();
    for n in 0..20 {
        append(&one, &f, vec![put(&n.to_string(), "1")]).await;
    }
    let stream = stream(&url, name).await;
    let end = stream.get_info().await.unwrap().state.last_sequence;
    one.close().await;
    // Closed first: the files of an open store change.
    copy(&path("one"), &path("copy"));
    // An operator may do this once every replica has the messages.
    stream.purge().sequence(end + 1).await.unwrap();
    assert_eq!(stream.get_info().await.unwrap().state.messages, 0);
    append(&two, &f, vec![put("more", "1")]).await;
    for node in ["one", "copy"] {
        let store = open(&url, &path(node)).await.unwrap();
        append(&store, &f, vec![put(node, "1")]).await;
        assert_eq!(store.replica_status().unwrap().problem, None);
        store.close().await;
    }
    append(&two, &f, vec![put("last", "1")]).await;
    assert_eq!(log(&two, &f).await.len(), 24);
    let refused = open(&url, &path("new")).await.err().unwrap().to_string();
    assert!(refused.contains("what is between was deleted"), "{refused}");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}

/// Catches up with more than one group: bulk-loaded records equal those of other replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_bulk_loads_a_large_log() {
    let url = common::fresh_stream();
    let folders = tempfile::tempdir().unwrap();
    let store = open(&url, &folders.path().join("1")).await.unwrap();
    let content = |n: usize| Content::new("text/plain", format!("{n:04}").repeat(2500));
    let put =
        |n: usize| NewChange::put(Item { content: Some(content(n)), ..Item::new(format!("{}", n % 700)) });
    let feeds = [feed("f1"), feed("f2")];
    for n in (0..2000).step_by(100) {
        append(&store, &feeds[n / 100 % 2], (n..n + 100).map(put).collect()).await;
    }
    append(&store, &feeds[0], vec![NewChange::delete("5"), NewChange::delete("none")]).await;
    let again = open(&url, &folders.path().join("2")).await.unwrap();
    for f in &feeds {
        assert_eq!(log(&again, f).await, log(&store, f).await);
        assert_eq!(
            again.content_hashes(f, None).await.unwrap(),
            store.content_hashes(f, None).await.unwrap()
        );
    }
    assert!(again.verify().await.unwrap().is_sound());
}
