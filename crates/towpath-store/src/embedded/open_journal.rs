//! Journals of a closed engine that are open yet.
//!
//! The engine counts its worker as ended before that thread drops its share of the journal. With the last share goes what a
//! failed write left in the buffer: it is written once more. An engine that has read the journal by then would write
//! behind it, and the next one would cut off all that follows.

#[cfg(target_os = "linux")]
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Time that a thread has to end, where the system does not tell which files are open.
#[cfg(not(target_os = "linux"))]
const SETTLE: Duration = Duration::from_millis(100);

/// Waits until this process has no journal of an engine open. Returns false if that takes longer than `timeout`.
pub(super) fn wait_until_closed(engine: &Path, timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    while has_open_journal(engine) {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

#[cfg(target_os = "linux")]
fn has_open_journal(engine: &Path) -> bool {
    // Descriptors lead to whole paths.
    let (Ok(engine), Ok(descriptors)) = (engine.canonicalize(), fs::read_dir("/proc/self/fd")) else {
        return false;
    };
    let is_journal = |path: &Path| {
        path.starts_with(&engine) && path.extension().is_some_and(|extension| extension == "jnl")
    };
    descriptors.flatten().any(|open| fs::read_link(open.path()).is_ok_and(|path| is_journal(&path)))
}

#[cfg(not(target_os = "linux"))]
fn has_open_journal(_engine: &Path) -> bool {
    std::thread::sleep(SETTLE);
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_open_journal_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let journal = fs::File::create(folder.path().join("3.jnl")).unwrap();
        assert!(!wait_until_closed(folder.path(), Duration::ZERO));
        assert!(wait_until_closed(other.path(), Duration::ZERO));
        drop(journal);
        let _table = fs::File::create(folder.path().join("7")).unwrap();
        assert!(wait_until_closed(folder.path(), Duration::ZERO));
    }
}
