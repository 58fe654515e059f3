//! Permits to fetch: so many at a time on this node, and a part of them for each host.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::{Host, Url};

use crate::config::local_path;

/// Part of the permits that one host may have: a host that does not answer keeps its permits for the whole timeout, and
/// must leave some for the others.
const SHARE: usize = 4;

/// Permits of a node.
pub struct FetchPermits {
    all: Arc<Semaphore>,
    /// Permits of a host.
    each: usize,
    hosts: Mutex<HashMap<Host, Weak<Semaphore>>>,
}

/// A permit to fetch, until it is dropped.
pub(crate) struct FetchPermit {
    _host: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl FetchPermits {
    /// Permits for so many fetches at a time.
    pub fn new(fetches: usize) -> Self {
        let fetches = fetches.max(1);
        let all = Arc::new(Semaphore::new(fetches));
        Self { all, each: fetches.div_ceil(SHARE), hosts: Mutex::default() }
    }

    /// Waits for a permit to fetch an address.
    pub(crate) async fn acquire(&self, address: &str) -> FetchPermit {
        // The host's first: who waits for it must keep nothing from others.
        let host = match self.of_host(address) {
            Some(host) => host.acquire_owned().await.ok(),
            None => None,
        };
        // Neither is ever closed.
        FetchPermit { _host: host, _all: self.all.clone().acquire_owned().await.ok() }
    }

    /// Returns the permits of an address's host; `None` for a file, which has none.
    fn of_host(&self, address: &str) -> Option<Arc<Semaphore>> {
        if local_path(address).is_some() {
            return None;
        }
        let host = Url::parse(address).ok()?.host()?.to_owned();
        let mut hosts = self.hosts.lock();
        if let Some(permits) = hosts.get(&host).and_then(Weak::upgrade) {
            return Some(permits);
        }
        // Those without a fetch, before the map grows: each is removed once for each time that it was added.
        if hosts.len() == hosts.capacity() {
            hosts.retain(|_, permits| permits.strong_count() > 0);
        }
        let permits = Arc::new(Semaphore::new(self.each));
        hosts.insert(host, Arc::downgrade(&permits));
        Some(permits)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_host_leaves_permits_to_the_others() {
        let permits = FetchPermits::new(8);
        let slow = [
            permits.acquire("http://slow.example/1").await,
            permits.acquire("http://slow.example:81/2").await,
        ];
        assert!(permits.acquire("https://SLOW.example/3").now_or_never().is_none());
        let others: Vec<FetchPermit> = futures_util::future::join_all(
            ["http://a.example/", "http://b.example/", "file.xml", "file.xml"]
                .map(|address| permits.acquire(address)),
        )
        .await;
        drop(slow);
        assert!(permits.acquire("https://slow.example/3").now_or_never().is_some());
        drop(others);
    }

    #[tokio::test]
    async fn hosts_without_a_fetch_are_forgotten() {
        let permits = FetchPermits::new(1);
        for number in 0..1000 {
            drop(permits.acquire(&format!("http://host-{number}.example/")).await);
        }
        assert!(permits.hosts.lock().len() < 10);
    }
}
