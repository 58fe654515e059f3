//! Start positions: where a feed that has no persisted state is followed from.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::exchange::FollowError;

/// Start position of a feed that has not been followed before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// Everything that the publisher still has.
    #[default]
    Beginning,
    /// Changes after now.
    Now,
    /// Changes modified at this time or later.
    Time(Timestamp),
    /// Changes after this position, a cursor or Content-ID of the publisher's.
    Position(String),
}

impl StartFrom {
    /// Parses a start position as people write it: `beginning`, `now`, a time (RFC 3339), a day in UTC, else a position.
    ///
    /// Only the feed's protocol tells which positions there can be, so its follower checks them.
    ///
    /// # Errors
    ///
    /// A description of an empty text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" => return Err("the start position is empty".into()),
            "beginning" => Self::Beginning,
            "now" => Self::Now,
            _ => parse_time(text).map_or_else(|| Self::Position(text.to_owned()), Self::Time),
        })
    }
}

/// Parses an RFC 3339 time, or a day as its start in UTC.
fn parse_time(text: &str) -> Option<Timestamp> {
    // A date also parses from a time without an offset, which it would cut off, and from eight digits of a cursor.
    let is_day = text.len() == 10 && text.as_bytes()[4] == b'-';
    let day = || text.parse::<Date>().ok().filter(|_| is_day)?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| day().map(|day| day.timestamp()))
}

/// Similarity from which a text is taken for a mistyped word.
const NEAR: f64 = 0.66;

/// Returns the error of a text that is no start position. `positions` names those of the feed's protocol.
pub(crate) fn no_start(text: &str, positions: &str) -> FollowError {
    let text: String = text.chars().take(200).collect();
    let hint = meant(&text).map_or_else(String::new, |hint| format!("; {hint}"));
    FollowError::Usage(format!(
        "{text:?} is no start position of this feed{hint}. Valid are: beginning, now, a time such as \
         2026-05-31T08:00:00Z, a day such as 2026-05-31, and {positions}"
    ))
}

/// Returns what a text was probably meant to be, if it looks like a mistyped word, a time or a duration.
pub(crate) fn meant(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let near = |word: &&&str| strsim::normalized_damerau_levenshtein(&lower, word) >= NEAR;
    // Cursors have digits, so most of them need no comparison.
    if lower.bytes().all(|b| b.is_ascii_lowercase())
        && let Some(word) = ["beginning", "now"].iter().find(near)
    {
        return Some(format!("did you mean {word}?"));
    }
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    if shape.starts_with("0000-00-00T") || shape.starts_with("0000-00-00 ") {
        return Some("a time has an offset from UTC and no space, as in 2026-05-31T10:00:00+02:00".into());
    }
    if shape.starts_with("0000-0") {
        return Some("there is no such day".into());
    }
    let number = shape.trim_start_matches('-').trim_end_matches(['s', 'm', 'h', 'd', 'w']);
    let is_duration = number.len() < shape.len() && !number.is_empty() && number.chars().all(|c| c == '0');
    (is_duration && !shape.ends_with('0')).then(|| "a duration is none: give the time itself".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_position_is_a_word_a_time_or_a_position() {
        let time = |text: &str| StartFrom::Time(text.parse().unwrap());
        for (text, start) in [
            ("beginning", StartFrom::Beginning),
            ("now", StartFrom::Now),
            ("2024-02-29T12:00:00+02:00", time("2024-02-29T10:00:00Z")),
            ("2024-02-29", time("2024-02-29T00:00:00Z")),
            ("sha256:ab", StartFrom::Position("sha256:ab".into())),
            ("1389003527_0_3678689003", StartFrom::Position("1389003527_0_3678689003".into())),
            ("<id@example.com>", StartFrom::Position("<id@example.com>".into())),
        ] {
            assert_eq!(StartFrom::parse(text), Ok(start), "{text}");
        }
        for position in ["2024-02-29T12:00:00", "2024-02-29 12:00", "20240229", "2024-02-30"] {
            assert_eq!(StartFrom::parse(position), Ok(StartFrom::Position(position.into())));
        }
        assert!(StartFrom::parse("").is_err());
    }

    #[test]
    fn near_misses_are_named() {
        for (text, hint) in [
            ("begining", "did you mean beginning?"),
            ("Beginning", "did you mean beginning?"),
            ("nwo", "did you mean now?"),
            ("NOW", "did you mean now?"),
            ("2024-02-30", "no such day"),
            ("2024-13-01", "no such day"),
            ("2024-02-29T12:00:00", "offset"),
            ("2024-02-29 12:00", "offset"),
            ("1h", "duration"),
            ("-15m", "duration"),
        ] {
            let error = no_start(text, "a cursor").to_string();
            assert!(error.contains(hint) && error.contains("beginning, now, a time"), "{error}");
        }
        for cursor in ["m12-0a1b2c3d4e", "12", "-12", "1389003527_0_3678689003", "s", "12-4", "abc", "new1"] {
            assert_eq!(meant(cursor), None, "{cursor}");
        }
    }
}
