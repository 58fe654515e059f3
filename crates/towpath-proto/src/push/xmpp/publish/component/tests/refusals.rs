//! Tests of malformed, impossible and unknown requests, and the error of each.

use super::*;

fn condition(stanza: &Element) -> String {
    error_of(stanza).0
}

/// RFC 6120, 8.2.3 and 8.4.
#[test]
fn a_request_has_one_payload_that_is_known() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for (payload, expected) in [
        ("", "bad-request"),
        ("<a xmlns='u:a'/><b xmlns='u:b'/>", "bad-request"),
        ("<pubsub xmlns='http://jabber.org/protocol/pubsub#other'/>", "service-unavailable"),
        ("<pubsub/>", "service-unavailable"),
        ("<query xmlns='jabber:iq:version'/>", "service-unavailable"),
        (
            "<pubsub xmlns='http://jabber.org/protocol/pubsub#owner'><delete node='comments'/></pubsub>",
            "feature-not-implemented",
        ),
    ] {
        for kind in ["get", "set"] {
            let answer = harness.ask(kind, payload);
            assert_eq!(condition(&answer), expected, "{kind} {payload}");
        }
    }
    assert_eq!(condition(&harness.ask("fetch", "<a xmlns='u:a'/>")), "bad-request");
    assert_eq!(condition(&harness.ask("set", "<ping xmlns='urn:xmpp:ping'/>")), "service-unavailable");
    assert_eq!(harness.ask("get", "<ping xmlns='urn:xmpp:ping'/>").attribute("type"), Some("result"));
}

/// RFC 6120, 8.2.3: "An entity that receives a stanza of type "result" or "error" MUST NOT respond".
#[test]
fn what_is_no_request_is_not_answered() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for stanza in [
        "<iq type='result' from='a@b.c' to='example.com' id='1'/>",
        "<iq type='error' from='a@b.c' to='example.com' id='1'><pubsub/></iq>",
        "<presence from='a@b.c' to='example.com' type='subscribe'/>",
        "<message from='a@b.c' to='example.com'><body>hello</body></message>",
        "<message from='a@b.c' to='example.com' type='error'/>",
        "<iq type='get' to='example.com' id='nobody to answer'><ping xmlns='urn:xmpp:ping'/></iq>",
        "<unknown/>",
    ] {
        assert!(harness.send(stanza).is_empty(), "{stanza}");
    }
}

/// XEP-0060, 6.5.9: the node does not exist, is not public, or cannot be read.
#[test]
fn nodes_that_cannot_be_read() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for (node, expected) in [
        ("unknown", "item-not-found"),
        ("No node", "item-not-found"),
        ("private", "forbidden"),
        ("comments?order=random", "bad-request"),
        ("comments?since=cursor%3Aa", "bad-request"),
    ] {
        let read = harness.pubsub("get", &format!("<items node='{node}'/>"));
        assert_eq!(condition(&read), expected, "{node}");
        assert_eq!(condition(&harness.subscribe("a@b.c", node)), expected, "{node}");
        let info = format!("<query xmlns='http://jabber.org/protocol/disco#info' node='{node}'/>");
        assert_eq!(condition(&harness.ask("get", &info)), expected, "{node}");
    }
    let unknown_id = "<items node='comments?order=created'/><set xmlns='http://jabber.org/protocol/rsm'><after>id:x</after></set>";
    assert_eq!(condition(&harness.pubsub("get", unknown_id)), "item-not-found");
    assert!(harness.component.subscriptions() == 0 && harness.kept.is_empty());
}

/// XEP-0060, 6.1.3 and 6.2.3.
#[test]
fn subscriptions_that_cannot_be_made_or_ended() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    let other = harness.pubsub("set", "<subscribe node='comments' jid='bob@example.net'/>");
    assert_eq!(error_of(&other), ("bad-request".into(), Some("invalid-jid".into())));
    let none = harness.pubsub("set", "<unsubscribe node='comments' jid='alice@example.net/1'/>");
    assert_eq!(error_of(&none), ("unexpected-request".into(), Some("not-subscribed".into())));
    for node in ["comments", "comments?", "comments?order=created"] {
        assert_eq!(harness.subscribe("alice@example.net/1", node).attribute("type"), Some("result"));
    }
    let many = harness.subscribe("alice@example.net/2", "comments?x");
    assert_eq!(error_of(&many), ("policy-violation".into(), Some("too-many-subscriptions".into())));
    // A repeated subscription does not count twice, and limits are per account.
    assert_eq!(harness.subscribe("alice@example.net/1", "comments").attribute("type"), Some("result"));
    assert_eq!(harness.subscribe("bob@example.net/1", "comments").attribute("type"), Some("result"));
    assert_eq!(harness.component.subscriptions(), 4);
    // A subscription that is not on disk is not acknowledged.
    harness.cannot_write = true;
    assert_eq!(condition(&harness.subscribe("bob@example.net/1", "comments?y")), "internal-server-error");
    assert_eq!(harness.component.subscriptions(), 4);
}

#[test]
fn stanzas_that_are_too_large_are_refused_and_nothing_is_blocked() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.put("a", "x");
    let large = format!("<items node='comments'>{}</items>", "x".repeat(1 << 20));
    assert_eq!(condition(&harness.pubsub("get", &large)), "not-acceptable");
    let body = "x".repeat(1 << 20);
    assert!(
        harness
            .send(&format!("<message from='a@b.c' to='example.com'><body>{body}</body></message>"))
            .is_empty()
    );
    let long_id =
        format!("<iq type='get' from='a@b.c' to='example.com' id='{}'><a/></iq>", "i".repeat(10_000));
    assert!(harness.send(&long_id).is_empty());
    assert_eq!(item_ids(&harness.pubsub("get", "<items node='comments'/>")), ["a"]);
}

/// Each refusal is reported once.
#[test]
fn refusals_are_noticed_once() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.notices();
    harness.pubsub("get", "<items node='unknown'/>");
    let notices = harness.notices();
    let [ComponentEvent::Refused(who, error)] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!((who.as_str(), error.condition), ("alice@example.net/1", "item-not-found"));
}

/// XEP-0030; XEP-0059, 3.1; XEP-0131, 3: service discovery.
#[test]
fn discovery() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    let vars = |answer: &Element| -> Vec<String> {
        let query = answer.child("query", ns::DISCO_INFO).unwrap();
        let features = query.children().filter(|child| child.name == "feature");
        features.map(|feature| feature.attribute("var").unwrap().to_owned()).collect()
    };
    let info = harness.ask("get", "<query xmlns='http://jabber.org/protocol/disco#info'/>");
    for feature in [ns::PUBSUB, ns::RSM, ns::SHIM, ns::DISCO_INFO, ns::DISCO_ITEMS] {
        assert!(vars(&info).contains(&feature.to_owned()), "{feature}");
    }
    let identity = info.child("query", ns::DISCO_INFO).unwrap().child("identity", ns::DISCO_INFO).unwrap();
    assert_eq!(
        (identity.attribute("category"), identity.attribute("type")),
        (Some("pubsub"), Some("service"))
    );
    let headers = harness.ask(
        "get",
        "<query xmlns='http://jabber.org/protocol/disco#info' node='http://jabber.org/protocol/shim'/>",
    );
    assert_eq!(vars(&headers)[0], "http://jabber.org/protocol/shim#TotalItems");
    let node = harness
        .ask("get", "<query xmlns='http://jabber.org/protocol/disco#info' node='comments?order=created'/>");
    let identity = node.child("query", ns::DISCO_INFO).unwrap().child("identity", ns::DISCO_INFO).unwrap();
    assert_eq!((identity.attribute("type"), identity.attribute("name")), (Some("leaf"), Some("A")));

    let nodes = |answer: &Element| -> Vec<String> {
        let query = answer.child("query", ns::DISCO_ITEMS).unwrap();
        let items = query.children().filter(|child| child.name == "item");
        items.map(|item| item.attribute("node").unwrap().to_owned()).collect()
    };
    let all = harness.ask("get", "<query xmlns='http://jabber.org/protocol/disco#items'/>");
    assert_eq!(nodes(&all).len(), 6);
    let list = |set: &str| {
        format!(
            "<query xmlns='http://jabber.org/protocol/disco#items'><set xmlns='{}'>{set}</set></query>",
            ns::RSM
        )
    };
    let first = harness.ask("get", &list("<max>2</max>"));
    assert_eq!(
        nodes(&first),
        ["comments?order=created", "comments?order=modified", "likes?order=created", "likes?order=modified"]
    );
    let rest = harness.ask("get", &list("<after>likes</after>"));
    assert_eq!(nodes(&rest), ["shares?order=created", "shares?order=modified"]);
    assert_eq!(condition(&harness.ask("get", &list("<before/>"))), "feature-not-implemented");
}

/// XEP-0060, 5.6.
#[test]
fn the_subscriptions_of_an_account() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for (jid, node) in [
        ("alice@example.net/1", "comments"),
        ("alice@example.net", "comments?order=created"),
        ("alice@example.net-b", "comments"),
        ("alice@example.net.other/1", "comments"),
        ("bob@example.net/1", "comments"),
    ] {
        assert_eq!(harness.subscribe(jid, node).attribute("type"), Some("result"));
    }
    let mut listed = |inner: &str| -> Vec<String> {
        let answer = harness.pubsub("get", inner);
        let list = answer.child("pubsub", ns::PUBSUB).unwrap().child("subscriptions", ns::PUBSUB).unwrap();
        list.children().map(|child| child.attribute("jid").unwrap().to_owned()).collect()
    };
    assert_eq!(listed("<subscriptions/>"), ["alice@example.net", "alice@example.net/1"]);
    assert_eq!(listed("<subscriptions node='comments'/>"), ["alice@example.net/1"]);
}
