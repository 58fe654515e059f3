//! Requests that an address may get, and the verifications that wait for them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::fair_stack::FairStack;
use super::{VerificationClient, VerificationId};
use crate::follow::Monotonic;
use crate::push::websub::publish::address_block::AddressBlock;

const MINUTE: Duration = Duration::from_secs(60);
/// Maximum addresses that had a request lately. More requests wait until some are forgotten.
// Each takes about 200 bytes.
const MAX_ADDRESSES: usize = 1 << 16;

/// Token buckets of addresses: half of a minute's requests at once, the other half spread over the minute. So no minute
/// has more than the whole.
#[derive(Debug)]
pub(super) struct AddressBudgets {
    interval: Duration,
    /// Time that the bucket's tokens stand for, without one of them.
    burst: Duration,
    addresses: HashMap<AddressBlock, AddressBudget>,
    /// Times at which an address may get its next request, or is forgotten.
    timers: BTreeSet<(Monotonic, AddressBlock)>,
}

#[derive(Debug, Default)]
struct AddressBudget {
    /// Time at which the bucket is full again (the "theoretical arrival time" of the generic cell rate algorithm).
    full_at: Monotonic,
    blocked: FairStack,
    timer: Option<Monotonic>,
}

impl AddressBudgets {
    pub(super) fn new(requests: u32) -> Self {
        let tokens = requests.div_ceil(2).max(1);
        let interval = MINUTE / requests.saturating_sub(tokens).max(1);
        let (addresses, timers) = Default::default();
        Self { interval, burst: interval * (tokens - 1), addresses, timers }
    }

    /// Returns `true` while no further address can be noted.
    pub(super) fn is_full(&self) -> bool {
        self.addresses.len() >= MAX_ADDRESSES
    }

    pub(super) fn has_budget(&self, now: Monotonic, address: AddressBlock) -> bool {
        self.addresses.get(&address).is_none_or(|budget| budget.full_at.since(now) <= self.burst)
    }

    /// Takes a request from an address's budget, if it has one.
    pub(super) fn take(&mut self, now: Monotonic, address: AddressBlock) -> bool {
        if !self.has_budget(now, address) {
            return false;
        }
        let budget = self.addresses.entry(address).or_default();
        budget.full_at = budget.full_at.max(now) + self.interval;
        self.set_timer(now, address);
        true
    }

    /// Gives a request back that the address has agreed to.
    pub(super) fn refund(&mut self, now: Monotonic, address: AddressBlock) {
        if let Some(budget) = self.addresses.get_mut(&address) {
            let earlier = budget.full_at.since_origin().saturating_sub(self.interval);
            budget.full_at = Monotonic::from_origin(earlier);
            self.set_timer(now, address);
        }
    }

    pub(super) fn block(
        &mut self,
        now: Monotonic,
        address: AddressBlock,
        requester: VerificationClient,
        id: VerificationId,
    ) {
        self.addresses.entry(address).or_default().blocked.push_new(requester, id);
        self.set_timer(now, address);
    }

    pub(super) fn unblock(
        &mut self,
        address: AddressBlock,
        requester: VerificationClient,
        id: VerificationId,
    ) {
        if let Some(budget) = self.addresses.get_mut(&address) {
            budget.blocked.remove(requester, id);
        }
    }

    /// Returns the number of verifications that wait for an address.
    pub(super) fn blocked(&self, address: AddressBlock) -> usize {
        self.addresses.get(&address).map_or(0, |budget| budget.blocked.len())
    }

    pub(super) fn oldest_blocked(&self, address: AddressBlock) -> Option<VerificationId> {
        self.addresses.get(&address)?.blocked.oldest_of_most()
    }

    /// Returns a verification whose address may get a request now, and forgets addresses with full budgets.
    pub(super) fn poll_unblocked(&mut self, now: Monotonic) -> Option<VerificationId> {
        loop {
            let (_, address) = self.timers.first().copied().filter(|(time, _)| *time <= now)?;
            let Some(budget) = self.addresses.get_mut(&address) else {
                self.timers.pop_first();
                continue;
            };
            if let Some((_, id)) = budget.blocked.pop() {
                // One at a time: the next one when this one's request was counted, or an interval later.
                let next = (now + self.interval).max(self.allowed_at(address));
                self.move_timer(address, next);
                return Some(id);
            }
            self.timers.pop_first();
            if let Some(budget) = self.addresses.get_mut(&address) {
                budget.timer = None;
                if budget.full_at <= now {
                    self.addresses.remove(&address);
                } else {
                    self.set_timer(now, address);
                }
            }
        }
    }

    /// Returns the time from which an address may get its next request.
    fn allowed_at(&self, address: AddressBlock) -> Monotonic {
        let full_at = self.addresses.get(&address).map_or(Monotonic::ORIGIN, |budget| budget.full_at);
        Monotonic::from_origin(full_at.since_origin().saturating_sub(self.burst))
    }

    fn set_timer(&mut self, now: Monotonic, address: AddressBlock) {
        let Some(budget) = self.addresses.get(&address) else { return };
        let time = if budget.blocked.len() == 0 { budget.full_at } else { self.allowed_at(address) };
        self.move_timer(address, time.max(now));
    }

    fn move_timer(&mut self, address: AddressBlock, time: Monotonic) {
        let Some(budget) = self.addresses.get_mut(&address) else { return };
        if let Some(old) = budget.timer.replace(time) {
            self.timers.remove(&(old, address));
        }
        self.timers.insert((time, address));
    }

    /// Returns the time of the next call of [`Self::poll_unblocked`].
    pub(super) fn poll_timeout(&self) -> Option<Monotonic> {
        self.timers.first().map(|(time, _)| *time)
    }
}
