//! Limits of open connections: in all, and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::ServerConfig;
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

/// Reason why a request on an HTTP/2 connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StreamAdmissionError {
    /// As many requests are open on HTTP/2 connections as there may be.
    #[error("{0} requests are open over HTTP/2, the limit of [server] max_connections; retry later")]
    Total(usize),
    /// As many connections and requests are open from this address as there may be.
    #[error(
        "your address has {0} connections and HTTP/2 requests open, the limit of [server] max_connections_per_address"
    )]
    Address(usize),
}

/// Counts open connections, and refuses those beyond the limits.
pub(super) struct Admission {
    open: Arc<OpenConnections>,
}

struct OpenConnections {
    /// Settings with the limits and the trusted proxies.
    server: Arc<ArcSwap<ServerConfig>>,
    /// Connections that there are descriptors for.
    descriptors: usize,
    /// The gauge of the metrics is the count itself.
    total: Gauge,
    /// Requests on HTTP/2 connections.
    streams: AtomicUsize,
    /// By IPv4 address or IPv6 /64.
    // Locked when a connection is opened or closed, and never for a request over HTTP/1.1.
    by_network: Mutex<HashMap<IpAddr, usize>>,
}

/// Place of an open connection, given back when it is dropped.
pub(super) struct ConnectionPermit {
    open: Arc<OpenConnections>,
    network: Option<IpAddr>,
}

impl Admission {
    /// Counts connections within the settings, and within the `descriptors` that there are for them.
    pub(super) fn new(descriptors: usize, server: Arc<ArcSwap<ServerConfig>>, total: Gauge) -> Self {
        let (streams, by_network) = <(AtomicUsize, Mutex<_>)>::default();
        Self { open: Arc::new(OpenConnections { server, descriptors, total, streams, by_network }) }
    }

    /// Takes a place for a connection of `peer`.
    pub(super) fn admit(&self, peer: IpAddr) -> Result<ConnectionPermit, AdmissionError> {
        let open = &self.open;
        // Only the acceptor takes places, so the count cannot grow between these lines.
        let limit = open.max_connections();
        if usize::try_from(open.total.get()).is_ok_and(|total| total >= limit) {
            return Err(AdmissionError::Total(limit));
        }
        // Behind a proxy, all clients of the world have one address.
        let is_proxy = peer.to_canonical().is_loopback() || open.server.load().trusted_proxies.contains(peer);
        let network = (!is_proxy).then(|| client_network(peer));
        if let Some(network) = network {
            open.take_of(network).map_err(|count| AdmissionError::Address(count, network))?;
        }
        open.total.inc();
        Ok(ConnectionPermit { open: open.clone(), network })
    }
}

impl OpenConnections {
    fn max_connections(&self) -> usize {
        self.server.load().max_connections.map_or(self.descriptors, |limit| limit.min(self.descriptors))
    }

    /// Takes a place of a network, or returns how many it has if these are all.
    fn take_of(&self, network: IpAddr) -> Result<(), usize> {
        let mut by_network = self.by_network.lock();
        let count = by_network.entry(network).or_default();
        if *count >= self.server.load().max_connections_per_address {
            return Err(*count);
        }
        *count += 1;
        Ok(())
    }

    /// Gives a place of a network back.
    fn give_back(&self, network: IpAddr) {
        let mut by_network = self.by_network.lock();
        if let Some(count) = by_network.get_mut(&network) {
            *count -= 1;
            // An entry for each address that ever came would grow without limit.
            if *count == 0 {
                by_network.remove(&network);
            }
        }
    }
}

impl ConnectionPermit {
    /// Takes a place for a request on this connection, which others may follow before it ends (HTTP/2).
    ///
    /// A request that waits holds as much as a connection that waits. So both have the same limits.
    pub(super) fn admit_stream(&self) -> Result<StreamPermit, StreamAdmissionError> {
        let (open, network) = (self.open.clone(), self.network);
        if let Some(network) = network {
            open.take_of(network).map_err(StreamAdmissionError::Address)?;
        }
        // Made before the check, so that it gives both places back.
        let permit = StreamPermit { open, network };
        let limit = permit.open.max_connections();
        // Counted before the comparison, or two streams at once would both take the last place.
        match permit.open.streams.fetch_add(1, Ordering::Relaxed) {
            count if count >= limit => Err(StreamAdmissionError::Total(limit)),
            _ => Ok(permit),
        }
    }
}

/// Place of a request on an HTTP/2 connection, given back when it is dropped.
pub(super) struct StreamPermit {
    open: Arc<OpenConnections>,
    network: Option<IpAddr>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.open.streams.fetch_sub(1, Ordering::Relaxed);
        if let Some(network) = self.network {
            self.open.give_back(network);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        // In `drop`, so that a panic or an aborted task gives the place back, too.
        self.open.total.dec();
        if let Some(network) = self.network {
            self.open.give_back(network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: usize, per_address: usize) -> Admission {
        let trusted_proxies = vec!["10.0.0.0/8".to_owned()].try_into().unwrap();
        let server = ServerConfig {
            max_connections: Some(total),
            max_connections_per_address: per_address,
            trusted_proxies,
            ..ServerConfig::default()
        };
        Admission::new(100, Arc::new(ArcSwap::from_pointee(server)), Gauge::default())
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

    #[test]
    fn limits_that_change_hold_for_the_next_connection() {
        let admission = admission(1, 9);
        let set = |total: Option<usize>, per_address: usize| {
            let mut server = ServerConfig::clone(&admission.open.server.load());
            (server.max_connections, server.max_connections_per_address) = (total, per_address);
            admission.open.server.store(Arc::new(server));
        };
        let first = admit(&admission, "192.0.2.1").ok().unwrap();
        assert_eq!(admit(&admission, "192.0.2.1").err(), Some(AdmissionError::Total(1)));
        set(Some(1000), 1);
        let address = "192.0.2.1".parse().unwrap();
        assert_eq!(admit(&admission, "192.0.2.1").err(), Some(AdmissionError::Address(1, address)));
        assert!(first.admit_stream().is_err());
        set(None, 1000);
        let open: Vec<_> = (1..100).map(|_| admit(&admission, "192.0.2.1").ok().unwrap()).collect();
        // More than the descriptors are never open.
        assert_eq!(admit(&admission, "192.0.2.2").err(), Some(AdmissionError::Total(100)));
        set(Some(5), 1000);
        drop(open);
        assert!(admit(&admission, "192.0.2.2").is_ok());
    }

    #[test]
    fn requests_over_http2_have_the_limits_of_connections() {
        let admission = admission(4, 3);
        let connection = admit(&admission, "192.0.2.1").ok().unwrap();
        let first = connection.admit_stream().ok().unwrap();
        let _second = connection.admit_stream().ok().unwrap();
        assert_eq!(connection.admit_stream().err(), Some(StreamAdmissionError::Address(3)));
        assert_eq!(
            admit(&admission, "192.0.2.1").err(),
            Some(AdmissionError::Address(3, "192.0.2.1".parse().unwrap()))
        );
        drop(first);
        let _third = connection.admit_stream().ok().unwrap();
        // A proxy's requests have the total limit only.
        let proxy = admit(&admission, "10.1.2.3").ok().unwrap();
        let _open = [proxy.admit_stream().ok().unwrap(), proxy.admit_stream().ok().unwrap()];
        assert_eq!(proxy.admit_stream().err(), Some(StreamAdmissionError::Total(4)));
        assert_eq!(admission.open.streams.load(Ordering::Relaxed), 4);
    }
}
