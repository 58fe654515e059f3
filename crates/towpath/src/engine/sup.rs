//! Which feeds moved lately, and the document that says so (Simple Update Protocol).
//!
//! A move is told of [`DELAY`] after its append, when every protocol shows the change: whoever hears of it asks
//! at once, and not again before the next move. Where making a document took longer ([`Sup::shown_late`]) the move
//! is told of a second time, with another update id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES};
use http::{HeaderMap, HeaderValue};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::task::JoinError;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::sup::discovery::MEDIA_TYPE;
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::{MAX_PERIOD, PERIODS, Published, RETENTION, RecentMoves};

use super::{Engine, Feed};
use crate::blocking::blocking;
use crate::config::Config;
use crate::server::announce::Announcer;
use crate::server::document::{Document, Valid};

/// How long after an append it is told of.
pub const DELAY: Duration = Duration::from_secs(1);
/// The period of a document for which none was asked for, in seconds.
pub const DEFAULT_PERIOD: u64 = 60;
/// From how many moves on they are taken in before anybody asks.
const MANY: usize = 4096;
/// Set in an update id that tells of a change again.
const AGAIN: Seq = 1 << 63;

/// Which feeds moved lately.
pub struct Sup {
    moves: Mutex<RecentMoves>,
    /// Moves that are not told of yet, in their order.
    noted: Mutex<VecDeque<Noted>>,
    /// The SUP IDs of the filters of a log: they move with it.
    filters: HashMap<FeedId, Vec<SupId>>,
    /// Held while a document is made, so that a million readers make one.
    making: tokio::sync::Mutex<()>,
}

struct Noted {
    id: SupId,
    update: Seq,
    at: Timestamp,
    /// The same by a clock that nobody sets.
    since: Instant,
}

/// What a feed holds for SUP.
pub(super) struct FeedMoves {
    pub(super) id: SupId,
    /// When it moved last, in milliseconds since 1970; [`NEVER`] where that is not known.
    last: AtomicI64,
}

const NEVER: i64 = i64::MIN;

impl FeedMoves {
    pub(super) fn new(id: SupId) -> Self {
        Self { id, last: AtomicI64::new(NEVER) }
    }

    /// Notes that it moved.
    pub(super) fn moved(&self, at: Timestamp) {
        self.last.store(at.as_millisecond(), Ordering::Release);
    }

    /// When it moved last, by the clock of this machine.
    pub(super) fn last(&self) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.last.load(Ordering::Acquire)).ok()
    }
}

/// The last move of a feed, as the store knows it.
pub(super) struct LastMove {
    pub(super) id: FeedId,
    pub(super) seq: Seq,
    pub(super) at: Timestamp,
}

impl Sup {
    /// The moves since `now` − [`RETENTION`], from the feeds' last ones in any order.
    pub(super) fn recover(
        config: &Config,
        announcer: &Announcer,
        last: impl IntoIterator<Item = LastMove>,
        now: Timestamp,
    ) -> Self {
        let mut filters: HashMap<FeedId, Vec<SupId>> = HashMap::new();
        for feed in &config.feeds {
            if let Some(filter) = &feed.filter {
                filters.entry(filter.of.clone()).or_default().push(announcer.sup_id(feed.id()));
            }
        }
        let oldest = now.checked_sub(RETENTION).unwrap_or(Timestamp::MIN);
        let recent = last.into_iter().filter(|moved| moved.seq > 0 && moved.at >= oldest);
        let mut recent: Vec<LastMove> = recent.collect();
        recent.sort_unstable_by_key(|moved| moved.at);
        let mut moves = RecentMoves::default();
        for LastMove { id, seq, at } in recent {
            // A clock that was set back since must not make the move come from the future.
            let at = at.min(now);
            moves.record(announcer.sup_id(&id), seq, at);
            filters.get(&id).into_iter().flatten().for_each(|filter| moves.record(*filter, seq, at));
        }
        Self {
            moves: Mutex::new(moves),
            noted: Mutex::default(),
            filters,
            making: tokio::sync::Mutex::default(),
        }
    }

    /// Notes that a feed's log has the change `seq` since `now`. Called on the store's thread.
    ///
    /// With `is_late` other nodes may have told of it long ago, and whoever then asked this one has missed it.
    pub(super) fn note(&self, feed: &Feed, seq: Seq, now: Timestamp, is_late: bool) {
        let since = Instant::now();
        let update = if is_late { seq | AGAIN } else { seq };
        feed.moves.moved(now);
        let filters = self.filters.get(feed.id()).into_iter().flatten().copied();
        let noted = std::iter::once(feed.moves.id).chain(filters);
        let mut all = self.noted.lock();
        all.extend(noted.map(|id| Noted { id, update, at: now, since }));
        // Whoever makes a document has the index for as long as that takes: the store does not wait for them.
        if all.len() >= MANY
            && let Some(mut moves) = self.moves.try_lock()
        {
            take_in(&mut moves, &mut all);
        }
    }

    /// Notes that a feed's documents up to the change `seq` have been made just now. Where that took so long that
    /// the move was told of before, whoever came then has missed it.
    pub(super) fn shown_late(&self, feed: &Feed, seq: Seq, now: Timestamp) {
        let since = Instant::now();
        let is_late = feed
            .moves
            .last()
            .is_none_or(|moved| now.duration_since(moved) > DELAY.try_into().unwrap_or_default());
        if is_late && seq > 0 {
            self.noted.lock().push_back(Noted { id: feed.moves.id, update: seq | AGAIN, at: now, since });
        }
    }

    /// How many feeds moved lately; `None` while a document is being made.
    pub fn moved(&self) -> Option<usize> {
        let mut moves = self.moves.try_lock()?;
        take_in(&mut moves, &mut self.noted.lock());
        Some(moves.len())
    }

    fn make(&self, now: Timestamp, seconds: u64, url: &str) -> Published {
        let mut moves = self.moves.lock();
        take_in(&mut moves, &mut self.noted.lock());
        let end = SignedDuration::try_from(DELAY).ok().and_then(|delay| now.checked_sub(delay).ok());
        moves.document(end.unwrap_or(now), seconds, url)
    }
}

/// Takes in what is old enough to be told of.
fn take_in(moves: &mut RecentMoves, noted: &mut VecDeque<Noted>) {
    while noted.front().is_some_and(|first| first.since.elapsed() >= DELAY) {
        if let Some(Noted { id, update, at, .. }) = noted.pop_front() {
            moves.record(id, update, at);
        }
    }
}

/// The document for `seconds`, made anew at most once a second. There is none for more than [`MAX_PERIOD`].
pub async fn document(engine: &Arc<Engine>, seconds: u64) -> Result<Arc<Document>, JoinError> {
    let seconds = seconds.clamp(1, MAX_PERIOD);
    let path = path(seconds);
    if let Some(document) = engine.documents.get(&path) {
        return Ok(document);
    }
    let _alone = engine.sup.making.lock().await;
    if let Some(document) = engine.documents.get(&path) {
        return Ok(document);
    }
    let making = engine.clone();
    let document = blocking(move || {
        let begun = Instant::now();
        let url = making.announcer.document_url();
        let published = making.sup.make(making.now(), seconds, &url);
        let headers = headers(&published);
        let valid = Valid::Until(begun + fresh(begun.elapsed()));
        Document::new(Bytes::from(published.body), headers, valid)
    });
    let document = document.await?;
    engine.metrics.sup_documents.inc();
    Ok(if seconds == DEFAULT_PERIOD {
        engine.documents.put_all(&[&path, "/sup.json"], document)
    } else if PERIODS.contains(&seconds) {
        engine.documents.put(&path, document)
    } else {
        engine.documents.put_answer(&path, document)
    })
}

/// Where the document for `seconds` is, without the server's address.
fn path(seconds: u64) -> String {
    format!("/sup.json?seconds={seconds}")
}

/// How long a document is served that took so long to make: a second, or so long that making documents of one
/// period takes a twentieth of a core at the most.
fn fresh(made_in: Duration) -> Duration {
    (made_in * 20).clamp(Duration::from_secs(1), Duration::from_secs(60))
}

pub(super) fn headers(published: &Published) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(&published.body)[..16]));
    for (name, value) in
        [(ETAG, &tag), (CACHE_CONTROL, &published.cache_control), (EXPIRES, &published.expires)]
    {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use towpath_proto::sup::wire::SupDocument;

    use super::*;
    use crate::config::FeedConfig;

    fn id(name: &str) -> FeedId {
        FeedId::new(name).unwrap()
    }

    fn listed(sup: &Sup, now: Timestamp) -> Vec<(String, String)> {
        let made = sup.make(now, 60, "https://a.example/sup.json");
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
        let announcer = Announcer::new("https://a.example", HashSet::new(), "");
        let moved = |name: &str, seq, at| LastMove { id: id(name), seq, at: time(at) };
        let last = [
            moved("all", 7, -20),
            moved("young", 2, -10),
            moved("old", 9, -(RETENTION.as_secs() as i64) - 1),
            moved("future", 3, 3600),
            moved("empty", 0, -5),
        ];
        let sup = Sup::recover(&config, &announcer, last, time(0));
        let expected = [("future", "3"), ("young", "2"), ("few", "7"), ("all", "7")];
        let expected = expected.map(|(name, update)| (announcer.link(&id(name)).id, update.to_owned()));
        assert_eq!(listed(&sup, time(1)), expected);
        assert_eq!(sup.moved(), Some(4));
        // 130 seconds, beginning a second back.
        assert!(listed(&sup, time(132)).is_empty());
    }

    #[test]
    fn a_move_is_told_of_when_every_protocol_shows_it_and_again_where_one_was_late() {
        let announcer = Announcer::new("https://a.example", HashSet::new(), "");
        let config = Config::parse("", Path::new("towpath.toml")).unwrap();
        let sup = Sup::recover(&config, &announcer, [], time(0));
        let feed = Feed::new(FeedConfig::unnamed(id("news")), announcer.sup_id(&id("news")));
        sup.note(&feed, 5, time(0), false);
        sup.shown_late(&feed, 5, time(0));
        assert!(listed(&sup, time(0)).is_empty(), "not yet");
        std::thread::sleep(DELAY + Duration::from_millis(50));
        sup.shown_late(&feed, 5, time(2));
        assert_eq!(listed(&sup, time(2)), [(announcer.link(&id("news")).id, "5".to_owned())]);
        std::thread::sleep(DELAY + Duration::from_millis(50));
        let again = listed(&sup, time(3));
        assert_eq!(again.len(), 1);
        assert_ne!(again[0].1, "5", "another update id");
        // A node that was behind tells of what others have told of under another id than they.
        sup.note(&feed, 6, time(4), true);
        std::thread::sleep(DELAY + Duration::from_millis(50));
        assert_ne!(listed(&sup, time(6))[0].1, "6");
    }
}
