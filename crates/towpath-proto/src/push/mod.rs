//! What carries Smart Feeds by push: WebSub and XMPP.
//!
//! [`websub`] has both sides of a hub's subscriptions, [`xmpp`] both sides of publish-subscribe nodes; [`address`] says
//! which addresses a server may be made to connect to by somebody else.

pub mod address;
pub mod websub;
pub mod xmpp;
