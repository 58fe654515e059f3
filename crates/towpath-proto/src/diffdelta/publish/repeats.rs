//! Repeats the changes of the last mints in the next one's buckets.
//!
//! Clients of other makers compare the head's cursor and read `latest.json`, once in `ttl_sec`. They read no archive. Of
//! several mints between two of their polls they would see the last one only. So a mint also shows the changes of those
//! mints that such a client may not have seen. They are marked with `changed_in`, the number of their own mint. A follower
//! that walks the archive has them from there, and leaves marked items out.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::chain::DocumentChain;
use super::delta_item::RenderedItem;
use super::source::clamp_ttl;
use crate::diffdelta::wire::headers::MUTABLE_SEC;
use crate::feed_id::FeedId;

/// Maximum bytes of repeated items in a document; the newest mints are kept.
// Every snapshot holds its repeats for good.
const MAX_BYTES: usize = 1 << 20;
/// Shortest poll interval of the public clients, whatever `ttl_sec` says.
const SHORTEST_POLL: u64 = 60;
/// Bytes of repeated items up to which a mint does not wait.
const UNDELAYED_BYTES: usize = 64 << 10;
/// Bytes of repeated items beyond those that a feed writes in a second.
const REPEATED_RATE: f64 = 8192.0;
/// A mint waits for this part of the window at most. So a steady feed's changes are stored about ten times.
const LONGEST_WAIT_PART: u32 = 10;
/// Number of recorded mints within the window, at most.
const RECORDS: u64 = 32;

/// The changes of earlier mints that the next one repeats.
#[derive(Debug, Clone, Default)]
pub struct Repeats(Vec<RenderedItem>);

/// The times of the last mints. A record is a mint's number and time; of many mints in a short time one is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MintTimes(Vec<(u64, Timestamp)>);

/// Returns the seconds for which a mint's changes are repeated: the longest time between two polls, and the lifetime of
/// a cached copy.
fn window(ttl_sec: u64) -> u64 {
    clamp_ttl(ttl_sec).max(SHORTEST_POLL) + MUTABLE_SEC
}

fn before(now: Timestamp, seconds: u64) -> Timestamp {
    let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    now.saturating_sub(span).unwrap_or(Timestamp::MIN)
}

/// Returns the time to wait before the next mint of a feed that is published to, by what the last one repeated.
///
/// A mint for each of many small changes would store the same changes thousands of times. Readers poll less often.
pub fn wait_after_mint(repeated_bytes: usize, ttl_sec: u64) -> Duration {
    let longest = Duration::from_secs(window(ttl_sec)) / LONGEST_WAIT_PART;
    let beyond = repeated_bytes.saturating_sub(UNDELAYED_BYTES);
    Duration::from_secs_f64(beyond as f64 / REPEATED_RATE).min(longest)
}

impl MintTimes {
    /// Records a mint.
    pub(super) fn add(&mut self, number: u64, time: Timestamp, ttl_sec: u64) {
        let window = window(ttl_sec);
        let is_due = |last: &(u64, Timestamp)| last.1 <= before(time, window.div_ceil(RECORDS));
        if self.0.last().is_none_or(is_due) {
            self.0.push((number, time));
        }
        // The newest of the old ones tells which mints are old.
        let old = self.0.iter().filter(|(_, time_of)| *time_of < before(time, window)).count();
        self.0.drain(..old.saturating_sub(1));
    }

    /// Returns the number of the last mint that is known to be older than this.
    fn last_before(&self, time: Timestamp) -> u64 {
        self.0.iter().rev().find(|(_, time_of)| *time_of < time).map_or(0, |(number, _)| *number)
    }
}

impl DocumentChain {
    /// Returns true if the next mint repeats changes of the last one.
    pub fn has_repeats(&self, ttl_sec: u64, now: Timestamp) -> bool {
        self.minted_at().is_some_and(|minted| minted >= before(now, window(ttl_sec)))
    }
}

impl Repeats {
    /// Returns the changes that the next mint of a chain repeats. `snapshot` is the chain's last one.
    pub fn of(chain: &DocumentChain, ttl_sec: u64, snapshot: &[u8], now: Timestamp) -> Self {
        if !chain.has_repeats(ttl_sec, now) {
            return Self::default();
        }
        let too_old = chain.mint_times().last_before(before(now, window(ttl_sec)));
        // A snapshot that cannot be read has nothing to repeat. Its own checks tell of it.
        let mut items = RenderedItem::parse_document(snapshot).unwrap_or_default();
        for item in &mut items {
            item.changed_in.get_or_insert(chain.snapshots);
        }
        items.retain(|item| item.changed_in > Some(too_old));
        items.sort_by_key(|item| Reverse(item.changed_in));
        let (mut bytes, mut fitting) = (0, 0);
        // Whole mints only: a part of a mint would look like all of it.
        for mint in items.chunk_by(|a, b| a.changed_in == b.changed_in) {
            bytes += mint.iter().map(RenderedItem::len).sum::<usize>();
            if bytes > MAX_BYTES {
                break;
            }
            fitting += mint.len();
        }
        items.truncate(fitting);
        Self(items)
    }

    /// Removes what a mint shows anew, and the items of sources that it does not include.
    pub(super) fn without(mut self, minted: &[RenderedItem], has_source: impl Fn(&FeedId) -> bool) -> Self {
        if self.0.is_empty() {
            return self;
        }
        let anew: HashSet<(&FeedId, &str)> =
            minted.iter().map(|item| (&item.source, item.id.as_str())).collect();
        self.0.retain(|item| has_source(&item.source) && !anew.contains(&(&item.source, item.id.as_str())));
        self
    }

    pub(super) fn items(&self) -> &[RenderedItem] {
        &self.0
    }

    /// Returns the size of the repeated items in a document, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(RenderedItem::len).sum()
    }

    /// Returns the sentence about them in a narrative.
    pub(super) fn narrative(&self) -> String {
        match self.0.len() {
            0 => String::new(),
            count => format!(" {count} earlier repeated."),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::diffdelta::publish::testing::{TestSource, at};
    use crate::item::Item;

    fn titled(id: &str, title: &str) -> Item {
        Item { title: Some(title.into()), ..Item::new(id) }
    }

    fn json(text: &[u8]) -> Value {
        serde_json::from_slice(text).unwrap()
    }

    /// The items in all buckets.
    fn items(document: &[u8]) -> Vec<Value> {
        let document = json(document);
        let buckets = document["buckets"].as_object().unwrap().values();
        buckets.flat_map(|items| items.as_array().unwrap().clone()).collect()
    }

    fn id(item: &Value) -> String {
        item["id"].as_str().unwrap().to_owned()
    }

    /// The mints of the repeated items, by id.
    fn marks(p: &TestSource) -> BTreeMap<String, Option<u64>> {
        items(&p.latest).iter().map(|item| (id(item), item["changed_in"].as_u64())).collect()
    }

    /// The algorithm of the public Python client, 0.1.1: no archive, no `prev_cursor`, every item of the buckets.
    #[derive(Default)]
    struct PublicClient {
        cursor: String,
        /// Title of each item; empty if it was removed.
        items: BTreeMap<String, String>,
    }

    impl PublicClient {
        fn poll(&mut self, head: &[u8], latest: &[u8]) {
            if json(head)["cursor"] == self.cursor.as_str() {
                return;
            }
            self.cursor = json(latest)["cursor"].as_str().unwrap().to_owned();
            for item in items(latest) {
                let title = if item["change"] == "removed" { "" } else { item["title"].as_str().unwrap() };
                self.items.insert(id(&item), title.to_owned());
            }
        }
    }

    /// Clients that poll as they are told see every change, even in copies as old as caches may keep them.
    #[test]
    fn the_public_client_loses_nothing_between_two_polls() {
        for (step, lag) in [(7, 0), (7, 60), (1, 60), (20, 30), (59, 59), (61, 60)] {
            let mut p = TestSource::new("ab");
            let mut published = BTreeMap::from([(0, (p.head.clone(), p.latest.clone()))]);
            let mut expected = BTreeMap::new();
            for n in 0..38 {
                let (time, id) = (1 + n * step, format!("{:02}", n % 30));
                if n % 9 == 8 {
                    let gone = format!("{:02}", (n - 3) % 30);
                    p.delete(&gone, at(time));
                    expected.insert(gone, String::new());
                } else {
                    p.put(titled(&id, &n.to_string()), at(time));
                    expected.insert(id, n.to_string());
                }
                p.run(at(time));
                published.insert(time, (p.head.clone(), p.latest.clone()));
            }
            let mut client = PublicClient::default();
            let end = 38 * step + 120;
            for now in (0..=end).filter(|now| now % 60 == 0) {
                let (_, (head, latest)) = published.range(..=(now - lag).max(0)).next_back().unwrap();
                client.poll(head, latest);
            }
            assert_eq!(client.items, expected, "a mint every {step} s, copies {lag} s old");
        }
    }

    /// The buckets say which changes are the mint's own. The counts are of those.
    #[test]
    fn repeated_changes_are_marked_until_the_window_has_passed() {
        let mut p = TestSource::new("ab");
        let expected = |marks: &[(&str, Option<u64>)]| -> BTreeMap<String, Option<u64>> {
            marks.iter().map(|(id, mark)| ((*id).to_owned(), *mark)).collect()
        };
        p.put(titled("a", "1"), at(0));
        p.put(titled("b", "1"), at(0));
        p.run(at(0));
        assert_eq!(marks(&p), expected(&[("a", None), ("b", None)]));
        p.put(titled("c", "1"), at(50));
        p.run(at(50));
        p.put(titled("b", "2"), at(100));
        p.run(at(100));
        assert_eq!(marks(&p), expected(&[("a", Some(1)), ("b", None), ("c", Some(2))]));
        let latest = json(&p.latest);
        assert_eq!(latest["batch_narrative"], "ab: 0 new, 1 updated, 0 removed. 2 earlier repeated.");
        assert_eq!(latest["sources"]["ab"]["delta_counts"]["new"], 0);
        let new = latest["buckets"]["new"].as_array().unwrap();
        assert!(new.iter().any(|item| item["id"] == "c"), "in the bucket of its own change");
        assert_eq!(p.snapshots[2].1, p.latest, "section 1.3: byte-identical");
        // 60 seconds of `ttl_sec` and 60 of caches after the first mint.
        p.put(titled("d", "1"), at(130));
        p.run(at(130));
        assert_eq!(marks(&p), expected(&[("b", Some(3)), ("c", Some(2)), ("d", None)]));
        p.put(titled("e", "1"), at(1000));
        p.run(at(1000));
        assert_eq!(marks(&p), expected(&[("e", None)]));
    }

    #[test]
    fn the_newest_repeats_are_kept_up_to_their_limit() {
        let mut p = TestSource::new("ab");
        for n in 0..30 {
            p.put(titled(&format!("{n:02}"), &"long ".repeat(20_000)), at(n));
            p.run(at(n));
            assert!(p.latest.len() < MAX_BYTES + 300_000, "{} bytes", p.latest.len());
        }
        let ids: Vec<String> = marks(&p).into_keys().collect();
        assert!(ids.len() > 5, "{ids:?}");
        let newest: Vec<String> = (30 - ids.len()..30).map(|n| format!("{n:02}")).collect();
        assert_eq!(ids, newest, "without a hole");
        // More than fits, whatever came before.
        (0..200).for_each(|n| p.put(titled(&format!("bulk {n}"), &"long ".repeat(2000)), at(30)));
        p.run(at(30));
        p.put(titled("last", "1"), at(31));
        p.run(at(31));
        assert_eq!(items(&p.latest).len(), 1, "no part of a mint");
    }

    /// The chain's record is written with every mint.
    #[test]
    fn the_record_of_mints_is_short_and_never_forgets_too_early() {
        let mut times = MintTimes::default();
        let mut minted = Vec::new();
        for number in 1..=40_000_u64 {
            // Four per second, with a rest now and then.
            let now = at(i64::try_from(number / 4 + number / 5000 * 900).unwrap());
            let cutoff = before(now, window(600));
            let forgotten = times.last_before(cutoff);
            let old = minted.iter().filter(|time| **time < cutoff).count() as u64;
            assert!(forgotten <= old, "{forgotten} of {old}");
            if let Some(time) = minted.get(forgotten as usize).filter(|_| forgotten < old) {
                assert!(*time >= before(now, window(600) + 900 + 21), "kept for too long");
            }
            times.add(number, now, 600);
            minted.push(now);
            assert!(times.0.len() <= 34, "{}", times.0.len());
        }
    }

    #[test]
    fn mints_wait_only_where_they_repeat_much() {
        assert_eq!(wait_after_mint(UNDELAYED_BYTES, 300), Duration::ZERO);
        assert_eq!(wait_after_mint(UNDELAYED_BYTES + 8192, 300), Duration::from_secs(1));
        assert_eq!(wait_after_mint(MAX_BYTES, 300), Duration::from_secs(36));
        assert_eq!(wait_after_mint(MAX_BYTES, 1), Duration::from_secs(12));
    }

    /// A chain that an older version stored has no record of its mints.
    #[test]
    fn an_older_chain_is_continued() {
        let mut p = TestSource::new("ab");
        p.put(titled("a", "1"), at(0));
        p.run(at(0));
        let mut stored = serde_json::to_value(&p.chain).unwrap();
        stored.as_object_mut().unwrap().remove("mint_times").unwrap();
        p.chain = serde_json::from_value(stored).unwrap();
        p.put(titled("b", "1"), at(1));
        p.run(at(1));
        assert_eq!(marks(&p), BTreeMap::from([("a".into(), Some(1)), ("b".into(), None)]));
    }
}
