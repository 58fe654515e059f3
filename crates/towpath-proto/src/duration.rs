//! Durations as people write them, in configurations and on command lines.

use std::time::Duration;

use jiff::SignedDuration;

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
    let parsed: SignedDuration = text.parse().map_err(|_| invalid())?;
    Duration::try_from(parsed).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h 30m", 5400), ("1h30m", 5400), ("2d", 172_800)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "s", "-1s", "1", "99999999999999999999d", "\u{e9}"] {
            assert!(parse_duration(bad).unwrap_err().contains("is not a duration"), "{bad}");
        }
    }
}
