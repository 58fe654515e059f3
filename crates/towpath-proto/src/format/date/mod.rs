//! Dates in feeds: RFC 3339, RFC 2822, and the common malformed variants of both.

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};

/// Parses a date; `None` for other text.
///
/// Accepts RFC 3339, also without seconds or offset, a date alone (midnight UTC) with or without hyphens, and a
/// year and month alone.
/// Accepts RFC 2822, also without weekday, seconds or zone, with a two-digit year, and with the month first.
/// Accepts the two obsolete dates of HTTP. Times may be of a 12-hour clock, with AM or PM. Zones are offsets, UTC,
/// GMT, Z and North America's names; a missing or unknown zone means UTC.
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
        [_, _, _, _, _, _, _, _] if is_digits(text) => basic(text),
        _ => rfc2822(text),
    }
}

/// As [`parse`], but nine digits or more are seconds since 1970, perhaps with a fraction.
///
/// Fewer digits would be a time before 1973. They are a date or a year if they have the digits for it, and else `None`:
/// `202501` may be a month of 2025 or a day of 2020, and seconds in neither case.
pub fn parse_or_seconds(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let digits = text.split('.').next().unwrap_or_default().trim_start_matches('-');
    if digits.len() < 9 { parse(text) } else { unix_seconds(text).or_else(|| parse(text)) }
}

/// Returns the date of a number: seconds since 1970, perhaps with a fraction. Four digits alone are a year.
pub fn of_number(text: &str) -> Option<Timestamp> {
    if text.len() == 4 && is_digits(text) { iso(text) } else { unix_seconds(text) }
}

/// Parses seconds since 1970, with or without a fraction.
pub fn unix_seconds(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    if digits.is_empty() || !is_digits(digits) || !is_digits(fraction) || text.ends_with('.') {
        return None;
    }
    // Padded or cut to nine digits, which are nanoseconds.
    let nanos: i64 = format!("{fraction:0<9.9}").parse().ok()?;
    let start = Timestamp::from_second(whole.parse().ok()?).ok()?;
    // `-1.5` is 1.5 s before 1970: the fraction has the sign of the whole.
    let nanos = SignedDuration::from_nanos(if whole.starts_with('-') { -nanos } else { nanos });
    start.checked_add(nanos).ok()
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
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
    /// Takes what follows the time: `PM`, a zone, or both.
    fn zone(&mut self, text: &str) -> Option<()> {
        let (is_pm, zone) = split_day_half(text);
        match is_pm {
            Some(true) if self.seconds < 12 * 3600 => self.seconds += 12 * 3600,
            Some(false) if self.seconds >= 13 * 3600 => return None,
            Some(false) if self.seconds >= 12 * 3600 => self.seconds -= 12 * 3600,
            // A 24-hour clock with a needless PM.
            Some(true) | None | Some(false) => {}
        }
        if is_pm.is_none() || !zone.is_empty() {
            self.offset = offset(zone)?;
        }
        Some(())
    }

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

/// Parses `20240131`.
fn basic(text: &str) -> Option<Timestamp> {
    let part = |range| text.get(range).and_then(number);
    Parts { year: part(0..4)?, month: part(4..6)?, day: part(6..8)?, ..Parts::default() }.timestamp()
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
        parts.zone(zone.trim())?;
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
            parts.zone(&word[zone_at..])?;
            clock_seen = true;
        } else if clock_seen && (parts.year >= 0 || !is_digits(word)) {
            // `GMT+0100` and `+0100` are single words.
            parts.zone(word)?;
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

/// Splits off the mark of a 12-hour clock: `PM`, or `a.m.`. Returns `true` for the second half of the day.
fn split_day_half(text: &str) -> (Option<bool>, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphabetic() || c == '.')).unwrap_or(text.len());
    let is_pm = match text[..end].to_ascii_lowercase().as_str() {
        "am" | "a.m." => false,
        "pm" | "p.m." => true,
        _ => return (None, text),
    };
    (Some(is_pm), text[end..].trim_start())
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
