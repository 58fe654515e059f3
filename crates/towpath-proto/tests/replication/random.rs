//! Random tests: a growing publisher with retention, a faulty network, and a consumer that crashes.

use towpath_proto::follow::{FollowMode, Request, StartFrom};
use towpath_proto::replication::follow::ReplicationOptions;
use towpath_proto::replication::pages::{PageLimits, Retention};

use crate::consumer::{RecordingConsumer, ResponseDelivery};
use crate::histories::seeds;
use crate::publisher::{BASE, MemoryPublisher, StoredResponse, time};

struct RandomPublisher {
    random: fastrand::Rng,
    publisher: MemoryPublisher,
    second: i64,
}

impl RandomPublisher {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Small pages, so that every pass crosses some of their boundaries.
        let limits = PageLimits { bytes: random.u64(20..200), entities: random.u64(1..6) };
        Self { random, publisher: MemoryPublisher::new(limits), second: 0 }
    }

    /// Appends some items, and sometimes seals pages.
    fn move_on(&mut self) {
        for _ in 0..self.random.usize(0..3) {
            self.publisher.put(self.second);
        }
        self.second += self.random.i64(0..2);
        if self.random.bool() {
            self.publisher.seal();
        }
    }

    fn answer(&mut self, request: &Request) -> (StoredResponse, ResponseDelivery) {
        // A fifth of the responses are lost or cut off.
        let way = match self.random.u32(0..10) {
            0 => ResponseDelivery::Lost,
            1 => ResponseDelivery::Cut(self.random.usize(0..900)),
            _ => ResponseDelivery::Pieces(self.random.usize(1..300)),
        };
        let response = self.publisher.answer(request);
        // The publisher changes between two requests of a pass, too.
        if self.random.u32(0..3) == 0 {
            self.move_on();
        }
        (response, way)
    }
}

/// Runs a consumer with crashes while the publisher grows, then to the end of the feed.
fn run(
    world: &mut RandomPublisher,
    start: &StartFrom,
    mut between: impl FnMut(&mut RandomPublisher, usize),
) -> RecordingConsumer {
    let mut consumer = RecordingConsumer::default();
    for round in 0..12 {
        let mode = if world.random.bool() { FollowMode::CatchUp } else { FollowMode::Continuous };
        let options = ReplicationOptions { mode, ..ReplicationOptions::default() };
        let mut follower = consumer.follower(BASE, start.clone(), options);
        for _ in 0..world.random.usize(1..4) {
            world.move_on();
            // Each pass is so late that no backoff holds it up.
            let now = time(1_000_000 + world.second * 1000);
            consumer.drive(&mut follower, now, |request| world.answer(request));
            world.second += 1;
        }
        consumer.crash();
        between(world, round);
    }
    world.publisher.seal();
    let mut follower = consumer.follower(BASE, start.clone(), crate::consumer::once());
    consumer.drive(&mut follower, time(9_000_000), |r| {
        (world.publisher.answer(r), ResponseDelivery::Pieces(500))
    });
    consumer
}

#[test]
fn resume_consumption_is_exactly_once_over_restarts_and_lost_answers() {
    for seed in seeds(150) {
        let mut world = RandomPublisher::new(seed);
        let consumer = run(&mut world, &StartFrom::Beginning, |_, _| {});
        assert_eq!(consumer.positions(), world.publisher.content_ids(), "seed {seed}");
        assert_eq!((consumer.incomplete.len(), consumer.warnings.len()), (0, 0), "seed {seed}");
        assert!(!consumer.told.is_empty());
    }
}

#[test]
fn a_start_from_a_time_misses_nothing() {
    for seed in seeds(100) {
        let mut world = RandomPublisher::new(seed);
        for _ in 0..40 {
            world.move_on();
        }
        world.publisher.put(world.second);
        let start = world.publisher.log[0].modified.as_second() + world.random.i64(1..15);
        let start = jiff::Timestamp::from_second(start).unwrap();
        let consumer = run(&mut world, &StartFrom::Time(start), |_, _| {});
        let expected: Vec<String> = world
            .publisher
            .log
            .iter()
            .filter(|c| c.modified >= start)
            .map(|c| format!("<{}@news>", c.seq))
            .collect();
        assert_eq!(consumer.positions(), expected, "seed {seed}");
        assert_eq!(consumer.incomplete, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn immutability_retention_never_loses_changes_silently() {
    let mut gaps = 0;
    let seeds = seeds(100);
    let count = seeds.end;
    for seed in seeds {
        let mut world = RandomPublisher::new(seed);
        let retention = Retention { age: Some(8), bytes: None, up_to: None, grace: world.random.i64(0..6) };
        let consumer = run(&mut world, &StartFrom::Beginning, |world, _| {
            let now = time(world.second);
            world.publisher.clean_up(&retention, now);
        });
        let all = world.publisher.content_ids();
        let told = consumer.positions();
        let places: Vec<usize> = told.iter().map(|id| all.iter().position(|a| a == id).unwrap()).collect();
        if consumer.incomplete.is_empty() {
            // A gap without a report would be silent loss.
            assert!(places.windows(2).all(|w| w[1] == w[0] + 1), "seed {seed}: {places:?}");
        } else {
            gaps += 1;
        }
        assert_eq!(told.last(), all.last(), "seed {seed}: the last change is delivered");
    }
    assert!(gaps > 0 && gaps < count, "both cases occur: {gaps}");
}
