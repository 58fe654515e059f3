//! Wall clock that believes a jump ahead only if it lasts.
//!
//! Times never decrease along a log. So one append with a clock that is a year ahead would date everything after it a
//! year ahead. A clock that is set back does no such harm, and is believed at once.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

/// Jump ahead that is believed: a clock that drifted, or a laptop that slept for a moment.
const TOLERANCE: Duration = Duration::from_secs(3600);
/// Time after which a clock that stays ahead is believed: it was wrong before, as on a machine without a battery.
const DOUBT: Duration = Duration::from_secs(3600);

static CLOCK: Mutex<ClockGuard> = Mutex::new(ClockGuard { last: None, doubted: None });

/// Returns the time.
pub(crate) fn now() -> Timestamp {
    CLOCK.lock().time(Timestamp::now(), Instant::now())
}

/// Comparison of the wall clock with the monotonic one.
#[derive(Debug)]
struct ClockGuard {
    /// Last time that was believed, on both clocks.
    last: Option<(Timestamp, Instant)>,
    /// Time since which the wall clock has been ahead.
    doubted: Option<Instant>,
}

impl ClockGuard {
    /// Returns the time to go by, when the wall clock shows `wall`.
    fn time(&mut self, wall: Timestamp, at: Instant) -> Timestamp {
        let expected = self.last.and_then(|(time, then)| time.checked_add(at.duration_since(then)).ok());
        let is_ahead = |expected: &Timestamp| wall.duration_since(*expected).unsigned_abs() > TOLERANCE;
        let Some(expected) = expected.filter(|expected| wall > *expected).filter(is_ahead) else {
            if self.doubted.take().is_some() {
                tracing::info!(clock = %wall, "the clock of this machine is back");
            }
            self.last = Some((wall, at));
            return wall;
        };
        if self.doubted.is_none() {
            tracing::warn!(
                %expected,
                clock = %wall,
                "the clock of this machine jumped ahead: changes are dated by the time before the jump for up to an \
                 hour; check the clock"
            );
        }
        let since = *self.doubted.get_or_insert(at);
        if at.duration_since(since) < DOUBT {
            return expected;
        }
        tracing::warn!(clock = %wall, "the clock of this machine stays ahead: changes are dated by it from now on");
        (self.last, self.doubted) = (Some((wall, at)), None);
        wall
    }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    fn guard() -> (ClockGuard, Timestamp, Instant) {
        let (mut guard, wall, at) = (
            ClockGuard { last: None, doubted: None },
            Timestamp::from_second(1_700_000_000).unwrap(),
            Instant::now(),
        );
        assert_eq!(guard.time(wall, at), wall);
        (guard, wall, at)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_clock_a_year_ahead_dates_nothing_and_recovers() {
        let (mut guard, wall, at) = guard();
        let year = |time: Timestamp| time + (365 * 24).hours();
        for passed in [1, 60, 3000] {
            let right = wall + seconds(passed);
            assert_eq!(guard.time(year(right), at + seconds(passed)), right);
        }
        // Corrected: from now on it is believed again, small jumps too.
        let right = wall + seconds(3001);
        assert_eq!(guard.time(right, at + seconds(3001)), right);
        assert_eq!(guard.time(right + seconds(3500), at + seconds(3002)), right + seconds(3500));
    }

    #[test]
    fn a_clock_that_stays_ahead_is_believed_after_an_hour() {
        let (mut guard, wall, at) = guard();
        let ahead = wall + (50 * 365 * 24).hours();
        assert_eq!(guard.time(ahead, at + seconds(1)), wall + seconds(1));
        assert_eq!(guard.time(ahead + seconds(3599), at + seconds(3600)), wall + seconds(3600));
        assert_eq!(guard.time(ahead + seconds(3600), at + seconds(3601)), ahead + seconds(3600));
        assert_eq!(guard.time(ahead + seconds(3601), at + seconds(3602)), ahead + seconds(3601));
    }

    #[test]
    fn a_clock_that_is_set_back_is_believed_at_once() {
        let (mut guard, wall, at) = guard();
        let back = wall - (365 * 24).hours();
        assert_eq!(guard.time(back, at + seconds(1)), back);
        assert_eq!(guard.time(back + seconds(9), at + seconds(10)), back + seconds(9));
    }
}
