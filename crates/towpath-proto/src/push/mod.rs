//! What carries Smart Feeds by push: WebSub and XMPP.
