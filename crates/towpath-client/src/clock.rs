//! The clocks that drivers read, wait by, and pass on to followers.

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use towpath_proto::follow::{Monotonic, Now};

/// The longest sleep before timers are looked at again. Monotonic time stands still while a machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The shortest sleep. A follower whose timer is due but which then does nothing must not cost a whole processor.
const SHORTEST_SLEEP: Duration = Duration::from_millis(50);

/// Origin of the system's monotonic time.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Activity of a driver that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverActivity {
    /// No request is in flight: only the timer ends the wait.
    Idle,
    /// Requests are in flight, which may end the wait before the timer.
    Busy,
}

/// A source of time: the system's, except in simulations of hours.
pub trait DriverClock: Send + Sync + Debug {
    /// The present, by both clocks.
    fn now(&self) -> Now;

    /// Returns at `until` or earlier; the caller reads the clock again.
    ///
    /// A simulated clock advances only while the driver is idle, so that no result depends on the machine's speed.
    fn sleep_until(&self, until: Monotonic, activity: DriverActivity) -> BoxFuture<'static, ()>;
}

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl DriverClock for SystemClock {
    fn now(&self) -> Now {
        Now { monotonic: Monotonic::from_origin(START.elapsed()), wall: Timestamp::now() }
    }

    fn sleep_until(&self, until: Monotonic, _activity: DriverActivity) -> BoxFuture<'static, ()> {
        let left = until.since(self.now().monotonic);
        Box::pin(tokio::time::sleep(left.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)))
    }
}
