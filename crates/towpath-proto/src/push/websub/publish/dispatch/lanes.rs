//! Hosts, and the lanes in which they are delivered to.
//!
//! Addresses take turns in two lanes, each with connections of its own: one for hosts that answer soon, and one
//! for slow hosts. A host is slow after one slow answer, and fast again after [`FAST_ANSWERS`] in a row. So a host
//! that answers after seconds delays only other slow hosts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::entries::SubscriptionId;
use super::limits::HubLimits;
use super::names::NameTable;
use crate::follow::Monotonic;
use crate::push::websub::publish::delivery::{CircuitBreaker, DeliveryOutcome, RetryPolicy};

/// Time after which an answer counts as slow.
pub const SLOW_ANSWER: Duration = Duration::from_secs(1);
/// Number of fast answers in a row after which a slow host is fast again.
const FAST_ANSWERS: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Fast,
    Slow,
}

/// Speed of a host, as its answers showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostSpeed {
    Unknown,
    Fast,
    /// Slow, with the number of fast answers since.
    Slow(u8),
}

/// Host and port of callbacks at one address.
#[derive(Debug)]
struct HostQueue {
    name: Arc<str>,
    address: u32,
    breaker: CircuitBreaker,
    speed: HostSpeed,
    /// Subscribers that are due, by ticket.
    queue: BTreeMap<u64, SubscriptionId>,
    running: usize,
    subscribers: usize,
    /// `true` while the host is in a lane of its address, or in `HostTable::parked`.
    listed: bool,
    /// Time until which the host is in `HostTable::parked`.
    parked: Option<Monotonic>,
}

/// Hosts of an address that may have deliveries to make in a lane. Numbers of removed hosts stay until their turn.
#[derive(Debug, Default)]
struct LaneQueue {
    hosts: VecDeque<u32>,
    running: usize,
    /// `true` while the address is in the lane's turns.
    listed: bool,
}

#[derive(Debug)]
struct AddressEntry {
    name: Arc<str>,
    subscribers: usize,
    slow_hosts: usize,
    fast: LaneQueue,
    slow: LaneQueue,
}

impl AddressEntry {
    fn new(name: Arc<str>) -> Self {
        let (fast, slow) = Default::default();
        Self { name, subscribers: 0, slow_hosts: 0, fast, slow }
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut LaneQueue {
        match lane {
            Lane::Fast => &mut self.fast,
            Lane::Slow => &mut self.slow,
        }
    }
}

/// A delivery in progress.
#[derive(Debug, Clone, Copy)]
struct RunningDelivery {
    host: u32,
    address: u32,
    lane: Lane,
}

/// All hosts of a hub.
#[derive(Debug)]
pub(super) struct HostTable {
    limits: HubLimits,
    host_names: NameTable,
    hosts: HashMap<u32, HostQueue>,
    address_names: NameTable,
    addresses: HashMap<u32, AddressEntry>,
    /// Addresses that may have deliveries to make. Numbers of removed addresses stay until their turn.
    fast_turns: VecDeque<u32>,
    slow_turns: VecDeque<u32>,
    /// Hosts with an open circuit breaker.
    parked: BTreeSet<(Monotonic, u32)>,
    /// Deliveries in progress. They outlive removed subscriptions.
    running: HashMap<SubscriptionId, RunningDelivery>,
    running_slow: usize,
    tickets: u64,
}

impl HostTable {
    pub(super) fn new(limits: HubLimits) -> Self {
        Self {
            limits,
            host_names: NameTable::default(),
            hosts: HashMap::new(),
            address_names: NameTable::default(),
            addresses: HashMap::new(),
            fast_turns: VecDeque::new(),
            slow_turns: VecDeque::new(),
            parked: BTreeSet::new(),
            running: HashMap::new(),
            running_slow: 0,
            tickets: 0,
        }
    }

    /// Returns the number of deliveries in progress.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_running(&self, id: SubscriptionId) -> bool {
        self.running.contains_key(&id)
    }

    /// Returns the number of subscribers at an address.
    pub(super) fn subscribers_at(&self, address: &str) -> usize {
        let address = self.address_names.get(address).and_then(|number| self.addresses.get(&number));
        address.map_or(0, |address| address.subscribers)
    }

    /// Adds a subscriber to a host; returns the host's number.
    pub(super) fn add_subscriber(&mut self, host: &str, address: &str) -> u32 {
        // A name with several addresses is several hosts.
        let (host, name) = self.host_names.number(&format!("{host} {address}"));
        let (address, address_name) = self.address_names.number(address);
        self.addresses.entry(address).or_insert_with(|| AddressEntry::new(address_name)).subscribers += 1;
        let entry = self.hosts.entry(host).or_insert_with(|| HostQueue {
            name,
            address,
            breaker: CircuitBreaker::default(),
            speed: HostSpeed::Unknown,
            queue: BTreeMap::new(),
            running: 0,
            subscribers: 0,
            listed: false,
            parked: None,
        });
        entry.subscribers += 1;
        host
    }

    /// Removes a subscriber, and its ticket in the queue. The last one takes the host's failures with it.
    pub(super) fn remove_subscriber(&mut self, number: u32, ticket: Option<u64>) {
        let Some(host) = self.hosts.get_mut(&number) else { return };
        host.subscribers -= 1;
        if let Some(ticket) = ticket {
            host.queue.remove(&ticket);
        }
        if let Some(address) = self.addresses.get_mut(&host.address) {
            address.subscribers -= 1;
        }
        self.forget_unused(number);
    }

    /// Forgets a host, and its address, once they have no subscribers and no deliveries.
    fn forget_unused(&mut self, number: u32) {
        // A delivery may outlive its subscription. Its host stays until then, or the counts of the lane would
        // be wrong.
        if self.hosts.get(&number).is_none_or(|host| host.subscribers > 0 || host.running > 0) {
            return;
        }
        let Some(host) = self.hosts.remove(&number) else { return };
        self.host_names.remove(&host.name);
        if let Some(until) = host.parked {
            self.parked.remove(&(until, number));
        }
        let Some(address) = self.addresses.get_mut(&host.address) else { return };
        address.slow_hosts -= usize::from(matches!(host.speed, HostSpeed::Slow(_)));
        if address.subscribers == 0 && address.fast.running + address.slow.running == 0 {
            self.address_names.remove(&address.name);
            self.addresses.remove(&host.address);
        }
    }

    /// Queues a subscriber of a host; returns its ticket.
    pub(super) fn push(&mut self, number: u32, id: SubscriptionId) -> u64 {
        // Tickets only grow, so the first key of a queue has waited longest.
        self.tickets += 1;
        if let Some(host) = self.hosts.get_mut(&number) {
            host.queue.insert(self.tickets, id);
            self.list(number);
        }
        self.tickets
    }

    /// Puts a host with due subscribers into its lane, unless it is there already.
    fn list(&mut self, number: u32) {
        let Some(host) = self.hosts.get_mut(&number).filter(|host| !host.listed && !host.queue.is_empty())
        else {
            return;
        };
        host.listed = true;
        let Some(address) = self.addresses.get_mut(&host.address) else { return };
        let lane = lane_of(host.speed, address.slow_hosts);
        address.lane_mut(lane).hosts.push_back(number);
        let address = host.address;
        self.list_address(address, lane);
    }

    fn list_address(&mut self, number: u32, lane: Lane) {
        let Some(queue) = self.addresses.get_mut(&number).map(|address| address.lane_mut(lane)) else {
            return;
        };
        if queue.listed || queue.hosts.is_empty() {
            return;
        }
        queue.listed = true;
        match lane {
            Lane::Fast => self.fast_turns.push_back(number),
            Lane::Slow => self.slow_turns.push_back(number),
        }
    }

    /// Lets hosts with an expired breaker take turns again.
    pub(super) fn release_parked(&mut self, now: Monotonic) {
        while let Some((_, number)) = self.parked.first().copied().filter(|(time, _)| *time <= now) {
            self.parked.pop_first();
            if let Some(host) = self.hosts.get_mut(&number) {
                (host.parked, host.listed) = (None, false);
            }
            self.list(number);
        }
    }

    /// Starts the next delivery, if one may start now.
    pub(super) fn start_next(&mut self, now: Monotonic) -> Option<SubscriptionId> {
        // The fast lane first. Slow hosts have connections of their own, so they lose nothing by it.
        while self.running.len() - self.running_slow < self.limits.connections {
            let Some(address) = self.fast_turns.pop_front() else { break };
            if let Some(id) = self.serve(address, Lane::Fast, now) {
                return Some(id);
            }
        }
        while self.running_slow < self.limits.slow_connections {
            let address = self.slow_turns.pop_front()?;
            if let Some(id) = self.serve(address, Lane::Slow, now) {
                return Some(id);
            }
        }
        None
    }

    /// Returns an address's share of a lane.
    fn share(&self, lane: Lane) -> usize {
        match lane {
            Lane::Fast => self.limits.host_connections,
            // A quarter: one address with many slow ports leaves lanes to other slow hosts.
            Lane::Slow => self.limits.host_connections.min(self.limits.slow_connections.div_ceil(4)).max(1),
        }
    }

    /// Starts the next delivery of an address in a lane, if it may have another.
    fn serve(&mut self, number: u32, lane: Lane, now: Monotonic) -> Option<SubscriptionId> {
        let share = self.share(lane);
        self.addresses.get_mut(&number)?.lane_mut(lane).listed = false;
        loop {
            let queue = self.addresses.get_mut(&number)?.lane_mut(lane);
            if queue.running >= share {
                // Listed again when one of its deliveries ends.
                return None;
            }
            let host = queue.hosts.pop_front()?;
            if let Some(id) = self.serve_host(host, lane, now) {
                // To the end of the turns: an address with many hosts gets one delivery in each round, as every
                // other.
                self.list_address(number, lane);
                return Some(id);
            }
        }
    }

    /// Starts the next delivery of a host, if it may have another.
    fn serve_host(&mut self, number: u32, lane: Lane, now: Monotonic) -> Option<SubscriptionId> {
        let host = self.hosts.get_mut(&number)?;
        let address = self.addresses.get_mut(&host.address)?;
        if let Some(until) = host.breaker.open_until(now) {
            // It stays `listed`, which keeps a new entry from putting it into its lane before the breaker lets
            // it.
            host.parked = Some(until);
            self.parked.insert((until, number));
            return None;
        }
        host.listed = false;
        if lane_of(host.speed, address.slow_hosts) != lane {
            // An answer changed its lane meanwhile.
            self.list(number);
            return None;
        }
        // Half-open: a single attempt tests the host. It is listed again when that ends.
        if host.breaker.is_suspect() && host.running > 0 {
            return None;
        }
        let (_, id) = host.queue.pop_first()?;
        host.running += 1;
        address.lane_mut(lane).running += 1;
        self.running_slow += usize::from(lane == Lane::Slow);
        self.running.insert(id, RunningDelivery { host: number, address: host.address, lane });
        self.list(number);
        Some(id)
    }

    /// Handles a delivery without an answer after [`SLOW_ANSWER`]: moves it to the slow lane. Returns `false` if it
    /// is to be cut, because the slow lane is full and the fast one is needed.
    pub(super) fn handle_overdue(&mut self, id: SubscriptionId) -> bool {
        let Some(running) = self.running.get(&id).copied() else { return true };
        // Before the answer: later deliveries to the host must not take fast connections while this one hangs.
        self.set_slow(running.host);
        if running.lane == Lane::Slow {
            return true;
        }
        let share = self.share(Lane::Slow);
        let fast = self.running.len() - self.running_slow;
        let Some(address) = self.addresses.get_mut(&running.address) else { return true };
        if self.running_slow >= self.limits.slow_connections || address.slow.running >= share {
            // Half of the connections is always left to hosts that answer.
            return fast * 2 <= self.limits.connections;
        }
        address.fast.running -= 1;
        address.slow.running += 1;
        self.running_slow += 1;
        self.running.insert(id, RunningDelivery { lane: Lane::Slow, ..running });
        // Its share of the fast lane has a free place now.
        self.list_address(running.address, Lane::Fast);
        true
    }

    fn set_slow(&mut self, number: u32) {
        let Some(host) = self.hosts.get_mut(&number) else { return };
        if !matches!(host.speed, HostSpeed::Slow(_))
            && let Some(address) = self.addresses.get_mut(&host.address)
        {
            address.slow_hosts += 1;
        }
        host.speed = HostSpeed::Slow(0);
    }

    fn set_answered_soon(&mut self, number: u32) {
        let Some(host) = self.hosts.get_mut(&number) else { return };
        host.speed = match host.speed {
            HostSpeed::Unknown | HostSpeed::Fast => HostSpeed::Fast,
            HostSpeed::Slow(answers) if answers + 1 < FAST_ANSWERS => HostSpeed::Slow(answers + 1),
            HostSpeed::Slow(_) => {
                if let Some(address) = self.addresses.get_mut(&host.address) {
                    address.slow_hosts -= 1;
                }
                HostSpeed::Fast
            }
        };
    }

    /// Handles the end of a delivery; returns `false` if none was in progress.
    pub(super) fn handle_end(
        &mut self,
        now: Monotonic,
        id: SubscriptionId,
        outcome: DeliveryOutcome,
        took: Duration,
        policy: &RetryPolicy,
    ) -> bool {
        let Some(RunningDelivery { host: number, address, lane }) = self.running.remove(&id) else {
            return false;
        };
        self.running_slow -= usize::from(lane == Lane::Slow);
        if let Some(address) = self.addresses.get_mut(&address) {
            address.lane_mut(lane).running -= 1;
        }
        let is_slow = took >= SLOW_ANSWER;
        if is_slow {
            self.set_slow(number);
        }
        if let Some(host) = self.hosts.get_mut(&number) {
            host.running -= 1;
            match outcome {
                DeliveryOutcome::Accepted | DeliveryOutcome::Gone | DeliveryOutcome::Refused(_) => {
                    host.breaker.succeed();
                    if !is_slow {
                        self.set_answered_soon(number);
                    }
                }
                DeliveryOutcome::Unreachable => host.breaker.fail(now, policy),
                // No request was made, or none was waited for: nothing is known about failures.
                DeliveryOutcome::Nothing | DeliveryOutcome::TooSlow => {}
            }
        }
        self.list(number);
        self.list_address(address, lane);
        self.forget_unused(number);
        true
    }

    /// Returns the time at which the next breaker expires.
    pub(super) fn poll_timeout(&self) -> Option<Monotonic> {
        self.parked.first().map(|(time, _)| *time)
    }
}

/// Returns the lane of a host. Beside a slow host of the same address, a new one has to show first that it is fast:
/// else each further port would take a fast connection once.
fn lane_of(speed: HostSpeed, slow_hosts: usize) -> Lane {
    match speed {
        HostSpeed::Fast => Lane::Fast,
        HostSpeed::Unknown if slow_hosts == 0 => Lane::Fast,
        HostSpeed::Unknown | HostSpeed::Slow(_) => Lane::Slow,
    }
}
