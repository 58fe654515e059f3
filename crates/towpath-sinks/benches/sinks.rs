//! Throughput of sinks, with ratios to the least that the work costs. `cargo bench -p towpath-sinks --bench sinks`
//!
//! SQLite: a first sync, beside a bare loop that inserts the same rows into the same tables in the same transactions.
//! PostgreSQL: a first sync, beside psql that copies the same rows into a staging table and merges them; and a steady
//! stream, with the time from a change to its committed row. Webhooks: deliveries a second to loopback receivers.
//! `TOWPATH_BENCH_ITEMS` sets the number of items; an argument `sqlite`, `postgres` or `webhook` selects a part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unreachable_pub, dead_code)]

#[path = "../tests/support/postgres_server.rs"]
mod postgres_server;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_server::PostgresServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use towpath_client::sink::{Sink, SinkBatch, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::{Content, Item, Op};
use towpath_sinks::postgres::{PostgresDestination, PostgresSink};
use towpath_sinks::sqlite::{SqliteDestination, SqliteSink};
use towpath_sinks::webhook::{WebhookDestination, WebhookOptions, WebhookSink};

/// Rows of one transaction of a first sync, as a queue merges them.
const BATCH: usize = 10_000;
/// Receivers of webhooks.
const RECEIVERS: usize = 50;

fn main() {
    // `cargo test --benches` only asks whether it builds and runs.
    let is_test =
        std::env::args().any(|argument| argument == "--test") || !std::env::args().any(|a| a == "--bench");
    let usual = if is_test { 200 } else { 100_000 };
    let items = std::env::var("TOWPATH_BENCH_ITEMS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let parts = ["sqlite", "postgres", "webhook"];
    let named: Vec<String> = std::env::args().filter(|argument| parts.contains(&argument.as_str())).collect();
    let is_wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    runtime.block_on(async {
        if is_wanted("sqlite") {
            sqlite(items).await;
        }
        if is_wanted("postgres") {
            first_sync(items).await;
            steady(if is_test { 20 } else { 500 }).await;
        }
        if is_wanted("webhook") {
            webhooks(if is_test { 5 } else { 400 }).await;
        }
    });
}

fn item(n: usize) -> Item {
    let mut item = Item::new(format!("item-{n}"));
    item.title = Some(format!("Title of item {n}"));
    // 1 kB that hardly compresses, as real text does.
    let text: String = (0..900).map(|k| char::from(b'a' + ((n * 31 + k * k * 7 + k) % 26) as u8)).collect();
    item.content = Some(Content::new("text/plain", text));
    item
}

fn put(n: usize) -> SinkEvent {
    let (feed, position) = ("f".to_owned(), n.to_string());
    let modified = Some(jiff::Timestamp::now());
    SinkEvent::Change(Box::new(Followed {
        feed,
        op: Op::Put,
        item: item(n),
        patch: None,
        modified,
        position,
        entry_id: None,
    }))
}

fn batch(events: Vec<SinkEvent>, at: usize) -> SinkBatch {
    SinkBatch {
        source: "s".into(),
        events: Arc::new(events),
        checkpoint: Some(at.to_string().into_bytes().into()),
    }
}

fn sink(server: &PostgresServer) -> PostgresSink {
    PostgresSink::new(PostgresDestination::parse(&server.url(), None).unwrap())
}

/// A first sync of items into SQLite, and the bare loop.
async fn sqlite(items: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (copy, bare) = (path("copy.db"), path("bare.db"));
    let mut to = SqliteSink::new(SqliteDestination::parse(&copy).unwrap());
    to.open("s").await.unwrap();
    // The loop's tables are the sink's own, so that columns and indexes are the same.
    let mut tables = SqliteSink::new(SqliteDestination::parse(&bare).unwrap());
    tables.open("s").await.unwrap();
    tables.close().await.unwrap();
    let mut connection = rusqlite::Connection::open(&bare).unwrap();
    connection.pragma_update(None, "synchronous", "NORMAL").unwrap();
    connection.pragma_update(None, "cache_size", -65_536).unwrap();
    let (mut ours, mut loops) = (Duration::ZERO, Duration::ZERO);
    // By turns, so that both meet the same machine.
    for from in (0..items).step_by(BATCH) {
        let events: Vec<SinkEvent> = (from..(from + BATCH).min(items)).map(put).collect();
        let rows: Vec<(&Followed, Vec<u8>)> =
            events.iter().map(|event| (event.change().unwrap(), event.to_json())).collect();
        let started = Instant::now();
        insert(&mut connection, &rows).unwrap();
        loops += started.elapsed();
        drop(rows);
        let batch = batch(events, from + BATCH);
        let started = Instant::now();
        to.apply(&batch).await.unwrap();
        ours += started.elapsed();
    }
    let started = Instant::now();
    to.close().await.unwrap();
    ours += started.elapsed();
    let count = "SELECT count(*) FROM items";
    let copied: usize =
        rusqlite::Connection::open(&copy).unwrap().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
            as usize;
    assert_eq!(copied, items);
    println!(
        "SQLite, first sync of {items} items: {:.0} items/s; bare loop {:.0}/s; ratio {:.2}",
        items as f64 / ours.as_secs_f64(),
        items as f64 / loops.as_secs_f64(),
        loops.as_secs_f64() / ours.as_secs_f64(),
    );
}

/// Inserts rows that are made already.
fn insert(connection: &mut rusqlite::Connection, rows: &[(&Followed, Vec<u8>)]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut item = transaction.prepare_cached(
            "INSERT INTO items (feed, id, title, authors, tags, content_type, content, extra, modified, position)
             VALUES (?1, ?2, ?3, '[]', '[]', ?4, ?5, '{}', ?6, ?7)",
        )?;
        let mut change = transaction.prepare_cached(
            "INSERT INTO changes (feed, op, id, position, modified, recorded, change)
             VALUES (?1, 'put', ?2, ?3, ?4, ?4, ?5)",
        )?;
        for (row, line) in rows {
            let Followed { feed, item: Item { id, title, content, .. }, position, modified, .. } = row;
            let (content, modified) = (content.as_ref().unwrap(), modified.unwrap().to_string());
            let (media_type, text) = (&content.media_type, content.text().unwrap());
            item.execute(rusqlite::params![feed, id, title, media_type, text, modified, position])?;
            let line = std::str::from_utf8(line).unwrap();
            change.execute(rusqlite::params![feed, id, position, modified, line])?;
        }
    }
    transaction.commit()
}

/// A first sync of items, in transactions of [`BATCH`] rows.
async fn first_sync(items: usize) {
    let batches: Vec<SinkBatch> = (0..items)
        .step_by(BATCH)
        .map(|from| batch((from..(from + BATCH).min(items)).map(put).collect(), from + BATCH))
        .collect();
    let server = PostgresServer::start();
    let mut to = sink(&server);
    to.open("s").await.unwrap();
    let started = Instant::now();
    for batch in &batches {
        to.apply(batch).await.unwrap();
    }
    let ours = started.elapsed();
    assert_eq!(server.query("SELECT count(*) FROM items"), items.to_string());
    let bare = by_psql(items).await;
    println!(
        "PostgreSQL, first sync of {items} items: {:.0} items/s; psql COPY and merge {:.0}/s; ratio {:.2}",
        items as f64 / ours.as_secs_f64(),
        items as f64 / bare.as_secs_f64(),
        bare.as_secs_f64() / ours.as_secs_f64(),
    );
}

/// Inserts equal rows by psql: COPY into a staging table, then merges into tables with the same indexes.
async fn by_psql(items: usize) -> Duration {
    let server = PostgresServer::start();
    // The sink's own tables, so that columns and indexes are the same.
    sink(&server).open("s").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut script = String::from(
        "CREATE TEMP TABLE staging (feed text, id text, title text, content text, modified timestamptz, \
         position text, change json);\n",
    );
    for from in (0..items).step_by(BATCH) {
        let path = folder.path().join(from.to_string());
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
        for n in from..(from + BATCH).min(items) {
            let event = put(n);
            let SinkEvent::Change(change) = &event else { continue };
            let text = change.item.content.as_ref().and_then(Content::text).unwrap();
            let line = String::from_utf8(event.to_json()).unwrap().replace('\\', "\\\\");
            let (id, title) = (&change.item.id, change.item.title.as_ref().unwrap());
            writeln!(file, "f\t{id}\t{title}\t{text}\t{}\t{n}\t{line}", change.modified.unwrap()).unwrap();
        }
        drop(file);
        script.push_str(&format!(
            "BEGIN; TRUNCATE staging;\n\\copy staging FROM '{}'\n\
             INSERT INTO items (feed, id, title, content_type, content, authors, tags, extra, modified, position) \
             SELECT feed, id, title, 'text/plain', content, '[]', '[]', '{{}}', modified, position FROM staging \
             ON CONFLICT (feed, id) DO UPDATE SET title = excluded.title, content = excluded.content, \
             modified = excluded.modified, position = excluded.position;\n\
             INSERT INTO changes (feed, op, id, position, modified, change) \
             SELECT feed, 'put', id, position, modified, change FROM staging; COMMIT;\n",
            path.display()
        ));
    }
    let file = folder.path().join("script.sql");
    std::fs::write(&file, script).unwrap();
    let started = Instant::now();
    server.run_file(&file);
    let took = started.elapsed();
    assert_eq!(server.query("SELECT count(*) FROM changes"), items.to_string());
    took
}

/// Small transactions, one after another, as a live feed makes them.
async fn steady(rounds: usize) {
    const CHANGES: usize = 50;
    let server = PostgresServer::start();
    let mut to = sink(&server);
    to.open("s").await.unwrap();
    let started = Instant::now();
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        // Among 10 000 items, so that most rows are replaced.
        let events = (0..CHANGES).map(|n| put((round * 7919 + n * 13) % 10_000)).collect();
        let batch = batch(events, round + 1);
        let begun = Instant::now();
        to.apply(&batch).await.unwrap();
        times.push(begun.elapsed());
    }
    times.sort();
    println!(
        "PostgreSQL, steady, {CHANGES} changes a transaction: {:.0} changes/s, median {:.1} ms, 99% {:.1} ms",
        (rounds * CHANGES) as f64 / started.elapsed().as_secs_f64(),
        times[times.len() / 2].as_secs_f64() * 1e3,
        times[times.len() * 99 / 100].as_secs_f64() * 1e3,
    );
}

/// Signed messages of one change each, to receivers beside each other.
async fn webhooks(messages: usize) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(receive(stream));
        }
    });
    let options = WebhookOptions::default()
        .with_secrets(vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap()])
        .with_batch(1)
        .with_allow_private(true);
    let started = Instant::now();
    let receivers = (0..RECEIVERS).map(|n| {
        let to = WebhookDestination::parse(&format!("http://{address}/{n}"), options.clone()).unwrap();
        tokio::spawn(async move {
            WebhookSink::new(to).apply(&batch((0..messages).map(put).collect(), 1)).await.unwrap();
        })
    });
    for receiver in receivers.collect::<Vec<_>>() {
        receiver.await.unwrap();
    }
    let count = RECEIVERS * messages;
    println!(
        "webhooks, {RECEIVERS} receivers, one change a message: {:.0} deliveries/s",
        count as f64 / started.elapsed().as_secs_f64()
    );
}

/// Answers requests on a connection, without looking at more than their length.
async fn receive(mut stream: tokio::net::TcpStream) {
    let mut buffer = Vec::with_capacity(8192);
    loop {
        if let Some(end) = end_of_request(&buffer) {
            buffer.drain(..end);
            if stream.write_all(b"HTTP/1.1 204 x\r\n\r\n").await.is_err() {
                return;
            }
        } else if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

fn end_of_request(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?;
    let length: usize = text.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    (buffer.len() >= head + length).then_some(head + length)
}
