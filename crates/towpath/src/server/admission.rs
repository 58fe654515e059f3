//! Limits of open connections: in all, and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::{ServerConfig, TrustedProxies};
use crate::engine::client_address::client_network;

/// Reason why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AdmissionError {
    /// As many connections are open as there may be.
    #[error("{0} connections are open, the limit of [server] max_connections")]
    Total(usize),
    /// As many connections are open from this address as there may be.
    #[error("{1} has {0} connections open, the limit of [server] max_connections_per_address")]
    Address(usize, IpAddr),
}

/// Counts open connections, and refuses those beyond the limits.
pub(super) struct Admission {
    max_connections: usize,
    max_per_address: usize,
    proxies: TrustedProxies,
    open: Arc<OpenConnections>,
}

struct OpenConnections {
    /// The gauge of the metrics is the count itself.
    total: Gauge,
    /// By IPv4 address or IPv6 /64.
    // Locked when a connection is opened or closed, never for a request.
    by_network: Mutex<HashMap<IpAddr, usize>>,
}

/// Place of an open connection, given back when it is dropped.
pub(super) struct ConnectionPermit {
    open: Arc<OpenConnections>,
    network: Option<IpAddr>,
}

impl Admission {
    pub(super) fn new(max_connections: usize, server: &ServerConfig, total: Gauge) -> Self {
        let open = Arc::new(OpenConnections { total, by_network: Mutex::default() });
        let (max_per_address, proxies) = (server.max_connections_per_address, server.trusted_proxies.clone());
        Self { max_connections, max_per_address, proxies, open }
    }

    /// Takes a place for a connection of `peer`.
    pub(super) fn admit(&self, peer: IpAddr) -> Result<ConnectionPermit, AdmissionError> {
        // Only the acceptor takes places, so the count cannot grow between these lines.
        if usize::try_from(self.open.total.get()).is_ok_and(|open| open >= self.max_connections) {
            return Err(AdmissionError::Total(self.max_connections));
        }
        // Behind a proxy, all clients of the world have one address.
        let is_proxy = peer.to_canonical().is_loopback() || self.proxies.contains(peer);
        let network = (!is_proxy).then(|| client_network(peer));
        if let Some(network) = network {
            let mut by_network = self.open.by_network.lock();
            let count = by_network.entry(network).or_default();
            if *count >= self.max_per_address {
                return Err(AdmissionError::Address(*count, network));
            }
            *count += 1;
        }
        self.open.total.inc();
        Ok(ConnectionPermit { open: self.open.clone(), network })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.total.dec();
        let Some(network) = self.network else { return };
        let mut by_network = self.open.by_network.lock();
        if let Some(count) = by_network.get_mut(&network) {
            *count -= 1;
            // An entry for each address that ever came would grow without limit.
            if *count == 0 {
                by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: usize, per_address: usize) -> Admission {
        let trusted_proxies = vec!["10.0.0.0/8".to_owned()].try_into().unwrap();
        let server = ServerConfig {
            max_connections_per_address: per_address,
            trusted_proxies,
            ..ServerConfig::default()
        };
        Admission::new(total, &server, Gauge::default())
    }

    fn admit(admission: &Admission, peer: &str) -> Result<ConnectionPermit, AdmissionError> {
        admission.admit(peer.parse().unwrap())
    }

    #[test]
    fn a_place_is_free_again_after_the_connection() {
        let admission = admission(2, 9);
        let first = admit(&admission, "192.0.2.1").ok().unwrap();
        let _second = admit(&admission, "127.0.0.1").ok().unwrap();
        assert_eq!(admit(&admission, "192.0.2.2").err(), Some(AdmissionError::Total(2)));
        drop(first);
        assert!(admit(&admission, "192.0.2.2").is_ok());
        assert!(admission.open.by_network.lock().is_empty());
    }

    #[test]
    fn an_address_has_a_limit_and_a_proxy_has_none() {
        let admission = admission(100, 2);
        let mut open = Vec::new();
        // Spellings of one IPv4 address, and two addresses of one subscriber.
        for (peers, shown) in [
            (["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"], "192.0.2.1"),
            (["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:0:1::"], "2001:db8::"),
        ] {
            let [first, second, third] = peers.map(|peer| admit(&admission, peer));
            open.extend([first.ok().unwrap(), second.ok().unwrap()]);
            assert_eq!(third.err(), Some(AdmissionError::Address(2, shown.parse().unwrap())));
        }
        for unlimited in ["::1", "127.0.0.1", "10.1.2.3"] {
            open.extend((0..20).map(|_| admit(&admission, unlimited).ok().unwrap()));
        }
        assert!(admit(&admission, "2001:db8:0:1::1").is_ok());
        assert_eq!(admission.open.by_network.lock().len(), 2);
    }
}
