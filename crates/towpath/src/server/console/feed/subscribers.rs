//! Subscribers of a feed: who is told of its changes, and how far they have come.

use maud::{Markup, html};

use super::super::clock::distance;
use super::super::feed_head::FeedHead;
use super::super::sinks;
use super::super::text::{count, foreign, number};
use super::super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::protocols::websub::{HubState, SubscriberInfo};

/// Most subscribers that the page lists.
const ROWS: usize = 200;

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let engine = &visit.engine;
    let feed = head.feed.id().as_str();
    let (entries, total) = HubState::of(engine).of_feed(&head.feed, ROWS);
    let with_details = visit.sees_details(feed);
    let waiting = u64::try_from(engine.metrics.waiters.get()).unwrap_or(0);
    Ok(html! {
        section id="subscribers" data-live="" {
            h2 { "WebSub" }
            @if !HubState::of(engine).delivers() {
                p { "Another node of the cluster delivers, so its page lists them." }
            } @else if total == 0 {
                p class="soft" { "Nobody has subscribed. A subscriber sends " code { "hub.mode=subscribe" } " to " code { (engine.base_url) "/feeds/" (feed) "/hub" } "." }
            } @else if !with_details {
                p { (count(total as u64, "subscriber")) ". " span class="soft" { "Sign in with a token that may publish to this feed to see them." } }
            } @else {
                (table(visit, head, &entries))
                @if total > entries.len() { p class="soft" { "The first " (entries.len()) " of " (number(total as u64)) "." } }
            }
        }
        (sinks::of_feed(visit, feed).await?)
        section {
            h2 { "Waiting readers" }
            p { (count(waiting, "long poll or event stream")) " of all feeds together " @if waiting == 1 { "waits" } @else { "wait" } " for a change on this node." }
        }
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
