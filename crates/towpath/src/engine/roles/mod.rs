//! Roles: what only one node may do at a time.
//!
//! Each role is held under a lease that the store keeps ([`Store::acquire_lease`]). Whatever is written in a role carries the lease's
//! condition ([`conditions`]): a node that was replaced and does not know it yet writes nothing. On a store that is the log
//! itself there is one process, which holds every role from the start.
//!
//! [`Store::acquire_lease`]: towpath_store::Store::acquire_lease

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use towpath_store::lease::{LeaseHandle, LeaseRow, key};
use towpath_store::{Precondition, Store, Table};

pub use towpath_store::lease::Lease;

use super::Engine;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Number of roles among which the sources are divided, so that nodes share the work.
// Part of what nodes agree on: with different numbers, two nodes would poll the same source.
const SHARDS: u32 = 16;

/// Returns the preconditions of every write under a lease.
pub fn conditions(lease: &Lease) -> Vec<Precondition> {
    lease.condition().into_iter().collect()
}

/// Checks the lease right before an effect that no precondition guards.
///
/// # Errors
///
/// [`StoreError::Lease`] where another node may hold the role by now.
pub fn check(lease: &Lease) -> Result<(), StoreError> {
    Ok(lease.check()?)
}

/// Pause before a role's task is restarted after a panic.
// A task that panics at once would otherwise fill the log and a core.
const PAUSE: Duration = Duration::from_secs(1);

/// Part of the sources, chosen by a hash of the feed's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    number: u32,
    of: u32,
}

impl Shard {
    /// All sources.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// All shards of an engine's sources.
    pub fn all(engine: &Engine) -> impl Iterator<Item = Self> {
        let of = if engine.is_shared() { SHARDS } else { 1 };
        (0..of).map(move |number| Self { number, of })
    }

    /// Returns true if a feed's source belongs to the shard. Every node computes the same.
    pub fn has(self, feed: &str) -> bool {
        // Not the standard library's hasher: its keys are random, so nodes would disagree.
        crc32fast::hash(feed.as_bytes()) % self.of == self.number
    }

    /// The name of the role.
    pub fn role(self) -> String {
        format!("sources/{}", self.number)
    }
}

/// Deliveries of the hub.
pub const HUB: &str = "hub";
/// Alerts about feeds, sources and sinks.
pub const ALERTS: &str = "alerts";
/// The XMPP component.
pub const XMPP: &str = "xmpp";
/// The chains of DiffDelta that no source's run makes, and the global one.
pub const DIFFDELTA: &str = "diffdelta";
/// Publishing what was scheduled.
pub const SCHEDULE: &str = "schedule";
/// The cluster's log: its feature level, snapshots of replicas, and what they make dispensable.
pub const LOG: &str = "log";
/// Sealing pages, retention, snapshots.
pub const UPKEEP: &str = "upkeep";

/// Returns true if no node held a role when its row was last written.
///
/// # Errors
///
/// [`StoreError`] if the role's row cannot be read.
pub async fn is_free(engine: &Engine, role: &str) -> Result<bool, StoreError> {
    let row = engine.store.get(Table::Leases, &key(role)).await?;
    Ok(row.and_then(|row| LeaseRow::decode(&row)).is_none_or(|row| row.holder == 0))
}

/// Returns the name of the role that keeps the static tree of this name.
pub fn export(tree: &str) -> String {
    format!("export/{tree}")
}

/// The roles of this node.
pub struct Roles {
    store: Arc<dyn Store>,
    counted: Counted,
}

/// Gauges of the held roles.
#[derive(Clone, Default)]
struct Counted {
    count: Gauge,
    held: Family<[(&'static str, String); 1], Gauge>,
}

impl Counted {
    /// Counts a role as held until this is dropped.
    fn hold(&self, role: &str) -> HeldGauge {
        let held = self.held.get_or_create_owned(&[("role", role.to_owned())]);
        held.set(1);
        self.count.inc();
        HeldGauge { count: self.count.clone(), held }
    }
}

struct HeldGauge {
    count: Gauge,
    held: Gauge,
}

impl Drop for HeldGauge {
    fn drop(&mut self) {
        self.held.set(0);
        self.count.dec();
    }
}

impl Roles {
    /// Returns the roles of an engine's store.
    pub fn new(engine: &Engine) -> Self {
        let (count, held) = (engine.metrics.roles.clone(), engine.metrics.held.clone());
        Self { store: engine.store.clone(), counted: Counted { count, held } }
    }

    /// Runs a task whenever this node holds the role.
    ///
    /// The task starts with the lease and is told to end when the lease is lost or `stop` is set. With the next lease
    /// it starts again, from what is stored. Returns after `stop`, and releases the role.
    pub async fn run_while_held<F, T>(&self, role: &str, stop: Stop, task: F)
    where
        F: Fn(Lease, Stop) -> T + Send,
        T: Future<Output = ()> + Send,
    {
        run(self.store.acquire_lease(role), &self.counted, stop, task).await;
    }
}

/// Runs a future to its end, and restarts it after a panic: a bug must not end a role's work for good.
pub async fn to_the_end<F, T>(role: &str, run: F)
where
    F: Fn() -> T,
    T: Future<Output = ()> + Send,
{
    // In the caller's task: to abort that aborts the work.
    while let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await {
        let text = panic.downcast_ref::<&str>().copied();
        let error = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
        tracing::error!(%role, error, "broke off, and is begun again");
        tokio::time::sleep(PAUSE).await;
    }
}

/// A task that runs while its role's lease is held.
pub type RoleTask = Box<dyn Fn(Lease, Stop) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs a task whenever this node holds the role, until `stop` is set, and restarts it after a panic.
pub async fn run_to_the_end(roles: Arc<Roles>, role: String, task: RoleTask, stop: Stop) {
    // The role may be lost and held again: the task starts anew each time.
    let task = Arc::new(task);
    let run = || {
        let (roles, role, task, stop) = (roles.clone(), role.clone(), task.clone(), stop.clone());
        async move { roles.run_while_held(&role, stop, |lease, stop| task(lease, stop)).await }
    };
    to_the_end(&role, run).await;
}

async fn run<F, T>(mut holding: LeaseHandle, counted: &Counted, stop: Stop, task: F)
where
    F: Fn(Lease, Stop) -> T + Send,
    T: Future<Output = ()> + Send,
{
    while !*stop.borrow() {
        let lease = tokio::select! {
            lease = holding.held() => lease,
            () = stopped(&stop) => return,
        };
        tracing::debug!(role = lease.role(), "held");
        let held = counted.hold(lease.role());
        let (end, ending) = watch::channel(false);
        let mut running = pin!(task(lease.clone(), ending));
        // Not only its loss: another epoch means that another node may have held the role in between.
        let mut lost = pin!(ends(&mut holding, &lease, &stop));
        let is_running = tokio::select! {
            () = &mut running => false,
            () = &mut lost => true,
        };
        end.send_replace(true);
        // A task without work ends by itself. The role is kept until it is lost.
        // A stop gives the role back after this, so the next holder finds the task's writes done.
        if is_running {
            running.await;
        } else {
            lost.await;
        }
        // After the task: the gauge says what still runs here.
        drop(held);
        tracing::debug!(role = lease.role(), "given up");
    }
}

/// Returns once the lease has changed or is lost, or `stop` is set.
async fn ends(holding: &mut LeaseHandle, lease: &Lease, stop: &Stop) {
    let lost = async {
        // Any change of the channel wakes this, also one that leaves the same lease in it.
        while holding.lease().as_ref() == Some(lease) {
            holding.changed().await;
        }
    };
    tokio::select! {
        () = lost => {}
        () = stopped(stop) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use towpath_store::lease::LeaseTerm;

    use super::*;

    fn lease(epoch: u64) -> Option<Lease> {
        Some(Lease::new(HUB, LeaseRow { holder: 1, epoch }, LeaseTerm::until(std::time::Instant::now())))
    }

    #[test]
    fn every_source_is_in_one_shard() {
        let shards: Vec<Shard> = (0..SHARDS).map(|number| Shard { number, of: SHARDS }).collect();
        for name in ["a", "kev", "news.example"] {
            assert_eq!(shards.iter().filter(|shard| shard.has(name)).count(), 1);
            assert!(Shard::ALL.has(name));
        }
    }

    #[tokio::test]
    async fn what_breaks_off_is_begun_again() {
        let begun = Arc::new(AtomicUsize::new(0));
        let run = || {
            let begun = begun.clone();
            async move { assert!(begun.fetch_add(1, Ordering::SeqCst) > 0, "the first time it breaks off") }
        };
        to_the_end(HUB, run).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_task_runs_while_its_role_is_held_and_begins_again() {
        let (held, holding) = watch::channel(None);
        let (stop, stopping) = watch::channel(false);
        let (begun, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let task = {
            let (begun, running) = (begun.clone(), running.clone());
            tokio::spawn(async move {
                let task = |_, stop: Stop| {
                    let (begun, running) = (begun.clone(), running.clone());
                    async move {
                        begun.fetch_add(1, Ordering::SeqCst);
                        running.fetch_add(1, Ordering::SeqCst);
                        stopped(&stop).await;
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                };
                run(LeaseHandle::new(holding), &Counted::default(), stopping, task).await;
            })
        };
        // The task has no event to wait for when nothing is expected to happen.
        let settle = || tokio::time::sleep(Duration::from_millis(20));
        let counts = || (begun.load(Ordering::SeqCst), running.load(Ordering::SeqCst));
        settle().await;
        assert_eq!(counts(), (0, 0));
        held.send_replace(lease(1));
        settle().await;
        assert_eq!(counts(), (1, 1));
        held.send_replace(None);
        settle().await;
        assert_eq!(counts(), (1, 0));
        // Another lease means that somebody else may have had the role in between.
        held.send_replace(lease(2));
        settle().await;
        held.send_replace(lease(3));
        settle().await;
        assert_eq!(counts(), (3, 1));
        stop.send_replace(true);
        task.await.unwrap();
        assert_eq!(counts(), (3, 0));
    }
}
