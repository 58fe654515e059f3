//! Sinks: destinations of changes, how far they have come, and what operators order.

use maud::{Markup, html};

use super::clock::ago;
use super::error_page::sign_in;
use super::layout::{Page, Section, secret};
use super::shown::{Shown, see_other};
use super::text::{clip, foreign, number};
use super::visit::Visit;
use super::write::form_data::FormData;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::access::may_change;
use crate::engine::sink_status::SinkStatus;
use crate::engine::sinks::SinkState;
use crate::sink::orders::{self, Order};

/// Returns true if the reader may see where changes are copied to.
pub(super) fn may_see(visit: &Visit) -> bool {
    // Of no feed: a token for some feeds only must not see all destinations.
    visit.may(TokenRight::Admin, "") || (visit.session.is_none() && visit.sees_details(""))
}

/// Shows all sinks.
pub(super) async fn page(visit: &Visit) -> Result<Page, RouteError> {
    let body = if !may_see(visit) {
        html! {
            div class="title" { h1 { "Sinks" } }
            div class="note" { p { "Sinks are shown to holders of a token with the right " code { "admin" } " for all feeds. " a href=(sign_in(visit)) { "Sign in" } } }
        }
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
    Ok(Page::new("Sinks", Section::None, body))
}

/// Makes the list of the sinks that copy a feed.
pub(super) async fn of_feed(visit: &Visit, feed: &str) -> Result<Markup, RouteError> {
    if !may_see(visit) {
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
                        th scope="row" { a href={ (visit.root) "/sinks" } { (foreign(&sink.name)) } span class="why" { (foreign(&clip(&sink.into, 120))) } }
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

/// Gives the order of a form.
pub(super) async fn order(visit: &Visit, name: &str, form: &FormData) -> Result<Shown, RouteError> {
    let sender = may_change(&visit.engine.tokens.load(), TokenRight::Admin, "", visit.peer, &visit.request)?;
    let sink = visit.engine.sinks.get(name).ok_or_else(|| RouteError::not_found("There is no such sink"))?;
    let action = form.text("action");
    let order = match action {
        "pause" => Order::Pause,
        "resume" => Order::Resume,
        "resend" => Order::Resend,
        _ => {
            return Err(
                RouteError::bad_request("A sink can be paused, resumed, or made to resend").about("action")
            );
        }
    };
    orders::give(&visit.engine, sink, order).await?;
    tracing::info!(sink = name, token = %sender, action, "an order for a sink");
    Ok(see_other(&format!("{}/sinks", visit.root)).into())
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
            h2 { (foreign(&sink.name)) " " (badge(sink)) }
            p class="small soft" { (sink.kind) ": " code { (foreign(&clip(&sink.into, 200))) } }
            @if let Some(error) = &sink.error {
                div class="note failing" { p { (foreign(&clip(&error.message, 500))) } p class="small soft" { "Since " (ago(error.since, visit.now)) ", " (error.attempts) " attempts" @if let Some(next) = error.next { ", the next " (ago(next, visit.now)) } "." } }
            }
            dl class="fields small" {
                dt { "Behind" } dd { (number(sink.lag)) }
                dt { "Delivered" } dd { (number(sink.delivered)) " since the start" }
                dt { "Last" } dd { @match sink.last_delivery { Some(at) => (ago(at, visit.now)), None => "never" } }
                dt { "Dead letters" } dd { (number(sink.dead_letters)) }
            }
            (actions(visit, sink))
        }
    }
}

fn actions(visit: &Visit, sink: &SinkStatus) -> Markup {
    let Some(session) = visit.session.as_ref() else { return html! {} };
    let name = percent_encoding::utf8_percent_encode(&sink.name, percent_encoding::NON_ALPHANUMERIC);
    html! {
        form class="row" method="post" action={ (visit.root) "/sinks/" (name) } {
            (secret(session.form_secret()))
            @if sink.paused { button type="submit" name="action" value="resume" { "Resume" } }
            @else { button type="submit" name="action" value="pause" { "Pause" } }
            @if sink.dead_letters > 0 { button type="submit" name="action" value="resend" { "Send dead letters again" } }
        }
    }
}
