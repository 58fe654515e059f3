//! Running an export: all feeds in batches, then the documents over all feeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use towpath_store::TableWrite;

use crate::engine::Feed;
use crate::export::feed::StagedFeed;
use crate::export::summary::ExportSummary;
use crate::export::target::TargetError;
use crate::export::tree::{CONCURRENCY, ExportError, ExportedFeeds, Tree, TreeContents, together};
use crate::export::tree_state::ExportedFeed;

/// Limits of a batch of feeds that share a sync: their number, and the bytes of their documents in memory.
// A sync costs the same for one feed as for many.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 32 << 20;
/// Attempts to export a feed that changes meanwhile.
const TRIES: usize = 5;

impl Tree {
    /// Brings the tree up to the feeds' heads. An export that stops early leaves no broken link.
    ///
    /// # Errors
    ///
    /// [`ExportError`] if the target cannot be written, or the store cannot be read. The error of a single feed is in
    /// [`ExportSummary::failed`], and does not stop the others.
    pub fn export(&self, feeds: ExportedFeeds) -> BoxFuture<'_, Result<ExportSummary, ExportError>> {
        async move {
            let begun = Instant::now();
            let mut summary = ExportSummary::default();
            // Drops the counts of an export that failed before this one.
            self.counted.take(&mut ExportSummary::default());
            // A process does not know what changed before it began, so its first export is whole.
            let is_first = self.contents.lock().is_none();
            let is_whole = is_first || matches!(feeds, ExportedFeeds::All);
            let is_exported = |feed: &Arc<Feed>| feed.is_listed();
            let feeds: Vec<Arc<Feed>> = match feeds {
                ExportedFeeds::These(ids) if !is_first => {
                    ids.iter().filter_map(|id| self.engine.feed(id.as_str())).filter(is_exported).collect()
                }
                _ => self.engine.feeds().into_iter().filter(is_exported).collect(),
            };
            if is_first {
                self.load_contents(&feeds).await?;
            }
            self.export_feeds(feeds, &mut summary).await?;
            self.export_shared(&mut summary).await?;
            // After all puts: until then, documents over all feeds may still lead to a dropped feed.
            if is_whole {
                self.drop_feeds(&mut summary).await?;
            }
            self.counted.take(&mut summary);
            summary.took = begun.elapsed();
            Ok(summary)
        }
        .boxed()
    }

    /// Reads the feeds of the tree and the times of their last changes.
    ///
    /// Changes that a killed export put, but did not list in its SUP documents, count as changed now.
    async fn load_contents(&self, feeds: &[Arc<Feed>]) -> Result<(), ExportError> {
        let (store, now) = (self.engine.store.as_ref(), self.engine.now());
        let listed = self.states.shared(store).await?.listed;
        let mut contents = TreeContents::default();
        let mut moves = Vec::new();
        for feed in feeds {
            let mut known = self.states.load(store, feed.id()).await?;
            let Some(seq) = known.done.as_ref().map(|done| done.seq) else { continue };
            contents.feeds.insert(feed.id().clone());
            if known.moved > listed {
                known.moved = now;
                // Listed as of now: readers of the old SUP documents are past the real time.
                contents.last_move = now;
                self.write(vec![self.states.save(feed.id(), &known)]).await?;
            }
            moves.push((known.moved, feed.id().clone(), seq));
            self.moved.lock().push((feed.id().clone(), seq));
        }
        // Recorded oldest first, as updates arrive.
        moves.sort_unstable();
        for (at, id, seq) in moves.into_iter().filter(|(.., seq)| *seq > 0) {
            contents.moves.record(self.engine.sup_links.sup_id(&id), seq, at);
        }
        *self.contents.lock() = Some(contents);
        Ok(())
    }

    /// Exports feeds, some at a time.
    pub(super) async fn export_feeds(
        &self,
        feeds: Vec<Arc<Feed>>,
        summary: &mut ExportSummary,
    ) -> Result<(), ExportError> {
        let mut staged: Vec<StagedFeed> = Vec::new();
        let mut bytes = 0;
        let (mut done_feeds, all_feeds) = (0, feeds.len() as u64);
        let (mut feeds, mut under_way) = (feeds.into_iter(), FuturesUnordered::new());
        loop {
            for feed in feeds.by_ref().take(CONCURRENCY - under_way.len()) {
                under_way.push(self.try_stage(feed));
            }
            if let Some(on_progress) = &self.on_progress {
                on_progress(done_feeds, all_feeds);
            }
            let Some(done) = under_way.next().await else { break };
            done_feeds += 1;
            match done {
                Ok(Some(one)) => {
                    bytes += one.bytes();
                    staged.push(one);
                }
                Ok(None) => {}
                // A feed that cannot be exported must not keep the others out of the tree. A body is the store's.
                Err(
                    e @ (ExportError::Moved(_)
                    | ExportError::TooLarge(_)
                    | ExportError::Store(_)
                    | ExportError::Target(TargetError::Body { .. })),
                ) => summary.failed.push(e.to_string()),
                Err(e) => return Err(e),
            }
            if staged.len() >= BATCH || bytes >= BATCH_BYTES {
                self.finish(std::mem::take(&mut staged), summary).await?;
                bytes = 0;
            }
        }
        self.finish(staged, summary).await
    }

    fn try_stage(&self, feed: Arc<Feed>) -> BoxFuture<'_, Result<Option<StagedFeed>, ExportError>> {
        async move {
            // A feed that is published to every second never stands still, so after a few attempts it waits for the
            // next export.
            for _ in 1..TRIES {
                match self.stage(feed.clone()).await {
                    // Short: a feed that moves once in a while is caught at the second attempt.
                    Err(ExportError::Moved(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                    done => return self.count_feed(&feed, done).await,
                }
            }
            let done = self.stage(feed.clone()).await;
            if let Err(ExportError::Moved(_)) = done {
                // Or its last change would wait for an append that may never come.
                self.late.lock().push(feed.id().clone());
            }
            self.count_feed(&feed, done).await
        }
        .boxed()
    }

    async fn count_feed(
        &self,
        feed: &Feed,
        done: Result<Option<StagedFeed>, ExportError>,
    ) -> Result<Option<StagedFeed>, ExportError> {
        if let Ok(None) = done {
            let known = self.states.load(self.engine.store.as_ref(), feed.id()).await?;
            self.count_unchanged(known.documents());
        }
        done
    }

    /// Puts the entry documents of these feeds, and then removes documents that nothing links to.
    async fn finish(&self, staged: Vec<StagedFeed>, summary: &mut ExportSummary) -> Result<(), ExportError> {
        if staged.is_empty() {
            return Ok(());
        }
        // What entry documents lead to is durable before they are put.
        self.target.sync().await?;
        let mut puts = Vec::new();
        for one in &staged {
            puts.push(self.put_entries(one));
        }
        together(puts).await?;
        // Durable before the documents that only the old ones named are removed.
        self.target.sync().await?;
        let mut removals = Vec::new();
        for one in &staged {
            removals.push(self.remove_unlinked(one));
        }
        together(removals).await?;
        summary.feeds += staged.len() as u64;
        self.save(staged).await
    }

    /// Stores the new states of feeds.
    async fn save(&self, staged: Vec<StagedFeed>) -> Result<(), ExportError> {
        let now = self.engine.now();
        let mut writes: Vec<TableWrite> = Vec::new();
        for one in staged {
            let has_moved = one.has_moved();
            if let Some(contents) = self.contents.lock().as_mut() {
                contents.feeds.insert(one.feed.id().clone());
                if has_moved && one.extent.seq > 0 {
                    contents.last_move = now;
                    contents.moves.record(self.engine.sup_links.sup_id(one.feed.id()), one.extent.seq, now);
                }
            }
            if has_moved {
                self.moved.lock().push((one.feed.id().clone(), one.extent.seq));
            }
            let moved = if has_moved { now } else { one.before.moved };
            let exported = ExportedFeed { done: Some(one.extent), begun: None, moved };
            writes.push(self.states.save(one.feed.id(), &exported));
        }
        self.write(writes).await
    }

    /// Removes feeds that do not exist any more, or are not public any more.
    async fn drop_feeds(&self, summary: &mut ExportSummary) -> Result<(), ExportError> {
        let store = self.engine.store.as_ref();
        for id in self.states.feeds(store).await? {
            if self.engine.feed(id.as_str()).is_some_and(|feed| feed.is_listed()) {
                continue;
            }
            let known = self.states.load(store, &id).await?;
            self.drop_feed(&id, &known).await?;
            self.write(vec![self.states.forget(&id)]).await?;
            summary.feeds += 1;
        }
        Ok(())
    }
}
