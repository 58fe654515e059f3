//! Timer that is reset again and again, and seldom expires.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

/// Timer that expires at the time that was set last.
///
/// The `Sleep` below may be early, never late: it is reset only if it would be late, or once it fired too early.
/// A parked connection sets a later time with each re-arm. That costs a store here, and nothing in the runtime's timer
/// wheel.
pub(super) struct ResettableTimer<'a> {
    due: Instant,
    /// Deadline for which the `Sleep` has registered the task; `None` until it is polled after a reset.
    registered: Option<Instant>,
    sleep: Pin<&'a mut Sleep>,
}

impl<'a> ResettableTimer<'a> {
    /// Creates a timer that expires when `sleep` does.
    pub(super) fn new(sleep: Pin<&'a mut Sleep>) -> Self {
        Self { due: sleep.deadline(), registered: None, sleep }
    }

    pub(super) fn set(&mut self, due: Instant) {
        self.due = due;
        // A later time needs nothing now: the `Sleep` fires early, and `poll` resets it then.
        if self.registered.is_none_or(|registered| due < registered) {
            self.registered = None;
            self.sleep.as_mut().reset(due);
        }
    }

    /// Returns true if polling would do nothing: the task that polled last will be woken.
    pub(super) fn is_registered(&self) -> bool {
        self.registered.is_some_and(|registered| Instant::now() < registered)
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.due {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.due);
        }
        self.registered = Some(self.sleep.deadline());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_expires_at_the_time_that_was_set_last() {
        let start = Instant::now();
        let mut sleep = pin!(sleep(Duration::ZERO));
        let mut timer = ResettableTimer::new(sleep.as_mut());
        let seconds = Duration::from_secs;
        // An earlier time after a later one, and a later one after an earlier: only the last counts.
        for (begin, sets, expected) in [(0, vec![10], 10), (10, vec![300, 30], 40), (40, vec![30, 300], 340)]
        {
            assert_eq!(start.elapsed().as_secs(), begin);
            for set in sets {
                timer.set(Instant::now() + seconds(set));
                let early =
                    tokio::time::timeout(Duration::ZERO, poll_fn(|context| timer.poll(context))).await;
                assert!(early.is_err());
            }
            assert!(timer.is_registered());
            poll_fn(|context| timer.poll(context)).await;
            assert_eq!((start.elapsed().as_secs(), timer.is_registered()), (expected, false));
        }
    }
}
