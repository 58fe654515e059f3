//! Rate limit of expensive requests, by client (generic cell rate algorithm).
//!
//! A client's account is one number: the time at which all that it spent will be paid off at the sustained rate. A
//! request is admitted if that time is not further ahead than the burst, with the request's least cost. The whole cost
//! is known afterwards and charged then, so a request is never refused half-way.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::HeaderMap;
use quick_cache::sync::Cache;

use crate::config::{RateLimitConfig, TrustedProxies};
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::client_address::{client_address, client_network};

/// Most clients whose accounts are kept. Beyond it, clients that send little are forgotten first.
// About 150 bytes each. An attacker with more addresses than this has a limit of its own for each anyway.
const MAX_CLIENTS: usize = 50_000;

/// Sender of a request, as far as limits are concerned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Requester {
    /// The holder of a token, by the token's digest.
    Token(String),
    /// An IPv4 address, or the /64 of an IPv6 address.
    Network(IpAddr),
}

impl Requester {
    /// Returns the client's network, behind trusted proxies; `None` for this machine.
    ///
    /// Its own programs are not limited. A proxy here that is not trusted has its address, too: one account for all of
    /// the proxy's clients would let one of them shut the others out.
    pub(crate) fn network(peer: SocketAddr, headers: &HeaderMap, proxies: &TrustedProxies) -> Option<Self> {
        let client = client_address(peer, headers, proxies);
        let is_local = client.is_loopback() && client == peer.ip().to_canonical();
        (!is_local).then(|| Self::Network(client_network(client)))
    }
}

/// Accounts of all clients.
pub(crate) struct RateLimit {
    /// Rates in effect. Reading the configuration again replaces them, and the debts stay.
    rates: ArcSwap<Rates>,
    start: Instant,
    /// Time at which each client's debt is paid off, in nanoseconds after `start`.
    accounts: Cache<Requester, Arc<AtomicU64>>,
}

/// Rates of a configuration, in nanoseconds.
struct Rates {
    /// Time in which a point is paid off; 0 if there is no limit.
    point: u64,
    /// Time in which a burst is paid off.
    burst: u64,
    config: RateLimitConfig,
}

impl Rates {
    fn new(config: RateLimitConfig) -> Self {
        // A rate of 0 means no limit. The burst does not overflow: both factors are below 2^32.
        let point = 1_000_000_000_u64.checked_div(config.per_second.into()).unwrap_or_default();
        Self { point, burst: point * u64::from(config.burst), config }
    }
}

impl RateLimit {
    /// Returns the accounts of a server.
    pub(crate) fn new(config: RateLimitConfig) -> Self {
        let rates = ArcSwap::from_pointee(Rates::new(config));
        Self { rates, start: Instant::now(), accounts: Cache::new(MAX_CLIENTS) }
    }

    /// Replaces the rates.
    pub(crate) fn set(&self, config: RateLimitConfig) {
        self.rates.store(Arc::new(Rates::new(config)));
    }

    /// Returns the client's account if it may spend so many points now.
    ///
    /// # Errors
    ///
    /// A client that has spent too much.
    pub(crate) fn admit(&self, requester: Requester, points: u64) -> Result<Account<'_>, RouteError> {
        self.admit_at(requester, points, self.now())
    }

    fn admit_at(&self, requester: Requester, points: u64, now: u64) -> Result<Account<'_>, RouteError> {
        let rates = self.rates.load();
        if rates.point == 0 {
            return Ok(Account { limit: self, paid_off: Arc::default() });
        }
        let paid_off = match self.accounts.get(&requester) {
            Some(paid_off) => paid_off,
            None => {
                let paid_off = Arc::<AtomicU64>::default();
                // Two first requests at once may make two accounts; then one of them is free.
                self.accounts.insert(requester, paid_off.clone());
                paid_off
            }
        };
        // Nothing is taken here, since the cost is not known yet. Requests at the same time may all be admitted, and
        // the debt of all is charged.
        let debt = paid_off.load(Ordering::Relaxed).saturating_sub(now);
        let wanted = debt.saturating_add(points.saturating_mul(rates.point));
        if wanted <= rates.burst {
            return Ok(Account { limit: self, paid_off });
        }
        let retry_after = Duration::from_nanos(wanted - rates.burst);
        // Rounded up: a client that waits so many seconds is admitted.
        let retry_after = Duration::from_secs(retry_after.as_secs() + 1);
        let RateLimitConfig { per_second, burst } = rates.config;
        Err(RouteError::new(
            RouteErrorKind::TooManyRequests { retry_after },
            format!(
                "rate limit: this client has used its {burst} points, and gets {per_second} a second; retry after {} s \
                 ([server.rate_limit])",
                retry_after.as_secs()
            ),
        ))
    }

    /// Charges the receiver of a stream.
    pub(crate) fn charge_stream(&self, account: &StreamAccount, points: u64) {
        Account { limit: self, paid_off: account.0.clone() }.charge(points);
    }

    fn now(&self) -> u64 {
        // 64 bits of nanoseconds are 584 years.
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Account of a client whose answer costs while it is made, after the request was settled.
#[derive(Debug, Clone)]
pub(crate) struct StreamAccount(Arc<AtomicU64>);

/// Account of a client that was admitted.
pub(crate) struct Account<'a> {
    limit: &'a RateLimit,
    paid_off: Arc<AtomicU64>,
}

impl Account<'_> {
    /// Returns the account for what a stream will send.
    pub(crate) fn of_stream(&self) -> StreamAccount {
        StreamAccount(self.paid_off.clone())
    }

    /// Charges points.
    pub(crate) fn charge(&self, points: u64) {
        self.charge_at(points, self.limit.now());
    }

    fn charge_at(&self, points: u64, now: u64) {
        let rates = self.limit.rates.load();
        let cost = points.saturating_mul(rates.point);
        // Many requests at once may go beyond the burst. At twice the burst the debt ends, so the wait is bounded.
        let most = now.saturating_add(rates.burst.saturating_mul(2));
        let charged = |paid_off: u64| Some(paid_off.max(now).saturating_add(cost).min(most));
        // The closure always returns a value, so this cannot fail.
        let _ = self.paid_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn client(ip: &str) -> Requester {
        let peer = SocketAddr::new(ip.parse().unwrap(), 1);
        Requester::network(peer, &HeaderMap::new(), &TrustedProxies::default()).unwrap()
    }

    fn limit() -> RateLimit {
        RateLimit::new(RateLimitConfig { per_second: 10, burst: 100 })
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let limit = limit();
        let spend = |points, now| {
            limit.admit_at(client("192.0.2.1"), points, now).map(|account| account.charge_at(points, now))
        };
        for _ in 0..10 {
            spend(10, 0).unwrap();
        }
        let refused = spend(1, 0).unwrap_err();
        let RouteErrorKind::TooManyRequests { retry_after } = refused.kind else { panic!("{refused:?}") };
        assert!(refused.detail.contains("100 points") && refused.detail.contains("[server.rate_limit]"));
        assert!(spend(10, retry_after.as_secs() * SECOND).is_ok());
        assert!(spend(10, retry_after.as_secs() * SECOND).is_err());
        assert!(limit.admit_at(client("192.0.2.2"), 1, 0).is_ok(), "another client");
    }

    #[test]
    fn debt_is_bounded() {
        let limit = limit();
        limit.admit_at(client("192.0.2.1"), 1, 0).unwrap().charge_at(1_000_000, 0);
        // A burst takes 10 s to pay off, and the debt is at most two.
        assert!(limit.admit_at(client("192.0.2.1"), 1, 9 * SECOND).is_err());
        assert!(limit.admit_at(client("192.0.2.1"), 1, 11 * SECOND).is_ok());
    }

    #[test]
    fn clients() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::2"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        let proxies: TrustedProxies = vec!["127.0.0.1".to_owned()].try_into().unwrap();
        let local = |headers: HeaderMap| Requester::network(([127, 0, 0, 1], 1).into(), &headers, &proxies);
        assert_eq!(local(HeaderMap::new()), None);
        let through = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-forwarded-for"),
            "127.0.0.2".parse().unwrap(),
        )]);
        assert_eq!(local(through), Some(Requester::Network([127, 0, 0, 2].into())));
    }

    #[test]
    fn rates_are_replaced_and_debts_stay() {
        let limit = limit();
        let spend = |points| {
            limit.admit_at(client("192.0.2.1"), points, 0).map(|account| account.charge_at(points, 0))
        };
        spend(100).unwrap();
        spend(1).unwrap_err();
        limit.set(RateLimitConfig { per_second: 10, burst: 150 });
        spend(50).unwrap();
        spend(1).unwrap_err();
        limit.set(RateLimitConfig { per_second: 0, burst: 0 });
        spend(1_000_000).unwrap();
    }

    #[test]
    fn clients_cannot_fill_the_memory() {
        let limit = limit();
        for n in 0..2 * MAX_CLIENTS as u32 {
            limit
                .admit_at(Requester::Network(std::net::Ipv4Addr::from_bits(n).into()), 1, 0)
                .unwrap()
                .charge_at(1, 0);
        }
        assert!(limit.accounts.len() <= MAX_CLIENTS);
    }
}
