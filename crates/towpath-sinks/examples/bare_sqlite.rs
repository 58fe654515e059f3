//! The peer of `cargo xtask bench sinks`: a loop that inserts items into the same tables in the same batches.
//!
//! `bare_sqlite DATABASE LINES BATCH`, with the lines of `towpath follow` in a file. Prints the seconds of the inserts;
//! reading and parsing the lines are not counted.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use serde_json::Value;
use towpath_client::Sink as _;
use towpath_sinks::sqlite::{SqliteDestination, SqliteSink};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, lines, batch] = args.as_slice() else {
        return Err("usage: bare_sqlite DATABASE LINES BATCH".into());
    };
    // The same tables and indexes.
    let mut sink = SqliteSink::new(SqliteDestination::parse(path)?);
    sink.open("bare").await?;
    sink.close().await?;
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "cache_size", -65_536)?;
    let mut spent = Duration::ZERO;
    let mut rows: Vec<(String, Value)> = Vec::new();
    let mut input = BufReader::new(std::fs::File::open(lines)?).lines();
    loop {
        let line = input.next().transpose()?;
        if let Some(line) = &line {
            rows.push((line.clone(), serde_json::from_str(line)?));
        }
        if rows.len() >= batch.parse()? || (line.is_none() && !rows.is_empty()) {
            let start = Instant::now();
            insert(&mut connection, &rows)?;
            spent += start.elapsed();
            rows.clear();
        }
        if line.is_none() {
            break;
        }
    }
    println!("{}", spent.as_secs_f64());
    Ok(())
}

fn insert(connection: &mut Connection, rows: &[(String, Value)]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut item = transaction.prepare_cached(
            "INSERT INTO items (feed, id, title, authors, tags, content_type, content, extra, modified, position)
             VALUES (?1, ?2, ?3, '[]', '[]', ?4, ?5, '{}', ?6, ?7)",
        )?;
        let mut change = transaction.prepare_cached(
            "INSERT INTO changes (feed, op, id, position, modified, recorded, change) VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)",
        )?;
        for (line, row) in rows {
            let text = |key: &str| row[key].as_str();
            let (feed, id, position) = (text("feed"), text("id"), text("position"));
            let title = row["item"]["title"].as_str();
            item.execute(params![
                feed,
                id,
                title,
                text("content_type"),
                text("content"),
                text("modified"),
                position
            ])?;
            change.execute(params![feed, text("op"), id, position, text("modified"), line])?;
        }
    }
    transaction.commit()
}
