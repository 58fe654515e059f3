//! Check of everything that the protocols keep beside the logs.

use std::sync::Arc;

use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_store::lease::LeaseRow;
use towpath_store::{FeedSummary, Store, Table};

use crate::engine::check_pool::CheckPool;
use crate::engine::finding::Findings;
use crate::engine::identity::IDENTITY;
use crate::engine::table_scan::TableScan;
use crate::engine::{attachments, change_counts};
use crate::protocols::{diffdelta, pages, replication};
use crate::store_error::StoreError;

/// Tables whose rows are checked one by one.
const TABLES: [Table; 4] = [Table::Sources, Table::Chains, Table::Subscriptions, Table::Leases];

/// Checks the state of all protocols against the logs, and that every row can be read.
pub(crate) async fn verify(store: Arc<dyn Store>) -> Result<Findings, StoreError> {
    let pool = CheckPool::new(store);
    let store = pool.store.clone();
    let files = pool.run(async move { attachments::verify(&*store).await });
    let (feeds, chains, rows, files) = tokio::try_join!(
        verify_feeds(&pool),
        diffdelta::verify::verify(&pool),
        verify_rows(&*pool.store),
        files
    )?;
    Ok(Findings([feeds.0, chains.0, rows.0, files.0].concat()))
}

async fn verify_feeds(pool: &CheckPool) -> Result<Findings, StoreError> {
    let feeds = pool.store.heads().await?;
    pool.join(feeds.into_iter().map(|feed| verify_feed(pool, feed))).await
}

async fn verify_feed(pool: &CheckPool, feed: FeedSummary) -> Result<Findings, StoreError> {
    let (store, summary) = (pool.store.clone(), feed.clone());
    let others = pool.run(async move {
        let mut findings = Findings::default();
        replication::verify::verify(&*store, &summary, &mut findings).await?;
        change_counts::verify(&*store, &summary, &mut findings).await?;
        Ok(findings)
    });
    let (pages, others) = tokio::try_join!(pages::verify::verify(pool, &feed), others)?;
    Ok(Findings([pages.0, others.0].concat()))
}

/// Checks that every row of [`TABLES`] can be read.
async fn verify_rows(store: &dyn Store) -> Result<Findings, StoreError> {
    let mut findings = Findings::default();
    for table in TABLES {
        let mut scan = TableScan::new(store, table, b"");
        while let Some(page) = scan.next().await? {
            for (key, value) in &page {
                if !is_readable(table, key, value) {
                    let row = String::from_utf8_lossy(key);
                    findings.add(None, format!("table {}, row {row}", table.name()), "it cannot be read");
                }
            }
        }
    }
    Ok(findings)
}

/// Returns true if a row has the form of its kind.
fn is_readable(table: Table, key: &[u8], value: &[u8]) -> bool {
    let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(value).is_ok();
    match table {
        Table::Leases => LeaseRow::decode(value).is_some(),
        Table::Subscriptions if key.starts_with(b"s/") => HubSubscription::from_bytes(value).is_some(),
        Table::Subscriptions if key.starts_with(b"p/") => value.len() == 8,
        Table::Subscriptions if key.starts_with(b"x") => is_json(),
        // The indexes of times have all in their keys.
        Table::Sources | Table::Chains if value.is_empty() => true,
        // Random bytes, which may begin as JSON does.
        Table::Sources if key == IDENTITY => true,
        // Other text rows are no JSON.
        Table::Sources | Table::Chains if matches!(value.first(), Some(b'{' | b'[')) => is_json(),
        Table::Sources | Table::Chains | Table::Subscriptions | Table::Documents => true,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use towpath_proto::{FeedId, Item, NewChange};
    use towpath_store::memory::MemoryStore;
    use towpath_store::{Expected, TableWrite};

    use super::*;
    use crate::config::Config;
    use crate::engine::Engine;
    use crate::engine::finding::Finding;
    use crate::protocols::diffdelta;
    use crate::protocols::replication::snapshot;

    /// A node whose feed has pages, two DiffDelta documents, counts and a snapshot.
    async fn node() -> (Arc<Engine>, Arc<MemoryStore>) {
        let config = "[[feed]]\nid = \"notes\"\npage_items = 3\n";
        let config = Config::parse(config, Path::new("towpath.toml")).unwrap();
        let store = Arc::new(MemoryStore::new(Arc::new(jiff::Timestamp::now)));
        let engine = crate::protocols::start(config, store.clone()).await.unwrap();
        let feed = FeedId::new("notes").unwrap();
        for round in 0..2 {
            let put =
                |n: u32| NewChange::put(Item { title: Some(format!("{round}")), ..Item::new(n.to_string()) });
            store.append(&feed, Expected::Any, (0..5).map(put).collect()).await.unwrap();
            diffdelta::publish_pending(&engine, diffdelta::HeldRole::Leave).await.unwrap();
        }
        snapshot::make(&engine, &engine.feed("notes").unwrap(), Vec::new()).await.unwrap().unwrap();
        change_counts::count_now(&engine, &engine.feed("notes").unwrap()).await;
        (engine, store)
    }

    async fn findings(store: &Arc<MemoryStore>) -> Vec<Finding> {
        verify(store.clone()).await.unwrap().0
    }

    async fn write(store: &MemoryStore, table: Table, key: &[u8], value: Option<Bytes>) {
        store.write(vec![TableWrite { table, key: key.to_vec(), value }], Vec::new()).await.unwrap();
    }

    /// Removes and damages every row that the protocols keep of a log, one after another.
    #[tokio::test]
    async fn every_row_that_the_log_implies_is_checked() {
        let (_engine, store) = node().await;
        assert_eq!(findings(&store).await, []);
        let mut kinds = std::collections::BTreeSet::new();
        for table in [Table::Chains, Table::Documents] {
            for (key, value) in store.scan(table, b"", None, usize::MAX).await.unwrap() {
                let name = String::from_utf8_lossy(&key).into_owned();
                kinds.insert(name.split('/').filter(|part| part.parse::<u64>().is_err()).collect::<String>());
                // Without it nothing was counted yet, or the snapshot was dropped and its pages are still to go.
                let may_miss =
                    name.starts_with("counted/") || name.starts_with("replication/notes/snapshot/");
                write(&store, table, &key, None).await;
                assert!(may_miss || !findings(&store).await.is_empty(), "without {name}");
                write(&store, table, &key, Some(Bytes::from_static(b"{"))).await;
                assert!(!findings(&store).await.is_empty(), "with a damaged {name}");
                write(&store, table, &key, Some(value)).await;
            }
        }
        assert!(kinds.len() >= 9, "{kinds:?}");
        assert_eq!(findings(&store).await, []);
    }

    #[tokio::test]
    async fn an_identity_may_begin_as_json_does() {
        let (_engine, store) = node().await;
        for value in [&b"[\x01\x02"[..], b"{\x01\x02"] {
            write(&store, Table::Sources, IDENTITY, Some(Bytes::from_static(value))).await;
            assert_eq!(findings(&store).await, []);
        }
    }

    #[tokio::test]
    async fn findings_name_the_feed_and_the_place() {
        let (_engine, store) = node().await;
        let key = b"replication/notes/page/00000000000000000002";
        let page = store.get(Table::Chains, key).await.unwrap().unwrap();
        let other = String::from_utf8(page.to_vec()).unwrap().replace("\"first\":4", "\"first\":5");
        write(&store, Table::Chains, key, Some(other.into())).await;
        let found = findings(&store).await;
        assert_eq!((found[0].feed.as_deref(), &*found[0].place), (Some("notes"), "page 2"));
        write(&store, Table::Chains, key, Some(page)).await;
        write(&store, Table::Subscriptions, b"s/12345678", Some(Bytes::from_static(b"no"))).await;
        assert!(findings(&store).await[0].place.starts_with("table subscriptions, row s/"));
    }
}
