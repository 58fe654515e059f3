//! Ways to follow a feed: addresses, promises, delays, and commands to copy.

use maud::{Markup, html};
use towpath_client::Protocol;

use super::super::feed_head::FeedHead;
use super::super::layout::secret;
use super::super::visit::Visit;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::{FeedAddress, addresses};
use crate::protocols::replication::snapshot;

/// A protocol as the page describes it.
struct ProtocolSummary {
    name: &'static str,
    protocol: Protocol,
    /// Name of its address in the feed's list.
    address: &'static str,
    delay: &'static str,
    fits: &'static str,
}

const SUMMARIES: [ProtocolSummary; 5] = [
    ProtocolSummary {
        name: "Smart Feeds",
        protocol: Protocol::Smart,
        address: "smart",
        delay: "at once: the server holds the request until there is a change",
        fits: "programs that act on every change; browsers, with Server-Sent Events",
    },
    ProtocolSummary {
        name: "DiffDelta",
        protocol: Protocol::DiffDelta,
        address: "head",
        delay: "your poll's interval; one 304 while nothing changed",
        fits: "bots that poll many feeds, and language models",
    },
    ProtocolSummary {
        name: "Data Replication",
        protocol: Protocol::Replication,
        address: "replication",
        delay: "your poll's interval",
        fits: "copies of large feeds: sealed pages are cached anywhere",
    },
    ProtocolSummary {
        name: "Atom, RSS, JSON Feed",
        protocol: Protocol::History,
        address: "atom",
        delay: "your poll's interval; WebSub pushes at once",
        fits: "feed readers, and everything that exists already",
    },
    ProtocolSummary {
        name: "WebSub",
        protocol: Protocol::Smart,
        address: "hub",
        delay: "at once: the hub sends changes to your callback",
        fits: "servers that can be reached from here",
    },
];

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let (engine, feed) = (&visit.engine, &head.feed);
    let page = format!("{}/feeds/{}", engine.base_url, feed.id());
    let all = addresses(&engine.base_url, feed);
    let has_snapshot = !feed.is_filter() && !snapshot::list(engine, feed).await?.is_empty();
    let is_public = feed.config.is_public();
    let token = if is_public { "" } else { " --header 'Authorization: Bearer TOKEN'" };
    let followed = if feed.is_filter() { format!("{page}/items") } else { page.clone() };
    Ok(html! {
        @if visit.query.get("done") == Some("snapshot") { div class="note ok" role="status" { p { "The snapshot is made. Its address is below, as " strong { "snapshots" } "." } } }
        section {
            h2 { "With a command" }
            (copied(&format!("towpath follow {followed}{token}")))
            p { "By Smart Feeds: exactly once, and told of a change at once, because the server holds the request until "
                "there is one. DiffDelta and Data Replication promise the same, later or with more requests." }
            details class="details" { summary { "curl, Python, JavaScript" } (programs(&page, &followed, is_public)) }
        }
        section {
            h2 { "Protocols" }
            div class="cards" {
                @for summary in &SUMMARIES { @if let Some(address) = all.iter().find(|address| address.name == summary.address) { (card(summary, address, &page, token)) } }
                @if feed.is_listed() { (sup_card(engine, feed)) }
            }
        }
        section {
            h2 { "Addresses" }
            dl class="fields sheet pad" { @for address in &all { dt { (address.name.replace('_', " ")) } dd { (link(address, has_snapshot)) br; span class="soft small" { (address.about) } } } }
        }
        (snapshot_form(visit, feed))
    })
}

fn card(summary: &ProtocolSummary, address: &FeedAddress, page: &str, token: &str) -> Markup {
    html! {
        div class="sheet pad" {
            h3 { (summary.name) }
            p class="small" { "Promise: " (if summary.address == "hub" { "at least once, in order" } else { summary.protocol.guarantee() }) "." br; "Delay: " (summary.delay) "." br; "For " (summary.fits) "." }
            @if summary.address == "hub" {
                (copied(&format!("curl{token} {} -d hub.mode=subscribe -d hub.topic={page}/items -d hub.callback=https://YOU/callback", address.url)))
            } @else {
                (copied(&format!("towpath follow {} --protocol {}{token}", address.url, summary.protocol.name())))
            }
        }
    }
}

/// Makes the card of the Simple Update Protocol, which names the feeds that changed and not their changes.
fn sup_card(engine: &Engine, feed: &Feed) -> Markup {
    let (id, document) = (engine.sup_links.sup_id(feed.id()), engine.sup_links.document_url());
    html! {
        div class="sheet pad" {
            h3 { "Simple Update Protocol" }
            p class="small" { "Promise: " (Protocol::Sup.guarantee()) "." br; "Delay: your poll's interval; one document for all feeds here." br; "For readers of many feeds: each is polled only when the document names it." }
            p class="small" { "SUP ID of this feed: " code { (id) } }
            (copied(&format!("curl --compressed '{document}?seconds=300'")))
        }
    }
}

/// Offers to make a snapshot to those who may.
fn snapshot_form(visit: &Visit, feed: &Feed) -> Markup {
    let may = visit.may(TokenRight::Admin, feed.id().as_str()) && !feed.is_filter();
    let Some(session) = visit.session.as_ref().filter(|_| may) else { return html! {} };
    html! {
        section {
            h2 { "Snapshot" }
            p { "A copy of all items as they are now. A new follower of Data Replication begins with it instead of the whole log." }
            form class="row" method="post" action={ (visit.feed_path(feed)) "/snapshot" } {
                (secret(session.form_secret()))
                button type="submit" { "Make a snapshot" }
            }
        }
    }
}

/// Shows programs that follow an address of the feed's page.
fn programs(page: &str, followed: &str, is_public: bool) -> Markup {
    let (header, python, javascript) = match is_public {
        true => ("", "", ""),
        false => (" -H 'Authorization: Bearer TOKEN'", ", token=\"TOKEN\"", ", { token: \"TOKEN\" }"),
    };
    html! {
        h3 { "curl: every change as it comes" }
        (copied(&format!("curl --no-buffer{header} {page}/events")))
        h3 { "Python" }
        (copied(&format!("import towpath\n\nfor change in towpath.follow(\"{followed}\", state=\"feed.state\"{python}):\n    print(change.op, change.id)")))
        h3 { "JavaScript" }
        (copied(&format!("import {{ follow }} from \"towpath\";\n\nfor await (const change of follow(\"{followed}\"{javascript})) {{\n  console.log(change.op, change.id);\n}}")))
    }
}

/// Makes a text that the script gives a button to copy it.
fn copied(text: &str) -> Markup {
    html! { div class="copy" { pre tabindex="0" { (text) } } }
}

/// Shows an address: as a link if a browser finds something there.
fn link(address: &FeedAddress, has_snapshot: bool) -> Markup {
    let url = address.url.as_str();
    match address.name {
        // The hub takes POST only, and "items" is the address to publish to.
        "hub" | "items" => html! { code { (url) } },
        "snapshots" if !has_snapshot => html! { code { (url) } },
        // A browser must not hang in a long poll.
        "smart" => html! { a href={ (url) "?timeout=0" } { (url) } },
        _ => html! { a href=(url) { (url) } },
    }
}
