//! Leases: who does what only one node of a cluster may do at a time.
//!
//! A lease is a row of [`Table::Leases`]: the role's name, who holds it, and how often it changed hands. What is
//! written under a lease carries its [`Lease::condition`]: once another node has the role, nothing of the one before
//! gets in any more, however late it comes. What leaves the node is done only while the lease
//! [is current](Lease::is_current): a node that stood still for a while notices by its clock.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Condition, Table};

/// A role that this node holds.
#[derive(Debug, Clone)]
pub struct Lease {
    role: String,
    row: Option<Row>,
    /// Until when it may be acted on; for ever where nobody else could.
    term: Option<Term>,
}

/// Two leases are the same if they are the same row of the same role.
impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        (&self.role, self.row) == (&other.role, other.row)
    }
}

impl Eq for Lease {}

/// Until when a lease may be acted on, as far as its node knows just now.
#[derive(Debug, Clone)]
pub struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    /// Ends at a time, unless it is extended.
    pub fn until(end: Instant) -> Self {
        Self(Arc::new(Mutex::new(Some(end))))
    }

    /// Ends later, unless it was ended for good.
    pub fn extend(&self, end: Instant) {
        if let Some(known) = &mut *self.0.lock() {
            *known = end.max(*known);
        }
    }

    /// Ends for good.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// Whether anybody else has it: a lease that is still acted on.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether it goes on at a time.
    pub fn has(&self, now: Instant) -> bool {
        self.0.lock().is_some_and(|end| now < end)
    }
}

/// What the table has of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The running node that holds it: a number made when its store was opened. Zero: nobody.
    pub holder: u64,
    /// How often the role was taken.
    pub epoch: u64,
}

impl Row {
    /// The row as it is stored: both numbers, big endian.
    pub fn encode(self) -> Bytes {
        [self.holder.to_be_bytes(), self.epoch.to_be_bytes()].concat().into()
    }

    /// Reads a stored row; `None` where it is none.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (holder, epoch) = value.split_first_chunk::<8>()?;
        let epoch = epoch.try_into().ok()?;
        Some(Self { holder: u64::from_be_bytes(*holder), epoch: u64::from_be_bytes(epoch) })
    }
}

impl Lease {
    /// The lease that a row gives, for a term.
    pub fn new(role: impl Into<String>, row: Row, term: Term) -> Self {
        Self { role: role.into(), row: Some(row), term: Some(term) }
    }

    /// The lease of a store that nobody else writes to.
    pub fn alone(role: impl Into<String>) -> Self {
        Self { role: role.into(), row: None, term: None }
    }

    /// Whether nobody else can have the role just now. To be asked right before each effect that the store does not
    /// see, such as a request to another server.
    pub fn is_current(&self) -> bool {
        self.term.as_ref().is_none_or(|term| term.has(Instant::now()))
    }

    /// The role.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// What every write made under this lease is to carry; nothing in a store that nobody else writes to.
    pub fn condition(&self) -> Option<Condition> {
        let value = Some(self.row?.encode());
        Some(Condition { table: Table::Leases, key: key(&self.role), value })
    }
}

/// Under which key the row of a role stands.
pub fn key(role: &str) -> Vec<u8> {
    role.as_bytes().to_vec()
}

/// A role that is wanted. Dropping it lets go of the role.
#[derive(Debug)]
pub struct Holding {
    current: watch::Receiver<Option<Lease>>,
    /// Where nobody else does, this keeps the channel open.
    _sender: Option<Arc<watch::Sender<Option<Lease>>>>,
}

impl Holding {
    /// A role that others decide on.
    pub fn new(current: watch::Receiver<Option<Lease>>) -> Self {
        Self { current, _sender: None }
    }

    /// A role that is held at once and for ever.
    pub fn alone(role: &str) -> Self {
        let sender = Arc::new(watch::Sender::new(Some(Lease::alone(role))));
        Self { current: sender.subscribe(), _sender: Some(sender) }
    }

    /// The lease, while this node holds the role.
    pub fn lease(&self) -> Option<Lease> {
        self.current.borrow().clone()
    }

    /// Waits until the role is taken, lost or taken again, and returns what is so now. Waits for ever where that
    /// cannot be any more.
    pub async fn changed(&mut self) -> Option<Lease> {
        if self.current.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.current.borrow_and_update().clone()
    }

    /// Waits until this node holds the role.
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
    fn rows_come_back() {
        let row = Row { holder: u64::MAX, epoch: 7 };
        assert_eq!(Row::decode(&row.encode()), Some(row));
        assert!((0..16).all(|cut| Row::decode(&row.encode()[..cut]).is_none()));
        let condition = Lease::new("polls", row, Term::until(Instant::now())).condition().unwrap();
        assert_eq!((condition.key, condition.value), (b"polls".to_vec(), Some(row.encode())));
    }

    #[test]
    fn a_lease_is_current_for_its_term() {
        let (now, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let term = Term::until(now);
        let lease = Lease::new("polls", Row { holder: 1, epoch: 1 }, term.clone());
        assert!(!lease.is_current() && Lease::alone("polls").is_current());
        term.extend(now + second * 3600);
        term.extend(now);
        assert!(lease.is_current() && term.is_used());
        term.end();
        term.extend(now + second * 3600);
        assert!(!lease.is_current(), "what has ended does not come back");
    }

    #[tokio::test]
    async fn who_is_alone_holds_every_role_at_once() {
        let mut holding = Holding::alone("polls");
        assert_eq!(holding.held().await.condition(), None);
        assert_eq!(holding.lease().unwrap().role(), "polls");
        let wait = tokio::time::timeout(std::time::Duration::from_millis(20), holding.changed());
        assert!(wait.await.is_err(), "that does not change");
    }
}
