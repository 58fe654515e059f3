//! Types that both ends of a stream share: streams, stanzas, addresses, and the payloads of the extensions.

pub mod error;
pub mod jid;
pub mod lifecycle;
pub mod log_reset;
pub mod node;
pub mod pubsub;
pub mod reply;
pub mod rsm;
pub mod session;
pub mod shim;
pub mod stanza;
pub mod stream;
pub mod uri;

/// Namespaces.
pub mod ns {
    /// Streams (RFC 6120, 4.8.2).
    pub const STREAM: &str = "http://etherx.jabber.org/streams";
    /// A component's stream (XEP-0114).
    pub const COMPONENT: &str = "jabber:component:accept";
    /// A client's stream (RFC 6120).
    pub const CLIENT: &str = "jabber:client";
    /// Conditions of stream errors (RFC 6120, 4.9.2).
    pub const STREAM_ERRORS: &str = "urn:ietf:params:xml:ns:xmpp-streams";
    /// Conditions of stanza errors (RFC 6120, 8.3.2).
    pub const STANZA_ERRORS: &str = "urn:ietf:params:xml:ns:xmpp-stanzas";
    /// Publish-subscribe (XEP-0060).
    pub const PUBSUB: &str = "http://jabber.org/protocol/pubsub";
    /// Publish-subscribe, notifications.
    pub const PUBSUB_EVENT: &str = "http://jabber.org/protocol/pubsub#event";
    /// Publish-subscribe, its own error conditions.
    pub const PUBSUB_ERRORS: &str = "http://jabber.org/protocol/pubsub#errors";
    /// Publish-subscribe, requests of a node's owner.
    pub const PUBSUB_OWNER: &str = "http://jabber.org/protocol/pubsub#owner";
    /// Result set management (XEP-0059).
    pub const RSM: &str = "http://jabber.org/protocol/rsm";
    /// Headers (XEP-0131).
    pub const SHIM: &str = "http://jabber.org/protocol/shim";
    /// Service discovery, information (XEP-0030).
    pub const DISCO_INFO: &str = "http://jabber.org/protocol/disco#info";
    /// Service discovery, items (XEP-0030).
    pub const DISCO_ITEMS: &str = "http://jabber.org/protocol/disco#items";
    /// Ping (XEP-0199).
    pub const PING: &str = "urn:xmpp:ping";
    /// Namespace bound to the prefix `xml`.
    pub const XML: &str = "http://www.w3.org/XML/1998/namespace";
}
