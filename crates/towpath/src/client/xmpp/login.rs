//! Logging in (RFC 6120, section 6): SCRAM, or the password itself where nobody can listen.

use sasl::client::Mechanism;
use sasl::client::mechanisms::{Plain, Scram};
use sasl::common::ChannelBinding;
use sasl::common::scram::{Sha1, Sha256};
use towpath_proto::push::xmpp::session::Authenticate;

/// The most rounds that a server may ask for: each takes time.
const MAX_ROUNDS: u32 = 1_000_000;

/// An account's name and password.
pub(super) struct Login {
    user: String,
    password: String,
    mechanism: Option<Box<dyn Mechanism + Send>>,
    /// What the server's own random text must begin with (RFC 5802, section 5.1).
    nonce: Option<String>,
    /// The server has shown who it is before it said that it is content.
    is_shown: bool,
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        Self { user, password, mechanism: None, nonce: None, is_shown: false }
    }

    /// The strongest of the mechanisms that are offered.
    fn choose(&self, offered: &[String], is_safe: bool) -> Option<Box<dyn Mechanism + Send>> {
        let has = |name: &str| offered.iter().any(|offered| offered == name);
        // RFC 5802, section 5.1.
        let user = self.user.replace('=', "=3D").replace(',', "=2C");
        let password = self.password.as_str();
        if has("SCRAM-SHA-256") {
            return Some(Box::new(Scram::<Sha256>::new(user, password, ChannelBinding::None).ok()?));
        }
        if has("SCRAM-SHA-1") {
            return Some(Box::new(Scram::<Sha1>::new(user, password, ChannelBinding::None).ok()?));
        }
        let plain = || Box::new(Plain::new(self.user.as_str(), password));
        (has("PLAIN") && is_safe).then(|| plain() as Box<dyn Mechanism + Send>)
    }

    /// What the library leaves unlooked at in the server's first message.
    fn check_challenge(&self, challenge: &str) -> Result<(), String> {
        let value = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name));
        let nonce = self.nonce.as_deref().unwrap_or_default();
        if !value("r=").is_some_and(|own| own.len() > nonce.len() && own.starts_with(nonce)) {
            return Err("its nonce is not made from ours".into());
        }
        match value("i=").and_then(|rounds| rounds.parse::<u32>().ok()) {
            Some(1..=MAX_ROUNDS) => Ok(()),
            _ => Err("it asks for no number of rounds that makes sense".into()),
        }
    }
}

impl Authenticate for Login {
    fn begin(&mut self, offered: &[String], is_safe: bool) -> Option<(String, Vec<u8>)> {
        let mut mechanism = self.choose(offered, is_safe)?;
        let (name, initial) = (mechanism.name().to_owned(), mechanism.initial());
        let text = String::from_utf8_lossy(&initial);
        self.nonce = text.split(',').find_map(|part| part.strip_prefix("r=")).map(str::to_owned);
        (self.mechanism, self.is_shown) = (Some(mechanism), false);
        Some((name, initial))
    }

    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String> {
        let text = String::from_utf8_lossy(challenge);
        if text.starts_with("v=") {
            self.finish(challenge)?;
            self.is_shown = true;
            return Ok(Vec::new());
        }
        self.check_challenge(&text)?;
        let mechanism = self.mechanism.as_mut().ok_or("nothing was begun")?;
        mechanism.response(challenge).map_err(|e| e.to_string())
    }

    fn finish(&mut self, data: &[u8]) -> Result<(), String> {
        if self.is_shown && data.is_empty() {
            return Ok(());
        }
        let mechanism = self.mechanism.as_mut().ok_or("nothing was begun")?;
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
    fn the_strongest_is_chosen_and_the_password_is_not_sent_in_the_open() {
        let mut login = Login::new("al,ice", "word");
        let mut name = |names: &[&str], is_safe| login.begin(&offered(names), is_safe).map(|(name, _)| name);
        assert_eq!(name(&["PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"], false).unwrap(), "SCRAM-SHA-256");
        assert_eq!(name(&["PLAIN", "SCRAM-SHA-1"], true).unwrap(), "SCRAM-SHA-1");
        assert_eq!(name(&["PLAIN", "X"], true).unwrap(), "PLAIN");
        assert_eq!(name(&["PLAIN"], false), None);
        let (_, initial) = login.begin(&offered(&["SCRAM-SHA-1"]), false).unwrap();
        assert!(initial.starts_with(b"n,,n=al=2Cice,r="));
    }

    /// RFC 5802, 5.1: "The client MUST verify that the initial part of the nonce used in subsequent messages is the
    /// same as the nonce it initially specified".
    #[test]
    fn a_server_that_makes_no_sense_is_not_answered() {
        let mut login = Login::new("alice", "word");
        let (_, initial) = login.begin(&offered(&["SCRAM-SHA-256"]), true).unwrap();
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
