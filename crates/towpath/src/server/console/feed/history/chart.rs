//! Drawing of the history: a chart, and a table with the same.

use std::fmt::Write as _;

use jiff::SignedDuration;
use maud::{Markup, html};

use super::column::{Column, Unit};
use crate::engine::change_counts::ChangeCounts;
use crate::server::console::feed_head::FeedHead;
use crate::server::console::text::{count, number};
use crate::server::console::visit::Visit;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 220.0;
/// Ground of the columns.
const BOTTOM: f64 = HEIGHT + 10.0;
/// Height of the smallest part: one change among thousands must be seen.
const LEAST: f64 = 2.0;
/// Room for the numbers at the left.
const LEFT: f64 = 52.0;

pub(super) fn chart(unit: Unit, columns: &[Column]) -> Markup {
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

/// Draws a column in parts, from the ground up: new, changed and removed items, and what is not counted yet.
fn bar(unit: Unit, column: &Column, x: f64, step: f64, top: u64) -> Markup {
    if column.changes == 0 {
        return html! {};
    }
    let width = (step - if step > 6.0 { 1.5 } else { 0.3 }).clamp(0.6, 60.0);
    let name = format!("{}: {}", unit.label(column.from), in_words(column));
    let mut ground = BOTTOM;
    html! {
        a href=(link(unit, column)) aria-label=(name) {
            title { (name) }
            @for (class, changes) in parts(column) { @if changes > 0 {
                @let height = (changes as f64 / top as f64 * HEIGHT).max(LEAST).min(ground);
                @let path = format!("M{x:.1} {ground:.1}v-{height:.1}h{width:.1}v{height:.1}z");
                @let () = ground -= height;
                path class=(class) d=(path) {}
            } }
        }
    }
}

/// Returns the parts of a column with their classes.
fn parts(column: &Column) -> [(&'static str, u64); 4] {
    let ChangeCounts { new, changed, removed } = column.counts;
    [
        ("b-new", u64::from(new)),
        ("b-changed", u64::from(changed)),
        ("b-removed", u64::from(removed)),
        ("b-uncounted", column.uncounted()),
    ]
}

fn in_words(column: &Column) -> String {
    let ChangeCounts { new, changed, removed } = column.counts;
    let mut words = count(column.changes, "change");
    for (number, kind) in [(new, "new"), (changed, "changed"), (removed, "removed")] {
        // Writing to a String cannot fail.
        let _ = write!(words, ", {} {kind}", count_of(number));
    }
    if column.uncounted() > 0 {
        let _ = write!(words, ", {} not counted yet", number(column.uncounted()));
    }
    words
}

fn count_of(value: u32) -> String {
    number(u64::from(value))
}

/// Names the parts of the columns.
pub(super) fn legend(columns: &[Column]) -> Markup {
    let uncounted: u64 = columns.iter().map(Column::uncounted).sum();
    html! {
        p class="legend" {
            @for name in ["new", "changed", "removed"] { span { span class={ "dot " (name) } {} (name) } }
            @if uncounted > 0 { span { span class="dot uncounted" {} (count(uncounted, "change")) " not counted by kind yet" } }
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

pub(super) fn table(visit: &Visit, head: &FeedHead, unit: Unit, columns: &[Column]) -> Markup {
    let path = visit.feed_path(&head.feed);
    let is_uncounted = columns.iter().any(|column| column.uncounted() > 0);
    html! {
        div class="sheet" { table {
            thead { tr {
                th scope="col" { "Period (UTC)" } th scope="col" class="number" { "Changes" }
                th scope="col" class="number" { "New" } th scope="col" class="number" { "Changed" } th scope="col" class="number" { "Removed" }
                @if is_uncounted { th scope="col" class="number" { "Not counted" } }
            } }
            tbody { @for column in columns.iter().rev().filter(|column| column.changes > 0) {
                tr {
                    th scope="row" { a href={ (path) "/" (link(unit, column)) } { (unit.label(column.from)) } }
                    td class="number" { (number(column.changes)) }
                    @for kind in [column.counts.new, column.counts.changed, column.counts.removed] { td class="number" { (count_of(kind)) } }
                    @if is_uncounted { td class="number" { (number(column.uncounted())) } }
                }
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

    #[test]
    fn a_column_has_parts() {
        let at = |text: &str| text.parse().unwrap();
        let counts = ChangeCounts { new: 2, changed: 1, removed: 0 };
        let (from, to) = (at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"));
        let column = Column { from, to, changes: 4, counts };
        let drawn = bar(Unit::Day, &column, 52.0, 20.0, 4).into_string();
        assert!(
            drawn.contains("2026-01-01: 4 changes, 2 new, 1 changed, 0 removed, 1 not counted yet"),
            "{drawn}"
        );
        let paths: Vec<&str> = drawn.split("<path class=\"").skip(1).collect();
        let classes: Vec<&str> = paths.iter().filter_map(|path| path.split('"').next()).collect();
        assert_eq!(classes, ["b-new", "b-changed", "b-uncounted"]);
        assert!(
            paths[0].contains("M52.0 230.0v-110.0h18.5") && paths[1].contains("M52.0 120.0v-55.0"),
            "{drawn}"
        );
        assert!(legend(&[column]).into_string().contains("1 change not counted by kind yet"));
    }

    #[test]
    fn the_scale_is_readable() {
        assert_eq!([1, 2, 7, 10, 11, 199, 4001].map(nice), [2, 2, 8, 10, 20, 200, 5000]);
    }
}
