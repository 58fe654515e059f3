//! Removal of uploads that nobody ended, and the end of those that a crash cut off just before it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::sleep;
use towpath_proto::{FeedId, Item, NewChange, Op};
use towpath_store::{Expected, Store, Table};

use super::upload::{Download, Stage, Upload, prefix};
use super::{SavedFiles, is_named, lock, of_item};
use crate::engine::Engine;
use crate::engine::publish::{Published, publish_with};
use crate::engine::roles::{self, Lease};
use crate::engine::table_scan::TableScan;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Time between two rounds, and the first round.
const ROUND: Duration = Duration::from_secs(600);
const FIRST: Duration = Duration::from_secs(1);

/// Time after the last byte of an upload after which its request is taken for lost.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Removes uploads once they are due, until `stop` turns true.
pub(crate) async fn run(engine: &Engine, lease: &Lease, stop: Stop) {
    let (mut wait, mut patience) = (FIRST, PATIENCE);
    if !engine.is_shared() {
        // No other process receives anything, and this one began just now.
        patience = SignedDuration::ZERO;
    }
    loop {
        tokio::select! {
            () = sleep(wait) => {}
            () = stopped(&stop) => return,
        }
        wait = ROUND;
        if let Err(e) = clean(engine, lease, engine.now(), patience).await {
            tracing::warn!(error = %e, "cannot remove old uploads, and try again");
        }
        patience = PATIENCE;
    }
}

/// Removes what is due at a time.
async fn clean(
    engine: &Engine,
    lease: &Lease,
    now: Timestamp,
    patience: SignedDuration,
) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let prefix = prefix(None);
    let mut scan = TableScan::new(store, Table::Chains, &prefix);
    while let Some(page) = scan.next().await? {
        for (key, value) in page {
            let mut upload = match Upload::of_entry(&key, value) {
                Ok(upload) => upload,
                // The others are not to stay because of it.
                Err(e) => {
                    tracing::warn!(error = %e, "cannot read an upload; run towpath verify");
                    continue;
                }
            };
            let ended = if is_due(&upload, &engine.instance, engine.is_shared(), now) {
                roles::check(lease)?;
                end(engine, &mut upload).await
            } else if is_whole(&upload, now, patience) && engine.feed_to_publish(&upload.feed).is_some() {
                roles::check(lease)?;
                finish_late(engine, &mut upload).await.map(drop)
            } else {
                continue;
            };
            match ended {
                // Somebody is still at it.
                Err(e) if e.is_conflict() => {}
                Err(e) => tracing::warn!(
                    feed = %upload.feed, item = upload.row.item, error = %e, "cannot end an old upload, and try again"
                ),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

/// Returns true for an upload that goes.
fn is_due(upload: &Upload, run: &str, is_shared: bool, now: Timestamp) -> bool {
    // On a shared store other nodes receive requests, too.
    let is_nameless = |download: &Download| download.sha256.is_empty();
    let is_single = upload.row.resumable.is_none() && upload.row.download.as_ref().is_none_or(is_nameless);
    // A request ends with its connection, and that with the process. Nobody can continue it.
    let is_of_earlier_run = !is_shared && is_single && upload.row.run != run;
    is_of_earlier_run || upload.row.stage == Stage::Removing || upload.row.expires <= now
}

/// Returns true for a resumable upload that has all its bytes, and whose request did not come to append its item.
fn is_whole(upload: &Upload, now: Timestamp, patience: SignedDuration) -> bool {
    let is_unfinished = matches!(upload.row.stage, Stage::Receiving | Stage::Stored { .. });
    // Its request may be at it just now.
    let is_left = upload.last_write().checked_add(patience).is_ok_and(|time| time <= now);
    is_unfinished && upload.row.resumable.is_some() && upload.row.length == Some(upload.row.offset) && is_left
}

/// Finishes a whole upload whose request was cut off just before. Returns `None` if the item was changed since the last
/// byte came: then that counts, and the upload goes.
pub(crate) async fn finish_late(
    engine: &Engine,
    upload: &mut Upload,
) -> Result<Option<Published>, StoreError> {
    let latest = engine.store.latest(&upload.feed, &upload.row.item).await?;
    if latest.as_ref().is_some_and(|latest| latest.modified > upload.last_write()) {
        end(engine, upload).await?;
        return Ok(None);
    }
    // Named as the precondition: a change that comes after this look counts as well.
    let live = latest.filter(|latest| latest.op != Op::Delete).map(|latest| latest.seq);
    finish_at(engine, upload, Expected::Version(live)).await.map(Some)
}

/// Keeps the file of a whole upload, and appends its item.
pub(crate) async fn finish(engine: &Engine, upload: &mut Upload) -> Result<Published, StoreError> {
    finish_at(engine, upload, Expected::Any).await
}

async fn finish_at(
    engine: &Engine,
    upload: &mut Upload,
    expected: Expected,
) -> Result<Published, StoreError> {
    let store = engine.store.as_ref();
    // Held until the item is appended: a deletion in between would remove the file that it is about to name.
    let held = lock(engine, &upload.feed, std::iter::once(upload.row.item.as_str())).await;
    let file = upload.keep(store).await?;
    let mut item = Item::new(&upload.row.item);
    item.title = upload.row.resumable.as_ref().and_then(|resumable| resumable.title.clone());
    let attachment = file.content(engine, &upload.feed, &upload.row.media_type, upload.row.offset);
    item.extra.insert("attachments".into(), json!([attachment]));
    let changes = vec![NewChange::put(item)];
    let published = publish_with(engine, &upload.feed, expected, changes, SavedFiles::from(held)).await?;
    upload.finish(store).await?;
    Ok(published)
}

/// Ends an upload whose item does not come any more. Its file stays if the item has it all the same.
pub(crate) async fn end(engine: &Engine, upload: &mut Upload) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let Stage::Stored { key, is_new: true } = &upload.row.stage else { return upload.remove(store).await };
    let latest = store.latest(&upload.feed, &upload.row.item).await?;
    debug_assert!(key.starts_with(&of_item(&upload.row.item)));
    match latest.is_some_and(|change| is_named(&change.item, &upload.feed, key)) {
        true => upload.forget(store).await,
        false => upload.discard(store).await,
    }
}

/// Returns the uploads of a feed that are not done.
pub(crate) async fn unfinished(store: &dyn Store, feed: Option<&FeedId>) -> Result<Vec<Upload>, StoreError> {
    let prefix = prefix(feed);
    let mut scan = TableScan::new(store, Table::Chains, &prefix);
    let mut found = Vec::new();
    while let Some(page) = scan.next().await? {
        for (key, value) in page {
            let upload = Upload::of_entry(&key, value)?;
            if matches!(upload.row.stage, Stage::Receiving) {
                found.push(upload);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use towpath_store::memory::MemoryStore;

    use super::*;
    use crate::config::Config;
    use crate::engine::attachments::upload::LIFETIME;
    use crate::engine::attachments::{ByteCounting, Resumable, UploadWriter, list};
    use crate::engine::publish::publish;

    async fn engine() -> Arc<Engine> {
        let store = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
        Engine::open(Config::parse("[[feed]]\nid = \"films\"\n", std::path::Path::new("")).unwrap(), store)
            .await
            .unwrap()
            .0
    }

    async fn upload(engine: &Engine, resumable: bool, run: &str) -> Upload {
        let feed = FeedId::new("films").unwrap();
        let mut upload = Upload::new(&feed, "a", "a".into(), "text/plain".into(), engine.now());
        upload.row.resumable = resumable.then(|| Resumable { title: None, metadata: String::new() });
        upload.row.run = run.to_owned();
        upload.save(engine.store.as_ref()).await.unwrap();
        let mut writer =
            UploadWriter::open(engine.store.as_ref(), &mut upload, ByteCounting::AtOnce).await.unwrap();
        writer.push(vec![1; 3_000_000].into(), engine.now()).await.unwrap();
        writer.end(engine.now()).await.unwrap();
        upload
    }

    #[tokio::test]
    async fn old_uploads_are_removed() {
        let (engine, lease) = (engine().await, Lease::alone("upkeep"));
        let now = engine.now();
        let left = || async {
            let chunks = engine.store.scan(Table::Documents, b"", None, 100).await.unwrap().len();
            (unfinished(engine.store.as_ref(), None).await.unwrap().len(), chunks)
        };
        upload(&engine, true, "").await;
        upload(&engine, false, &engine.instance.clone()).await;
        upload(&engine, false, "an earlier run").await;
        assert_eq!(left().await, (3, 18));
        clean(&engine, &lease, now, PATIENCE).await.unwrap();
        assert_eq!(left().await, (2, 12));
        let almost = now.checked_add(LIFETIME - SignedDuration::from_secs(60)).unwrap();
        clean(&engine, &lease, almost, PATIENCE).await.unwrap();
        assert_eq!(left().await, (2, 12));
        let after = now.checked_add(LIFETIME + SignedDuration::from_secs(60)).unwrap();
        clean(&engine, &lease, after, PATIENCE).await.unwrap();
        assert_eq!(left().await, (0, 0));
    }

    /// A crash came between the last byte and the item.
    #[tokio::test]
    async fn a_whole_upload_becomes_its_item_unless_that_was_changed_since() {
        for is_changed in [false, true] {
            let (engine, lease) = (engine().await, Lease::alone("upkeep"));
            let mut whole = upload(&engine, true, "").await;
            whole.row.length = Some(whole.row.offset);
            whole.save(engine.store.as_ref()).await.unwrap();
            if is_changed {
                std::thread::sleep(Duration::from_millis(2));
                let item = Item { title: Some("newer".into()), ..Item::new("a") };
                let changes = vec![NewChange::put(item)];
                publish(engine.store.as_ref(), &whole.feed, Expected::Any, changes).await.unwrap();
            }
            clean(&engine, &lease, engine.now(), SignedDuration::ZERO).await.unwrap();
            let latest = engine.store.latest(&whole.feed, "a").await.unwrap().unwrap();
            assert_eq!(latest.item.title.as_deref(), is_changed.then_some("newer"));
            assert_eq!(latest.item.extra.contains_key("attachments"), !is_changed);
            assert!(unfinished(engine.store.as_ref(), None).await.unwrap().is_empty());
            let chunks = engine.store.scan(Table::Documents, b"attachment", None, 100).await.unwrap().len();
            assert_eq!(chunks > 0, !is_changed);
        }
    }

    /// A mirror continues its downloads, and appends the items of those that are complete, after a restart.
    #[tokio::test]
    async fn downloads_of_mirrors_outlast_a_restart() {
        let (engine, lease) = (engine().await, Lease::alone("upkeep"));
        let (store, now) = (engine.store.as_ref(), engine.now());
        let after = now.checked_add(LIFETIME + SignedDuration::from_secs(60)).unwrap();
        let count = async |stage| {
            let uploads = unfinished(store, None).await.unwrap().len();
            (stage, uploads, list(store, &FeedId::new("films").unwrap()).await.unwrap().len())
        };
        for is_appended in [false, true] {
            let mut whole = upload(&engine, false, "").await;
            let mut part = upload(&engine, false, "").await;
            for one in [&mut whole, &mut part] {
                one.row.download = Some(Download { sha256: "x".into(), etag: None });
                one.save(store).await.unwrap();
            }
            let file = whole.keep(store).await.unwrap();
            if is_appended {
                let mut item = Item::new("a");
                let mut described = file.content(&engine, &whole.feed, "text/plain", 3_000_000);
                // As the publisher has it.
                described["title"] = json!("a.txt");
                item.extra.insert("attachments".into(), json!([described]));
                publish(store, &whole.feed, Expected::Any, vec![NewChange::put(item)]).await.unwrap();
            }
            clean(&engine, &lease, now, SignedDuration::ZERO).await.unwrap();
            assert_eq!(count("restart").await, ("restart", 1, 1));
            clean(&engine, &lease, after, PATIENCE).await.unwrap();
            assert_eq!(count("a day later").await, ("a day later", 0, usize::from(is_appended)));
        }
    }

    /// Nobody goes on with an entity that was begun without a name.
    #[tokio::test]
    async fn nameless_downloads_of_an_earlier_run_are_removed() {
        let (engine, lease) = (engine().await, Lease::alone("upkeep"));
        for run in ["an earlier run", &engine.instance.clone()] {
            let mut one = upload(&engine, false, run).await;
            one.row.download = Some(Download { sha256: String::new(), etag: None });
            one.save(engine.store.as_ref()).await.unwrap();
        }
        clean(&engine, &lease, engine.now(), PATIENCE).await.unwrap();
        let left = unfinished(engine.store.as_ref(), None).await.unwrap();
        assert_eq!(left.iter().map(|one| &one.row.run).collect::<Vec<_>>(), [&engine.instance]);
    }
}
