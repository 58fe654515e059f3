//! Sinks: destinations of changes, how far they have come, their dead letters, and what operators order.

mod letters;
mod orders;

use maud::{Markup, html};

use super::clock::{ago, moment};
use super::error_page::sign_in;
use super::layout::{Page, Section, secret};
use super::text::{clip, count, foreign, number};
use super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::sink_status::SinkStatus;
use crate::engine::sinks::SinkState;

pub(super) use letters::page as letters_page;
pub(super) use orders::order;

/// Shows all sinks.
pub(super) async fn page(visit: &Visit) -> Result<Page, RouteError> {
    let body = if !visit.sees_sinks() {
        hidden(visit)
    } else {
        let sinks = visit.engine.sink_statuses().await?;
        html! {
            div class="title" { h1 { "Sinks" } }
            @if sinks.is_empty() {
                div class="sheet empty" { p { "There are none. A " code { "[[sink]]" } " of the configuration copies feeds to a database, files, webhooks or a program." } }
            } @else {
                div id="sinks" data-live="" class="cards" { @for sink in &sinks { (card(visit, sink)) } }
            }
        }
    };
    Ok(Page::new("Sinks", Section::Sinks, body))
}

/// Makes the body for readers who may not see the sinks.
fn hidden(visit: &Visit) -> Markup {
    html! {
        div class="title" { h1 { "Sinks" } }
        div class="note" { p { "Sinks are shown to holders of a token with the right " code { "admin" } " for all feeds. " a href=(sign_in(visit)) { "Sign in" } } }
    }
}

/// Returns the path of a sink's page.
fn path_of(visit: &Visit, name: &str) -> String {
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    format!("{}/sinks/{name}", visit.root)
}

/// Makes the list of the sinks that copy a feed.
pub(super) async fn of_feed(visit: &Visit, feed: &str) -> Result<Markup, RouteError> {
    if !visit.sees_sinks() {
        return Ok(html! {});
    }
    let sinks = visit.engine.sink_statuses().await?;
    let copies = |sink: &&SinkStatus| sink.feeds.iter().any(|copied| copied.feed == feed);
    let sinks: Vec<&SinkStatus> = sinks.iter().filter(copies).collect();
    Ok(html! {
        section id="sinks" data-live="" {
            h2 { "Sinks" }
            @if sinks.is_empty() { p class="soft" { "No sink copies this feed." } } @else {
                div class="sheet" { table class="cardlike" {
                    caption class="hidden" { "Sinks of this feed" }
                    thead { tr { th scope="col" { "Sink" } th scope="col" { "State" } th scope="col" class="number" { "Position" } th scope="col" class="number" { "Behind" } th scope="col" class="number" { "Dead letters" } } }
                    tbody { @for sink in sinks { @if let Some(copied) = sink.feeds.iter().find(|copied| copied.feed == feed) { tr {
                        th scope="row" { a href=(path_of(visit, &sink.name)) { (foreign(&sink.name)) } span class="why" { (foreign(&clip(&sink.into, 120))) } }
                        td { (badge(sink)) }
                        td class="number" data-label="Position" { (foreign(copied.position.as_deref().unwrap_or("–"))) }
                        td class="number" data-label="Behind" { @if let Some(lag) = copied.lag { (number(lag)) } }
                        td class="number" data-label="Dead letters" { (number(sink.dead_letters)) }
                    } } } }
                } }
            }
        }
    })
}

fn badge(sink: &SinkStatus) -> Markup {
    let (class, name) = match sink.state {
        SinkState::Running if sink.error.is_none() => ("state ok", "running"),
        SinkState::Running | SinkState::Waiting => ("state failing", "waiting"),
        SinkState::Starting => ("state idle", "starting"),
        SinkState::Paused => ("state late", "paused"),
        SinkState::Idle => ("state idle", "idle"),
    };
    html! { span class=(class) { (name) } }
}

fn card(visit: &Visit, sink: &SinkStatus) -> Markup {
    html! {
        div class="sheet pad" {
            h2 { a href=(path_of(visit, &sink.name)) { (foreign(&sink.name)) } " " (badge(sink)) }
            p class="small soft" { (sink.kind) ": " code { (foreign(&clip(&sink.into, 200))) } }
            @if let Some(error) = &sink.error {
                div class="note failing" { p { (foreign(&clip(&error.message, 500))) } p class="small soft" { "Since " (moment(error.since)) ", " (count(u64::from(error.attempts), "attempt")) @if let Some(next) = error.next { ", the next " (ago(next, visit.now)) } "." } }
            }
            dl class="fields small" {
                dt { "Behind" } dd { (number(sink.lag)) }
                dt { "Delivered" } dd { (number(sink.delivered)) " since the start" }
                dt { "Last" } dd { @match sink.last_delivery { Some(at) => (ago(at, visit.now)), None => "never" } }
                dt { "Dead letters" } dd { @if sink.dead_letters > 0 { a href=(path_of(visit, &sink.name)) { (number(sink.dead_letters)) } } @else { "0" } }
            }
            (actions(visit, sink))
        }
    }
}

fn actions(visit: &Visit, sink: &SinkStatus) -> Markup {
    let Some(session) = visit.session.as_ref() else { return html! {} };
    html! {
        form class="row" method="post" action=(path_of(visit, &sink.name)) {
            (secret(session.form_secret()))
            @if sink.paused { button type="submit" name="action" value="resume" { "Resume" } }
            @else { button type="submit" name="action" value="pause" { "Pause" } }
            @if sink.dead_letters > 0 { button type="submit" name="action" value="resend" { "Send all dead letters again" } }
        }
    }
}
