//! Position specs and orders ("Pull Interface", "Position Specs").

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::change::{Change, Seq};

/// What an order goes by. A cursor of an order holds in both of its directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// The place of an item's first version: items do not move.
    Created,
    /// The place of an item's latest version: a changed item moves to the end.
    Modified,
}

impl By {
    /// Where a change's item stands in this order.
    pub fn position(self, change: &Change) -> Seq {
        match self {
            Self::Created => change.first_seq,
            Self::Modified => change.seq,
        }
    }

    /// The timestamp that this order goes by; it never decreases along the positions.
    pub fn time(self, change: &Change) -> Timestamp {
        match self {
            Self::Created => change.created,
            Self::Modified => change.modified,
        }
    }
}

/// The order in which a feed presents its items: `created`, `modified`, `-created` or `-modified`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    /// What it goes by.
    pub by: By,
    /// Latest first.
    pub descending: bool,
}

impl Order {
    /// Every item and every change of one, oldest first: the order to synchronise by.
    pub const MODIFIED: Self = Self { by: By::Modified, descending: false };

    /// Reads the value of the `order` parameter.
    pub fn parse(text: &str) -> Option<Self> {
        let (descending, name) = text.strip_prefix('-').map_or((false, text), |name| (true, name));
        let by = match name {
            "created" => By::Created,
            "modified" => By::Modified,
            _ => return None,
        };
        Some(Self { by, descending })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.descending { "-" } else { "" };
        let name = match self.by {
            By::Created => "created",
            By::Modified => "modified",
        };
        write!(f, "{sign}{name}")
    }
}

/// A stretch of time as exact as it was written: `2024-01-01T00:00:00Z` is that whole second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after it; `None` at the end of what a timestamp can say.
    pub end: Option<Timestamp>,
}

impl Span {
    /// The whole second that begins so many seconds after the Unix epoch.
    pub fn second(seconds: i64) -> Option<Self> {
        Some(Self::of(Timestamp::from_second(seconds).ok()?, 0))
    }

    /// From `start`, with so many digits after its seconds' point.
    fn of(start: Timestamp, digits: u32) -> Self {
        let length = SignedDuration::from_nanos(10_i64.pow(9 - digits.min(9)));
        Self { start, end: start.checked_add(length).ok() }
    }
}

/// A position in a feed: `{type}:{value}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Spec {
    /// After or before the item that a publisher's token names.
    Cursor(String),
    /// After or before the item with this id.
    Id(String),
    /// At a time; inclusive, whichever end it limits.
    Time(Span),
}

/// Why a text is not a position spec. The client's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No colon, or nothing after it.
    #[error("{0:?} is not of the form type:value")]
    Form(String),
    /// Another type than `cursor`, `id` and `time`.
    #[error("position specs of type {0:?} are not supported; cursor, id and time are")]
    Type(String),
    /// Neither RFC 3339 nor Unix seconds.
    #[error("{0:?} is neither an RFC 3339 date and time nor Unix seconds")]
    Time(String),
}

impl Spec {
    /// Reads a spec, decoded.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let parts = text.split_once(':').filter(|(_, value)| !value.is_empty());
        let (kind, value) = parts.ok_or_else(|| SpecError::Form(shorten(text)))?;
        match kind {
            "cursor" => Ok(Self::Cursor(value.to_owned())),
            "id" => Ok(Self::Id(value.to_owned())),
            "time" => match parse_time(value) {
                Some(span) => Ok(Self::Time(span)),
                None => Err(SpecError::Time(shorten(value))),
            },
            _ => Err(SpecError::Type(shorten(kind))),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cursor(cursor) => write!(f, "cursor:{cursor}"),
            Self::Id(id) => write!(f, "id:{id}"),
            Self::Time(span) => write!(f, "time:{}", span.start),
        }
    }
}

/// The longest time that is looked at, in bytes.
const MAX_TIME: usize = 64;

fn parse_time(text: &str) -> Option<Span> {
    if text.len() > MAX_TIME {
        return None;
    }
    if let Some(span) = parse_unix(text) {
        return Some(span);
    }
    // In a query a plus that nobody encoded has become a space: here it can only stand before the offset.
    let text = match text.rsplit_once(' ') {
        Some((head, offset)) if head.contains(['T', 't']) => format!("{head}+{offset}"),
        _ => text.to_owned(),
    };
    let digits = text.split_once('.').map_or(0, |(_, rest)| count_digits(rest));
    Some(Span::of(text.parse().ok()?, digits))
}

/// Unix seconds, with a fraction or without.
fn parse_unix(text: &str) -> Option<Span> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if digits.is_empty() || !plain(digits) || !plain(fraction) || text.ends_with('.') {
        return None;
    }
    let nanos: i64 = format!("{fraction:0<9.9}").parse().ok()?;
    let start = Timestamp::from_second(whole.parse().ok()?).ok()?;
    let nanos = SignedDuration::from_nanos(if whole.starts_with('-') { -nanos } else { nanos });
    Some(Span::of(start.checked_add(nanos).ok()?, count_digits(fraction)))
}

fn count_digits(text: &str) -> u32 {
    text.bytes().take_while(u8::is_ascii_digit).take(9).fold(0, |n, _| n + 1)
}

/// The first characters of a text that somebody sent, for a message.
pub(super) fn shorten(text: &str) -> String {
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
        match Spec::parse(&format!("time:{text}")).unwrap() {
            Spec::Time(span) => (span.start.to_string(), span.end.unwrap().to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// Position Specs: the string syntax "{type}:{value}" MUST be used.
    #[test]
    fn specs_are_type_and_value() {
        assert_eq!(Spec::parse("cursor:8f4a1546"), Ok(Spec::Cursor("8f4a1546".into())));
        assert_eq!(Spec::parse("id:a:b"), Ok(Spec::Id("a:b".into())));
        for bad in ["", "8f4a1546", "cursor:", ":", "id"] {
            assert!(matches!(Spec::parse(bad), Err(SpecError::Form(_))), "{bad}");
        }
        for bad in ["version:1", "Cursor:1", ":1", "http://x"] {
            assert!(matches!(Spec::parse(bad), Err(SpecError::Type(_))), "{bad}");
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
            assert!(matches!(Spec::parse(&format!("time:{bad}")), Err(SpecError::Time(_))), "{bad}");
        }
    }

    #[test]
    fn orders_have_two_directions() {
        for text in ["created", "modified", "-created", "-modified"] {
            assert_eq!(Order::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "-", "--created", "Created", "random", "+created"] {
            assert_eq!(Order::parse(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_spec_or_an_error(text in "(time:|id:|cursor:)?.{0,80}") {
            if let Ok(spec) = Spec::parse(&text) {
                proptest::prop_assert!(Spec::parse(&spec.to_string()).is_ok());
            }
        }
    }
}
