//! Replies of a follower and a check to requests of others.

use super::limits::{log_in, receive};
use super::simulation::{ALICE, PlainPassword, SERVICE, follower};
use crate::follow::FollowMode;
use crate::push::xmpp::check::NodeChecker;
use crate::push::xmpp::wire::session::OverXmpp;
use crate::push::xmpp::wire::uri::NodeUri;

/// Returns what a client sends when it receives a stanza.
fn sent(client: &mut impl OverXmpp, xml: &str) -> Option<String> {
    receive(client, xml);
    client.session().poll_output()
}

/// RFC 6120, 8.2.3: "An entity that receives an IQ request of type \"get\" or \"set\" MUST reply". XEP-0199, 4.1: a
/// server pings its clients.
fn requests_are_answered(client: &mut impl OverXmpp) {
    log_in(client);
    let ping = "<ping xmlns='urn:xmpp:ping'/>";
    let query = "<query xmlns='jabber:iq:version'/>";
    let error =
        "<error type=\"cancel\"><service-unavailable xmlns=\"urn:ietf:params:xml:ns:xmpp-stanzas\"/></error>";
    for (request, kind, to, content) in [
        (format!("<iq type='get' id='&lt;1'>{ping}</iq>"), "result", "", ""),
        (format!("<iq type='get' id='&lt;1' from='{SERVICE}'>{ping}</iq>"), "result", SERVICE, ""),
        (format!("<iq type='set' id='&lt;1' from='a@b.c/d'>{ping}</iq>"), "error", "a@b.c/d", error),
        (format!("<iq type='get' id='&lt;1' from='{SERVICE}'>{query}</iq>"), "error", SERVICE, error),
        ("<iq type='get' id='&lt;1'/>".to_owned(), "error", "", error),
    ] {
        let to = if to.is_empty() { String::new() } else { format!(" to=\"{to}\"") };
        let end = if content.is_empty() { "/>".to_owned() } else { format!(">{content}</iq>") };
        let reply = format!("<iq type=\"{kind}\"{to} id=\"&lt;1\"{end}");
        assert_eq!(sent(client, &request), Some(reply), "{request}");
    }
    // An answer to an answer would go back and forth for ever.
    for other in ["<iq type='result' id='1'/>", "<iq type='error' id='1'/>", "<iq id='1'/>"] {
        assert_eq!(sent(client, other), None, "{other}");
    }
    assert_eq!(sent(client, &format!("<message type='get' id='1'>{ping}</message>")), None);
}

#[test]
fn a_follower_answers_requests() {
    requests_are_answered(&mut follower(None, FollowMode::Continuous));
}

#[test]
fn a_check_answers_requests() {
    let uri = NodeUri { service: SERVICE.into(), node: "n".into() };
    requests_are_answered(&mut NodeChecker::new(&uri, ALICE, Box::new(PlainPassword)).unwrap());
}
