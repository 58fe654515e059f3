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

    /// Half a second: heartbeats every second, rows and claims each time.
    fn step(&mut self, beat: bool) {
        self.now += Duration::from_millis(500);
        for n in 0..self.nodes.len() {
            if self.is_cut(n) {
                continue;
            }
            if beat {
                for m in (0..self.nodes.len()).filter(|m| *m != n && !self.is_cut(*m)).collect::<Vec<_>>() {
                    let own = self.nodes[n].own;
                    let wants = self.nodes[n].wanted().map(name_hash).collect();
                    self.nodes[m].heard(own, Some(wants), self.now);
                }
            }
            let (now, rows) = (self.now, &self.rows);
            let node = &mut self.nodes[n];
            for role in node.wanted().map(str::to_owned).collect::<Vec<_>>() {
                node.row(&role, rows.get(&role).copied(), now);
            }
            node.current_at(now);
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
            self.step(n % 2 == 0);
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
    world.nodes.push(Keeper::new(idle_with_rank()));
    world.run(40, |_| {});
    assert_eq!(world.rows, rows, "who wants nothing is given nothing");
    assert!(before > 0);
}

/// A node that would be the first for some role.
fn idle_with_rank() -> u64 {
    let is_first = |node: u64, role: &str| [1, 2].iter().all(|other| rank(role, node) > rank(role, *other));
    (3..).find(|node| ROLES.iter().any(|role| is_first(*node, role))).unwrap()
}

/// One of a version that does not say what it wants, or that says so and never takes it.
#[test]
fn one_that_takes_nothing_is_not_waited_for() {
    let (mut world, idle) = (World::new(2, &ROLES), idle_with_rank());
    world.gifts = true;
    for _ in 0..40 {
        let now = world.now;
        world.nodes.iter_mut().for_each(|node| node.heard(idle, None, now));
        world.run(1, |_| {});
    }
    assert!(ROLES.iter().all(|role| world.holders(role).len() == 1));
}

#[test]
fn roles_of_a_dead_node_are_taken_within_ten_seconds() {
    let mut world = World::new(3, &ROLES);
    world.run(20, |_| {});
    let before = world.rows.clone();
    world.gone = Some(0);
    world.run(10, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
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

/// The log does not answer anybody for a while, as when its servers choose a leader, and a node dies with it.
#[test]
fn a_node_that_dies_with_the_logs_leader_is_replaced_soon_after() {
    let mut world = World::new(3, &ROLES);
    world.run(20, |_| {});
    world.gone = Some(0);
    for second in 0..9 {
        for _ in 0..2 {
            world.now += Duration::from_millis(500);
            let (now, ids) = (world.now, [2, 3]);
            for n in [1, 2] {
                ids.iter()
                    .filter(|id| **id != n as u64 + 1)
                    .for_each(|id| world.nodes[n].heard(*id, None, now));
            }
        }
        assert!(second < 6 || ROLES.iter().all(|role| world.holders(role).is_empty()));
    }
    let before = world.rows.clone();
    world.run(4, |world| assert!(ROLES.iter().all(|role| world.holders(role).len() <= 1)));
    for role in ROLES {
        assert_eq!(world.holders(role).len(), 1, "{role}");
        assert_eq!(world.rows[role].epoch, before[role].epoch + u64::from(before[role].holder == 1));
    }
}

/// A node that stood still acts on nothing until it has what others wrote meanwhile.
#[test]
fn a_node_that_stood_still_notices_by_its_clock() {
    let mut world = World::new(2, &["a"]);
    world.run(20, |_| {});
    let holder = world.holders("a")[0];
    let lease = world.nodes[holder].lease("a", world.now).unwrap();
    world.cut = Some(holder);
    world.run(7, |_| {});
    assert!(world.nodes[holder].lease("a", world.now).is_none());
    world.run(3, |_| {});
    assert_eq!(world.holders("a"), [1 - holder]);
    world.cut = None;
    world.step(true);
    assert!(world.nodes[holder].lease("a", world.now).is_none());
    assert!(!lease.is_current(), "what it gave is ended for good");
}

/// What was done in a role is noted before another node begins.
#[test]
fn who_gives_a_role_away_comes_to_an_end_first() {
    let mut world = World::new(1, &ROLES);
    world.gifts = true;
    world.run(20, |_| {});
    let mut late = Keeper::new(2);
    ROLES.iter().for_each(|role| late.want(role));
    world.nodes.push(late);
    let is_first = |role: &&&str| rank(role, 2) > rank(role, 1);
    let role = *ROLES.iter().find(is_first).unwrap();
    let acting = world.nodes[0].lease(role, world.now).unwrap();
    let term = world.nodes[0].roles[role].term.clone().unwrap();
    world.run(3, |_| {});
    assert!(world.nodes[0].lease(role, world.now).is_none() && term.has(world.now));
    assert_eq!(world.rows[role].holder, 1, "what is written is not refused yet");
    drop((acting, term));
    world.run(2, |_| {});
    assert_eq!(world.rows[role].holder, 2);
    // Who does not come to an end is not waited for for ever.
    let second = *ROLES.iter().filter(is_first).nth(1).unwrap();
    let _acting = world.nodes[0].lease(second, world.now);
    world.run(20, |_| {});
    assert_eq!(world.rows[second].holder, 2);
}

/// The same folder, another process.
#[test]
fn a_node_that_starts_again_takes_its_roles_back_soon() {
    let mut world = World::new(1, &ROLES);
    world.run(20, |_| {});
    let again = |id: u64, world: &World| {
        let mut node = Keeper::new(id);
        ROLES.iter().for_each(|role| node.want(role));
        node.gone(1, world.now);
        node
    };
    let mut started = World { nodes: vec![again(2, &world)], ..world };
    started.run(3, |_| {});
    assert!(ROLES.iter().all(|role| started.holders(role) == [0]));
    // Somebody who copied the folder of a node that lives takes nothing from it.
    let copy = again(3, &started);
    started.nodes.push(copy);
    started.nodes[1].gone(2, started.now);
    let rows = started.rows.clone();
    started.run(20, |_| {});
    assert_eq!(started.rows, rows);
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
