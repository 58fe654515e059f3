//! Delivery state of a single subscriber, and the circuit breaker of a host. "Push Interface": in order, with
//! a high degree of success, not queued indefinitely. WebSub 7: retried up to limits.
//!
//! A subscriber has a position and no queue: a delivery holds the log's entries after that position. Entries
//! appended during a delivery go together into the next one, so a slow subscriber costs one position. A
//! delivery that fails too long is dropped: the position moves past it, and the next delivery's previous
//! cursor shows the gap.

use std::time::Duration;

use crate::change::Seq;
use crate::follow::{Backoff, Monotonic};

/// Retry policy of deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Waits after failures.
    pub backoff: Backoff,
    /// Time from the first failure until a delivery is dropped.
    pub give_up: Duration,
    /// Consecutive failures that open a host's circuit breaker.
    pub host_failures: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            backoff: Backoff::doubling(Duration::from_secs(2), Duration::from_secs(300)),
            give_up: Duration::from_secs(30 * 60),
            host_failures: 5,
        }
    }
}

/// Result of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The callback responded with 2xx.
    Accepted,
    /// The callback responded with 410: "the subscription has been deleted" (WebSub 7).
    Gone,
    /// Any other status, with the pause that the callback requested, if any.
    Refused(Option<Duration>),
    /// No response, or none in time.
    Unreachable,
    /// No response soon, while others needed the connection.
    TooSlow,
    /// The range had no visible entries, so nothing was sent.
    Nothing,
}

/// Range of the log that a delivery covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveredRange {
    /// Position of the last entry sent. Without any, the end of the scanned range.
    pub through: Seq,
    /// Head of the log at that time, or [`DeliveredRange::through`] if more entries followed.
    pub scanned: Seq,
}

/// Next action after a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDelivery {
    /// Delivered. Entries appended meanwhile form the next delivery.
    Done,
    /// Retry, not before this time.
    Retry(Monotonic),
    /// Dropped after failing too long.
    Dropped,
    /// The subscription has ended.
    Ended,
}

/// Delivery position and failure count of a single subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryCursor {
    /// Position of the last entry that was delivered or dropped.
    position: Seq,
    /// Position up to which the log was scanned. Ahead of `position` if the entries between are not visible
    /// to the subscriber.
    scanned: Seq,
    failures: u32,
    first_failure: Option<Monotonic>,
}

impl DeliveryCursor {
    /// Creates the state of a subscriber that is to receive the entries after `position`.
    pub fn new(position: Seq) -> Self {
        Self { position, scanned: position, failures: 0, first_failure: None }
    }

    /// Returns the position after which the next delivery begins.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// Returns `true` if a log that ends at `head` may have entries to deliver.
    pub fn is_behind(&self, head: Seq) -> bool {
        self.scanned < head
    }

    /// Handles the end of a delivery over `range`.
    pub fn handle(
        &mut self,
        now: Monotonic,
        range: DeliveredRange,
        outcome: DeliveryOutcome,
        policy: &RetryPolicy,
    ) -> AfterDelivery {
        let retry_after = match outcome {
            DeliveryOutcome::Gone => return AfterDelivery::Ended,
            DeliveryOutcome::Accepted => return self.advance(range, AfterDelivery::Done),
            DeliveryOutcome::Nothing => {
                // The position moves as well: it is persisted, and a restart must not scan hidden entries
                // again.
                self.position = self.position.max(range.through);
                self.scanned = self.scanned.max(range.scanned);
                return AfterDelivery::Done;
            }
            DeliveryOutcome::Refused(retry_after) => retry_after,
            // No response, so no Retry-After either.
            DeliveryOutcome::Unreachable | DeliveryOutcome::TooSlow => None,
        };
        self.failures = self.failures.saturating_add(1);
        // The limit counts from the first failure, whatever the pauses were.
        let first = *self.first_failure.get_or_insert(now);
        if now.since(first) >= policy.give_up {
            return self.advance(range, AfterDelivery::Dropped);
        }
        // A subscriber must not postpone its own retries for longer than the policy does.
        let backoff = &policy.backoff;
        let pause = backoff.wait_or_longer(self.failures, retry_after, backoff.cap());
        AfterDelivery::Retry(now + pause)
    }

    fn advance(&mut self, range: DeliveredRange, next: AfterDelivery) -> AfterDelivery {
        let position = self.position.max(range.through);
        // The failures end with the range, also when it is dropped: the next one has all its attempts again.
        *self = Self { scanned: range.scanned.max(position), ..Self::new(position) };
        next
    }
}

/// Stops deliveries to a host after repeated failures, for all of its subscribers. A dead host then holds no
/// connections and costs a single attempt now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CircuitBreaker {
    failures: u32,
    open_until: Option<Monotonic>,
}

impl CircuitBreaker {
    /// Returns the time until which the breaker is open, if it is.
    pub fn open_until(&self, now: Monotonic) -> Option<Monotonic> {
        self.open_until.filter(|until| now < *until)
    }

    /// Returns `true` while half-open: the breaker was open and no delivery has succeeded since, so only a
    /// single attempt may run.
    pub fn is_suspect(&self) -> bool {
        self.open_until.is_some()
    }

    /// Records a response.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Records a failure.
    pub fn fail(&mut self, now: Monotonic, policy: &RetryPolicy) {
        self.failures = self.failures.saturating_add(1);
        // Below the threshold only the delivery itself backs off.
        if let Some(beyond) = self.failures.checked_sub(policy.host_failures) {
            // Longer with each failed attempt of the half-open breaker, up to the cap of the backoff.
            self.open_until = Some(now + policy.backoff.wait(beyond + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn range(through: Seq) -> DeliveredRange {
        DeliveredRange { through, scanned: through }
    }

    /// "Push notifications MUST be delivered in order": entries appended during a delivery form the next one.
    #[test]
    fn the_next_begins_where_the_last_ended() {
        let mut delivery = DeliveryCursor::new(5);
        assert!(!delivery.is_behind(5));
        assert!(delivery.is_behind(6));
        let next = delivery.handle(time(0), range(6), DeliveryOutcome::Accepted, &RetryPolicy::default());
        assert_eq!((next, delivery.position()), (AfterDelivery::Done, 6));
        assert!(delivery.is_behind(9));
    }

    /// WebSub 7: retried up to limits, then dropped; the subscription stays, and the next update is tried again.
    #[test]
    fn failures_are_retried_and_then_dropped() {
        let policy = RetryPolicy::default();
        let mut delivery = DeliveryCursor::new(5);
        let (mut now, mut tries) = (time(0), 0);
        loop {
            tries += 1;
            match delivery.handle(now, range(7), DeliveryOutcome::Unreachable, &policy) {
                AfterDelivery::Retry(at) => {
                    assert!(at > now);
                    assert_eq!(delivery.position(), 5);
                    now = at;
                }
                AfterDelivery::Dropped => break,
                other => panic!("{other:?}"),
            }
        }
        assert!((8..20).contains(&tries), "{tries}");
        assert_eq!(delivery.position(), 7);
        assert!(!delivery.is_behind(7) && delivery.is_behind(8));
        let again = delivery.handle(now, range(8), DeliveryOutcome::Unreachable, &policy);
        assert!(matches!(again, AfterDelivery::Retry(_)));
    }

    #[test]
    fn a_subscriber_may_ask_to_be_left_alone_within_limits() {
        let mut delivery = DeliveryCursor::new(0);
        let mut retry = |seconds| {
            let retry_after = DeliveryOutcome::Refused(Some(Duration::from_secs(seconds)));
            delivery.handle(time(0), range(1), retry_after, &RetryPolicy::default())
        };
        assert_eq!(retry(60), AfterDelivery::Retry(time(60)));
        assert_eq!(retry(100_000), AfterDelivery::Retry(time(300)));
    }

    /// WebSub 7: "MAY return an HTTP 410 code to indicate that the subscription has been deleted".
    #[test]
    fn gone_ends_the_subscription() {
        let next =
            DeliveryCursor::new(0).handle(time(0), range(1), DeliveryOutcome::Gone, &RetryPolicy::default());
        assert_eq!(next, AfterDelivery::Ended);
    }

    #[test]
    fn what_shows_nothing_is_not_looked_at_again() {
        let mut delivery = DeliveryCursor::new(5);
        let scanned = DeliveredRange { through: 5, scanned: 9 };
        assert_eq!(
            delivery.handle(time(0), scanned, DeliveryOutcome::Nothing, &RetryPolicy::default()),
            AfterDelivery::Done
        );
        assert_eq!(delivery.position(), 5);
        assert!(!delivery.is_behind(9) && delivery.is_behind(10));
    }

    #[test]
    fn a_host_that_keeps_failing_is_left_alone() {
        let policy = RetryPolicy { host_failures: 3, ..RetryPolicy::default() };
        let mut breaker = CircuitBreaker::default();
        breaker.fail(time(0), &policy);
        breaker.fail(time(0), &policy);
        assert_eq!(breaker.open_until(time(0)), None);
        breaker.fail(time(0), &policy);
        assert_eq!(breaker.open_until(time(1)), Some(time(2)));
        assert_eq!(breaker.open_until(time(2)), None);
        assert!(breaker.is_suspect());
        breaker.fail(time(2), &policy);
        assert_eq!(breaker.open_until(time(2)), Some(time(6)));
        breaker.succeed();
        assert!(!breaker.is_suspect() && breaker.open_until(time(2)).is_none());
    }
}
