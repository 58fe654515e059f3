//! File descriptors: the process's limit, and its division among connections, the store and all other work.
//!
//! A flush of the store that finds no descriptor stops all writing. So connections get what the store and outgoing
//! requests leave over, and never more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for tables that the store keeps open, at most.
const MAX_STORE_FILES: usize = 900;
/// Fewest descriptors for tables that the store keeps open.
const MIN_STORE_FILES: usize = 16;
/// Fewest connections: with less, nobody could use the server.
const MIN_CONNECTIONS: usize = 16;
/// Descriptors of files that are open for a moment: flushes, compactions, configuration, logs, name lookups.
const SHORT_LIVED: usize = 64;

/// Division of the descriptors that a process may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorBudget {
    /// Limit of the process when it started.
    pub limit_at_start: usize,
    /// Limit of the process.
    pub limit: usize,
    /// Tables that the store may keep open.
    pub store_files: usize,
    /// Client connections that may be open.
    pub connections: usize,
}

impl DescriptorBudget {
    /// Raises the soft limit to the hard one, and divides the result. `outgoing` requests may be open at once.
    pub fn raise(outgoing: usize) -> Self {
        let Rlimit { current: before, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let limit = if raised.is_ok() { maximum } else { before };
        // `None` is no limit; the kernel's own is a million by default.
        let count = |limit: Option<u64>| limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(1 << 20);
        Self { limit_at_start: count(before), ..Self::divide(count(limit), outgoing) }
    }

    /// Logs the division, for the operator who chooses the limit.
    pub fn log(&self) {
        let Self { limit_at_start, limit, store_files, connections } = self;
        tracing::info!(limit, limit_at_start, connections, store_files, "open files are divided");
    }

    fn divide(limit: usize, outgoing: usize) -> Self {
        let store_files = (limit / 8).clamp(MIN_STORE_FILES, MAX_STORE_FILES);
        // Half at most: a small limit must leave room for readers, and outgoing requests are retried.
        let other = (SHORT_LIVED + outgoing).min(limit / 4).max(SHORT_LIVED / 2);
        let connections = limit.saturating_sub(store_files + other).max(MIN_CONNECTIONS);
        Self { limit_at_start: limit, limit, store_files, connections }
    }

    /// Warns of a configured limit of connections that there are not enough descriptors for.
    pub fn check_connections(&self, configured: Option<usize>) {
        if let Some(configured) = configured.filter(|configured| *configured > self.connections) {
            tracing::warn!(
                configured,
                open_files = self.limit,
                connections = self.connections,
                "[server] max_connections is more than the open files leave room for: raise their limit (ulimit -n, or \
                 LimitNOFILE= of systemd)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_and_outgoing_requests_keep_their_descriptors() {
        for limit in [200, 256, 1024, 4096, 65_536, 1 << 20] {
            let DescriptorBudget { store_files, connections, .. } = DescriptorBudget::divide(limit, 272);
            assert!(store_files + connections + SHORT_LIVED / 2 <= limit, "{limit}");
            assert!(connections >= limit / 2, "{limit}: {connections} connections");
        }
        assert_eq!(
            DescriptorBudget::divide(1024, 272),
            DescriptorBudget { limit_at_start: 1024, limit: 1024, store_files: 128, connections: 640 }
        );
    }
}
