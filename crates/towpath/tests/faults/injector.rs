//! Random faults of machines, each repaired after a while.

use std::fmt;
use std::time::{Duration, Instant};

use super::machines::{EACH, Machine, NODES, SERVERS, wipe};
use super::network::all_of;
use crate::common::load_balancer::LoadBalancer;

/// Fault of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    /// kill -9, restarted later.
    Killed,
    /// SIGSTOP, SIGCONT later.
    Stopped,
    /// Its network is down.
    CutOff,
    /// It cannot reach one other machine of its kind.
    CutFrom(usize),
    /// A node cannot reach the servers; clients reach it.
    CutFromLog,
    /// kill -9, and its data is deleted.
    Lost,
}

/// A machine: kind and number.
type Victim = (u8, usize);

/// A fault that is not repaired yet.
#[derive(Debug)]
struct ActiveFault {
    victim: Victim,
    fault: FaultKind,
    until: Instant,
}

/// All machines, and their present faults.
pub struct FaultInjector {
    pub nodes: Vec<Machine>,
    pub servers: Vec<Machine>,
    balancer: LoadBalancer,
    random: fastrand::Rng,
    may_cut: bool,
    active: Vec<ActiveFault>,
    /// Number of injections of each fault.
    pub counts: Vec<(String, usize)>,
}

impl FaultInjector {
    pub fn new(
        servers: Vec<Machine>,
        nodes: Vec<Machine>,
        balancer: LoadBalancer,
        may_cut: bool,
        seed: u64,
    ) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { nodes, servers, balancer, random, may_cut, active: Vec::new(), counts: Vec::new() }
    }

    /// Injects a fault and lets some time pass. Returns its description.
    pub fn inject(&mut self) -> String {
        let what = self.choose();
        // Mostly one fault after the other, sometimes several at once. Servers take seconds to elect another leader.
        let pause = match (self.random.u8(..4), what.contains("server")) {
            (0, _) => self.random.u64(50..500),
            (_, false) => self.random.u64(600..2400),
            (_, true) => self.random.u64(1000..5500),
        };
        let end = Instant::now() + Duration::from_millis(pause);
        while Instant::now() < end {
            self.repair_due(Instant::now());
            std::thread::sleep(Duration::from_millis(10));
        }
        what
    }

    /// Repairs all faults.
    pub fn repair_all(&mut self) {
        let last = self.active.iter().map(|active| active.until).max();
        self.repair_due(last.unwrap_or_else(Instant::now));
    }

    /// Repairs the faults that have lasted long enough, and restarts programs that have exited.
    fn repair_due(&mut self, now: Instant) {
        let (over, lasting) =
            std::mem::take(&mut self.active).into_iter().partition(|active| active.until <= now);
        self.active = lasting;
        let over: Vec<ActiveFault> = over;
        for ActiveFault { victim, fault, .. } in over {
            self.undo(victim, fault);
        }
        let servers_are_well = self.active.iter().all(|active| active.victim.0 != SERVERS);
        self.servers.iter_mut().for_each(Machine::keep_running);
        // A new node cannot be opened without a log: an operator would start it then.
        if servers_are_well {
            self.nodes.iter_mut().for_each(Machine::keep_running);
        }
    }

    fn choose(&mut self) -> String {
        let text = match self.random.u8(..20) {
            0..6 => self.inject_into(SERVERS, false),
            6..17 => self.inject_into(NODES, false),
            17 => self.inject_into(SERVERS, true),
            18 => self.inject_into(NODES, true),
            _ => None,
        };
        text.unwrap_or_else(|| {
            self.balancer.disconnect_all();
            self.count("all connections of the load balancer broken".into());
            "all connections of the load balancer broken".into()
        })
    }

    /// Picks one machine of a kind, or two at once.
    fn inject_into(&mut self, kind: u8, both: bool) -> Option<String> {
        let faulty: Vec<usize> =
            self.active.iter().filter(|d| d.victim.0 == kind).map(|d| d.victim.1).collect();
        let well: Vec<usize> = (0..EACH).filter(|n| !faulty.contains(n)).collect();
        // Mostly at most one of three servers is down: with two down, nothing can be written.
        let enough = if both { EACH } else { EACH - 1 };
        if well.len() < enough && !(well.len() == 2 && self.random.u8(..10) == 0) || well.is_empty() {
            return None;
        }
        let mut texts = Vec::new();
        for n in 0..=usize::from(both) {
            let victim = (kind, well[(self.random.usize(..well.len()) + n) % well.len()]);
            if self.active.iter().any(|active| active.victim == victim) {
                continue;
            }
            let fault = self.choose_fault(victim);
            // With two servers down nothing can be written, so not for long.
            let time = self.random.u64(if both { 300..2500 } else { 300..5000 });
            self.apply(victim, fault);
            self.active.push(ActiveFault {
                victim,
                fault,
                until: Instant::now() + Duration::from_millis(time),
            });
            let name = &self.machine(victim).site.name;
            texts.push(format!("{name} {fault} for {time} ms"));
            self.count(format!("{} {fault}", if kind == NODES { "node" } else { "server" }));
        }
        Some(texts.join(" and "))
    }

    fn choose_fault(&mut self, (kind, number): Victim) -> FaultKind {
        let cut = if self.may_cut { 10 } else { 6 };
        match (self.random.u8(..cut), kind) {
            (0..3, _) => FaultKind::Killed,
            (3..5, _) => FaultKind::Stopped,
            (5, NODES) => FaultKind::Lost,
            // Servers keep their data: `cluster_power` tests the loss of it.
            (5, _) => FaultKind::Killed,
            (6..8, _) => FaultKind::CutOff,
            (_, NODES) => FaultKind::CutFromLog,
            _ => FaultKind::CutFrom((number + self.random.usize(1..EACH)) % EACH),
        }
    }

    fn machine(&mut self, (kind, number): Victim) -> &mut Machine {
        if kind == NODES { &mut self.nodes[number] } else { &mut self.servers[number] }
    }

    fn apply(&mut self, victim: Victim, fault: FaultKind) {
        match fault {
            FaultKind::Killed => self.machine(victim).kill(),
            FaultKind::Stopped => self.machine(victim).signal("STOP"),
            FaultKind::Lost => {
                let machine = self.machine(victim);
                machine.kill();
                wipe(machine);
            }
            FaultKind::CutOff | FaultKind::CutFrom(_) | FaultKind::CutFromLog => {
                self.set_cut(victim, fault, true);
            }
        }
    }

    fn undo(&mut self, victim: Victim, fault: FaultKind) {
        match fault {
            FaultKind::Killed | FaultKind::Lost => self.machine(victim).start(),
            FaultKind::Stopped => self.machine(victim).signal("CONT"),
            FaultKind::CutOff | FaultKind::CutFrom(_) | FaultKind::CutFromLog => {
                self.set_cut(victim, fault, false);
            }
        }
    }

    fn set_cut(&mut self, victim: Victim, fault: FaultKind, is_cut: bool) {
        match fault {
            FaultKind::CutFrom(other) => {
                let other = self.machine((victim.0, other)).site.ip.clone();
                self.machine(victim).site.lose(&other, is_cut);
            }
            FaultKind::CutFromLog => self.machine(victim).site.lose(&all_of(SERVERS), is_cut),
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

impl fmt::Display for FaultKind {
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
