//! Work that takes milliseconds of a core.

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
    done.map_err(|e| StoreError::View(format!("internal error: building a document panicked: {e}")))
}

/// Lets timers and other tasks run now and then, in a loop over all feeds that reads the store: its reads seldom wait, and
/// there may be a million.
pub(crate) async fn share_thread() {
    tokio::task::coop::consume_budget().await;
}
