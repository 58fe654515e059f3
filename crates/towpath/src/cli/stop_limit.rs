//! Bound on the time that a server takes to stop.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_store::Store;

use crate::stop::{Stop, stopped};

/// Longest time from the signal to the end of a cluster's node. Service managers kill after 30 s and more.
const NODE_LIMIT: Duration = Duration::from_secs(20);
/// Longest time for a single server, which finishes a large document first. The packaged unit allows 60 s.
const LIMIT: Duration = Duration::from_secs(50);
/// Time for which the last writes wait for a cluster: within the time that running answers have.
const WRITES: Duration = Duration::from_secs(8);

/// Watch over a server that stops.
pub(crate) struct StopLimit {
    waits_for: Mutex<&'static str>,
}

/// Returns the longest time from the signal to the end of the process.
pub(crate) fn limit(is_shared: bool) -> Duration {
    if is_shared { NODE_LIMIT } else { LIMIT }
}

impl StopLimit {
    /// Bounds the writes of a store once `stop` is set, and the time until the process has ended.
    pub(crate) fn watch(store: Arc<dyn Store>, limit: Duration, stop: Stop) -> Arc<Self> {
        let watch = Arc::new(Self { waits_for: Mutex::new("the start") });
        let watched = watch.clone();
        tokio::spawn(async move {
            stopped(&stop).await;
            store.bound_writes(WRITES);
            drop(store);
            // A thread, for it must come to its turn even if all of the runtime's threads are blocked.
            std::thread::spawn(move || watched.end_after(limit));
        });
        watch
    }

    /// Tells what the server waits for from now on.
    pub(crate) fn waits_for(&self, what: &'static str) {
        *self.waits_for.lock() = what;
    }

    /// Ends the process after the limit. What was acknowledged is on disk: it is as safe as a crash.
    fn end_after(&self, limit: Duration) {
        std::thread::sleep(limit);
        let waits_for = *self.waits_for.lock();
        tracing::error!(
            waits_for,
            seconds = limit.as_secs(),
            "did not stop in time, and ends without the rest"
        );
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokio::sync::watch;
    use towpath_store::memory::MemoryStore;

    use super::*;

    const IS_HELD: &str = "TOWPATH_TEST_STOP_IS_HELD";

    /// A server whose only thread never comes back, so that nothing of its runtime can end it.
    fn hold() {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (sender, stop) = watch::channel(false);
            let store = Arc::new(MemoryStore::new(Arc::new(jiff::Timestamp::now)));
            let limit = StopLimit::watch(store, Duration::from_millis(200), stop);
            limit.waits_for("a backup");
            sender.send(true).unwrap();
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(Duration::from_secs(30));
        });
    }

    /// The process ends, so the test runs itself in another one.
    #[test]
    fn a_stop_that_is_held_ends_by_force_and_tells_what_it_waited_for() {
        if std::env::var_os(IS_HELD).is_some() {
            return hold();
        }
        let name = "cli::stop_limit::tests::a_stop_that_is_held_ends_by_force_and_tells_what_it_waited_for";
        let mut held = Command::new(std::env::current_exe().unwrap());
        let output = held.args(["--exact", name, "--nocapture"]).env(IS_HELD, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        // A failed test ends with 101, and one that slept to its end with 0.
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("did not stop in time") && told.contains("a backup"), "{told}");
    }

    /// Service managers kill after the time of the packaged unit, and of what follows SIGTERM elsewhere.
    #[test]
    fn limits_are_shorter_than_those_of_service_managers() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd/towpath.service");
        let unit = std::fs::read_to_string(file).unwrap();
        let line = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        let seconds: u64 = line.trim_end_matches('s').parse().unwrap();
        assert!(limit(false) < Duration::from_secs(seconds), "{line}");
        assert!(limit(true) < Duration::from_secs(30));
        assert!(WRITES < limit(true));
    }
}
