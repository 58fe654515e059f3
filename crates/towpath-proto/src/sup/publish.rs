//! The publisher's side: which feeds moved lately, and the document that says so.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::id::{SupId, UpdateId};
use super::wire::{SupDocument, push_tuple, whole_seconds};
use crate::change::Seq;
use crate::format::http_date;

/// The periods that every document offers, in seconds (section 3.5).
pub const PERIODS: [u64; 4] = [60, 300, 3600, 86400];

/// The longest period, in seconds: what is asked beyond it is answered with it.
pub const MAX_PERIOD: u64 = 86400;

/// The overlap of a window with the ones before it is its period, but at most this, and ten seconds more.
const MAX_OVERLAP: u64 = 3600;

/// How long a move is kept: as long as the window of the longest period.
pub const RETENTION: Duration = Duration::from_secs(window(MAX_PERIOD) + 1);

/// The length of the window for a period, in seconds: longer than the period (section 3.4), so that a poller
/// that is a little late, or gets its document from a cache, loses nothing.
const fn window(period: u64) -> u64 {
    let overlap = if period < MAX_OVERLAP { period } else { MAX_OVERLAP };
    period + overlap + 10
}

/// Which feeds moved within [`RETENTION`], and when each did last. A feed that did not move takes no room.
///
/// After a start the caller records the moves since `now` − [`RETENTION`] from the feeds' logs, in the order
/// of their times, before it serves documents.
#[derive(Debug, Default)]
pub struct RecentMoves {
    /// Every move, oldest first; of a feed's moves only the last still counts.
    log: VecDeque<Move>,
    /// How many moves have been dropped from the front of the log.
    dropped: u64,
    /// For each feed in the log the number of its last move, counted from the beginning.
    last: HashMap<SupId, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Move {
    /// Unix seconds, never decreasing along the log.
    second: i64,
    feed: SupId,
    update: UpdateId,
}

/// A document to be served under `/sup.json?seconds=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// JSON; the media type is `application/json` (section 3).
    pub body: String,
    /// For `Cache-Control`: the document is good for its period.
    pub cache_control: String,
    /// For `Expires`: the same as a time.
    pub expires: String,
    /// The document's own period, in seconds.
    pub period: u64,
    /// How many feeds it names.
    pub updates: usize,
}

impl RecentMoves {
    /// Notes that the feed's log has the change `seq` since `now`.
    ///
    /// `now` is when readers can see the change. A time before that of an earlier move counts as that: a move
    /// that is noted late must be in the documents that come after it.
    pub fn record(&mut self, feed: SupId, seq: Seq, now: Timestamp) {
        let second = self.log.back().map_or(i64::MIN, |last| last.second).max(now.as_second());
        self.forget(second);
        self.last.insert(feed, self.dropped + self.log.len() as u64);
        self.log.push_back(Move { second, feed, update: UpdateId(seq) });
        if self.log.len() > 2 * self.last.len() + 64 {
            self.compact();
        }
    }

    /// How many feeds moved lately.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether no feed moved lately.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// The document for `seconds` (1 to [`MAX_PERIOD`]; what lies outside counts as the nearest of them).
    ///
    /// `base_url` is the address of the SUP document without its query. The window ends with `now`, both ends
    /// inclusive in whole seconds.
    pub fn document(&self, now: Timestamp, seconds: u64, base_url: &str) -> Published {
        self.document_offering(now, seconds, periods(base_url))
    }

    /// The same where the documents of other periods have addresses of their own.
    pub fn document_offering(
        &self,
        now: Timestamp,
        seconds: u64,
        available_periods: BTreeMap<u64, String>,
    ) -> Published {
        let period = seconds.clamp(1, MAX_PERIOD);
        let end = whole_seconds(now);
        let since = end.as_second() - window(period) as i64;
        let head = SupDocument {
            updates: Vec::new(),
            period,
            since_time: Timestamp::from_second(since).unwrap_or(Timestamp::MIN),
            updated_time: end,
            available_periods,
        };
        let mut body = String::from(r#"{"updates":["#);
        let mut updates = 0;
        for moved in self.since(since) {
            body.push_str(if updates == 0 { "" } else { "," });
            push_tuple(&mut body, moved.feed, moved.update);
            updates += 1;
        }
        body.push(']');
        head.write_rest(&mut body);
        let age = period.min(MAX_OVERLAP);
        let expires = now.checked_add(SignedDuration::from_secs(age as i64)).unwrap_or(now);
        let cache_control = format!("public, max-age={age}");
        Published { body, cache_control, expires: http_date::write(expires), period, updates }
    }

    /// The last move of each feed that moved at `second` or later, newest first.
    fn since(&self, second: i64) -> impl Iterator<Item = &Move> {
        let numbered = self.log.iter().enumerate().rev().take_while(move |(_, moved)| moved.second >= second);
        let is_last = |(index, moved): &(usize, &Move)| {
            self.last.get(&moved.feed) == Some(&(self.dropped + *index as u64))
        };
        numbered.filter(is_last).map(|(_, moved)| moved)
    }

    /// Drops what is older than every window that ends at `second`.
    fn forget(&mut self, second: i64) {
        let oldest = second - RETENTION.as_secs() as i64;
        while let Some(moved) = self.log.front().filter(|moved| moved.second < oldest) {
            if self.last.get(&moved.feed) == Some(&self.dropped) {
                self.last.remove(&moved.feed);
            }
            self.log.pop_front();
            self.dropped += 1;
        }
    }

    /// Drops the moves that later ones of their feeds have replaced.
    fn compact(&mut self) {
        let mut kept = VecDeque::with_capacity(self.last.len() + 64);
        for (number, moved) in (self.dropped..).zip(std::mem::take(&mut self.log)) {
            if let Some(last) = self.last.get_mut(&moved.feed).filter(|last| **last == number) {
                *last = self.dropped + kept.len() as u64;
                kept.push_back(moved);
            }
        }
        self.log = kept;
    }
}

/// Where documents for [`PERIODS`] are (section 3.5).
fn periods(base_url: &str) -> BTreeMap<u64, String> {
    let base = base_url.split(['?', '#']).next().unwrap_or(base_url);
    PERIODS.into_iter().map(|period| (period, format!("{base}?seconds={period}"))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::wire::Parsed;
    use super::*;

    const BASE: &str = "https://a.example/sup.json";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn feed(number: u64) -> SupId {
        SupId::of(&format!("https://a.example/feeds/{number}"))
    }

    fn read(published: &Published) -> SupDocument {
        let Parsed { document, problems } = SupDocument::parse(published.body.as_bytes()).unwrap();
        assert_eq!(problems, [""; 0]);
        document
    }

    /// Section 3.4: "The delta in seconds between the 'start_time' and the 'updated_time' fields MUST be equal
    /// to or greater than the duration indicated by the 'period' field."
    #[test]
    fn section_3_4_the_window_is_no_shorter_than_the_period() {
        let moves = RecentMoves::default();
        for seconds in [0, 1, 59, 60, 61, 300, 3599, 3600, 86399, 86400, u64::MAX] {
            for now in [at(0), at(0) + SignedDuration::from_nanos(999_999_999)] {
                let document = read(&moves.document(now, seconds, BASE));
                let window = document.updated_time.as_second() - document.since_time.as_second();
                assert!(window as u64 > document.period, "{seconds}");
                assert_eq!(document.period, seconds.clamp(1, MAX_PERIOD));
            }
        }
        let hour = read(&moves.document(at(0), 60, BASE));
        assert_eq!(hour.updated_time.as_second() - hour.since_time.as_second(), 130, "as in section 7");
    }

    /// Section 3.1: "It MAY contain an empty list"; section 3.2: a positive integer; section 3.5: the periods.
    #[test]
    fn sections_3_1_to_3_5_an_empty_document_has_every_field() {
        let published = RecentMoves::default().document(at(0), 60, "https://a.example/sup.json?seconds=9");
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
        let mut moves = RecentMoves::default();
        moves.record(feed(1), 1, at(0));
        moves.record(feed(2), 1, at(130));
        let ids = |now| {
            let document = read(&moves.document(now, 60, BASE));
            document.updates.into_iter().map(|update| update.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(at(130)), [feed(2).to_string(), feed(1).to_string()]);
        assert_eq!(ids(at(131)), [feed(2).to_string()]);
    }

    /// Section 5: "to disambiguate distinct updates to a content feed".
    #[test]
    fn section_5_a_feed_stands_once_with_its_last_update() {
        let mut moves = RecentMoves::default();
        let update = |moves: &RecentMoves, now| read(&moves.document(now, 60, BASE)).updates;
        moves.record(feed(1), 41, at(0));
        let first = update(&moves, at(0));
        moves.record(feed(1), 42, at(0));
        let second = update(&moves, at(0));
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_eq!(first[0].id, second[0].id);
        assert_ne!(first[0].update, second[0].update, "although it is the same second");
    }

    #[test]
    fn moves_that_are_noted_late_are_not_lost() {
        let mut moves = RecentMoves::default();
        moves.record(feed(1), 1, at(500));
        moves.record(feed(2), 1, at(10));
        assert_eq!(read(&moves.document(at(500), 60, BASE)).updates.len(), 2);
    }

    #[test]
    fn what_no_window_shows_takes_no_room() {
        let mut moves = RecentMoves::default();
        for second in 0..1000 {
            moves.record(feed(1), second, at(second as i64));
        }
        assert_eq!(moves.len(), 1);
        assert!(moves.log.len() <= 66, "{}", moves.log.len());
        moves.record(feed(2), 1, at(1000 + RETENTION.as_secs() as i64));
        assert_eq!(moves.len(), 1);
        assert_eq!(moves.log.len(), 1);
    }

    proptest! {
        #[test]
        fn documents_show_just_what_moved(
            moved in proptest::collection::vec((0..20u64, 0..40i64), 0..300),
            seconds in 1..400u64,
        ) {
            let (mut moves, mut now) = (RecentMoves::default(), 0);
            let mut model: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
            for (seq, (number, gap)) in moved.into_iter().enumerate() {
                now += gap;
                moves.record(feed(number), seq as u64, at(now));
                model.insert(number, (now, seq as u64));
            }
            let since = now - window(seconds) as i64;
            let expected: BTreeMap<String, String> = model
                .into_iter()
                .filter(|(_, (moved, _))| *moved >= since)
                .map(|(number, (_, seq))| (feed(number).to_string(), UpdateId(seq).to_string()))
                .collect();
            let published = moves.document(at(now), seconds, BASE);
            let document = read(&published);
            prop_assert_eq!(published.updates, expected.len());
            prop_assert_eq!(document.updates.len(), expected.len());
            let shown: BTreeMap<String, String> =
                document.updates.into_iter().map(|update| (update.id, update.update)).collect();
            prop_assert_eq!(shown, expected);
        }
    }
}
