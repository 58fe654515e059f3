//! Service discovery (XEP-0030; XEP-0060, section 5; XEP-0131, section 3).

use crate::feed_id::FeedId;
use crate::push::xmpp::wire::node::NodeName;
use crate::push::xmpp::wire::stanza::Element;
use crate::push::xmpp::wire::{ns, shim};
use crate::smart::spec::FeedOrder;

/// Features of the service (named in XEP-0060, 16.3).
const FEATURES: [&str; 10] = [
    ns::DISCO_INFO,
    ns::DISCO_ITEMS,
    ns::PUBSUB,
    "http://jabber.org/protocol/pubsub#persistent-items",
    "http://jabber.org/protocol/pubsub#retrieve-items",
    "http://jabber.org/protocol/pubsub#retrieve-subscriptions",
    "http://jabber.org/protocol/pubsub#subscribe",
    ns::RSM,
    ns::SHIM,
    ns::PING,
];

/// Orders; every feed has a node in each.
const ORDERS: [&str; 2] = ["created", "modified"];

fn query(node: Option<&str>) -> Element {
    Element::new("query", ns::DISCO_INFO).with_some("node", node)
}

fn identity(kind: &str, name: &str) -> Element {
    let identity = Element::new("identity", ns::DISCO_INFO);
    identity.with("category", "pubsub").with("type", kind).with("name", name)
}

fn features(names: impl IntoIterator<Item = impl Into<String>>) -> impl Iterator<Item = Element> {
    names.into_iter().map(|name| Element::new("feature", ns::DISCO_INFO).with("var", name))
}

/// Returns the information about the service.
pub fn service() -> Element {
    query(None).with_child(identity("service", "towpath")).with_children(features(FEATURES))
}

/// Returns the headers, at their well-known node (XEP-0131, 3.2).
pub fn headers() -> Element {
    let names = shim::NAMES.map(|name| format!("{}#{name}", ns::SHIM));
    query(Some(ns::SHIM)).with_children(features(names))
}

/// Returns the information about a node, with its feed's title.
pub fn node(node: &str, title: &str) -> Element {
    // A client reads from these what a node can do (XEP-0060, 5.3).
    let own = [ns::DISCO_INFO, ns::PUBSUB, ns::RSM, ns::SHIM];
    query(Some(node)).with_child(identity("leaf", title)).with_children(features(own))
}

/// Returns the nodes of feeds, with titles.
pub fn nodes(service: &str, feeds: &[(FeedId, String)]) -> Element {
    let item = |feed: &FeedId, title: &str, order: &str| {
        let node =
            FeedOrder::parse(order).map_or_else(|| feed.to_string(), |order| NodeName::of(feed, order));
        let item = Element::new("item", ns::DISCO_ITEMS);
        item.with("jid", service).with("node", node).with("name", format!("{title}, by {order}"))
    };
    // Every order is a node of its own, because a subscription has one position.
    let all = feeds.iter().flat_map(|(feed, title)| ORDERS.map(|order| item(feed, title, order)));
    Element::new("query", ns::DISCO_ITEMS).with_children(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XEP-0131, 3.2: "MUST be of the form http://jabber.org/protocol/shim#header".
    #[test]
    fn headers_are_advertised() {
        let vars: Vec<String> =
            headers().children().map(|feature| feature.attribute("var").unwrap().to_owned()).collect();
        let expected = ["TotalItems", "PreviousCursor", "LastCursor"]
            .map(|name| format!("http://jabber.org/protocol/shim#{name}"));
        assert_eq!(vars, expected);
    }

    #[test]
    fn every_feed_is_a_node_in_every_order() {
        let feeds = [(FeedId::new("kev").unwrap(), "KEV".to_owned())];
        let query = nodes("feeds.example.com", &feeds);
        let found: Vec<_> = query.children().map(|item| item.attribute("node").unwrap()).collect();
        assert_eq!(found, ["kev?order=created", "kev?order=modified"]);
        for node in found {
            assert!(NodeName::parse(node).is_ok());
        }
    }
}
