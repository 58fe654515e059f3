//! The consumer's side: which feeds to ask again.
//!
//! [`Consumer`] does not fetch feeds; it says when to. Its driver calls, over and over:
//!
//! 1. [`Consumer::poll_ask`] until it is empty: ask each feed, by whatever protocol follows it, and tell the
//!    outcome by [`Consumer::handle_answer`] or [`Consumer::handle_failure`];
//! 2. what [`Exchange`] asks for: the SUP documents themselves;
//! 3. [`Follower::poll_event`]: only warnings and failures, no changes;
//! 4. with nothing under way, wait until [`Exchange::poll_timeout`].
//!
//! Every feed is asked at first. From then on one that has a SUP link (section 6) is asked when its SUP
//! document lists an update id that was not seen before; and now and then, as a safety net, all the same. One
//! without a link, or whose document fails, lags or leaves updates out, is polled plainly.

mod documents;
mod state;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::discovery::{Discovery, SupLink};
use super::id::SupId;
use super::source::{Source, shifted};
use crate::follow::{Event, RequestId};
#[cfg(doc)]
use crate::follow::{Exchange, Follower};
use documents::Fetch;

/// How often feeds are asked without being told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// A feed whose SUP document works.
    pub background: Duration,
    /// A feed without one.
    pub plain: Duration,
}

impl Default for Settings {
    /// Every 6 hours, and every 15 minutes.
    fn default() -> Self {
        Self { background: Duration::from_secs(6 * 3600), plain: Duration::from_secs(15 * 60) }
    }
}

/// A feed's number at its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey(usize);

impl FeedKey {
    /// The number: feeds are counted from 0 in the order in which they were added.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Why a feed is to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// It was never asked successfully.
    First,
    /// Its SUP document lists a new update.
    Moved,
    /// The SUP documents leave a time out.
    Gap,
    /// It has been long.
    Background,
    /// Asking failed before.
    Retry,
}

/// A feed to be asked now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// To be handed back with the outcome.
    pub feed: FeedKey,
    /// The feed's address, as it was added.
    pub url: String,
    /// Why.
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In `timers`.
    Waiting,
    /// In `ready`.
    Ready(Why),
    /// With the driver.
    Asked { at: Timestamp, why: Why },
}

#[derive(Debug)]
struct Feed {
    url: Arc<str>,
    /// Numbers of sources, and the feed's id in each.
    links: Vec<(usize, String)>,
    stage: Stage,
    due: Timestamp,
    /// A reason to ask again came while it was with the driver.
    again: Option<Why>,
    failures: u32,
    /// When it was last asked successfully.
    answered: Option<Timestamp>,
}

/// Follows the SUP documents of many feeds.
#[derive(Debug)]
pub struct Consumer {
    settings: Settings,
    feeds: Vec<Feed>,
    keys: HashMap<Arc<str>, FeedKey>,
    sources: Vec<Source>,
    /// The numbers of the sources by their addresses.
    numbers: HashMap<String, usize>,
    /// Sources that no feed is announced in any more: their numbers are given away again.
    vacant: BTreeSet<usize>,
    /// For each source the feeds of each id; feeds may share one (section 4).
    members: Vec<HashMap<String, Vec<usize>>>,
    /// Feeds that had moved without being announced so far, and when they were asked: by source.
    suspects: Vec<Vec<(usize, Timestamp)>>,
    ready: VecDeque<usize>,
    timers: BTreeSet<(Timestamp, usize)>,
    fetches: HashMap<RequestId, Fetch>,
    outbox: VecDeque<RequestId>,
    requests: u64,
    events: VecDeque<Event>,
}

impl Consumer {
    /// A consumer of no feeds yet.
    pub fn new(settings: Settings) -> Self {
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

    /// Adds a feed, to be asked from `now` on. A feed that is there already stays as it is.
    pub fn add_feed(&mut self, url: impl Into<Arc<str>>, now: Timestamp) -> FeedKey {
        let (url, links) = (url.into(), Vec::new());
        if let Some(key) = self.keys.get(&url) {
            return *key;
        }
        let index = self.feeds.len();
        self.keys.insert(url.clone(), FeedKey(index));
        let feed =
            Feed { url, links, stage: Stage::Waiting, due: now, again: None, failures: 0, answered: None };
        self.feeds.push(feed);
        self.timers.insert((now, index));
        FeedKey(index)
    }

    /// The next feed to ask, if any.
    pub fn poll_ask(&mut self, now: Timestamp) -> Option<Ask> {
        while let Some((due, index)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, index));
            let feed = &mut self.feeds[index];
            let why = match (feed.failures, feed.answered) {
                (0, None) => Why::First,
                (0, Some(_)) => Why::Background,
                _ => Why::Retry,
            };
            feed.stage = Stage::Ready(why);
            self.ready.push_back(index);
        }
        let index = self.ready.pop_front()?;
        let feed = &mut self.feeds[index];
        let Stage::Ready(why) = feed.stage else { return None };
        feed.stage = Stage::Asked { at: now, why };
        Some(Ask { feed: FeedKey(index), url: feed.url.as_ref().to_owned(), why })
    }

    /// A feed answered, with a document or `304`. `changed` says whether there was anything new in it.
    pub fn handle_answer(&mut self, now: Timestamp, key: FeedKey, discovery: Discovery, changed: bool) {
        let index = key.0;
        let Stage::Asked { at, why } = self.feeds[index].stage else { return };
        self.learn(index, discovery, at, now);
        let feed = &mut self.feeds[index];
        (feed.failures, feed.answered, feed.stage) = (0, Some(at), Stage::Waiting);
        let again = feed.again.take();
        if changed && why == Why::Background && again.is_none() {
            for (source, _) in &feed.links {
                self.suspects[*source].push((index, now));
            }
        }
        match again {
            Some(why) => self.make_ready(index, why),
            None => self.wait(index, self.rest(index)),
        }
    }

    /// A feed could not be asked. It will be again, later and later, at the publisher's word (`Retry-After`)
    /// if it gave one.
    pub fn handle_failure(&mut self, now: Timestamp, key: FeedKey, retry_after: Option<Duration>) {
        let index = key.0;
        let feed = &mut self.feeds[index];
        if !matches!(feed.stage, Stage::Asked { .. }) {
            return;
        }
        feed.again = None;
        feed.failures = feed.failures.saturating_add(1);
        let own = Duration::from_secs(10 << feed.failures.min(9));
        let wait = own.min(self.settings.plain).max(retry_after.unwrap_or_default());
        self.wait(index, shifted(now, span(wait.min(Duration::from_secs(86400)))));
    }

    /// Asks every feed from `now` on, whatever its SUP document says.
    pub fn ask_all(&mut self) {
        for index in 0..self.feeds.len() {
            self.feeds[index].failures = 0;
            self.make_ready(index, Why::Background);
        }
    }

    /// How many feeds there are.
    pub fn feed_count(&self) -> usize {
        self.feeds.len()
    }

    /// The number of the source with this address.
    fn source_at(&mut self, url: String, now: Timestamp) -> usize {
        if let Some(number) = self.numbers.get(&url) {
            self.vacant.remove(number);
            return *number;
        }
        if let Some(number) = self.vacant.iter().copied().find(|number| !self.sources[*number].under_way) {
            self.vacant.remove(&number);
            self.numbers.remove(&self.sources[number].url);
            self.numbers.insert(url.clone(), number);
            self.sources[number] = Source::new(url, now);
            self.suspects[number].clear();
            return number;
        }
        self.push_source(Source::new(url, now))
    }

    fn push_source(&mut self, source: Source) -> usize {
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

    /// Takes over the SUP links of a feed's answer. One without any says nothing: a `304` may lack them.
    fn learn(&mut self, index: usize, discovery: Discovery, asked: Timestamp, now: Timestamp) {
        let url = &self.feeds[index].url;
        let warnings = discovery.warnings.into_iter().map(|w| Event::Warning(format!("{url}: {w}")));
        self.events.extend(warnings.collect::<Vec<_>>());
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
            self.sources[source].feed_joined(asked);
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

    /// When the feed is due without being announced.
    fn rest(&self, index: usize) -> Timestamp {
        let feed = &self.feeds[index];
        let announced = feed.links.iter().any(|(source, _)| self.sources[*source].is_healthy());
        let pause = if announced { self.settings.background } else { self.settings.plain };
        // Spread over the last quarter of the pause, each feed at its own place, so that not all come at once.
        let place = SupId::of(&feed.url).fraction();
        let asked = feed.answered.unwrap_or(feed.due);
        shifted(asked, span(pause.mul_f64(0.75 + 0.25 * place)))
    }

    fn wait(&mut self, index: usize, due: Timestamp) {
        let feed = &mut self.feeds[index];
        if feed.stage == Stage::Waiting {
            self.timers.remove(&(feed.due, index));
        }
        (feed.stage, feed.due) = (Stage::Waiting, due);
        self.timers.insert((due, index));
    }

    fn make_ready(&mut self, index: usize, why: Why) {
        let feed = &mut self.feeds[index];
        match feed.stage {
            Stage::Ready(_) => {}
            Stage::Asked { .. } => feed.again = Some(why),
            // It is asked again anyway, once its server is well.
            Stage::Waiting if feed.failures > 0 => {}
            Stage::Waiting => {
                self.timers.remove(&(feed.due, index));
                feed.stage = Stage::Ready(why);
                self.ready.push_back(index);
            }
        }
    }

    /// All feeds of a source, once each.
    fn feeds_of(&self, source: usize) -> HashSet<usize> {
        self.members[source].values().flatten().copied().collect()
    }

    /// Asks every feed of the source, but not more often than plain polling would.
    fn close_gap(&mut self, source: usize, now: Timestamp) {
        let plain = span(self.settings.plain);
        let earliest = self.sources[source].last_gap.map(|last| shifted(last, plain));
        for index in self.feeds_of(source) {
            match (earliest.filter(|earliest| *earliest > now), self.feeds[index].stage) {
                (Some(earliest), Stage::Waiting) => self.wait(index, self.feeds[index].due.min(earliest)),
                _ => self.make_ready(index, Why::Gap),
            }
        }
        if earliest.is_none_or(|earliest| earliest <= now) {
            self.sources[source].last_gap = Some(now);
        }
    }

    /// The source is relied upon from now on, or not any more: its feeds are asked at another pace.
    fn change_pace(&mut self, source: usize) {
        for index in self.feeds_of(source) {
            if self.feeds[index].stage == Stage::Waiting && self.feeds[index].failures == 0 {
                self.wait(index, self.rest(index));
            }
        }
    }
}

fn span(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
