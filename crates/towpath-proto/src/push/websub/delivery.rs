//! When one subscriber is sent what ("Push Interface": in order, with a high degree of success, not queued
//! indefinitely; WebSub 7: retried up to limits), and when a host is left alone.
//!
//! Nothing is queued for a subscriber but its position: a delivery is what the log has after it. So what is
//! appended while a delivery runs goes together into the next one, and thousands of slow subscribers cost nothing
//! but their positions. A delivery that fails too long is dropped: the position moves beyond it, and the next
//! delivery's previous cursor shows the gap.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::change::Seq;

/// How failures are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The first pause after a failure; each further one is twice as long.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// How long after its first failure a delivery is dropped.
    pub give_up: Duration,
    /// After how many failures in a row a host is left alone.
    pub host_failures: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(2),
            longest: Duration::from_secs(300),
            give_up: Duration::from_secs(30 * 60),
            host_failures: 5,
        }
    }
}

impl Patience {
    /// The pause after so many failures.
    fn pause(&self, failures: u32) -> SignedDuration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        SignedDuration::try_from(doubled.min(self.longest)).unwrap_or(SignedDuration::MAX)
    }
}

/// How a subscriber took a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// 2xx.
    Accepted,
    /// 410: "the subscription has been deleted" (WebSub 7).
    Gone,
    /// Any other answer. How long the subscriber asked to be left alone, if it did.
    Refused(Option<Duration>),
    /// No answer, or none in time.
    Unreachable,
    /// There was nothing to send after all.
    Nothing,
}

/// What a delivery carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The position of its last item; where there was none, how far was looked.
    pub through: Seq,
    /// The log's last place when it was made, or [`Carried::through`] where there was more.
    pub looked: Seq,
}

/// What follows from a delivery's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done; what came meanwhile is next.
    Done,
    /// It is to be made again, not before this time.
    Retry(Timestamp),
    /// It failed too long, and is dropped.
    Dropped,
    /// The subscription is over.
    Ended,
}

/// Where one subscriber stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The position of the last item that it was sent, or that was dropped.
    position: Seq,
    /// How far the log was looked at for it.
    looked: Seq,
    failures: u32,
    first_failure: Option<Timestamp>,
}

impl Delivery {
    /// A subscriber that is to get what comes after this position.
    pub fn new(position: Seq) -> Self {
        Self { position, looked: position, failures: 0, first_failure: None }
    }

    /// The position after which its next delivery begins.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// Whether there may be something to send to it, in a log that ends at `head`.
    pub fn is_behind(&self, head: Seq) -> bool {
        self.looked < head
    }

    /// A delivery has ended. `carried` is what it was to carry.
    pub fn handle(
        &mut self,
        now: Timestamp,
        carried: Carried,
        outcome: Outcome,
        patience: &Patience,
    ) -> Verdict {
        let asked = match outcome {
            Outcome::Gone => return Verdict::Ended,
            Outcome::Accepted => return self.advance(carried, Verdict::Done),
            Outcome::Nothing => {
                self.position = self.position.max(carried.through);
                self.looked = self.looked.max(carried.looked);
                return Verdict::Done;
            }
            Outcome::Refused(asked) => asked,
            Outcome::Unreachable => None,
        };
        self.failures = self.failures.saturating_add(1);
        let first = *self.first_failure.get_or_insert(now);
        let give_up = SignedDuration::try_from(patience.give_up).unwrap_or(SignedDuration::MAX);
        if now.duration_since(first) >= give_up {
            return self.advance(carried, Verdict::Dropped);
        }
        let asked = asked.and_then(|wait| SignedDuration::try_from(wait.min(patience.longest)).ok());
        let pause = patience.pause(self.failures).max(asked.unwrap_or_default());
        Verdict::Retry(now.saturating_add(pause).unwrap_or(now))
    }

    fn advance(&mut self, carried: Carried, verdict: Verdict) -> Verdict {
        let position = self.position.max(carried.through);
        *self = Self { looked: carried.looked.max(position), ..Self::new(position) };
        verdict
    }
}

/// Leaves a host alone that fails again and again, whoever of its subscribers is to be sent something: one that is
/// dead holds no connections, and costs one attempt now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Timestamp>,
}

impl Breaker {
    /// Until when the host is left alone, if it is.
    pub fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.open_until.filter(|until| now < *until)
    }

    /// Whether only one attempt at a time is to be made: it failed, and has not been seen well since.
    pub fn is_suspect(&self) -> bool {
        self.open_until.is_some()
    }

    /// The host answered.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// It did not.
    pub fn fail(&mut self, now: Timestamp, patience: &Patience) {
        self.failures = self.failures.saturating_add(1);
        if let Some(beyond) = self.failures.checked_sub(patience.host_failures) {
            self.open_until = now.saturating_add(patience.pause(beyond + 1)).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn carried(through: Seq) -> Carried {
        Carried { through, looked: through }
    }

    /// "Push notifications MUST be delivered in order": what came while a delivery ran goes together into the next.
    #[test]
    fn the_next_begins_where_the_last_ended() {
        let mut delivery = Delivery::new(5);
        assert!(!delivery.is_behind(5));
        assert!(delivery.is_behind(6));
        let verdict = delivery.handle(time(0), carried(6), Outcome::Accepted, &Patience::default());
        assert_eq!((verdict, delivery.position()), (Verdict::Done, 6));
        assert!(delivery.is_behind(9));
    }

    /// WebSub 7: retried up to limits, then dropped; the subscription stays, and the next update is tried again.
    #[test]
    fn failures_are_retried_and_then_dropped() {
        let patience = Patience::default();
        let mut delivery = Delivery::new(5);
        let (mut now, mut tries) = (time(0), 0);
        loop {
            tries += 1;
            match delivery.handle(now, carried(7), Outcome::Unreachable, &patience) {
                Verdict::Retry(at) => {
                    assert!(at > now);
                    assert_eq!(delivery.position(), 5);
                    now = at;
                }
                Verdict::Dropped => break,
                other => panic!("{other:?}"),
            }
        }
        assert!((8..20).contains(&tries), "{tries}");
        assert_eq!(delivery.position(), 7);
        assert!(!delivery.is_behind(7) && delivery.is_behind(8));
        let again = delivery.handle(now, carried(8), Outcome::Unreachable, &patience);
        assert!(matches!(again, Verdict::Retry(_)));
    }

    #[test]
    fn a_subscriber_may_ask_to_be_left_alone_within_limits() {
        let mut delivery = Delivery::new(0);
        let mut retry = |seconds| {
            let asked = Outcome::Refused(Some(Duration::from_secs(seconds)));
            delivery.handle(time(0), carried(1), asked, &Patience::default())
        };
        assert_eq!(retry(60), Verdict::Retry(time(60)));
        assert_eq!(retry(100_000), Verdict::Retry(time(300)));
    }

    /// WebSub 7: "MAY return an HTTP 410 code to indicate that the subscription has been deleted".
    #[test]
    fn gone_ends_the_subscription() {
        let verdict = Delivery::new(0).handle(time(0), carried(1), Outcome::Gone, &Patience::default());
        assert_eq!(verdict, Verdict::Ended);
    }

    #[test]
    fn what_shows_nothing_is_not_looked_at_again() {
        let mut delivery = Delivery::new(5);
        let looked = Carried { through: 5, looked: 9 };
        assert_eq!(delivery.handle(time(0), looked, Outcome::Nothing, &Patience::default()), Verdict::Done);
        assert_eq!(delivery.position(), 5);
        assert!(!delivery.is_behind(9) && delivery.is_behind(10));
    }

    #[test]
    fn a_host_that_keeps_failing_is_left_alone() {
        let patience = Patience { host_failures: 3, ..Patience::default() };
        let mut breaker = Breaker::default();
        breaker.fail(time(0), &patience);
        breaker.fail(time(0), &patience);
        assert_eq!(breaker.open_until(time(0)), None);
        breaker.fail(time(0), &patience);
        assert_eq!(breaker.open_until(time(1)), Some(time(2)));
        assert_eq!(breaker.open_until(time(2)), None);
        assert!(breaker.is_suspect());
        breaker.fail(time(2), &patience);
        assert_eq!(breaker.open_until(time(2)), Some(time(6)));
        breaker.succeed();
        assert!(!breaker.is_suspect() && breaker.open_until(time(2)).is_none());
    }
}
