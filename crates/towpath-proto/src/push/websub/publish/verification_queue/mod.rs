//! Verifications that wait: for a slot, for the end of a pause, or for their address.
//!
//! Anybody can have a hub call an address, so the queue bounds what that costs the hub and the address. A slot is held
//! during a request only; a pause between retries holds an entry. Entries are limited, in total and by requester. When
//! there are too many, an entry that waits is evicted for a new one. An address gets no more than a few requests a
//! minute, over all topics, ports and requesters, except for those that it confirms.
//!
//! Call [`VerificationQueue::submit`] for each request to a hub, and [`VerificationQueue::poll`] until it returns
//! `None`. Ask [`VerificationQueue::admit`] before each connection. End each verification by one of the `handle`
//! methods. Repeat at [`VerificationQueue::poll_timeout`].

mod budget;
mod fair_stack;

use std::collections::{BTreeSet, HashMap};

use super::address_block::AddressBlock;
use crate::follow::Monotonic;
use budget::AddressBudgets;
use fair_stack::FairStack;

/// Limits of a hub's verifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerificationLimits {
    /// Maximum concurrent requests.
    pub running: usize,
    /// Maximum verifications, running and waiting.
    pub pending: usize,
    /// Maximum verifications that one client asked for.
    pub requester_pending: usize,
    /// Maximum verifications that wait for one address.
    pub address_pending: usize,
    /// Maximum unconfirmed requests a minute to one address.
    pub address_requests: u32,
}

impl Default for VerificationLimits {
    fn default() -> Self {
        Self {
            running: 256,
            pending: 10_000,
            requester_pending: 1000,
            address_pending: 200,
            address_requests: 6,
        }
    }
}

/// Number of a verification.
pub type VerificationId = u64;

/// Client that asked for a verification, by its address; `None` for the hub itself.
pub type VerificationClient = Option<AddressBlock>;

/// Error: too many verifications, none of which may be evicted. The hub's decision: 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    /// Limit of the hub.
    #[error("too many subscriptions are being verified: {0} ([hub] verifications)")]
    Hub(usize),
    /// Limit of the client.
    #[error("too many subscriptions of this client are being verified: {0} ([hub] client_verifications)")]
    Client(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    /// In `VerificationQueue::ready`.
    Ready,
    Running,
    /// Between two attempts.
    Paused(Monotonic),
    /// Waits until its address may get a request.
    Blocked(AddressBlock),
}

#[derive(Debug)]
struct Entry<T> {
    requester: VerificationClient,
    /// Address of the callback, once it is known.
    address: Option<AddressBlock>,
    state: EntryState,
    /// `None` while the caller has it.
    data: Option<T>,
}

/// Queue of verifications. `T` is the caller's data for each.
#[derive(Debug)]
pub struct VerificationQueue<T> {
    limits: VerificationLimits,
    entries: HashMap<VerificationId, Entry<T>>,
    last: VerificationId,
    ready: FairStack,
    pauses: BTreeSet<(Monotonic, VerificationId)>,
    /// Verifications by their requester, the oldest first.
    requesters: HashMap<VerificationClient, BTreeSet<VerificationId>>,
    budgets: AddressBudgets,
    running: usize,
    evicted: Vec<T>,
}

impl<T> VerificationQueue<T> {
    /// Creates an empty queue.
    pub fn new(limits: VerificationLimits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            last: 0,
            ready: FairStack::default(),
            pauses: BTreeSet::new(),
            requesters: HashMap::new(),
            budgets: AddressBudgets::new(limits.address_requests),
            running: 0,
            evicted: Vec::new(),
        }
    }

    /// Returns the number of verifications, running and waiting.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` without verifications.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of running verifications.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Adds a verification. `address` is that of the callback, if its URL names one.
    ///
    /// # Errors
    ///
    /// [`QueueFull`] if nothing can be evicted for it.
    pub fn submit(
        &mut self,
        requester: VerificationClient,
        address: Option<AddressBlock>,
        data: T,
    ) -> Result<(), QueueFull> {
        // The hub's own requests, renewals for instance, must not keep clients out.
        let limit = if requester.is_some() { self.limits.requester_pending } else { self.limits.pending / 2 };
        let of_requester = self.requesters.get(&requester).map_or(0, BTreeSet::len);
        if of_requester >= limit && !self.evict_of(requester) {
            return Err(QueueFull::Client(limit));
        }
        // After the client's own limit, so that one client's flood costs its own entries first.
        if self.entries.len() >= self.limits.pending && !self.evict_for(requester) {
            return Err(QueueFull::Hub(self.limits.pending));
        }
        self.last += 1;
        let entry = Entry { requester, address, state: EntryState::Ready, data: Some(data) };
        self.entries.insert(self.last, entry);
        self.requesters.entry(requester).or_default().insert(self.last);
        self.ready.push_new(requester, self.last);
        Ok(())
    }

    /// Evicts an entry: the requester's own if it has one, else one of whoever has most.
    fn evict_for(&mut self, requester: VerificationClient) -> bool {
        if self.evict_of(requester) {
            return true;
        }
        // Whoever has most is the likeliest flood. A client with a single entry keeps it.
        let most = self.requesters.iter().max_by_key(|(_, ids)| ids.len()).map(|(requester, _)| *requester);
        most.is_some_and(|most| self.evict_of(most))
    }

    /// Evicts the requester's oldest entry that was tried already, or that waits for its address.
    fn evict_of(&mut self, requester: VerificationClient) -> bool {
        let waits = |id: &&VerificationId| {
            let state = self.entries.get(id).map(|entry| entry.state);
            // Never one that is ready or running: a flood of new requests would otherwise evict each other
            // untried.
            matches!(state, Some(EntryState::Paused(_) | EntryState::Blocked(_)))
        };
        let oldest = self.requesters.get(&requester).and_then(|ids| ids.iter().find(waits).copied());
        oldest.is_some_and(|id| {
            let data = self.remove(id);
            self.evicted.extend(data);
            true
        })
    }

    /// Takes the data of evicted verifications.
    pub fn take_evicted(&mut self) -> Vec<T> {
        std::mem::take(&mut self.evicted)
    }

    fn remove(&mut self, id: VerificationId) -> Option<T> {
        let entry = self.entries.remove(&id)?;
        match entry.state {
            EntryState::Ready => self.ready.remove(entry.requester, id),
            EntryState::Running => self.running -= 1,
            EntryState::Paused(until) => {
                self.pauses.remove(&(until, id));
            }
            EntryState::Blocked(address) => self.budgets.unblock(address, entry.requester, id),
        }
        if let Some(ids) = self.requesters.get_mut(&entry.requester) {
            ids.remove(&id);
            // Addresses are made up by clients, so the map must not keep them.
            if ids.is_empty() {
                self.requesters.remove(&entry.requester);
            }
        }
        entry.data
    }

    /// Returns the next verification to make a request for, if any may begin now.
    pub fn poll(&mut self, now: Monotonic) -> Option<(VerificationId, T)> {
        self.wake(now);
        // A full table of budgets could not count another address, and an address that is not counted is not
        // protected.
        while self.running < self.limits.running && !self.budgets.is_full() {
            let (requester, id) = self.ready.pop()?;
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            // Without a slot, where the address is known.
            if let Some(address) = entry.address.filter(|address| !self.budgets.has_budget(now, *address)) {
                self.block(now, requester, id, address);
                continue;
            }
            let Some(data) = entry.data.take() else { continue };
            entry.state = EntryState::Running;
            self.running += 1;
            return Some((id, data));
        }
        None
    }

    /// Readies entries whose pause is over, or whose address may get a request.
    fn wake(&mut self, now: Monotonic) {
        while let Some((_, id)) = self.pauses.first().copied().filter(|(time, _)| *time <= now) {
            self.pauses.pop_first();
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.state = EntryState::Ready;
                self.ready.push_again(entry.requester, id);
            }
        }
        while let Some(id) = self.budgets.poll_unblocked(now) {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.state = EntryState::Ready;
                self.ready.push_new(entry.requester, id);
            }
        }
    }

    fn block(
        &mut self,
        now: Monotonic,
        requester: VerificationClient,
        id: VerificationId,
        address: AddressBlock,
    ) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.state, entry.address) = (EntryState::Blocked(address), Some(address));
        }
        self.budgets.block(now, address, requester, id);
        // Counted after the new entry is in, so that the oldest goes: it has waited longest in vain.
        if self.budgets.blocked(address) > self.limits.address_pending
            && let Some(oldest) = self.budgets.oldest_blocked(address)
        {
            let data = self.remove(oldest);
            self.evicted.extend(data);
        }
    }

    /// Returns `true` if a connection to an address may be opened now, and counts it.
    pub fn admit(&mut self, now: Monotonic, address: AddressBlock) -> bool {
        self.budgets.take(now, address)
    }

    /// Handles a verification that [`Self::admit`] refused a connection.
    pub fn handle_denied(&mut self, now: Monotonic, id: VerificationId, address: AddressBlock, data: T) {
        if let Some(requester) = self.give_back(id, data) {
            self.block(now, requester, id, address);
        }
    }

    /// Handles a verification that is to be tried again at a time.
    pub fn handle_retry(&mut self, id: VerificationId, at: Monotonic, data: T) {
        if self.give_back(id, data).is_some()
            && let Some(entry) = self.entries.get_mut(&id)
        {
            entry.state = EntryState::Paused(at);
            self.pauses.insert((at, id));
        }
    }

    fn give_back(&mut self, id: VerificationId, data: T) -> Option<VerificationClient> {
        let entry = self.entries.get_mut(&id)?;
        entry.data = Some(data);
        self.running -= 1;
        Some(entry.requester)
    }

    /// Handles the confirmation by an address. It has agreed to the request, which then does not count.
    pub fn handle_confirmed(&mut self, now: Monotonic, address: AddressBlock) {
        self.budgets.refund(now, address);
    }

    /// Handles the end of a verification.
    pub fn handle_end(&mut self, id: VerificationId) {
        self.remove(id);
    }

    /// Returns the time of the next call of [`Self::poll`].
    pub fn poll_timeout(&self) -> Option<Monotonic> {
        let pause = self.pauses.first().map(|(time, _)| *time);
        [pause, self.budgets.poll_timeout()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
