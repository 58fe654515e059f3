//! `[xmpp]`: the component beside an XMPP server.

use serde::Deserialize;
use towpath_proto::push::xmpp::component::{MIN_STANZA, Settings};
use towpath_proto::push::xmpp::jid;

/// `[xmpp]`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XmppConfig {
    /// Where the server takes components: a host and a port. The connection is not encrypted (XEP-0114): it should stay
    /// on the machine, or in a network that is trusted.
    pub server: String,
    /// The component's name, which the server knows as well.
    pub jid: String,
    /// What it shares with the server.
    pub secret: String,
    /// The largest stanza that is sent, in bytes: less than the server takes.
    #[serde(default = "stanza_bytes")]
    pub stanza_bytes: usize,
    /// The most subscriptions of all.
    #[serde(default = "subscriptions")]
    pub subscriptions: usize,
    /// The most subscriptions of one account.
    #[serde(default = "account_subscriptions")]
    pub account_subscriptions: usize,
}

fn stanza_bytes() -> usize {
    256 << 10
}

fn subscriptions() -> usize {
    100_000
}

fn account_subscriptions() -> usize {
    1000
}

impl std::fmt::Debug for XmppConfig {
    /// Without the secret, which is nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("XmppConfig");
        shown.field("server", &self.server).field("jid", &self.jid).finish_non_exhaustive()
    }
}

impl XmppConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        let (host, port) = self.server.rsplit_once(':').unwrap_or_default();
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(format!("server {:?} is not a host and a port, as 127.0.0.1:5347", self.server));
        }
        if jid::normalised(&self.jid).as_ref() != Some(&self.jid) || jid::domain(&self.jid) != self.jid {
            return Err(format!("jid {:?} is not a component's name, as feeds.example.com", self.jid));
        }
        if self.secret.is_empty() {
            return Err("secret is empty".into());
        }
        if !(MIN_STANZA..=16 << 20).contains(&self.stanza_bytes) {
            return Err(format!("stanza_bytes is not between {MIN_STANZA} and {}", 16 << 20));
        }
        Ok(())
    }
}

impl From<&XmppConfig> for Settings {
    fn from(config: &XmppConfig) -> Self {
        Self {
            jid: config.jid.clone(),
            secret: config.secret.clone(),
            stanza_bytes: config.stanza_bytes,
            subscriptions: config.subscriptions,
            account_subscriptions: config.account_subscriptions,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string())
    }

    const GOOD: &str = "[xmpp]\nserver = '127.0.0.1:5347'\njid = 'feeds.example.com'\nsecret = 'hush-hush'\n";

    #[test]
    fn a_component() {
        let config = parse(GOOD).unwrap();
        let xmpp = config.xmpp.as_ref().unwrap();
        assert_eq!((xmpp.stanza_bytes, xmpp.jid.as_str()), (256 << 10, "feeds.example.com"));
        assert!(!format!("{config:?}").contains("hush"));
        assert!(parse("").unwrap().xmpp.is_none());
    }

    #[test]
    fn what_does_not_make_sense_is_named() {
        for (from, to, needle) in [
            ("127.0.0.1:5347", "127.0.0.1", "server"),
            ("127.0.0.1:5347", ":5347", "server"),
            ("feeds.example.com", "me@example.com", "jid"),
            ("feeds.example.com", "Feeds.example.com", "jid"),
            ("feeds.example.com", "", "jid"),
            ("hush-hush", "", "secret"),
            ("secret = 'hush-hush'", "", "secret"),
            ("secret = 'hush-hush'", "secret = 'a'\nstanza_bytes = 5", "stanza_bytes"),
            ("secret = 'hush-hush'", "secret = 'a'\nport = 5", "port"),
        ] {
            let error = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(needle) && error.contains("towpath.toml"), "{to}: {error}");
        }
    }
}
