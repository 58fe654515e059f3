//! Feeds that wait to be asked, by host: each host's turn comes, whatever the others do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use towpath_proto::sup::follow::FeedKey;

/// Waiting feeds.
#[derive(Debug)]
pub(super) struct Lanes {
    /// How many feeds of one host are asked at once.
    per_host: usize,
    hosts: HashMap<Arc<str>, Lane>,
    /// Hosts with feeds that wait and room to ask them.
    turns: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<FeedKey>,
    running: usize,
    has_turn: bool,
}

impl Lanes {
    pub(super) fn new(per_host: usize) -> Self {
        Self { per_host, hosts: HashMap::new(), turns: VecDeque::new() }
    }

    /// A feed waits for its host's turn.
    pub(super) fn push(&mut self, host: Arc<str>, feed: FeedKey) {
        self.hosts.entry(host.clone()).or_default().waiting.push_back(feed);
        self.give_turn(host);
    }

    /// The feed whose turn it is, and its host, which is to be handed back once the feed was asked.
    pub(super) fn pop(&mut self) -> Option<(Arc<str>, FeedKey)> {
        let host = self.turns.pop_front()?;
        let lane = self.hosts.get_mut(&host)?;
        lane.has_turn = false;
        let feed = lane.waiting.pop_front()?;
        lane.running += 1;
        self.give_turn(host.clone());
        Some((host, feed))
    }

    /// A feed of this host was asked.
    pub(super) fn done(&mut self, host: Arc<str>) {
        let Some(lane) = self.hosts.get_mut(&host) else { return };
        lane.running = lane.running.saturating_sub(1);
        if lane.running == 0 && lane.waiting.is_empty() {
            self.hosts.remove(&host);
        } else {
            self.give_turn(host);
        }
    }

    /// Whether a feed could be asked.
    pub(super) fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether no feed waits.
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.values().all(|lane| lane.waiting.is_empty())
    }

    fn give_turn(&mut self, host: Arc<str>) {
        let Some(lane) = self.hosts.get_mut(&host) else { return };
        if !lane.has_turn && !lane.waiting.is_empty() && lane.running < self.per_host {
            lane.has_turn = true;
            self.turns.push_back(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use towpath_proto::sup::follow::{Consumer, Settings};

    use super::*;

    fn keys(count: usize) -> Vec<FeedKey> {
        let mut consumer = Consumer::new(Settings::default());
        (0..count).map(|n| consumer.add_feed(n.to_string(), Timestamp::UNIX_EPOCH)).collect()
    }

    #[test]
    fn hosts_take_turns_and_none_gets_more_than_its_share() {
        let mut lanes = Lanes::new(2);
        for key in keys(6) {
            let host = if key.index() < 5 { "a" } else { "b" };
            lanes.push(host.into(), key);
        }
        let mut taken = Vec::new();
        while let Some((_, key)) = lanes.pop() {
            taken.push(key.index());
        }
        assert_eq!(taken, [0, 5, 1], "b is not behind all of a's feeds");
        assert!(!lanes.has_turn() && !lanes.is_empty());
        lanes.done("b".into());
        assert!(lanes.pop().is_none());
        for expected in [2, 3, 4] {
            lanes.done("a".into());
            assert_eq!(lanes.pop().map(|(_, key)| key.index()), Some(expected));
        }
        assert!(lanes.is_empty());
        lanes.done("a".into());
        lanes.done("a".into());
        assert!(lanes.hosts.is_empty(), "a host without feeds takes no room");
    }
}
