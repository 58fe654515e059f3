//! Waits between two polls of a source.

use std::time::Duration;

use towpath_proto::follow::Backoff;

/// Maximum wait between two polls of a failing source, unless its own interval is longer.
const MAX_BACKOFF: Duration = Duration::from_secs(3600);

// A mistaken date of next year must not silence a source.
/// Maximum wait that a server may ask for by `Retry-After`, unless the source's own interval is longer.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Returns the wait after a poll: the interval and up to a tenth more, so that many sources spread out.
///
/// After failures it backs off, and respects the server's `Retry-After`.
pub fn next_poll(every: Duration, failures: u32, retry_after: Option<Duration>, entropy: u64) -> Duration {
    if failures > 0 {
        // `Retry-After: 0` from a failing server must not become a busy loop.
        let retry_after = retry_after.map(|wait| wait.max(Duration::from_secs(1)));
        let backoff = Backoff::doubling(every, every.max(MAX_BACKOFF));
        let longest_asked = every.max(MAX_RETRY_AFTER);
        return backoff.jittered_or_retry_after(failures, retry_after, longest_asked, entropy);
    }
    every + every.mul_f64((entropy % 1000) as f64 / 10_000.0)
}

/// Returns the pause after a poll that took `elapsed`, for a wait that [`next_poll`] returned.
///
/// The interval counts from the start of a poll, but a quarter of it is left to a server that is slow. Back-off and
/// `Retry-After` count from the response (RFC 9110, section 10.2.3).
pub(super) fn pause(wait: Duration, elapsed: Duration, failures: u32) -> Duration {
    if failures > 0 { wait } else { wait.saturating_sub(elapsed).max(wait / 4) }
}

/// Returns the wait between two reads of a file. It does not back off: that would relieve no server, and whoever
/// repairs the file expects it to be read soon.
pub fn next_read(every: Duration) -> Duration {
    every.max(Duration::from_secs(1))
}

/// Longest wait that [`next_poll`] or [`next_read`] returns.
pub(super) fn longest_wait(every: Duration, is_file: bool, failures: u32) -> Duration {
    match (is_file, failures) {
        (true, _) => next_read(every),
        (false, 0) => every.mul_f64(1.1),
        (false, _) => every.max(MAX_RETRY_AFTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_works_is_polled_at_its_interval() {
        let every = Duration::from_secs(100);
        for entropy in [0, 999, u64::MAX] {
            let wait = next_poll(every, 0, None, entropy);
            assert!(wait >= every && wait <= every.mul_f64(1.1), "{wait:?}");
        }
    }

    #[test]
    fn the_interval_counts_from_the_start_and_a_wait_for_a_server_from_its_response() {
        let seconds = |wait, elapsed, failures| {
            pause(Duration::from_secs(wait), Duration::from_secs(elapsed), failures).as_secs()
        };
        assert_eq!([seconds(60, 8, 0), seconds(8, 20, 0)], [52, 2]);
        assert_eq!([seconds(10, 8, 1), seconds(10, 20, 5)], [10, 10]);
    }

    #[test]
    fn a_file_is_read_at_its_interval_whether_it_fails_or_not() {
        assert_eq!(next_read(Duration::from_secs(10)), Duration::from_secs(10));
        assert_eq!(next_read(Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn a_failing_source_is_polled_less_and_less_often() {
        let every = Duration::from_secs(10);
        let longest = |failures| (0..50).map(|e| next_poll(every, failures, None, e * 7919)).max().unwrap();
        assert!(longest(1) < longest(4) && longest(4) < longest(12));
        assert!(longest(60) <= MAX_BACKOFF);
        let asked = |seconds| next_poll(every, 1, Some(Duration::from_secs(seconds)), 0).as_secs();
        assert_eq!([0, 120, 14 * 3600, 86_400, 1_000_000].map(asked), [1, 120, 14 * 3600, 86_400, 86_400]);
    }
}
