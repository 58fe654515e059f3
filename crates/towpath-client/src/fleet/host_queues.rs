//! Round-robin queues of due feeds, one per host, with a limit of concurrent polls per host.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use towpath_proto::sup::follow::FeedKey;

/// Due feeds by host.
#[derive(Debug)]
pub(super) struct HostQueues {
    /// Maximum number of concurrent polls of one host.
    per_host: usize,
    hosts: HashMap<Arc<str>, HostQueue>,
    /// Hosts with a due feed and a free slot, in round-robin order.
    ready: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct HostQueue {
    due: VecDeque<FeedKey>,
    running: usize,
    is_ready: bool,
}

impl HostQueues {
    pub(super) fn new(per_host: usize) -> Self {
        Self { per_host, hosts: HashMap::new(), ready: VecDeque::new() }
    }

    /// Queues a due feed.
    pub(super) fn push(&mut self, host: Arc<str>, feed: FeedKey) {
        self.hosts.entry(host.clone()).or_default().due.push_back(feed);
        self.mark_ready(host);
    }

    /// Takes the next feed and its host. Pass the host to [`Self::done`] after the poll.
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, FeedKey)> {
        let host = self.ready.pop_front()?;
        let queue = self.hosts.get_mut(&host)?;
        queue.is_ready = false;
        let feed = queue.due.pop_front()?;
        queue.running += 1;
        // The host goes to the end of the line, behind the other hosts.
        self.mark_ready(host.clone());
        Some((host, feed))
    }

    /// Frees the slot of a finished poll.
    pub(super) fn done(&mut self, host: Arc<str>) {
        let Some(queue) = self.hosts.get_mut(&host) else { return };
        queue.running = queue.running.saturating_sub(1);
        // A fleet may span many hosts: those without work must not accumulate.
        if queue.running == 0 && queue.due.is_empty() {
            self.hosts.remove(&host);
        } else {
            self.mark_ready(host);
        }
    }

    /// Returns true if a poll may start.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns true if no feed is due.
    pub(super) fn is_empty(&self) -> bool {
        // Not `ready`: a host at its limit is in no line and may still have due feeds.
        self.hosts.values().all(|queue| queue.due.is_empty())
    }

    fn mark_ready(&mut self, host: Arc<str>) {
        let Some(queue) = self.hosts.get_mut(&host) else { return };
        // At most once in the line. Twice would give a host two turns in each round.
        if !queue.is_ready && !queue.due.is_empty() && queue.running < self.per_host {
            queue.is_ready = true;
            self.ready.push_back(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use towpath_proto::follow::Now;
    use towpath_proto::sup::follow::{SupFollower, SupPollIntervals};

    use super::*;

    fn keys(count: usize) -> Vec<FeedKey> {
        let mut consumer = SupFollower::new(SupPollIntervals::default());
        (0..count).map(|n| consumer.add_feed(n.to_string(), Now::simulated(Timestamp::UNIX_EPOCH))).collect()
    }

    #[test]
    fn hosts_are_served_round_robin_up_to_their_limit() {
        let mut queues = HostQueues::new(2);
        for key in keys(6) {
            let host = if key.index() < 5 { "a" } else { "b" };
            queues.push(host.into(), key);
        }
        let mut taken = Vec::new();
        while let Some((_, key)) = queues.pop() {
            taken.push(key.index());
        }
        assert_eq!(taken, [0, 5, 1], "b is not behind all of a's feeds");
        assert!(!queues.has_ready() && !queues.is_empty());
        queues.done("b".into());
        assert!(queues.pop().is_none());
        for expected in [2, 3, 4] {
            queues.done("a".into());
            assert_eq!(queues.pop().map(|(_, key)| key.index()), Some(expected));
        }
        assert!(queues.is_empty());
        queues.done("a".into());
        queues.done("a".into());
        assert!(queues.hosts.is_empty(), "a host without feeds takes no room");
    }
}
