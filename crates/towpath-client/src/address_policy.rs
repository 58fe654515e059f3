//! Policy of network addresses, for everything that is fetched because a stranger said so.
//!
//! Public addresses are always open. Private ones are open as far as the operator named them: a source at
//! `http://10.0.0.5/` may lead on within `10.0.0.0/8`, and to no other private address. A publisher's redirect or link
//! opens nothing.
//!
//! Names are checked when a connection is made. The policy's own DNS resolver returns only addresses that are open, and
//! the client connects to no others. A name that changes its address after the check (DNS rebinding) gains nothing.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout};
use towpath_proto::address::{self, NotPublic, PrivateNetwork};
use url::{Host, Url};

/// Time after which a name that could not be resolved is resolved again. Until then its private address is refused.
const RETRY_UNRESOLVED: Duration = Duration::from_secs(5);

/// Private addresses to which fetches may lead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrivateFetches {
    /// None at all.
    None,
    /// Networks of addresses that the operator or user named.
    #[default]
    Named,
    /// All of them, whoever names them.
    All,
}

/// Addresses that may be connected to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressPolicy {
    /// Public addresses, and these private networks.
    Public(BTreeSet<PrivateNetwork>),
    /// Every address.
    Any,
}

impl AddressPolicy {
    /// Public addresses only.
    pub const PUBLIC: Self = Self::Public(BTreeSet::new());

    /// Checks an address.
    ///
    /// # Errors
    ///
    /// [`NotPublic`] with the kind of an address that is not open.
    pub fn check(&self, address: IpAddr) -> Result<(), NotPublic> {
        let Self::Public(networks) = self else { return Ok(()) };
        // Public addresses need no entry: the networks only add to them.
        let Err(reason) = address::check(address) else { return Ok(()) };
        let is_open = address::private_network(address).is_some_and(|network| networks.contains(&network));
        if is_open { Ok(()) } else { Err(reason) }
    }

    /// Checks the host of a URL if it is an IP address. Such a host never reaches the resolver.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_literal(&self, url: &Url) -> Result<(), NotPublic> {
        literal(url).map_or(Ok(()), |address| self.check(address))
    }

    /// Returns those of a name's addresses that are open.
    ///
    /// # Errors
    ///
    /// [`NotPublic`] if none is.
    pub fn filter(&self, resolved: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, NotPublic> {
        let mut refused = None;
        let mut allowed = Vec::with_capacity(resolved.len());
        for socket in resolved {
            match self.check(socket.ip()) {
                Ok(()) => allowed.push(socket),
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            // A name with both kinds of addresses is usable through those that are open.
            Some(reason) if allowed.is_empty() => Err(reason),
            _ => Ok(allowed),
        }
    }
}

/// A host is not connected to, because of its address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} is {reason}, and a publisher may lead to public addresses only")]
pub struct RefusedAddress {
    /// The host, as in the URL.
    pub host: String,
    /// Kind of its address.
    pub reason: NotPublic,
}

/// DNS resolver that returns the addresses that a policy permits.
#[derive(Debug, Clone)]
pub(super) struct PolicyResolver {
    policy: AddressPolicy,
    /// Hosts of the environment's proxies, which the operator has named.
    proxies: Arc<BTreeSet<String>>,
}

impl PolicyResolver {
    pub(super) fn new(policy: AddressPolicy) -> Self {
        Self { policy, proxies: Arc::new(proxy_hosts(|name| std::env::var(name).ok())) }
    }
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { policy, proxies } = self.clone();
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let policy = if proxies.contains(name.as_str()) { AddressPolicy::Any } else { policy };
            let refused = |reason| RefusedAddress { host: name.as_str().to_owned(), reason };
            let allowed: Addrs = Box::new(policy.filter(resolved).map_err(refused)?.into_iter());
            Ok(allowed)
        })
    }
}

/// Returns the hosts of the proxies that the environment names.
fn proxy_hosts(variable: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let host = |name: &str| {
        let value = variable(name)?;
        // As curl does, `proxy.example:3128` is taken for http.
        let url = Url::parse(&value).ok().filter(Url::has_host);
        let url = url.or_else(|| Url::parse(&format!("http://{value}")).ok())?;
        url.host_str().map(str::to_owned)
    };
    names.into_iter().filter_map(host).collect()
}

/// Private networks behind the names that the operator gave.
///
/// The first answer of the DNS decides for the life of the process. A public name that turns private later is a
/// rebinding, not what the operator named.
#[derive(Debug)]
pub(super) struct NamedNetworks {
    by_host: Mutex<HashMap<String, ResolvedName>>,
    lookup: Lookup,
}

/// Resolver of host names.
type Lookup = fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;

impl Default for NamedNetworks {
    fn default() -> Self {
        Self::resolved_by(|host| {
            Box::pin(async move {
                let addresses = tokio::net::lookup_host((host, 0)).await?;
                Ok(addresses.map(|socket| socket.ip()).collect())
            })
        })
    }
}

#[derive(Debug)]
enum ResolvedName {
    Networks(BTreeSet<PrivateNetwork>),
    Unresolved(Instant),
}

impl NamedNetworks {
    fn resolved_by(lookup: Lookup) -> Self {
        Self { by_host: Mutex::default(), lookup }
    }

    /// Returns the private networks that the host of a URL opens; `None` while its name cannot be resolved.
    pub(super) async fn of(&self, url: &Url, limit: Duration) -> Option<BTreeSet<PrivateNetwork>> {
        if let Some(address) = literal(url) {
            return Some(address::private_network(address).into_iter().collect());
        }
        let Some(host) = url.host_str() else { return Some(BTreeSet::new()) };
        match self.by_host.lock().get(host) {
            Some(ResolvedName::Networks(networks)) => return Some(networks.clone()),
            Some(ResolvedName::Unresolved(at)) if at.elapsed() < RETRY_UNRESOLVED => return None,
            _ => {}
        }
        let resolved = timeout(limit, (self.lookup)(host.to_owned())).await;
        let (name, networks) = match resolved {
            Ok(Ok(addresses)) => {
                let networks = networks_of(addresses.into_iter());
                (ResolvedName::Networks(networks.clone()), Some(networks))
            }
            // The request itself will report why.
            _ => (ResolvedName::Unresolved(Instant::now()), None),
        };
        self.by_host.lock().insert(host.to_owned(), name);
        networks
    }
}

/// URLs that the operator named, and the addresses that they open.
#[derive(Debug, Default)]
pub(super) struct NamedScope {
    pub(super) urls: Vec<Url>,
    opened: OnceCell<AddressPolicy>,
}

impl NamedScope {
    pub(super) const fn new(urls: Vec<Url>) -> Self {
        Self { urls, opened: OnceCell::const_new() }
    }

    /// Returns the addresses to which requests for these URLs may lead.
    pub(super) async fn policy(&self, networks: &NamedNetworks, limit: Duration) -> Cow<'_, AddressPolicy> {
        if let Some(opened) = self.opened.get() {
            return Cow::Borrowed(opened);
        }
        let (mut open, mut is_complete) = (BTreeSet::new(), true);
        for url in &self.urls {
            match networks.of(url, limit).await {
                Some(networks) => open.extend(networks),
                // A host that is not up yet must not stay closed for the life of the fetcher.
                None => is_complete = false,
            }
        }
        let policy = AddressPolicy::Public(open);
        if is_complete {
            // Two requests at once find the same.
            let _ = self.opened.set(policy.clone());
        }
        Cow::Owned(policy)
    }
}

/// Returns the private networks of a name's addresses; none if the name is public.
fn networks_of(addresses: impl Iterator<Item = IpAddr>) -> BTreeSet<PrivateNetwork> {
    let mut networks = BTreeSet::new();
    for address in addresses {
        match address::private_network(address) {
            // A name may not open a single odd address: a publisher's name would open the metadata service.
            Some(network) if !matches!(network, PrivateNetwork::Single(_)) => networks.insert(network),
            // A name with a public address is on the public Internet, whatever else it claims.
            _ => return BTreeSet::new(),
        };
    }
    networks
}

pub(super) fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn networks(addresses: &[&str]) -> BTreeSet<PrivateNetwork> {
        networks_of(addresses.iter().map(|text| ip(text)))
    }

    #[test]
    fn a_named_address_opens_its_own_network() {
        let policy = AddressPolicy::Public(networks(&["10.0.0.1", "::1"]));
        for open in ["8.8.8.8", "10.255.0.1", "::ffff:10.1.1.1", "127.0.0.1", "0.0.0.0", "::1"] {
            assert_eq!(policy.check(ip(open)), Ok(()), "{open}");
        }
        for closed in ["192.168.0.1", "172.16.0.1", "169.254.169.254", "fd00::1", "100.64.0.1", "198.18.0.1"]
        {
            assert!(policy.check(ip(closed)).is_err(), "{closed}");
        }
        assert_eq!(AddressPolicy::Any.check(ip("169.254.169.254")), Ok(()));
    }

    #[test]
    fn a_name_that_is_public_too_opens_nothing() {
        assert!(networks(&["10.0.0.1", "8.8.8.8"]).is_empty());
        // Cloud metadata services have a link-local address: only its literal opens it.
        assert!(networks(&["169.254.169.254"]).is_empty());
        assert_eq!(networks(&["127.0.0.1", "::1"]), BTreeSet::from([PrivateNetwork::Loopback]));
    }

    /// At boot a name may be known only seconds after the first request.
    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_not_resolved_yet_opens_its_network_later() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let networks = NamedNetworks::resolved_by(|_| {
            Box::pin(async {
                match ASKED.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(io::ErrorKind::NotFound.into()),
                    _ => Ok(vec![ip("127.0.0.1")]),
                }
            })
        });
        let urls = vec![Url::parse("http://later/").unwrap(), Url::parse("http://10.0.0.1/").unwrap()];
        let scope = NamedScope::new(urls);
        let limit = Duration::from_secs(1);
        let ten = address::private_network(ip("10.0.0.1")).unwrap();
        for _ in 0..2 {
            let unresolved = scope.policy(&networks, limit).await.into_owned();
            assert_eq!(unresolved, AddressPolicy::Public(BTreeSet::from([ten])));
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "not for each request");
        tokio::time::advance(RETRY_UNRESOLVED).await;
        for _ in 0..2 {
            let policy = scope.policy(&networks, limit).await.into_owned();
            assert_eq!(policy, AddressPolicy::Public(BTreeSet::from([PrivateNetwork::Loopback, ten])));
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn private_addresses_of_a_name_are_left_out() {
        let socket = |text: &str| SocketAddr::new(ip(text), 0);
        let public = AddressPolicy::PUBLIC;
        let mixed = public.filter(vec![socket("10.0.0.1"), socket("8.8.8.8"), socket("::1")]);
        assert_eq!(mixed, Ok(vec![socket("8.8.8.8")]));
        assert_eq!(public.filter(vec![socket("127.0.0.1")]), Err(NotPublic::Loopback));
    }

    #[test]
    fn proxies_of_the_environment_are_named_by_the_operator() {
        let hosts = proxy_hosts(|name| match name {
            "http_proxy" => Some("http://user:secret@proxy.corp:3128".into()),
            "HTTPS_PROXY" => Some("other.corp:3128".into()),
            _ => None,
        });
        assert_eq!(hosts, BTreeSet::from(["other.corp".to_owned(), "proxy.corp".to_owned()]));
    }
}
