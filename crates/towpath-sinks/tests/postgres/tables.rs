//! The tables after batches.

use super::*;

#[tokio::test]
async fn items_are_current_and_changes_are_all() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    assert_eq!(sink.open(SOURCE).await.unwrap(), None);
    let mut whole = Item::new("c");
    whole.url = Some("http://x/".into());
    whole.tags = vec!["a".into(), "\"b\"".into()];
    whole.content = Some(towpath_proto::Content::new("image/png", vec![0x89, 0]));
    whole.extra.insert("k".into(), serde_json::json!({ "n": 1.5 }));
    let events =
        vec![put("a", "one", 1), put("b", "two", 2), change(Op::Put, whole, 3), put("a", "three", 4)];
    sink.apply(&batch(events, Some("at 4"))).await.unwrap();
    sink.apply(&batch(vec![delete("b", 5)], Some("at 5"))).await.unwrap();
    assert_eq!(items(&server), "a|three|4 c||3");
    assert_eq!(history(&server), "put 1, put 2, put 3, put 4, delete 5");
    let row = "SELECT url, tags->>1, content_type, content, encode(content_bytes, 'hex'), extra->'k'->>'n', \
               modified AT TIME ZONE 'UTC' FROM items WHERE id = 'c'";
    assert_eq!(server.query(row), "http://x/|\"b\"|image/png||8900|1.5|2026-01-02 03:04:05");
    assert_eq!(server.query("SELECT change->>'id' FROM changes WHERE op = 'delete'"), "b");
    let mut again = super::sink(&server.url());
    assert_eq!(again.open(SOURCE).await.unwrap().as_deref(), Some(&b"at 5"[..]));
}

#[tokio::test]
async fn a_unit_that_was_cut_off_stands_once_in_the_history() {
    let server = PostgresServer::start();
    let mut first = sink(&server.url());
    first.open(SOURCE).await.unwrap();
    first.apply(&batch(vec![put("x", "before", 1)], Some("1"))).await.unwrap();
    first.apply(&batch(vec![put("a", "one", 2), put("b", "two", 3)], None)).await.unwrap();
    first.apply(&batch(vec![put("c", "three", 4)], None)).await.unwrap();
    drop(first);
    let mut second = sink(&server.url());
    assert_eq!(second.open(SOURCE).await.unwrap().as_deref(), Some(&b"1"[..]));
    second.apply(&batch(vec![put("a", "one", 2), put("b", "two", 3)], None)).await.unwrap();
    second.apply(&batch(vec![put("c", "three", 4), put("d", "four", 5)], Some("5"))).await.unwrap();
    assert_eq!(history(&server), "put 1, put 2, put 3, put 4, put 5");
    assert_eq!(items(&server), "a|one|2 b|two|3 c|three|4 d|four|5 x|before|1");
    // Once the unit is complete, an equal position is another change: a publisher that began anew counts from one.
    second.apply(&batch(vec![put("a", "anew", 2)], Some("6"))).await.unwrap();
    assert_eq!(history(&server), "put 1, put 2, put 3, put 4, put 5, put 2");
}

#[tokio::test]
async fn a_reset_empties_the_feed_or_the_whole_source() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    sink.open("other").await.unwrap();
    sink.apply(&batch(vec![put("a", "one", 1)], Some("1"))).await.unwrap();
    let mut other = put("a", "other", 1);
    if let SinkEvent::Change(change) = &mut other {
        change.feed = "g".into();
    }
    let others = SinkBatch { source: "other".into(), ..batch(vec![other], Some("1")) };
    sink.apply(&others).await.unwrap();
    sink.apply(&batch(vec![reset("f"), put("b", "two", 1)], Some("2"))).await.unwrap();
    assert_eq!(items(&server), "a|other|1 b|two|1");
    sink.apply(&batch(vec![reset("http://publisher/")], Some("3"))).await.unwrap();
    assert_eq!(items(&server), "a|other|1");
    assert_eq!(history(&server), "put 1, put 1, reset, put 1, reset");
}

#[tokio::test]
async fn tables_have_a_prefix_a_schema_and_a_text_index() {
    let server = PostgresServer::start();
    let url = format!("{}?schema=Odd%20name&table=kev&search=on&changes=off", server.url());
    let mut sink = sink(&url);
    sink.open(SOURCE).await.unwrap();
    sink.apply(&batch(vec![put("a", "Ten blue boats", 1), put("b", "Two", 2)], Some("2"))).await.unwrap();
    let found = "SELECT id FROM \"Odd name\".kev_items WHERE search @@ to_tsquery('simple', 'boats')";
    assert_eq!(server.query(found), "a");
    assert_eq!(server.query("SELECT count(*) FROM \"Odd name\".kev_changes"), "0");
    let mut again = super::sink(&format!("{}?schema=Odd%20name&table=kev&changes=1h", server.url()));
    again.open(SOURCE).await.unwrap();
    server.query(
        "INSERT INTO \"Odd name\".kev_changes (feed, op, recorded, change) VALUES ('f', 'put', now() - interval '2h', '{}')",
    );
    again.apply(&batch(vec![put("c", "Three", 3)], Some("3"))).await.unwrap();
    assert_eq!(server.query("SELECT position FROM \"Odd name\".kev_changes"), "3");
}

#[tokio::test]
async fn patches_apply_to_the_row() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    let mut item = Item::new("a");
    item.content = Some(towpath_proto::Content::new("application/json", r#"{"a":1,"b":2}"#));
    sink.apply(&batch(vec![change(Op::Put, item, 1)], Some("1"))).await.unwrap();
    let mut patch = change(Op::Patch, Item::new("a"), 2);
    if let SinkEvent::Change(change) = &mut patch {
        change.patch = Some(towpath_proto::Content::new(towpath_proto::patch::MERGE_PATCH, r#"{"b":3}"#));
    }
    sink.apply(&batch(vec![patch], Some("2"))).await.unwrap();
    assert_eq!(server.query("SELECT content::json->>'a', content::json->>'b' FROM items"), "1|3");
}
