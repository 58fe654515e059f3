//! Position specs and orders ("Pull Interface", "Position Specs").

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::change::{Change, Seq};
use crate::format::date;

/// Key that an order sorts by. A cursor is valid in both directions of its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderBy {
    /// Position of an item's first version: items never move.
    Created,
    /// Position of an item's latest version: a changed item moves to the end.
    Modified,
}

impl OrderBy {
    /// Returns the position of a change's item in this order.
    pub fn position(self, change: &Change) -> Seq {
        match self {
            Self::Created => change.first_seq,
            Self::Modified => change.seq,
        }
    }

    /// Returns the timestamp that this order sorts by; it never decreases along the positions.
    pub fn time(self, change: &Change) -> Timestamp {
        match self {
            Self::Created => change.created,
            Self::Modified => change.modified,
        }
    }
}

/// The order in which a feed presents its items: `created`, `modified`, `-created` or `-modified`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FeedOrder {
    /// The sort key.
    pub by: OrderBy,
    /// True for latest first.
    pub descending: bool,
}

impl FeedOrder {
    /// The order to synchronise by: every change moves its item to the end, oldest first.
    pub const MODIFIED: Self = Self { by: OrderBy::Modified, descending: false };

    /// Parses the value of the `order` parameter.
    pub fn parse(text: &str) -> Option<Self> {
        let (descending, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
        let by = match name {
            "created" => OrderBy::Created,
            "modified" => OrderBy::Modified,
            _ => return None,
        };
        Some(Self { by, descending })
    }
}

impl fmt::Display for FeedOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.descending { "-" } else { "" };
        let name = match self.by {
            OrderBy::Created => "created",
            OrderBy::Modified => "modified",
        };
        write!(f, "{sign}{name}")
    }
}

/// A time interval of the precision that was written: `2024-01-01T00:00:00Z` is that whole second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeSpan {
    /// The first instant.
    pub start: Timestamp,
    /// The first instant after the interval; `None` if a timestamp cannot represent it.
    pub end: Option<Timestamp>,
}

impl TimeSpan {
    /// Returns the whole second at this Unix time.
    pub fn second(seconds: i64) -> Option<Self> {
        Some(Self::of(Timestamp::from_second(seconds).ok()?, 0))
    }

    /// Returns the interval that begins at `start` and was written with this many fractional digits.
    fn of(start: Timestamp, digits: u32) -> Self {
        // Nanoseconds are the finest precision.
        let length = SignedDuration::from_nanos(10_i64.pow(9 - digits.min(9)));
        Self { start, end: start.checked_add(length).ok() }
    }

    /// Returns the number of fractional digits that the interval was written with; `None` at the end of time.
    fn digits(&self) -> Option<usize> {
        let length = self.end?.duration_since(self.start).as_nanos();
        Some(9 - length.max(1).ilog10() as usize)
    }
}

/// A position in a feed: `{type}:{value}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PositionSpec {
    /// After or before the item that the publisher's cursor names.
    Cursor(String),
    /// After or before the item with this id.
    Id(String),
    /// At a time; inclusive at either end of the range.
    Time(TimeSpan),
}

/// Error of parsing a position spec. The client's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PositionSpecError {
    /// There is no colon, or nothing after it.
    #[error("{0:?} is not of the form type:value")]
    Form(String),
    /// The type is none of `cursor`, `id` and `time`.
    #[error("position specs of type {0:?} are not supported; cursor, id and time are")]
    Type(String),
    /// The time is neither RFC 3339 nor Unix seconds.
    #[error("{0:?} is neither an RFC 3339 date and time nor Unix seconds")]
    Time(String),
}

impl PositionSpec {
    /// Parses a percent-decoded spec.
    pub fn parse(text: &str) -> Result<Self, PositionSpecError> {
        // At the first colon: an id may have colons.
        let parts = text.split_once(':').filter(|(_, value)| !value.is_empty());
        let (kind, value) = parts.ok_or_else(|| PositionSpecError::Form(shorten(text)))?;
        match kind {
            "cursor" => Ok(Self::Cursor(value.to_owned())),
            "id" => Ok(Self::Id(value.to_owned())),
            "time" => match parse_time(value) {
                Some(span) => Ok(Self::Time(span)),
                None => Err(PositionSpecError::Time(shorten(value))),
            },
            _ => Err(PositionSpecError::Type(shorten(kind))),
        }
    }
}

impl fmt::Display for PositionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cursor(cursor) => write!(f, "cursor:{cursor}"),
            Self::Id(id) => write!(f, "id:{id}"),
            // With its digits: `…00.000Z` is a millisecond, and `…00Z` the whole second.
            Self::Time(span) => match span.digits() {
                Some(digits) => write!(f, "time:{:.digits$}", span.start),
                None => write!(f, "time:{}", span.start),
            },
        }
    }
}

// Timestamps are short. The bound keeps the copies below small for a hostile value.
/// Maximum length of a time value, in bytes.
const MAX_TIME: usize = 64;

fn parse_time(text: &str) -> Option<TimeSpan> {
    if text.len() > MAX_TIME {
        return None;
    }
    // Digits only are Unix seconds; RFC 3339 has a dash at the fifth place, so the two never overlap.
    if let Some(span) = parse_unix(text) {
        return Some(span);
    }
    // In a query string an unencoded plus is a space. In a time it can only precede the offset.
    let text = match text.rsplit_once(' ') {
        Some((head, offset)) if head.contains(['T', 't']) => format!("{head}+{offset}"),
        _ => text.to_owned(),
    };
    let digits = text.split_once('.').map_or(0, |(_, rest)| count_digits(rest));
    Some(TimeSpan::of(text.parse().ok()?, digits))
}

/// Parses Unix seconds, with or without a fraction.
fn parse_unix(text: &str) -> Option<TimeSpan> {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    Some(TimeSpan::of(date::unix_seconds(text)?, count_digits(fraction)))
}

fn count_digits(text: &str) -> u32 {
    text.bytes().take_while(u8::is_ascii_digit).take(9).fold(0, |n, _| n + 1)
}

/// Returns the first characters of a received text, for an error message.
pub(in crate::smart) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> (String, String) {
        match PositionSpec::parse(&format!("time:{text}")).unwrap() {
            PositionSpec::Time(span) => (span.start.to_string(), span.end.unwrap().to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// Position Specs: the string syntax "{type}:{value}" MUST be used.
    #[test]
    fn specs_are_type_and_value() {
        assert_eq!(PositionSpec::parse("cursor:8f4a1546"), Ok(PositionSpec::Cursor("8f4a1546".into())));
        assert_eq!(PositionSpec::parse("id:a:b"), Ok(PositionSpec::Id("a:b".into())));
        for bad in ["", "8f4a1546", "cursor:", ":", "id"] {
            assert!(matches!(PositionSpec::parse(bad), Err(PositionSpecError::Form(_))), "{bad}");
        }
        for bad in ["version:1", "Cursor:1", ":1", "http://x"] {
            assert!(matches!(PositionSpec::parse(bad), Err(PositionSpecError::Type(_))), "{bad}");
        }
    }

    #[test]
    fn a_time_stands_for_as_much_as_was_written() {
        let second = ("2014-01-06T10:18:47Z".to_owned(), "2014-01-06T10:18:48Z".to_owned());
        assert_eq!(time("1389003527"), second);
        assert_eq!(time("2014-01-06T10:18:47Z"), second);
        assert_eq!(time("2014-01-06T12:18:47+02:00"), second);
        assert_eq!(time("2014-01-06T12:18:47 02:00"), second);
        assert_eq!(time("1389003527.25").1, "2014-01-06T10:18:47.26Z");
        assert_eq!(time("2014-01-06T10:18:47.123456789Z").1, "2014-01-06T10:18:47.12345679Z");
        assert_eq!(time("-1.5").0, "1969-12-31T23:59:58.5Z");
        for bad in ["yesterday", "2014-01-06", "1e9", "1.", "-", "99999999999999999", "١", &"1".repeat(99)] {
            assert!(
                matches!(PositionSpec::parse(&format!("time:{bad}")), Err(PositionSpecError::Time(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_time_is_written_as_precisely_as_it_was_read() {
        for text in ["2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.120000000Z"] {
            assert_eq!(
                PositionSpec::parse(&format!("time:{text}")).unwrap().to_string(),
                format!("time:{text}")
            );
        }
        let seconds = PositionSpec::parse("time:1389003527.5").unwrap();
        assert_eq!(seconds.to_string(), "time:2014-01-06T10:18:47.5Z");
    }

    #[test]
    fn orders_have_two_directions() {
        for text in ["created", "modified", "-created", "-modified"] {
            assert_eq!(FeedOrder::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "-", "--created", "Created", "random", "+created"] {
            assert_eq!(FeedOrder::parse(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_spec_or_an_error(text in "(time:|id:|cursor:)?.{0,80}") {
            if let Ok(spec) = PositionSpec::parse(&text) {
                proptest::prop_assert_eq!(PositionSpec::parse(&spec.to_string()), Ok(spec));
            }
        }
    }
}
