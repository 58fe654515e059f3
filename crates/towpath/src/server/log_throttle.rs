//! Warnings that an attacker can cause as often as he likes: one a minute is logged.

use std::time::{Duration, Instant};

/// Pause between two warnings of one kind.
const PAUSE: Duration = Duration::from_secs(60);

/// Throttle of one kind of warning.
#[derive(Debug, Default)]
pub(super) struct LogThrottle {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns the number of warnings that were suppressed since the last one, if this one is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_a_minute_is_due() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let due = (0..1200).filter_map(|n| throttle.due(start + n * Duration::from_millis(100)));
        assert_eq!(due.collect::<Vec<_>>(), [0, 599]);
    }
}
