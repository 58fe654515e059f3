//! A timer for who waits again and again, each time until another time, and hardly ever that long.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

/// Goes off at the time that was set last.
///
/// The timer below may be early, never late: it is set anew only where it would be late, or has gone off too early.
/// So setting a later time costs nothing, and the runtime's timers are left alone from one wait to the next.
pub(super) struct Alarm<'a> {
    due: Instant,
    /// Before this time the timer does not go off; `None` while it has not been asked since it was set.
    earliest: Option<Instant>,
    sleep: Pin<&'a mut Sleep>,
}

impl<'a> Alarm<'a> {
    /// Not set yet: it goes off when the timer does.
    pub(super) fn new(sleep: Pin<&'a mut Sleep>) -> Self {
        Self { due: sleep.deadline(), earliest: None, sleep }
    }

    pub(super) fn set(&mut self, due: Instant) {
        self.due = due;
        if self.earliest.is_none_or(|earliest| due < earliest) {
            self.earliest = None;
            self.sleep.as_mut().reset(due);
        }
    }

    /// Whether there is no need to poll: whoever did is woken.
    pub(super) fn is_silent(&self) -> bool {
        self.earliest.is_some_and(|earliest| Instant::now() < earliest)
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= self.due {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.due);
        }
        self.earliest = Some(self.sleep.deadline());
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
    async fn it_goes_off_at_the_time_that_was_set_last() {
        let start = Instant::now();
        let mut sleep = pin!(sleep(Duration::ZERO));
        let mut alarm = Alarm::new(sleep.as_mut());
        let seconds = Duration::from_secs;
        for (begin, sets, expected) in [(0, vec![10], 10), (10, vec![300, 30], 40), (40, vec![30, 300], 340)]
        {
            assert_eq!(start.elapsed().as_secs(), begin);
            for set in sets {
                alarm.set(Instant::now() + seconds(set));
                let early =
                    tokio::time::timeout(Duration::ZERO, poll_fn(|context| alarm.poll(context))).await;
                assert!(early.is_err());
            }
            assert!(alarm.is_silent());
            poll_fn(|context| alarm.poll(context)).await;
            assert_eq!((start.elapsed().as_secs(), alarm.is_silent()), (expected, false));
        }
    }
}
