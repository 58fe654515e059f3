//! Who may take which role, and when. Pure: time is an argument.
//!
//! A node that nobody heard for [`DEAD`] may be replaced in its roles. It stops by itself before that: when it is not
//! known for [`LOST`] that the replica had all of the log. Should both clocks be wrong, the leases' rows still fence what
//! it writes. Of the nodes that live and want a role, each role has one that takes it first; the others leave it
//! [`COURTESY`] for that.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use towpath_store::lease::{Lease, Row, Term};

/// How long a node may be silent before its roles are taken: eight heartbeats.
pub(crate) const DEAD: Duration = Duration::from_secs(8);
/// How long after the replica last had all of the log a node gives its roles up.
pub(crate) const LOST: Duration = Duration::from_secs(6);
/// How long others may be silent after this node itself was cut off: whoever lives is heard in that time.
const GRACE: Duration = Duration::from_secs(2);
/// How long a role is kept that was given away and came back: whoever was to have it does not take it.
const KEEP: Duration = Duration::from_secs(60);
/// How long whoever acts in a role that is given away may take to come to an end.
const ENDING: Duration = Duration::from_secs(6);
/// How long a free role is left to the node that is to have it.
pub(crate) const COURTESY: Duration = Duration::from_secs(1);

/// A row to be written on the condition of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) role: String,
    pub(crate) before: Option<Row>,
    pub(crate) after: Row,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// This node.
    own: u64,
    /// A time at which the replica had all of the log, the last that is known.
    current: Option<Instant>,
    others: HashMap<u64, Other>,
    roles: BTreeMap<String, Role>,
}

/// Another node.
#[derive(Debug)]
struct Other {
    /// When it was last heard, or first seen to hold something.
    heard: Instant,
    /// The roles that it wants, as [`name_hash`] has them; all of them as long as it did not say.
    wants: Option<Vec<u64>>,
}

impl Other {
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) < DEAD
    }

    fn wants(&self, role: &str) -> bool {
        self.wants.as_ref().is_none_or(|wants| wants.contains(&name_hash(role)))
    }
}

#[derive(Debug, Default)]
struct Role {
    row: Option<Row>,
    /// Of the lease that the row gives this node.
    term: Option<Term>,
    /// Since when nobody who lives holds it.
    free: Option<Instant>,
    /// When this node last gave it to the one that is to have it.
    given: Option<Instant>,
    /// Whether it is about to: whoever acts in it comes to an end first.
    ending: bool,
}

impl Role {
    fn end(&mut self) {
        if let Some(term) = self.term.take() {
            term.end();
        }
    }
}

impl Keeper {
    pub(crate) fn new(own: u64) -> Self {
        Self { own, current: None, others: HashMap::new(), roles: BTreeMap::new() }
    }

    /// This node wants a role.
    pub(crate) fn want(&mut self, role: &str) {
        self.roles.entry(role.to_owned()).or_default();
    }

    /// This node wants a role no more. Returns what gives it to the others at once, where this node had it.
    pub(crate) fn leave(&mut self, role: &str) -> Option<Claim> {
        let mut left = self.roles.remove(role)?;
        left.end();
        let before = left.row.filter(|row| row.holder == self.own)?;
        let after = Row { holder: 0, ..before };
        Some(Claim { role: role.to_owned(), before: Some(before), after })
    }

    /// The roles that are wanted.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Another node is alive, and wants these roles.
    pub(crate) fn heard(&mut self, node: u64, wants: Option<Vec<u64>>, now: Instant) {
        self.others.insert(node, Other { heard: now, wants });
    }

    /// A node is gone, as far as can be known: whatever it holds is free soon, unless it is heard all the same.
    pub(crate) fn gone(&mut self, node: u64, now: Instant) {
        if let Some(heard) = now.checked_sub(DEAD - GRACE) {
            self.others.entry(node).or_insert(Other { heard, wants: None });
        }
    }

    /// The replica had all of the log at a time, with the rows that were given since then.
    pub(crate) fn current_at(&mut self, at: Instant) {
        let was_cut_off = self.current.is_none_or(|before| at.saturating_duration_since(before) > LOST / 2);
        if was_cut_off && let Some(latest) = at.checked_sub(DEAD - GRACE) {
            // Whoever was not heard meanwhile may well live.
            self.others.values_mut().for_each(|other| other.heard = other.heard.max(latest));
        }
        self.current = self.current.max(Some(at));
        for term in self.roles.values().filter_map(|role| role.term.as_ref()) {
            term.extend(at + LOST);
        }
    }

    /// What the table has of a role.
    pub(crate) fn row(&mut self, role: &str, row: Option<Row>, now: Instant) {
        let Some(entry) = self.roles.get_mut(role) else { return };
        if entry.row != row {
            entry.end();
            (entry.row, entry.free, entry.ending) = (row, None, false);
        }
        let Some(Row { holder, .. }) = row else { return };
        if holder != self.own {
            // Who holds something has lived, and is given the time to be heard.
            self.others.entry(holder).or_insert(Other { heard: now, wants: None });
        } else if entry.term.is_none() {
            entry.term = self.current.map(|current| Term::until(current + LOST));
        }
    }

    /// The lease of a role, while this node may act on it.
    pub(crate) fn lease(&self, role: &str, now: Instant) -> Option<Lease> {
        let Role { row, term, .. } = self.roles.get(role).filter(|role| !role.ending)?;
        let (row, term) = (row.filter(|row| row.holder == self.own)?, term.clone()?);
        term.has(now).then(|| Lease::new(role, row, term))
    }

    fn is_connected(&self, now: Instant) -> bool {
        self.current.is_some_and(|current| now.saturating_duration_since(current) < LOST)
    }

    /// A role that another node is to have, which came later: it is given to that one, one role at a time. First
    /// [`Self::lease`] has it no more; it is given when nobody acts on the lease any more, with all that was done noted.
    pub(crate) fn gift(&mut self, now: Instant) -> Option<Claim> {
        let Self { own, others, roles, .. } = self;
        let is_due =
            |given: Option<Instant>| given.is_none_or(|at| now.saturating_duration_since(at) >= KEEP);
        if let Some((name, role)) = roles.iter_mut().find(|(_, role)| role.ending) {
            let is_over = role.given.is_none_or(|since| now.saturating_duration_since(since) >= ENDING);
            if !is_over && role.term.as_ref().is_some_and(Term::is_used) {
                return None;
            }
            role.end();
            role.ending = false;
            let before = role.row.filter(|row| row.holder == *own)?;
            let after = Row { holder: 0, ..before };
            // It is not acted on from here on, whether the row is written or not.
            role.row = Some(after);
            return Some(Claim { role: name.clone(), before: Some(before), after });
        }
        let is_to_go = |name: &str, role: &Role| {
            let is_held = role.row.is_some_and(|row| row.holder == *own);
            is_held && first(name, *own, others, now) != *own && is_due(role.given)
        };
        if let Some((_, role)) = roles.iter_mut().find(|(name, role)| is_to_go(name.as_str(), role)) {
            (role.given, role.ending) = (Some(now), true);
        }
        None
    }

    /// The roles that this node is to take now.
    pub(crate) fn claims(&mut self, now: Instant) -> Vec<Claim> {
        // Much later, so that a holder that is long dead does not look as if it was never heard.
        self.others.retain(|_, other| now.saturating_duration_since(other.heard) < DEAD * 100);
        if !self.is_connected(now) {
            return Vec::new();
        }
        let Self { own, others, roles, .. } = self;
        let lives = |node: u64| node == *own || others.get(&node).is_some_and(|other| other.lives(now));
        let mut claims = Vec::new();
        for (name, role) in roles {
            if role.row.is_some_and(|row| row.holder != 0 && lives(row.holder)) {
                role.free = None;
                continue;
            }
            let free = *role.free.get_or_insert(now);
            if first(name, *own, others, now) == *own || now.duration_since(free) >= COURTESY {
                let epoch = role.row.map_or(0, |row| row.epoch) + 1;
                let after = Row { holder: *own, epoch };
                claims.push(Claim { role: name.clone(), before: role.row, after });
            }
        }
        claims
    }
}

/// The node that is to have a role: of those who live and want it.
fn first(role: &str, own: u64, others: &HashMap<u64, Other>, now: Instant) -> u64 {
    let others = others.iter().filter(|(node, other)| **node != 0 && other.lives(now) && other.wants(role));
    let nodes = others.map(|(node, _)| *node).chain([own]);
    nodes.max_by_key(|node| rank(role, *node)).unwrap_or(own)
}

/// Every node ranks the nodes for a role alike, and differently for each role.
fn rank(role: &str, node: u64) -> u64 {
    let hash = fnv(name_hash(role), &node.to_be_bytes());
    (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What stands for a role's name in heartbeats.
pub(crate) fn name_hash(role: &str) -> u64 {
    fnv(0xcbf2_9ce4_8422_2325, role.as_bytes())
}

/// FNV-1a.
fn fnv(begin: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(begin, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
