//! State that all parts of a simulation share: random choices, faults in force, the nodes' addresses, the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::bug::Bug;
use crate::gate::Verdict;
use crate::ledger::Ledger;
use crate::network::Address;
use crate::trace;

/// Faults in force.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    /// Connections of a hundred that are cut somewhere.
    pub cut: u64,
    /// Connections of a hundred that carry bytes slowly.
    pub slow: u64,
    /// Requests of a hundred that are sent twice.
    pub twice: u64,
    /// Messages of a hundred that the receiver refuses, and as many that it takes without saying so.
    pub refused: u64,
    /// Longest delay of a piece of bytes, in milliseconds.
    pub delay: u64,
    /// Longest time of a sync, in milliseconds.
    pub sync: u64,
    /// Syncs of a thousand that fail.
    pub failing_sync: u64,
    /// Pairs of hosts that reach each other no more.
    pub partitions: BTreeSet<(String, String)>,
}

/// State of a simulation.
pub struct World {
    rng: Mutex<Rng>,
    bug: Option<Bug>,
    /// Faults in force.
    pub faults: watch::Sender<Faults>,
    /// Nodes that answer, by host.
    pub nodes: Mutex<BTreeMap<String, Address>>,
    /// Everything that was published, by feed.
    pub ledger: Mutex<Ledger>,
    /// Set once an invariant is broken.
    pub violation: watch::Sender<Option<String>>,
}

impl World {
    /// Creates the world of a seed.
    pub fn new(seed: u64, bug: Option<Bug>) -> Arc<Self> {
        Arc::new(Self {
            rng: Mutex::new(Rng::with_seed(seed)),
            bug,
            faults: watch::Sender::new(Faults::default()),
            nodes: Mutex::default(),
            ledger: Mutex::default(),
            violation: watch::Sender::new(None),
        })
    }

    /// Returns true if the bug is planted.
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns a number below `end`; zero for zero.
    pub fn below(&self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.rng.lock().u64(..end) }
    }

    /// Returns true once in `count` times.
    pub fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns true in so many of a hundred cases.
    pub fn percent(&self, share: u64) -> bool {
        share > 0 && self.below(100) < share
    }

    /// Returns a time below `longest`.
    pub fn time(&self, longest: Duration) -> Duration {
        Duration::from_micros(self.below(longest.as_micros() as u64))
    }

    /// Returns the time that a sync takes now.
    pub fn sync_time(&self) -> Duration {
        let longest = self.faults.borrow().sync.max(2);
        self.time(Duration::from_millis(longest))
    }

    /// Returns how a sync ends now.
    pub fn sync_verdict(&self) -> Verdict {
        let failing = self.faults.borrow().failing_sync;
        if failing > 0 && self.below(1000) < failing {
            trace::count("failed syncs");
            return Verdict::Failed;
        }
        Verdict::Done
    }

    /// Returns true if two hosts cannot reach each other now.
    pub fn is_parted(&self, one: &str, other: &str) -> bool {
        let faults = self.faults.borrow();
        faults.partitions.iter().any(|(a, b)| (a == one && b == other) || (a == other && b == one))
    }

    /// Takes what a follower says that it misses. What it will request again it must have once nothing fails any more.
    pub fn incomplete(&self, follower: &str, what: &str) {
        if what.contains("missing for now") || what.contains("will be requested again") {
            return trace::count("documents missing for now");
        }
        self.violate(format!("{follower} misses items: {what}"));
    }

    /// Notes that an invariant is broken. The first one counts.
    pub fn violate(&self, what: String) {
        crate::trace!("VIOLATION: {what}");
        self.violation.send_if_modified(|violation| {
            let is_first = violation.is_none();
            if is_first {
                *violation = Some(what);
            }
            is_first
        });
    }

    /// Returns the broken invariant.
    pub fn broken(&self) -> Option<String> {
        self.violation.borrow().clone()
    }
}
