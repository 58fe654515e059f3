//! The log of a feed as a list, newest first, with a line about each change.

use maud::{Markup, html};
use towpath_proto::Op;
use towpath_proto::change::{Change, Seq};
use towpath_store::ReadLimit;

use super::super::clock::ago;
use super::super::feed_head::{FeedHead, past_note};
use super::super::layout::pager;
use super::super::text::{clip, foreign, name_of, number};
use super::super::visit::Visit;
use super::change_line::{describe, kind};
use crate::document::route_error::RouteError;

/// Changes of a page.
const ROWS: u64 = 50;

/// A line of the list.
struct LogLine {
    seq: Seq,
    id: String,
    name: String,
    kind: &'static str,
    op: Op,
    text: String,
    modified: jiff::Timestamp,
    previous: Option<Seq>,
}

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let last = head.past.map_or(head.head.seq, |past| past.seq);
    let asked = visit.query.number("before")?;
    let before = asked.unwrap_or(last + 1).clamp(1, last + 1);
    let start = before.saturating_sub(1 + ROWS);
    let lines = read(visit, head, start, before).await?;
    let present = format!("{}/changes", visit.feed_path(&head.feed));
    let newest = (before <= last).then(|| (visit.query.with(&[("before", "")]), "Newest"));
    let older = (start > 0).then(|| (visit.query.with(&[("before", &(start + 1).to_string())]), "Older"));
    let shown = format!("{} to {} of {}", number(start + 1), number(before - 1), number(last));
    Ok(html! {
        @if let Some(past) = &head.past { (past_note(past, &present)) }
        @if lines.is_empty() {
            div class="sheet empty" { h2 { "No changes" } p { "The log is empty." } }
        } @else {
            div class="sheet" id="log" data-live=[(asked.is_none() && head.past.is_none()).then_some("")] {
                table class="log cardlike" {
                    caption class="hidden" { "Changes, newest first" }
                    thead { tr { th class="number" scope="col" { "Change" } th scope="col" { "When" } th scope="col" { "What" } th scope="col" { "Item" } th scope="col" { "Difference" } } }
                    tbody { @for line in &lines { (log_line(visit, head, line)) } }
                }
            }
            (pager(&shown, newest, older))
        }
    })
}

/// Reads the lines between two positions, newest first.
async fn read(visit: &Visit, head: &FeedHead, start: Seq, before: Seq) -> Result<Vec<LogLine>, RouteError> {
    let (store, log) = (&visit.engine.store, head.feed.log());
    let (mut lines, mut after) = (Vec::new(), start);
    while after + 1 < before {
        let count = usize::try_from(before - 1 - after).unwrap_or(usize::MAX);
        // Few bytes at a time: only a line of each change is kept.
        let changes = store.read(log, after, ReadLimit { items: count, bytes: 4 << 20 }).await?;
        let Some(last) = changes.last() else { break };
        after = last.seq;
        for change in &changes {
            let previous = match change.previous {
                Some(previous) => store.change(log, previous).await?,
                None => None,
            };
            lines.push(line_of(change, previous.as_ref()));
        }
    }
    lines.reverse();
    Ok(lines)
}

fn line_of(change: &Change, previous: Option<&Change>) -> LogLine {
    // A removed item has no title: its last version has.
    let named = if change.op == Op::Delete { previous.unwrap_or(change) } else { change };
    LogLine {
        seq: change.seq,
        id: change.item.id.clone(),
        name: name_of(&named.item).into_owned(),
        kind: kind(change, previous),
        op: change.op,
        text: describe(change, previous),
        modified: change.modified,
        previous: change.previous,
    }
}

fn log_line(visit: &Visit, head: &FeedHead, line: &LogLine) -> Markup {
    let item = visit.item_path(head.feed.id().as_str(), &line.id);
    html! {
        tr id={ "change-" (line.seq) } {
            td class="number" data-label="Change" { (number(line.seq)) }
            td class="nowrap" { (ago(line.modified, visit.now)) }
            td { span class={ "op " (line.kind) } title=(line.op.as_str()) { (line.kind) } }
            th scope="row" class="of-item" { a href={ (item) "?version=" (line.seq) } dir="auto" { (foreign(&clip(&line.name, 100))) } }
            td class="of-difference" {
                (foreign(&line.text))
                @if let (Some(previous), true) = (line.previous, line.op != Op::Delete) {
                    " " a class="nowrap small" href={ (item) "?version=" (line.seq) "&with=" (previous) } { "compare" }
                }
            }
        }
    }
}
