//! Dates in HTTP headers (RFC 9110, section 5.6.7).

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Error: the text is not a date of RFC 9110, section 5.6.7. The peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an HTTP date")]
pub struct HttpDateError(pub String);

/// Last second with a four-digit year: 9999-12-31T23:59:59Z.
const LAST_SECOND: i64 = 253_402_300_799;

/// Writes IMF-fixdate with a two-digit day: `Thu, 05 Oct 2023 03:00:14 GMT`.
///
/// Fractions are truncated. Times before 1970, which readers refuse, become the Unix epoch.
pub fn write(time: Timestamp) -> String {
    let seconds = time.as_nanosecond().div_euclid(1_000_000_000);
    let seconds = seconds.clamp(0, i128::from(LAST_SECOND)) as u64;
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Parses all three forms of RFC 9110 (IMF-fixdate, RFC 850, asctime), and one-digit days, which Data
/// Replication uses.
pub fn parse(text: &str) -> Result<Timestamp, HttpDateError> {
    let error = || HttpDateError(text.chars().take(80).collect());
    let trimmed = text.trim();
    let time = httpdate::parse_http_date(trimmed)
        .or_else(|_| httpdate::parse_http_date(&with_two_digit_day(trimmed)))
        .map_err(|_| error())?;
    Timestamp::try_from(time).map_err(|_| error())
}

/// Returns the date with a two-digit day: `Thu, 5 Oct 2023 …` becomes `Thu, 05 Oct 2023 …`.
fn with_two_digit_day(text: &str) -> Cow<'_, str> {
    let Some((weekday, date)) = text.split_once(',') else { return Cow::Borrowed(text) };
    let date = date.trim_start();
    let digits = date.bytes().take_while(u8::is_ascii_digit).count();
    if digits != 1 {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{weekday}, 0{date}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn rfc_9110_5_6_7_all_three_forms_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            " Sun, 06 Nov 1994 08:49:37 GMT ",
        ] {
            assert_eq!(parse(text).unwrap(), time("1994-11-06T08:49:37Z"), "{text}");
        }
    }

    #[test]
    fn case_f_one_digit_days_are_read() {
        let expected = time("2023-10-05T03:00:14Z");
        assert_eq!(parse("Thu, 5 Oct 2023 03:00:14 GMT").unwrap(), expected);
        assert_eq!(parse("Thursday, 5-Oct-23 03:00:14 GMT").unwrap(), expected);
    }

    #[test]
    fn case_f_written_with_two_digits_and_cut_to_the_second() {
        assert_eq!(write(time("2023-10-05T09:58:59Z")), "Thu, 05 Oct 2023 09:58:59 GMT");
        assert_eq!(write(time("2023-12-31T23:59:59.999Z")), "Sun, 31 Dec 2023 23:59:59 GMT");
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for bad in
            ["", "not a valid date", "Thu, 5 Oct", "2023-10-05T03:00:14Z", "Thu, 32 Oct 2023 03:00:14 GMT"]
        {
            assert_eq!(parse(bad), Err(HttpDateError(bad.to_owned())));
        }
    }

    #[test]
    fn the_ends_of_time_can_be_written() {
        assert_eq!(write(Timestamp::MIN), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(write(time("1969-12-31T23:59:59.5Z")), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert!(write(Timestamp::MAX).contains("9999"));
    }

    proptest::proptest! {
        #[test]
        fn comes_back_to_the_second(seconds in 0..LAST_SECOND, nanos in 0..1_000_000_000i32) {
            // The range of jiff ends some days before the year does.
            if let Ok(time) = Timestamp::new(seconds, nanos) {
                proptest::prop_assert_eq!(parse(&write(time)).unwrap(), Timestamp::from_second(seconds).unwrap());
            }
        }

        #[test]
        fn never_panics(text in "\\PC*|[A-Z][a-z]{2}, [0-9]{0,3} Oct [0-9]{0,5} [0-9:]*( GMT)?") {
            let _ = parse(&text);
        }
    }
}
