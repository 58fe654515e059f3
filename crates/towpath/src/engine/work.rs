//! Work that takes milliseconds of a core.

use std::future::Future;

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use crate::engine::Engine;
use crate::store_error::StoreError;

/// Runs pure work apart from the threads that serve.
///
/// # Errors
///
/// A panic of the work, which is a fault of the program.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let done = crate::blocking::blocking(work).await;
    done.map_err(|e| StoreError::Internal(format!("building a document panicked: {e}")))
}

/// Runs work that writes to the store and then updates memory to its end, also if the caller's future is dropped.
///
/// hyper drops the future of a request whose client goes away. The store's thread still writes what is queued, and caches
/// and schedules would never learn of it.
///
/// # Errors
///
/// A panic of the work, which is a fault of the program.
pub(crate) async fn run_detached<T: Send + 'static>(
    engine: &Engine,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, StoreError> {
    // Not the runtime of a worker, which ends with its connections.
    let done = engine.runtime.spawn(work.in_current_span().boxed()).await;
    done.map_err(|e| StoreError::Internal(format!("work on the store did not end: {e}")))
}

/// Lets timers and other tasks run now and then, in a loop over all feeds that reads the store: its reads seldom wait, and
/// there may be a million.
pub(crate) async fn share_thread() {
    tokio::task::coop::consume_budget().await;
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::protocols::failing_store;

    #[tokio::test]
    async fn work_goes_on_after_its_caller_was_dropped() {
        let (engine, _store) = failing_store::engine("").await;
        let (begin, begun) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let work = async move {
            begun.await.unwrap();
            end.send("done").unwrap();
        };
        assert!(run_detached(&engine, work).now_or_never().is_none());
        begin.send(()).unwrap();
        assert_eq!(ended.await, Ok("done"));
    }
}
