//! Time, as those who wait for it see it.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

/// The longest sleep before the clock is looked at again: clocks are set, machines are suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The shortest sleep, so that a time-out in the past that leads to nothing costs no processor.
const SHORTEST_SLEEP: Duration = Duration::from_millis(50);

/// Where the time comes from. The system's, but in simulations of hours.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Returns at `until` or earlier; whoever waits looks at the time again. `idle` says that nothing is under
    /// way which could end the wait before.
    fn sleep_until(&self, until: Timestamp, idle: bool) -> BoxFuture<'static, ()>;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep_until(&self, until: Timestamp, _idle: bool) -> BoxFuture<'static, ()> {
        let left = Duration::try_from(until.duration_since(self.now())).unwrap_or_default();
        Box::pin(tokio::time::sleep(left.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)))
    }
}
