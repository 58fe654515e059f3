//! URLs of the server.

use url::Url;

use super::{Config, ServerConfig};

impl Config {
    /// Public URL, without a trailing slash.
    pub fn base_url(&self) -> String {
        self.server.base_url.clone().unwrap_or_else(|| self.local_url())
    }

    /// URL of the server on this machine. An unspecified address (0.0.0.0, ::) is replaced by loopback.
    ///
    /// With TLS it is the public URL, if there is one: its host is the one that the certificate names.
    pub fn local_url(&self) -> String {
        let scheme = match (&self.server.tls, &self.server.base_url) {
            (Some(_), Some(base)) => return base.clone(),
            (Some(_), None) => "https",
            (None, _) => "http",
        };
        match self.server.listen.local_authority() {
            Some(authority) => format!("{scheme}://{authority}"),
            // Validation has made sure that there is one.
            None => self.server.base_url.clone().unwrap_or_default(),
        }
    }
}

impl ServerConfig {
    /// Returns true if the configured base URL leads to this machine only, as the default does.
    pub fn is_local(&self) -> bool {
        let url = self.base_url.as_deref().and_then(|base| Url::parse(base).ok());
        url.is_none_or(|url| url.host_str().is_none_or(is_local))
    }
}

/// Returns true for a host of this machine, with or without a port.
pub fn is_local(host: &str) -> bool {
    // An IPv6 address is in brackets (RFC 3986, section 3.2.2); elsewhere a colon begins the port.
    let name = match (host.strip_prefix('['), host.split_once(':')) {
        (Some(rest), _) => rest.split(']').next().unwrap_or_default(),
        (None, Some((name, _))) => name,
        (None, None) => host,
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
