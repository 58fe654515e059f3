//! Periods of the history's columns, and their changes.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::engine::change_counts::ChangeCounts;

/// Most columns of a chart.
const MAX_COLUMNS: usize = 400;

/// Unit of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Hour,
    Day,
    Month,
    Year,
}

impl Unit {
    /// Returns the unit that divides a range into a readable number of columns.
    pub(super) fn fitting(from: Timestamp, to: Timestamp) -> Self {
        let hours = to.duration_since(from).as_hours();
        match hours {
            ..=96 => Self::Hour,
            97..=2400 => Self::Day,
            2401..=131_400 => Self::Month,
            _ => Self::Year,
        }
    }

    pub(super) const ALL: [Self; 4] = [Self::Hour, Self::Day, Self::Month, Self::Year];

    /// Returns the unit that the address names, if it divides the range into few enough columns.
    pub(super) fn named(name: Option<&str>, from: Timestamp, to: Timestamp) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| name == Some(unit.name()) && unit.is_for(from, to))
    }

    /// Returns true if a range has at most [`MAX_COLUMNS`] of these units.
    pub(super) fn is_for(self, from: Timestamp, to: Timestamp) -> bool {
        boundaries(self, from, to).last().is_some_and(|end| *end >= to)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the start of the unit that a time lies in.
    fn floor(self, at: Timestamp) -> DateTime {
        let at = at.to_zoned(TimeZone::UTC).datetime();
        let date = |month: i8, day: i8| Date::new(at.year(), month, day).unwrap_or(at.date()).at(0, 0, 0, 0);
        match self {
            Self::Hour => at.date().at(at.hour(), 0, 0, 0),
            Self::Day => at.date().at(0, 0, 0, 0),
            Self::Month => date(at.month(), 1),
            Self::Year => date(1, 1),
        }
    }

    fn next(self, at: DateTime) -> Option<DateTime> {
        let span = match self {
            Self::Hour => 1.hour(),
            Self::Day => 1.day(),
            Self::Month => 1.month(),
            Self::Year => 1.year(),
        };
        at.checked_add(span).ok()
    }

    pub(super) fn label(self, at: Timestamp) -> String {
        let format = match self {
            Self::Hour => "%Y-%m-%d %H:00",
            Self::Day => "%Y-%m-%d",
            Self::Month => "%Y-%m",
            Self::Year => "%Y",
        };
        at.strftime(format).to_string()
    }
}

/// A column: a period and its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    /// Number of all changes.
    pub(super) changes: u64,
    /// Changes by kind, as far as they are counted.
    pub(super) counts: ChangeCounts,
}

impl Column {
    /// Returns the number of changes whose kind is not counted yet.
    pub(super) fn uncounted(&self) -> u64 {
        self.changes.saturating_sub(u64::from(self.counts.total()))
    }
}

/// Returns the starts of the columns, and the end of the last one.
pub(super) fn boundaries(unit: Unit, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let mut all = Vec::new();
    let mut at = Some(unit.floor(from));
    while let Some(start) = at {
        let Ok(zoned) = start.to_zoned(TimeZone::UTC) else { break };
        all.push(zoned.timestamp());
        if zoned.timestamp() >= to || all.len() > MAX_COLUMNS {
            break;
        }
        at = unit.next(start);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn columns_are_whole_periods() {
        let (from, to) = (at("2026-01-31T23:30:00Z"), at("2026-03-02T00:10:00Z"));
        assert_eq!(Unit::fitting(from, to), Unit::Day);
        let days = boundaries(Unit::Day, from, to);
        assert_eq!((days[0], days.len()), (at("2026-01-31T00:00:00Z"), 32));
        assert_eq!(*days.last().unwrap(), at("2026-03-03T00:00:00Z"));
        let months = boundaries(Unit::Month, from, to);
        assert_eq!(months[1], at("2026-02-01T00:00:00Z"));
        assert!(boundaries(Unit::Hour, at("1970-01-01T00:00:00Z"), to).len() <= MAX_COLUMNS + 1);
        assert_eq!(Unit::fitting(at("1970-01-01T00:00:00Z"), to), Unit::Year);
        assert_eq!(Unit::named(Some("month"), from, to), Some(Unit::Month));
        assert_eq!(Unit::named(Some("hour"), from, to), None, "too many columns");
    }
}
