//! Pace of a copy beside publishers.
//!
//! Low priority alone leaves publishing slower: a backup takes the processor's caches, the memory's bandwidth and the
//! disk as well.

use std::thread;
use std::time::{Duration, Instant};

use towpath_store::backup::{CopyError, CopyPage, CopySource};

/// Rest after a page, as a multiple of the time that the page took.
const REST: u32 = 3;
/// Longest rest. A page that waited for a slow reader cost publishers nothing.
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Copy that rests after each page beside which the store committed something. An idle store is copied at full speed.
pub(super) struct PacedCopy<S, C> {
    source: S,
    /// Number of requests that the store has committed.
    committed: C,
    /// That number when the last page was given, and when.
    last: Option<(u64, Instant)>,
}

impl<S, C> PacedCopy<S, C> {
    pub(super) fn new(source: S, committed: C) -> Self {
        Self { source, committed, last: None }
    }
}

impl<S: CopySource, C: Fn() -> u64> CopySource for PacedCopy<S, C> {
    fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
        // A page is over when the next is asked for: then the reader has taken it.
        if let Some((committed, begun)) = self.last {
            // A blocked thread is right here: the copy has a thread of its own.
            thread::sleep(rest(begun.elapsed(), (self.committed)() != committed));
        }
        self.last = Some(((self.committed)(), Instant::now()));
        self.source.next()
    }
}

/// Returns the rest after a page that took so long.
fn rest(took: Duration, is_published: bool) -> Duration {
    if is_published { took.saturating_mul(REST).min(LONGEST_REST) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use towpath_store::embedded::copy::CopySection;

    use super::*;

    #[test]
    fn a_copy_rests_only_beside_publishers_and_never_for_long() {
        let took = Duration::from_millis(7);
        assert_eq!(rest(took, true), Duration::from_millis(21));
        assert_eq!(rest(took, false), Duration::ZERO);
        assert_eq!(rest(Duration::MAX, true), LONGEST_REST);
    }

    /// Copy of so many pages, each of which takes a while.
    struct SlowCopy(u64);

    const PAGE_TIME: Duration = Duration::from_millis(10);

    impl CopySource for SlowCopy {
        fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
            let Some(left) = self.0.checked_sub(1) else { return Ok(None) };
            self.0 = left;
            thread::sleep(PAGE_TIME);
            let entries = vec![(Bytes::from(left.to_string()), Bytes::new())];
            Ok(Some(CopyPage { section: CopySection::Log, entries }))
        }
    }

    #[test]
    fn all_pages_come_and_each_beside_a_commit_is_followed_by_a_rest() {
        let commits = Cell::new(0);
        // Two looks for each page: a commit in between means that something was published beside it.
        let committed = || commits.replace(commits.get() + 1);
        let begun = Instant::now();
        let mut copy = PacedCopy::new(SlowCopy(5), committed);
        let pages = std::iter::from_fn(|| copy.next().unwrap()).count();
        assert_eq!(pages, 5);
        assert!(begun.elapsed() >= PAGE_TIME * 5 * (1 + REST));
    }
}
