//! Smart Feeds over XMPP ("XMPP Pull/Push"): publish-subscribe nodes, paged by result set management.
//!
//! | module | what | the texts |
//! |---|---|---|
//! | [`stream`] | bytes to stanzas, within limits | RFC 6120 |
//! | [`stanza`] | a stanza as a tree, and writing it | RFC 6120 |
//! | [`jid`] | addresses | RFC 7622 |
//! | [`error`] | stanza errors | RFC 6120 8.3, XEP-0060 |
//! | [`node`] | which feed in which order a node is | Smart Feeds |
//! | [`rsm`] | ranges and pages | XEP-0059 |
//! | [`shim`] | the headers of a push | XEP-0131 |
//! | [`pubsub`] | what is asked of a node | XEP-0060 |
//! | [`disco`] | what there is | XEP-0030 |
//! | [`entry`] | items as Atom entries that fit into a stanza | Smart Feeds |
//! | [`fanout`] | who is sent what | Smart Feeds "Push Interface" |
//! | [`connection`] | the component's stream | XEP-0114 |
//! | [`component`] | the publisher's side as one state machine | all of them |
//! | [`session`] | a client's stream | RFC 6120 |
//! | [`uri`] | addresses of nodes | RFC 5122 |
//! | [`follow`] | the consumer's side | Smart Feeds "Updates/Synchronization via Push" |
//! | [`check`] | whether a node does what the texts demand | all of them |

pub mod check;
pub mod component;
pub mod connection;
pub mod disco;
pub mod entry;
pub mod error;
pub mod fanout;
pub mod follow;
pub mod jid;
mod link;
pub mod node;
pub mod pubsub;
pub mod rsm;
pub mod session;
pub mod shim;
pub mod stanza;
pub mod stream;
pub mod uri;

#[cfg(test)]
mod component_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod stream_tests;

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
    /// The same, what is pushed.
    pub const PUBSUB_EVENT: &str = "http://jabber.org/protocol/pubsub#event";
    /// The same, conditions of its own.
    pub const PUBSUB_ERRORS: &str = "http://jabber.org/protocol/pubsub#errors";
    /// The same, requests of a node's owner.
    pub const PUBSUB_OWNER: &str = "http://jabber.org/protocol/pubsub#owner";
    /// Result set management (XEP-0059).
    pub const RSM: &str = "http://jabber.org/protocol/rsm";
    /// Headers (XEP-0131).
    pub const SHIM: &str = "http://jabber.org/protocol/shim";
    /// What an entity is (XEP-0030).
    pub const DISCO_INFO: &str = "http://jabber.org/protocol/disco#info";
    /// What an entity has (XEP-0030).
    pub const DISCO_ITEMS: &str = "http://jabber.org/protocol/disco#items";
    /// Whether an entity answers (XEP-0199).
    pub const PING: &str = "urn:xmpp:ping";
    /// What is bound to the prefix `xml`.
    pub const XML: &str = "http://www.w3.org/XML/1998/namespace";
}
