//! Addresses and links of a feed, whatever the protocol.

use schemars::JsonSchema;
use serde::Serialize;
use towpath_proto::FeedId;
use towpath_proto::format::FeedLink;

use crate::engine::{Engine, Feed};

/// Returns the address of a feed's hub.
pub(crate) fn hub_url(engine: &Engine, feed: &FeedId) -> String {
    format!("{}/feeds/{feed}/hub", engine.base_url)
}

/// Returns the address of an item.
pub(crate) fn item_url(base_url: &str, feed: &FeedId, id: &str) -> String {
    // Ids may hold slashes and question marks, which would end the segment.
    let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
    format!("{base_url}/feeds/{feed}/items/{id}")
}

/// Returns the links that every document of a feed carries, in formats that have links.
pub(crate) fn feed_links(engine: &Engine, feed: &Feed) -> Vec<FeedLink> {
    vec![engine.sup_links.link(feed.id()).feed_link()]
}

/// Address of a feed, with a description.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct FeedAddress {
    /// Short name for programs.
    pub(crate) name: &'static str,
    /// The address.
    pub(crate) url: String,
    /// Description for people.
    pub(crate) about: &'static str,
}

/// Returns all addresses of a feed.
pub(crate) fn addresses(base: &str, feed: &Feed) -> Vec<FeedAddress> {
    let address = |name, path: String, about| FeedAddress { name, url: format!("{base}{path}"), about };
    let (id, is_filter, is_published_to) = (feed.id(), feed.is_filter(), feed.not_published_to().is_none());
    let feed = id.as_str();
    let smart = [
        address(
            "smart",
            format!("/feeds/{feed}/items"),
            "Smart Feeds: every item, in any order, as it comes",
        ),
        address("events", format!("/feeds/{feed}/events"), "Server-Sent Events: every change as it comes"),
        address("hub", format!("/feeds/{feed}/hub"), "WebSub: subscribe, to be pushed to"),
    ];
    if is_filter {
        return smart.into();
    }
    let mut addresses = vec![
        address("head", format!("/diff/{feed}/head.json"), "DiffDelta: whether something changed"),
        address("latest", format!("/diff/{feed}/latest.json"), "DiffDelta: what changed last"),
        address("archive", format!("/archive/{feed}/index.json"), "DiffDelta: every change there was"),
        address(
            "atom",
            format!("/feeds/{feed}/atom"),
            "Atom: the newest entries, and the way back to all of them",
        ),
        address("rss", format!("/feeds/{feed}/rss"), "RSS: the same"),
        address("json_feed", format!("/feeds/{feed}/feed.json"), "JSON Feed: the same"),
        address("replication", format!("/feeds/{feed}/replication"), "Data Replication: the newest page"),
        address(
            "snapshots",
            format!("/feeds/{feed}/snapshots/latest"),
            "Data Replication: the newest snapshot",
        ),
    ];
    if is_published_to {
        let about = "publish: POST lines of JSON, PUT …/items/{id}";
        addresses.push(address("items", format!("/feeds/{feed}/items"), about));
    }
    addresses.splice(3..3, smart);
    addresses
}
