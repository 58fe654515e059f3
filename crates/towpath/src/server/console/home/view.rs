//! Markup of the list of feeds.

use maud::{Markup, html};

use super::super::clock::ago;
use super::super::layout::pager;
use super::super::sparkline::sparkline;
use super::super::text::{clip, count, foreign, number};
use super::super::visit::Visit;
use super::cluster::ClusterHealth;
use super::data::{FeedList, FeedRow, ROWS, SortBy};
use super::server_health::ServerHealth;

/// Makes the page's body.
pub(super) fn body(
    visit: &Visit,
    list: &FeedList,
    server: &ServerHealth,
    cluster: Option<&ClusterHealth>,
) -> Markup {
    html! {
        div class="title" { h1 { "Feeds" } }
        div id="server" data-live="" {
            ul class="facts" { @for fact in &server.facts { li { (fact) } } @if server.sinks > 0 { li { a href={ (visit.root) "/sinks" } { (count(server.sinks as u64, "sink")) } } } }
            @if !server.problems.is_empty() {
                div class="note failing" role="status" {
                    strong { "The server is not well." }
                    ul { @for problem in &server.problems { li { (foreign(&clip(problem, 500))) } } }
                }
            }
            @if let Some(cluster) = cluster { (cluster.view()) }
        }
        @if list.total == 0 { (empty(visit)) } @else {
            div class="gap" { (filter(visit, list)) }
            div id="feeds" data-live="" { (table(visit, list)) }
            (legend())
            (pages(visit, list))
        }
    }
}

fn empty(visit: &Visit) -> Markup {
    html! {
        div class="sheet empty gap" {
            h2 { "No feeds yet" }
            p { "Add a [[feed]] to the configuration, or publish to one with " code { "towpath put FEED ID" } "." }
            @if visit.session.is_none() { p { a href={ (visit.root) "/sign-in" } { "Sign in" } " to see feeds that need a token." } }
        }
    }
}

fn filter(visit: &Visit, list: &FeedList) -> Markup {
    let query = &visit.query;
    html! {
        form class="filter" method="get" role="search" {
            div class="field wide" {
                label for="q" { "Find by title, id, tag or reason" }
                input id="q" type="search" name="q" value=(query.search().0) maxlength="200";
            }
            div class="field" {
                label for="state" { "State" }
                select id="state" name="state" {
                    option value="" { "all" }
                    @for (state, count) in &list.states {
                        option value=(state.name()) selected[query.get("state") == Some(state.name())] { (state.name()) " (" (count) ")" }
                    }
                }
            }
            div class="field" {
                label for="sort" { "Sort by" }
                select id="sort" name="sort" {
                    @for (by, name) in SortBy::ALL.into_iter().zip(["title", "state, worst first", "items", "last change"]) {
                        option value=(by.name()) selected[by == list.sort] { (name) }
                    }
                }
            }
            button type="submit" { "Show" }
        }
    }
}

fn table(visit: &Visit, list: &FeedList) -> Markup {
    let heading = |by: SortBy, name: &str, direction: &str| {
        let sorted = (list.sort == by).then_some(direction);
        let class = (by == SortBy::Items).then_some("number");
        let href = visit.query.with(&[("sort", by.name()), ("page", "")]);
        html! { th scope="col" class=[class] aria-sort=[sorted] { a href=(href) { (name) @if sorted.is_some() { " " span aria-hidden="true" { @if direction == "ascending" { "↑" } @else { "↓" } } } } } }
    };
    html! {
        @if list.rows.is_empty() {
            div class="sheet empty" { p { "No feed matches." } p { a href={ (visit.root) "/" } { "Show all " (number(list.total as u64)) } } }
        } @else {
            div class="sheet" {
                table class="feeds cardlike" {
                    caption class="hidden" { "Feeds" }
                    thead { tr {
                        (heading(SortBy::Title, "Feed", "ascending"))
                        (heading(SortBy::State, "State", "ascending"))
                        (heading(SortBy::Items, "Items", "descending"))
                        (heading(SortBy::Changed, "Last change", "descending"))
                        th scope="col" { "30 days" }
                        th scope="col" { "Next poll" }
                    } }
                    tbody { @for row in &list.rows { (feed_row(visit, row)) } }
                }
            }
        }
    }
}

fn feed_row(visit: &Visit, row: &FeedRow) -> Markup {
    let (feed, head) = (&row.feed, row.head.as_ref());
    let is_private = !feed.config.is_public();
    html! {
        tr {
            th scope="row" {
                a href=(visit.feed_path(feed)) { (foreign(&clip(feed.config.title(), 120))) }
                span class="id" { span class="mono" { (feed.id()) } " · " (row.kind()) @if is_private { " · private" } }
            }
            td class="of-state" { (row.health.state.badge()) @if !row.health.reason.is_empty() { span class="why" { (foreign(&clip(&row.health.reason, 240))) } } }
            td class="number" data-label="Items" { @if let Some(head) = head { (number(head.live)) } }
            td class="nowrap" data-label="Last change" { @if let Some(head) = head { @if head.seq > 0 { (ago(head.modified, visit.now)) } @else { span class="soft" { "never" } } } }
            td class="of-days" { @if let Some(activity) = &row.activity { (sparkline(activity)) } }
            td class="nowrap" data-label="Next poll" { @if let Some(next) = row.health.next { (ago(next, visit.now)) } }
        }
    }
}

fn legend() -> Markup {
    html! {
        p class="legend" {
            @for name in ["new", "changed", "removed"] { span { span class={ "dot " (name) } {} (name) } }
        }
    }
}

fn pages(visit: &Visit, list: &FeedList) -> Markup {
    let to = |page: usize| visit.query.with(&[("page", &page.to_string())]);
    let before = (list.page > 1).then(|| (to(list.page - 1), "Before"));
    let after = (list.page < list.pages).then(|| (to(list.page + 1), "After"));
    let first = (list.page - 1) * ROWS + 1;
    let shown = format!(
        "{} to {} of {}",
        number(first as u64),
        number((first + list.rows.len()).saturating_sub(1) as u64),
        number(list.matching as u64)
    );
    html! { @if list.pages > 1 { (pager(&shown, before, after)) } }
}
