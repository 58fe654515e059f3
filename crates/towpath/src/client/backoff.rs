//! How long to wait before asking again after a failure.

use std::time::Duration;

/// The wait after `failures` failures in a row: `base`, doubled for every further failure, never more than
/// `max`; of that a random part between a half and the whole, so that many clients of one publisher that
/// failed together do not come back together. Zero where nothing failed.
///
/// `entropy` is any random number; equal arguments give equal results.
pub fn backoff(failures: u32, base: Duration, max: Duration, entropy: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    let ceiling = base.saturating_mul(factor).min(max);
    let half = ceiling / 2;
    let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX - 1);
    half + Duration::from_nanos(entropy % (spread + 1))
}

/// The same where the publisher may have said when to come back: its `Retry-After` wins, but is never
/// stretched beyond `max`, so that no publisher can silence a follower for ever.
pub fn backoff_or_asked(
    asked: Option<Duration>,
    failures: u32,
    base: Duration,
    max: Duration,
    entropy: u64,
) -> Duration {
    match asked {
        Some(asked) => asked.min(max),
        None => backoff(failures, base, max, entropy),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use towpath_proto::follow::ResponseHead;

    use super::*;

    const BASE: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(3600);

    fn asked(value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", value.parse().unwrap());
        let head = ResponseHead { status: 503, url: "http://x/".into(), headers };
        head.retry_after("1994-11-06T08:49:00Z".parse().unwrap())
    }

    #[test]
    fn waits_double_up_to_the_maximum_and_keep_within_half_and_whole() {
        assert_eq!(backoff(0, BASE, MAX, 9), Duration::ZERO);
        for (failures, whole) in
            [(1, 1), (2, 2), (3, 4), (11, 1024), (13, 3600), (40, 3600), (u32::MAX, 3600)]
        {
            let whole = Duration::from_secs(whole);
            assert_eq!(backoff(failures, BASE, MAX, 0), whole / 2);
            for entropy in [1, 77, u64::MAX / 3, u64::MAX] {
                let wait = backoff(failures, BASE, MAX, entropy);
                assert!(wait >= whole / 2 && wait <= whole, "{failures} {entropy}: {wait:?}");
            }
        }
        assert_ne!(backoff(5, BASE, MAX, 1), backoff(5, BASE, MAX, 1 << 33));
        let longest = backoff(u32::MAX, Duration::MAX, Duration::MAX, u64::MAX);
        assert!(longest >= Duration::MAX / 2);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(asked("120"), Some(Duration::from_secs(120)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(37)));
        assert_eq!(asked("Sunday, 06-Nov-94 08:49:37 GMT"), Some(Duration::from_secs(37)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        for bad in ["", "soon", "-5", "1.5", "Sun, 99 Nov 1994 08:00:00 GMT"] {
            assert_eq!(asked(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_the_publisher_asks_wins_within_bounds() {
        assert_eq!(backoff_or_asked(asked("90"), 1, BASE, MAX, 0), Duration::from_secs(90));
        assert_eq!(backoff_or_asked(asked("999999999"), 1, BASE, MAX, 0), MAX);
        assert_eq!(backoff_or_asked(None, 1, BASE, MAX, 0), BASE / 2);
    }
}
