//! SQLite databases that are not as they should be, and the options of the tables.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;
use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::{Content, Item, Op};
use towpath_sinks::open;

fn sink(path: &Path, options: &str) -> Box<dyn Sink> {
    open(&format!("sqlite:{}{options}", path.display()).parse().unwrap())
}

fn put(feed: &str, id: &str, text: &str) -> SinkEvent {
    let item = Item {
        title: Some(format!("Title {id}")),
        content: Some(Content::new("text/plain", text.to_owned())),
        ..Item::new(id)
    };
    let (feed, position) = (feed.into(), id.into());
    SinkEvent::Change(Box::new(Followed {
        feed,
        op: Op::Put,
        item,
        patch: None,
        modified: None,
        position,
        entry_id: None,
    }))
}

fn batch(source: &str, events: Vec<SinkEvent>) -> SinkBatch {
    SinkBatch { source: source.into(), events: Arc::new(events), checkpoint: Some(b"{}".as_slice().into()) }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, SinkError>) -> String {
    match result {
        Err(SinkError::Refused { message }) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn number(path: &Path, sql: &str) -> i64 {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn a_table_of_somebody_else_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("mine.db");
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE Items (x); INSERT INTO Items VALUES (1)")
        .unwrap();
    let error = refusal(sink(&path, "").open("s").await);
    assert!(error.contains("table items is not towpath's") && error.contains("?table=PREFIX"), "{error}");
    assert_eq!(number(&path, "SELECT count(*) FROM sqlite_schema"), 1);
    // A prefix finds room beside it.
    let mut sink = sink(&path, "?table=kev");
    sink.open("s").await.unwrap();
    sink.apply(&batch("s", vec![put("f", "a", "x")])).await.unwrap();
    assert_eq!(number(&path, "SELECT count(*) FROM kev_items"), 1);
    assert_eq!(number(&path, "SELECT x FROM Items"), 1);
}

#[tokio::test]
async fn tables_of_a_newer_version_or_with_other_columns_are_refused() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    sink(&path, "").open("s").await.unwrap();
    let change = |sql: &str| Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    change("UPDATE towpath SET version = 99");
    let error = refusal(sink(&path, "").open("s").await);
    assert!(error.contains("version 99") && error.contains("update this program"), "{error}");
    change("UPDATE towpath SET version = 0");
    let error = refusal(sink(&path, "").open("s").await);
    assert!(error.contains("version 0, which no towpath has") && error.contains("?table="), "{error}");
    change("UPDATE towpath SET version = 1; ALTER TABLE items ADD COLUMN mine");
    sink(&path, "").open("s").await.unwrap();
    change("ALTER TABLE items RENAME COLUMN title TO name");
    let error = refusal(sink(&path, "").open("s").await);
    assert!(error.contains("items has no column title"), "{error}");
    change("DROP TABLE items");
    let error = refusal(sink(&path, "").open("s").await);
    assert!(error.contains("items is missing"), "{error}");
}

#[tokio::test]
async fn files_that_are_no_database_are_refused() {
    let folder = folder();
    let text = folder.path().join("text");
    std::fs::write(&text, "not a database, but long enough to be read as the head of one".repeat(20))
        .unwrap();
    let error = refusal(sink(&text, "").open("s").await);
    assert!(error.contains("name another file"), "{error}");
    let missing = folder.path().join("no/such/folder/copy.db");
    let error = refusal(sink(&missing, "").open("s").await);
    assert!(error.contains("check that its folder exists"), "{error}");
    let error = refusal(sink(folder.path(), "").open("s").await);
    assert!(error.contains("check that its folder exists"), "{error}");
}

#[tokio::test]
async fn a_damaged_database_is_refused() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    let mut first = sink(&path, "");
    first.open("s").await.unwrap();
    let events = (0..300).map(|n| put("f", &n.to_string(), &"x".repeat(1000))).collect();
    first.apply(&batch("s", events)).await.unwrap();
    first.close().await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let length = bytes.len();
    bytes[4096..length / 2].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let mut again = sink(&path, "");
    let error = match again.open("s").await {
        Ok(_) => refusal(again.apply(&batch("s", vec![put("f", "1", "y")])).await),
        error => refusal(error),
    };
    assert!(error.contains("restore a copy"), "{error}");
}

#[tokio::test]
async fn a_database_that_is_removed_while_it_is_open_is_not_written_into_the_void() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    let mut sink = sink(&path, "");
    sink.open("s").await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let error = refusal(sink.apply(&batch("s", vec![put("f", "a", "x")])).await);
    assert!(error.contains("moved or removed"), "{error}");
}

#[tokio::test]
async fn a_feed_comes_from_one_source_and_a_source_from_one_process() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    let (mut first, mut second) = (sink(&path, ""), sink(&path, ""));
    first.open("http://a/").await.unwrap();
    second.open("http://a/").await.unwrap();
    first.apply(&batch("http://a/", vec![put("f", "a", "x")])).await.unwrap();
    let error = refusal(second.apply(&batch("http://a/", vec![put("f", "b", "x")])).await);
    assert!(error.contains("another process follows http://a/"), "{error}");
    second.open("http://me:secret@b/").await.unwrap();
    let error = refusal(second.apply(&batch("http://me:secret@b/", vec![put("f", "a", "x")])).await);
    assert!(error.contains("\"f\" come from http://a/") && !error.contains("secret"), "{error}");
    assert_eq!(number(&path, "SELECT count(*) FROM items"), 1);
}

#[tokio::test]
async fn the_text_index_finds_what_is_there_now() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    let found = |word: &str| {
        let sql = format!("SELECT count(*) FROM items_search WHERE items_search MATCH '{word}'");
        number(&path, &sql)
    };
    let mut plain = sink(&path, "");
    plain.open("s").await.unwrap();
    plain.apply(&batch("s", vec![put("f", "a", "ten boats")])).await.unwrap();
    plain.close().await.unwrap();
    // Switched on later: what is there is indexed too.
    let mut search = sink(&path, "?search=on");
    search.open("s").await.unwrap();
    assert_eq!(found("boats"), 1);
    search.apply(&batch("s", vec![put("f", "a", "ten locks"), put("f", "b", "a lock")])).await.unwrap();
    assert_eq!((found("boats"), found("locks"), found("title")), (0, 1, 2));
    let mut delete = put("f", "a", "");
    if let SinkEvent::Change(change) = &mut delete {
        change.op = Op::Delete;
    }
    search.apply(&batch("s", vec![delete])).await.unwrap();
    assert_eq!((found("locks"), found("lock")), (0, 1));
    let check = "INSERT INTO items_search (items_search) VALUES ('integrity-check')";
    Connection::open(&path).unwrap().execute_batch(check).unwrap();
    search.close().await.unwrap();
    sink(&path, "").open("s").await.unwrap();
    assert_eq!(number(&path, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'items_search%'"), 0);
}

#[tokio::test]
async fn the_history_is_optional_and_bounded_by_age() {
    let folder = folder();
    let path = folder.path().join("copy.db");
    let mut off = sink(&path, "?changes=off");
    off.open("s").await.unwrap();
    off.apply(&batch("s", vec![put("f", "a", "x")])).await.unwrap();
    assert_eq!(number(&path, "SELECT count(*) FROM changes"), 0);
    off.close().await.unwrap();
    let mut hour = sink(&path, "?changes=1h");
    hour.open("s").await.unwrap();
    hour.apply(&batch("s", vec![put("f", "b", "x"), put("f", "c", "x")])).await.unwrap();
    let old = "UPDATE changes SET recorded = '2020-01-01T00:00:00Z' WHERE id = 'b'";
    Connection::open(&path).unwrap().execute_batch(old).unwrap();
    hour.apply(&batch("s", vec![put("f", "d", "x")])).await.unwrap();
    assert_eq!(number(&path, "SELECT count(*) FROM changes WHERE id IN ('c', 'd')"), 2);
    assert_eq!(number(&path, "SELECT count(*) FROM changes"), 2);
}
