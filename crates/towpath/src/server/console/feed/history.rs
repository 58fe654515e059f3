//! Number of changes over time: a chart drawn on the server, with a table beside it.
//!
//! The index by time tells how far the log had come at a moment. So a column costs one look-up, however long the log is.

use std::fmt::Write as _;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use maud::{Markup, html};

use super::super::clock::{self, exact};
use super::super::feed_head::FeedHead;
use super::super::text::{count, number};
use super::super::visit::Visit;
use crate::document::route_error::RouteError;

/// Most columns of a chart.
const MAX_COLUMNS: usize = 400;

/// Unit of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Hour,
    Day,
    Month,
    Year,
}

impl Unit {
    /// Returns the unit that divides a range into a readable number of columns.
    fn fitting(from: Timestamp, to: Timestamp) -> Self {
        let hours = to.duration_since(from).as_hours();
        match hours {
            ..=96 => Self::Hour,
            97..=2400 => Self::Day,
            2401..=131_400 => Self::Month,
            _ => Self::Year,
        }
    }

    const ALL: [Self; 4] = [Self::Hour, Self::Day, Self::Month, Self::Year];

    /// Returns the unit that the address names, if it divides the range into few enough columns.
    fn named(name: Option<&str>, from: Timestamp, to: Timestamp) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| name == Some(unit.name()) && unit.is_for(from, to))
    }

    /// Returns true if a range has at most [`MAX_COLUMNS`] of these units.
    fn is_for(self, from: Timestamp, to: Timestamp) -> bool {
        boundaries(self, from, to).last().is_some_and(|end| *end >= to)
    }

    fn name(self) -> &'static str {
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

    fn label(self, at: Timestamp) -> String {
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
struct Column {
    from: Timestamp,
    to: Timestamp,
    changes: u64,
}

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    if head.head.seq == 0 {
        return Ok(html! { div class="sheet empty" { h2 { "No history yet" } p { "The log is empty." } } });
    }
    let (from, to) = range(visit, head).await?;
    let unit = Unit::named(visit.query.get("unit"), from, to).unwrap_or_else(|| Unit::fitting(from, to));
    let columns = read(visit, head, &boundaries(unit, from, to)).await?;
    let total: u64 = columns.iter().map(|column| column.changes).sum();
    let is_zoomed = visit.query.get("from").is_some() || visit.query.get("to").is_some();
    let path = format!("{}/history", visit.feed_path(&head.feed));
    Ok(html! {
        div class="row" {
            h2 { (count(total, "change")) " by " (unit.name()) }
            span class="soft" { (exact(from)) " to " (exact(to)) }
        }
        nav class="row" aria-label="Period" {
            @for other in Unit::ALL { @if other.is_for(from, to) {
                a class="button" href=(visit.query.with(&[("unit", other.name())])) aria-current=[(other == unit).then_some("true")] { "By " (other.name()) }
            } }
            @if is_zoomed {
                @for (name, from, to) in neighbours(from, to) {
                    a class="button" href=(visit.query.with(&[("from", &from.to_string()), ("to", &to.to_string())])) { (name) }
                }
                a class="button" href=(path) { "Whole log" }
            }
        }
        div class="sheet pad" tabindex="0" role="region" aria-label="Chart" { (chart(unit, &columns)) }
        p class="soft small" { "A column leads to its period." }
        details class="details gap" { summary { "The same as a table" } (table(visit, head, unit, &columns)) }
    })
}

async fn range(visit: &Visit, head: &FeedHead) -> Result<(Timestamp, Timestamp), RouteError> {
    let named = |name: &'static str| visit.query.get(name).map(|text| clock::parse(text, name)).transpose();
    let (from, to) = (named("from")?, named("to")?);
    let first = visit.engine.store.change(head.feed.log(), 1).await?;
    let begin = first.map_or(head.head.modified, |change| change.modified);
    let to = to.unwrap_or(visit.now.max(head.head.modified));
    // A log that began a minute ago would be one column.
    let day = to.checked_sub(SignedDuration::from_hours(24)).unwrap_or(begin);
    let from = from.unwrap_or(begin.min(day));
    if from >= to {
        return Err(
            RouteError::bad_request("the period ends before it begins: from is not before to").about("to")
        );
    }
    Ok((from, to))
}

/// Returns the periods before and after one of the same length, and the one around it of three times the length.
fn neighbours(from: Timestamp, to: Timestamp) -> impl Iterator<Item = (&'static str, Timestamp, Timestamp)> {
    let length = to.duration_since(from);
    let (before, after) = (from.checked_sub(length).ok(), to.checked_add(length).ok());
    let earlier = before.map(|before| ("Earlier", before, from));
    let later = after.map(|after| ("Later", to, after));
    let wider = before.zip(after).map(|(before, after)| ("Wider", before, after));
    [earlier, later, wider].into_iter().flatten()
}

/// Returns the starts of the columns, and the end of the last one.
fn boundaries(unit: Unit, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
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

async fn read(visit: &Visit, head: &FeedHead, boundaries: &[Timestamp]) -> Result<Vec<Column>, RouteError> {
    let mut positions = Vec::with_capacity(boundaries.len());
    for at in boundaries {
        positions.push(visit.engine.store.last_before(head.feed.log(), *at).await?);
    }
    let pairs = boundaries.windows(2).zip(positions.windows(2));
    let column = |(times, seqs): (&[Timestamp], &[u64])| match (times, seqs) {
        ([from, to], [first, last]) => {
            Some(Column { from: *from, to: *to, changes: last.saturating_sub(*first) })
        }
        _ => None,
    };
    Ok(pairs.filter_map(column).collect())
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 220.0;
/// Room for the numbers at the left.
const LEFT: f64 = 52.0;

fn chart(unit: Unit, columns: &[Column]) -> Markup {
    let most = columns.iter().map(|column| column.changes).max().unwrap_or(0).max(1);
    let top = nice(most);
    let step = (WIDTH - LEFT) / columns.len().max(1) as f64;
    let total: u64 = columns.iter().map(|column| column.changes).sum();
    let label = format!("{} in {} periods of a {}", count(total, "change"), columns.len(), unit.name());
    let every = columns.len().div_ceil(8).max(1);
    html! {
        svg class="chart" viewBox="0 0 1000 250" role="group" aria-label=(label) {
            @for part in 0..=2_u64 {
                @let y = 10.0 + HEIGHT * (1.0 - part as f64 / 2.0);
                line class="grid" x1="52" x2="1000" y1=(format!("{y:.0}")) y2=(format!("{y:.0}")) {}
                text x="46" y=(format!("{:.0}", y + 4.0)) text-anchor="end" { (number(top * part / 2)) }
            }
            @for (index, column) in columns.iter().enumerate() { (bar(unit, column, LEFT + index as f64 * step, step, top)) }
            // A label at the right edge would be cut off.
            @for (index, column) in columns.iter().enumerate().step_by(every).filter(|(index, _)| LEFT + *index as f64 * step < WIDTH - 100.0) {
                text x=(format!("{:.0}", LEFT + index as f64 * step)) y="246" { (unit.label(column.from)) }
            }
        }
    }
}

fn bar(unit: Unit, column: &Column, x: f64, step: f64, top: u64) -> Markup {
    if column.changes == 0 {
        return html! {};
    }
    let height = (column.changes as f64 / top as f64 * HEIGHT).max(2.0);
    let width = (step - if step > 6.0 { 1.5 } else { 0.3 }).clamp(0.6, 60.0);
    let name = format!("{}: {}", unit.label(column.from), count(column.changes, "change"));
    let mut path = String::new();
    // Writing to a String cannot fail.
    let _ = write!(path, "M{x:.1} {:.1}v-{height:.1}h{width:.1}v{height:.1}z", 10.0 + HEIGHT);
    html! {
        a href=(link(unit, column)) aria-label=(name) {
            title { (name) }
            path class="column" d=(path) {}
        }
    }
}

/// Returns the address of a column's period; the changes themselves for an hour.
fn link(unit: Unit, column: &Column) -> String {
    match unit {
        Unit::Hour => {
            let last = column.to.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(column.to);
            format!("changes?at={last}")
        }
        // Its own unit would be a single column there.
        _ => format!("history?from={}&to={}", column.from, column.to),
    }
}

fn table(visit: &Visit, head: &FeedHead, unit: Unit, columns: &[Column]) -> Markup {
    let path = visit.feed_path(&head.feed);
    html! {
        div class="sheet" { table {
            thead { tr { th scope="col" { "Period (UTC)" } th scope="col" class="number" { "Changes" } } }
            tbody { @for column in columns.iter().rev().filter(|column| column.changes > 0) {
                tr { th scope="row" { a href={ (path) "/" (link(unit, column)) } { (unit.label(column.from)) } } td class="number" { (number(column.changes)) } }
            } }
        } }
    }
}

/// Returns the next even number of one leading digit.
fn nice(most: u64) -> u64 {
    let mut unit = 1_u64;
    while unit.saturating_mul(10) < most {
        unit = unit.saturating_mul(10);
    }
    let top = most.div_ceil(unit).saturating_mul(unit);
    top + top % 2
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
        let wider = neighbours(from, to).last().unwrap();
        assert_eq!((wider.0, wider.1), ("Wider", at("2026-01-02T22:50:00Z")));
    }

    #[test]
    fn the_scale_is_readable() {
        assert_eq!([1, 2, 7, 10, 11, 199, 4001].map(nice), [2, 2, 8, 10, 20, 200, 5000]);
    }
}
