//! `[xmpp]`: the component of an XMPP server.

use schemars::JsonSchema;
use serde::Deserialize;
use towpath_proto::push::xmpp::component::{ComponentSettings, MIN_STANZA_BYTES};
use towpath_proto::push::xmpp::jid;

use super::problems::Problems;
use super::schema::ByteSize;
use super::secret::Secret;
use super::sizes::bytes;

/// The component of an XMPP server. Without this table none runs.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct XmppConfig {
    /// Host and port where the XMPP server accepts components. The connection is not encrypted (XEP-0114), so it should
    /// stay on the machine or in a trusted network.
    #[schemars(example = "127.0.0.1:5347")]
    pub server: String,
    /// JID of the component, as configured in the XMPP server.
    #[schemars(example = "feeds.example.com")]
    pub jid: String,
    /// Secret shared with the XMPP server.
    #[schemars(example = "${XMPP_SECRET}")]
    pub secret: Secret,
    /// Maximum size of a stanza in bytes; must be below the XMPP server's limit.
    #[serde(default = "stanza_bytes", deserialize_with = "bytes")]
    #[schemars(with = "ByteSize")]
    pub stanza_bytes: usize,
    /// Maximum number of subscriptions.
    #[serde(default = "subscriptions")]
    pub subscriptions: usize,
    /// Maximum number of subscriptions of one account.
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

impl XmppConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        let (host, port) = self.server.rsplit_once(':').unwrap_or_default();
        if host.is_empty() || port.parse::<u16>().is_err() {
            let message =
                format!("server {:?} is not a host and a port, such as 127.0.0.1:5347", self.server);
            problems.add("server", message);
        }
        // XMPP servers compare JIDs in normal form; another spelling would fail only at the handshake.
        if jid::normalised(&self.jid).as_ref() != Some(&self.jid) || jid::domain(&self.jid) != self.jid {
            problems.add(
                "jid",
                format!("jid {:?} is not a component's JID, such as feeds.example.com", self.jid),
            );
        }
        problems.ensure(!self.secret.is_blank(), "secret", "secret is empty");
        let fits = (MIN_STANZA_BYTES..=16 << 20).contains(&self.stanza_bytes);
        let message = format!("stanza_bytes is not between {MIN_STANZA_BYTES} and {}", 16 << 20);
        problems.ensure(fits, "stanza_bytes", message);
    }
}

impl From<&XmppConfig> for ComponentSettings {
    fn from(config: &XmppConfig) -> Self {
        Self {
            jid: config.jid.clone(),
            secret: config.secret.expose().to_owned(),
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
    fn invalid_values_are_named() {
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
