//! Follower, server and connection are killed at any moment. Rows equal the publisher's; history has each position once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// Number of items of the publisher.
const ITEMS: u64 = 40;
/// Number of positions between two checkpoints. The publisher sends them again as a whole.
const UNIT: u64 = 50;
/// Number of kills; `TOWPATH_SINK_KILLS` sets it for the long form.
const KILLS: usize = 30;

/// Longest time without progress.
const PATIENCE: Duration = Duration::from_secs(10);

/// The publisher's log: the change at a position.
fn at(position: u64) -> SinkEvent {
    let id = format!("item-{}", position.wrapping_mul(2_654_435_761) % ITEMS);
    if position.is_multiple_of(7) {
        delete(&id, position)
    } else {
        put(&id, &format!("version {position}"), position)
    }
}

/// The publisher's items after a position, as the tables show them.
fn published(last: u64) -> String {
    let mut items = BTreeMap::new();
    for position in 1..=last {
        let SinkEvent::Change(change) = at(position) else { continue };
        let Followed { op, item, position, .. } = *change;
        match op {
            Op::Delete => items.remove(&item.id),
            _ => items.insert(item.id.clone(), format!("{}|{}|{position}", item.id, item.title.unwrap())),
        };
    }
    items.into_values().collect::<Vec<_>>().join(" ")
}

fn position(kept: Option<Vec<u8>>) -> u64 {
    kept.map_or(0, |kept| String::from_utf8(kept).unwrap().parse().unwrap())
}

/// Copies the log from the stored position on, in batches, until it is dropped or the server stays away.
async fn copy(url: &str, applied: &AtomicU64) {
    let mut sink = sink(url);
    let Ok(kept) = sink.open(SOURCE).await else { return };
    let mut last = position(kept);
    loop {
        let size = fastrand::u64(1..30).min(UNIT - last % UNIT);
        let events = (last + 1..=last + size).map(at).collect();
        last += size;
        let checkpoint = last.is_multiple_of(UNIT).then(|| last.to_string());
        let batch = batch(events, checkpoint.as_deref());
        let mut attempts = 0;
        while let Err(error) = sink.apply(&batch).await {
            assert!(matches!(error, SinkError::Unavailable { .. }), "{error}");
            attempts += 1;
            if attempts > 50 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        applied.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until something was applied since the last kill: else a slow machine would do nothing but start again.
async fn wait_for_progress(applied: &AtomicU64) {
    let (before, end) = (applied.load(Ordering::Relaxed), Instant::now() + PATIENCE);
    while applied.load(Ordering::Relaxed) == before && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_position_takes_effect_exactly_once() {
    let mut server = PostgresServer::start();
    let kills = std::env::var("TOWPATH_SINK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let url = server.url();
    let (applied, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let start = |url: &str| {
        let (url, applied) = (url.to_owned(), applied.clone());
        tokio::spawn(async move { copy(&url, &applied).await })
    };
    let mut copying = start(&url);
    for kill in 0..kills {
        wait_for_progress(&applied).await;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..40))).await;
        if kill % 50 == 49 {
            println!("PostgreSQL's sink: {} of {kills} kills, {} s", kill + 1, started.elapsed().as_secs());
        }
        match kill % 5 {
            // The server; the follower tries again.
            0 => {
                server.kill();
                server.run();
            }
            // The connection.
            1 => drop(server.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'towpath'",
            )),
            // The follower, wherever it is.
            _ => copying.abort(),
        }
        if copying.is_finished() || kill % 5 > 1 {
            if let Err(e) = copying.await {
                assert!(e.is_cancelled(), "{e}");
            }
            copying = start(&url);
        }
    }
    copying.abort();
    if let Err(e) = copying.await {
        assert!(e.is_cancelled(), "{e}");
    }
    let last = finish(&server, &url).await;
    println!("PostgreSQL's sink: {kills} kills, {last} positions exact, {} s", started.elapsed().as_secs());
}

/// Copies to a known end, and compares.
async fn finish(server: &PostgresServer, url: &str) -> u64 {
    let mut sink = sink(url);
    let from = position(sink.open(SOURCE).await.unwrap());
    // Behind all that an unfinished unit may have applied.
    let highest = server.query("SELECT coalesce(max(position::bigint), 0) FROM changes");
    let last = from.max(highest.parse().unwrap()).next_multiple_of(UNIT) + UNIT;
    sink.apply(&batch((from + 1..=last).map(at).collect(), Some(&last.to_string()))).await.unwrap();
    let mut shown: Vec<String> =
        server.query("SELECT id, title, position FROM items").lines().map(str::to_owned).collect();
    shown.sort_by(|a, b| a.split('|').next().cmp(&b.split('|').next()));
    assert_eq!(shown.join(" "), published(last));
    let counts = server.query("SELECT count(*), count(DISTINCT position) FROM changes");
    assert_eq!(counts, format!("{last}|{last}"));
    assert!(last > 50, "hardly anything was copied");
    last
}
