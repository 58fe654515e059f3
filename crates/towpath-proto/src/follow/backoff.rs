//! Waits between attempts after failures.

use std::time::Duration;

/// Exponential backoff: the first wait, multiplied by a factor with every further failure, up to a cap.
///
/// Pure: the number of failures in a row and any randomness are arguments.
///
/// ```
/// use std::time::Duration;
/// use towpath_proto::follow::Backoff;
///
/// let backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(60));
/// let waits = [0, 1, 2, 3, 100].map(|failures| backoff.wait(failures).as_secs());
/// assert_eq!(waits, [0, 2, 4, 8, 60]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    factor: u32,
    cap: Duration,
}

impl Backoff {
    /// Doubles from `first` up to `cap`. A `cap` below `first` wins.
    pub const fn doubling(first: Duration, cap: Duration) -> Self {
        Self { first, factor: 2, cap }
    }

    /// Multiplies by `factor` instead of 2.
    #[must_use]
    pub const fn with_factor(self, factor: u32) -> Self {
        Self { factor, ..self }
    }

    /// The longest wait.
    pub const fn cap(&self) -> Duration {
        self.cap
    }

    /// The wait after so many failures in a row; zero after none.
    pub fn wait(&self, failures: u32) -> Duration {
        let Some(further) = failures.checked_sub(1) else { return Duration::ZERO };
        // Failures are counted for as long as a publisher is down: neither power nor product may overflow.
        self.first.saturating_mul(self.factor.saturating_pow(further)).min(self.cap)
    }

    /// [`Self::wait`], but no shorter than the publisher asks for (`Retry-After`). The publisher is heard up to
    /// `longest_asked`, so that none can silence a follower for good.
    pub fn wait_or_longer(
        &self,
        failures: u32,
        retry_after: Option<Duration>,
        longest_asked: Duration,
    ) -> Duration {
        self.wait(failures).max(retry_after.unwrap_or_default().min(longest_asked))
    }

    /// A random part of [`Self::wait`], between a half and the whole. Many clients of one publisher that failed
    /// together then do not come back together.
    ///
    /// `entropy` is any random number; equal arguments give equal results.
    pub fn jittered(&self, failures: u32, entropy: u64) -> Duration {
        // Half stays fixed: a wait near zero would hammer a publisher that is down.
        let wait = self.wait(failures);
        let half = wait / 2;
        // One less than the maximum: `spread + 1` below must not overflow.
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX - 1);
        half + Duration::from_nanos(entropy % (spread + 1))
    }

    /// `Retry-After` where the publisher sent one, up to `longest_asked`; [`Self::jittered`] otherwise.
    pub fn jittered_or_retry_after(
        &self,
        failures: u32,
        retry_after: Option<Duration>,
        longest_asked: Duration,
        entropy: u64,
    ) -> Duration {
        match retry_after {
            // Without jitter, which would shorten the wait that the publisher asks for.
            Some(asked) => asked.min(longest_asked),
            None => self.jittered(failures, entropy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURLY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(3600));

    fn seconds(backoff: Backoff, failures: impl IntoIterator<Item = u32>) -> Vec<u64> {
        failures.into_iter().map(|failures| backoff.wait(failures).as_secs()).collect()
    }

    #[test]
    fn waits_grow_up_to_the_cap() {
        assert_eq!(seconds(HOURLY, [0, 1, 2, 3, 12, 13, u32::MAX]), [0, 1, 2, 4, 2048, 3600, 3600]);
        let by_three = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(7200)).with_factor(3);
        assert_eq!(seconds(by_three, 1..=9), [5, 15, 45, 135, 405, 1215, 3645, 7200, 7200]);
        let capped = Backoff::doubling(Duration::from_secs(20), Duration::from_secs(10));
        assert_eq!(seconds(capped, [1, 2]), [10, 10]);
    }

    #[test]
    fn jitter_stays_between_a_half_and_the_whole() {
        assert_eq!(HOURLY.jittered(0, 9), Duration::ZERO);
        for (failures, whole) in
            [(1, 1), (2, 2), (3, 4), (11, 1024), (13, 3600), (40, 3600), (u32::MAX, 3600)]
        {
            let whole = Duration::from_secs(whole);
            assert_eq!(HOURLY.jittered(failures, 0), whole / 2);
            for entropy in [1, 77, u64::MAX / 3, u64::MAX] {
                let wait = HOURLY.jittered(failures, entropy);
                assert!(wait >= whole / 2 && wait <= whole, "{failures} {entropy}: {wait:?}");
            }
        }
        assert_ne!(HOURLY.jittered(5, 1), HOURLY.jittered(5, 1 << 33));
        let longest = Backoff::doubling(Duration::MAX, Duration::MAX).jittered(u32::MAX, u64::MAX);
        assert!(longest >= Duration::MAX / 2);
    }

    #[test]
    fn what_the_publisher_asks_counts_within_bounds() {
        let asked = |seconds| Some(Duration::from_secs(seconds));
        let day = Duration::from_secs(86_400);
        assert_eq!(HOURLY.jittered_or_retry_after(1, asked(90), day, 0), Duration::from_secs(90));
        assert_eq!(HOURLY.jittered_or_retry_after(1, asked(999_999_999), day, 0), day);
        assert_eq!(HOURLY.jittered_or_retry_after(1, None, day, 0), Duration::from_millis(500));
        assert_eq!(HOURLY.wait_or_longer(3, asked(90), day), Duration::from_secs(90));
        assert_eq!(HOURLY.wait_or_longer(3, asked(1), day), Duration::from_secs(4));
        assert_eq!(HOURLY.wait_or_longer(3, asked(999_999_999), day), day);
        assert_eq!(HOURLY.wait_or_longer(0, None, day), Duration::ZERO);
    }
}
