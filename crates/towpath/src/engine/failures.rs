//! Failures of work that no request waits for, such as publishing documents after an append.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use crate::store_error::StoreError;

/// Work that failed last time, by feed and by what was tried.
#[derive(Debug)]
pub(crate) struct Failures {
    failed: Mutex<BTreeMap<(String, &'static str), String>>,
    gauge: Gauge,
}

impl Failures {
    /// Makes an empty record whose size the gauge shows.
    pub(crate) fn new(gauge: Gauge) -> Self {
        Self { failed: Mutex::default(), gauge }
    }

    /// Records the outcome of some work for a feed. The next success of the same work ends its failure.
    pub(crate) fn record<T>(&self, feed: &str, what: &'static str, outcome: &Result<T, StoreError>) {
        let mut failed = self.failed.lock();
        match outcome {
            Err(e) if e.is_closed() => return,
            // Another node did the work, which ends a failure of this one.
            Err(e) if e.is_conflict() => drop(failed.remove(&(feed.to_owned(), what))),
            Err(e) => drop(failed.insert((feed.to_owned(), what), e.to_string())),
            // Mostly there is nothing to remove, and the key would be made for nothing.
            Ok(_) if failed.is_empty() => return,
            Ok(_) => drop(failed.remove(&(feed.to_owned(), what))),
        }
        self.gauge.set(i64::try_from(failed.len()).unwrap_or(i64::MAX));
    }

    /// Ends the failures of some work for these feeds, which another node does from now on.
    pub(crate) fn hand_over(&self, what: &'static str, is_of: impl Fn(&str) -> bool) {
        let mut failed = self.failed.lock();
        failed.retain(|(feed, of), _| *of != what || !is_of(feed));
        self.gauge.set(i64::try_from(failed.len()).unwrap_or(i64::MAX));
    }

    /// Returns what fails for a feed, as one text; `None` if nothing does.
    pub(crate) fn of(&self, feed: &str) -> Option<String> {
        let failed = self.failed.lock();
        let of_feed = failed.iter().filter(|((of, _), _)| of == feed);
        let texts: Vec<String> =
            of_feed.map(|((_, what), error)| format!("cannot {what}: {error}")).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Returns the feeds for which something fails, ordered by name.
    pub(crate) fn feeds(&self) -> Vec<String> {
        let mut feeds: Vec<String> = self.failed.lock().keys().map(|(feed, _)| feed.clone()).collect();
        feeds.dedup();
        feeds
    }
}

#[cfg(test)]
mod tests {
    use towpath_store::WriteError;

    use super::*;

    #[test]
    fn a_failure_lasts_until_the_same_work_succeeds() {
        let failures = Failures::new(Gauge::default());
        let full = || Err::<(), _>(StoreError::from(WriteError::Storage { reason: "full".into() }));
        failures.record("a", "seal pages", &full());
        failures.record("a", "publish", &full());
        failures.record("b", "publish", &Err::<(), _>(StoreError::from(WriteError::Closed)));
        assert_eq!(failures.feeds(), ["a"]);
        assert_eq!(failures.gauge.get(), 2);
        failures.record("a", "publish", &Ok(()));
        assert_eq!(failures.of("a").unwrap(), "cannot seal pages: cannot write to the tables: full");
        failures.record("a", "seal pages", &Ok(()));
        assert_eq!((failures.of("a"), failures.gauge.get()), (None, 0));
    }

    /// A node would be degraded for ever by the failure of work that is now another node's.
    #[test]
    fn a_failure_ends_when_another_node_does_the_work() {
        let failures = Failures::new(Gauge::default());
        let full = || Err::<(), _>(StoreError::from(WriteError::Storage { reason: "full".into() }));
        failures.record("a", "seal pages", &full());
        let lost = WriteError::Precondition { table: towpath_store::Table::Chains, key: b"k".to_vec() };
        failures.record("a", "seal pages", &Err::<(), _>(lost.into()));
        assert_eq!((failures.of("a"), failures.gauge.get()), (None, 0));
        for (feed, what) in [("a", "seal pages"), ("b", "seal pages"), ("b", "publish")] {
            failures.record(feed, what, &full());
        }
        failures.hand_over("seal pages", |feed| feed == "a");
        assert_eq!((failures.feeds(), failures.gauge.get()), (vec!["b".to_owned()], 2));
        failures.hand_over("seal pages", |_| true);
        assert!(failures.of("b").unwrap().starts_with("cannot publish:"));
    }
}
