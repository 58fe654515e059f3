//! Checks of stored state that run side by side.

use std::sync::Arc;
use std::thread;

use futures_util::{StreamExt as _, stream};
use tokio::sync::Semaphore;
use towpath_store::Store;

use super::finding::Findings;
use crate::store_error::StoreError;

/// Most checks at a time: each may have a page of the log or a document in memory.
const MAX_CHECKS: usize = 8;

/// Pool that runs as many checks at a time as there are processors.
pub(crate) struct CheckPool {
    pub(crate) store: Arc<dyn Store>,
    permits: Arc<Semaphore>,
    size: usize,
}

impl CheckPool {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let size = thread::available_parallelism().map_or(1, usize::from).min(MAX_CHECKS);
        Self { store, permits: Arc::new(Semaphore::new(size)), size }
    }

    /// Runs a check as soon as a processor is free for it.
    pub(crate) async fn run(
        &self,
        check: impl Future<Output = Result<Findings, StoreError>> + Send + 'static,
    ) -> Result<Findings, StoreError> {
        let permits = self.permits.clone();
        let task = tokio::spawn(async move {
            // Nobody closes the semaphore.
            let _permit = permits.acquire_owned().await;
            check.await
        });
        task.await.map_err(|e| StoreError::Internal(format!("a check panicked: {e}")))?
    }

    /// Joins the findings of checks in their order, of which only a few are begun at a time.
    pub(crate) async fn join<F: Future<Output = Result<Findings, StoreError>>>(
        &self,
        checks: impl IntoIterator<Item = F>,
    ) -> Result<Findings, StoreError> {
        let mut findings = Findings::default();
        // One more than may run, so that none waits for the oldest to be taken.
        let mut found = std::pin::pin!(stream::iter(checks).buffered(self.size + 1));
        while let Some(found) = found.next().await {
            findings.0.extend(found?.0);
        }
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use towpath_store::memory::MemoryStore;

    use super::*;

    /// Many checks, of which each is in the middle of its work when others may begin.
    #[tokio::test]
    async fn few_checks_run_at_a_time_and_their_findings_keep_the_order() {
        let pool = CheckPool::new(Arc::new(MemoryStore::new(Arc::new(jiff::Timestamp::now))));
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let check = |number: usize| {
            let (running, most) = (running.clone(), most.clone());
            pool.run(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Later ones end sooner.
                for _ in number..50 {
                    tokio::task::yield_now().await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
                let mut findings = Findings::default();
                findings.add(None, number.to_string(), "x");
                Ok(findings)
            })
        };
        let found = pool.join((0..50).map(check)).await.unwrap();
        let places: Vec<_> = found.0.iter().map(|finding| finding.place.clone()).collect();
        assert_eq!(places, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), pool.size);
        let failing = |_| pool.run(async { Err(StoreError::Damaged("a record".into())) });
        assert!(pool.join((0..3).map(failing)).await.is_err());
    }
}
