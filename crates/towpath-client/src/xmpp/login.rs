//! SASL authentication (RFC 6120, section 6): SCRAM, or PLAIN over a protected connection.

use sasl::client::Mechanism;
use sasl::client::mechanisms::{Plain, Scram};
use sasl::common::ChannelBinding;
use sasl::common::scram::{Sha1, Sha256};
use towpath_proto::push::xmpp::session::{Authenticate, ConnectionPrivacy};

/// Maximum SCRAM iteration count. A hostile server could otherwise keep a core busy for hours.
const MAX_ITERATIONS: u32 = 1_000_000;

/// Authentication of one account.
pub(super) struct Login {
    user: String,
    password: String,
    mechanism: Option<Box<dyn Mechanism + Send>>,
    /// Our nonce, with which the server's must begin (RFC 5802, section 5.1).
    nonce: Option<String>,
    /// True once the server has proved that it knows the password.
    is_verified: bool,
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        Self { user, password, mechanism: None, nonce: None, is_verified: false }
    }

    /// Chooses the strongest offered mechanism that may be used over a connection of this privacy.
    fn choose(&self, offered: &[String], privacy: ConnectionPrivacy) -> Option<Box<dyn Mechanism + Send>> {
        let has = |name: &str| offered.iter().any(|offered| offered == name);
        // RFC 5802, section 5.1: "," and "=" are escaped in user names.
        let user = self.user.replace('=', "=3D").replace(',', "=2C");
        let password = self.password.as_str();
        if has("SCRAM-SHA-256") {
            return Some(Box::new(Scram::<Sha256>::new(user, password, ChannelBinding::None).ok()?));
        }
        if has("SCRAM-SHA-1") {
            return Some(Box::new(Scram::<Sha1>::new(user, password, ChannelBinding::None).ok()?));
        }
        let plain = || Box::new(Plain::new(self.user.as_str(), password));
        // PLAIN sends the password itself, so only over TLS or loopback.
        (has("PLAIN") && privacy == ConnectionPrivacy::Private).then(|| plain() as Box<dyn Mechanism + Send>)
    }

    /// Checks of the server's first message that the `sasl` crate leaves out.
    fn check_challenge(&self, challenge: &str) -> Result<(), String> {
        let value = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name));
        let nonce = self.nonce.as_deref().unwrap_or_default();
        // Otherwise a recorded exchange could be replayed to us.
        if !value("r=").is_some_and(|own| own.len() > nonce.len() && own.starts_with(nonce)) {
            return Err("its nonce does not begin with ours".into());
        }
        match value("i=").and_then(|iterations| iterations.parse::<u32>().ok()) {
            Some(1..=MAX_ITERATIONS) => Ok(()),
            _ => Err("its iteration count is missing or out of range".into()),
        }
    }
}

impl Authenticate for Login {
    fn begin(&mut self, offered: &[String], privacy: ConnectionPrivacy) -> Option<(String, Vec<u8>)> {
        let mut mechanism = self.choose(offered, privacy)?;
        let (name, initial) = (mechanism.name().to_owned(), mechanism.initial());
        let text = String::from_utf8_lossy(&initial);
        self.nonce = text.split(',').find_map(|part| part.strip_prefix("r=")).map(str::to_owned);
        (self.mechanism, self.is_verified) = (Some(mechanism), false);
        Some((name, initial))
    }

    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String> {
        let text = String::from_utf8_lossy(challenge);
        if text.starts_with("v=") {
            self.finish(challenge)?;
            self.is_verified = true;
            return Ok(Vec::new());
        }
        self.check_challenge(&text)?;
        let mechanism = self.mechanism.as_mut().ok_or("authentication has not begun")?;
        mechanism.response(challenge).map_err(|e| e.to_string())
    }

    fn finish(&mut self, data: &[u8]) -> Result<(), String> {
        // The proof was verified in the last challenge already.
        if self.is_verified && data.is_empty() {
            return Ok(());
        }
        let mechanism = self.mechanism.as_mut().ok_or("authentication has not begun")?;
        mechanism.success(data).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_strongest_mechanism_is_chosen_and_no_password_is_sent_unencrypted() {
        use ConnectionPrivacy::{Exposed, Private};
        let mut login = Login::new("al,ice", "word");
        let mut name = |names: &[&str], privacy| login.begin(&offered(names), privacy).map(|(name, _)| name);
        assert_eq!(name(&["PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"], Exposed).unwrap(), "SCRAM-SHA-256");
        assert_eq!(name(&["PLAIN", "SCRAM-SHA-1"], Private).unwrap(), "SCRAM-SHA-1");
        assert_eq!(name(&["PLAIN", "X"], Private).unwrap(), "PLAIN");
        assert_eq!(name(&["PLAIN"], Exposed), None);
        let (_, initial) = login.begin(&offered(&["SCRAM-SHA-1"]), Exposed).unwrap();
        assert!(initial.starts_with(b"n,,n=al=2Cice,r="));
    }

    /// RFC 5802, 5.1: "The client MUST verify that the initial part of the nonce used in subsequent messages is the
    /// same as the nonce it initially specified".
    #[test]
    fn invalid_server_messages_are_rejected() {
        let mut login = Login::new("alice", "word");
        let (_, initial) = login.begin(&offered(&["SCRAM-SHA-256"]), ConnectionPrivacy::Private).unwrap();
        let nonce = String::from_utf8(initial).unwrap().split_once("r=").unwrap().1.to_owned();
        for bad in [
            "r=other,s=QSXCR+Q6sek8bf92,i=4096".into(),
            format!("r={nonce},s=QSXCR+Q6sek8bf92,i=4096"),
            format!("r={nonce}more,s=QSXCR+Q6sek8bf92,i=4000000000"),
            format!("r={nonce}more,s=QSXCR+Q6sek8bf92,i=0"),
            format!("r={nonce}more,i=4096"),
            "v=AAAA".into(),
            String::new(),
        ] {
            assert!(login.respond(bad.as_bytes()).is_err(), "{bad}");
        }
        let good = format!("r={nonce}more,s=QSXCR+Q6sek8bf92,i=4096");
        assert!(login.respond(good.as_bytes()).is_ok());
        assert!(login.finish(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=").is_err());
    }
}
