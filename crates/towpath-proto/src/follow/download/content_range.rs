//! `Content-Range` of a response (RFC 9110, section 14.4).

/// Part of a file that a response has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// First byte; `None` where no part is sent (416).
    pub(super) start: Option<u64>,
    /// Size of the whole file, if the server knows it.
    pub(super) total: Option<u64>,
}

impl ContentRange {
    /// Parses the header. `None` for other units, and for what contradicts itself.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (unit, range) = text.trim().split_once(' ')?;
        let (part, total) = range.trim().split_once('/')?;
        let total = if total == "*" { None } else { Some(number(total)?) };
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        if part == "*" {
            return total.map(|total| Self { start: None, total: Some(total) });
        }
        let (start, end) = part.split_once('-')?;
        let (start, end) = (number(start)?, number(end)?);
        let is_within = start <= end && total.is_none_or(|total| end < total);
        is_within.then_some(Self { start: Some(start), total })
    }
}

/// Parses digits only: `u64`'s parser accepts a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed() {
        let range = |start, total| Some(ContentRange { start, total });
        for (text, expected) in [
            ("bytes 0-499/1234", range(Some(0), Some(1234))),
            (" Bytes 5-5/6 ", range(Some(5), Some(6))),
            ("bytes 7-9/*", range(Some(7), None)),
            ("bytes */1234", range(None, Some(1234))),
            ("bytes */*", None),
            ("bytes 5-4/6", None),
            ("bytes 5-6/6", None),
            ("bytes +5-5/6", None),
            ("bytes 5-5/", None),
            ("bytes 5-/6", None),
            ("bytes -5/6", None),
            ("bytes", None),
            ("pages 1-2/3", None),
            ("bytes 0-99999999999999999999/*", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), expected, "{text:?}");
        }
    }
}
