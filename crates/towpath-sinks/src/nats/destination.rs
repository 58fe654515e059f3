//! `nats://user:password@host:port,host/subject[?credentials=…&ca=…]`.

use std::fmt;
use std::path::PathBuf;

use async_nats::ServerAddr;

use crate::query::Query;

/// Part of a subject that stands for the name of the change's feed.
const FEED: &str = "{feed}";

/// A subject of NATS JetStream, and the servers.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsDestination {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) user: Option<(String, String)>,
    pub(super) credentials: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) tls: bool,
    subject: String,
    hosts: String,
}

impl NatsDestination {
    /// Parses an address. `tls://` instead of `nats://` asks for encryption. The subject may have `{feed}` in it.
    ///
    /// # Errors
    ///
    /// The message for a bad address. It shows nothing that may be a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("write nats://host/subject")?;
        let tls = scheme == "tls";
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // From the right: a password may have an @.
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (hosts, subject) = rest.split_once('/').ok_or("it has no subject; write nats://host/subject")?;
        let server = |(index, host): (usize, &str)| {
            let server = format!("{scheme}://{host}").parse::<ServerAddr>();
            server.map_err(|e| format!("its server {} is not a host and port: {e}", index + 1))
        };
        let servers = hosts.split(',').enumerate().map(server).collect::<Result<_, _>>()?;
        let is_valid = |token: &str| {
            !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || "*>".contains(c))
        };
        if !subject.split('.').all(is_valid) {
            return Err("its subject is not words with dots between them, such as changes.orders".into());
        }
        let mut query = Query::parse(query);
        let (credentials, ca) = (query.take("credentials"), query.take("ca"));
        query.finish("credentials, ca")?;
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        Ok(Self {
            servers,
            user: user.map(|user| {
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                (decode(name), decode(password))
            }),
            credentials: credentials.map(PathBuf::from),
            ca: ca.map(PathBuf::from),
            tls,
            subject: subject.to_owned(),
            hosts: format!("{scheme}://{hosts}"),
        })
    }

    /// Returns the subject of a feed's changes. What a token may not contain becomes `_`.
    pub(super) fn subject(&self, feed: &str) -> String {
        if !self.subject.contains(FEED) {
            return self.subject.clone();
        }
        let token = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        self.subject.replace(FEED, &feed.chars().map(token).collect::<String>())
    }
}

impl fmt::Display for NatsDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.hosts, self.subject)
    }
}

impl fmt::Debug for NatsDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsDestination({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_servers_and_a_subject() {
        let to = NatsDestination::parse("nats://me:h%40sh@a:1,b/changes.{feed}?credentials=/c").unwrap();
        assert_eq!(
            to.servers.iter().map(|server| (server.host(), server.port())).collect::<Vec<_>>(),
            [("a", 1), ("b", 4222)]
        );
        assert_eq!(to.user, Some(("me".into(), "h@sh".into())));
        assert_eq!(to.subject("http://x/a b"), "changes.http___x_a_b");
        assert_eq!(to.to_string(), "nats://a:1,b/changes.{feed}");
        assert_eq!(NatsDestination::parse("tls://h/s").unwrap().subject("f"), "s");
    }

    #[test]
    fn bad_addresses_do_not_show_the_password() {
        for bad in [
            "nats://u:secret@h",
            "nats://u:secret@h/",
            "nats://u:secret@h/a..b",
            "nats://u:secret@h/a.*",
            "nats://u:secret@h:port/a",
            "nats://u:secret@h/a?x=y",
        ] {
            let error = NatsDestination::parse(bad).unwrap_err();
            assert!(!error.contains("secret"), "{bad}: {error}");
        }
    }
}
