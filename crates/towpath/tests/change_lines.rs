//! Lines: one shape of a change at every address, in every protocol, when published and in streams.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

#[path = "change_lines/links.rs"]
mod links;
#[path = "change_lines/live_page.rs"]
mod live_page;
#[path = "change_lines/proxy.rs"]
mod proxy;
#[path = "change_lines/publishing.rs"]
mod publishing;
#[path = "change_lines/pulls.rs"]
mod pulls;
#[path = "change_lines/schema.rs"]
mod schema;
#[path = "change_lines/streams.rs"]
mod streams;

/// Data of a stream's events, with the id of each.
fn events(text: &str) -> Vec<(String, serde_json::Value)> {
    let mut found = Vec::new();
    for event in text.split("\n\n") {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        if let Some(data) = field("data: ").and_then(|data| serde_json::from_str(&data).ok()) {
            found.push((field("id: ").unwrap_or_default(), data));
        }
    }
    found
}

/// Ids of items, in the order of the lines.
fn ids<'a>(lines: impl IntoIterator<Item = &'a serde_json::Value>) -> Vec<&'a str> {
    lines.into_iter().map(|line| line["id"].as_str().unwrap_or("?")).collect()
}
