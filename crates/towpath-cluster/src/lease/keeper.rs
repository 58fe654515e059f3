//! Who may take which role, and when. Pure: time is an argument.
//!
//! A node that nobody heard for [`DEAD`] may be replaced in its roles. It stops by itself before that: when the log did
//! not answer it for [`LOST`]. Should both clocks be wrong, the leases' rows still fence what it writes. Of the nodes
//! that live, each role has one that takes it first; the others leave it [`COURTESY`] for that.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use towpath_store::lease::{Lease, Row};

/// How long a node may be silent before its roles are taken.
pub(crate) const DEAD: Duration = Duration::from_secs(10);
/// After how long without an answer from the log a node gives its roles up.
pub(crate) const LOST: Duration = Duration::from_secs(8);
/// How long a role is kept that was given away and came back: whoever was to have it does not take it.
const KEEP: Duration = Duration::from_secs(60);
/// How long a free role is left to the node that is to have it.
pub(crate) const COURTESY: Duration = Duration::from_secs(2);

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
    /// When the log last answered.
    answered: Option<Instant>,
    /// When each other node was last heard, or first seen to hold something.
    heard: HashMap<u64, Instant>,
    roles: BTreeMap<String, Role>,
}

#[derive(Debug, Default)]
struct Role {
    row: Option<Row>,
    /// Since when nobody who lives holds it.
    free: Option<Instant>,
    /// When this node last gave it to the one that is to have it.
    given: Option<Instant>,
}

impl Keeper {
    pub(crate) fn new(own: u64) -> Self {
        Self { own, answered: None, heard: HashMap::new(), roles: BTreeMap::new() }
    }

    /// This node wants a role.
    pub(crate) fn want(&mut self, role: &str) {
        self.roles.entry(role.to_owned()).or_default();
    }

    /// This node wants a role no more. Returns what gives it to the others at once, where this node had it.
    pub(crate) fn leave(&mut self, role: &str) -> Option<Claim> {
        let before = self.roles.remove(role)?.row.filter(|row| row.holder == self.own)?;
        let after = Row { holder: 0, ..before };
        Some(Claim { role: role.to_owned(), before: Some(before), after })
    }

    /// The roles that are wanted.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Another node is alive.
    pub(crate) fn heard(&mut self, node: u64, now: Instant) {
        self.heard.insert(node, now);
    }

    /// The log answered a question that was asked then.
    pub(crate) fn answered(&mut self, asked: Instant) {
        let deaf = self.answered.is_none_or(|before| asked.saturating_duration_since(before) > LOST / 2);
        if deaf {
            // Whoever was not heard meanwhile may well live.
            self.heard.values_mut().for_each(|heard| *heard = asked);
        }
        self.answered = self.answered.max(Some(asked));
    }

    /// What the table has of a role.
    pub(crate) fn row(&mut self, role: &str, row: Option<Row>, now: Instant) {
        let Some(entry) = self.roles.get_mut(role) else { return };
        if entry.row != row {
            (entry.row, entry.free) = (row, None);
        }
        if let Some(Row { holder, .. }) = row {
            // Who holds something has lived, and is given the time to be heard.
            self.heard.entry(holder).or_insert(now);
        }
    }

    /// The lease of a role, while this node may act on it.
    pub(crate) fn lease(&self, role: &str, now: Instant) -> Option<Lease> {
        let row = self.roles.get(role)?.row.filter(|row| row.holder == self.own)?;
        self.is_connected(now).then(|| Lease::new(role, row))
    }

    fn is_connected(&self, now: Instant) -> bool {
        self.answered.is_some_and(|answered| now.saturating_duration_since(answered) < LOST)
    }

    /// A role that another node is to have, which came later: it is given to that one, one role at a time.
    pub(crate) fn gift(&mut self, now: Instant) -> Option<Claim> {
        let lives = |heard: &Instant| now.saturating_duration_since(*heard) < DEAD;
        let living: Vec<u64> =
            self.heard.iter().filter(|(_, heard)| lives(heard)).map(|(node, _)| *node).collect();
        let own = self.own;
        let is_due =
            |given: Option<Instant>| given.is_none_or(|at| now.saturating_duration_since(at) >= KEEP);
        for (name, role) in &mut self.roles {
            let Some(before) = role.row.filter(|row| row.holder == own) else { continue };
            if first(name, own, &living) != own && is_due(role.given) {
                role.given = Some(now);
                let after = Row { holder: 0, ..before };
                // It is not acted on from here on, whether the row is written or not.
                role.row = Some(after);
                return Some(Claim { role: name.clone(), before: Some(before), after });
            }
        }
        None
    }

    /// The roles that this node is to take now.
    pub(crate) fn claims(&mut self, now: Instant) -> Vec<Claim> {
        let lives = |heard: &Instant| now.saturating_duration_since(*heard) < DEAD;
        // Much later, so that a holder that is long dead does not look as if it was never heard.
        self.heard.retain(|_, heard| now.saturating_duration_since(*heard) < DEAD * 100);
        if !self.is_connected(now) {
            return Vec::new();
        }
        let Self { own, heard, roles, .. } = self;
        let living: Vec<u64> =
            heard.iter().filter(|(_, heard)| lives(heard)).map(|(node, _)| *node).collect();
        let mut claims = Vec::new();
        for (name, role) in roles {
            let held = role
                .row
                .is_some_and(|row| row.holder == *own || row.holder != 0 && living.contains(&row.holder));
            if held {
                role.free = None;
                continue;
            }
            let free = *role.free.get_or_insert(now);
            if first(name, *own, &living) == *own || now.duration_since(free) >= COURTESY {
                let epoch = role.row.map_or(0, |row| row.epoch) + 1;
                claims.push(Claim {
                    role: name.clone(),
                    before: role.row,
                    after: Row { holder: *own, epoch },
                });
            }
        }
        claims
    }
}

/// The node that is to have a role.
fn first(role: &str, own: u64, living: &[u64]) -> u64 {
    let others = living.iter().filter(|node| **node != 0);
    others.chain([&own]).copied().max_by_key(|node| rank(role, *node)).unwrap_or(own)
}

/// Every node ranks the nodes for a role alike, and differently for each role (FNV-1a, mixed once more).
fn rank(role: &str, node: u64) -> u64 {
    let bytes = role.bytes().chain(node.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some nodes and the table between them; one node may be cut off.
    struct World {
        nodes: Vec<Keeper>,
        rows: HashMap<String, Row>,
        now: Instant,
        cut: Option<usize>,
        gone: Option<usize>,
        gifts: bool,
    }

    impl World {
        fn new(count: u64, roles: &[&str]) -> Self {
            let mut nodes: Vec<_> = (1..=count).map(Keeper::new).collect();
            nodes.iter_mut().for_each(|node| roles.iter().for_each(|role| node.want(role)));
            Self { nodes, rows: HashMap::new(), now: Instant::now(), cut: None, gone: None, gifts: false }
        }

        fn is_cut(&self, n: usize) -> bool {
            self.cut == Some(n) || self.gone == Some(n)
        }

        /// Half a second: heartbeats every two, rows and claims each time.
        fn step(&mut self, beat: bool) {
            self.now += Duration::from_millis(500);
            for n in 0..self.nodes.len() {
                if self.is_cut(n) {
                    continue;
                }
                if beat {
                    for m in (0..self.nodes.len()).filter(|m| *m != n && !self.is_cut(*m)).collect::<Vec<_>>()
                    {
                        let own = self.nodes[n].own;
                        self.nodes[m].heard(own, self.now);
                    }
                }
                let (now, rows) = (self.now, &self.rows);
                let node = &mut self.nodes[n];
                node.answered(now);
                for role in node.wanted().map(str::to_owned).collect::<Vec<_>>() {
                    node.row(&role, rows.get(&role).copied(), now);
                }
                let gift = if self.gifts { node.gift(now) } else { None };
                for claim in gift.into_iter().chain(node.claims(now)) {
                    if self.rows.get(&claim.role).copied() == claim.before {
                        self.rows.insert(claim.role, claim.after);
                    }
                }
            }
        }

        fn run(&mut self, seconds: usize, check: impl Fn(&Self)) {
            for n in 0..seconds * 2 {
                self.step(n % 4 == 0);
                check(self);
            }
        }

        /// Which nodes believe that they hold a role.
        fn holders(&self, role: &str) -> Vec<usize> {
            let holds = |n: &usize| self.gone != Some(*n) && self.nodes[*n].lease(role, self.now).is_some();
            (0..self.nodes.len()).filter(holds).collect()
        }
    }

    const ROLES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

    #[test]
    fn every_role_is_taken_once_and_all_nodes_have_some() {
        let mut world = World::new(3, &ROLES);
        world.run(15, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
        let holders: Vec<_> = ROLES.iter().map(|role| world.holders(role)).collect();
        assert!(holders.iter().all(|holders| holders.len() == 1), "{holders:?}");
        let epochs: Vec<_> = world.rows.values().map(|row| row.epoch).collect();
        assert_eq!(epochs, vec![1; ROLES.len()], "nothing changes hands without need");
    }

    #[test]
    fn a_node_that_comes_later_is_given_some() {
        let mut world = World::new(1, &ROLES);
        world.gifts = true;
        world.run(20, |_| {});
        assert!(ROLES.iter().all(|role| world.holders(role) == [0]));
        let mut late = Keeper::new(2);
        ROLES.iter().for_each(|role| late.want(role));
        world.nodes.push(late);
        world.run(30, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
        let holders: Vec<_> = ROLES.iter().map(|role| world.holders(role)).collect();
        assert!(holders.contains(&vec![0]) && holders.contains(&vec![1]), "{holders:?}");
        assert!(holders.iter().all(|holders| holders.len() == 1), "{holders:?}");
        let rows = world.rows.clone();
        world.run(60, |_| {});
        assert_eq!(world.rows, rows, "nothing changes hands without need");
        // One that takes nothing is not waited for.
        let held = |world: &World| ROLES.iter().filter(|role| world.holders(role) == [0]).count();
        let before = held(&world);
        let idle = (3..).find(|node| ROLES.iter().any(|r| first(r, 1, &[2, *node]) == *node)).unwrap();
        world.nodes.push(Keeper::new(idle));
        world.run(40, |_| {});
        assert_eq!(
            held(&world) + ROLES.iter().filter(|role| world.holders(role) == [1]).count(),
            ROLES.len()
        );
        assert!(before > 0);
    }

    #[test]
    fn roles_of_a_dead_node_are_taken_within_fifteen_seconds() {
        let mut world = World::new(3, &ROLES);
        world.run(20, |_| {});
        let before = world.rows.clone();
        world.gone = Some(0);
        world.run(15, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
        for role in ROLES {
            assert_eq!(world.holders(role).len(), 1, "{role}");
            let taken = u64::from(before[role].holder == 1);
            assert_eq!(world.rows[role].epoch, before[role].epoch + taken);
        }
    }

    #[test]
    fn a_node_that_is_cut_off_stops_before_another_begins() {
        let mut world = World::new(2, &ROLES);
        world.run(20, |_| {});
        world.cut = Some(0);
        world.run(15, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
        assert!(ROLES.iter().all(|role| world.holders(role) == [1]));
        // It comes back, and takes nothing from one who lives.
        world.cut = None;
        world.run(30, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
        assert!(ROLES.iter().all(|role| world.holders(role) == [1]));
    }

    #[test]
    fn a_role_that_is_left_is_taken_at_once() {
        let mut world = World::new(2, &["a"]);
        world.run(20, |_| {});
        let holder = world.holders("a")[0];
        let claim = world.nodes[holder].leave("a").unwrap();
        assert_eq!(claim.after.holder, 0);
        assert_eq!(world.nodes[holder].leave("a"), None);
        world.rows.insert(claim.role, claim.after);
        world.run(3, |_| {});
        assert_eq!(world.holders("a"), [1 - holder]);
        assert_eq!(world.rows["a"].epoch, 2);
    }
}
