//! Harm that is done at random, and made good again after a while.

use std::fmt;
use std::time::{Duration, Instant};

use super::machines::{EACH, Machine, NODES, SERVERS, wipe};
use super::network::all_of;
use crate::common::door::Door;

/// What can happen to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// kill -9, started again later.
    Killed,
    /// SIGSTOP, SIGCONT later.
    Stopped,
    /// Its network is gone.
    CutOff,
    /// It and one other of its kind do not reach each other.
    CutFrom(usize),
    /// A node does not reach the servers; clients reach it.
    CutFromLog,
    /// kill -9, and its data is gone.
    Lost,
}

/// A machine: its kind and number.
type Victim = (u8, usize);

/// Harm that is not made good yet.
#[derive(Debug)]
struct Done {
    victim: Victim,
    harm: Harm,
    until: Instant,
}

/// All machines, and what is wrong with them.
pub struct Harms {
    pub nodes: Vec<Machine>,
    pub servers: Vec<Machine>,
    door: Door,
    random: fastrand::Rng,
    may_cut: bool,
    done: Vec<Done>,
    /// How often each was done.
    pub counts: Vec<(String, usize)>,
}

impl Harms {
    pub fn new(servers: Vec<Machine>, nodes: Vec<Machine>, door: Door, may_cut: bool, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { nodes, servers, door, random, may_cut, done: Vec::new(), counts: Vec::new() }
    }

    /// Does harm once and lets some time pass. Says what was done.
    pub fn harm(&mut self) -> String {
        let what = self.choose();
        // Mostly one after the other, sometimes several at once. Servers take seconds to agree on another leader.
        let pause = match (self.random.u8(..4), what.contains("server")) {
            (0, _) => self.random.u64(50..500),
            (_, false) => self.random.u64(600..2400),
            (_, true) => self.random.u64(1000..5500),
        };
        let end = Instant::now() + Duration::from_millis(pause);
        while Instant::now() < end {
            self.tend(Instant::now());
            std::thread::sleep(Duration::from_millis(10));
        }
        what
    }

    /// Makes everything good.
    pub fn heal(&mut self) {
        let last = self.done.iter().map(|done| done.until).max();
        self.tend(last.unwrap_or_else(Instant::now));
    }

    /// Makes good what has lasted long enough, and starts what has ended by itself.
    fn tend(&mut self, now: Instant) {
        let (over, lasting) = std::mem::take(&mut self.done).into_iter().partition(|done| done.until <= now);
        self.done = lasting;
        let over: Vec<Done> = over;
        for Done { victim, harm, .. } in over {
            self.undo(victim, harm);
        }
        let servers_are_well = self.done.iter().all(|done| done.victim.0 != SERVERS);
        self.servers.iter_mut().for_each(Machine::keep_running);
        // A new node cannot be opened without a log: whoever runs it starts it again then.
        if servers_are_well {
            self.nodes.iter_mut().for_each(Machine::keep_running);
        }
    }

    fn choose(&mut self) -> String {
        let text = match self.random.u8(..20) {
            0..6 => self.harm_one(SERVERS, false),
            6..17 => self.harm_one(NODES, false),
            17 => self.harm_one(SERVERS, true),
            18 => self.harm_one(NODES, true),
            _ => None,
        };
        text.unwrap_or_else(|| {
            self.door.slam();
            self.count("all connections of the door broken".into());
            "all connections of the door broken".into()
        })
    }

    /// One machine of a kind, or two at once.
    fn harm_one(&mut self, kind: u8, both: bool) -> Option<String> {
        let ill: Vec<usize> = self.done.iter().filter(|d| d.victim.0 == kind).map(|d| d.victim.1).collect();
        let well: Vec<usize> = (0..EACH).filter(|n| !ill.contains(n)).collect();
        // Of three servers mostly one at most is gone: with two, nothing is written.
        let enough = if both { EACH } else { EACH - 1 };
        if well.len() < enough && !(well.len() == 2 && self.random.u8(..10) == 0) || well.is_empty() {
            return None;
        }
        let mut texts = Vec::new();
        for n in 0..=usize::from(both) {
            let victim = (kind, well[(self.random.usize(..well.len()) + n) % well.len()]);
            if self.done.iter().any(|done| done.victim == victim) {
                continue;
            }
            let harm = self.kind_of_harm(victim);
            let time = self.random.u64(if both { 300..2500 } else { 300..5000 });
            self.do_harm(victim, harm);
            self.done.push(Done { victim, harm, until: Instant::now() + Duration::from_millis(time) });
            let name = &self.machine(victim).site.name;
            texts.push(format!("{name} {harm} for {time} ms"));
            self.count(format!("{} {harm}", if kind == NODES { "node" } else { "server" }));
        }
        Some(texts.join(" and "))
    }

    fn kind_of_harm(&mut self, (kind, number): Victim) -> Harm {
        let cut = if self.may_cut { 10 } else { 6 };
        match (self.random.u8(..cut), kind) {
            (0..3, _) => Harm::Killed,
            (3..5, _) => Harm::Stopped,
            (5, NODES) => Harm::Lost,
            (5, _) => Harm::Killed,
            (6..8, _) => Harm::CutOff,
            (_, NODES) => Harm::CutFromLog,
            _ => Harm::CutFrom((number + self.random.usize(1..EACH)) % EACH),
        }
    }

    fn machine(&mut self, (kind, number): Victim) -> &mut Machine {
        if kind == NODES { &mut self.nodes[number] } else { &mut self.servers[number] }
    }

    fn do_harm(&mut self, victim: Victim, harm: Harm) {
        match harm {
            Harm::Killed => self.machine(victim).kill(),
            Harm::Stopped => self.machine(victim).signal("STOP"),
            Harm::Lost => {
                let machine = self.machine(victim);
                machine.kill();
                wipe(machine);
            }
            Harm::CutOff | Harm::CutFrom(_) | Harm::CutFromLog => self.set_cut(victim, harm, true),
        }
    }

    fn undo(&mut self, victim: Victim, harm: Harm) {
        match harm {
            Harm::Killed | Harm::Lost => self.machine(victim).start(),
            Harm::Stopped => self.machine(victim).signal("CONT"),
            Harm::CutOff | Harm::CutFrom(_) | Harm::CutFromLog => self.set_cut(victim, harm, false),
        }
    }

    fn set_cut(&mut self, victim: Victim, harm: Harm, is_cut: bool) {
        match harm {
            Harm::CutFrom(other) => {
                let other = self.machine((victim.0, other)).site.ip.clone();
                self.machine(victim).site.lose(&other, is_cut);
            }
            Harm::CutFromLog => self.machine(victim).site.lose(&all_of(SERVERS), is_cut),
            _ => self.machine(victim).site.cut(is_cut),
        }
    }

    fn count(&mut self, what: String) {
        match self.counts.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((what, 1)),
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::CutOff => "cut off",
            Self::CutFrom(_) => "cut off from another",
            Self::CutFromLog => "cut off from the log",
            Self::Lost => "killed, its data lost",
        })
    }
}
