//! Pings of a publisher to hubs of others, whose subscribers learn of a change by them.
//!
//! WebSub leaves open how a publisher tells its hub. Public hubs take the ping of PubSubHubbub 0.3 and 0.4 (section
//! 7.1 of both): see [`ping_form`].
//!
//! [`PingQueue`] holds one position for each hub and feed, and no queue of changes. The first change is told at once.
//! Later ones within the interval go together into the next ping, so the last change is always told. A hub that
//! fails gets one ping at a time, after growing waits.
//!
//! Call [`PingQueue::handle_change`] after an append. Call [`PingQueue::poll_ping`] until it returns `None`, and
//! [`PingQueue::handle_end`] once for each ping. Repeat at [`PingQueue::poll_timeout`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::change::Seq;
use crate::follow::{Backoff, Monotonic};

/// Media type of [`ping_form`].
pub const PING_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";

/// Limits of pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingLimits {
    /// Shortest time between two pings to one hub about one feed.
    pub interval: Duration,
    /// Maximum number of pings in progress.
    pub connections: usize,
    /// Maximum number of them to one hub.
    pub hub_connections: usize,
    /// Waits after failures, of a feed's ping and of a hub as a whole.
    pub backoff: Backoff,
}

impl Default for PingLimits {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            connections: 16,
            hub_connections: 4,
            backoff: Backoff::doubling(Duration::from_secs(5), Duration::from_secs(3600)),
        }
    }
}

/// A ping to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuePing<K> {
    /// URL of the hub.
    pub hub: Arc<str>,
    /// Feed that changed.
    pub feed: K,
    /// Position of its last change.
    pub through: Seq,
}

/// Result of a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PingOutcome {
    /// The hub responded with 2xx.
    Accepted,
    /// The hub does not take the ping, and would not take it again (4xx). The next change is told anew.
    Refused,
    /// The hub cannot be reached or is overloaded, with the pause that it asked for, if any.
    Failed(Option<Duration>),
}

/// Changes that hubs are to be told of. `K` names a feed.
#[derive(Debug)]
pub struct PingQueue<K> {
    limits: PingLimits,
    hubs: BTreeMap<Arc<str>, HubPings<K>>,
}

/// Pings to a hub.
#[derive(Debug)]
struct HubPings<K> {
    feeds: BTreeMap<K, FeedPings>,
    /// Feeds whose next ping waits for its time.
    due: BTreeSet<(Monotonic, K)>,
    /// Feeds that have nothing to tell, with the time at which their last ping is forgotten.
    told: BTreeSet<(Monotonic, K)>,
    running: usize,
    /// Failures in a row, over all feeds.
    failures: u32,
    /// Time before which a failing hub gets no ping.
    closed_until: Option<Monotonic>,
}

/// Pings to a hub about a feed.
#[derive(Debug)]
struct FeedPings {
    /// Position of the last change.
    head: Seq,
    /// Begin of the last ping.
    begun: Option<Monotonic>,
    failures: u32,
    state: PingState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PingState {
    /// The next ping is due at this time.
    Due(Monotonic),
    /// A ping that tells everything up to this position is in progress.
    Running(Seq),
    /// Everything is told. The entry is forgotten at this time.
    Told(Monotonic),
}

impl<K: Clone + Ord> PingQueue<K> {
    /// Creates a queue without pings.
    pub fn new(limits: PingLimits) -> Self {
        Self { limits, hubs: BTreeMap::new() }
    }

    /// Records that a feed now ends at `head`, which a hub is to be told.
    pub fn handle_change(&mut self, now: Monotonic, hub: &str, feed: K, head: Seq) {
        if !self.hubs.contains_key(hub) {
            self.hubs.insert(hub.into(), HubPings::new());
        }
        let Some(pings) = self.hubs.get_mut(hub) else { return };
        pings.forget(now);
        // The first change of a feed is told at once. Only the next ones keep the interval.
        let Some(known) = pings.feeds.get_mut(&feed) else {
            pings.due.insert((now, feed.clone()));
            let state = PingState::Due(now);
            pings.feeds.insert(feed, FeedPings { head, begun: None, failures: 0, state });
            return;
        };
        // Changes may be reported out of order. An older one is covered by the ping that is due.
        if head <= known.head {
            return;
        }
        known.head = head;
        // A ping in progress is followed by another when it ends, as far as this change came after its begin.
        if let PingState::Told(until) = known.state {
            let at = known.next(now, self.limits.interval);
            known.state = PingState::Due(at);
            pings.told.remove(&(until, feed.clone()));
            pings.due.insert((at, feed));
        }
    }

    /// Returns the next ping to make now, if any. Each is ended by [`Self::handle_end`].
    pub fn poll_ping(&mut self, now: Monotonic) -> Option<DuePing<K>> {
        let limits = self.limits;
        if self.running() >= limits.connections {
            return None;
        }
        self.hubs.iter_mut().find_map(|(hub, pings)| {
            let (feed, through) = pings.start(now, &limits)?;
            Some(DuePing { hub: hub.clone(), feed, through })
        })
    }

    /// Handles the end of a ping. `entropy` is any random number.
    pub fn handle_end(&mut self, now: Monotonic, ping: &DuePing<K>, outcome: PingOutcome, entropy: u64) {
        let limits = self.limits;
        if let Some(pings) = self.hubs.get_mut(&ping.hub) {
            pings.end(now, &ping.feed, outcome, &limits, entropy);
        }
    }

    /// Returns the number of pings in progress.
    pub fn running(&self) -> usize {
        self.hubs.values().map(|pings| pings.running).sum()
    }

    /// Returns the time of the next call of [`Self::poll_ping`]. Pings that wait for one in progress need no timer.
    pub fn poll_timeout(&self) -> Option<Monotonic> {
        self.hubs.values().filter_map(|pings| pings.timeout(&self.limits)).min()
    }
}

impl<K: Clone + Ord> HubPings<K> {
    fn new() -> Self {
        Self {
            feeds: BTreeMap::new(),
            due: BTreeSet::new(),
            told: BTreeSet::new(),
            running: 0,
            failures: 0,
            closed_until: None,
        }
    }

    /// Forgets pings that are too old to delay the next one.
    fn forget(&mut self, now: Monotonic) {
        while let Some((_, feed)) = self.told.first().filter(|(until, _)| *until <= now).cloned() {
            self.told.pop_first();
            self.feeds.remove(&feed);
        }
    }

    /// Returns true if another ping may run beside those in progress.
    fn has_room(&self, limits: &PingLimits) -> bool {
        // A single ping tests a hub that failed.
        let most = if self.failures > 0 { 1 } else { limits.hub_connections };
        self.running < most
    }

    fn start(&mut self, now: Monotonic, limits: &PingLimits) -> Option<(K, Seq)> {
        self.forget(now);
        if !self.has_room(limits) || self.closed_until.is_some_and(|until| until > now) {
            return None;
        }
        let (at, feed) = self.due.first().filter(|(at, _)| *at <= now).cloned()?;
        self.due.remove(&(at, feed.clone()));
        let known = self.feeds.get_mut(&feed)?;
        (known.begun, known.state) = (Some(now), PingState::Running(known.head));
        self.running += 1;
        Some((feed, known.head))
    }

    fn end(&mut self, now: Monotonic, feed: &K, outcome: PingOutcome, limits: &PingLimits, entropy: u64) {
        self.running = self.running.saturating_sub(1);
        match outcome {
            // A refusal is about the topic. The hub answers, so its other topics need not wait.
            PingOutcome::Accepted | PingOutcome::Refused => (self.failures, self.closed_until) = (0, None),
            PingOutcome::Failed(asked) => {
                self.failures = self.failures.saturating_add(1);
                self.closed_until = Some(now + limits.wait(self.failures, asked, entropy));
            }
        }
        let Some(known) = self.feeds.get_mut(feed) else { return };
        let PingState::Running(through) = known.state else { return };
        let at = match outcome {
            PingOutcome::Failed(asked) => {
                known.failures = known.failures.saturating_add(1);
                Some(now + limits.wait(known.failures, asked, entropy))
            }
            PingOutcome::Accepted | PingOutcome::Refused => {
                known.failures = 0;
                // What the hub fetched may lack a change that came after the ping began. It needs a ping of its
                // own.
                (known.head > through).then(|| known.next(now, limits.interval))
            }
        };
        match at {
            Some(at) => {
                known.state = PingState::Due(at);
                self.due.insert((at, feed.clone()));
            }
            None => {
                // Kept for the interval, so that the next change does not ping sooner than that.
                let until = known.next(now, limits.interval);
                known.state = PingState::Told(until);
                self.told.insert((until, feed.clone()));
            }
        }
    }

    fn timeout(&self, limits: &PingLimits) -> Option<Monotonic> {
        let (first, _) = self.due.first().filter(|_| self.has_room(limits))?;
        Some(self.closed_until.map_or(*first, |until| until.max(*first)))
    }
}

impl FeedPings {
    /// Returns the earliest time of the next ping.
    fn next(&self, now: Monotonic, interval: Duration) -> Monotonic {
        self.begun.map_or(now, |begun| now.max(begun + interval))
    }
}

impl PingLimits {
    fn wait(&self, failures: u32, asked: Option<Duration>, entropy: u64) -> Duration {
        // Never shorter than the backoff: a hub that asks for 0 s would get pings without end.
        self.backoff.jittered(failures, entropy).max(asked.unwrap_or_default().min(self.backoff.cap()))
    }
}

/// Returns the body of a ping: the publisher's part of PubSubHubbub 0.3 and 0.4, section 7.1.
///
/// A ping names one topic. Many hubs read `hub.url` once only, though the text lets it be repeated. Some newer hubs
/// read `hub.topic` instead. Others ignore it: "Hubs MUST ignore additional request parameters they do not
/// understand".
pub fn ping_form(topic: &str) -> String {
    let topic = percent_encoding::utf8_percent_encode(topic, percent_encoding::NON_ALPHANUMERIC);
    format!("hub.mode=publish&hub.url={topic}&hub.topic={topic}")
}

#[cfg(test)]
mod tests;
