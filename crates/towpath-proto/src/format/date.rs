//! Dates in feeds: RFC 3339, RFC 2822, and the common malformed variants of both.

use jiff::Timestamp;

/// Parses a date; `None` for other text.
///
/// Accepts RFC 3339, also without seconds or offset, a date alone (midnight UTC), and a year and month alone.
/// Accepts RFC 2822, also without weekday, seconds or zone, with a two-digit year, and with the month first.
/// Accepts the two obsolete dates of HTTP. Zones are offsets, UTC, GMT, Z and North America's names; a
/// missing or unknown zone means UTC.
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Some(parts) = exact(text.as_bytes()) {
        return parts.timestamp();
    }
    // No date is longer; the bound keeps hostile texts from costing time.
    if text.len() > 100 || !text.is_ascii() {
        return None;
    }
    match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', ..] => iso(text),
        [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9'] => iso(text),
        _ => rfc2822(text),
    }
}

/// As [`parse`], but digits alone are seconds since 1970.
pub fn parse_or_seconds(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    match text.parse::<i64>() {
        // Four digits alone are a year.
        Ok(seconds) if text.len() > 4 => Timestamp::from_second(seconds).ok(),
        _ => parse(text),
    }
}

/// Parts of a date before validation.
#[derive(Default)]
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    /// Seconds into the day, up to a leap second.
    seconds: i64,
    nanoseconds: i32,
    /// Seconds east of UTC.
    offset: i64,
}

impl Parts {
    fn timestamp(&self) -> Option<Timestamp> {
        let days_in_month = match self.month {
            4 | 6 | 9 | 11 => 30,
            2 if self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0) => 29,
            2 => 28,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=days_in_month).contains(&self.day) || !(0..=9999).contains(&self.year) {
            return None;
        }
        // Days since 1970-01-01, by Hinnant's algorithm: its years begin in March, so that the leap day is
        // the last.
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        let days =
            era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
        Timestamp::new(days * 86_400 + self.seconds - self.offset, self.nanoseconds).ok()
    }
}

/// Parses exactly `2024-01-31T23:59:59Z`: most dates have this form, and need no general parser.
fn exact(text: &[u8]) -> Option<Parts> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, b'Z'] = text
    else {
        return None;
    };
    let digits = [y1, y2, y3, y4, m1, m2, d1, d2, h1, h2, n1, n2, s1, s2];
    if !digits.iter().all(|d| d.is_ascii_digit()) {
        return None;
    }
    let two = |tens: &u8, ones: &u8| i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
    let (hours, minutes, seconds) = (two(h1, h2), two(n1, n2), two(s1, s2));
    if hours > 24 || minutes > 59 || seconds > 60 {
        return None;
    }
    Some(Parts {
        year: two(y1, y2) * 100 + two(y3, y4),
        month: two(m1, m2),
        day: two(d1, d2),
        seconds: hours * 3600 + minutes * 60 + seconds,
        ..Parts::default()
    })
}

/// Parses `2024-01-31T23:59:59.5+01:00` and its shorter forms.
fn iso(text: &str) -> Option<Timestamp> {
    // A space in place of the T is the most common deviation from RFC 3339.
    let split = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let (date, time) = text.split_at(split);
    let mut numbers = date.split('-');
    let mut next = |missing: i64| match numbers.next() {
        Some(part) => number(part),
        None => Some(missing),
    };
    let mut parts = Parts { year: next(0)?, month: next(1)?, day: next(1)?, ..Parts::default() };
    if numbers.next().is_some() {
        return None;
    }
    let time = time.get(1..).unwrap_or_default().trim();
    if !time.is_empty() {
        let zone_at =
            time.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.' | ','))).unwrap_or(time.len());
        let (clock, zone) = time.split_at(zone_at);
        (parts.seconds, parts.nanoseconds) = clock_time(clock)?;
        parts.offset = offset(zone.trim())?;
    }
    parts.timestamp()
}

/// Parses `Fri, 31 Jan 2024 23:59:59 +0100` and its many variants.
fn rfc2822(text: &str) -> Option<Timestamp> {
    // A negative year marks a missing one: the year 0 is valid.
    let mut parts = Parts { year: -1, ..Parts::default() };
    let mut month_seen = false;
    let mut clock_seen = false;
    // A comment in brackets, such as `(UTC)`, repeats the zone.
    let text = text.split('(').next().unwrap_or_default();
    for word in text.split([' ', ',', '\t', '\n', '\r']).filter(|w| !w.is_empty()) {
        if word.contains(':') && !clock_seen {
            let zone_at =
                word.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.'))).unwrap_or(word.len());
            // The zone may follow the time without a space.
            (parts.seconds, parts.nanoseconds) = clock_time(&word[..zone_at])?;
            parts.offset = offset(&word[zone_at..])?;
            clock_seen = true;
        } else if clock_seen && (parts.year >= 0 || !word.bytes().all(|b| b.is_ascii_digit())) {
            // `GMT+0100` and `+0100` are single words.
            parts.offset = offset(word)?;
        } else {
            for piece in word.split(['-', '.']).filter(|p| !p.is_empty()) {
                date_piece(piece, &mut parts, &mut month_seen)?;
            }
        }
    }
    // A day is optional: some feeds give only month and year.
    if parts.year < 0 || !month_seen {
        return None;
    }
    parts.timestamp()
}

/// Parses a day, a month's name or a year; ignores a weekday's name.
fn date_piece(piece: &str, parts: &mut Parts, month_seen: &mut bool) -> Option<()> {
    if let Some(number) = number(piece) {
        if parts.day == 0 && piece.len() <= 2 {
            parts.day = number;
        } else if parts.year < 0 {
            parts.year = match piece.len() {
                // Two- and three-digit years (RFC 2822, section 4.3).
                1 | 2 if number < 50 => number + 2000,
                1..=3 => number + 1900,
                4 => number,
                _ => return None,
            };
        } else {
            return None;
        }
        return Some(());
    }
    let short = piece.get(..3)?.to_ascii_lowercase();
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    match MONTHS.iter().position(|m| *m == short) {
        Some(month) if !*month_seen => {
            parts.month = month as i64 + 1;
            *month_seen = true;
            Some(())
        }
        // Any other word means that the text is not a date.
        _ => WEEKDAYS.contains(&short.as_str()).then_some(()),
    }
}

/// Parses `23:59`, `23:59:59` or `23:59:59.123` into seconds and nanoseconds.
fn clock_time(text: &str) -> Option<(i64, i32)> {
    let (whole, fraction) = match text.find(['.', ',']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    let mut numbers = whole.split(':').map(number);
    let hours = numbers.next()??;
    let minutes = numbers.next()??;
    let seconds = numbers.next().unwrap_or(Some(0))?;
    // 60 is a leap second (RFC 3339, section 5.6); Unix time cannot express it, so it becomes the next
    // second.
    if numbers.next().is_some() || hours > 24 || minutes > 59 || seconds > 60 {
        return None;
    }
    let mut nanoseconds = 0;
    let mut unit = 100_000_000;
    for digit in fraction.bytes() {
        nanoseconds += i32::from(digit.checked_sub(b'0').filter(|d| *d <= 9)?) * unit;
        unit /= 10;
    }
    Some((hours * 3600 + minutes * 60 + seconds, nanoseconds))
}

/// Returns seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    // `GMT+0100` has a redundant prefix.
    let zone = zone.strip_prefix("GMT").or(zone.strip_prefix("UTC")).unwrap_or(zone);
    let sign = match zone.as_bytes().first() {
        None => return Some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        Some(_) => return Some(named_zone(zone)),
    };
    // ISO 8601 writes a colon in the offset, RFC 2822 none.
    let digits: String = zone[1..].chars().filter(|c| *c != ':').collect();
    let value = number(&digits)?;
    let (hours, minutes) = match digits.len() {
        1 | 2 => (value, 0),
        3 | 4 => (value / 100, value % 100),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Returns the offset of a named zone: North America's names (RFC 2822, section 4.3). Other names are
/// unreliable and count as UTC.
fn named_zone(zone: &str) -> i64 {
    let hours = match zone.to_ascii_uppercase().as_str() {
        "EDT" => -4,
        "EST" | "CDT" => -5,
        "CST" | "MDT" => -6,
        "MST" | "PDT" => -7,
        "PST" => -8,
        "CET" | "BST" => 1,
        "CEST" => 2,
        "JST" => 9,
        _ => 0,
    };
    hours * 3600
}

fn number(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > 9 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utc(text: &str) -> Option<String> {
        parse(text).map(|t| t.to_string())
    }

    #[test]
    fn dates_as_the_texts_have_them() {
        for (text, expected) in [
            ("2003-12-13T18:30:02Z", "2003-12-13T18:30:02Z"),
            ("2003-12-13T18:30:02.25+01:00", "2003-12-13T17:30:02.25Z"),
            ("2003-12-13t18:30:02z", "2003-12-13T18:30:02Z"),
            ("Sat, 07 Sep 2002 00:00:01 GMT", "2002-09-07T00:00:01Z"),
            ("Fri, 21 Nov 1997 09:55:06 -0600", "1997-11-21T15:55:06Z"),
            ("Sunday, 06-Nov-94 08:49:37 GMT", "1994-11-06T08:49:37Z"),
            ("Sun Nov  6 08:49:37 1994", "1994-11-06T08:49:37Z"),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn dates_as_feeds_have_them() {
        for (text, expected) in [
            ("2025-01-24", "2025-01-24T00:00:00Z"),
            ("2025-01", "2025-01-01T00:00:00Z"),
            ("2025", "2025-01-01T00:00:00Z"),
            ("2025-01-24T10:20", "2025-01-24T10:20:00Z"),
            ("2025-01-24 10:20:30", "2025-01-24T10:20:30Z"),
            ("2025-01-24 10:20:30 +0200", "2025-01-24T08:20:30Z"),
            ("2025-1-4", "2025-01-04T00:00:00Z"),
            ("Thu, 2 Jan 03 10:20 EST", "2003-01-02T15:20:00Z"),
            ("Thu, 2 Jan 2003 10:20:30 PDT", "2003-01-02T17:20:30Z"),
            ("2 January 99 1:02:03", "1999-01-02T01:02:03Z"),
            ("Thurs, 02 Jan 2003 10:20:30 GMT+0100", "2003-01-02T09:20:30Z"),
            ("  Thu,02 Jan 2003 10:20:30 UT\n", "2003-01-02T10:20:30Z"),
            ("Jan 2, 2003 10:20:30 +00:00 (UTC)", "2003-01-02T10:20:30Z"),
            ("2 Jan 2003", "2003-01-02T00:00:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(parse_or_seconds("1389003527"), Timestamp::from_second(1_389_003_527).ok());
        assert_eq!(parse_or_seconds("2025"), parse("2025-01-01"));
    }

    #[test]
    fn dates_that_are_none() {
        for text in [
            "",
            "yesterday",
            "2025-13-01",
            "2025-02-30",
            "2025-01-01T25:00Z",
            "Mon",
            "31 Feb 2024",
            "--",
            "2025-01-01-01",
            "12:00",
            "Thu, 2 Foo 2003 10:20 GMT",
            "99999999999999999999",
            "2025-01-01T10:61:00Z",
            "é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_instant_comes_back(seconds in -62_167_219_200_i64..253_402_300_799, nanoseconds in 0..1_000_000_000_i32) {
            let instant = Timestamp::new(seconds, 0).unwrap();
            let precise = instant + jiff::SignedDuration::from_nanos(i64::from(nanoseconds));
            prop_assert_eq!(parse(&precise.to_string()), Some(precise));
            let date = jiff::fmt::rfc2822::to_string(&instant.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
            prop_assert_eq!(parse(&date), Some(instant), "{}", date);
        }

        #[test]
        fn nothing_panics(text in "[0-9a-zA-Z:+., -]{0,40}") {
            let _ = parse(&text);
            let _ = parse_or_seconds(&text);
        }
    }
}
