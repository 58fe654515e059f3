//! `Last-Modified` of a log whose times are ahead of this machine's clock.

use http::header::LAST_MODIFIED;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use towpath_proto::format::http_date;

/// Replaces a `Last-Modified` in the future by `now` (RFC 9110, section 8.8.2.1). Returns true if it did.
///
/// A mirror has its publisher's times, and a clock may have been ahead when a change was made.
pub(super) fn limit(headers: &mut HeaderMap, now: Timestamp) -> bool {
    let Some(value) = headers.get(LAST_MODIFIED).and_then(|value| value.to_str().ok()) else { return false };
    // To the second, as the header and `Date` are.
    let is_ahead = http_date::parse(value).is_ok_and(|modified| modified.as_second() > now.as_second());
    if is_ahead && let Ok(value) = HeaderValue::from_str(&http_date::write(now)) {
        headers.insert(LAST_MODIFIED, value);
    }
    is_ahead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_in_the_future_becomes_the_present() {
        let now = Timestamp::from_millisecond(1_700_000_000_700).unwrap();
        for (ahead, limited) in [(-1, false), (0, false), (1, true), (31_536_000, true)] {
            let modified = Timestamp::from_second(now.as_second() + ahead).unwrap();
            let value = HeaderValue::from_str(&http_date::write(modified)).unwrap();
            let mut headers = HeaderMap::from_iter([(LAST_MODIFIED, value)]);
            assert_eq!(limit(&mut headers, now), limited, "{ahead}");
            assert_eq!(headers[LAST_MODIFIED], http_date::write(modified.min(now)), "{ahead}");
        }
        assert!(!limit(&mut HeaderMap::new(), now));
    }
}
