//! `[server] listen`: the addresses to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::problems::all_of;

/// Value that stands for the sockets which the service manager passes.
const SYSTEMD: &str = "systemd";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// Host, as a name or an IP address, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// Sockets that the service manager passes (`LISTEN_FDS`).
    Systemd,
}

impl ListenAddress {
    /// Returns the IP address and port, unless it is a name.
    fn ip(&self) -> Option<SocketAddr> {
        let Self::Tcp(host, port) = self else { return None };
        host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, *port))
    }

    /// Returns true if only programs on this machine reach it.
    fn is_local(&self) -> bool {
        match self {
            Self::Tcp(host, _) => super::is_local(host) || self.ip().is_some_and(|ip| ip.ip().is_loopback()),
            Self::Unix(_) => true,
            // The service manager decides about its sockets, so they count as reachable from anywhere.
            Self::Systemd => false,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == SYSTEMD {
            return Ok(Self::Systemd);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let invalid = || {
            let forms = "\"127.0.0.1:8080\", \"localhost:8080\", \"[::1]:8080\", \"unix:/run/towpath.sock\" or \"systemd\"";
            format!("{text:?} is not an address such as {forms}")
        };
        // From the right, because an IPv6 address has colons of its own.
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port = port.parse().map_err(|_| invalid())?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(ip) => ip.parse::<Ipv6Addr>().map_err(|_| invalid())?.to_string(),
            None => host.to_owned(),
        };
        let is_name = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        // Names are resolved at the start. What can be none is a mistake that this message explains better than
        // a resolver.
        if host.is_empty() || !(is_name || host.parse::<IpAddr>().is_ok()) || host.starts_with('-') {
            return Err(invalid());
        }
        Ok(Self::Tcp(host, port))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Systemd => f.write_str(SYSTEMD),
        }
    }
}

/// Addresses to listen on: one at least.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "OneOrMany")]
pub struct ListenConfig(Vec<ListenAddress>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address such as \"127.0.0.1:8080\", or a list of addresses")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl TryFrom<OneOrMany> for ListenConfig {
    type Error = String;

    fn try_from(form: OneOrMany) -> Result<Self, String> {
        let texts = match form {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        };
        if texts.is_empty() {
            return Err("the list is empty: one address is needed".into());
        }
        all_of(texts.iter().map(|text| text.parse())).map(Self)
    }
}

impl From<SocketAddr> for ListenConfig {
    fn from(address: SocketAddr) -> Self {
        Self(vec![ListenAddress::Tcp(address.ip().to_string(), address.port())])
    }
}

impl From<Vec<ListenAddress>> for ListenConfig {
    fn from(addresses: Vec<ListenAddress>) -> Self {
        Self(addresses)
    }
}

impl ListenConfig {
    /// Returns the addresses.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.0
    }

    /// Resolves relative paths of sockets against the configuration's folder.
    pub(super) fn resolve(&mut self, folder: &std::path::Path) {
        for address in &mut self.0 {
            if let ListenAddress::Unix(path) = address {
                *path = folder.join(&path);
            }
        }
    }

    /// Returns true if an address stands for all addresses of this machine.
    pub fn is_unspecified(&self) -> bool {
        self.0.iter().filter_map(ListenAddress::ip).any(|address| address.ip().is_unspecified())
    }

    /// Returns true if only programs on this machine reach the server.
    pub fn is_loopback(&self) -> bool {
        self.0.iter().all(ListenAddress::is_local)
    }

    /// Returns host and port by which this machine reaches the server: of the first TCP address.
    ///
    /// An unspecified address (0.0.0.0, ::) is replaced by loopback.
    pub fn local_authority(&self) -> Option<String> {
        // Sockets of other kinds have no authority that a URL could name.
        let first = self.0.iter().find(|address| matches!(address, ListenAddress::Tcp(..)))?;
        let ip = first.ip().map(|address| match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port())
            }
            IpAddr::V6(ip) if ip.is_unspecified() => {
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port())
            }
            // A specific address is served on that address only, so loopback would not reach it.
            _ => address,
        });
        Some(ip.map_or_else(|| first.to_string(), |ip| ip.to_string()))
    }
}

impl JsonSchema for ListenConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ListenConfig".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^(systemd|unix:.+|.+:[0-9]{1,5})$";
        json_schema!({
            "anyOf": [
                { "type": "string", "pattern": pattern },
                { "type": "array", "items": { "type": "string", "pattern": pattern }, "minItems": 1 },
            ],
            "x-type": "address, or a list of them",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080", "localhost:8080"),
            ("[::1]:80", "[::1]:80"),
            ("unix:/run/towpath.sock", "unix:/run/towpath.sock"),
            ("systemd", "systemd"),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "8080",
            ":8080",
            "localhost",
            "localhost:x",
            "a b:1",
            "::1:8080:",
            "unix:",
            "[x]:1",
            "h:70000",
        ] {
            assert!(bad.parse::<ListenAddress>().unwrap_err().contains("is not an address"), "{bad}");
        }
    }

    #[test]
    fn one_address_or_several() {
        let listen = |value: &str| {
            let text = format!("[server]\nlisten = {value}\n");
            Config::parse(&text, Path::new("towpath.toml")).map_err(|e| e.to_string())
        };
        let config = listen("['0.0.0.0:81', 'unix:a.sock']").unwrap();
        assert!(config.server.listen.is_unspecified() && !config.server.listen.is_loopback());
        assert_eq!(config.local_url(), "http://127.0.0.1:81");
        let local = listen("['unix:a.sock', 'localhost:82']").unwrap();
        assert!(local.server.listen.is_loopback());
        assert_eq!(local.local_url(), "http://localhost:82");
        assert!(listen("'unix:a.sock'").unwrap_err().contains("base_url"));
        for bad in ["[]", "5", "['x']"] {
            assert!(listen(bad).unwrap_err().contains("line 2, column 10"), "{bad}");
        }
    }
}
