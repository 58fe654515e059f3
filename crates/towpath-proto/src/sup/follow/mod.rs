//! The follower's side: decides when to poll each of many feeds.
//!
//! [`SupFollower`] does not fetch feeds; it schedules their polls. Its driver calls, over and over:
//!
//! 1. [`SupFollower::poll_feed`] until it is empty: poll each feed by its own protocol, and pass the outcome to
//!    [`SupFollower::handle_success`] or [`SupFollower::handle_failure`];
//! 2. the methods of [`Exchange`], for the SUP documents;
//! 3. [`Follower::poll_event`]: only warnings and failures, no changes;
//! 4. with no request in flight, wait until [`Exchange::poll_timeout`].
//!
//! Every feed is polled once at first. A feed with a SUP link (section 6) is then polled when its SUP document lists a
//! new update id, and seldom in the background as a safety net. A feed without link is polled at a fixed interval. So
//! are the feeds of a document that fails, lags or omits updates.

mod documents;
mod source;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use self::source::{MAX_WAIT, SupSource};
use crate::follow::{Backoff, Event, Monotonic, Now, RequestId};
#[cfg(doc)]
use crate::follow::{Exchange, Follower};
use crate::sup::wire::discovery::{Discovery, SupLink};
use crate::sup::wire::id::SupId;
use documents::DocumentFetch;

// 20 s doubled eight times is 5120 s.
/// The first wait after a failure, and the longest without a `Retry-After`.
const FIRST_RETRY: Duration = Duration::from_secs(20);
const LONGEST_RETRY: Duration = Duration::from_secs(5120);

/// Poll intervals of feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupPollIntervals {
    /// Interval for a feed with a healthy SUP document.
    pub background: Duration,
    /// Interval for a feed without one.
    pub plain: Duration,
}

impl Default for SupPollIntervals {
    /// 6 hours with SUP, 15 minutes without.
    fn default() -> Self {
        Self { background: Duration::from_secs(6 * 3600), plain: Duration::from_secs(15 * 60) }
    }
}

/// Number of a feed in its follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey(usize);

impl FeedKey {
    /// Returns the number: feeds are numbered from 0 in the order in which they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Content of a successful poll, compared with the poll before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolledContent {
    /// Something was new.
    Changed,
    /// Nothing was new, or the response was `304`.
    Unchanged,
}

/// Reason to poll a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PollReason {
    /// The feed was never polled successfully.
    First,
    /// The SUP document lists a new update.
    Updated,
    /// The SUP documents have a gap in time.
    Gap,
    /// The poll interval has passed.
    Background,
    /// The last poll failed.
    Retry,
}

/// A feed to poll now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueFeed {
    /// Number of the feed, to be returned with the outcome.
    pub feed: FeedKey,
    /// The feed's URL, as it was added.
    pub url: String,
    /// Reason for the poll.
    pub reason: PollReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedStage {
    /// In `timers`.
    Waiting,
    /// In `ready`.
    Ready(PollReason),
    /// The driver polls it.
    Polling { at: Now, reason: PollReason },
}

#[derive(Debug)]
struct ScheduledFeed {
    url: Arc<str>,
    /// Numbers of sources, with the feed's id in each.
    links: Vec<(usize, String)>,
    stage: FeedStage,
    due: Monotonic,
    /// Reason for another poll that came up during one.
    again: Option<PollReason>,
    failures: u32,
    /// Time of the last successful poll.
    polled: Option<Timestamp>,
    /// Monotonic time of that poll, if it was in this run.
    polled_at: Option<Monotonic>,
}

/// Follower of the SUP documents of many feeds.
#[derive(Debug)]
pub struct SupFollower {
    settings: SupPollIntervals,
    feeds: Vec<ScheduledFeed>,
    keys: HashMap<Arc<str>, FeedKey>,
    sources: Vec<SupSource>,
    /// Numbers of sources by URL.
    numbers: HashMap<String, usize>,
    /// Sources without feeds, whose numbers are reused.
    vacant: BTreeSet<usize>,
    /// For each source the feeds of each id; feeds may share an id (section 4).
    members: Vec<HashMap<String, Vec<usize>>>,
    /// By source: feeds with an update that no document has listed yet, and the time of their poll.
    suspects: Vec<Vec<(usize, Timestamp)>>,
    ready: VecDeque<usize>,
    timers: BTreeSet<(Monotonic, usize)>,
    fetches: HashMap<RequestId, DocumentFetch>,
    outbox: VecDeque<RequestId>,
    requests: u64,
    events: VecDeque<Event>,
}

impl SupFollower {
    /// Creates a follower without feeds.
    pub fn new(settings: SupPollIntervals) -> Self {
        Self {
            settings,
            feeds: Vec::new(),
            keys: HashMap::new(),
            sources: Vec::new(),
            numbers: HashMap::new(),
            vacant: BTreeSet::new(),
            members: Vec::new(),
            suspects: Vec::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            fetches: HashMap::new(),
            outbox: VecDeque::new(),
            requests: 0,
            events: VecDeque::new(),
        }
    }

    /// Adds a feed, due at `now`. A feed that was added before is unchanged.
    pub fn add_feed(&mut self, url: impl Into<Arc<str>>, now: Now) -> FeedKey {
        self.add_feed_due(url.into(), now.monotonic)
    }

    fn add_feed_due(&mut self, url: Arc<str>, due: Monotonic) -> FeedKey {
        let links = Vec::new();
        if let Some(key) = self.keys.get(&url) {
            return *key;
        }
        let index = self.feeds.len();
        self.keys.insert(url.clone(), FeedKey(index));
        let feed = ScheduledFeed {
            url,
            links,
            stage: FeedStage::Waiting,
            due,
            again: None,
            failures: 0,
            polled: None,
            polled_at: None,
        };
        self.feeds.push(feed);
        self.timers.insert((due, index));
        FeedKey(index)
    }

    /// Returns the next feed to poll, if any is due.
    pub fn poll_feed(&mut self, now: Now) -> Option<DueFeed> {
        while let Some((due, index)) = self.timers.first().copied().filter(|(due, _)| *due <= now.monotonic) {
            self.timers.remove(&(due, index));
            let feed = &mut self.feeds[index];
            let reason = match (feed.failures, feed.polled) {
                (0, None) => PollReason::First,
                (0, Some(_)) => PollReason::Background,
                _ => PollReason::Retry,
            };
            feed.stage = FeedStage::Ready(reason);
            self.ready.push_back(index);
        }
        let index = self.ready.pop_front()?;
        let feed = &mut self.feeds[index];
        let FeedStage::Ready(reason) = feed.stage else { return None };
        feed.stage = FeedStage::Polling { at: now, reason };
        Some(DueFeed { feed: FeedKey(index), url: feed.url.as_ref().to_owned(), reason })
    }

    /// Handles a successful poll: a document or `304`.
    pub fn handle_success(&mut self, now: Now, key: FeedKey, discovery: Discovery, content: PolledContent) {
        let index = key.0;
        let FeedStage::Polling { at, reason } = self.feeds[index].stage else { return };
        // The time of the request counts, not of the response: a later change is not in it.
        self.update_links(index, discovery, at.wall, now);
        let feed = &mut self.feeds[index];
        (feed.failures, feed.stage) = (0, FeedStage::Waiting);
        (feed.polled, feed.polled_at) = (Some(at.wall), Some(at.monotonic));
        let again = feed.again.take();
        // A change found in the background may be newer than the last document. The next ones decide if it was omitted.
        if content == PolledContent::Changed && reason == PollReason::Background && again.is_none() {
            for (source, _) in &feed.links {
                self.suspects[*source].push((index, now.wall));
            }
        }
        match again {
            Some(reason) => self.make_ready(index, reason),
            None => self.wait(index, self.next_poll(index, now)),
        }
    }

    /// Handles a failed poll. The feed is polled again with backoff, or after `Retry-After`.
    pub fn handle_failure(&mut self, now: Now, key: FeedKey, retry_after: Option<Duration>) {
        let index = key.0;
        let feed = &mut self.feeds[index];
        if !matches!(feed.stage, FeedStage::Polling { .. }) {
            return;
        }
        // The retry covers an update that was listed meanwhile.
        feed.again = None;
        feed.failures = feed.failures.saturating_add(1);
        // A feed that fails is not polled more seldom than one without SUP.
        let backoff = Backoff::doubling(FIRST_RETRY, LONGEST_RETRY.min(self.settings.plain));
        let wait = backoff.wait_or_longer(feed.failures, retry_after, MAX_WAIT);
        self.wait(index, now.after(wait.min(MAX_WAIT)));
    }

    /// Makes every feed due at once, regardless of SUP documents.
    pub fn make_all_due(&mut self) {
        for index in 0..self.feeds.len() {
            // `make_ready` leaves a failing feed to its backoff, which this call overrides.
            self.feeds[index].failures = 0;
            self.make_ready(index, PollReason::Background);
        }
    }

    /// Returns the number of feeds.
    pub fn feed_count(&self) -> usize {
        self.feeds.len()
    }

    /// Returns the number of the source with this URL, and creates the source if needed.
    fn source_at(&mut self, url: String, now: Now) -> usize {
        if let Some(number) = self.numbers.get(&url) {
            self.vacant.remove(number);
            return *number;
        }
        // A number with a request in flight is not reused: the response would count for the new source.
        if let Some(number) = self.vacant.iter().copied().find(|number| !self.sources[*number].in_flight) {
            self.vacant.remove(&number);
            self.numbers.remove(&self.sources[number].url);
            self.numbers.insert(url.clone(), number);
            self.sources[number] = SupSource::new(url, now);
            self.suspects[number].clear();
            return number;
        }
        self.push_source(SupSource::new(url, now))
    }

    fn push_source(&mut self, source: SupSource) -> usize {
        self.numbers.insert(source.url.clone(), self.sources.len());
        self.sources.push(source);
        self.members.push(HashMap::new());
        self.suspects.push(Vec::new());
        self.sources.len() - 1
    }

    fn join(&mut self, feed: usize, source: usize, id: String) {
        self.members[source].entry(id.clone()).or_default().push(feed);
        self.feeds[feed].links.push((source, id));
    }

    /// Updates the SUP links of a feed from its response. A response without links changes nothing: a `304` may lack them.
    fn update_links(&mut self, index: usize, discovery: Discovery, polled: Timestamp, now: Now) {
        let url = &self.feeds[index].url;
        let warnings = discovery.warnings.into_iter().map(|w| Event::Warning(format!("{url}: {w}")));
        self.events.extend(warnings.collect::<Vec<_>>());
        // RFC 9110, section 15.4.5: a 304 need not repeat headers.
        if discovery.links.is_empty() {
            return;
        }
        let known: Vec<SupLink> = self.feeds[index]
            .links
            .iter()
            .map(|(source, id)| SupLink { url: self.sources[*source].url.clone(), id: id.clone() })
            .collect();
        if known.len() == discovery.links.len() && known.iter().all(|link| discovery.links.contains(link)) {
            return;
        }
        if !known.is_empty() {
            let url = &self.feeds[index].url;
            self.events.push_back(Event::Warning(format!("{url}: the feed's SUP link changed (section 4)")));
        }
        self.leave(index);
        for link in discovery.links {
            let source = self.source_at(link.url, now);
            self.sources[source].feed_joined(polled);
            self.join(index, source, link.id);
        }
    }

    fn leave(&mut self, index: usize) {
        for (source, id) in std::mem::take(&mut self.feeds[index].links) {
            if let Some(feeds) = self.members[source].get_mut(&id) {
                feeds.retain(|feed| *feed != index);
                if feeds.is_empty() {
                    self.members[source].remove(&id);
                }
            }
            if self.members[source].is_empty() {
                self.vacant.insert(source);
            }
        }
    }

    /// Returns the time at which the feed is due without an update.
    fn next_poll(&self, index: usize, now: Now) -> Monotonic {
        let feed = &self.feeds[index];
        let has_healthy_source = feed.links.iter().any(|(source, _)| self.sources[*source].is_healthy());
        let interval = if has_healthy_source { self.settings.background } else { self.settings.plain };
        // Spread over the last quarter of the interval by a hash of the URL, so that feeds are not polled in a burst.
        let spread = SupId::of(&feed.url).fraction();
        let interval = interval.mul_f64(0.75 + 0.25 * spread);
        match (feed.polled_at, feed.polled) {
            (Some(polled_at), _) => polled_at + interval,
            // The poll was an earlier run's: its time is a persisted date.
            (None, Some(polled)) => now.restore(later(polled, interval), interval),
            (None, None) => feed.due + interval,
        }
    }

    fn wait(&mut self, index: usize, due: Monotonic) {
        let feed = &mut self.feeds[index];
        if feed.stage == FeedStage::Waiting {
            self.timers.remove(&(feed.due, index));
        }
        (feed.stage, feed.due) = (FeedStage::Waiting, due);
        self.timers.insert((due, index));
    }

    fn make_ready(&mut self, index: usize, reason: PollReason) {
        let feed = &mut self.feeds[index];
        match feed.stage {
            // One poll serves both reasons.
            FeedStage::Ready(_) => {}
            FeedStage::Polling { .. } => feed.again = Some(reason),
            // A failing server is not polled before its backoff ends: the retry covers the update.
            FeedStage::Waiting if feed.failures > 0 => {}
            FeedStage::Waiting => {
                self.timers.remove(&(feed.due, index));
                feed.stage = FeedStage::Ready(reason);
                self.ready.push_back(index);
            }
        }
    }

    /// Returns all feeds of a source, without duplicates.
    fn feeds_of(&self, source: usize) -> HashSet<usize> {
        self.members[source].values().flatten().copied().collect()
    }

    /// Makes every feed of the source due, at most once per plain poll interval.
    ///
    /// So a publisher whose every document has a gap costs no more than plain polling.
    fn close_gap(&mut self, source: usize, now: Now) {
        let plain = self.settings.plain;
        let last_gap = self.sources[source].last_gap;
        let earliest = last_gap.map(|last| now.restore(later(last, plain), plain));
        for index in self.feeds_of(source) {
            match (earliest.filter(|earliest| *earliest > now.monotonic), self.feeds[index].stage) {
                (Some(earliest), FeedStage::Waiting) => self.wait(index, self.feeds[index].due.min(earliest)),
                _ => self.make_ready(index, PollReason::Gap),
            }
        }
        // Only a gap that was closed counts: otherwise each further gap would postpone the polls.
        if earliest.is_none_or(|earliest| earliest <= now.monotonic) {
            self.sources[source].last_gap = Some(now.wall);
        }
    }

    /// Reschedules the feeds of a source that became healthy or unhealthy.
    fn reschedule(&mut self, source: usize, now: Now) {
        for index in self.feeds_of(source) {
            // A failing feed keeps its backoff.
            if self.feeds[index].stage == FeedStage::Waiting && self.feeds[index].failures == 0 {
                self.wait(index, self.next_poll(index, now));
            }
        }
    }
}

/// Returns the date `by` after another, at most the last date.
fn later(date: Timestamp, by: Duration) -> Timestamp {
    let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    date.saturating_add(by).unwrap_or(Timestamp::MAX)
}
