//! Leases of roles that one node of a cluster at a time may hold.
//!
//! A lease is a row of [`Table::Leases`]: the role's name, its holder, and an epoch that counts acquisitions. Two
//! mechanisms protect a role from two nodes that both believe to hold it:
//!
//! - Fencing: writes under a lease carry its [`Lease::condition`]. Once another node holds the role, late writes
//!   of the previous holder fail.
//! - Expiry: effects outside the store happen only while the lease [is current](Lease::is_current). A node that
//!   was paused notices by its clock.
//!
//! ```
//! use towpath_store::lease::LeaseHandle;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // A store with a single writer grants every role at once.
//! let mut handle = LeaseHandle::alone("polls");
//! let lease = handle.held().await;
//! assert!(lease.check().is_ok());
//! # }
//! ```

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{LeaseError, Precondition, Table};

/// Lease of a role, held by this node.
#[derive(Debug, Clone)]
pub struct Lease {
    role: String,
    row: Option<LeaseRow>,
    /// Validity; `None` in a store with a single writer, where it never ends.
    term: Option<LeaseTerm>,
}

/// Leases are equal if they are the same row of the same role.
impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        // Without the term: that changes with every renewal.
        (&self.role, self.row) == (&other.role, other.row)
    }
}

impl Eq for Lease {}

/// Validity of a lease, shared by its clones and extended by the node that renews it.
#[derive(Debug, Clone)]
pub struct LeaseTerm(Arc<Mutex<Option<Instant>>>);

impl LeaseTerm {
    /// Creates a term that ends at `end`, unless it is extended.
    pub fn until(end: Instant) -> Self {
        Self(Arc::new(Mutex::new(Some(end))))
    }

    /// Extends the term, unless [`Self::end`] was called.
    pub fn extend(&self, end: Instant) {
        if let Some(current) = &mut *self.0.lock() {
            // A renewal that arrives late must not shorten the term.
            *current = end.max(*current);
        }
    }

    /// Ends the term. It cannot be extended afterwards.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns true while a lease shares this term: some task still acts under it.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns true if the term includes the instant `now`.
    pub fn includes(&self, now: Instant) -> bool {
        self.0.lock().is_some_and(|end| now < end)
    }
}

/// Stored row of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRow {
    /// Holder: a random number that a node draws when its store is opened. Zero for a free role.
    pub holder: u64,
    /// Number of acquisitions of the role.
    pub epoch: u64,
}

impl LeaseRow {
    /// Encodes the row: both numbers, big endian.
    pub fn encode(self) -> Bytes {
        [self.holder.to_be_bytes(), self.epoch.to_be_bytes()].concat().into()
    }

    /// Decodes a row; `None` where the bytes are not one.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (holder, epoch) = value.split_first_chunk::<8>()?;
        let epoch = epoch.try_into().ok()?;
        Some(Self { holder: u64::from_be_bytes(*holder), epoch: u64::from_be_bytes(epoch) })
    }
}

impl Lease {
    /// Creates the lease of a row, for a term.
    pub fn new(role: impl Into<String>, row: LeaseRow, term: LeaseTerm) -> Self {
        Self { role: role.into(), row: Some(row), term: Some(term) }
    }

    /// Creates the lease of a store with a single writer. It never ends.
    pub fn alone(role: impl Into<String>) -> Self {
        Self { role: role.into(), row: None, term: None }
    }

    /// Returns true while no other node can hold the role.
    ///
    /// Check it right before each effect outside the store, such as a request to another server.
    pub fn is_current(&self) -> bool {
        self.term.as_ref().is_none_or(|term| term.includes(Instant::now()))
    }

    /// Checks that the lease holds.
    ///
    /// # Errors
    ///
    /// [`LeaseError::Expired`] where [`Self::is_current`] is false.
    pub fn check(&self) -> Result<(), LeaseError> {
        if self.is_current() { Ok(()) } else { Err(LeaseError::Expired { role: self.role.clone() }) }
    }

    /// Name of the role.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Precondition of every write under this lease; `None` in a store with a single writer.
    pub fn condition(&self) -> Option<Precondition> {
        // The whole row, with its epoch: a node that lost the role and holds it again counts as another holder.
        let value = Some(self.row?.encode());
        Some(Precondition { table: Table::Leases, key: key(&self.role), value })
    }
}

/// Returns the key of a role's row.
pub fn key(role: &str) -> Vec<u8> {
    role.as_bytes().to_vec()
}

/// Handle of a requested role. Dropping it releases the role.
#[derive(Debug)]
pub struct LeaseHandle {
    current: watch::Receiver<Option<Lease>>,
    /// Keeps the channel open where no task renews the lease.
    _sender: Option<Arc<watch::Sender<Option<Lease>>>>,
}

impl LeaseHandle {
    /// Creates a handle whose lease the channel's sender grants and revokes.
    pub fn new(current: watch::Receiver<Option<Lease>>) -> Self {
        Self { current, _sender: None }
    }

    /// Creates a handle that holds its role at once, and never loses it.
    pub fn alone(role: &str) -> Self {
        let sender = Arc::new(watch::Sender::new(Some(Lease::alone(role))));
        Self { current: sender.subscribe(), _sender: Some(sender) }
    }

    /// Returns the lease, while this node holds the role.
    pub fn lease(&self) -> Option<Lease> {
        self.current.borrow().clone()
    }

    /// Waits until the role is acquired or lost, and returns the current lease. Never returns where that cannot
    /// happen any more.
    pub async fn changed(&mut self) -> Option<Lease> {
        if self.current.changed().await.is_err() {
            // The store is closed. An immediate return would make callers spin.
            std::future::pending::<()>().await;
        }
        self.current.borrow_and_update().clone()
    }

    /// Waits until this node holds the role, and returns its lease.
    pub async fn held(&mut self) -> Lease {
        loop {
            let lease = self.current.borrow_and_update().clone();
            match lease {
                Some(lease) => return lease,
                None => drop(self.changed().await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_roundtrip() {
        let row = LeaseRow { holder: u64::MAX, epoch: 7 };
        assert_eq!(LeaseRow::decode(&row.encode()), Some(row));
        assert!((0..16).all(|cut| LeaseRow::decode(&row.encode()[..cut]).is_none()));
        let condition = Lease::new("polls", row, LeaseTerm::until(Instant::now())).condition().unwrap();
        assert_eq!((condition.key, condition.value), (b"polls".to_vec(), Some(row.encode())));
    }

    #[test]
    fn a_lease_is_current_for_its_term() {
        let (now, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let term = LeaseTerm::until(now);
        let lease = Lease::new("polls", LeaseRow { holder: 1, epoch: 1 }, term.clone());
        assert!(!lease.is_current() && Lease::alone("polls").is_current());
        term.extend(now + second * 3600);
        term.extend(now);
        assert!(lease.is_current() && term.is_in_use());
        term.end();
        term.extend(now + second * 3600);
        assert!(!lease.is_current(), "an ended term cannot be extended");
    }

    #[tokio::test]
    async fn a_single_writer_holds_every_role_at_once() {
        let mut holding = LeaseHandle::alone("polls");
        assert_eq!(holding.held().await.condition(), None);
        assert_eq!(holding.lease().unwrap().role(), "polls");
        let wait = tokio::time::timeout(std::time::Duration::from_millis(20), holding.changed());
        assert!(wait.await.is_err(), "a single writer never loses a role");
    }
}
