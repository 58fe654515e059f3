//! Appends through the nodes of a cluster against a loop of the bare client library, and the catch-up of an empty replica.
//!
//! `cargo bench -p towpath-cluster`, or with `-- appends` (of them `one`, `three`, `always`) or `-- catchup` for a part.
//! Servers, nodes and writers share the cores of this machine. `TOWPATH_BENCH_ITEMS` is the number of items to catch up
//! with (1,000,000).

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first error")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_store::{Expected, Store};

const FEEDS: usize = 64;
const CONTENT: usize = 1000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let part = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if part.as_deref() != Some("catchup") {
        println!(
            "appends of 1 kB, compare-and-append, {FEEDS} feeds with a writer each; appends/s and
processor time of servers and nodes for one, median of {ROUNDS} rounds"
        );
        println!("{:<28} {:>16} {:>18} {:>7} {:>7}", "", "towpath", "async-nats", "ratio", "CPU");
    }
    if wanted("appends") || wanted("one") {
        one_server().await;
    }
    if wanted("appends") || wanted("three") {
        three_servers("three servers, 3 replicas", "").await;
    }
    if wanted("appends") || wanted("always") {
        three_servers("three servers, sync always", "sync_always").await;
    }
    if wanted("catchup") {
        catch_up().await;
    }
}

fn content(n: usize) -> Vec<u8> {
    let mut bytes = vec![0; CONTENT];
    fastrand::Rng::with_seed(n as u64).fill(&mut bytes);
    bytes
}

fn put(n: usize) -> NewChange {
    let content = Some(Content::new("application/octet-stream", content(n)));
    NewChange::put(Item {
        title: Some(format!("item {n}")),
        content,
        ..Item::new(format!("urn:item:{n:010}"))
    })
}

fn feed(n: usize) -> FeedId {
    FeedId::new(&format!("feed-{n}")).unwrap()
}

fn options() -> ClusterOptions {
    let mut options =
        ClusterOptions { first_connect_timeout: Duration::from_secs(30), ..ClusterOptions::default() };
    options.replica.reserve = 0;
    options
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn one_server() {
    let single = common::single("");
    compare("one server, one node", std::slice::from_ref(&single.server), &[single.server.url()], 1).await;
}

async fn three_servers(name: &str, sync: &str) {
    let mut trio = common::trio("");
    if !sync.is_empty() {
        for server in &mut trio.servers {
            server.kill();
            server.configure("jetstream {", "jetstream { sync_interval: always,");
            server.start();
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let addresses: Vec<_> = (0..3).map(|node| trio.address(node, "")).collect();
    compare(name, &trio.servers, &addresses, 3).await;
}

/// Runs both sides in turns, on the same servers.
async fn compare(name: &str, servers: &[common::NatsServer], addresses: &[String], replicas: usize) {
    let cpu = || common::cpu("self") + servers.iter().map(common::NatsServer::cpu).sum::<f64>();
    let folders = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    let mut clients = Vec::new();
    for (n, address) in addresses.iter().enumerate() {
        let address = ClusterAddress::parse(address).unwrap();
        let folder = folders.path().join(n.to_string());
        nodes.push(Arc::new(ClusterStore::open(&address, folder, options()).await.unwrap()));
        clients.push(jetstream::new(
            async_nats::connect(addresses[n].split(',').next().unwrap()).await.unwrap(),
        ));
    }
    let bare = jetstream::stream::Config {
        name: "bare".into(),
        subjects: vec!["bare.*".into()],
        num_replicas: replicas,
        ..Default::default()
    };
    clients[0].create_stream(bare).await.unwrap();
    let mut last = vec![0; FEEDS];
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut our_work, mut their_work) = (Vec::new(), Vec::new());
    let seconds = ROUND.as_secs_f64();
    for _ in 0..ROUNDS {
        let start = cpu();
        let a = our_round(&nodes).await;
        our_work.push((cpu() - start) / (a * seconds) * 1e6);
        let start = cpu();
        let b = their_round(&clients, &mut last).await;
        // CPU time of clients and servers together, per append.
        their_work.push((cpu() - start) / (b * seconds) * 1e6);
        ours.push(a);
        theirs.push(b);
        // Of one round: both sides then see the same load of the machine.
        ratios.push(a / b);
    }
    let (our_work, their_work) = (median(our_work), median(their_work));
    println!(
        "{name:<28} {:>7.0} {our_work:>5.0} µs {:>9.0} {their_work:>5.0} µs {:>7.2} {:>7.2}",
        median(ours),
        median(theirs),
        median(ratios),
        their_work / our_work,
    );
    for node in nodes {
        node.close().await;
    }
}

/// Number of consecutive appends per writer and round.
async fn our_round(nodes: &[Arc<ClusterStore>]) -> f64 {
    let begun = Instant::now();
    let writers: Vec<_> = (0..FEEDS)
        .map(|n| {
            let store = Arc::clone(&nodes[n % nodes.len()]);
            tokio::spawn(async move {
                let feed = feed(n);
                let mut last = store.head(&feed).await.unwrap().seq;
                let first = last;
                while begun.elapsed() < ROUND {
                    let change = put(last as usize);
                    last = store.append(&feed, Expected::Last(last), vec![change]).await.unwrap().head.seq;
                }
                last - first
            })
        })
        .collect();
    total(writers, begun).await
}

async fn their_round(clients: &[jetstream::Context], last: &mut [u64]) -> f64 {
    let begun = Instant::now();
    let writers: Vec<_> = (0..FEEDS)
        .map(|n| {
            let (context, mut last) = (clients[n % clients.len()].clone(), last[n]);
            tokio::spawn(async move {
                let (subject, mut count) = (format!("bare.{n}"), 0);
                let stream = context.get_stream("bare").await.unwrap();
                while begun.elapsed() < ROUND {
                    let message = jetstream::message::PublishMessage::build()
                        .payload(content(count as usize).into())
                        .expected_last_subject_sequence(last);
                    let sent = context.send_publish(subject.clone(), message).await.unwrap();
                    match sent.await {
                        Ok(stored) => last = stored.sequence,
                        // Its own earlier success, or a new leader that lags: read the last sequence again.
                        Err(_) => match stream.get_last_raw_message_by_subject(&subject).await {
                            Ok(message) => last = message.sequence,
                            Err(_) => continue,
                        },
                    }
                    count += 1;
                }
                (count, last)
            })
        })
        .collect();
    let mut counts = 0;
    for (n, writer) in writers.into_iter().enumerate() {
        let (count, end) = writer.await.unwrap();
        counts += count;
        last[n] = end;
    }
    counts as f64 / begun.elapsed().as_secs_f64()
}

async fn total(writers: Vec<tokio::task::JoinHandle<u64>>, begun: Instant) -> f64 {
    let mut counts = 0;
    for writer in writers {
        counts += writer.await.unwrap();
    }
    counts as f64 / begun.elapsed().as_secs_f64()
}

async fn catch_up() {
    let items = std::env::var("TOWPATH_BENCH_ITEMS").ok().and_then(|items| items.parse().ok());
    let items: usize = items.unwrap_or(1_000_000);
    let batch = std::env::var("TOWPATH_BENCH_BATCH").ok().and_then(|batch| batch.parse().ok()).unwrap_or(50);
    let single = common::single("");
    let folders = tempfile::tempdir().unwrap();
    let address = ClusterAddress::parse(&single.server.url()).unwrap();
    let store = Arc::new(ClusterStore::open(&address, folders.path().join("full"), options()).await.unwrap());
    let begun = Instant::now();
    // As in a real log: many writers, batches of several sizes.
    let writers: Vec<_> = (0..FEEDS)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut left = items / FEEDS;
                while left > 0 {
                    let count = left.min(batch);
                    let batch = (left - count..left).map(put).collect();
                    store.append(&feed(n), Expected::Any, batch).await.unwrap();
                    left -= count;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let count = items / FEEDS * FEEDS;
    println!("{count} items of 1 kB in {FEEDS} feeds, written in {:.1} s", begun.elapsed().as_secs_f64());
    let end = store.position();
    store.close().await;
    for round in 0..3 {
        let begun = Instant::now();
        let folder = folders.path().join(round.to_string());
        let replica = ClusterStore::open(&address, &folder, options()).await.unwrap();
        let took = begun.elapsed().as_secs_f64();
        assert!(replica.position() >= end);
        println!("an empty replica caught up in {took:.1} s: {:.0} items/s", count as f64 / took);
        replica.close().await;
        std::fs::remove_dir_all(folder).unwrap();
    }
}
