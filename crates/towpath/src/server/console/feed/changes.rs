//! The log of a feed as a list, newest first, with a line about each change.

use maud::{Markup, html};
use towpath_proto::change::{Change, Seq};
use towpath_proto::{FeedId, Op};
use towpath_store::{ReadLimit, Store};

use super::super::clock::ago;
use super::super::feed_head::{FeedHead, past_note};
use super::super::layout::pager;
use super::super::text::{clip, foreign, name_of, number};
use super::super::visit::Visit;
use super::backwards::{first_between, last_between};
use super::change_line::{describe, kind};
use crate::document::route_error::RouteError;

/// Changes of a page.
const ROWS: usize = 50;

/// A line of the list.
struct ChangeRow {
    seq: Seq,
    id: String,
    name: String,
    kind: &'static str,
    op: Op,
    text: String,
    modified: jiff::Timestamp,
    /// Version before it, if it is still kept.
    previous: Option<Seq>,
}

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let last = head.past.map_or(head.head.seq, |past| past.seq);
    let asked = visit.query.number("before")?;
    let before = asked.unwrap_or(last + 1).clamp(1, last + 1);
    let (lines, older) = read(visit, head, before).await?;
    let present = format!("{}/changes", visit.feed_path(&head.feed));
    let newest = (before <= last).then(|| (visit.query.with(&[("before", "")]), "Newest"));
    let older = older.map(|before| (visit.query.with(&[("before", &before.to_string())]), "Older"));
    let at = |line: Option<&ChangeRow>| number(line.map_or(0, |line| line.seq));
    let shown = format!("{} to {} of {}", at(lines.last()), at(lines.first()), number(last));
    Ok(html! {
        @if let Some(past) = &head.past { (past_note(past, &present)) }
        @if lines.is_empty() {
            (nothing(before, last, newest))
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

fn nothing(before: Seq, last: Seq, newest: Option<(String, &str)>) -> Markup {
    html! {
        div class="sheet empty" {
            h2 { "No changes" }
            @if last == 0 { p { "The log is empty." } } @else { p { "The log has no changes before change " (number(before)) "." } }
            @if let Some((href, name)) = newest { p { a href=(href) { (name) } } }
        }
    }
}

/// Reads the lines before a position, newest first. Also returns the position before which the next page begins.
async fn read(
    visit: &Visit,
    head: &FeedHead,
    before: Seq,
) -> Result<(Vec<ChangeRow>, Option<Seq>), RouteError> {
    let (store, log) = (visit.engine.store.as_ref(), head.feed.log());
    let (mut lines, mut end) = (Vec::new(), before);
    while lines.len() < ROWS && end > 1 {
        let start = end.saturating_sub(1 + (ROWS - lines.len()) as u64);
        let part = part(store, log, start, end).await?;
        end = match part.is_empty() {
            // The changes were let go.
            true => last_between(store, log, 0, start + 1).await?.map_or(0, |last| last + 1),
            false => start + 1,
        };
        lines.extend(part);
    }
    let Some(last) = lines.last() else { return Ok((lines, None)) };
    let has_older = first_between(store, log, 0, last.seq).await?.is_some();
    let older = has_older.then_some(last.seq);
    Ok((lines, older))
}

/// Reads the lines between two positions, newest first.
async fn part(
    store: &dyn Store,
    log: &FeedId,
    start: Seq,
    before: Seq,
) -> Result<Vec<ChangeRow>, RouteError> {
    let (mut lines, mut after) = (Vec::new(), start);
    while after + 1 < before {
        let count = usize::try_from(before - 1 - after).unwrap_or(usize::MAX);
        // Few bytes at a time: only a line of each change is kept.
        let changes = store.read(log, after, ReadLimit { items: count, bytes: 4 << 20 }).await?;
        let Some(last) = changes.last() else { break };
        after = last.seq;
        // Behind a gap the store goes on beyond the end.
        for change in changes.iter().take_while(|change| change.seq < before) {
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

fn line_of(change: &Change, previous: Option<&Change>) -> ChangeRow {
    // A removed item has no title: its last version has.
    let named = if change.op == Op::Delete { previous.unwrap_or(change) } else { change };
    ChangeRow {
        seq: change.seq,
        id: change.item.id.clone(),
        name: name_of(&named.item).into_owned(),
        kind: kind(change, previous),
        op: change.op,
        text: describe(change, previous),
        modified: change.modified,
        previous: previous.map(|previous| previous.seq),
    }
}

fn log_line(visit: &Visit, head: &FeedHead, line: &ChangeRow) -> Markup {
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
