//! Store whose calls block: opened at its first use, and used in a thread for blocking work.

use towpath_client::sink::SinkError;

/// Store of a sink, or nothing before its first use and after an interrupted one.
#[derive(Debug)]
pub(crate) struct BlockingStore<S>(Option<S>);

impl<S: Send + 'static> BlockingStore<S> {
    /// Creates the place of a store that is not open yet.
    pub(crate) const fn closed() -> Self {
        Self(None)
    }

    /// Takes the store out, if it is open.
    pub(crate) fn take(&mut self) -> Option<S> {
        self.0.take()
    }

    /// Runs work on the store, which `open` opens if it is closed.
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        open: impl FnOnce() -> Result<S, SinkError> + Send + 'static,
        work: impl FnOnce(&mut S) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let held = self.take();
        let done = tokio::task::spawn_blocking(move || {
            let mut store = held.map_or_else(open, Ok)?;
            let done = work(&mut store);
            Ok((store, done))
        });
        let (store, done) = done.await.map_err(|error| SinkError::refused(error.to_string()))??;
        self.0 = Some(store);
        done
    }
}
