//! Where the server is reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Config;

impl Config {
    /// The address that readers use, without a slash at its end.
    pub fn base_url(&self) -> String {
        self.server.base_url.clone().unwrap_or_else(|| self.local_url())
    }

    /// The address at which this machine reaches the server: nobody can ask at one that stands for all.
    pub fn local_url(&self) -> String {
        let listen = self.server.listen;
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("http://{}", SocketAddr::new(ip, listen.port()))
    }
}
