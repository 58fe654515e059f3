//! Waiting for requests in the caller's thread, which a signal may end.

use std::future::Future;
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

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
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(PyOSError::new_err)?;
    let result = py.detach(|| {
        let result = runtime.block_on(async {
            let mut future = std::pin::pin!(future);
            loop {
                tokio::select! {
                    result = &mut future => return Ok(result),
                    () = tokio::time::sleep(SIGNAL_CHECK) => Python::attach(|py| py.check_signals())?,
                }
            }
        });
        runtime.shutdown_timeout(SHUTDOWN);
        result
    });
    result.and_then(|result: Result<T, Failure>| result.map_err(|failure| failure.into_exception(py)))
}
