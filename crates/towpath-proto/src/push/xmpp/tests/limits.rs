//! Limits of what a follower and a check read from a service.

use super::simulation::{ALICE, PlainPassword, SERVICE, follower};
use crate::follow::{Checker as _, Event, FollowMode, Follower as _, Now, ReadLimits};
use crate::format::xml::ATOM;
use crate::push::xmpp::check::NodeChecker;
use crate::push::xmpp::follow::NodeFollower;
use crate::push::xmpp::wire::session::{ConnectionPrivacy, OverXmpp};
use crate::push::xmpp::wire::uri::NodeUri;
use crate::smart::tests::time;

pub(super) fn receive(client: &mut impl OverXmpp, xml: &str) {
    let now = Now::simulated(time(0));
    client.session().handle_bytes(now, xml.as_bytes());
    client.handle_received(now);
}

/// Logs in, and returns what the client sent.
pub(super) fn log_in(client: &mut impl OverXmpp) -> String {
    let now = Now::simulated(time(0));
    assert!(client.session().poll_connect(now));
    client.session().handle_connected(now, ConnectionPrivacy::Private);
    let greeting = |features: &str| {
        let stream = "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' xmlns='jabber:client' version='1.0'>";
        format!("{stream}<stream:features>{features}</stream:features>")
    };
    let plain =
        "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN</mechanism></mechanisms>";
    receive(client, &greeting(plain));
    receive(client, "<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>");
    let bind = "urn:ietf:params:xml:ns:xmpp-bind";
    receive(client, &greeting(&format!("<bind xmlns='{bind}'/>")));
    let bound = format!("<bind xmlns='{bind}'><jid>{ALICE}</jid></bind>");
    receive(client, &format!("<iq type='result' id='bind'>{bound}</iq>"));
    client.session().poll_output().unwrap()
}

/// Returns the id of a request among what was sent.
fn id_of<'a>(sent: &'a str, prefix: &str) -> &'a str {
    let at = sent.find(prefix).unwrap_or_else(|| panic!("no {prefix} in {sent}"));
    sent[at..].split('"').next().unwrap()
}

/// Returns an answer with items whose contents have a length.
fn page(id: &str, items: usize, length: usize) -> String {
    let text = "x".repeat(length);
    let item = format!("<item id='a'><entry xmlns='{ATOM}'><content>{text}</content></entry></item>");
    let items = item.repeat(items);
    format!(
        "<iq type='result' from='{SERVICE}' id='{id}'><pubsub xmlns='http://jabber.org/protocol/pubsub'>\
         <items node='n'>{items}</items></pubsub></iq>"
    )
}

fn limits(name: &str, value: usize) -> ReadLimits {
    let mut limits = ReadLimits::default();
    limits.set(name, value).unwrap();
    limits
}

/// Returns what a follower reports of a page.
fn told(limits: ReadLimits, items: usize, length: usize) -> String {
    let mut follower = follower(None, FollowMode::Continuous).within(limits);
    let sent = log_in(&mut follower);
    receive(&mut follower, &page(id_of(&sent, "pull-"), items, length));
    let mut told = String::new();
    while let Some(event) = follower.poll_event() {
        match event {
            Event::Failed(error) => told += &error.to_string(),
            Event::Warning(text) => told += &text,
            _ => {}
        }
    }
    told
}

#[test]
fn a_follower_keeps_to_its_limits() {
    assert!(told(limits("items", 1), 2, 1).contains("(limit: items)"));
    assert!(told(limits("string_mib", 1), 1, 2 << 20).contains("(limit: string_mib)"));
    assert!(told(limits("max_mib", 1), 1, 2 << 20).contains("1048576 bytes (limit: max_mib)"));
    // The default, and a larger limit.
    assert!(told(ReadLimits::default(), 1, 5 << 20).contains("4194304 bytes (limit: max_mib)"));
    for limits in [limits("max_mib", 9), limits("items", 2)] {
        let large = if limits.max_document.is_some() { 5 << 20 } else { 1 };
        assert!(!told(limits, 2, large / 2 + 1).contains("limit"));
    }
}

#[test]
fn a_check_names_the_limit() {
    let uri = NodeUri { service: SERVICE.into(), node: "n".into() };
    let check = NodeChecker::new(&uri, ALICE, Box::new(PlainPassword)).unwrap();
    let mut check = check.within(limits("max_mib", 1));
    let sent = log_in(&mut check);
    receive(&mut check, &page(id_of(&sent, "check-"), 1, 2 << 20));
    assert!(check.failure().is_none());
    let named = |finding: &crate::report::Finding| finding.detail.contains("(limit: max_mib)");
    assert!(check.report().findings.iter().any(named), "{:?}", check.report());
}

/// "Updates/Synchronization via Push": a client that synchronises follows the order by modified time.
#[test]
fn a_node_without_all_changes_is_followed_with_a_warning() {
    let warning = |node: &str, state: Option<serde_json::Value>| {
        let uri = NodeUri { service: SERVICE.into(), node: node.into() };
        let from = crate::follow::StartFrom::Beginning;
        let mut follower =
            NodeFollower::new(&uri, &from, state, FollowMode::Continuous, ALICE, Box::new(PlainPassword))
                .unwrap();
        follower.poll_event()
    };
    for node in ["n?order=created", "n?a=b&order=-modified"] {
        let Some(Event::Warning(text)) = warning(node, None) else { panic!("no warning: {node}") };
        assert!(text.contains("not every change appears in order="), "{text}");
        // It was told when the follow began.
        let url = NodeUri { service: SERVICE.into(), node: node.into() }.to_string();
        assert_eq!(
            warning(node, Some(serde_json::json!({"protocol": "smart", "url": url, "since": null}))),
            None
        );
    }
    for node in ["n", "n?order=modified", "order=created", "n?order=other"] {
        assert_eq!(warning(node, None), None, "{node}");
    }
}
