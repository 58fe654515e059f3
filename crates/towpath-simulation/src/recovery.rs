//! Pauses of the threads that open a store again after a failed write.
//!
//! Such a thread waits until the runtime's thread lets it go on, so its pauses take simulated time. The runtime's thread
//! waits for each attempt in turn, which takes none.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Pause of a thread that opens a store again. Dropped, it lets the thread go on.
pub struct RecoveryPause {
    /// Simulated time that it takes.
    pub length: Duration,
    _go_on: mpsc::Sender<()>,
}

/// Pauses that began, and that nobody has taken.
static PAUSES: Mutex<VecDeque<RecoveryPause>> = Mutex::new(VecDeque::new());
/// Notified of each of them.
static PAUSED: Condvar = Condvar::new();

/// Makes a pause, in the thread that opens a store again.
pub(crate) fn pause(length: Duration) {
    let (go_on, goes_on) = mpsc::channel();
    PAUSES.lock().push_back(RecoveryPause { length, _go_on: go_on });
    PAUSED.notify_all();
    // An error: the other end was dropped, and nothing is ever sent.
    let _ = goes_on.recv();
}

/// Waits until a thread that opens a store again makes a pause, and takes it.
pub fn next_pause() -> RecoveryPause {
    let mut pauses = PAUSES.lock();
    loop {
        match pauses.pop_front() {
            Some(pause) => return pause,
            None => PAUSED.wait(&mut pauses),
        }
    }
}

/// Takes a pause that has begun.
pub fn take_pause() -> Option<RecoveryPause> {
    PAUSES.lock().pop_front()
}
