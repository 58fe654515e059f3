//! Markup of a list of items.

use maud::{Markup, html};

use super::super::clock::{ago, moment};
use super::super::feed_head::{FeedHead, past_note};
use super::super::layout::pager;
use super::super::moment::picker;
use super::super::text::{clip, count, foreign, number};
use super::super::visit::Visit;
use super::scan::{FoundItems, ListedItem};

pub(super) fn body(visit: &Visit, head: &FeedHead, found: &FoundItems) -> Markup {
    let path = visit.feed_path(&head.feed);
    html! {
        @if let Some(past) = &head.past { (past_note(past, &path)) }
        (filter(visit, head))
        @if !head.feed.is_filter() && head.head.seq > 0 { (picker(head.past, head.head)) }
        @if visit.query.search().1 { div class="note late" { p { "The search was cut to its first 200 bytes." } } }
        @if found.items.is_empty() { (nothing(visit, head, found)) } @else {
            div class="sheet" id="items" data-live=[is_live(visit, head)] {
                ul class="items" { @for item in &found.items { (listed(visit, head, item)) } }
            }
        }
        (pages(visit, head, found))
    }
}

/// Marks the newest items of the present, which move by themselves.
fn is_live(visit: &Visit, head: &FeedHead) -> Option<&'static str> {
    (head.past.is_none() && visit.query.get("before").is_none() && visit.query.get("q").is_none())
        .then_some("")
}

fn filter(visit: &Visit, head: &FeedHead) -> Markup {
    let query = &visit.query;
    html! {
        form class="filter" method="get" role="search" {
            @if let Some(past) = head.past { input type="hidden" name="at" value=(past.parameter()); }
            div class="field wide" {
                label for="q" { "Words in title, summary, content or tags" }
                input id="q" type="search" name="q" value=(query.search().0) maxlength="200";
            }
            div class="field" { label for="tag" { "Tag" } input id="tag" name="tag" value=(clip(query.get("tag").unwrap_or_default(), 100)) maxlength="100" size="12"; }
            div class="field" { label for="from" { "From (UTC)" } input id="from" type="date" name="from" value=(clip(query.get("from").unwrap_or_default(), 10)); }
            div class="field" { label for="to" { "To (UTC)" } input id="to" type="date" name="to" value=(clip(query.get("to").unwrap_or_default(), 10)); }
            label class="check" { input type="checkbox" name="risk" value="flagged" checked[query.get("risk") == Some("flagged")]; "risky only" }
            button type="submit" { "Search" }
        }
    }
}

fn listed(visit: &Visit, head: &FeedHead, item: &ListedItem) -> Markup {
    let path = visit.item_path(head.feed.id().as_str(), &item.id);
    let query = head.past.map(|past| {
        let at = past.parameter();
        format!("?at={}", percent_encoding::utf8_percent_encode(&at, percent_encoding::NON_ALPHANUMERIC))
    });
    html! {
        li {
            h2 { a href={ (path) (query.unwrap_or_default()) } dir="auto" { (foreign(&item.name)) } }
            div class="line" {
                @if item.is_first { span class="op new" { "new" } } @else { span class="op changed" { "changed" } }
                (ago(item.modified, visit.now))
                @if item.name != item.id { span class="id mono" { (foreign(&clip(&item.id, 80))) } }
                @if let Some(media_type) = &item.media_type { span { (foreign(media_type)) } }
                @if item.risk.is_flagged() { span class="risk" { "risk " (format!("{:.2}", item.risk.score)) } }
                @for tag in &item.tags { a class="tag" href=(visit.query.with(&[("tag", tag), ("before", "")])) { (foreign(tag)) } }
            }
            @if !item.text.is_empty() { p class="text" dir="auto" { (foreign(&item.text)) } }
        }
    }
}

fn nothing(visit: &Visit, head: &FeedHead, found: &FoundItems) -> Markup {
    let path = visit.feed_path(&head.feed);
    let is_before_all = head.past.is_some_and(|past| past.seq == 0);
    html! {
        div class="sheet empty" {
            @if head.head.seq == 0 {
                h2 { "Nothing here yet" }
                @match head.feed.not_published_to() {
                    None => p { "Publish the first item: " code { "towpath put " (head.feed.id()) " first --title \"A title\"" } },
                    Some(_) => p { "The items come from the feed's source." },
                }
            } @else if is_before_all {
                h2 { "Before the beginning" }
                p { "The log of this feed begins after that time." }
                p { a href=(path) { "Show the present" } }
            } @else if found.is_cut {
                h2 { "Nothing yet" }
                p { "The search is not over: go on below." }
            } @else {
                h2 { "No item matches" }
                p { a href=(path) { "Show all items" } }
            }
        }
    }
}

fn pages(visit: &Visit, head: &FeedHead, found: &FoundItems) -> Markup {
    let newest = visit.query.get("before").map(|_| (visit.query.with(&[("before", "")]), "Newest"));
    let after = found.next.map(|next| {
        let name = if found.is_cut { "Go on" } else { "Older" };
        (visit.query.with(&[("before", &next.to_string())]), name)
    });
    let shown = match found.is_cut {
        true => format!("Still looking: {} so far,", count(found.looked, "item")),
        // A filter does not tell how many items the feed has that it filters.
        false if head.feed.is_filter() || (found.next.is_none() && visit.query.get("before").is_none()) => {
            count(found.items.len() as u64, "item")
        }
        false => format!("{} of {}", count(found.items.len() as u64, "item"), number(head.head.live)),
    };
    html! {
        @if found.is_cut { p class="soft small" role="status" { "Searched back to " @if let Some(at) = found.back_to { (moment(at)) } "." } }
        (pager(&shown, newest, after))
    }
}
