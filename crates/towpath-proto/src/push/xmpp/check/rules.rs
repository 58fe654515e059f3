//! Rules of "XMPP Pull/Push" for a node, as a table.

crate::report::rules! {
    ADVERTISED_PUBSUB: "XMPP Pull" Should "http://jabber.org/protocol/pubsub is advertised";
    ADVERTISED_RSM: "XMPP Pull" Should "http://jabber.org/protocol/rsm is advertised";
    ADVERTISED_SHIM: "XMPP Pull" Should "http://jabber.org/protocol/shim is advertised";
    ITEMS: "XMPP Pull" Must "items can be asked for";
    NODE: "XMPP Pull" Must "an answer names its node";
    ATOM: "XMPP Pull" Must "items are always formatted as Atom entries";
    UNIQUE_ID: "As Abstract" Must "all items have a unique id within a feed";
    CURSORS: "XMPP Pull" Must "cursors are provided in the RSM first and last values";
    TOTAL: "XMPP Pull" Should "the RSM count contains the total items in the feed";
    EMPTY: "XMPP Pull" Must "an empty page has no first and no last (XEP-0059, 2.2)";
    AFTER: "XMPP Pull" Must "after leads to the next page";
    BEFORE: "XMPP Pull" Must "before leads back to the page before";
    COUNT: "XMPP Pull" Should "max 0 asks for the count alone (XEP-0059, 2.7)";
    UNKNOWN: "XMPP Pull" Must "an unknown node is item-not-found (XEP-0060, 6.5.9.11)";
    SUBSCRIBE: "XMPP Push" Should "the node can be subscribed to";
    UNSUBSCRIBE: "XMPP Push" Should "a subscription can be ended";
    ANSWERED: "XMPP Pull" Must "every request is answered";
}
