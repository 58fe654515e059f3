//! Waiting for requests in the caller's thread, which a signal may end.

use std::future::Future;
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use tokio::sync::watch;

use crate::errors::Failure;

/// Time after which a signal is noticed: only the interpreter's main thread may run its handlers.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Time for the threads of blocking work to end. Only one that resolves a name takes longer, and must not delay the end.
pub(crate) const SHUTDOWN: Duration = Duration::from_millis(200);

/// Runs a future to its end in this thread. An exception of a signal's handler, such as `KeyboardInterrupt`, ends it.
pub(crate) fn wait<T, F>(py: Python<'_>, future: F) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Result<T, Failure>> + Send,
{
    let result = block_on(py, async {
        tokio::select! {
            result = future => Ok(result),
            raised = signal() => Err(raised),
        }
    })??;
    result.map_err(|failure| failure.into_exception(py))
}

/// Like [`wait`], for work that ends by itself soon after `stop` is set, and finishes what it has in hand.
pub(crate) fn wait_stoppable<F>(py: Python<'_>, stop: &watch::Sender<bool>, future: F) -> PyResult<()>
where
    F: Future<Output = Result<(), Failure>> + Send,
{
    let result = block_on(py, async {
        let mut future = std::pin::pin!(future);
        tokio::select! {
            result = &mut future => Ok(result),
            raised = signal() => {
                let _ = stop.send(true);
                let _ = future.await;
                Err(raised)
            }
        }
    })??;
    result.map_err(|failure| failure.into_exception(py))
}

/// Waits for the exception of a signal's handler.
async fn signal() -> PyErr {
    loop {
        tokio::time::sleep(SIGNAL_CHECK).await;
        if let Err(raised) = Python::attach(|py| py.check_signals()) {
            return raised;
        }
    }
}

/// Runs a future in this thread, without the interpreter's lock.
fn block_on<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PyOSError::new_err)?;
    Ok(py.detach(|| {
        let result = runtime.block_on(future);
        runtime.shutdown_timeout(SHUTDOWN);
        result
    }))
}
