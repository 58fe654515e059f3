//! Publishing on a store whose writes and reads fail.

use std::sync::Arc;
use std::task::Poll;

use serde_json::Value;
use towpath_proto::{FeedId, Item, NewChange};
use towpath_store::{Expected, Store as _, Table, TableWrite};

use super::state::DiffDelta;
use super::stored::StoredChain;
use super::{Recovery, Run, global_stored, publish, recover};
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::serve;
use crate::protocols::{failing_store, remote_writes};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";
/// Ids of items that appear in no document by chance.
const SECOND: usize = 222_222_222_222;
const THIRD: usize = 333_333_333_333;
/// Time after which a test that waits has failed.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

async fn put(engine: &Engine, ids: std::ops::Range<usize>) {
    let changes = ids.map(|n| NewChange::put(Item::new(n.to_string()))).collect();
    engine.store.append(&FeedId::new("notes").unwrap(), Expected::Any, changes).await.unwrap();
}

async fn document(engine: &Arc<Engine>, path: &str) -> Value {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let document = serve::document(engine, path, &segments).await.unwrap().unwrap();
    serde_json::from_slice(&document.respond_compressing(&http::HeaderMap::new()).body).unwrap()
}

fn notes(engine: &Engine) -> Arc<Feed> {
    engine.feed("notes").unwrap()
}

/// Section 8: the manifest lists available sources, at least one by its schema, and the global feed.
#[tokio::test]
async fn a_server_without_listed_feeds_has_no_manifest() {
    let private = format!("{NOTES}visibility = \"private\"\n");
    for (config, is_there) in [("", false), (private.as_str(), false), (NOTES, true)] {
        let (engine, _store) = failing_store::engine(config).await;
        recover(&engine).await.unwrap();
        let segments = [".well-known", "diffdelta.json"];
        let manifest = serve::document(&engine, "/.well-known/diffdelta.json", &segments).await.unwrap();
        assert_eq!(manifest.is_some(), is_there, "{config}");
    }
}

/// The state over all feeds lies where a store keeps large values apart, and names only the sources that changed. Earlier
/// versions wrote it beside the chains, or with all sources.
#[tokio::test]
async fn the_state_over_all_feeds_goes_on_from_each_form() {
    let (engine, store) = failing_store::engine(NOTES).await;
    let (key, list) = (b"diffdelta/_global/chain", b"diffdelta/_global/included");
    let earlier = [None, Some(Table::Documents), Some(Table::Chains), None, None, None];
    let mut lists = std::collections::BTreeSet::new();
    for (round, earlier) in earlier.into_iter().enumerate() {
        if let Some(table) = earlier {
            let row = store.get(Table::Documents, key).await.unwrap().unwrap();
            let writes = [
                (Table::Documents, &key[..], None),
                (Table::Documents, &list[..], None),
                (table, &key[..], Some(with_all_sources(&engine, &row).await.into())),
            ];
            let write = |(table, key, value): (_, &[u8], _)| TableWrite { table, key: key.into(), value };
            store.write(writes.map(write).into(), Vec::new()).await.unwrap();
        }
        // The next run reads what is stored.
        DiffDelta::of(&engine).global.hand_over().await;
        put(&engine, round..round + 1).await;
        publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
        DiffDelta::of(&engine).global.run(&engine).await.unwrap();
        assert_eq!(store.get(Table::Chains, key).await.unwrap(), None, "{round}");
        lists.insert(store.get(Table::Documents, list).await.unwrap());
    }
    let index = document(&engine, "/archive/_global/index.json").await;
    let snapshots = index["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.len(), earlier.len(), "the chain goes on");
    assert!(!lists.contains(&None) && lists.len() < earlier.len(), "not each write has the list");
}

/// Returns the state over all feeds in its earlier form.
async fn with_all_sources(engine: &Engine, row: &[u8]) -> String {
    let mut row: Value = serde_json::from_slice(row).unwrap();
    let stored = global_stored::stored(engine.store.as_ref()).await.unwrap().unwrap();
    row["global"] = serde_json::to_value(stored.state.global).unwrap();
    let row_of_earlier = row.as_object_mut().unwrap();
    row_of_earlier.remove("chain").unwrap();
    row_of_earlier.remove("changed");
    row.to_string()
}

/// A full global document is minted within a feed's run. If that write fails, the feed's chain is written all the same,
/// and the retry has nothing left to publish.
#[tokio::test]
async fn documents_are_new_after_a_global_write_failed_once() {
    let (engine, store) = failing_store::engine(NOTES).await;
    put(&engine, 0..1).await;
    publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
    DiffDelta::of(&engine).global.run(&engine).await.unwrap();
    // In the cache from now on.
    let paths = ["/diff/notes/head.json", "/diff/notes/latest.json", "/diff/head.json", "/diff/latest.json"];
    let mut before = Vec::new();
    for path in paths {
        before.push(document(&engine, path).await["cursor"].clone());
    }
    // As many changes as a global document has at most.
    put(&engine, 1..10_001).await;
    *store.write_fault.lock() = Some("diffdelta/_global/chain");
    publish(&engine, &notes(&engine), Run::Moved).await.unwrap_err();
    assert!(engine.failures.of("notes").is_some());
    assert!(store.write_fault.lock().is_none(), "the global write failed");
    publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
    DiffDelta::of(&engine).global.run(&engine).await.unwrap();
    assert_eq!(engine.failures.of("notes"), None);
    for (path, before) in paths.into_iter().zip(before) {
        assert_ne!(document(&engine, path).await["cursor"], before, "{path}");
    }
    let index = document(&engine, "/archive/_global/index.json").await;
    let last = index["snapshots"].as_array().unwrap().last().unwrap()["cursor"].clone();
    assert_eq!(last, document(&engine, "/diff/head.json").await["cursor"]);
}

/// A request publishes during a start, and its client may go away at any moment.
#[tokio::test]
async fn a_run_that_is_dropped_is_published_to_its_end() {
    for polls in 1.. {
        let (engine, _store) = failing_store::engine(NOTES).await;
        publish_first_item(&engine).await;
        put(&engine, SECOND..SECOND + 1).await;
        let is_done = poll_times(publish(&engine, &notes(&engine), Run::Moved), polls).await;
        // What was begun goes on when this test waits.
        tokio::task::yield_now().await;
        drop(DiffDelta::chain_lock(&notes(&engine)).lock().await);
        assert_published(&engine, &[SECOND]).await;
        if is_done {
            assert!(polls > 1, "nothing was dropped");
            return;
        }
    }
}

/// Polls a future so many times, then drops it. Returns true if it was ready.
async fn poll_times(future: impl Future, mut polls: usize) -> bool {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        polls -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Publishes the item 0, and has its documents cached.
async fn publish_first_item(engine: &Arc<Engine>) {
    put(engine, 0..1).await;
    publish(engine, &notes(engine), Run::Moved).await.unwrap();
    DiffDelta::of(engine).global.run(engine).await.unwrap();
    read_all(engine).await;
}

/// Reads the documents of the feed, which are cached then.
async fn read_all(engine: &Arc<Engine>) -> [Value; 3] {
    let mut all = [const { Value::Null }; 3];
    for (read, name) in all.iter_mut().zip(["diff/notes/head", "diff/notes/latest", "archive/notes/index"]) {
        *read = document(engine, &format!("/{name}.json")).await;
    }
    all
}

/// Asserts that the documents are those of the stored chain, and that the global feed shows some items.
async fn assert_published(engine: &Arc<Engine>, items: &[usize]) {
    let chain = StoredChain::load(engine.store.as_ref(), "notes").await.unwrap().chain();
    assert_eq!(chain.minted_seq, engine.store.head(notes(engine).id()).await.unwrap().seq);
    let [head, latest, index] = read_all(engine).await;
    let last = index["snapshots"].as_array().unwrap().last().unwrap()["cursor"].clone();
    let cursor = Value::from(chain.cursor.to_string());
    assert_eq!([&head["cursor"], &latest["cursor"], &last], [&cursor; 3]);
    DiffDelta::of(engine).global.run(engine).await.unwrap();
    let index = document(engine, "/archive/_global/index.json").await;
    let mut global = String::new();
    for entry in index["snapshots"].as_array().unwrap() {
        let url = entry["url"].as_str().unwrap();
        global += &document(engine, &url[url.find("/archive").unwrap()..]).await.to_string();
    }
    for item in items {
        assert!(global.contains(&item.to_string()), "{item} is in no document over all feeds: {global}");
    }
}

/// The sync of a mint fails, and the mint is there once the store is open again. Documents were read meanwhile.
#[tokio::test]
async fn a_mint_in_doubt_that_is_stored_is_shown() {
    for next in ["the hook", "a retry", "another mint"] {
        let (engine, store) = failing_store::engine(NOTES).await;
        let (stopper, stop) = tokio::sync::watch::channel(false);
        publish_first_item(&engine).await;
        put(&engine, SECOND..SECOND + 1).await;
        *store.doubt_fault.lock() = Some("diffdelta/notes/chain");
        publish(&engine, &notes(&engine), Run::Moved).await.unwrap_err();
        let before = read_all(&engine).await;
        store.reopen(next == "the hook").await;
        let mut items = vec![SECOND];
        if next == "the hook" {
            assert_ne!(read_all(&engine).await[0]["cursor"], before[0]["cursor"]);
            let applying = tokio::spawn(remote_writes::run(engine.clone(), stop));
            let applied = async {
                while !DiffDelta::of(&engine).global.has_news().await {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(LIMIT, applied).await.expect("the mint never reaches the global feed");
            stopper.send(true).unwrap();
            applying.await.unwrap();
        } else if next == "another mint" {
            put(&engine, THIRD..THIRD + 1).await;
            items.push(THIRD);
        }
        publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
        assert_published(&engine, &items).await;
        assert_eq!(
            DiffDelta::of(&engine).global.sources().await[notes(&engine).id()].snapshots,
            1 + items.len() as u64
        );
    }
}

/// The state of the global feed cannot be read at a start, also not a second time. What is unpublished is published all the
/// same, and the state is read again although no source runs.
#[tokio::test(start_paused = true)]
async fn a_start_without_the_global_chain_publishes_and_reads_it_again() {
    for is_published in [false, true] {
        let (before, store) = failing_store::engine(NOTES).await;
        put(&before, SECOND..SECOND + 1).await;
        if is_published {
            recover(&before).await.unwrap();
        }
        let config = crate::config::Config::parse(NOTES, std::path::Path::new("towpath.toml")).unwrap();
        let engine = crate::protocols::start(config, store.clone()).await.unwrap();
        let (stopper, stop) = tokio::sync::watch::channel(false);
        // At the begin, and after the feeds.
        *store.read_fault.lock() = Some("diffdelta/_global/chain");
        *store.read_repeats.lock() = 1;
        let lease = crate::engine::roles::Lease::alone("diffdelta");
        let running = tokio::spawn(super::run(engine.clone(), lease, stop));
        let published = async {
            while DiffDelta::of(&engine).global.current().await.is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        let published = tokio::time::timeout(LIMIT, published).await;
        published.expect("the state of the global feed is never read again");
        assert!(store.read_fault.lock().is_none(), "it has failed twice");
        assert_published(&engine, &[SECOND]).await;
        stopper.send(true).unwrap();
        running.await.unwrap();
    }
}

/// A read fails while the store is being opened again. The feed is published all the same, without a further append.
#[tokio::test]
async fn a_feed_whose_publishing_met_any_error_is_published_again() {
    for fault_is_a_read in [true, false] {
        let (engine, store) = failing_store::engine(NOTES).await;
        let (stopper, stop) = tokio::sync::watch::channel(false);
        super::recover(&engine).await.unwrap();
        let lease = crate::engine::roles::Lease::alone("diffdelta");
        let running = tokio::spawn(super::run(engine.clone(), lease, stop));
        let fault = if fault_is_a_read { &store.read_fault } else { &store.write_fault };
        *fault.lock() = Some("diffdelta/notes/chain");
        put(&engine, 0..1).await;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while document(&engine, "/diff/notes/latest.json").await["buckets"]["new"][0].is_null() {
            assert!(std::time::Instant::now() < end, "never published; a read failed: {fault_is_a_read}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(fault.lock().is_none());
        assert_eq!(engine.failures.of("notes"), None);
        stopper.send(true).unwrap();
        running.await.unwrap();
    }
}

/// One sync for each of many new feeds would keep a first start from answering for seconds.
#[tokio::test]
async fn new_feeds_are_published_many_at_a_time() {
    let config: String = (0..100).map(|n| format!("[[feed]]\nid = \"new-{n}\"\n")).collect();
    let (engine, store) = failing_store::engine(&config).await;
    // One at a time, the first would wait for ever.
    *store.write_gate.lock() = Some(("diffdelta/new-", Arc::new(tokio::sync::Barrier::new(20))));
    let recovering = super::recover(&engine);
    tokio::time::timeout(std::time::Duration::from_secs(60), recovering).await.unwrap().unwrap();
    for n in [0, 99] {
        assert_eq!(document(&engine, &format!("/diff/new-{n}/latest.json")).await["changed"], true);
    }
    let sources = document(&engine, "/diff/sources.json").await;
    assert_eq!(sources["sources"].as_array().unwrap().len(), 100);
}

/// With a cache that is cut by cores, a large document was made and compressed again for each request.
#[tokio::test]
async fn a_large_document_is_made_once() {
    let (engine, _) = failing_store::engine(NOTES).await;
    let large = |n: usize| {
        let content = towpath_proto::Content::new("text/plain", n.to_string().repeat(200_000));
        NewChange::put(Item { content: Some(content), ..Item::new(n.to_string()) })
    };
    let id = FeedId::new("notes").unwrap();
    engine.store.append(&id, Expected::Any, (10..30).map(large).collect()).await.unwrap();
    publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
    let path = "/diff/notes/latest.json";
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let first = serve::document(&engine, path, &segments).await.unwrap().unwrap();
    assert!(first.body.len() > 4_300_000, "{}", first.body.len());
    let kept = engine.documents.get(path).unwrap();
    assert!(Arc::ptr_eq(&first, &kept));
    let again = serve::document(&engine, path, &segments).await.unwrap().unwrap();
    assert!(Arc::ptr_eq(&first, &again));
}

/// A chain of another node that could not be read is read again, and is not lost until its next write.
#[tokio::test]
async fn a_remote_chain_that_could_not_be_read_is_read_again() {
    let (engine, store) = failing_store::engine(NOTES).await;
    put(&engine, 0..1).await;
    publish(&engine, &notes(&engine), Run::Moved).await.unwrap();
    super::on_chain_written(&engine, "notes");
    *store.read_fault.lock() = Some("diffdelta/notes/chain");
    assert!(!super::apply_remote(&engine).await);
    assert!(store.read_fault.lock().is_none());
    assert_eq!(DiffDelta::of(&engine).take_written(), ["notes"]);
    super::on_chain_written(&engine, "notes");
    assert!(super::apply_remote(&engine).await);
    assert!(DiffDelta::of(&engine).take_written().is_empty());
}

/// Requests for a document over all feeds at the same time get one document, made once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_over_all_feeds_are_made_once_for_all_who_ask() {
    let config: String = (0..3000).map(|n| format!("[[feed]]\nid = \"f{n}\"\n")).collect();
    let (engine, _) = failing_store::engine(&config).await;
    let asked: Vec<_> = (0..20)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move {
                serve::document(&engine, "/healthz.json", &["healthz.json"]).await.unwrap().unwrap()
            })
        })
        .collect();
    let mut made = Vec::new();
    for asked in asked {
        made.push(asked.await.unwrap());
    }
    made.dedup_by(|a, b| Arc::ptr_eq(a, b));
    assert!(made.len() < 10, "made {} times for 20 requests", made.len());
}

/// A server answers while it publishes what came before: a feed at once, documents over all feeds a moment later.
#[tokio::test(start_paused = true)]
async fn requests_are_answered_while_a_server_starts() {
    let (engine, _store) = failing_store::engine(NOTES).await;
    put(&engine, 0..1).await;
    Recovery::of(&engine).begin();
    assert_eq!(Recovery::of(&engine).progress(), Some(0));
    // Nothing recovers here, so only the request itself can have published these.
    let latest = document(&engine, "/diff/notes/latest.json").await;
    assert_eq!(latest["buckets"]["new"].as_array().unwrap().len(), 1, "{latest}");
    let index = document(&engine, "/archive/notes/index.json").await;
    assert_eq!(index["snapshots"][0]["cursor"], latest["cursor"]);
    for path in [
        "/diff/head.json",
        "/diff/latest.json",
        "/diff/sources.json",
        "/healthz.json",
        "/archive/_global/index.json",
    ] {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let error = serve::document(&engine, path, &segments).await.unwrap_err();
        assert!(error.retry_after().is_some(), "{path}: {error}");
    }
    recover(&engine).await.unwrap();
    assert_eq!(Recovery::of(&engine).progress(), None);
    let global = document(&engine, "/diff/latest.json").await;
    assert_eq!(global["buckets"]["new"].as_array().unwrap().len(), 1, "{global}");
    assert_eq!(document(&engine, "/diff/notes/latest.json").await["cursor"], latest["cursor"]);
    document(&engine, "/diff/sources.json").await;
}

/// After a start on a full disk the change is published without another append; that of a mirror, too.
#[tokio::test]
async fn a_feed_whose_recovery_failed_is_published_again() {
    for source in ["", "source = { follow = \"http://origin.example/feeds/notes\" }\n"] {
        let (engine, store) = failing_store::engine(&format!("{NOTES}{source}")).await;
        put(&engine, 0..1).await;
        DiffDelta::of(&engine).take_dirty();
        *store.write_fault.lock() = Some("diffdelta/notes/chain");
        recover(&engine).await.unwrap_err();
        assert!(store.write_fault.lock().is_none(), "the write failed");
        assert_eq!(DiffDelta::of(&engine).take_dirty(), [notes(&engine).id().clone()], "{source}");
    }
}
