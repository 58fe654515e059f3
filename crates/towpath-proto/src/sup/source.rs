//! One SUP document as a consumer follows it: how far it is covered, and which period to ask for.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::wire::{SupDocument, Update};
use crate::follow::{Request, ResponseHead};

/// How far apart the clocks of two of a publisher's documents may be.
const JUMP: SignedDuration = SignedDuration::from_mins(10);

/// What the age of an answer and rounding to seconds may add to a time.
const MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// After so many failures in a row, or updates that were not announced, the document is not relied upon.
const MAX_FAILURES: u32 = 3;

/// The shortest and the longest time between two requests for a document that works.
const INTERVALS: (u64, u64) = (10, 900);

/// How many update ids of a feed are remembered. A feed with more is asked once too often.
const MAX_SEEN: usize = 256;

/// How many periods of a publisher are remembered.
const MAX_PERIODS: usize = 64;

/// What a document means for the feeds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It and those before it leave no time out.
    Covered,
    /// It begins too late; the one for this many seconds may not.
    AskLonger(u64),
    /// It begins too late, and no longer one is offered: any feed may have moved unseen.
    Gap(String),
}

/// A period that the publisher offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Period {
    url: String,
    /// The length of its last window, in seconds, once it was seen.
    window: Option<u64>,
}

/// The last document of an address, as far as is needed where the publisher says that it is still the same
/// (RFC 9110, section 13).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    etag: Option<String>,
    last_modified: Option<String>,
    period: u64,
    since: Timestamp,
    updated: Timestamp,
}

/// A SUP document that feeds are announced in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// As feeds announce it.
    pub(super) url: String,
    periods: BTreeMap<u64, Period>,
    /// By address, where the last document came with a validator.
    #[serde(default)]
    known: BTreeMap<String, Known>,
    /// Publisher's clock: every move up to then was seen.
    covered_to: Option<Timestamp>,
    /// Our clock: feeds that were asked at this time or later are not covered before it.
    asked_from: Option<Timestamp>,
    /// The publisher's clock ahead of ours, the age of its document taken off.
    ahead: Option<SignedDuration>,
    /// How far ahead, and the end of the window, in the last document whose clock was disbelieved.
    disbelieved: Option<(SignedDuration, Timestamp)>,
    /// For each known id the update ids that were seen, and when they were last listed.
    seen: HashMap<String, HashMap<String, Timestamp>>,
    failures: u32,
    unannounced: u32,
    /// When to ask for the document again.
    #[serde(skip)]
    pub(super) due: Timestamp,
    #[serde(skip)]
    pub(super) under_way: bool,
    /// Every feed was last asked for a gap's sake then.
    pub(super) last_gap: Option<Timestamp>,
    /// A person was told that the document is not quite as the text has it.
    #[serde(skip)]
    pub(super) told: bool,
}

impl Source {
    pub(super) fn new(url: String, now: Timestamp) -> Self {
        Self {
            url,
            periods: BTreeMap::new(),
            known: BTreeMap::new(),
            covered_to: None,
            asked_from: None,
            ahead: None,
            disbelieved: None,
            seen: HashMap::new(),
            failures: 0,
            unannounced: 0,
            due: now,
            under_way: false,
            last_gap: None,
            told: false,
        }
    }

    /// Whether the document has been seen and can be relied upon.
    pub(super) fn is_healthy(&self) -> bool {
        self.covered_to.is_some() && self.failures < MAX_FAILURES && self.unannounced < MAX_FAILURES
    }

    /// A feed turned out to be announced here by an answer to a request of this time: what it did from then
    /// on is to be covered too.
    pub(super) fn feed_joined(&mut self, asked: Timestamp) {
        // What the last document said of this feed was passed over: it is needed again, changed or not.
        self.known.clear();
        match (&mut self.covered_to, self.ahead) {
            (Some(covered), Some(ahead)) => *covered = (*covered).min(shifted(asked, ahead - MARGIN)),
            _ => self.asked_from = Some(self.asked_from.map_or(asked, |earlier| earlier.min(asked))),
        }
    }

    /// The smallest period that covers the time since the last document, else the longest; `None` before the
    /// first document.
    pub(super) fn choose(&self, now: Timestamp) -> Option<u64> {
        let needed = match (self.covered_to, self.ahead) {
            (Some(covered), Some(ahead)) => shifted(now, ahead + MARGIN).duration_since(covered).as_secs(),
            _ => self.asked_from.map_or(0, |asked| (now.duration_since(asked) + MARGIN).as_secs()),
        };
        let covering =
            self.periods.iter().find(|(seconds, p)| p.window.unwrap_or(0).max(**seconds) as i64 >= needed);
        covering.or(self.periods.last_key_value()).map(|(seconds, _)| *seconds)
    }

    /// The address for a period.
    pub(super) fn period_url(&self, seconds: u64) -> Option<&str> {
        self.periods.get(&seconds).map(|period| period.url.as_str())
    }

    /// The request, answered with 304 where the address still has the document that was read last.
    pub(super) fn condition(&self, mut request: Request) -> Request {
        let Some(known) = self.known.get(&request.url) else { return request };
        if let Some(etag) = &known.etag {
            request = request.with(IF_NONE_MATCH, etag);
        }
        if let Some(date) = &known.last_modified {
            request = request.with(IF_MODIFIED_SINCE, date);
        }
        request
    }

    /// Remembers what the answer said to recognise its document by.
    pub(super) fn remember(&mut self, url: &str, head: &ResponseHead, document: &SupDocument) {
        let text = |name| head.header(name).map(str::to_owned);
        let (etag, last_modified) = (text("etag"), text("last-modified"));
        self.known.retain(|known, _| *known == self.url || self.periods.values().any(|p| p.url == *known));
        if etag.is_none() && last_modified.is_none() {
            self.known.remove(url);
            return;
        }
        let (since, updated) = (document.since_time, document.updated_time);
        let known = Known { etag, last_modified, period: document.period, since, updated };
        self.known.insert(url.to_owned(), known);
    }

    /// The document that was read last from the address, for an answer of 304: its updates are seen already,
    /// its window goes on to count.
    pub(super) fn unchanged(&self, url: &str) -> Option<SupDocument> {
        let known = self.known.get(url)?;
        Some(SupDocument {
            updates: Vec::new(),
            period: known.period,
            since_time: known.since,
            updated_time: known.updated,
            available_periods: self.periods.iter().map(|(s, period)| (*s, period.url.clone())).collect(),
        })
    }

    /// Judges a document that was asked for under `asked` at `url`.
    pub(super) fn judge(
        &mut self,
        now: Timestamp,
        asked: Option<u64>,
        url: &str,
        document: &SupDocument,
    ) -> Result<Verdict, String> {
        let ahead = document.updated_time.duration_since(now);
        let jumped = self.believe(ahead, document)?;
        self.learn_periods(asked, url, document);
        self.failures = 0;
        let known = self.covered_to.or_else(|| Some(shifted(self.asked_from?, ahead - MARGIN)));
        let covered_to = known.map_or(document.updated_time, |known| known.max(document.updated_time));
        let verdict = match known {
            _ if jumped => Verdict::Gap("its clock was set".into()),
            Some(known) if document.since_time > known => self.too_late(asked, document),
            _ => Verdict::Covered,
        };
        if !matches!(verdict, Verdict::AskLonger(_)) {
            self.covered_to = Some(if jumped { document.updated_time } else { covered_to });
            self.asked_from = None;
        }
        let interval = self.periods.keys().next().copied().unwrap_or(document.period);
        let interval = interval.clamp(INTERVALS.0, INTERVALS.1);
        self.due = shifted(now, SignedDuration::from_secs(interval as i64));
        Ok(verdict)
    }

    /// Whether the publisher's clock was set, which is believed from the third document on that says so. One
    /// that stands still (a dead publisher behind a cache) is never believed.
    fn believe(&mut self, ahead: SignedDuration, document: &SupDocument) -> Result<bool, String> {
        if document.since_time > document.updated_time {
            return Err(format!(
                "the window begins {} after its end {}",
                document.since_time, document.updated_time
            ));
        }
        let Some(known) = self.ahead else {
            self.ahead = Some(ahead);
            return Ok(false);
        };
        let room = JUMP + SignedDuration::from_secs(document.period.min(86400) as i64);
        if (ahead - known).abs() <= room {
            // The youngest document tells the clock best: age makes it seem behind.
            self.ahead = Some(if self.disbelieved.take().is_some() { ahead } else { known.max(ahead) });
            return Ok(false);
        }
        let before = self.disbelieved.replace((ahead, document.updated_time));
        let goes_on = before.is_some_and(|(a, end)| (ahead - a).abs() <= room && document.updated_time > end);
        if goes_on && self.failures + 1 >= MAX_FAILURES {
            self.ahead = Some(ahead);
            self.disbelieved = None;
            return Ok(true);
        }
        let (way, off) = if ahead > known { ("ahead of", ahead - known) } else { ("behind", known - ahead) };
        Err(format!("the window ends at {}, {off:#} {way} its clock", document.updated_time))
    }

    fn learn_periods(&mut self, asked: Option<u64>, url: &str, document: &SupDocument) {
        let mut periods: BTreeMap<u64, Period> = BTreeMap::new();
        for (seconds, url) in document.available_periods.iter().take(MAX_PERIODS) {
            let window = self.periods.get(seconds).and_then(|period| period.window);
            periods.insert(*seconds, Period { url: url.clone(), window });
        }
        let window = document.updated_time.duration_since(document.since_time).as_secs();
        let own = periods.entry(asked.unwrap_or(document.period));
        own.or_insert_with(|| Period { url: url.to_owned(), window: None }).window =
            Some(window.unsigned_abs());
        self.periods = periods;
    }

    fn too_late(&self, asked: Option<u64>, document: &SupDocument) -> Verdict {
        let used = asked.unwrap_or(document.period);
        match self.periods.range(used + 1..).next_back() {
            // The longest there is: nothing shorter is known to reach far enough.
            Some((longer, _)) => Verdict::AskLonger(*longer),
            None => Verdict::Gap(format!("its window begins only at {}", document.since_time)),
        }
    }

    /// Notes an update of a known id; whether it is new.
    pub(super) fn is_new(&mut self, update: &Update, listed: Timestamp) -> bool {
        let updates = self.seen.entry(update.id.clone()).or_default();
        if updates.len() >= MAX_SEEN && !updates.contains_key(&update.update) {
            updates.clear();
        }
        let before = updates.insert(update.update.clone(), listed);
        before.is_none()
    }

    /// Forgets updates that no window can show any more.
    pub(super) fn forget(&mut self, updated: Timestamp) {
        let longest = self.periods.iter().map(|(seconds, p)| p.window.unwrap_or(0).max(*seconds)).max();
        let kept = SignedDuration::from_secs(longest.unwrap_or(0).min(1 << 30) as i64) + JUMP;
        self.seen.retain(|_, updates| {
            updates.retain(|_, listed| updated.duration_since(*listed) <= kept);
            !updates.is_empty()
        });
    }

    /// The document could not be had or read; asked again later and later, at the publisher's word if it gave
    /// one. Whether that ends the trust in the document.
    pub(super) fn failed(&mut self, now: Timestamp, retry_after: Option<Duration>) -> bool {
        self.failures = self.failures.saturating_add(1);
        let own = (INTERVALS.0 << self.failures.min(7)).min(INTERVALS.1);
        let wait = retry_after.map_or(own, |asked| asked.as_secs().clamp(own, 86400));
        self.due = shifted(now, SignedDuration::from_secs(wait as i64));
        self.failures == MAX_FAILURES
    }

    /// A feed had moved and was not announced. Whether that ends the trust in the document.
    pub(super) fn missed(&mut self) -> bool {
        self.unannounced += 1;
        self.unannounced == MAX_FAILURES
    }

    /// Whether what happened before `at`, by our clock, is in a window that ends at `updated`.
    pub(super) fn is_past(&self, at: Timestamp, updated: Timestamp) -> bool {
        self.ahead.is_some_and(|ahead| shifted(at, ahead + MARGIN) <= updated)
    }
}

/// `time` and `by`, at the edge of time where that is beyond it.
pub(super) fn shifted(time: Timestamp, by: SignedDuration) -> Timestamp {
    let edge = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    time.checked_add(by).unwrap_or(edge)
}
