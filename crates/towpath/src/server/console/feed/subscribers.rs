//! Subscribers of a feed: who is told of its changes, and how far they have come.

use maud::{Markup, html};

use super::super::clock::distance;
use super::super::feed_head::FeedHead;
use super::super::sinks;
use super::super::text::{clip, count, foreign, number};
use super::super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::protocols::smart::{Smart, WaitingReaders};
use crate::protocols::websub::{HubState, SubscriberInfo};
use crate::protocols::xmpp::subscribers::{self as xmpp, XmppSubscriber};
use crate::source::detail_visibility::DetailVisibility;

/// Most subscribers that the page lists.
const ROWS: usize = 200;

/// Describes the readers whose requests are held. They have every change that their query lets through.
fn waiting_readers(waiting: WaitingReaders, head: u64) -> Markup {
    let WaitingReaders { long_polls, streams } = waiting;
    html! {
        @if long_polls + streams == 0 { p class="soft" { "Nobody waits on this node. A reader that waits is told of a change at once." } } @else {
            div class="sheet" { table class="cardlike" {
                caption class="hidden" { "Readers that wait for a change" }
                thead { tr { th scope="col" { "Kind" } th scope="col" class="number" { "Readers" } th scope="col" class="number" { "Position" } th scope="col" class="number" { "Behind" } } }
                tbody { @for (name, readers) in [("Long polls", long_polls), ("Event streams", streams)] { @if readers > 0 { tr {
                    th scope="row" { (name) }
                    td class="number" data-label="Readers" { (number(readers as u64)) }
                    td class="number" data-label="Position" { (number(head)) }
                    td class="number" data-label="Behind" { "0" }
                } } } }
            } }
        }
    }
}

async fn over_xmpp(visit: &Visit, head: &FeedHead, details: DetailVisibility) -> Result<Markup, RouteError> {
    let (entries, total) = xmpp::of_feed(&visit.engine, &head.feed, ROWS).await?;
    Ok(html! {
        @if total == 0 { p class="soft" { "Nobody has subscribed." } }
        @else if !details.are_shown() { p { (count(total as u64, "subscriber")) "." } }
        @else {
            (xmpp_table(head, &entries))
            @if total > entries.len() { p class="soft" { "The first " (entries.len()) " of " (number(total as u64)) "." } }
        }
    })
}

fn xmpp_table(head: &FeedHead, entries: &[XmppSubscriber]) -> Markup {
    html! {
        div class="sheet" { table class="cardlike" {
            caption class="hidden" { "XMPP subscribers" }
            thead { tr { th scope="col" { "Subscriber" } th scope="col" { "Node" } th scope="col" class="number" { "Position" } th scope="col" class="number" { "Behind" } } }
            tbody { @for entry in entries { tr {
                th scope="row" { (foreign(&clip(&entry.jid, 200))) }
                td data-label="Node" { code { (foreign(&clip(&entry.node, 200))) } }
                @match entry.position {
                    Some(position) => {
                        td class="number" data-label="Position" { (number(position)) }
                        td class="number" data-label="Behind" { (number(head.head.seq.saturating_sub(position))) }
                    },
                    None => { td class="number soft" data-label="Position" { "–" } td class="number soft" data-label="Behind" { "–" } },
                }
            } } }
        } }
    }
}

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let engine = &visit.engine;
    let feed = head.feed.id().as_str();
    let (entries, total) = HubState::of(engine).of_feed(&head.feed, ROWS);
    let details = DetailVisibility::shown_if(visit.sees_details(feed));
    let waiting = Smart::of(engine).waiting(&head.feed);
    let everywhere = u64::try_from(engine.metrics.waiters.get()).unwrap_or(0);
    Ok(html! {
        section id="subscribers" data-live="" {
            h2 { "WebSub" }
            @if !HubState::of(engine).delivers() {
                p { "Another node of the cluster delivers, so its page lists them." }
            } @else if total == 0 {
                p class="soft" { "Nobody has subscribed. A subscriber sends " code { "hub.mode=subscribe" } " to " code { (engine.base_url) "/feeds/" (feed) "/hub" } "." }
            } @else if !details.are_shown() {
                p { (count(total as u64, "subscriber")) ". " span class="soft" { "Sign in with a token that may publish to this feed to see them." } }
            } @else {
                (table(visit, head, &entries))
                @if total > entries.len() { p class="soft" { "The first " (entries.len()) " of " (number(total as u64)) "." } }
            }
        }
        section id="waiting" data-live="" {
            h2 { "Long polls and event streams" }
            (waiting_readers(waiting, head.head.seq))
            @if everywhere > (waiting.long_polls + waiting.streams) as u64 { p class="soft" { (count(everywhere, "reader")) " of all feeds together, on this node." } }
        }
        @if engine.config.xmpp.is_some() { section id="xmpp" data-live="" { h2 { "XMPP" } (over_xmpp(visit, head, details).await?) } }
        (sinks::of_feed(visit, feed).await?)
    })
}

fn table(visit: &Visit, head: &FeedHead, entries: &[SubscriberInfo]) -> Markup {
    html! {
        div class="sheet" { table class="cardlike" {
            caption class="hidden" { "WebSub subscribers" }
            thead { tr { th scope="col" { "Callback at" } th scope="col" { "Topic" } th scope="col" class="number" { "Position" } th scope="col" class="number" { "Behind" } th scope="col" { "Lease ends" } } }
            tbody { @for entry in entries {
                tr {
                    th scope="row" { (foreign(&entry.callback)) }
                    td data-label="Topic" { code { (foreign(&entry.topic)) } }
                    td class="number" data-label="Position" { (number(entry.position)) }
                    td class="number" data-label="Behind" { (number(head.head.seq.saturating_sub(entry.position))) }
                    td class="nowrap" data-label="Lease ends" { (distance(entry.ends, visit.now)) }
                }
            } }
        } }
    }
}
