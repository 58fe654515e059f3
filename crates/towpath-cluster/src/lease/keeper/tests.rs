use super::*;

/// Nodes and their common table; one node may be cut off.
struct LeaseSimulation {
    nodes: Vec<LeaseKeeper>,
    rows: HashMap<String, LeaseRow>,
    now: Instant,
    cut: Option<usize>,
    gone: Option<usize>,
    handovers: bool,
}

impl LeaseSimulation {
    fn new(count: u64, roles: &[&str]) -> Self {
        let mut nodes: Vec<_> = (1..=count).map(LeaseKeeper::new).collect();
        nodes.iter_mut().for_each(|node| roles.iter().for_each(|role| node.request(role)));
        Self { nodes, rows: HashMap::new(), now: Instant::now(), cut: None, gone: None, handovers: false }
    }

    fn is_cut(&self, n: usize) -> bool {
        self.cut == Some(n) || self.gone == Some(n)
    }

    /// Advances by half a second: rows and acquisitions each time, heartbeats if `beat`.
    fn step(&mut self, beat: bool) {
        self.now += Duration::from_millis(500);
        for n in 0..self.nodes.len() {
            if self.is_cut(n) {
                continue;
            }
            if beat {
                for m in (0..self.nodes.len()).filter(|m| *m != n && !self.is_cut(*m)).collect::<Vec<_>>() {
                    let own = self.nodes[n].own;
                    let roles = self.nodes[n].requested().map(name_hash).collect();
                    self.nodes[m].heartbeat(own, Some(roles), self.now);
                }
            }
            let (now, rows) = (self.now, &self.rows);
            let node = &mut self.nodes[n];
            for role in node.requested().map(str::to_owned).collect::<Vec<_>>() {
                node.set_row(&role, rows.get(&role).copied(), now);
            }
            node.renew(now);
            let handover = if self.handovers { node.handover(now) } else { None };
            for claim in handover.into_iter().chain(node.acquisitions(now)) {
                if self.rows.get(&claim.role).copied() == claim.before {
                    self.rows.insert(claim.role, claim.after);
                }
            }
        }
    }

    fn run(&mut self, seconds: usize, check: impl Fn(&Self)) {
        for n in 0..seconds * 2 {
            self.step(n % 2 == 0);
            check(self);
        }
    }

    /// Returns the nodes that believe to hold a role.
    fn holders(&self, role: &str) -> Vec<usize> {
        let holds = |n: &usize| self.gone != Some(*n) && self.nodes[*n].lease(role, self.now).is_some();
        (0..self.nodes.len()).filter(holds).collect()
    }
}

const ROLES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

#[test]
fn every_role_is_acquired_once_and_all_nodes_have_some() {
    let mut cluster = LeaseSimulation::new(3, &ROLES);
    cluster.run(15, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    let holders: Vec<_> = ROLES.iter().map(|role| cluster.holders(role)).collect();
    assert!(holders.iter().all(|holders| holders.len() == 1), "{holders:?}");
    let epochs: Vec<_> = cluster.rows.values().map(|row| row.epoch).collect();
    // An epoch above 1 would mean that a role changed hands.
    assert_eq!(epochs, vec![1; ROLES.len()], "no role changes its holder without need");
}

#[test]
fn a_node_that_joins_later_is_handed_some_roles() {
    let mut cluster = LeaseSimulation::new(1, &ROLES);
    cluster.handovers = true;
    cluster.run(20, |_| {});
    assert!(ROLES.iter().all(|role| cluster.holders(role) == [0]));
    let mut late = LeaseKeeper::new(2);
    ROLES.iter().for_each(|role| late.request(role));
    cluster.nodes.push(late);
    cluster.run(30, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    let holders: Vec<_> = ROLES.iter().map(|role| cluster.holders(role)).collect();
    assert!(holders.contains(&vec![0]) && holders.contains(&vec![1]), "{holders:?}");
    assert!(holders.iter().all(|holders| holders.len() == 1), "{holders:?}");
    let rows = cluster.rows.clone();
    cluster.run(60, |_| {});
    assert_eq!(cluster.rows, rows, "no role changes its holder without need");
    // A node that requests nothing is no candidate.
    let held = |cluster: &LeaseSimulation| ROLES.iter().filter(|role| cluster.holders(role) == [0]).count();
    let before = held(&cluster);
    cluster.nodes.push(LeaseKeeper::new(idle_with_rank()));
    cluster.run(40, |_| {});
    assert_eq!(cluster.rows, rows, "a node without requests gets no role");
    assert!(before > 0);
}

/// Returns the identity of a node that would be preferred for some role.
fn idle_with_rank() -> u64 {
    let is_first = |node: u64, role: &str| [1, 2].iter().all(|other| rank(role, node) > rank(role, *other));
    (3..).find(|node| ROLES.iter().any(|role| is_first(*node, role))).unwrap()
}

/// A preferred node that never acquires its roles, such as one of a version without role requests.
#[test]
fn a_preferred_node_that_acquires_nothing_delays_nobody() {
    let (mut cluster, idle) = (LeaseSimulation::new(2, &ROLES), idle_with_rank());
    cluster.handovers = true;
    for _ in 0..40 {
        let now = cluster.now;
        cluster.nodes.iter_mut().for_each(|node| node.heartbeat(idle, None, now));
        cluster.run(1, |_| {});
    }
    assert!(ROLES.iter().all(|role| cluster.holders(role).len() == 1));
}

#[test]
fn roles_of_a_dead_node_are_taken_over_within_ten_seconds() {
    let mut cluster = LeaseSimulation::new(3, &ROLES);
    cluster.run(20, |_| {});
    let before = cluster.rows.clone();
    cluster.gone = Some(0);
    cluster.run(10, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    for role in ROLES {
        assert_eq!(cluster.holders(role).len(), 1, "{role}");
        let taken = u64::from(before[role].holder == 1);
        assert_eq!(cluster.rows[role].epoch, before[role].epoch + taken);
    }
}

#[test]
fn a_node_that_is_cut_off_stops_before_its_successor_starts() {
    let mut cluster = LeaseSimulation::new(2, &ROLES);
    cluster.run(20, |_| {});
    cluster.cut = Some(0);
    cluster.run(15, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    assert!(ROLES.iter().all(|role| cluster.holders(role) == [1]));
    // It comes back, and takes nothing from a live node.
    cluster.cut = None;
    cluster.run(30, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    assert!(ROLES.iter().all(|role| cluster.holders(role) == [1]));
}

/// The log is unavailable for a while, as during a leader election, and a node dies at the same time.
#[test]
fn a_node_that_dies_with_the_log_leader_is_replaced_soon() {
    let mut cluster = LeaseSimulation::new(3, &ROLES);
    cluster.run(20, |_| {});
    cluster.gone = Some(0);
    for second in 0..9 {
        for _ in 0..2 {
            cluster.now += Duration::from_millis(500);
            let (now, ids) = (cluster.now, [2, 3]);
            for n in [1, 2] {
                ids.iter()
                    .filter(|id| **id != n as u64 + 1)
                    .for_each(|id| cluster.nodes[n].heartbeat(*id, None, now));
            }
        }
        assert!(second < 6 || ROLES.iter().all(|role| cluster.holders(role).is_empty()));
    }
    let before = cluster.rows.clone();
    cluster.run(4, |cluster| assert!(ROLES.iter().all(|role| cluster.holders(role).len() <= 1)));
    for role in ROLES {
        assert_eq!(cluster.holders(role).len(), 1, "{role}");
        assert_eq!(cluster.rows[role].epoch, before[role].epoch + u64::from(before[role].holder == 1));
    }
}

/// A node that was paused acts under no lease until it has read the rows that others wrote.
#[test]
fn a_paused_node_notices_by_its_clock() {
    let mut cluster = LeaseSimulation::new(2, &["a"]);
    cluster.run(20, |_| {});
    let holder = cluster.holders("a")[0];
    let lease = cluster.nodes[holder].lease("a", cluster.now).unwrap();
    cluster.cut = Some(holder);
    cluster.run(7, |_| {});
    assert!(cluster.nodes[holder].lease("a", cluster.now).is_none());
    cluster.run(3, |_| {});
    assert_eq!(cluster.holders("a"), [1 - holder]);
    cluster.cut = None;
    cluster.step(true);
    assert!(cluster.nodes[holder].lease("a", cluster.now).is_none());
    assert!(!lease.is_current(), "the term of its old lease has ended");
}

/// Tasks under a lease finish before another node starts.
#[test]
fn a_handover_waits_for_running_tasks() {
    let mut cluster = LeaseSimulation::new(1, &ROLES);
    cluster.handovers = true;
    cluster.run(20, |_| {});
    let mut late = LeaseKeeper::new(2);
    ROLES.iter().for_each(|role| late.request(role));
    cluster.nodes.push(late);
    let is_first = |role: &&&str| rank(role, 2) > rank(role, 1);
    let role = *ROLES.iter().find(is_first).unwrap();
    let acting = cluster.nodes[0].lease(role, cluster.now).unwrap();
    let term = cluster.nodes[0].roles[role].term.clone().unwrap();
    cluster.run(3, |_| {});
    assert!(cluster.nodes[0].lease(role, cluster.now).is_none() && term.includes(cluster.now));
    assert_eq!(cluster.rows[role].holder, 1, "its writes are not refused yet");
    // The task under the lease has finished.
    drop((acting, term));
    cluster.run(2, |_| {});
    assert_eq!(cluster.rows[role].holder, 2);
    // The wait for a task that does not finish is bounded.
    let second = *ROLES.iter().filter(is_first).nth(1).unwrap();
    let _acting = cluster.nodes[0].lease(second, cluster.now);
    cluster.run(20, |_| {});
    assert_eq!(cluster.rows[second].holder, 2);
}

/// A new process in the folder of an ended one.
#[test]
fn a_restarted_node_takes_its_roles_back_soon() {
    let mut cluster = LeaseSimulation::new(1, &ROLES);
    cluster.run(20, |_| {});
    let again = |id: u64, cluster: &LeaseSimulation| {
        let mut node = LeaseKeeper::new(id);
        ROLES.iter().for_each(|role| node.request(role));
        node.node_ended(1, cluster.now);
        node
    };
    let mut started = LeaseSimulation { nodes: vec![again(2, &cluster)], ..cluster };
    started.run(3, |_| {});
    assert!(ROLES.iter().all(|role| started.holders(role) == [0]));
    // A copy of a live node's folder takes nothing from that node.
    let copy = again(3, &started);
    started.nodes.push(copy);
    started.nodes[1].node_ended(2, started.now);
    let rows = started.rows.clone();
    started.run(20, |_| {});
    assert_eq!(started.rows, rows);
}

#[test]
fn a_released_role_is_acquired_at_once() {
    let mut cluster = LeaseSimulation::new(2, &["a"]);
    cluster.run(20, |_| {});
    let holder = cluster.holders("a")[0];
    let claim = cluster.nodes[holder].release("a").unwrap();
    assert_eq!(claim.after.holder, 0);
    assert_eq!(cluster.nodes[holder].release("a"), None);
    cluster.rows.insert(claim.role, claim.after);
    cluster.run(3, |_| {});
    assert_eq!(cluster.holders("a"), [1 - holder]);
    assert_eq!(cluster.rows["a"].epoch, 2);
}
