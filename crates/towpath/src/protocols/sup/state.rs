//! Recent updates of all feeds (Simple Update Protocol).
//!
//! An update is listed [`DELAY`] after its append, when every protocol serves the change: a reader that comes at once
//! finds it, and need not come again before the next update. If a document took longer than that
//! ([`Sup::on_late_document`]), the update is listed a second time with another update id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::{PublishedSupDocument, RETENTION, RecentUpdates};
use towpath_store::FeedSummary;

use crate::config::Config;
use crate::document::sup_links::SupLinks;
use crate::engine::{Append, Engine, Feed};

/// Time from an append until the update is listed.
pub const DELAY: Duration = Duration::from_secs(1);
/// Number of pending updates from which they are listed without a request for a document.
// Without readers nobody lists them, and the queue would grow with every append.
const MANY: usize = 4096;
/// Set in the update id that lists a change a second time.
// Positions never reach this bit, so the second id differs from every first one.
const AGAIN: Seq = 1 << 63;

/// Recent updates of all feeds.
pub struct Sup {
    updates: Mutex<RecentUpdates>,
    /// Updates that are not listed yet, oldest first.
    pending: Mutex<VecDeque<PendingUpdate>>,
    /// SUP IDs of the filters of a log: an append to the log updates them too.
    filters: HashMap<FeedId, Vec<SupId>>,
    links: Arc<SupLinks>,
    /// The start, on both clocks. Updates are dated by the time since then: a wall clock that jumps ahead would have the
    /// index forget what it has, and list everything later for as long as it was ahead.
    start: (Timestamp, Instant),
    /// Held while a document is built, so that a million readers build one.
    pub(super) building: tokio::sync::Mutex<()>,
}

/// Time at which an append came to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    InTime,
    /// After other nodes may have listed it.
    Late,
}

struct PendingUpdate {
    id: SupId,
    update: Seq,
    /// Time by which the index orders it.
    at: Timestamp,
    /// Monotonic time of the append: setting the clock must not list it early or late.
    since: Instant,
}

/// SUP ID of a feed, cached with each feed that had an append: every append needs it, and it is a SHA-256.
struct FeedSupId(SupId);

impl Sup {
    /// Returns the engine's recent updates: none before `recover`.
    pub fn of(engine: &Engine) -> &Self {
        engine
            .extensions
            .get_or_insert_with(|| Self::recover(&engine.config, &engine.sup_links, [], engine.now()))
    }

    /// Makes the updates since `now` − [`RETENTION`] from each feed's last append, in any order.
    fn recover(
        config: &Config,
        links: &Arc<SupLinks>,
        last: impl IntoIterator<Item = FeedSummary>,
        now: Timestamp,
    ) -> Self {
        let mut filters: HashMap<FeedId, Vec<SupId>> = HashMap::new();
        for feed in &config.feeds {
            if let Some(filter) = &feed.filter {
                filters.entry(filter.of.clone()).or_default().push(links.sup_id(feed.id()));
            }
        }
        let oldest = now.checked_sub(RETENTION).unwrap_or(Timestamp::MIN);
        let recent = last.into_iter().filter(|last| last.head.seq > 0 && last.appended >= oldest);
        let mut recent: Vec<FeedSummary> = recent.collect();
        recent.sort_unstable_by_key(|last| last.appended);
        let mut updates = RecentUpdates::default();
        for FeedSummary { feed, head, appended } in recent {
            // If the clock was set back since, the update must not lie in the future.
            let at = appended.min(now);
            updates.record(links.sup_id(&feed), head.seq, at);
            filters.get(&feed).into_iter().flatten().for_each(|filter| updates.record(*filter, head.seq, at));
        }
        Self {
            updates: Mutex::new(updates),
            pending: Mutex::default(),
            filters,
            links: links.clone(),
            start: (now, Instant::now()),
            building: tokio::sync::Mutex::default(),
        }
    }

    fn sup_id(&self, feed: &Feed) -> SupId {
        feed.extensions.get_or_insert_with(|| FeedSupId(self.links.sup_id(feed.id()))).0
    }

    /// Adds an append to the pending updates.
    ///
    /// Other nodes may have listed a late one long ago. A reader that asked this node then has missed it, so it gets an
    /// update id of its own.
    pub(crate) fn record(&self, feed: &Feed, append: Append, arrival: Arrival) {
        let since = Instant::now();
        let update = match arrival {
            Arrival::InTime => append.seq,
            Arrival::Late => append.seq | AGAIN,
        };
        // A filter moves with its log, even if the new item does not match: the reader finds out by polling.
        let filters = self.filters.get(feed.id()).into_iter().flatten().copied();
        let ids = std::iter::once(self.sup_id(feed)).chain(filters);
        let mut pending = self.pending.lock();
        let at = self.time_at(since);
        pending.extend(ids.map(|id| PendingUpdate { id, update, at, since }));
        // The store's thread must not wait for a document that is being built under the lock.
        if pending.len() >= MANY
            && let Some(mut updates) = self.updates.try_lock()
        {
            list_due(&mut updates, &mut pending);
        }
    }

    /// Lists an update a second time if its documents, up to the change `seq`, were built only now and took so long
    /// that the update was listed before.
    pub(crate) fn on_late_document(&self, feed: &Feed, seq: Seq, now: Timestamp) {
        let since = Instant::now();
        let delay = SignedDuration::try_from(DELAY).unwrap_or_default();
        // Within the delay the update is still pending, and its first listing comes after the document.
        let is_late = feed.last_append().is_none_or(|appended| now.duration_since(appended) > delay);
        if is_late && seq > 0 {
            let at = self.time_at(since);
            let update = PendingUpdate { id: self.sup_id(feed), update: seq | AGAIN, at, since };
            self.pending.lock().push_back(update);
        }
    }

    /// Lists a recent update a second time after a start, if its documents were built long after it: the process before may
    /// have ended between the document and its second listing. `built` is the time of the current document.
    pub(crate) fn on_recovered_document(
        &self,
        feed: &Feed,
        seq: Seq,
        built: Option<Timestamp>,
        now: Timestamp,
    ) {
        let is_recent = |at: Timestamp| now.duration_since(at).unsigned_abs() < RETENTION;
        if let Some(built) = built.filter(|_| feed.last_append().is_some_and(is_recent)) {
            self.on_late_document(feed, seq, built);
        }
    }

    /// Returns the number of feeds with recent updates; `None` while a document is being built.
    pub fn recent(&self) -> Option<usize> {
        let mut updates = self.updates.try_lock()?;
        list_due(&mut updates, &mut self.pending.lock());
        Some(updates.len())
    }

    /// Returns a moment as the index dates it.
    fn time_at(&self, at: Instant) -> Timestamp {
        let (time, start) = self.start;
        time.checked_add(at.saturating_duration_since(start)).unwrap_or(time)
    }

    /// Builds the document for a period, which shows `now` as its end.
    pub(super) fn build(&self, now: Timestamp, seconds: u64, url: &str) -> PublishedSupDocument {
        self.build_at(Instant::now(), now, seconds, url)
    }

    fn build_at(&self, at: Instant, now: Timestamp, seconds: u64, url: &str) -> PublishedSupDocument {
        let mut updates = self.updates.lock();
        list_due(&mut updates, &mut self.pending.lock());
        // The window ends where updates may still be pending, so a listed window is complete.
        let before = |time: Timestamp| time.checked_sub(DELAY).unwrap_or(time);
        updates.document_shown(before(self.time_at(at)), before(now), seconds, url)
    }
}

/// Moves pending updates that are [`DELAY`] old to the listed ones.
fn list_due(updates: &mut RecentUpdates, pending: &mut VecDeque<PendingUpdate>) {
    while pending.front().is_some_and(|first| first.since.elapsed() >= DELAY) {
        if let Some(PendingUpdate { id, update, at, .. }) = pending.pop_front() {
            updates.record(id, update, at);
        }
    }
}

/// Makes the engine's recent updates from the ends of its logs. Comes before the first append.
pub(crate) fn recover(engine: &Engine, heads: Vec<FeedSummary>) {
    engine
        .extensions
        .get_or_insert_with(|| Sup::recover(&engine.config, &engine.sup_links, heads, engine.now()));
}

/// Notes an append. Runs before the head moves: a reader that sees the new head finds the update pending.
pub(crate) fn on_append(engine: &Arc<Engine>, feed: &Arc<Feed>, append: Append) {
    // A node with an age was cut off from the log for that long.
    let arrival = if engine.replica_age().is_some() { Arrival::Late } else { Arrival::InTime };
    Sup::of(engine).record(feed, append, arrival);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use towpath_proto::sup::wire::SupDocument;
    use towpath_store::LogHead;

    use super::*;
    use crate::config::FeedConfig;

    fn id(name: &str) -> FeedId {
        FeedId::new(name).unwrap()
    }

    fn listed(sup: &Sup, now: Timestamp) -> Vec<(String, String)> {
        let passed = now.duration_since(sup.start.0).unsigned_abs();
        let made = sup.build_at(sup.start.1 + passed, now, 60, "https://a.example/sup.json");
        let document = SupDocument::parse(made.body.as_bytes()).unwrap().document;
        document.updates.into_iter().map(|update| (update.id, update.update)).collect()
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn moves_are_recovered_in_any_order_and_filters_move_with_their_log() {
        let text =
            "[[feed]]\nid = \"all\"\n[[feed]]\nid = \"few\"\nfilter = { of = \"all\", tags = [\"x\"] }\n";
        let config = Config::parse(text, Path::new("towpath.toml")).unwrap();
        let links = Arc::new(SupLinks::new("https://a.example", HashSet::new(), ""));
        let moved = |name: &str, seq, at| {
            let head = LogHead { seq, modified: time(at), items: 0, live: 0, horizon: 0 };
            FeedSummary { feed: id(name), head, appended: time(at) }
        };
        let last = [
            moved("all", 7, -20),
            moved("young", 2, -10),
            moved("old", 9, -(RETENTION.as_secs() as i64) - 1),
            moved("future", 3, 3600),
            moved("empty", 0, -5),
        ];
        let sup = Sup::recover(&config, &links, last, time(0));
        let expected = [("future", "3"), ("young", "2"), ("few", "7"), ("all", "7")];
        let expected = expected.map(|(name, update)| (links.link(&id(name)).id, update.to_owned()));
        assert_eq!(listed(&sup, time(1)), expected);
        assert_eq!(sup.recent(), Some(4));
        // 130 seconds, beginning a second back.
        assert!(listed(&sup, time(132)).is_empty());
    }

    /// A disk may be full between an append and its document, and the process may end just after that.
    #[test]
    fn a_document_that_was_late_before_a_start_is_told_of_again() {
        let links = Arc::new(SupLinks::new("https://a.example", HashSet::new(), ""));
        let config = Config::parse("", Path::new("towpath.toml")).unwrap();
        let feed = Feed::new(FeedConfig::unnamed(id("news")));
        feed.set_last_append(time(0), time(0));
        let now = time(60);
        let long_ago = time(-200_000);
        for (appended, built, is_told) in [
            (time(0), Some(time(6)), true),
            (time(0), Some(time(0)), false),
            (time(0), None, false),
            (long_ago, Some(time(6)), false),
        ] {
            let sup = Sup::recover(&config, &links, [], now);
            feed.set_last_append(appended, appended);
            sup.on_recovered_document(&feed, 5, built, now);
            std::thread::sleep(DELAY + Duration::from_millis(50));
            let listed = listed(&sup, time(62));
            assert_eq!(listed.len(), usize::from(is_told), "{appended} {built:?}");
            assert!(listed.iter().all(|(_, update)| update != "5"), "another update id");
        }
    }

    #[test]
    fn a_move_is_told_of_when_every_protocol_shows_it_and_again_where_one_was_late() {
        let links = Arc::new(SupLinks::new("https://a.example", HashSet::new(), ""));
        let config = Config::parse("", Path::new("towpath.toml")).unwrap();
        let sup = Sup::recover(&config, &links, [], time(0));
        let feed = Feed::new(FeedConfig::unnamed(id("news")));
        feed.set_last_append(time(0), time(0));
        sup.record(&feed, Append { seq: 5, at: time(0) }, Arrival::InTime);
        sup.on_late_document(&feed, 5, time(0));
        assert!(listed(&sup, time(0)).is_empty(), "not yet");
        std::thread::sleep(DELAY + Duration::from_millis(50));
        sup.on_late_document(&feed, 5, time(2));
        assert_eq!(listed(&sup, time(2)), [(links.link(&id("news")).id, "5".to_owned())]);
        std::thread::sleep(DELAY + Duration::from_millis(50));
        let again = listed(&sup, time(3));
        assert_eq!(again.len(), 1);
        assert_ne!(again[0].1, "5", "another update id");
        // A node that was behind tells of what others have told of under another id than they.
        sup.record(&feed, Append { seq: 6, at: time(4) }, Arrival::Late);
        std::thread::sleep(DELAY + Duration::from_millis(50));
        assert_ne!(listed(&sup, time(6))[0].1, "6");
    }

    /// One append while the clock is a year ahead, as an operator or a wrong time server may set it.
    #[test]
    fn a_clock_that_jumps_neither_drops_updates_nor_lists_old_ones() {
        let links = Arc::new(SupLinks::new("https://a.example", HashSet::new(), ""));
        let config = Config::parse("", Path::new("towpath.toml")).unwrap();
        let sup = Sup::recover(&config, &links, [], time(0));
        let ahead = time(365 * 86_400);
        for (name, at) in [("before", time(0)), ("during", ahead), ("after", time(2))] {
            sup.record(&Feed::new(FeedConfig::unnamed(id(name))), Append { seq: 1, at }, Arrival::InTime);
        }
        std::thread::sleep(DELAY + Duration::from_millis(50));
        let expected = ["after", "during", "before"].map(|name| (links.link(&id(name)).id, "1".to_owned()));
        assert_eq!(listed(&sup, time(3)), expected);
        // The document shows the clock as it is.
        let made =
            sup.build_at(sup.start.1 + Duration::from_secs(3), ahead, 60, "https://a.example/sup.json");
        let document = SupDocument::parse(made.body.as_bytes()).unwrap().document;
        assert_eq!((document.updates.len(), document.updated_time), (3, time(365 * 86_400 - 1)));
        assert!(listed(&sup, time(300)).is_empty(), "their window is over");
    }
}
