//! Tests of the specification's examples ("XMPP Pull/Push"), a file for each.

use super::*;
use crate::format::xml::ATOM;
use crate::push::xmpp::wire::rsm::RsmBounds;
use crate::push::xmpp::wire::shim::PushHeaders;
use crate::push::xmpp::wire::stream::read_one;

const PULL: &str = include_str!("../../../../../../tests/data/xmpp/pull.xml");
const PAGE: &str = include_str!("../../../../../../tests/data/xmpp/page.xml");
const NEXT: &str = include_str!("../../../../../../tests/data/xmpp/next.xml");
const SUBSCRIBE: &str = include_str!("../../../../../../tests/data/xmpp/subscribe.xml");
const PUSH: &str = include_str!("../../../../../../tests/data/xmpp/push.xml");

/// Reduces a stanza to its shape: names, namespaces, attributes and the order of elements. Leaves out item
/// contents and values of the example's feed.
fn shape(element: &Element) -> String {
    let mut out = format!("{{{}}}{}", element.ns.trim_start_matches(ns::COMPONENT), element.name);
    let mut attributes: Vec<_> =
        element.attributes.iter().map(|a| format!(" {}={}", a.name, a.value)).collect();
    attributes.sort();
    if element.name == "item" {
        attributes = vec![" id".into()];
    }
    out.push_str(&attributes.concat());
    if element.name != "entry" {
        let mut children: Vec<String> = element.children().map(shape).collect();
        children.dedup();
        out.push_str(&format!("({})", children.join(",")));
    }
    out
}

fn harness() -> ComponentHarness {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..70 {
        harness.put(&format!("c{number:02}"), "text");
    }
    harness
}

/// "Here's an example pull request", "The server responds", "Requesting the next page".
#[test]
fn the_pull_of_the_text() {
    let mut harness = harness();
    let first = harness.send(PULL).remove(0);
    assert_eq!(shape(&first), shape(&read_one(PAGE).unwrap()));
    let expected: Vec<String> = (0..50).map(|number| format!("c{number:02}")).collect();
    assert_eq!(item_ids(&first), expected);
    let pubsub = first.child("pubsub", ns::PUBSUB).unwrap();
    for item in pubsub.child("items", ns::PUBSUB).unwrap().children() {
        assert!(item.child("entry", ATOM).is_some());
    }
    let bounds = RsmBounds::read(pubsub.child("set", ns::RSM).unwrap());
    assert_eq!((bounds.index, bounds.count), (Some(0), Some(70)));
    // "The server always replies with UIDs using the cursor type."
    let last = bounds.last.unwrap();
    assert!(bounds.first.unwrap().starts_with("cursor:") && last.starts_with("cursor:"));

    let second = harness.send(&NEXT.replace("cursor:8f4a1546", &last)).remove(0);
    assert_eq!((second.attribute("id"), item_ids(&second).len()), (Some("2"), 20));
    assert_eq!(item_ids(&second)[0], "c50");
}

/// Parses the specification's own page as a client.
#[test]
fn the_page_of_the_text_is_read() {
    let page = read_one(PAGE).unwrap();
    assert_eq!(item_ids(&page), ["b204edf6-7a03-11e0-8617-837f7e2798e8"]);
    let bounds = RsmBounds::read(page.child("pubsub", ns::PUBSUB).unwrap().child("set", ns::RSM).unwrap());
    let expected = RsmBounds {
        first: Some("cursor:cdc811df".into()),
        index: Some(0),
        last: Some("cursor:8f4a1546".into()),
        count: Some(427),
    };
    assert_eq!(bounds, expected);
    let headers = PushHeaders::read(&read_one(PUSH).unwrap());
    let expected =
        PushHeaders { total: Some(427), previous: Some("f4ac5920".into()), last: Some("64fc10d2".into()) };
    assert_eq!(headers, expected);
}

/// "For push, an entity subscribes to the node", "Here's an example message".
#[test]
fn the_push_of_the_text() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let mut harness = harness();
        harness.feed = settings(kind);
        let subscribed = harness.send(SUBSCRIBE).remove(0);
        // XEP-0060, 6.1.2.
        let state =
            subscribed.child("pubsub", ns::PUBSUB).unwrap().child("subscription", ns::PUBSUB).unwrap();
        let attributes = ["node", "jid", "subscription"].map(|name| state.attribute(name).unwrap());
        assert_eq!(attributes, ["comments?order=created", "alice@example.net/1", "subscribed"]);

        let before = harness.pubsub("get", "<items node='comments?order=created' max_items='1'/>");
        let set = |stanza: &Element| {
            RsmBounds::read(stanza.child("pubsub", ns::PUBSUB).unwrap().child("set", ns::RSM).unwrap())
        };
        harness.put("new", "text");
        let pushed = harness.work();
        assert_eq!(pushed.len(), 1);
        assert_eq!(shape(&pushed[0]), shape(&read_one(PUSH).unwrap()));
        assert_eq!(item_ids(&pushed[0]), ["new"]);
        let headers = PushHeaders::read(&pushed[0]);
        assert_eq!(headers.total, Some(71));
        if kind == CursorKind::Sequence {
            // Cursors are bare in headers.
            assert_eq!(headers.previous.map(|cursor| format!("cursor:{cursor}")), set(&before).last);
        } else {
            assert!(headers.previous.unwrap().contains('_'));
        }
    }
}
