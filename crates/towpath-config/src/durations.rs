//! Durations in the configuration and on the command line.

use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;
pub use towpath_proto::duration::parse_duration;

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

pub(super) fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

pub(super) fn one_day() -> Duration {
    Duration::from_secs(86_400)
}
