//! Markup of an item's page.

use maud::{Markup, html};
use towpath_proto::{Author, Item, Op};

use super::super::clock::{ago, moment};
use super::super::feed_head::past_note;
use super::super::layout::secret;
use super::super::pretty::pretty;
use super::super::text::{clip, foreign, name_of, plain};
use super::super::visit::Visit;
use super::difference_view::DifferenceLayout;
use super::item_page::ItemPage;
use super::{content, difference, difference_view};
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::work::blocking;

/// Most bytes that are shown of an item's further data.
const MAX_EXTRA: usize = 20_000;

pub(super) async fn body(visit: &Visit, page: &ItemPage) -> Result<Markup, RouteError> {
    let compared = match &page.with {
        Some(with) => {
            let (old, new) = (with.clone(), page.shown.clone());
            // Apart from the threads that serve: a comparison may take its whole time limit.
            Some(blocking(move || difference::compare(&old.item, &new.item)).await?)
        }
        None => None,
    };
    let named = page.last_seen();
    let (feed, path) = (&page.head.feed, visit.feed_path(&page.head.feed));
    Ok(html! {
        p class="crumbs" { a href={ (visit.root) "/" } { "Feeds" } " / " a href=(path) { (foreign(&clip(feed.config.title(), 60))) } " / " span class="mono" { (foreign(&clip(&page.shown.item.id, 60))) } }
        div class="title" { h1 dir="auto" { (foreign(&name_of(&named.item))) } }
        (notes(visit, page))
        div class="split gap" {
            div {
                @match &compared {
                    Some(compared) => (comparison(visit, page, compared)),
                    None => (version(visit, page)),
                }
            }
            aside {
                section { h2 { "Versions" } (page.versions.view(visit, page.shown.seq)) }
                (actions(visit, page))
            }
        }
    })
}

fn notes(visit: &Visit, page: &ItemPage) -> Markup {
    let present = visit.query.with(&[("version", ""), ("with", ""), ("at", ""), ("versions", "")]);
    html! {
        @if let Some(past) = &page.head.past { (past_note(past, &present)) }
        @else if page.shown.seq != page.latest.seq && page.with.is_none() {
            div class="note past" { p { strong { "An earlier version, of " (moment(page.shown.modified)) "." } " " a href=(present) { "The latest" } } }
        }
        @if page.shown.op == Op::Delete {
            div class="note failing" { p { strong { "Removed " (ago(page.shown.modified, visit.now)) "." } " What follows is its last version." } }
        } @else if page.latest.op == Op::Delete {
            div class="note late" { p { "The item was removed " (ago(page.latest.modified, visit.now)) "." } }
        }
    }
}

fn version(visit: &Visit, page: &ItemPage) -> Markup {
    let shown = page.last_seen();
    html! {
        section { h2 class="hidden" { "Content" } (content::view(visit, shown)) }
        section { h2 { "Fields" } (fields(visit, page, &shown.item)) }
        (risk(visit, &shown.item))
    }
}

fn fields(visit: &Visit, page: &ItemPage, item: &Item) -> Markup {
    html! {
        dl class="fields sheet pad" {
            dt { "Id" } dd class="mono" { (foreign(&item.id)) }
            @if let Some(url) = &item.url { dt { "Link" } dd { (link(url)) } }
            @if let Some(summary) = &item.summary { dt { "Summary" } dd dir="auto" { (foreign(&plain(summary, 4000))) } }
            @if !item.authors.is_empty() { dt { "Authors" } dd { @for (index, author) in item.authors.iter().take(50).enumerate() { @if index > 0 { ", " } (author_of(author)) } } }
            @if !item.tags.is_empty() { dt { "Tags" } dd { @for tag in item.tags.iter().take(100) {
                @let query = super::super::query::Query::default();
                a class="tag" href={ (visit.feed_path(&page.head.feed)) (query.with(&[("tag", tag)])) } { (foreign(&clip(tag, 80))) } " "
            } } }
            @if let Some(at) = item.published { dt { "Published" } dd { (moment(at)) } }
            @if let Some(at) = item.updated { dt { "Updated" } dd { (moment(at)) } }
            dt { "Here since" } dd { (moment(page.shown.created)) }
            dt { "This version" } dd { (moment(page.shown.modified)) ", change " (page.shown.seq) }
            @if !item.extra.is_empty() { dt { "Further data" } dd { pre tabindex="0" { (pretty(&item.extra, MAX_EXTRA)) } } }
        }
    }
}

/// Shows an address as a link if it leads to the web. Other schemes run programs.
fn link(url: &str) -> Markup {
    let shown = encode_directions(&clip(url, 300));
    match url::Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && url.len() < 4000 => {
            html! { a href=(parsed.as_str()) rel="noopener noreferrer nofollow ugc" { (foreign(&shown)) } }
        }
        _ => html! { code { (foreign(&shown)) } },
    }
}

/// Encodes marks of direction, with which an address reads as another one.
fn encode_directions(url: &str) -> String {
    let mut shown = String::with_capacity(url.len());
    for c in url.chars() {
        if is_direction(c) {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| shown.push_str(&format!("%{byte:02X}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn author_of(author: &Author) -> Markup {
    let name =
        if author.name.is_empty() { author.email.as_deref().unwrap_or("unnamed") } else { &author.name };
    html! { (foreign(&clip(name, 100))) @if let Some(url) = &author.url { " (" (link(url)) ")" } }
}

fn risk(visit: &Visit, item: &Item) -> Markup {
    let score = visit.engine.scorer.score(item);
    if score.reasons.is_empty() {
        return html! { section { h2 { "Risk" } p class="soft" { "The rules found nothing that would harm a reader." } } };
    }
    let findings = visit.engine.scorer.explain(item);
    html! {
        section {
            h2 { "Risk " span class=[score.is_flagged().then_some("risk")] { (format!("{:.2}", score.score)) } }
            div class="sheet" { table class="cardlike" {
                caption class="hidden" { "Rules that fired" }
                thead { tr { th scope="col" { "Rule" } th scope="col" { "Meaning" } th scope="col" { "Words that led to it" } th scope="col" class="number" { "Weight" } } }
                tbody { @for finding in &findings { tr {
                    th scope="row" { code { (finding.rule) } }
                    td { (finding.description) }
                    td { @for words in &finding.words { mark { (foreign(words)) } " " } @if finding.words.is_empty() { span class="soft" { "by the form of the text" } } }
                    td class="number" { (format!("{:.2}", finding.weight)) }
                } } }
            } }
        }
    }
}

fn comparison(visit: &Visit, page: &ItemPage, compared: &[difference::FieldDifference]) -> Markup {
    let (layout, other) = match visit.query.get("layout") {
        Some("side") => (DifferenceLayout::Columns, ("", "Inline")),
        _ => (DifferenceLayout::Inline, ("side", "Side by side")),
    };
    let (other, name) = (visit.query.with(&[("layout", other.0)]), other.1);
    let whole = visit.query.with(&[("with", ""), ("layout", "")]);
    let with = page.with.as_ref().map_or(0, |with| with.seq);
    html! {
        div class="row" {
            h2 { "From change " (with) " to " (page.shown.seq) }
            a class="button" href=(other) { (name) }
            a class="button" href=(whole) { "Whole version" }
        }
        (difference_view::view(compared, layout))
    }
}

fn actions(visit: &Visit, page: &ItemPage) -> Markup {
    let (feed, id) = (&page.head.feed, &page.shown.item.id);
    let may = visit.may(TokenRight::Publish, feed.id().as_str()) && feed.not_published_to().is_none();
    let Some(session) = visit.session.as_ref().filter(|_| may && page.latest.op != Op::Delete) else {
        return html! {};
    };
    let path = visit.feed_path(feed);
    let query = super::super::query::Query::default();
    html! {
        section {
            h2 { "Change it" }
            div class="row" {
                @if id.len() <= 300 { a class="button" href={ (path) "/publish" (query.with(&[("id", id)])) } { "Edit" } }
                form method="post" action={ (path) "/delete" } data-confirm="Delete this item? Its past stays in the log." {
                    (secret(session.form_secret()))
                    input type="hidden" name="id" value=(id);
                    input type="hidden" name="version" value=(page.latest.seq);
                    button class="danger" type="submit" { "Delete" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shown address would read as another one: `evil.example/` and a reversed name.
    #[test]
    fn direction_marks_of_links_are_encoded() {
        let shown = link("https://evil.example/\u{202e}moc.elpmaxe\u{202c}").into_string();
        assert!(shown.contains("<bdi>https://evil.example/%E2%80%AEmoc.elpmaxe%E2%80%AC</bdi>"), "{shown}");
        assert!(
            link("https://example.com/\u{e9}")
                .into_string()
                .contains("<bdi>https://example.com/\u{e9}</bdi>")
        );
    }
}
