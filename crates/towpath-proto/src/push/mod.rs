//! Push transports of Smart Feeds: WebSub and XMPP.
//!
//! [`websub`] has both sides of a hub's subscriptions, [`xmpp`] both sides of publish-subscribe nodes.

pub mod websub;
pub mod xmpp;
