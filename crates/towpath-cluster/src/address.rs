//! Address of a cluster, with the options of its log.

use std::path::PathBuf;

use async_nats::ServerAddr;
use url::Url;

use crate::ClusterError;

/// Address of a cluster: `nats://user:password@host:port,host:port?name=towpath`.
///
/// `tls://` requires TLS. Every parameter of the query is optional:
///
/// | parameter | meaning | default |
/// |---|---|---|
/// | `name` | name of the stream, and prefix of every subject | `towpath` |
/// | `replicas` | number of servers that store the stream | 3 in a cluster, 1 on a single server |
/// | `max_bytes` | maximum size of the stream | no limit |
/// | `credentials` | file with NATS credentials | none |
/// | `ca` | file with certificates to trust | the system's |
///
/// `replicas` and `max_bytes` count only for the node that creates the stream.
///
/// ```
/// use towpath_cluster::ClusterAddress;
///
/// let address = ClusterAddress::parse("nats://user:secret@nats-1:4222,nats-2:4222?name=feeds")?;
/// assert_eq!(address.as_str(), "nats://nats-1:4222,nats-2:4222");
/// # Ok::<(), towpath_cluster::ClusterError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ClusterAddress {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) name: String,
    pub(crate) replicas: Option<usize>,
    pub(crate) max_bytes: Option<i64>,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) tls: bool,
    /// Address without user, password and query.
    redacted: String,
}

impl ClusterAddress {
    /// Parses an address.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Address`], which shows nothing that may be a password: where a character is missing, all may be one.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        parse(text).map_err(|reason| ClusterError::Address { reason })
    }

    /// Returns the address without user, password and query.
    pub fn as_str(&self) -> &str {
        &self.redacted
    }

    /// Returns an error of this cluster.
    pub(crate) fn error(&self, reason: impl Into<String>) -> ClusterError {
        ClusterError::Unusable { address: self.redacted.clone(), reason: reason.into() }
    }
}

fn parse(text: &str) -> Result<ClusterAddress, String> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme; write nats://host:port")?;
    let tls = match scheme {
        "nats" => false,
        "tls" => true,
        _ => return Err("its scheme is another; use nats or tls".into()),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // From the right: a password may contain an @.
    let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
    let hosts = hosts.trim_end_matches('/');
    let server = |(index, host): (usize, &str)| {
        let server = format!("{scheme}://{host}").parse::<ServerAddr>();
        server.map_err(|e| format!("its server {} is not a host and port: {e}", index + 1))
    };
    let servers = hosts.split(',').enumerate().map(server).collect::<Result<_, _>>()?;
    let user = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        // Percent-encoding lets names and passwords contain : and @.
        (decode(name), decode(password))
    });
    let mut address = ClusterAddress {
        servers,
        user,
        name: "towpath".into(),
        replicas: None,
        max_bytes: None,
        credentials: None,
        ca: None,
        tls,
        redacted: format!("{scheme}://{hosts}"),
    };
    if query.contains('@') {
        return Err("its query has an @; write ? and @ of a password as %3F and %40".into());
    }
    // Only the query goes through the URL parser, which would refuse a list of hosts.
    let query = Url::parse(&format!("x:///?{query}")).map_err(|e| e.to_string())?;
    for (key, value) in query.query_pairs() {
        address.set(&key, &value)?;
    }
    Ok(address)
}

impl ClusterAddress {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = || {
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("{key} is {value:?}; use a number from 1"))
        };
        match key {
            "name" => {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if value.is_empty() || !value.chars().all(plain) {
                    return Err(format!("name is {value:?}; use letters, digits, - and _"));
                }
                self.name = value.into();
            }
            "replicas" => self.replicas = Some(number()? as usize),
            "max_bytes" => {
                let bytes = value.parse::<i64>().ok().filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or_else(|| format!("max_bytes is {value:?}; use a number from 1"))?;
                self.max_bytes = Some(bytes);
            }
            "credentials" => self.credentials = Some(value.into()),
            "ca" => self.ca = Some(value.into()),
            other => return Err(format!("the query parameter {other:?} is unknown")),
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
        let address = ClusterAddress::parse(address).unwrap();
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
        let plain = ClusterAddress::parse("tls://h").unwrap();
        assert_eq!((plain.name.as_str(), plain.tls, plain.servers[0].port()), ("towpath", true, 4222));
    }

    #[test]
    fn errors_of_bad_addresses_do_not_contain_the_password() {
        for bad in [
            "h:1",
            "http://u:secret@h",
            "nats://u:secret@h:port",
            "nats://u:secret@h?replicas=0",
            "nats://u:secret@h?max_bytes=-1",
            "nats://u:secret@h?name=a.b",
            "nats://u:secret@h?x=y",
            "nats://u:secret",
            "nats://u:secret.h:4222",
            "nats://u:se?secret@h",
            "nats//u:secret@h",
            "nats://h,u:secret",
            "u:secret://h",
        ] {
            let error = ClusterAddress::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(!ClusterAddress::parse("nats://u:secret@h").unwrap().as_str().contains("secret"));
    }
}
