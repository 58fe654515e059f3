//! The source of a feed: its last polls, what was left out, and the next one.

use maud::{Markup, html};
use towpath_client::redact;

use super::super::clock::ago;
use super::super::error_page::sign_in;
use super::super::feed_head::FeedHead;
use super::super::health::FeedState;
use super::super::layout::secret;
use super::super::text::{bytes, clip, count, foreign, number};
use super::super::visit::Visit;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::source::detail_visibility::DetailVisibility;
use crate::source::poll_log::{self, PollRecord};
use crate::source::status::{source_protocol, source_state};

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let feed = &head.feed;
    let details = DetailVisibility::shown_if(visit.sees_details(feed.id().as_str()));
    let state = source_state(&visit.engine, feed, details).await?.unwrap_or_default();
    let protocol = source_protocol(&visit.engine, feed).await?;
    let (polled, mirrored) = (feed.config.polled(), feed.config.mirrored());
    let Some((source, address)) = polled.or(mirrored) else { return Ok(html! {}) };
    let time = |at: Option<jiff::Timestamp>| html! { @match at { Some(at) => (ago(at, visit.now)), None => "never" } };
    Ok(html! {
        div class="split" {
            div id="source" data-live="" {
                dl class="fields sheet pad" {
                    dt { "Address" } dd { code { (foreign(&redact::url(address))) } @if let Some(protocol) = &protocol { ", followed by " (protocol) } }
                    @if let Some(moved) = state.moved_to.as_ref().filter(|_| details.are_shown()) { dt { "Moved to" } dd { code { (foreign(&redact::url(moved))) } } }
                    @if polled.is_some() {
                        dt { "Polled every" } dd { (period(source.every())) }
                        dt { "Listing" } dd { @if source.complete { "complete: what is absent was removed" } @else { "a window: what is absent stays" } }
                    }
                    dt { "Last success" } dd { (time(state.last_ok)) }
                    dt { "Last attempt" } dd { (time(state.last_attempt.or(state.last_ok))) }
                    @if polled.is_some() { dt { "Next poll" } dd { @match head.health.next { Some(next) => (ago(next, visit.now)), None => "none is planned" } } }
                    @if state.failures > 0 { dt { "Failures in a row" } dd { (state.failures) } }
                    dt { "Result" } dd { @match &state.error {
                        Some(error) => { span class="fail" { (error.code) } ": " (foreign(&clip(&error.message, 1000))) },
                        None if state.last_ok.is_some() => span class="pass" { "no error" },
                        None => "not asked yet",
                    } }
                }
                @if !state.problems.is_empty() {
                    section {
                        h2 { "Left out" }
                        ul { @for problem in &state.problems { li { (foreign(&clip(problem, 500))) } } }
                    }
                }
                (polls(visit, head).await?)
            }
            aside { (actions(visit, head)) }
        }
    })
}

async fn polls(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    if !head.feed.is_polled() {
        return Ok(html! {});
    }
    let records = poll_log::load(&visit.engine, &head.feed).await?;
    let details = DetailVisibility::shown_if(visit.sees_details(head.feed.id().as_str()));
    Ok(html! {
        section {
            h2 { "Last polls" }
            @if records.is_empty() { p class="soft" { "None yet." } } @else {
                div class="sheet" { table class="cardlike" {
                    caption class="hidden" { "Last polls, newest first" }
                    thead { tr { th scope="col" { "When" } th scope="col" class="number" { "Took" } th scope="col" class="number" { "Size" } th scope="col" { "Result" } th scope="col" class="number" { "Left out" } } }
                    tbody { @for record in &records { (poll_row(visit, record, details)) } }
                } }
            }
        }
    })
}

fn poll_row(visit: &Visit, record: &PollRecord, details: DetailVisibility) -> Markup {
    let PollRecord { at, millis, new, updated, removed, left_out, .. } = record;
    html! {
        tr {
            th scope="row" class="nowrap" { (ago(*at, visit.now)) }
            td class="number" data-label="Took" { (number(*millis)) " ms" }
            td class="number" data-label="Size" { @match record.bytes { Some(size) => (bytes(size)), None => span class="soft" { "–" } } }
            td { @match &record.error {
                Some(error) if details.are_shown() => { span class="fail" { (error.code) } span class="why" { (foreign(&redact::text(&error.message))) } },
                Some(_) => span class="fail" { "failed" },
                None if new + updated + removed == 0 => span class="soft" { "nothing changed" },
                None => { (number(*new)) " new, " (number(*updated)) " changed, " (number(*removed)) " removed" },
            } }
            td class="number" data-label="Left out" { (number(*left_out)) }
        }
    }
}

fn actions(visit: &Visit, head: &FeedHead) -> Markup {
    let (feed, is_paused) = (&head.feed, head.health.state == FeedState::Paused);
    let source = feed.config.source.as_ref().filter(|source| source.enabled);
    let Some(source) = source else { return html! {} };
    let (poll, again) = match source.follow.is_some() {
        true => ("Sync now", "The mirror follows again."),
        false => ("Poll now", "The source is polled again."),
    };
    let done = visit.query.get("done").map(|done| match done {
        "poll" => "It is asked for. This page shows the result.",
        "pause" => "The source is paused, also after a restart.",
        _ => again,
    });
    let may = visit.may(TokenRight::Publish, feed.id().as_str());
    html! {
        h2 { "Control" }
        @if let Some(done) = done { div class="note ok" role="status" { p { (done) } } }
        @match visit.session.as_ref().filter(|_| may) {
            Some(session) => div class="row" {
                @if is_paused { (action(visit, head, session.form_secret(), "resume", "Resume")) }
                @else {
                    (action(visit, head, session.form_secret(), "poll", poll))
                    (action(visit, head, session.form_secret(), "pause", "Pause"))
                }
            },
            None => p class="soft" { a href=(sign_in(visit)) { "Sign in" } " with a token that may publish to poll now, to pause or to resume." },
        }
    }
}

fn action(visit: &Visit, head: &FeedHead, form_secret: &str, name: &str, label: &str) -> Markup {
    html! {
        form method="post" action={ (visit.feed_path(&head.feed)) "/" (name) } { (secret(form_secret)) button type="submit" { (label) } }
    }
}

fn period(every: std::time::Duration) -> String {
    match every.as_secs() {
        seconds if seconds >= 3600 && seconds % 3600 == 0 => count(seconds / 3600, "hour"),
        seconds if seconds >= 60 && seconds % 60 == 0 => count(seconds / 60, "minute"),
        seconds => count(seconds, "second"),
    }
}
