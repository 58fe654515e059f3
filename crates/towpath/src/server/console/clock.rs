//! Times for people: how long ago, with the exact time beside it.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};

use crate::document::route_error::RouteError;

/// Units of a distance in time: up to so many seconds, its name, and its length.
const UNITS: [(i64, &str, i64); 6] = [
    (60, "s", 1),
    (3600, "min", 60),
    (86_400, "h", 3600),
    (86_400 * 60, "days", 86_400),
    (86_400 * 730, "months", 2_629_746),
    (i64::MAX, "years", 31_556_952),
];

/// Returns a distance in words, such as `3 min ago` or `in 2 h`.
pub(super) fn distance(at: Timestamp, now: Timestamp) -> String {
    let seconds = at.as_second() - now.as_second();
    match seconds {
        0 => "just now".to_owned(),
        ..0 => format!("{} ago", length(seconds)),
        _ => format!("in {}", length(seconds)),
    }
}

/// Returns the length of the time since a moment, such as `2 h`.
pub(super) fn time_since(at: Timestamp, now: Timestamp) -> String {
    length(now.as_second().saturating_sub(at.as_second()).max(0))
}

/// Returns a length of time in words. The script of the pages uses the same units.
fn length(seconds: i64) -> String {
    let length = seconds.abs();
    let (_, name, unit) = UNITS.into_iter().find(|(limit, ..)| length < *limit).unwrap_or(UNITS[5]);
    let count = length / unit;
    let name = if count == 1 { name.trim_end_matches('s') } else { name };
    // A second's own letter is no plural.
    let name = if unit == 1 { "s" } else { name };
    format!("{count} {name}")
}

/// Returns the exact time, in UTC.
pub(super) fn exact(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Marks a time up: the distance, with the exact time as its title.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    let exact = exact(at);
    html! { time datetime=(at) title=(exact) data-as="ago" { (distance(at, now)) } }
}

/// Marks a time up: the exact time.
pub(super) fn moment(at: Timestamp) -> Markup {
    html! { time datetime=(at) data-as="exact" { (exact(at)) } }
}

/// Parses a time of a page's address: RFC 3339, or a date with or without a time, then in UTC.
pub(super) fn parse(text: &str, name: &'static str) -> Result<Timestamp, RouteError> {
    let text = text.trim();
    let civil = || {
        let date = text.parse::<jiff::civil::DateTime>().ok()?;
        date.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    };
    text.parse::<Timestamp>().ok().or_else(civil).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        RouteError::bad_request(format!("{name}={shown:?} is not a time, such as 2026-01-31T12:00:00Z"))
            .about(name)
    })
}

/// Returns the number of a day since 1970, in UTC.
pub(super) fn day_of(at: Timestamp) -> i64 {
    at.as_second().div_euclid(86_400)
}

/// Returns the start of a day.
pub(super) fn start_of(day: i64) -> Timestamp {
    Timestamp::from_second(day.saturating_mul(86_400)).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn distances() {
        let now = at(100_000_000);
        for (seconds, words) in [
            (0, "just now"),
            (-1, "1 s ago"),
            (-59, "59 s ago"),
            (-180, "3 min ago"),
            (7200, "in 2 h"),
            (-86_400, "1 day ago"),
            (-86_400 * 400, "13 months ago"),
        ] {
            assert_eq!(distance(at(100_000_000 + seconds), now), words);
        }
        assert_eq!(time_since(at(100_000_000 - 7200), now), "2 h");
        assert_eq!(time_since(at(100_000_001), now), "0 s");
    }

    #[test]
    fn times_of_addresses() {
        assert_eq!(parse("1970-01-02T00:00:00Z", "at").unwrap(), at(86_400));
        assert_eq!(parse("1970-01-02T01:00", "at").unwrap(), at(90_000));
        assert_eq!(parse("1970-01-02", "at").unwrap(), at(86_400));
        let error = parse("<yesterday>", "at").unwrap_err();
        assert!(error.detail.contains("<yesterday>") && error.parameter.as_deref() == Some("at"));
        assert_eq!((day_of(at(-1)), day_of(at(86_400)), start_of(1)), (-1, 1, at(86_400)));
    }
}
