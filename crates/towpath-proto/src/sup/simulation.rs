//! A consumer against a simulated publisher that loses answers, lies, or is dead.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::discovery::{Discovery, SupLink};
use super::follow::{Ask, Consumer, Settings, Why};
use super::id::SupId;
use super::publish::RecentMoves;
use crate::follow::{Event, Exchange, Follower, RequestId, ResponseHead, TransferError};

const SUP: &str = "https://a.example/sup.json";

/// Small and good enough to decide what is lost.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// How the publisher's SUP document behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Honest,
    /// Offers no periods but its own.
    Short,
    Dead,
    /// The document of the beginning for ever.
    Frozen,
    /// Names no updates.
    Silent,
    /// By a clock that is an hour ahead of ours.
    Ahead,
}

struct World {
    now: Timestamp,
    dice: Dice,
    manner: Manner,
    /// Of a hundred answers so many are lost.
    lost: u64,
    urls: Vec<String>,
    actual: Vec<u64>,
    moves: RecentMoves,
    frozen: Option<String>,
    consumer: Consumer,
    known: Vec<u64>,
    /// When each feed has been behind since.
    behind: BTreeMap<usize, Timestamp>,
    longest_behind: SignedDuration,
    asks: BTreeMap<Why, u64>,
    documents: u64,
    updates: u64,
    warnings: Vec<String>,
}

impl World {
    fn new(seed: u64, feeds: usize, manner: Manner, lost: u64) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let urls: Vec<String> =
            (0..feeds).map(|number| format!("https://a.example/feeds/{number}")).collect();
        let mut consumer = Consumer::new(Settings::default());
        for url in &urls {
            consumer.add_feed(url.as_str(), now);
        }
        Self {
            now,
            dice: Dice(seed | 1),
            manner,
            lost,
            actual: vec![1; feeds],
            moves: RecentMoves::default(),
            frozen: None,
            consumer,
            known: vec![0; feeds],
            behind: BTreeMap::new(),
            longest_behind: SignedDuration::ZERO,
            asks: BTreeMap::new(),
            documents: 0,
            updates: 0,
            warnings: Vec::new(),
            urls,
        }
    }

    fn move_feed(&mut self, feed: usize) {
        self.actual[feed] += 1;
        self.updates += 1;
        self.moves.record(SupId::of(&self.urls[feed]), self.actual[feed], self.clock());
        self.behind.entry(feed).or_insert(self.now);
    }

    /// The publisher's.
    fn clock(&self) -> Timestamp {
        let ahead = SignedDuration::from_hours(i64::from(self.manner == Manner::Ahead));
        self.now + ahead
    }

    fn is_lost(&mut self) -> bool {
        self.dice.roll(100) < self.lost
    }

    /// Asks what is to be asked; each answer is seen at once.
    fn serve(&mut self) {
        while let Some(ask) = self.consumer.poll_ask(self.now) {
            self.answer(&ask);
        }
        while let Some(request) = self.consumer.poll_request(self.now) {
            self.documents += 1;
            if self.manner == Manner::Dead || self.is_lost() {
                let error = TransferError::Timeout("lost".into());
                self.consumer.handle_end(self.now, request.id, Err(error));
            } else {
                self.answer_document(request.id, &request.url);
            }
            while let Some(ask) = self.consumer.poll_ask(self.now) {
                self.answer(&ask);
            }
        }
        while let Some(event) = self.consumer.poll_event() {
            if let Event::Warning(text) = event {
                self.warnings.push(text);
            }
        }
    }

    fn answer(&mut self, ask: &Ask) {
        *self.asks.entry(ask.why).or_default() += 1;
        if self.is_lost() {
            return self.consumer.handle_failure(self.now, ask.feed, None);
        }
        let feed = self.urls.iter().position(|url| *url == ask.url).unwrap();
        let changed = self.known[feed] != self.actual[feed];
        self.known[feed] = self.actual[feed];
        if let Some(since) = self.behind.remove(&feed) {
            self.longest_behind = self.longest_behind.max(self.now.duration_since(since));
        }
        let discovery = Discovery { links: vec![SupLink::new(SUP, &ask.url)], warnings: vec![] };
        self.consumer.handle_answer(self.now, ask.feed, discovery, changed);
    }

    fn answer_document(&mut self, id: RequestId, url: &str) {
        let seconds = url.split_once("seconds=").map_or(60, |(_, seconds)| seconds.parse().unwrap());
        let clock = self.clock();
        let mut body = match self.manner {
            Manner::Silent => RecentMoves::default().document(clock, seconds, SUP).body,
            _ => self.moves.document(clock, seconds, SUP).body,
        };
        if self.manner == Manner::Short {
            let at = body.find(",\"available_periods\"").unwrap();
            body = format!("{}}}", &body[..at]);
        }
        if self.manner == Manner::Frozen {
            body = self.frozen.get_or_insert(body).clone();
        }
        let head = ResponseHead { status: 200, url: url.into(), headers: HeaderMap::new() };
        self.consumer.handle_head(self.now, id, head);
        self.consumer.handle_chunk(self.now, id, Bytes::from(body));
        self.consumer.handle_end(self.now, id, Ok(()));
    }

    /// Lets time pass in steps of ten seconds; `moves` feeds move in each, on average.
    fn run(&mut self, minutes: i64, moves: f64) {
        for _ in 0..minutes * 6 {
            // Below, not up to: without moves every feed is at rest, and what is unseen afterwards was missed. A
            // feed that moved in the last minute is rightly unseen, as its document is asked for once a minute.
            let one_more = (self.dice.roll(1000) as f64) < moves.fract() * 1000.0;
            let count = moves.floor() as u64 + u64::from(one_more);
            for _ in 0..count {
                let feed = self.dice.roll(self.urls.len() as u64) as usize;
                self.move_feed(feed);
            }
            self.serve();
            self.now += SignedDuration::from_secs(10);
        }
    }

    fn assert_nothing_missed(&self) {
        let missed: VecDeque<usize> =
            (0..self.urls.len()).filter(|f| self.known[*f] != self.actual[*f]).collect();
        assert!(
            missed.is_empty(),
            "{} feeds are behind, as {:?}; {:?}",
            missed.len(),
            missed.front(),
            self.warnings
        );
    }

    fn asked(&self) -> u64 {
        self.asks.values().sum()
    }
}

/// 10,000 feeds, 10 of 100 answers lost, for four hours: nothing is missed, and what that costs beside polling.
#[test]
fn ten_thousand_feeds_with_lost_answers() {
    let mut world = World::new(7, 10_000, Manner::Honest, 10);
    world.run(240, 1.0);
    world.run(15, 0.0);
    world.assert_nothing_missed();
    let first = world.asks[&Why::First] + 10_000 / 9;
    let ours = world.asked() + world.documents - first;
    // Plain polling that is as timely as this asks each feed once a minute, and gets a whole document each
    // time; conditional polling asks as often, and gets one per update.
    let polls = 10_000 * 255;
    println!(
        "{} updates: {ours} requests ({:?}, {} SUP documents); plain polling {polls} documents; conditional \
         polling {polls} requests, {} of them documents; longest behind {:#}",
        world.updates, world.asks, world.documents, world.updates, world.longest_behind
    );
    assert!(ours * 100 < polls, "{ours} requests beside {polls}");
    assert!(world.longest_behind < SignedDuration::from_mins(10), "{:#}", world.longest_behind);
    assert!(!world.asks.contains_key(&Why::Gap), "{:?}", world.warnings);
}

#[test]
fn a_consumer_that_was_away_asks_the_period_that_covers() {
    let mut world = World::new(3, 200, Manner::Honest, 0);
    world.run(10, 0.2);
    for (away, gap) in [(4, false), (50, false), (23 * 60, false), (3 * 24 * 60, true)] {
        let state = world.consumer.state();
        let before = world.asks.get(&Why::Gap).copied().unwrap_or_default();
        for _ in 0..away {
            let feed = world.dice.roll(200) as usize;
            world.move_feed(feed);
            world.now += SignedDuration::from_mins(1);
        }
        world.consumer = Consumer::restore(Settings::default(), state).unwrap();
        world.run(30, 0.0);
        world.assert_nothing_missed();
        assert_eq!(world.asks.get(&Why::Gap).copied().unwrap_or_default() > before, gap, "{away} minutes");
    }
}

#[test]
fn without_longer_periods_a_gap_is_closed_by_asking_every_feed() {
    let mut world = World::new(5, 100, Manner::Short, 0);
    world.run(10, 0.2);
    let state = world.consumer.state();
    (0..50).for_each(|feed| world.move_feed(feed));
    world.now += SignedDuration::from_mins(30);
    world.consumer = Consumer::restore(Settings::default(), state).unwrap();
    world.run(2, 0.0);
    world.assert_nothing_missed();
    assert_eq!(world.asks[&Why::Gap], 100);
    assert!(world.warnings.iter().any(|text| text.contains("every feed")), "{:?}", world.warnings);
}

/// Whatever the document does, the safety net finds every update: within the pace of plain polling where the
/// fault shows, and within that of the background polls where it does not at once.
#[test]
fn documents_that_are_dead_or_lie_are_survived() {
    for (manner, hours) in [(Manner::Dead, 1), (Manner::Frozen, 2), (Manner::Silent, 13), (Manner::Ahead, 1)]
    {
        let mut world = World::new(11, 60, manner, 10);
        world.run(hours * 60, 0.1);
        world.run(30, 0.0);
        world.assert_nothing_missed();
        let bound = match manner {
            Manner::Silent => 6 * 60 + 15,
            Manner::Ahead => 10,
            _ => 60,
        };
        let bound = SignedDuration::from_mins(bound);
        assert!(world.longest_behind <= bound, "{manner:?}: {:#}", world.longest_behind);
        let told = world.warnings.iter().any(|text| text.contains("polled plainly"));
        assert_eq!(told, manner != Manner::Ahead, "{manner:?}: {:?}", world.warnings);
    }
}

/// Section 4: "different feeds MAY occasionally share the same SUP ID": all of them are asked.
#[test]
fn section_4_feeds_that_share_an_id_are_all_asked() {
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let mut world = World::new(1, 0, Manner::Honest, 0);
    let shared = SupLink::new(SUP, "https://a.example/shared");
    let answer_all = |world: &mut World, now| {
        let mut asked = Vec::new();
        while let Some(ask) = world.consumer.poll_ask(now) {
            let discovery = Discovery { links: vec![shared.clone()], warnings: vec![] };
            world.consumer.handle_answer(now, ask.feed, discovery, true);
            asked.push((ask.url, ask.why));
        }
        asked
    };
    world.consumer.add_feed("https://a.example/1", now);
    world.consumer.add_feed("https://a.example/2", now);
    assert_eq!(answer_all(&mut world, now).len(), 2);
    world.serve();
    world.moves.record(SupId::of("https://a.example/shared"), 2, now);
    world.moves.record(SupId::of("https://a.example/unknown"), 2, now);
    let now = now + SignedDuration::from_mins(1);
    let request = world.consumer.poll_request(now).unwrap();
    world.now = now;
    world.answer_document(request.id, &request.url);
    let asked = answer_all(&mut world, now);
    assert_eq!(
        asked,
        [("https://a.example/1".into(), Why::Moved), ("https://a.example/2".into(), Why::Moved)]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever is lost and whenever the consumer is stopped, in the end nothing is missed.
    #[test]
    fn nothing_is_missed(seed: u64, lost in 0..60u64, minutes in proptest::collection::vec(1..40i64, 1..5)) {
        let mut world = World::new(seed, 40, Manner::Honest, lost);
        for minutes in minutes {
            world.run(minutes, 0.5);
            world.consumer = Consumer::restore(Settings::default(), world.consumer.state()).unwrap();
            world.now += SignedDuration::from_mins(minutes * minutes);
            world.move_feed(3);
        }
        world.lost = 0;
        let updates = world.updates;
        world.run(60, 0.0);
        prop_assert_eq!(world.updates, updates, "the last hour is at rest");
        world.assert_nothing_missed();
    }
}
