//! The PostgreSQL sink against a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub, dead_code)]

#[path = "postgres/conformance.rs"]
mod conformance;
#[path = "postgres/faults.rs"]
mod faults;
#[path = "postgres/kills.rs"]
mod kills;
#[path = "support/postgres_server.rs"]
mod postgres_server;
#[path = "postgres/tables.rs"]
mod tables;

use std::sync::Arc;

use postgres_server::PostgresServer;
use towpath_client::sink::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Item, Op};
use towpath_sinks::postgres::{PostgresDestination, PostgresSink};

/// Name of the follow in most tests.
const SOURCE: &str = "http://publisher/feed";

fn sink(url: &str) -> PostgresSink {
    PostgresSink::new(PostgresDestination::parse(url, None).unwrap())
}

/// A put of an item whose title is `title`.
fn put(id: &str, title: &str, position: u64) -> SinkEvent {
    let mut item = Item::new(id);
    item.title = Some(title.to_owned());
    change(Op::Put, item, position)
}

fn delete(id: &str, position: u64) -> SinkEvent {
    change(Op::Delete, Item::new(id), position)
}

fn change(op: Op, item: Item, position: u64) -> SinkEvent {
    let modified = Some("2026-01-02T03:04:05Z".parse().unwrap());
    let (feed, position) = ("f".to_owned(), position.to_string());
    SinkEvent::Change(Box::new(Followed { feed, op, item, patch: None, modified, position, entry_id: None }))
}

fn reset(feed: &str) -> SinkEvent {
    SinkEvent::Reset(FeedReset { feed: feed.into(), reason: "it began anew".into() })
}

fn batch(events: Vec<SinkEvent>, checkpoint: Option<&str>) -> SinkBatch {
    let checkpoint = checkpoint.map(|checkpoint| checkpoint.as_bytes().into());
    SinkBatch { source: SOURCE.into(), events: Arc::new(events), checkpoint }
}

/// Text of an error, which never has a password.
fn message(error: &SinkError) -> String {
    let text = error.to_string();
    assert!(!text.contains("hush"), "{text}");
    text
}

/// Titles and positions by id.
fn items(server: &PostgresServer) -> String {
    server.query("SELECT id, title, position FROM items ORDER BY id COLLATE \"C\"").replace('\n', " ")
}

/// Operations and positions of the history.
fn history(server: &PostgresServer) -> String {
    server.query("SELECT op || coalesce(' ' || position, '') FROM changes ORDER BY n").replace('\n', ", ")
}
