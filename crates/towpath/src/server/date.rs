//! The header `Date` (RFC 9110, section 6.6.1), by the clock that dates changes.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use http::HeaderValue;
use jiff::Timestamp;
use towpath_proto::format::http_date;

use crate::wall_clock;

thread_local! {
    /// The last value. Most requests come within the same second.
    static LAST: RefCell<Option<WrittenDate>> = const { RefCell::new(None) };
}

/// A written date, which is right for the rest of its second.
struct WrittenDate {
    value: HeaderValue,
    end: Instant,
    /// Number of times that the clock had been set back.
    set_backs: u64,
}

impl WrittenDate {
    fn new(now: Timestamp, at: Instant, set_backs: u64) -> Self {
        let rest = 1_000_000_000 - now.subsec_nanosecond().clamp(0, 999_999_999).unsigned_abs();
        let value = HeaderValue::from_str(&http_date::write(now));
        // A date has no character that a header cannot have.
        let value = value.unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { value, end: at + Duration::from_nanos(rest.into()), set_backs }
    }

    fn is_right(&self, at: Instant, set_backs: u64) -> bool {
        at < self.end && self.set_backs == set_backs
    }
}

/// Returns the value of `Date`.
pub(super) fn http_date_now() -> HeaderValue {
    LAST.with_borrow_mut(|last| {
        let (at, set_backs) = (Instant::now(), wall_clock::set_backs());
        match last.as_ref().filter(|last| last.is_right(at, set_backs)) {
            Some(last) => last.value.clone(),
            None => {
                let now = wall_clock::now();
                last.insert(WrittenDate::new(now, at, wall_clock::set_backs())).value.clone()
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_right_for_its_second_of_one_clock() {
        let (at, now) = (Instant::now(), Timestamp::from_millisecond(1_700_000_000_700).unwrap());
        let date = WrittenDate::new(now, at, 3);
        assert_eq!(date.value, "Tue, 14 Nov 2023 22:13:20 GMT");
        assert!(date.is_right(at + Duration::from_millis(299), 3));
        assert!(!date.is_right(at + Duration::from_millis(300), 3), "the next second");
        assert!(!date.is_right(at, 4), "the clock was set back");
    }
}
