//! Lines: one shape of a change at every address, in every protocol, when published and in streams.

mod links;
mod live_page;
mod proxy;
mod publishing;
mod pulls;
mod schema;
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
