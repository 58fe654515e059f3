//! Memory budget of all fetches at once: bodies while they arrive, and what is read from them.
//!
//! A limit for each document is not enough: a hundred sources can send a large one at the same time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use towpath_proto::follow::TransferError;
use towpath_proto::format::MEMORY_TIMES;

/// Bytes of a permit.
const UNIT: u64 = 16 << 10;
/// Bytes of each body that are not counted: a small document never waits for large ones.
const UNCOUNTED: u64 = 128 << 10;
/// Time that a fetch waits which holds a large share already. It gives its share up to the others.
const GREEDY_WAIT: Duration = Duration::from_secs(1);

/// Memory of bodies while they arrive. Clones share it.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    free: Arc<Semaphore>,
    /// Permits in all.
    size: u32,
}

/// Memory of bodies and of documents that are being read. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    bodies: BodyBudget,
    reading: Arc<Semaphore>,
    /// Permits of `reading`.
    reading_size: u32,
}

/// Share of a body. It is free again once this is dropped.
#[derive(Debug)]
pub struct BodyShare {
    budget: BodyBudget,
    received: u64,
    held: Option<OwnedSemaphorePermit>,
}

/// Share of a document that is being read.
#[derive(Debug)]
pub struct ReadingShare {
    _held: Option<OwnedSemaphorePermit>,
}

impl Default for MemoryBudget {
    /// 256 MiB.
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl BodyBudget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        let size = permits(bytes);
        Self { free: Arc::new(Semaphore::new(size as usize)), size }
    }

    /// Returns the empty share of a body.
    pub fn body(&self) -> BodyShare {
        BodyShare { budget: self.clone(), received: 0, held: None }
    }
}

impl MemoryBudget {
    /// Creates a budget of `bytes`.
    ///
    /// A quarter is for bodies. The rest is for reading them, which takes [`MEMORY_TIMES`] their size in all. A body that
    /// is larger than its part has it alone, up to the limit of its own request.
    pub fn new(bytes: u64) -> Self {
        let bodies = BodyBudget::new(bytes / MEMORY_TIMES as u64);
        let reading_size = permits(bytes - bytes / MEMORY_TIMES as u64);
        Self { bodies, reading: Arc::new(Semaphore::new(reading_size as usize)), reading_size }
    }

    /// Returns the empty share of a body.
    pub fn body(&self) -> BodyShare {
        self.bodies.body()
    }

    /// Waits until a document of `length` bytes may be read, given the memory that any document may take.
    pub async fn reading(&self, length: usize, least: usize) -> ReadingShare {
        // A small document cannot hold many values, whatever it may take.
        let least = least.min(length.saturating_mul(64));
        let needed = length.saturating_mul(MEMORY_TIMES - 1).max(least) as u64;
        // Taken at once and by nobody who holds another part of it: two readers cannot wait for each other.
        let permits = permits(needed).min(self.reading_size);
        ReadingShare { _held: self.reading.clone().acquire_many_owned(permits).await.ok() }
    }
}

impl BodyShare {
    /// Adds received bytes to the share. Waits, up to `patience`, while other bodies use the budget.
    ///
    /// # Errors
    ///
    /// [`TransferError::Timeout`] if the budget stays in use.
    pub async fn grow(&mut self, bytes: u64, patience: Duration) -> Result<(), TransferError> {
        self.received = self.received.saturating_add(bytes);
        // The whole budget is enough for any body: its request limits it, and the others wait.
        let needed = permits(self.received.saturating_sub(UNCOUNTED)).min(self.budget.size);
        let held = self.held.as_ref().map_or(0, |held| u32::try_from(held.num_permits()).unwrap_or(u32::MAX));
        let Some(more) = needed.checked_sub(held).filter(|more| *more > 0) else { return Ok(()) };
        // Of many large bodies all could wait for each other. Those with the largest shares give up first.
        let wait = if held > self.budget.size / 4 { GREEDY_WAIT.min(patience) } else { patience };
        // Bodies that began to wait at once must not give up at once: the first one leaves its share to the others.
        let wait = wait.mul_f64(1.0 - fastrand::f64() / 2.0);
        match timeout(wait, self.budget.free.clone().acquire_many_owned(more)).await {
            Ok(Ok(permit)) => {
                match &mut self.held {
                    Some(held) => held.merge(permit),
                    None => self.held = Some(permit),
                }
                Ok(())
            }
            _ => Err(TransferError::Timeout(format!(
                "other fetches use the memory for documents, after {} bytes of this one",
                self.received
            ))),
        }
    }
}

fn permits(bytes: u64) -> u32 {
    // tokio's semaphores hold fewer permits than a u32; 16 TiB are enough.
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(1 << 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn bodies_share_a_quarter_of_the_budget() {
        let budget = MemoryBudget::new(8 << 20);
        let (mut one, mut two, mut small) = (budget.body(), budget.body(), budget.body());
        one.grow(1 << 20, PATIENCE).await.unwrap();
        two.grow(1 << 20, PATIENCE).await.unwrap();
        // Neither can have the rest: the one that asks gives up, and the other goes on.
        assert!(matches!(one.grow(1 << 20, PATIENCE).await, Err(TransferError::Timeout(_))));
        small.grow(UNCOUNTED, Duration::ZERO).await.unwrap();
        drop(one);
        two.grow(900 << 10, Duration::ZERO).await.unwrap();
        drop(two);
        assert_eq!(budget.bodies.free.available_permits(), budget.bodies.size as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_document_is_read_alone() {
        let budget = MemoryBudget::new(8 << 20);
        let mut large = budget.body();
        large.grow(1 << 20, PATIENCE).await.unwrap();
        large.grow(63 << 20, PATIENCE).await.unwrap();
        assert!(matches!(budget.body().grow(1 << 20, PATIENCE).await, Err(TransferError::Timeout(_))));
        drop(large);
        let reading = budget.reading(64 << 20, 0).await;
        assert!(timeout(PATIENCE, budget.reading(1, 1)).await.is_err());
        drop(reading);
        let _two = (budget.reading(1 << 20, 0).await, budget.reading(1 << 20, 0).await);
    }
}
