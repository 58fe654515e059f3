//! Decisions on leases: which node may acquire which role, and when. Pure: time is an argument.
//!
//! The roles of a node without heartbeats for [`HEARTBEAT_TIMEOUT`] may be taken over. That node stops by itself before
//! that: its leases end [`LEASE_TERM`] after its replica last had the whole log. Should both clocks be wrong, the lease
//! rows still fence its writes.
//!
//! Rendezvous hashing gives each role a preferred node among the live ones that request it. Other nodes leave a free
//! role to the preferred node for [`PREFERENCE_DELAY`].

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use towpath_store::lease::{Lease, LeaseRow, LeaseTerm};

/// Time without a heartbeat after which a node's roles may be taken over: eight heartbeats.
pub(crate) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(8);
/// Term of a lease, from the last time at which the replica had the whole log.
pub(crate) const LEASE_TERM: Duration = Duration::from_secs(6);
/// Time that peers get for a heartbeat after this node itself was cut off.
const RECONNECT_GRACE: Duration = Duration::from_secs(2);
/// Time for which a role that was handed over and came back is kept: its preferred node does not take it.
const HANDOVER_INTERVAL: Duration = Duration::from_secs(60);
/// Time that a task under a lease gets to finish before a handover.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for which a free role is left to its preferred node.
pub(crate) const PREFERENCE_DELAY: Duration = Duration::from_secs(1);

/// Row to write, with the previous row as precondition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseClaim {
    pub(crate) role: String,
    pub(crate) before: Option<LeaseRow>,
    pub(crate) after: LeaseRow,
}

/// State of the decisions of one node.
#[derive(Debug)]
pub(crate) struct LeaseKeeper {
    /// Identity of this node.
    own: u64,
    /// Last known time at which the replica had the whole log.
    current: Option<Instant>,
    peers: HashMap<u64, PeerNode>,
    roles: BTreeMap<String, RoleState>,
}

/// Another node.
#[derive(Debug)]
struct PeerNode {
    /// Time of its last heartbeat, or of the first row that it held.
    last_heartbeat: Instant,
    /// Roles that it requests, as [`name_hash`]es; `None` counts as all roles.
    requests: Option<Vec<u64>>,
}

impl PeerNode {
    fn is_alive(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_heartbeat) < HEARTBEAT_TIMEOUT
    }

    fn requests(&self, role: &str) -> bool {
        self.requests.as_ref().is_none_or(|requests| requests.contains(&name_hash(role)))
    }
}

#[derive(Debug, Default)]
struct RoleState {
    row: Option<LeaseRow>,
    /// Term of the lease that the row grants to this node.
    term: Option<LeaseTerm>,
    /// Time since which no live node holds it.
    free_since: Option<Instant>,
    /// Time of the last handover to the preferred node.
    handed_over: Option<Instant>,
    /// True during a handover: tasks under the lease finish first.
    is_ending: bool,
}

impl RoleState {
    fn end_term(&mut self) {
        if let Some(term) = self.term.take() {
            term.end();
        }
    }
}

impl LeaseKeeper {
    pub(crate) fn new(own: u64) -> Self {
        Self { own, current: None, peers: HashMap::new(), roles: BTreeMap::new() }
    }

    /// Requests a role for this node.
    pub(crate) fn request(&mut self, role: &str) {
        self.roles.entry(role.to_owned()).or_default();
    }

    /// Ends the request of a role. Returns the row that frees it, if this node holds it.
    pub(crate) fn release(&mut self, role: &str) -> Option<LeaseClaim> {
        let mut released = self.roles.remove(role)?;
        released.end_term();
        let before = released.row.filter(|row| row.holder == self.own)?;
        let after = LeaseRow { holder: 0, ..before };
        Some(LeaseClaim { role: role.to_owned(), before: Some(before), after })
    }

    /// Returns the requested roles.
    pub(crate) fn requested(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Records a heartbeat of another node, with the roles that it requests.
    pub(crate) fn heartbeat(&mut self, node: u64, requests: Option<Vec<u64>>, now: Instant) {
        self.peers.insert(node, PeerNode { last_heartbeat: now, requests });
    }

    /// Records that a node has probably ended: its roles are free soon, unless it sends a heartbeat.
    pub(crate) fn node_ended(&mut self, node: u64, now: Instant) {
        // Not at once: a copy of a live node's folder has that node's identity, too.
        if let Some(last_heartbeat) = now.checked_sub(HEARTBEAT_TIMEOUT - RECONNECT_GRACE) {
            self.peers.entry(node).or_insert(PeerNode { last_heartbeat, requests: None });
        }
    }

    /// Renews this node's leases: the replica had the whole log at `at`.
    ///
    /// The rows of [`Self::set_row`] must have been read after that. So a node that was paused cannot renew a lease from
    /// a row that another node has replaced since.
    pub(crate) fn renew(&mut self, at: Instant) {
        // Half a term is many renewals: the replica was behind for that long.
        let was_cut_off =
            self.current.is_none_or(|before| at.saturating_duration_since(before) > LEASE_TERM / 2);
        if was_cut_off && let Some(latest) = at.checked_sub(HEARTBEAT_TIMEOUT - RECONNECT_GRACE) {
            // This node was cut off, so missing heartbeats say nothing about its peers.
            let peers = self.peers.values_mut();
            peers.for_each(|peer| peer.last_heartbeat = peer.last_heartbeat.max(latest));
        }
        // Never back: an answer that was overtaken by a later one must not shorten what that has proved.
        self.current = self.current.max(Some(at));
        for term in self.roles.values().filter_map(|role| role.term.as_ref()) {
            term.extend(at + LEASE_TERM);
        }
    }

    /// Sets the stored row of a role.
    pub(crate) fn set_row(&mut self, role: &str, row: Option<LeaseRow>, now: Instant) {
        let Some(entry) = self.roles.get_mut(role) else { return };
        if entry.row != row {
            entry.end_term();
            (entry.row, entry.free_since, entry.is_ending) = (row, None, false);
        }
        let Some(LeaseRow { holder, .. }) = row else { return };
        if holder != self.own {
            // A holder was alive once: it gets the whole timeout for its first heartbeat here.
            self.peers.entry(holder).or_insert(PeerNode { last_heartbeat: now, requests: None });
        // From the time of the last proof and not from now: the row may have been read long after it.
        } else if entry.term.is_none() {
            entry.term = self.current.map(|current| LeaseTerm::until(current + LEASE_TERM));
        }
    }

    /// Returns the lease of a role, while this node may act under it.
    pub(crate) fn lease(&self, role: &str, now: Instant) -> Option<Lease> {
        let RoleState { row, term, .. } = self.roles.get(role).filter(|role| !role.is_ending)?;
        let (row, term) = (row.filter(|row| row.holder == self.own)?, term.clone()?);
        term.includes(now).then(|| Lease::new(role, row, term))
    }

    fn is_connected(&self, now: Instant) -> bool {
        self.current.is_some_and(|current| now.saturating_duration_since(current) < LEASE_TERM)
    }

    /// Hands roles over to their preferred nodes that joined later, one role at a time.
    ///
    /// First [`Self::lease`] stops returning the role. The row is freed when no task acts under the lease any more, so
    /// that the next node sees all of its results.
    pub(crate) fn handover(&mut self, now: Instant) -> Option<LeaseClaim> {
        let Self { own, peers, roles, .. } = self;
        let is_due = |last: Option<Instant>| {
            last.is_none_or(|at| now.saturating_duration_since(at) >= HANDOVER_INTERVAL)
        };
        if let Some((name, role)) = roles.iter_mut().find(|(_, role)| role.is_ending) {
            let is_over =
                role.handed_over.is_none_or(|since| now.saturating_duration_since(since) >= HANDOVER_TIMEOUT);
            if !is_over && role.term.as_ref().is_some_and(LeaseTerm::is_in_use) {
                return None;
            }
            role.end_term();
            role.is_ending = false;
            let before = role.row.filter(|row| row.holder == *own)?;
            let after = LeaseRow { holder: 0, ..before };
            // This node does not act under it from now on, even if the write of the row fails.
            role.row = Some(after);
            return Some(LeaseClaim { role: name.clone(), before: Some(before), after });
        }
        let is_handed_over = |name: &str, role: &RoleState| {
            let is_held = role.row.is_some_and(|row| row.holder == *own);
            is_held && preferred(name, *own, peers, now) != *own && is_due(role.handed_over)
        };
        if let Some((_, role)) = roles.iter_mut().find(|(name, role)| is_handed_over(name.as_str(), role)) {
            // One role at a time: each handover is a pause in which nobody acts under the role.
            (role.handed_over, role.is_ending) = (Some(now), true);
        }
        None
    }

    /// Returns the roles that this node acquires now.
    pub(crate) fn acquisitions(&mut self, now: Instant) -> Vec<LeaseClaim> {
        // Much later than the timeout: a forgotten holder would get the time of a first heartbeat again.
        let is_recent =
            |peer: &PeerNode| now.saturating_duration_since(peer.last_heartbeat) < HEARTBEAT_TIMEOUT * 100;
        self.peers.retain(|_, peer| is_recent(peer));
        // A node that is cut off hears no heartbeats, so every holder looks dead to it.
        if !self.is_connected(now) {
            return Vec::new();
        }
        let Self { own, peers, roles, .. } = self;
        let is_alive = |node: u64| node == *own || peers.get(&node).is_some_and(|peer| peer.is_alive(now));
        let mut claims = Vec::new();
        for (name, role) in roles {
            if role.row.is_some_and(|row| row.holder != 0 && is_alive(row.holder)) {
                role.free_since = None;
                continue;
            }
            let free_since = *role.free_since.get_or_insert(now);
            if preferred(name, *own, peers, now) == *own || now.duration_since(free_since) >= PREFERENCE_DELAY
            {
                // The epoch makes the row of each acquisition unique, so that a late write of an earlier one is fenced.
                let epoch = role.row.map_or(0, |row| row.epoch) + 1;
                let after = LeaseRow { holder: *own, epoch };
                claims.push(LeaseClaim { role: name.clone(), before: role.row, after });
            }
        }
        claims
    }
}

/// Returns the preferred node of a role, among the live ones that request it.
fn preferred(role: &str, own: u64, peers: &HashMap<u64, PeerNode>, now: Instant) -> u64 {
    let candidates =
        // Zero is the holder of a free row, and no node.
        peers.iter().filter(|(node, peer)| **node != 0 && peer.is_alive(now) && peer.requests(role));
    let nodes = candidates.map(|(node, _)| *node).chain([own]);
    nodes.max_by_key(|node| rank(role, *node)).unwrap_or(own)
}

/// Rendezvous hash: every node computes the same rank, and each role has a different order of nodes.
fn rank(role: &str, node: u64) -> u64 {
    let hash = fnv(name_hash(role), &node.to_be_bytes());
    // FNV-1a hardly mixes the last bytes into the high bits, which decide the rank.
    (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Hash of a role's name, as heartbeats carry it.
pub(crate) fn name_hash(role: &str) -> u64 {
    fnv(0xcbf2_9ce4_8422_2325, role.as_bytes())
}

/// Continues an FNV-1a hash.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
