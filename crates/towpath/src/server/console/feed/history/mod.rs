//! Number of changes over time: a chart drawn on the server, with a table beside it.
//!
//! The index by time tells how far the log had come at a moment. So a column costs one look-up, however long the log is.
//! Its parts are counted from what the store keeps by hour, and from the end of the log.

mod chart;
mod column;

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use towpath_store::ReadLimit;

use self::chart::{chart, legend, table};
use self::column::{Column, Unit, boundaries};
use super::super::clock::{self, exact};
use super::super::feed_head::FeedHead;
use super::super::text::count;
use super::super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::change_counts::{self, HourlyCounts, PAGE};

/// Most changes at the end of the log that a view counts by kind.
const MAX_TAIL: u64 = 2000;

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
        div class="sheet pad from-end" tabindex="0" role="region" aria-label="Chart" { (chart(unit, &columns)) }
        (legend(&columns))
        p class="soft small" { "A column leads to its period." }
        details class="details gap" { summary { "The same as a table" } (table(visit, head, unit, &columns)) }
    })
}

async fn range(visit: &Visit, head: &FeedHead) -> Result<(Timestamp, Timestamp), RouteError> {
    let named = |name: &'static str| visit.query.get(name).map(|text| clock::parse(text, name)).transpose();
    let (from, to) = (named("from")?, named("to")?);
    // The first that is kept: earlier versions may have been let go.
    let first = visit.engine.store.read(head.feed.log(), 0, ReadLimit::items(1)).await?;
    let begin = first.first().map_or(head.head.modified, |change| change.modified);
    let end = visit.now.max(head.head.modified);
    let to = to.unwrap_or(end);
    // A log that began a minute ago would be one column.
    let day = to.checked_sub(SignedDuration::from_hours(24)).unwrap_or(begin);
    let from = from.unwrap_or(begin.min(day));
    if from >= to {
        return Err(
            RouteError::bad_request("the period ends before it begins: from is not before to").about("to")
        );
    }
    Ok(within_log((from, to), (begin, end)))
}

/// Returns a range, without the centuries before and after the log if it has too many for the columns of a chart.
fn within_log(
    (from, to): (Timestamp, Timestamp),
    (begin, end): (Timestamp, Timestamp),
) -> (Timestamp, Timestamp) {
    let (first, last) = (from.max(begin), to.min(end));
    match Unit::Year.is_for(from, to) || first >= last {
        true => (from, to),
        false => (first, last),
    }
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

async fn read(visit: &Visit, head: &FeedHead, boundaries: &[Timestamp]) -> Result<Vec<Column>, RouteError> {
    let (Some(from), Some(to)) = (boundaries.first(), boundaries.last()) else { return Ok(Vec::new()) };
    let counts = counts(visit, head, *from, *to).await?;
    let mut positions = Vec::with_capacity(boundaries.len());
    for at in boundaries {
        positions.push(visit.engine.store.last_before(head.feed.log(), *at).await?);
    }
    let pairs = boundaries.windows(2).zip(positions.windows(2));
    let column = |(times, seqs): (&[Timestamp], &[u64])| match (times, seqs) {
        ([from, to], [first, last]) => {
            let (changes, counts) = (last.saturating_sub(*first), counts.between(*from, *to));
            Some(Column { from: *from, to: *to, changes, counts })
        }
        _ => None,
    };
    Ok(pairs.filter_map(column).collect())
}

/// Returns the counts of a period by hour, with those of the end of the log if it is short.
async fn counts(
    visit: &Visit,
    head: &FeedHead,
    from: Timestamp,
    to: Timestamp,
) -> Result<HourlyCounts, RouteError> {
    let mut counts = change_counts::read(&visit.engine, &head.feed, from, to).await?;
    while counts.upto < head.head.seq && head.head.seq - counts.upto <= MAX_TAIL {
        let changes = visit.engine.store.read(head.feed.log(), counts.upto, PAGE).await?;
        if changes.is_empty() {
            break;
        }
        counts.add(&changes);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn centuries_without_changes_are_left_out() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let log = (at("2025-05-01T00:00:00Z"), at("2026-03-02T00:10:00Z"));
        let within = |from: &str, to: &str| within_log((at(from), at(to)), log);
        assert_eq!(within("1500-01-01T00:00:00Z", "2500-01-01T00:00:00Z"), log);
        let (from, to) = ("2000-01-01T00:00:00Z", "2030-01-01T00:00:00Z");
        assert_eq!(within(from, to), (at(from), at(to)));
    }

    #[test]
    fn periods_have_neighbours() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let wider = neighbours(at("2026-01-31T23:30:00Z"), at("2026-03-02T00:10:00Z")).last().unwrap();
        assert_eq!((wider.0, wider.1), ("Wider", at("2026-01-02T22:50:00Z")));
    }
}
