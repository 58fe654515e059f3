//! The publisher's side: an index of recent updates, and the SUP documents made from it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::change::Seq;
use crate::format::http_date;
use crate::sup::wire::document::{SupDocument, push_tuple, whole_seconds};
use crate::sup::wire::id::{SupId, UpdateId};

/// The periods that every document offers, in seconds (section 3.5).
pub const PERIODS: [u64; 4] = [60, 300, 3600, 86400];

/// Maximum period, in seconds: a request for a longer one gets this.
pub const MAX_PERIOD: u64 = 86400;

/// Maximum overlap of consecutive windows, in seconds; each window adds ten seconds. Up to it, the overlap is the period.
const MAX_OVERLAP: u64 = 3600;

/// Time for which an update is retained: the window of the longest period.
pub const RETENTION: Duration = Duration::from_secs(window(MAX_PERIOD) + 1);

/// Returns the length of the window for a period, in seconds.
///
/// It is longer than the period (section 3.4), so that a late poll, or a cached document, misses nothing.
const fn window(period: u64) -> u64 {
    let overlap = if period < MAX_OVERLAP { period } else { MAX_OVERLAP };
    // For 60 s this gives 130 s, the window of the text's own example (section 7).
    period + overlap + 10
}

/// Index of the last update of each feed within [`RETENTION`]. Other feeds take no memory.
///
/// After a start the caller records the updates since `now` − [`RETENTION`] from the feeds' logs, ordered by time,
/// before it serves documents.
#[derive(Debug, Default)]
pub struct RecentUpdates {
    /// Updates, oldest first. Only the last update of each feed is current.
    log: VecDeque<RecordedUpdate>,
    /// Number of updates dropped from the front of the log.
    dropped: u64,
    /// Number of each feed's last update, counted from the first one ever recorded.
    last: HashMap<SupId, u64>,
}

#[derive(Debug, Clone, Copy)]
struct RecordedUpdate {
    /// Unix seconds; never decrease along the log.
    second: i64,
    feed: SupId,
    update: UpdateId,
}

/// A SUP document to serve at `/sup.json?seconds=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSupDocument {
    /// JSON; the media type is `application/json` (section 3).
    pub body: String,
    /// Value of `Cache-Control`: the document is fresh for its period.
    pub cache_control: String,
    /// Value of `Expires`: the end of that time.
    pub expires: String,
    /// The document's own period, in seconds.
    pub period: u64,
    /// Number of feeds in the document.
    pub updates: usize,
}

impl RecentUpdates {
    /// Records an update: readers can see the change `seq` of the feed since `now`.
    ///
    /// A `now` before that of an earlier record counts as the earlier one's time: an update that is recorded late must
    /// be in all later documents.
    pub fn record(&mut self, feed: SupId, seq: Seq, now: Timestamp) {
        // An update may be recorded late, but the log must stay sorted by time for `since` and `forget`.
        let second = self.log.back().map_or(i64::MIN, |last| last.second).max(now.as_second());
        self.forget(second);
        self.last.insert(feed, self.dropped + self.log.len() as u64);
        self.log.push_back(RecordedUpdate { second, feed, update: UpdateId(seq) });
        // Amortised: at most half of the log is stale, so memory is bounded by feeds and not by updates.
        if self.log.len() > 2 * self.last.len() + 64 {
            self.compact();
        }
    }

    /// Returns the number of feeds with a recent update.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Returns true if no feed has a recent update.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the document for a period of `seconds`, clamped to 1 to [`MAX_PERIOD`].
    ///
    /// `base_url` is the URL of the SUP document without its query. The window ends at `now`; both ends are inclusive,
    /// in whole seconds.
    pub fn document(&self, now: Timestamp, seconds: u64, base_url: &str) -> PublishedSupDocument {
        self.document_shown(now, now, seconds, base_url)
    }

    /// Returns the document for a period as [`Self::document`] does, and shows `now` as the end of its window.
    ///
    /// `end` is the same moment by the clock that the updates were recorded with. It may differ from `now`: a wall clock
    /// that is set forward or back must neither drop updates nor list old ones.
    pub fn document_shown(
        &self,
        end: Timestamp,
        now: Timestamp,
        seconds: u64,
        base_url: &str,
    ) -> PublishedSupDocument {
        self.document_between(end, now, seconds, periods(base_url))
    }

    /// Returns the document for a period, with the given URLs for other periods.
    pub fn document_offering(
        &self,
        now: Timestamp,
        seconds: u64,
        available_periods: BTreeMap<u64, String>,
    ) -> PublishedSupDocument {
        self.document_between(now, now, seconds, available_periods)
    }

    fn document_between(
        &self,
        end: Timestamp,
        now: Timestamp,
        seconds: u64,
        available_periods: BTreeMap<u64, String>,
    ) -> PublishedSupDocument {
        // Zero is not a period (section 3.2), and the index forgets what is older than a day.
        let period = seconds.clamp(1, MAX_PERIOD);
        let shown = whole_seconds(now);
        let begin = |end: Timestamp| whole_seconds(end).as_second() - window(period) as i64;
        let head = SupDocument {
            updates: Vec::new(),
            period,
            since_time: Timestamp::from_second(begin(now)).unwrap_or(Timestamp::MIN),
            updated_time: shown,
            available_periods,
        };
        // Written straight into the body: a list of tuples would only be built to be dropped.
        let mut body = String::from(r#"{"updates":["#);
        let mut updates = 0;
        for update in self.since(begin(end)) {
            body.push_str(if updates == 0 { "" } else { "," });
            push_tuple(&mut body, update.feed, update.update);
            updates += 1;
        }
        body.push(']');
        head.write_rest(&mut body);
        // No longer than the overlap: a poller that gets a cached document still misses nothing.
        let age = period.min(MAX_OVERLAP);
        let expires = now.checked_add(SignedDuration::from_secs(age as i64)).unwrap_or(now);
        let cache_control = format!("public, max-age={age}");
        PublishedSupDocument { body, cache_control, expires: http_date::write(expires), period, updates }
    }

    /// Returns the last update of each feed since `second`, newest first.
    fn since(&self, second: i64) -> impl Iterator<Item = &RecordedUpdate> {
        // From the newest back: the log is sorted, so the search ends where the window begins.
        let numbered =
            self.log.iter().enumerate().rev().take_while(move |(_, update)| update.second >= second);
        let is_last = |(index, update): &(usize, &RecordedUpdate)| {
            self.last.get(&update.feed) == Some(&(self.dropped + *index as u64))
        };
        numbered.filter(is_last).map(|(_, update)| update)
    }

    /// Drops updates that are older than every window that ends at `second`.
    fn forget(&mut self, second: i64) {
        let oldest = second - RETENTION.as_secs() as i64;
        while let Some(update) = self.log.front().filter(|update| update.second < oldest) {
            // A later update of the feed may follow, and then it stays in the index.
            if self.last.get(&update.feed) == Some(&self.dropped) {
                self.last.remove(&update.feed);
            }
            self.log.pop_front();
            self.dropped += 1;
        }
    }

    /// Drops updates that are not the last of their feed.
    fn compact(&mut self) {
        let mut current = VecDeque::with_capacity(self.last.len() + 64);
        for (number, update) in (self.dropped..).zip(std::mem::take(&mut self.log)) {
            if let Some(last) = self.last.get_mut(&update.feed).filter(|last| **last == number) {
                *last = self.dropped + current.len() as u64;
                current.push_back(update);
            }
        }
        self.log = current;
    }
}

/// Returns the URLs of the documents for [`PERIODS`] (section 3.5).
fn periods(base_url: &str) -> BTreeMap<u64, String> {
    let base = base_url.split(['?', '#']).next().unwrap_or(base_url);
    PERIODS.into_iter().map(|period| (period, format!("{base}?seconds={period}"))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::sup::wire::document::ParsedSupDocument;

    const BASE: &str = "https://a.example/sup.json";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn feed(number: u64) -> SupId {
        SupId::of(&format!("https://a.example/feeds/{number}"))
    }

    fn read(published: &PublishedSupDocument) -> SupDocument {
        let ParsedSupDocument { document, problems } = SupDocument::parse(published.body.as_bytes()).unwrap();
        assert_eq!(problems, [""; 0]);
        document
    }

    /// Section 3.4: "The delta in seconds between the 'start_time' and the 'updated_time' fields MUST be equal
    /// to or greater than the duration indicated by the 'period' field."
    #[test]
    fn section_3_4_the_window_is_no_shorter_than_the_period() {
        let recent = RecentUpdates::default();
        for seconds in [0, 1, 59, 60, 61, 300, 3599, 3600, 86399, 86400, u64::MAX] {
            for now in [at(0), at(0) + SignedDuration::from_nanos(999_999_999)] {
                let document = read(&recent.document(now, seconds, BASE));
                let window = document.updated_time.as_second() - document.since_time.as_second();
                assert!(window as u64 > document.period, "{seconds}");
                assert_eq!(document.period, seconds.clamp(1, MAX_PERIOD));
            }
        }
        let hour = read(&recent.document(at(0), 60, BASE));
        assert_eq!(hour.updated_time.as_second() - hour.since_time.as_second(), 130, "as in section 7");
    }

    /// Section 3.1: "It MAY contain an empty list"; section 3.2: a positive integer; section 3.5: the periods.
    #[test]
    fn sections_3_1_to_3_5_an_empty_document_has_every_field() {
        let published = RecentUpdates::default().document(at(0), 60, "https://a.example/sup.json?seconds=9");
        let document = read(&published);
        assert!(document.updates.is_empty());
        assert_eq!(document.updated_time, at(0));
        let periods: Vec<(u64, &str)> =
            document.available_periods.iter().map(|(period, url)| (*period, url.as_str())).collect();
        assert_eq!(periods[0], (60, "https://a.example/sup.json?seconds=60"));
        assert_eq!(periods.iter().map(|(period, _)| *period).collect::<Vec<_>>(), PERIODS);
        assert_eq!(published.cache_control, "public, max-age=60");
        assert_eq!(published.expires, "Tue, 14 Nov 2023 22:14:20 GMT");
    }

    #[test]
    fn both_ends_of_the_window_are_inclusive() {
        let mut recent = RecentUpdates::default();
        recent.record(feed(1), 1, at(0));
        recent.record(feed(2), 1, at(130));
        let ids = |now| {
            let document = read(&recent.document(now, 60, BASE));
            document.updates.into_iter().map(|update| update.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(at(130)), [feed(2).to_string(), feed(1).to_string()]);
        assert_eq!(ids(at(131)), [feed(2).to_string()]);
    }

    /// Section 5: "to disambiguate distinct updates to a content feed".
    #[test]
    fn section_5_a_feed_is_listed_once_with_its_last_update() {
        let mut recent = RecentUpdates::default();
        let update = |recent: &RecentUpdates, now| read(&recent.document(now, 60, BASE)).updates;
        recent.record(feed(1), 41, at(0));
        let first = update(&recent, at(0));
        recent.record(feed(1), 42, at(0));
        let second = update(&recent, at(0));
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_eq!(first[0].id, second[0].id);
        assert_ne!(first[0].update, second[0].update, "although both are in one second");
    }

    #[test]
    fn updates_that_are_recorded_late_are_not_lost() {
        let mut recent = RecentUpdates::default();
        recent.record(feed(1), 1, at(500));
        recent.record(feed(2), 1, at(10));
        assert_eq!(read(&recent.document(at(500), 60, BASE)).updates.len(), 2);
    }

    #[test]
    fn updates_outside_every_window_take_no_memory() {
        let mut recent = RecentUpdates::default();
        for second in 0..1000 {
            recent.record(feed(1), second, at(second as i64));
        }
        assert_eq!(recent.len(), 1);
        // Twice the one feed, plus the slack of 64.
        assert!(recent.log.len() <= 66, "{}", recent.log.len());
        recent.record(feed(2), 1, at(1000 + RETENTION.as_secs() as i64));
        assert_eq!(recent.len(), 1);
        assert_eq!(recent.log.len(), 1);
    }

    proptest! {
        #[test]
        fn documents_list_exactly_the_updated_feeds(
            updates in proptest::collection::vec((0..20u64, 0..40i64), 0..300),
            seconds in 1..400u64,
        ) {
            let (mut recent, mut now) = (RecentUpdates::default(), 0);
            let mut model: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
            for (seq, (number, gap)) in updates.into_iter().enumerate() {
                now += gap;
                recent.record(feed(number), seq as u64, at(now));
                model.insert(number, (now, seq as u64));
            }
            let since = now - window(seconds) as i64;
            let expected: BTreeMap<String, String> = model
                .into_iter()
                .filter(|(_, (second, _))| *second >= since)
                .map(|(number, (_, seq))| (feed(number).to_string(), UpdateId(seq).to_string()))
                .collect();
            let published = recent.document(at(now), seconds, BASE);
            let document = read(&published);
            prop_assert_eq!(published.updates, expected.len());
            prop_assert_eq!(document.updates.len(), expected.len());
            let shown: BTreeMap<String, String> =
                document.updates.into_iter().map(|update| (update.id, update.update)).collect();
            prop_assert_eq!(shown, expected);
        }
    }
}
