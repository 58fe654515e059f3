//! Durations in the configuration and on the command line.

use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;

use super::number_or_text::NumberOrText;

/// Deserialises a duration such as `90s`, `5m`, `1h 30m` or `2d`; a bare number is in seconds.
pub(super) fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(seconds) => Ok(Duration::from_secs(seconds)),
        NumberOrText::Text(text) => parse_duration(&text).map_err(D::Error::custom),
    }
}

pub(super) fn some_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// Parses a duration such as `90s`, `5m`, `1h 30m` or `2d`.
///
/// # Errors
///
/// Text that is no duration, with the reason.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    // jiff's SignedDuration has no days, because a civil day may have 23 or 25 hours.
    let days = text.trim().strip_suffix('d').and_then(|days| days.trim().parse::<u64>().ok());
    if let Some(days) = days {
        return Ok(Duration::from_secs(days.saturating_mul(86_400)));
    }
    let invalid = || format!("{text:?} is not a duration such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
    Duration::try_from(parsed).map_err(|_| invalid())
}

pub(super) fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

pub(super) fn one_day() -> Duration {
    Duration::from_secs(86_400)
}
