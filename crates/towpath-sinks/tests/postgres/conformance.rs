//! The sinks' conformance suite against a real server.

use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::{Client, NoTls, Row};
use towpath_proto::Content;
use towpath_sinks::conformance::{HistoryEntry, LiveItems, SinkFixture};
use towpath_sinks::conformance_tests;

use super::*;

struct PostgresFixture(PostgresServer);

impl PostgresFixture {
    /// Connects as a user of the tables.
    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.0.url(), NoTls).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        client
    }
}

fn item(row: &Row) -> ((String, String), Item) {
    let content = row.get::<_, Option<String>>("content").map(String::into_bytes);
    let content = content.or_else(|| row.get("content_bytes"));
    let media_type = || row.get::<_, Option<String>>("content_type").unwrap();
    let json = |name: &str| row.get::<_, String>(name);
    let id: String = row.get("id");
    let item = Item {
        id: id.clone(),
        url: row.get("url"),
        title: row.get("title"),
        summary: row.get("summary"),
        content: content.map(|bytes| Content::new(media_type(), bytes)),
        authors: serde_json::from_str(&json("authors")).unwrap(),
        tags: serde_json::from_str(&json("tags")).unwrap(),
        published: row.get("published"),
        updated: row.get("updated"),
        extra: serde_json::from_str(&json("extra")).unwrap(),
    };
    ((row.get("feed"), id), item)
}

#[async_trait]
impl SinkFixture for PostgresFixture {
    async fn sink(&mut self) -> Box<dyn Sink> {
        Box::new(sink(&self.0.url()))
    }

    async fn items(&mut self) -> LiveItems {
        let select = "SELECT feed, id, url, title, summary, content, content_bytes, content_type, \
                      authors::text AS authors, tags::text AS tags, published, updated, extra::text AS extra FROM items";
        self.client().await.query(select, &[]).await.unwrap().iter().map(item).collect()
    }

    async fn history(&mut self) -> Option<Vec<HistoryEntry>> {
        let select = "SELECT feed, op, coalesce(id, ''), coalesce(position, '') FROM changes ORDER BY n";
        let rows = self.client().await.query(select, &[]).await.unwrap();
        Some(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect())
    }

    async fn set_available(&mut self, is_available: bool) -> bool {
        if is_available {
            self.0.run();
        } else {
            self.0.kill();
        }
        true
    }

    /// PostgreSQL has no U+0000 in text.
    fn takes_nul(&self) -> bool {
        false
    }

    fn poison(&self) -> Option<Followed> {
        // The tables are there once a sink was opened.
        tokio::task::block_in_place(|| {
            let opened = async { sink(&self.0.url()).open("s").await.map(drop) };
            tokio::runtime::Handle::current().block_on(opened).unwrap();
        });
        self.0.query("ALTER TABLE items ADD CONSTRAINT no_poison CHECK (id <> 'poison')");
        let SinkEvent::Change(change) = put("poison", "a rule of the user's own", 2) else { return None };
        Some(*change)
    }

    async fn refused(&mut self) -> usize {
        let count = "SELECT count(*) FROM refused WHERE reason LIKE '%no_poison%' AND change IS NOT NULL";
        self.0.query(count).parse().unwrap()
    }
}

conformance_tests!(PostgresFixture(PostgresServer::start()));

/// Batches that are copied, and merged: new items, replaced ones, deletions, bytes and patches.
#[tokio::test(flavor = "multi_thread")]
async fn large_batches_end_in_the_same_rows_as_small_ones() {
    let server = PostgresServer::start();
    let text = |n: u64| format!("a\tb\\N\n{n} \u{1F600} {}", "x".repeat(n as usize % 3000));
    let events = |from: u64| {
        (from..from + 1500).map(move |n| {
            let mut item = Item::new(format!("item-{}", n % 1100));
            item.title = Some(format!("title {n}\r\n\\"));
            item.tags = vec!["a\"b".into(), "\\".into()];
            item.content = match n % 3 {
                0 => Some(Content::new("text/plain", text(n))),
                1 => Some(Content::new("image/png", vec![0xff, 0, (n % 256) as u8])),
                _ => None,
            };
            if n % 17 == 0 { delete(&item.id, n) } else { change(Op::Put, item, n) }
        })
    };
    let (mut large, mut small) = (sink(&server.url()), sink(&format!("{}?table=small", server.url())));
    for to in [&mut large, &mut small] {
        to.open(SOURCE).await.unwrap();
    }
    for from in [0, 1000, 2500] {
        let events: Vec<SinkEvent> = events(from).collect();
        large.apply(&batch(events.clone(), Some(&from.to_string()))).await.unwrap();
        for part in events.chunks(300) {
            small.apply(&batch(part.to_vec(), Some(&from.to_string()))).await.unwrap();
        }
    }
    let differing = |table: &str, columns: &str| {
        server.query(&format!(
            "SELECT count(*) FROM (SELECT {columns} FROM {table} EXCEPT SELECT {columns} FROM small_{table}) d"
        ))
    };
    let columns = "feed, id, title, url, summary, published, updated, authors, tags, content_type, content, \
                   content_bytes, extra, modified, position";
    assert_eq!(differing("items", columns), "0");
    assert_eq!(differing("changes", "n, feed, op, id, position, modified, change::text"), "0");
    assert_eq!(server.query("SELECT count(*) FROM changes"), "4500");
    assert_eq!(server.query("SELECT count(*) FROM items"), server.query("SELECT count(*) FROM small_items"));
}

/// A user who may not create temporary tables.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_temporary_tables_copies_all_the_same() {
    let server = PostgresServer::start();
    server.query(
        "REVOKE TEMPORARY ON DATABASE feeds FROM PUBLIC; CREATE ROLE writer LOGIN PASSWORD 'hush-writer'; \
         GRANT CREATE, USAGE ON SCHEMA public TO writer",
    );
    let mut to = sink(&server.url_of("writer", "hush-writer"));
    to.open(SOURCE).await.unwrap();
    let events = (0..700).map(|n| put(&format!("item-{n}"), "x", n)).collect();
    to.apply(&batch(events, Some("700"))).await.unwrap();
    assert_eq!(server.query("SELECT count(*) FROM items"), "700");
    drop(tokio::time::timeout(Duration::from_secs(10), to.close()).await);
}
