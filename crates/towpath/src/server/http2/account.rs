//! Account of one stream: the bytes that its client took, and whether some wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

tokio::task_local! {
    /// Account of the stream whose task runs.
    pub(super) static ACCOUNT: Arc<StreamAccount>;
}

/// Returns the account of the stream whose task runs.
pub(super) fn current() -> Option<Arc<StreamAccount>> {
    ACCOUNT.try_with(Arc::clone).ok()
}

/// Account of one response: the bytes that its client took, and whether some wait for it.
pub(super) struct StreamAccount {
    /// Bytes of the piece that hyper has, taken and not taken.
    state: Mutex<AccountState>,
    /// Streams of this connection whose pieces wait.
    pub(super) waiting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct AccountState {
    /// Length of the piece that waits.
    piece: Option<usize>,
    /// Bytes that were taken since the last [`StreamAccount::take_progress`].
    taken: usize,
    is_complete: bool,
}

impl StreamAccount {
    pub(super) fn new(waiting: Arc<AtomicUsize>) -> Self {
        Self { state: Mutex::default(), waiting }
    }

    /// Returns the bytes taken since the last call, and true if more wait.
    pub(super) fn take_progress(&self) -> (usize, bool) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.taken), state.piece.is_some())
    }

    /// Returns true if the response was sent to its end.
    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().is_complete
    }

    /// Replaces the piece that waits, because the one before was taken.
    pub(super) fn set_piece(&self, piece: Option<usize>) {
        let mut state = self.state.lock();
        // Under the stream's lock, so that the connection's count of waiting streams changes once for each.
        let before = std::mem::replace(&mut state.piece, piece);
        state.taken += before.unwrap_or_default();
        match (before.is_some(), piece.is_some()) {
            (false, true) => drop(self.waiting.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.waiting.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    pub(super) fn complete(&self) {
        self.state.lock().is_complete = true;
    }
}
