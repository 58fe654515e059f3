//! Wall clock that believes a jump ahead only if it lasts.
//!
//! Times never decrease along a log. So one append with a clock that is a year ahead would date everything after it a
//! year ahead. A clock that is set back does no such harm, and is believed at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Jump ahead that is believed: a clock that drifted, or a laptop that slept for a moment.
const TOLERANCE: SignedDuration = SignedDuration::from_hours(1);
/// Time after which a clock that stays ahead is believed: it was wrong before, as on a machine without a battery.
const DOUBT: Duration = Duration::from_secs(3600);

/// Correction of a clock that is no matter: documents are dated to the second.
const SLACK: SignedDuration = SignedDuration::from_secs(1);
/// Interval of looks at the clock.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time for which no feed rests: a clock that is further ahead of the last append is perhaps wrong.
const REST: SignedDuration = SignedDuration::from_hours(180 * 24);

// One for the process: two engines in it must agree on the time, and on whether to believe it.
static CLOCK: Mutex<ClockGuard> = Mutex::new(ClockGuard { last: None, doubted: None, set_backs: 0 });
/// Copy of [`ClockGuard::set_backs`], which every request reads.
static SET_BACKS: AtomicU64 = AtomicU64::new(0);

/// Returns the time.
pub(crate) fn now() -> Timestamp {
    let mut clock = CLOCK.lock();
    let time = clock.time(Timestamp::now(), Instant::now());
    // Under the lock, or an older number could be stored last.
    SET_BACKS.store(clock.set_backs, Ordering::Release);
    time
}

/// Returns how often the clock has been set back.
pub(crate) fn set_backs() -> u64 {
    SET_BACKS.load(Ordering::Acquire)
}

/// Looks at the clock every second, so that a jump is noticed also while nothing asks for the time.
pub(crate) async fn watch() {
    loop {
        now();
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Warns of a clock that is far ahead of the last append to any log, which the process found when it started.
///
/// Nothing tells a wrong clock from a server whose feeds slept for so long.
pub(crate) fn compare_at_start(last_append: Option<Timestamp>) {
    let now = now();
    let Some(last_append) = last_append.filter(|last| is_implausible(*last, now)) else { return };
    let days = now.duration_since(last_append).as_hours() / 24;
    tracing::warn!(
        clock = %now,
        %last_append,
        days,
        "the clock of this machine is far ahead of the last append: if it is wrong, stop and set it before anything is \
         published, because times never decrease; see docs/storage.md, A wrong clock"
    );
}

/// Returns true if the clock is further ahead of the last append than feeds usually rest.
fn is_implausible(last_append: Timestamp, now: Timestamp) -> bool {
    now.duration_since(last_append) > REST
}

/// Comparison of the wall clock with the monotonic one.
#[derive(Debug)]
struct ClockGuard {
    /// Last time that was believed, on both clocks.
    last: Option<(Timestamp, Instant)>,
    /// Time since which the wall clock has been ahead.
    doubted: Option<Instant>,
    /// Number of times that it was set back.
    set_backs: u64,
}

impl ClockGuard {
    /// Returns the time to go by, when the wall clock shows `wall`.
    fn time(&mut self, wall: Timestamp, at: Instant) -> Timestamp {
        // The monotonic clock cannot be set. Where it stands still, as in suspend, a jump ahead of up to an hour is
        // believed.
        let expected = self.last.and_then(|(time, then)| time.checked_add(at.duration_since(then)).ok());
        let is_ahead = |expected: &Timestamp| wall.duration_since(*expected) > TOLERANCE;
        let Some(expected) = expected.filter(is_ahead) else {
            if self.doubted.take().is_some() {
                tracing::info!(clock = %wall, "the clock of this machine is back");
            }
            let behind = expected.map(|expected| expected.duration_since(wall)).unwrap_or_default();
            // Time servers step by milliseconds all day, and each count makes documents be built again.
            if behind > SLACK {
                self.set_backs += 1;
            }
            if behind > TOLERANCE {
                tracing::warn!(
                    clock = %wall,
                    seconds = behind.as_secs(),
                    "the clock of this machine was set back: changes get the time of their log's last one until it has \
                     passed; see docs/storage.md, A wrong clock"
                );
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
        // Counted from the first doubt: asking more often must not make it be believed later.
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
            ClockGuard { last: None, doubted: None, set_backs: 0 },
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
        assert_eq!(guard.set_backs, 1, "and it is noticed once");
    }

    #[test]
    fn a_start_is_compared_with_the_last_append() {
        let last = Timestamp::from_second(1_700_000_000).unwrap();
        for (days, expected) in [(-365, false), (0, false), (179, false), (181, true), (365, true)] {
            assert_eq!(is_implausible(last, last + (days * 24).hours()), expected, "{days}");
        }
    }
}
