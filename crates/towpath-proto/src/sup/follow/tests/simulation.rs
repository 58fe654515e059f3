//! A follower against a simulated publisher that loses responses, is wrong, or is dead.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::follow::{Event, Exchange, Follower, Now, RequestId, ResponseHead, TransferError};
use crate::sup::follow::{DueFeed, PollReason, PolledContent, SupFollower, SupPollIntervals};
use crate::sup::publish::RecentUpdates;
use crate::sup::wire::discovery::{Discovery, SupLink};
use crate::sup::wire::id::SupId;

const SUP: &str = "https://a.example/sup.json";

/// A small pseudo-random generator (xorshift).
struct SimulationRandom(u64);

impl SimulationRandom {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Behaviour of the publisher's SUP document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PublisherFault {
    None,
    /// Offers no other periods.
    Short,
    Dead,
    /// Always sends its first document.
    Frozen,
    /// Lists no updates.
    Silent,
    /// Has a clock that is an hour ahead.
    Ahead,
}

struct SupSimulation {
    now: Timestamp,
    random: SimulationRandom,
    fault: PublisherFault,
    /// Percentage of lost responses.
    lost: u64,
    urls: Vec<String>,
    actual: Vec<u64>,
    recent: RecentUpdates,
    frozen: Option<String>,
    follower: SupFollower,
    known: Vec<u64>,
    /// Feeds with an update that the follower has not seen, and the time of the update.
    behind: BTreeMap<usize, Timestamp>,
    longest_behind: SignedDuration,
    polls_by_reason: BTreeMap<PollReason, u64>,
    documents: u64,
    updates: u64,
    warnings: Vec<String>,
}

impl SupSimulation {
    fn new(seed: u64, feeds: usize, fault: PublisherFault, lost: u64) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let urls: Vec<String> =
            (0..feeds).map(|number| format!("https://a.example/feeds/{number}")).collect();
        let mut follower = SupFollower::new(SupPollIntervals::default());
        for url in &urls {
            follower.add_feed(url.as_str(), Now::simulated(now));
        }
        Self {
            now,
            // A xorshift that starts at zero stays there.
            random: SimulationRandom(seed | 1),
            fault,
            lost,
            actual: vec![1; feeds],
            recent: RecentUpdates::default(),
            frozen: None,
            follower,
            known: vec![0; feeds],
            behind: BTreeMap::new(),
            longest_behind: SignedDuration::ZERO,
            polls_by_reason: BTreeMap::new(),
            documents: 0,
            updates: 0,
            warnings: Vec::new(),
            urls,
        }
    }

    fn update_feed(&mut self, feed: usize) {
        self.actual[feed] += 1;
        self.updates += 1;
        self.recent.record(SupId::of(&self.urls[feed]), self.actual[feed], self.clock());
        self.behind.entry(feed).or_insert(self.now);
    }

    /// Returns the publisher's time.
    fn clock(&self) -> Timestamp {
        let ahead = SignedDuration::from_hours(i64::from(self.fault == PublisherFault::Ahead));
        self.now + ahead
    }

    fn is_lost(&mut self) -> bool {
        self.random.roll(100) < self.lost
    }

    /// Performs all due polls and requests; responses are immediate.
    fn serve(&mut self) {
        while let Some(poll) = self.follower.poll_feed(Now::simulated(self.now)) {
            self.answer(&poll);
        }
        while let Some(request) = self.follower.poll_request(Now::simulated(self.now)) {
            self.documents += 1;
            if self.fault == PublisherFault::Dead || self.is_lost() {
                let error = TransferError::Timeout("lost".into());
                self.follower.handle_end(Now::simulated(self.now), request.id, Err(error));
            } else {
                self.answer_document(request.id, &request.url);
            }
            while let Some(poll) = self.follower.poll_feed(Now::simulated(self.now)) {
                self.answer(&poll);
            }
        }
        while let Some(event) = self.follower.poll_event() {
            if let Event::Warning(text) = event {
                self.warnings.push(text);
            }
        }
    }

    fn answer(&mut self, poll: &DueFeed) {
        *self.polls_by_reason.entry(poll.reason).or_default() += 1;
        if self.is_lost() {
            return self.follower.handle_failure(Now::simulated(self.now), poll.feed, None);
        }
        let feed = self.urls.iter().position(|url| *url == poll.url).unwrap();
        let content = match self.known[feed] == self.actual[feed] {
            true => PolledContent::Unchanged,
            false => PolledContent::Changed,
        };
        self.known[feed] = self.actual[feed];
        if let Some(since) = self.behind.remove(&feed) {
            self.longest_behind = self.longest_behind.max(self.now.duration_since(since));
        }
        let discovery = Discovery { links: vec![SupLink::new(SUP, &poll.url)], warnings: vec![] };
        self.follower.handle_success(Now::simulated(self.now), poll.feed, discovery, content);
    }

    fn answer_document(&mut self, id: RequestId, url: &str) {
        let seconds = url.split_once("seconds=").map_or(60, |(_, seconds)| seconds.parse().unwrap());
        let clock = self.clock();
        let mut body = match self.fault {
            PublisherFault::Silent => RecentUpdates::default().document(clock, seconds, SUP).body,
            _ => self.recent.document(clock, seconds, SUP).body,
        };
        if self.fault == PublisherFault::Short {
            let at = body.find(",\"available_periods\"").unwrap();
            body = format!("{}}}", &body[..at]);
        }
        if self.fault == PublisherFault::Frozen {
            body = self.frozen.get_or_insert(body).clone();
        }
        let head = ResponseHead { status: 200, url: url.into(), headers: HeaderMap::new() };
        self.follower.handle_head(Now::simulated(self.now), id, head);
        self.follower.handle_chunk(Now::simulated(self.now), id, Bytes::from(body));
        self.follower.handle_end(Now::simulated(self.now), id, Ok(()));
    }

    /// Advances time in steps of ten seconds, with `updates` feed updates in each on average.
    fn run(&mut self, minutes: i64, updates: f64) {
        for _ in 0..minutes * 6 {
            // Strictly less: with 0 updates no feed changes, so any update that is unseen afterwards was missed. An
            // update of the last minute may be unseen, because the document is requested once a minute.
            let one_more = (self.random.roll(1000) as f64) < updates.fract() * 1000.0;
            let count = updates.floor() as u64 + u64::from(one_more);
            for _ in 0..count {
                let feed = self.random.roll(self.urls.len() as u64) as usize;
                self.update_feed(feed);
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
        self.polls_by_reason.values().sum()
    }
}

/// 10,000 feeds for four hours with 10% of responses lost: nothing is missed. Compares the cost with plain polling.
#[test]
fn ten_thousand_feeds_with_lost_responses() {
    let mut simulation = SupSimulation::new(7, 10_000, PublisherFault::None, 10);
    simulation.run(240, 1.0);
    simulation.run(15, 0.0);
    simulation.assert_nothing_missed();
    // First polls are no cost of SUP. A tenth of them is lost and repeated, which adds a ninth.
    let first = simulation.polls_by_reason[&PollReason::First] + 10_000 / 9;
    let ours = simulation.asked() + simulation.documents - first;
    // Equally timely plain polling requests each feed once a minute, and gets a whole document each time. Conditional
    // polling sends as many requests, and gets one document per update.
    let polls = 10_000 * 255;
    println!(
        "{} updates: {ours} requests ({:?}, {} SUP documents); plain polling {polls} documents; conditional \
         polling {polls} requests, {} of them documents; longest behind {:#}",
        simulation.updates,
        simulation.polls_by_reason,
        simulation.documents,
        simulation.updates,
        simulation.longest_behind
    );
    assert!(ours * 100 < polls, "{ours} requests beside {polls}");
    assert!(simulation.longest_behind < SignedDuration::from_mins(10), "{:#}", simulation.longest_behind);
    assert!(!simulation.polls_by_reason.contains_key(&PollReason::Gap), "{:?}", simulation.warnings);
}

#[test]
fn a_stopped_follower_requests_a_period_that_covers() {
    let mut simulation = SupSimulation::new(3, 200, PublisherFault::None, 0);
    simulation.run(10, 0.2);
    // The publisher's index covers a day, so three days leave a gap.
    for (away, gap) in [(4, false), (50, false), (23 * 60, false), (3 * 24 * 60, true)] {
        let state = simulation.follower.state(Now::simulated(simulation.now));
        let before = simulation.polls_by_reason.get(&PollReason::Gap).copied().unwrap_or_default();
        for _ in 0..away {
            let feed = simulation.random.roll(200) as usize;
            simulation.update_feed(feed);
            simulation.now += SignedDuration::from_mins(1);
        }
        simulation.follower =
            SupFollower::restore(SupPollIntervals::default(), state, Now::simulated(simulation.now)).unwrap();
        simulation.run(30, 0.0);
        simulation.assert_nothing_missed();
        assert_eq!(
            simulation.polls_by_reason.get(&PollReason::Gap).copied().unwrap_or_default() > before,
            gap,
            "{away} minutes"
        );
    }
}

#[test]
fn without_longer_periods_a_gap_makes_every_feed_due() {
    let mut simulation = SupSimulation::new(5, 100, PublisherFault::Short, 0);
    simulation.run(10, 0.2);
    let state = simulation.follower.state(Now::simulated(simulation.now));
    (0..50).for_each(|feed| simulation.update_feed(feed));
    simulation.now += SignedDuration::from_mins(30);
    simulation.follower =
        SupFollower::restore(SupPollIntervals::default(), state, Now::simulated(simulation.now)).unwrap();
    simulation.run(2, 0.0);
    simulation.assert_nothing_missed();
    assert_eq!(simulation.polls_by_reason[&PollReason::Gap], 100);
    assert!(simulation.warnings.iter().any(|text| text.contains("every feed")), "{:?}", simulation.warnings);
}

/// Background polls find every update of a faulty document: within the plain interval if the fault is detectable, else
/// within the background interval.
#[test]
fn faulty_documents_delay_no_update_beyond_the_intervals() {
    for (fault, hours) in [
        (PublisherFault::Dead, 1),
        (PublisherFault::Frozen, 2),
        // Only background polls find these updates, and they are six hours apart.
        (PublisherFault::Silent, 13),
        (PublisherFault::Ahead, 1),
    ] {
        let mut simulation = SupSimulation::new(11, 60, fault, 10);
        simulation.run(hours * 60, 0.1);
        simulation.run(30, 0.0);
        simulation.assert_nothing_missed();
        let bound = match fault {
            PublisherFault::Silent => 6 * 60 + 15,
            // A constant offset of the clock is learned, so nothing is late.
            PublisherFault::Ahead => 10,
            _ => 60,
        };
        let bound = SignedDuration::from_mins(bound);
        assert!(simulation.longest_behind <= bound, "{fault:?}: {:#}", simulation.longest_behind);
        let told = simulation.warnings.iter().any(|text| text.contains("polled plainly"));
        assert_eq!(told, fault != PublisherFault::Ahead, "{fault:?}: {:?}", simulation.warnings);
    }
}

/// Section 4: "different feeds MAY occasionally share the same SUP ID": all of them are polled.
#[test]
fn section_4_feeds_that_share_an_id_are_all_polled() {
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let mut simulation = SupSimulation::new(1, 0, PublisherFault::None, 0);
    let shared = SupLink::new(SUP, "https://a.example/shared");
    let answer_all = |simulation: &mut SupSimulation, now| {
        let mut asked = Vec::new();
        while let Some(poll) = simulation.follower.poll_feed(Now::simulated(now)) {
            let discovery = Discovery { links: vec![shared.clone()], warnings: vec![] };
            simulation.follower.handle_success(
                Now::simulated(now),
                poll.feed,
                discovery,
                PolledContent::Changed,
            );
            asked.push((poll.url, poll.reason));
        }
        asked
    };
    simulation.follower.add_feed("https://a.example/1", Now::simulated(now));
    simulation.follower.add_feed("https://a.example/2", Now::simulated(now));
    assert_eq!(answer_all(&mut simulation, now).len(), 2);
    simulation.serve();
    simulation.recent.record(SupId::of("https://a.example/shared"), 2, now);
    simulation.recent.record(SupId::of("https://a.example/unknown"), 2, now);
    let now = now + SignedDuration::from_mins(1);
    let request = simulation.follower.poll_request(Now::simulated(now)).unwrap();
    simulation.now = now;
    simulation.answer_document(request.id, &request.url);
    let asked = answer_all(&mut simulation, now);
    assert_eq!(
        asked,
        [
            ("https://a.example/1".into(), PollReason::Updated),
            ("https://a.example/2".into(), PollReason::Updated)
        ]
    );
}

proptest! {
    #![proptest_config(crate::histories::cases(40))]

    /// With any losses and restarts, no update is missed in the end.
    #[test]
    fn nothing_is_missed(seed: u64, lost in 0..60u64, minutes in proptest::collection::vec(1..40i64, 1..5)) {
        let mut simulation = SupSimulation::new(seed, 40, PublisherFault::None, lost);
        for minutes in minutes {
            simulation.run(minutes, 0.5);
            simulation.follower = {
                let now = Now::simulated(simulation.now);
                SupFollower::restore(SupPollIntervals::default(), simulation.follower.state(now), now)
            }.unwrap();
            simulation.now += SignedDuration::from_mins(minutes * minutes);
            simulation.update_feed(3);
        }
        simulation.lost = 0;
        let updates = simulation.updates;
        simulation.run(60, 0.0);
        prop_assert_eq!(simulation.updates, updates, "the last hour has no updates");
        simulation.assert_nothing_missed();
    }
}
