//! Dead letters of a sink, one by one: the change, the reason of the refusal, and what to do with it.

use maud::{Markup, html};

use super::super::clock::ago;
use super::super::layout::{Page, Section, pager, secret};
use super::super::text::{clip, count, foreign, prefix};
use super::super::visit::Visit;
use super::{card, hidden, path_of};
use crate::document::route_error::RouteError;
use crate::engine::sink_status::SinkStatus;
use crate::sink::letters::{self, DeadLetter};

/// Letters of a page.
const ROWS: usize = 50;
/// Most bytes of a change that the page shows.
const MAX_CHANGE: usize = 20_000;

/// Shows a sink with its dead letters.
pub(in crate::server::console) async fn page(visit: &Visit, name: &str) -> Result<Page, RouteError> {
    if !visit.sees_sinks() {
        return Ok(Page::new("Sinks", Section::Sinks, hidden(visit)));
    }
    let absent = || RouteError::not_found("There is no such sink in the configuration");
    let sink = visit.engine.sinks.get(name).ok_or_else(absent)?;
    let after = visit.query.number("after")?.unwrap_or(0);
    let mut letters = letters::list_after(&visit.engine, &sink, after, ROWS + 1).await?;
    let has_more = letters.len() > ROWS;
    letters.truncate(ROWS);
    let status = visit.engine.sink_status(&sink).await?;
    let body = html! {
        p class="crumbs" { a href={ (visit.root) "/sinks" } { "Sinks" } " / " span class="mono" { (foreign(name)) } }
        div class="title" { h1 { (foreign(name)) } }
        @if let Some(done) = visit.query.get("done") { div class="note ok" role="status" { p { (success_text(done)) } } }
        div class="split gap" {
            section {
                h2 { "Dead letters" }
                (list(visit, &status, &letters, after, has_more))
            }
            aside id="sink" data-live="" { (card(visit, &status)) }
        }
    };
    Ok(Page::new(format!("Sink {}", clip(name, 60)), Section::Sinks, body))
}

fn success_text(done: &str) -> &'static str {
    match done {
        "resend" => {
            "The letter is sent again. If the destination refuses it once more, it comes back with a new number."
        }
        "drop" => "The letter was dropped. The destination never gets this change.",
        _ => "There is no such letter any more: it was sent or dropped meanwhile.",
    }
}

fn list(visit: &Visit, status: &SinkStatus, letters: &[DeadLetter], after: u64, has_more: bool) -> Markup {
    let next = letters
        .last()
        .filter(|_| has_more)
        .map(|last| (visit.query.with(&[("after", &last.number.to_string()), ("done", "")]), "Later"));
    let first = (after > 0).then(|| (visit.query.with(&[("after", ""), ("done", "")]), "Oldest"));
    html! {
        @if letters.is_empty() {
            div class="sheet empty" { p { "There are none. An item that the destination refuses is kept here, and the others go on." } }
        } @else {
            ul class="items sheet" { @for letter in letters { (one(visit, status, letter)) } }
            (pager(&format!("{} of {}", letters.len(), count(status.dead_letters, "letter")), first, next))
        }
    }
}

fn one(visit: &Visit, status: &SinkStatus, letter: &DeadLetter) -> Markup {
    let text = |name: &str| letter.change[name].as_str().unwrap_or_default();
    let change = serde_json::to_string_pretty(&letter.change).unwrap_or_default();
    let shown = prefix(&change, MAX_CHANGE);
    html! {
        li {
            h2 { (foreign(&clip(text("id"), 200))) }
            div class="line" {
                span { "letter " (letter.number) }
                (ago(letter.time, visit.now))
                span class="mono" { (foreign(&clip(text("op"), 10))) }
                span { "feed " (foreign(&clip(text("feed"), 100))) }
                @if letter.is_ordered { span class="state late" { "to be sent again" } }
            }
            p class="fail" { (foreign(&clip(&letter.reason, 500))) }
            details class="details" { summary { "The change" }
                pre tabindex="0" { bdi { (shown) } }
                @if shown.len() < change.len() { p class="soft" { "Cut: the change is longer." } }
            }
            @if let Some(session) = visit.session.as_ref() {
                form class="row" method="post" action=(path_of(visit, &status.name)) {
                    (secret(session.form_secret()))
                    input type="hidden" name="letter" value=(letter.number);
                    button type="submit" name="action" value="resend-letter" { "Send again" }
                    button class="danger" type="submit" name="action" value="drop-letter" { "Drop" }
                }
            }
        }
    }
}
