//! Where a cluster is, and how its log is to be made.

use std::path::PathBuf;

use async_nats::ServerAddr;
use towpath_store::StoreError;
use url::Url;

/// A cluster's address: `nats://user:password@host:port,host:port?name=towpath`.
///
/// `tls://` asks for TLS. All of these may be left out of the query: `name` is the name of the stream (and the
/// beginning of every subject) [towpath]; `replicas` on how many servers the stream is kept [3 in a cluster, 1 on a
/// single server]; `max_bytes` its greatest size [no limit]; `credentials` a file of credentials, `ca` a file of
/// certificates to trust. The last four matter to the node that makes the stream, or to connecting.
#[derive(Debug, Clone)]
pub struct Address {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) name: String,
    pub(crate) replicas: Option<usize>,
    pub(crate) max_bytes: Option<i64>,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) tls: bool,
    /// The address without what is secret.
    shown: String,
}

impl Address {
    /// Reads an address. The error's text does not repeat a password.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        parse(text).map_err(|reason| {
            let address = text.rsplit('@').next().unwrap_or_default().to_owned();
            StoreError::Cluster { address, reason }
        })
    }

    /// The address without what is secret.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// An error of this cluster.
    pub(crate) fn error(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Cluster { address: self.shown.clone(), reason: reason.into() }
    }
}

fn parse(text: &str) -> Result<Address, String> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme: nats://host:port is one")?;
    let tls = match scheme {
        "nats" => false,
        "tls" => true,
        other => return Err(format!("its scheme is {other}, and nats or tls is due")),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
    let hosts = hosts.trim_end_matches('/');
    let server = |host: &str| {
        let server = format!("{scheme}://{host}").parse::<ServerAddr>();
        server.map_err(|e| format!("{host} is no host and port: {e}"))
    };
    let servers = hosts.split(',').map(server).collect::<Result<_, _>>()?;
    let user = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        (decode(name), decode(password))
    });
    let mut address = Address {
        servers,
        user,
        name: "towpath".into(),
        replicas: None,
        max_bytes: None,
        credentials: None,
        ca: None,
        tls,
        shown: format!("{scheme}://{hosts}"),
    };
    let query = Url::parse(&format!("x:///?{query}")).map_err(|e| e.to_string())?;
    for (key, value) in query.query_pairs() {
        address.set(&key, &value)?;
    }
    Ok(address)
}

impl Address {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || {
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("{key} is {value:?}, and a number from 1 is due"))
        };
        match key {
            "name" => {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if value.is_empty() || !value.chars().all(plain) {
                    return Err(format!("name is {value:?}, and letters, digits, - and _ are due"));
                }
                self.name = value.into();
            }
            "replicas" => self.replicas = Some(number()? as usize),
            "max_bytes" => {
                let bytes = value.parse::<i64>().ok().filter(|bytes| *bytes > 0);
                let bytes =
                    bytes.ok_or_else(|| format!("max_bytes is {value:?}, and a number from 1 is due"))?;
                self.max_bytes = Some(bytes);
            }
            "credentials" => self.credentials = Some(value.into()),
            "ca" => self.ca = Some(value.into()),
            other => return Err(format!("{other:?} in its query is unknown")),
        }
        Ok(())
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_servers_a_user_and_options() {
        let address = "nats://u:p%40ss@h1:4222,h2:4223/?name=a-b&replicas=1&max_bytes=5000&credentials=/c";
        let address = Address::parse(address).unwrap();
        assert_eq!(
            address.servers.iter().map(|s| (s.host(), s.port())).collect::<Vec<_>>(),
            [("h1", 4222), ("h2", 4223)]
        );
        assert_eq!(address.user, Some(("u".into(), "p@ss".into())));
        assert_eq!(
            (address.name.as_str(), address.replicas, address.max_bytes),
            ("a-b", Some(1), Some(5000))
        );
        assert_eq!(address.credentials.as_deref(), Some("/c".as_ref()));
        let plain = Address::parse("tls://h").unwrap();
        assert_eq!((plain.name.as_str(), plain.tls, plain.servers[0].port()), ("towpath", true, 4222));
    }

    #[test]
    fn a_bad_address_says_why_and_keeps_the_password() {
        for bad in [
            "h:1",
            "http://u:secret@h",
            "nats://u:secret@h:port",
            "nats://u:secret@h?replicas=0",
            "nats://u:secret@h?max_bytes=-1",
            "nats://u:secret@h?name=a.b",
            "nats://u:secret@h?x=y",
        ] {
            let error = Address::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(!Address::parse("nats://u:secret@h").unwrap().as_str().contains("secret"));
    }
}
