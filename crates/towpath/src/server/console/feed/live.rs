//! Changes as they come, by Server-Sent Events.

use std::sync::Arc;

use maud::{Markup, html};

use super::super::visit::Visit;
use crate::engine::Feed;

/// Most feeds of one stream.
const MAX_FEEDS: usize = 64;

/// Returns the query of a stream of the feeds that moved last.
fn moving(visit: &Visit) -> String {
    let mut feeds: Vec<Arc<Feed>> = visit.feeds().into_iter().map(|(feed, _)| feed).collect();
    // The stream asks for a token even where pages take a local reader for the operator, and one feed that it refuses would
    // end it for all.
    feeds.retain(|feed| !feed.is_filter() && visit.may_stream(feed));
    feeds.sort_by_key(|feed| std::cmp::Reverse(feed.last_append()));
    let names: Vec<String> = feeds.iter().take(MAX_FEEDS).map(|feed| format!("feed={}", feed.id())).collect();
    names.join("&")
}

/// Makes the tail of one feed, or of all. It needs the script; without it the page says where the same is found.
pub(super) fn body(visit: &Visit, feed: Option<&Arc<Feed>>) -> Markup {
    let root = &visit.root;
    let (source, without) = match feed {
        Some(feed) => (format!("{root}/feeds/{}/events?as=line", feed.id()), visit.feed_path(feed)),
        None => (format!("{root}/feeds/events?{}", moving(visit)), format!("{root}/")),
    };
    let left_out = if feed.is_none() { visit.feeds().len().saturating_sub(MAX_FEEDS) } else { 0 };
    html! {
        @if left_out > 0 { p class="soft" { "The " (MAX_FEEDS) " feeds that changed last. Each feed has a tail of its own." } }
        form class="filter" {
            div class="field wide" { label for="tail-filter" { "Show only lines with" } input id="tail-filter" type="search" maxlength="200"; }
            button type="button" id="tail-pause" aria-pressed="false" hidden { "Pause" }
        }
        p id="tail-status" role="status" class="soft" data-state="Connecting" { "The tail needs JavaScript. Without it, " a href=(without) { "the list" } " shows the newest first." }
        div class="sheet" {
            ul class="items tail" id="tail" tabindex="0" aria-label="Changes" data-root=(root) data-source=(source) data-feed=[feed.map(|feed| feed.id().as_str())] {}
            div class="empty" id="tail-empty" { p { "Nothing has changed since you came." } }
        }
    }
}
