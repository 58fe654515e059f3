//! Replies of a client to the requests of others.

use super::error::StanzaError;
use super::ns;
use super::stanza::Element;

/// Returns the reply to a request; `None` for a stanza that is none.
///
/// An entity that receives a request must reply (RFC 6120, 8.2.3). Servers end sessions that do not answer pings
/// (XEP-0199, 4.1).
pub fn reply(stanza: &Element) -> Option<Element> {
    let kind =
        stanza.attribute("type").filter(|kind| stanza.name == "iq" && matches!(*kind, "get" | "set"))?;
    let is_ping = kind == "get" && stanza.child("ping", ns::PING).is_some();
    let reply = Element::new("iq", ns::CLIENT).with("type", if is_ping { "result" } else { "error" });
    // The account's own server may leave out its address.
    let reply = reply.with_some("to", stanza.attribute("from")).with_some("id", stanza.attribute("id"));
    Some(if is_ping { reply } else { reply.with_child(StanzaError::UNAVAILABLE.element(ns::CLIENT)) })
}
