//! Durations as people write them.

use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;

/// `90s`, `5m`, `1h 30m`, `2d`; a bare number is seconds.
pub(super) fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Seconds(u64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Seconds(seconds) => Ok(Duration::from_secs(seconds)),
        Form::Text(text) => parse_duration(&text).map_err(D::Error::custom),
    }
}

pub(super) fn some_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// A duration as people write it: `90s`, `5m`, `1h 30m`, `2d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let days = text.trim().strip_suffix('d').and_then(|days| days.trim().parse::<u64>().ok());
    if let Some(days) = days {
        return Ok(Duration::from_secs(days.saturating_mul(86_400)));
    }
    let wrong = || format!("{text:?} is not a duration such as \"90s\", \"5m\", \"1h 30m\" or \"2d\"");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

pub(super) fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

pub(super) fn one_day() -> Duration {
    Duration::from_secs(86_400)
}
