//! A SUP document that the follower polls: the time it has covered, its periods, and its health.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::follow::{Backoff, Monotonic, Now, Request, ResponseHead};
use crate::sup::wire::document::{SupDocument, SupUpdate};

/// Maximum wait after a failure, including a publisher's `Retry-After`.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(86_400);

/// Maximum difference between the clocks of a publisher's documents.
const MAX_CLOCK_DRIFT: SignedDuration = SignedDuration::from_mins(10);

/// Tolerance for the age of a response and for rounding to seconds.
const MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// Consecutive failures, or omitted updates, after which the document is unhealthy.
const MAX_FAILURES: u32 = 3;

/// Minimum and maximum poll interval of a healthy document, in seconds.
const INTERVALS: (u64, u64) = (10, 900);

/// Waits after failures.
const BACKOFF: Backoff =
    Backoff::doubling(Duration::from_secs(2 * INTERVALS.0), Duration::from_secs(INTERVALS.1));

/// Maximum number of update ids stored per feed. A feed with more is polled once too often.
const MAX_UPDATE_IDS: usize = 256;

/// Maximum number of periods stored per publisher.
const MAX_PERIODS: usize = 64;

/// Maximum number of longer periods that are requested one after the other, without a pause between them.
const MAX_LONGER_REQUESTS: u8 = 3;

/// Coverage of time by a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// The window follows the last one without gap.
    Complete,
    /// The window begins too late; the document for this many seconds may not.
    LongerPeriod(u64),
    /// The window begins too late, and there is no longer one: updates of any feed may be missed.
    Gap(String),
}

/// A period that the publisher offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OfferedPeriod {
    url: String,
    /// Length of the last window, in seconds, if known.
    window: Option<u64>,
}

/// Validators and window of the last document at a URL, for conditional requests (RFC 9110, section 13).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastDocument {
    etag: Option<String>,
    last_modified: Option<String>,
    period: u64,
    since: Timestamp,
    updated: Timestamp,
}

/// A SUP document with its state. The names of the fields in JSON are a stored format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SupSource {
    /// URL, as feeds announce it.
    pub(super) url: String,
    periods: BTreeMap<u64, OfferedPeriod>,
    /// Last documents with a validator, by URL.
    #[serde(default)]
    known: BTreeMap<String, LastDocument>,
    /// Publisher's clock: every update up to then was received.
    covered_to: Option<Timestamp>,
    /// Our clock: begin of the time to cover, before the first document. Feeds were polled since then.
    #[serde(rename = "asked_from")]
    polled_from: Option<Timestamp>,
    /// Offset of the publisher's clock from ours, without the age of its document.
    #[serde(rename = "ahead")]
    clock_offset: Option<SignedDuration>,
    /// Clock offset and end of the window of the last document with an implausible clock.
    #[serde(rename = "disbelieved")]
    implausible: Option<(SignedDuration, Timestamp)>,
    /// Update ids by SUP ID, with the time at which they were last listed.
    #[serde(rename = "seen")]
    update_ids: HashMap<String, HashMap<String, Timestamp>>,
    failures: u32,
    /// Updates that no document listed.
    #[serde(rename = "unannounced")]
    omitted: u32,
    /// Time of the next request.
    #[serde(skip)]
    pub(super) due: Monotonic,
    /// True while a request is in flight.
    #[serde(skip)]
    pub(super) in_flight: bool,
    /// Number of longer periods in a row that did not reach far enough back either.
    #[serde(skip)]
    longer_requests: u8,
    /// Time at which a gap last made all feeds due.
    pub(super) last_gap: Option<Timestamp>,
    /// True after a warning about the document's format.
    #[serde(skip)]
    pub(super) is_warned: bool,
}

impl SupSource {
    pub(super) fn new(url: String, now: Now) -> Self {
        Self {
            url,
            periods: BTreeMap::new(),
            known: BTreeMap::new(),
            covered_to: None,
            polled_from: None,
            clock_offset: None,
            implausible: None,
            update_ids: HashMap::new(),
            failures: 0,
            omitted: 0,
            due: now.monotonic,
            in_flight: false,
            longer_requests: 0,
            last_gap: None,
            is_warned: false,
        }
    }

    /// Returns true if a document was received, and the source neither fails nor omits updates.
    pub(super) fn is_healthy(&self) -> bool {
        self.covered_to.is_some() && self.failures < MAX_FAILURES && self.omitted < MAX_FAILURES
    }

    /// Handles a new feed of this source, which was polled at this time: its updates since then are to be covered too.
    pub(super) fn feed_joined(&mut self, polled: Timestamp) {
        // The feed's updates in the last document were ignored. Without validators it is sent again, even if unchanged.
        self.known.clear();
        match (&mut self.covered_to, self.clock_offset) {
            // Back to the time of that poll, so a longer window is requested if it is needed.
            (Some(covered), Some(ahead)) => *covered = (*covered).min(shifted(polled, ahead - MARGIN)),
            _ => self.polled_from = Some(self.polled_from.map_or(polled, |earlier| earlier.min(polled))),
        }
    }

    /// Returns the shortest period that covers the time since the last document, else the longest; `None` before the
    /// first document.
    pub(super) fn choose_period(&self, now: Timestamp) -> Option<u64> {
        let needed = match (self.covered_to, self.clock_offset) {
            (Some(covered), Some(ahead)) => shifted(now, ahead + MARGIN).duration_since(covered).as_secs(),
            _ => self.polled_from.map_or(0, |polled| (now.duration_since(polled) + MARGIN).as_secs()),
        };
        let covering =
            // An unknown window counts as its period, which is the minimum (section 3.4).
            self.periods.iter().find(|(seconds, p)| p.window.unwrap_or(0).max(**seconds) as i64 >= needed);
        covering.or(self.periods.last_key_value()).map(|(seconds, _)| *seconds)
    }

    /// Returns the URL of the document for a period.
    pub(super) fn period_url(&self, seconds: u64) -> Option<&str> {
        self.periods.get(&seconds).map(|period| period.url.as_str())
    }

    /// Makes the request conditional on a change since the last document.
    pub(super) fn make_conditional(&self, mut request: Request) -> Request {
        let Some(known) = self.known.get(&request.url) else { return request };
        if let Some(etag) = &known.etag {
            request = request.with(IF_NONE_MATCH, etag);
        }
        if let Some(date) = &known.last_modified {
            request = request.with(IF_MODIFIED_SINCE, date);
        }
        request
    }

    /// Stores the validators of a response.
    pub(super) fn store_validators(&mut self, url: &str, head: &ResponseHead, document: &SupDocument) {
        let text = |name| head.header(name).map(str::to_owned);
        let (etag, last_modified) = (text("etag"), text("last-modified"));
        // A publisher that offers new URLs every time would fill the state.
        self.known.retain(|known, _| *known == self.url || self.periods.values().any(|p| p.url == *known));
        if etag.is_none() && last_modified.is_none() {
            self.known.remove(url);
            return;
        }
        let (since, updated) = (document.since_time, document.updated_time);
        let known = LastDocument { etag, last_modified, period: document.period, since, updated };
        self.known.insert(url.to_owned(), known);
    }

    /// Returns the last document of the URL, for a 304: without its updates, which are known, but with its window.
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

    /// Applies a document that was requested for the period `requested` at `url`, and returns its coverage.
    pub(super) fn apply_document(
        &mut self,
        now: Now,
        requested: Option<u64>,
        url: &str,
        document: &SupDocument,
    ) -> Result<Coverage, String> {
        let ahead = document.updated_time.duration_since(now.wall);
        let jumped = self.check_clock(ahead, document)?;
        self.learn_periods(requested, url, document);
        self.failures = 0;
        let known = self.covered_to.or_else(|| Some(shifted(self.polled_from?, ahead - MARGIN)));
        let covered_to = known.map_or(document.updated_time, |known| known.max(document.updated_time));
        let coverage = match known {
            // Times of the old clock and of the new one cannot be compared.
            _ if jumped => Coverage::Gap("its clock was set".into()),
            Some(known) if document.since_time > known => self.too_late(requested, document),
            _ => Coverage::Complete,
        };
        // With a longer period pending, the gap is still open: its document must begin before it.
        if matches!(coverage, Coverage::LongerPeriod(_)) {
            self.longer_requests += 1;
        } else {
            self.longer_requests = 0;
            self.covered_to = Some(if jumped { document.updated_time } else { covered_to });
            self.polled_from = None;
        }
        // The shortest period on offer, even after a gap that needed a longer one.
        let interval = self.periods.keys().next().copied().unwrap_or(document.period);
        // A hostile period of 1 s or of a year must set neither pace.
        let interval = interval.clamp(INTERVALS.0, INTERVALS.1);
        self.due = now.after(Duration::from_secs(interval));
        Ok(coverage)
    }

    /// Checks the publisher's clock. Returns true if it was set.
    ///
    /// A new clock is accepted with the third document in a row that has it, and never if it stands still: that is a
    /// dead publisher behind a cache.
    fn check_clock(&mut self, ahead: SignedDuration, document: &SupDocument) -> Result<bool, String> {
        if document.since_time > document.updated_time {
            return Err(format!(
                "the window begins at {}, after its end {}",
                document.since_time, document.updated_time
            ));
        }
        let Some(known) = self.clock_offset else {
            self.clock_offset = Some(ahead);
            return Ok(false);
        };
        // A cache may serve a document for its whole period.
        let room = MAX_CLOCK_DRIFT + SignedDuration::from_secs(document.period.min(86400) as i64);
        if (ahead - known).abs() <= room {
            // The youngest document shows the clock best: the age of a response makes the clock seem behind.
            self.clock_offset =
                Some(if self.implausible.take().is_some() { ahead } else { known.max(ahead) });
            return Ok(false);
        }
        let before = self.implausible.replace((ahead, document.updated_time));
        let advances =
            before.is_some_and(|(a, end)| (ahead - a).abs() <= room && document.updated_time > end);
        if advances && self.failures + 1 >= MAX_FAILURES {
            self.clock_offset = Some(ahead);
            self.implausible = None;
            return Ok(true);
        }
        let (direction, off) =
            if ahead > known { ("ahead of", ahead - known) } else { ("behind", known - ahead) };
        Err(format!("the window ends at {}, {off:#} {direction} its clock", document.updated_time))
    }

    fn learn_periods(&mut self, requested: Option<u64>, url: &str, document: &SupDocument) {
        let mut periods: BTreeMap<u64, OfferedPeriod> = BTreeMap::new();
        // A hostile list of periods would otherwise fill the state.
        for (seconds, url) in document.available_periods.iter().take(MAX_PERIODS) {
            let window = self.periods.get(seconds).and_then(|period| period.window);
            periods.insert(*seconds, OfferedPeriod { url: url.clone(), window });
        }
        let window = document.updated_time.duration_since(document.since_time).as_secs();
        let own = periods.entry(requested.unwrap_or(document.period));
        own.or_insert_with(|| OfferedPeriod { url: url.to_owned(), window: None }).window =
            Some(window.unsigned_abs());
        self.periods = periods;
    }

    fn too_late(&self, requested: Option<u64>, document: &SupDocument) -> Coverage {
        let used = requested.unwrap_or(document.period);
        match self.periods.range(used + 1..).next_back() {
            // The longest period: no shorter one is known to reach far enough back.
            // Where each document offers a longer one still, none ever does.
            Some((longer, _)) if self.longer_requests < MAX_LONGER_REQUESTS => {
                Coverage::LongerPeriod(*longer)
            }
            _ => Coverage::Gap(format!("its window begins only at {}", document.since_time)),
        }
    }

    /// Records an update. Returns true if it is new.
    pub(super) fn is_new(&mut self, update: &SupUpdate, listed: Timestamp) -> bool {
        let updates = self.update_ids.entry(update.id.clone()).or_default();
        // A hostile publisher may list new ids for ever. Clearing costs one poll too many, and not memory.
        if updates.len() >= MAX_UPDATE_IDS && !updates.contains_key(&update.update) {
            updates.clear();
        }
        let before = updates.insert(update.update.clone(), listed);
        before.is_none()
    }

    /// Drops update ids that no window can list any more.
    pub(super) fn drop_old_updates(&mut self, updated: Timestamp) {
        let longest = self.periods.iter().map(|(seconds, p)| p.window.unwrap_or(0).max(*seconds)).max();
        // At most 34 years: a hostile period above `i64::MAX` would turn negative.
        let retained = SignedDuration::from_secs(longest.unwrap_or(0).min(1 << 30) as i64) + MAX_CLOCK_DRIFT;
        self.update_ids.retain(|_, updates| {
            updates.retain(|_, listed| updated.duration_since(*listed) <= retained);
            !updates.is_empty()
        });
    }

    /// Handles a failed request, and schedules the next with backoff or after `Retry-After`.
    ///
    /// Returns true if the source becomes unhealthy.
    pub(super) fn handle_failure(&mut self, now: Now, retry_after: Option<Duration>) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.due = now.after(BACKOFF.wait_or_longer(self.failures, retry_after, MAX_WAIT));
        // Equal, not greater: the caller warns and reschedules once.
        self.failures == MAX_FAILURES
    }

    /// Records an omitted update. Returns true if the source becomes unhealthy.
    pub(super) fn record_omission(&mut self) -> bool {
        self.omitted += 1;
        self.omitted == MAX_FAILURES
    }

    /// Returns true if a window that ends at `updated` includes the time `at` of our clock.
    pub(super) fn covers(&self, at: Timestamp, updated: Timestamp) -> bool {
        self.clock_offset.is_some_and(|ahead| shifted(at, ahead + MARGIN) <= updated)
    }
}

/// Returns `time` plus `by`, limited to valid timestamps.
pub(super) fn shifted(time: Timestamp, by: SignedDuration) -> Timestamp {
    let edge = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    time.checked_add(by).unwrap_or(edge)
}
