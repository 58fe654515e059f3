//! The two clocks that a driver passes in: monotonic time for timers, wall-clock time for dates.
//!
//! Wall clocks are set: by NTP, by hand, by a dead battery. A timer kept in wall-clock time stands still for an
//! hour when the clock is set back by one. So timers run on [`Monotonic`] time. Wall-clock time serves only for
//! dates that are sent, received or persisted.

use std::ops::{Add, AddAssign};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Time since an origin that the driver chooses, for instance its start. It never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// The origin: a timer set to this is due at once.
    pub const ORIGIN: Self = Self(Duration::ZERO);
    /// A timer set to this is never due.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The time so long after the origin.
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Time elapsed since the origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// Time elapsed since `earlier`; zero if that is later than `self`.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Inverse of [`Now::simulated`].
    pub fn simulated_wall(self) -> Timestamp {
        add_wall(Timestamp::UNIX_EPOCH, self.0)
    }
}

/// Saturates at [`Monotonic::NEVER`].
impl Add<Duration> for Monotonic {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

// Both in one argument: a state machine cannot mix a timer of one moment with a date of another.
/// The present, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For timers.
    pub monotonic: Monotonic,
    /// For dates.
    pub wall: Timestamp,
}

impl Now {
    /// Clocks of a simulation that go in step: the origin of monotonic time is the Unix epoch.
    pub fn simulated(wall: Timestamp) -> Self {
        // Dates before 1970 are the origin: monotonic time has no negative values.
        let elapsed = Duration::try_from(wall.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
        Self { monotonic: Monotonic(elapsed), wall }
    }

    /// The monotonic time after a wait.
    pub fn after(self, wait: Duration) -> Monotonic {
        self.monotonic + wait
    }

    /// The monotonic time of a persisted date, at most `longest` away.
    ///
    /// The clock may have been wrong when the date was written, or may be wrong now. So a date in the past is due
    /// at once, and no date is believed beyond the longest wait that the program itself would choose.
    pub fn restore(self, due: Timestamp, longest: Duration) -> Monotonic {
        // A negative difference does not fit a Duration: the date has passed, nothing is left to wait.
        let left = Duration::try_from(due.duration_since(self.wall)).unwrap_or_default();
        self.after(left.min(longest))
    }

    /// The date to persist for a timer: what [`Self::restore`] turns back.
    pub fn date_of(self, due: Monotonic) -> Timestamp {
        add_wall(self.wall, due.since(self.monotonic))
    }
}

/// Both clocks, so much later.
impl Add<Duration> for Now {
    type Output = Self;

    fn add(self, elapsed: Duration) -> Self {
        Self { monotonic: self.monotonic + elapsed, wall: add_wall(self.wall, elapsed) }
    }
}

impl AddAssign<Duration> for Now {
    fn add_assign(&mut self, elapsed: Duration) {
        *self = *self + elapsed;
    }
}

fn add_wall(wall: Timestamp, elapsed: Duration) -> Timestamp {
    // A timer at `Monotonic::NEVER` has a date too: the last one that there is.
    let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
    wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Now {
        Now::simulated(Timestamp::from_second(1_700_000_000).unwrap())
    }

    #[test]
    fn a_persisted_date_is_restored() {
        let due = now().after(HOUR);
        assert_eq!(now().restore(now().date_of(due), 2 * HOUR), due);
        assert_eq!(due.simulated_wall().as_second(), 1_700_003_600);
    }

    #[test]
    fn a_date_is_not_believed_beyond_the_longest_wait() {
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(now().restore((now() + year).wall, HOUR), now().after(HOUR));
        assert_eq!((now() + year).restore(now().wall, HOUR), (now() + year).monotonic);
        assert_eq!(now().restore(Timestamp::MIN, HOUR), now().monotonic);
        assert!(now().restore(Timestamp::MAX, Duration::MAX).since(now().monotonic) > year);
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(now().after(Duration::MAX), Monotonic::NEVER);
        assert_eq!((now() + Duration::MAX).wall, Timestamp::MAX);
        assert_eq!(now().date_of(Monotonic::ORIGIN), now().wall);
    }
}
