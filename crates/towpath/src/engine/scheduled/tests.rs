//! Tests of scheduled changes, and of what cancels them.

use std::path::Path;

use towpath_proto::{Content, Item};
use towpath_store::memory::MemoryStore;

use super::*;
use crate::config::Config;
use crate::engine::publish::publish;

/// Engine whose feed `f1` has the items `a` of JSON.
struct Fixture {
    engine: Arc<Engine>,
    feed: FeedId,
}

impl Fixture {
    async fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
        let fixture = Self { engine: open(store).await, feed: FeedId::new("f1").unwrap() };
        fixture.append(titled("first")).await;
        fixture
    }

    /// Schedules a change of the item for a time that is past.
    async fn schedule_due(&self) {
        let due = "2020-01-01T00:00:00Z".parse().unwrap();
        schedule(&self.engine, &self.feed, vec![(titled("scheduled"), due)]).await.unwrap();
    }

    async fn cancel(&self) -> Cancellation {
        let cancellation = cancel(&self.engine, &self.feed, ["a"].into_iter()).await.unwrap();
        assert_eq!(cancellation.count(), 1);
        cancellation
    }

    async fn append(&self, change: NewChange) {
        publish(self.engine.store.as_ref(), &self.feed, Expected::Any, vec![change]).await.unwrap();
    }

    /// Returns the item's title after everything due is published, when no row may be left.
    async fn title_when_due(&self) -> String {
        assert_eq!(publish_due(&self.engine, &Lease::alone("schedule")).await.failures, 0);
        let rows = self.engine.store.scan(Table::Sources, b"publish-at/", None, 10).await.unwrap();
        assert!(rows.is_empty(), "{rows:?}");
        self.engine.store.latest(&self.feed, "a").await.unwrap().unwrap().item.title.unwrap()
    }

    async fn head(&self) -> u64 {
        self.engine.store.head(&self.feed).await.unwrap().seq
    }

    async fn is_listed(&self) -> bool {
        !list(self.engine.store.as_ref(), &self.feed, 10).await.unwrap().is_empty()
    }
}

async fn open(store: Arc<dyn Store>) -> Arc<Engine> {
    let config = Config::parse("[[feed]]\nid = \"f1\"\n", Path::new("towpath.toml")).unwrap();
    Engine::open(config, store).await.unwrap().0
}

fn titled(title: &str) -> NewChange {
    let content = Some(Content::new("application/json", "{}"));
    NewChange::put(Item { title: Some(title.into()), content, ..Item::new("a") })
}

fn patch() -> NewChange {
    NewChange::patch("a", Content::new("application/merge-patch+json", "{\"b\":1}"))
}

/// An engine that knows of no scheduled changes looks no more, until it schedules one itself.
#[tokio::test]
async fn what_is_scheduled_after_the_first_look_is_cancelled() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
    let feed = FeedId::new("f1").unwrap();
    let later = |id: &str| vec![(NewChange::put(Item::new(id)), "3000-01-01T00:00:00Z".parse().unwrap())];
    let engine = open(store.clone()).await;
    let cancelled = async |engine: &Engine, id: &str| {
        let cancellation = cancel(engine, &feed, [id].into_iter()).await.unwrap();
        cancellation.confirm(engine, &feed).await.unwrap()
    };
    for _ in 0..2 {
        assert_eq!(cancelled(&engine, "a").await, 0);
    }
    schedule(&engine, &feed, later("a")).await.unwrap();
    assert_eq!(cancelled(&engine, "a").await, 1);
    schedule(&engine, &feed, later("b")).await.unwrap();
    // After a restart, the store is what tells.
    let engine = open(store).await;
    assert_eq!(cancelled(&engine, "b").await, 1);
    assert_eq!(cancelled(&engine, "b").await, 0);
}

/// The process ends before the append, or the outcome of the append is unknown and it did not happen.
#[tokio::test]
async fn a_cancellation_without_its_append_loses_nothing() {
    for is_patched in [false, true] {
        let fixture = Fixture::new().await;
        fixture.schedule_due().await;
        drop(fixture.cancel().await);
        if is_patched {
            fixture.append(patch()).await;
        }
        assert!(fixture.is_listed().await);
        assert_eq!(fixture.title_when_due().await, "scheduled");
    }
}

/// The process ends between the append and the removal of the row.
#[tokio::test]
async fn a_cancellation_counts_once_its_append_is_there() {
    for is_patched in [false, true] {
        let fixture = Fixture::new().await;
        fixture.schedule_due().await;
        drop(fixture.cancel().await);
        fixture.append(titled("later")).await;
        if is_patched {
            fixture.append(patch()).await;
        }
        assert!(!fixture.is_listed().await);
        assert_eq!(fixture.title_when_due().await, "later");
    }
}

/// Of two changes at a time, one is refused and one is appended.
#[tokio::test]
async fn a_refused_change_withdraws_only_its_own_cancellation() {
    let fixture = Fixture::new().await;
    fixture.schedule_due().await;
    let (refused, appended) = (fixture.cancel().await, fixture.cancel().await);
    refused.withdraw(&fixture.engine, &fixture.feed).await.unwrap();
    fixture.append(titled("later")).await;
    assert!(!fixture.is_listed().await);
    assert_eq!(appended.confirm(&fixture.engine, &fixture.feed).await.unwrap(), 1);
    assert_eq!(fixture.title_when_due().await, "later");
    // Without a mark, later versions cancel nothing.
    fixture.schedule_due().await;
    fixture.cancel().await.withdraw(&fixture.engine, &fixture.feed).await.unwrap();
    fixture.append(titled("edited as a line")).await;
    assert_eq!(fixture.title_when_due().await, "scheduled");
}

/// A change that was scheduled after the cancellation is another one.
#[tokio::test]
async fn a_cancellation_leaves_what_is_scheduled_after_it() {
    let fixture = Fixture::new().await;
    fixture.schedule_due().await;
    let cancellation = fixture.cancel().await;
    fixture.append(titled("later")).await;
    fixture.schedule_due().await;
    assert_eq!(cancellation.confirm(&fixture.engine, &fixture.feed).await.unwrap(), 0);
    assert_eq!(fixture.title_when_due().await, "scheduled");
}

/// A row that a crash left behind its append counts no more.
#[tokio::test]
async fn a_cancelled_row_is_not_cancelled_again() {
    let fixture = Fixture::new().await;
    fixture.schedule_due().await;
    drop(fixture.cancel().await);
    fixture.append(titled("later")).await;
    let again = cancel(&fixture.engine, &fixture.feed, ["a"].into_iter()).await.unwrap();
    assert_eq!(again.count(), 0);
    assert_eq!(fixture.title_when_due().await, "later");
}

/// The process ends between the append and the removal of the row.
#[tokio::test]
async fn a_patch_is_published_once() {
    let fixture = Fixture::new().await;
    let (store, lease) = (fixture.engine.store.as_ref(), Lease::alone("schedule"));
    let due = "2020-01-01T00:00:00Z".parse().unwrap();
    schedule(&fixture.engine, &fixture.feed, vec![(patch(), due)]).await.unwrap();
    let rows = store.scan(Table::Sources, b"publish-at/", None, 10).await.unwrap();
    assert_eq!(publish_due(&fixture.engine, &lease).await.failures, 0);
    assert_eq!(fixture.head().await, 2);
    let again = rows.into_iter().map(|(key, value)| set(key.to_vec(), Some(value.to_vec())));
    store.write(again.collect(), Vec::new()).await.unwrap();
    assert_eq!(fixture.title_when_due().await, "first");
    assert_eq!(fixture.head().await, 2);
}

/// A row that a later version wrote, or that is damaged, stays where it is.
#[tokio::test]
async fn a_row_that_cannot_be_decoded_holds_up_no_other() {
    let fixture = Fixture::new().await;
    fixture.schedule_due().await;
    let (store, damaged) = (fixture.engine.store.as_ref(), item_key(&fixture.feed, "0"));
    let earlier = "2019-01-01T00:00:00Z".parse().unwrap();
    let index = time_key(earlier, &fixture.feed, "0");
    let rows = vec![set(index.clone(), Some(Vec::new())), set(damaged.clone(), Some(b"{".to_vec()))];
    store.write(rows, Vec::new()).await.unwrap();
    let round = publish_due(&fixture.engine, &Lease::alone("schedule")).await;
    assert_eq!((round.failures, round.next), (1, None));
    let rows = store.scan(Table::Sources, b"publish-at/", None, 10).await.unwrap();
    let left: Vec<_> = rows.into_iter().map(|(key, _)| key.to_vec()).collect();
    assert_eq!(left, [damaged, index]);
    let latest = store.latest(&fixture.feed, "a").await.unwrap().unwrap();
    assert_eq!(latest.item.title.as_deref(), Some("scheduled"));
}
