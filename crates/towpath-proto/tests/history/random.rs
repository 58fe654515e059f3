//! Random runs: a publisher that appends, edits, deletes, seals and expires pages, and fails one request in five. The
//! follower is restarted at random, and always ends with the items of the log.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_proto::follow::StartFrom;
use towpath_proto::history::follow::{CrawlLimits, HistoryFollowOptions, HistoryFollower};
use towpath_proto::history::wire::Syntax;
use towpath_proto::{Item, Op, Timestamp};

use crate::histories::seeds;
use crate::publisher::HistoryPublisher;
use crate::web::{SiteResponse, drive, start};

struct RandomRun {
    random: fastrand::Rng,
    publisher: HistoryPublisher,
    now: Timestamp,
    items: BTreeMap<String, Item>,
    syntax: Syntax,
    last: u32,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut publisher = HistoryPublisher::new(random.usize(1..8));
        publisher.header_links = random.bool();
        let syntax = Syntax::ALL[random.usize(..3)];
        Self { random, publisher, now: start(), items: BTreeMap::new(), syntax, last: 0 }
    }

    fn change(&mut self) {
        let known: Vec<String> = self.publisher.items().into_keys().collect();
        let is_edit = !known.is_empty() && self.random.u8(..10) < 6;
        let id = if is_edit {
            known[self.random.usize(..known.len())].clone()
        } else {
            self.last += 1;
            format!("i {}", self.last)
        };
        if is_edit && self.random.u8(..3) == 0 {
            return self.publisher.append(Op::Delete, Item::new(id), self.now);
        }
        let title = Some(format!("v{}", self.random.u16(..)));
        // Useless dates: none, old, or in the future.
        let updated = match self.random.u8(..4) {
            0 => None,
            1 => Some(self.now),
            2 => Some("2019-01-01T00:00:00Z".parse().unwrap()),
            _ => Some(self.now + Duration::from_secs(1_000_000)),
        };
        self.publisher.put(Item { title, updated, ..Item::new(id) }, self.now);
        // Several changes may share an instant.
        self.now += Duration::from_millis(u64::from(self.random.u8(..2)) * 700);
    }

    fn options(&mut self) -> HistoryFollowOptions {
        let cached = if self.random.bool() { 0 } else { 1 << 20 };
        HistoryFollowOptions {
            limits: CrawlLimits { cached, ..CrawlLimits::default() },
            ..HistoryFollowOptions::default()
        }
    }
}

fn run(seed: u64) {
    let mut run = RandomRun::new(seed);
    let url = format!("https://a.example/feeds/x/{}", run.syntax.name());
    let mut state = None;
    let mut lost = false;
    let options = run.options();
    let mut follower = HistoryFollower::new(&url, StartFrom::Beginning, None, options).unwrap();
    for round in 0..12 {
        for _ in 0..run.random.usize(..30) {
            run.change();
        }
        if run.random.u8(..6) == 0 && run.publisher.sealed() > 2 {
            run.publisher.oldest = run.random.u64(run.publisher.oldest..run.publisher.sealed());
        }
        // The last rounds are long enough to repeat every failed request.
        let fails = if round < 10 { 5 } else { 0 };
        let until = run.now + Duration::from_secs(if round < 10 { 90 } else { 3 * 86_400 });
        let (publisher, random) = (&run.publisher, &mut run.random);
        let result = drive(&mut follower, &mut run.now, until, |request| {
            if fails > 0 && random.u8(..fails) == 0 {
                return if random.bool() { None } else { Some(SiteResponse::status(500)) };
            }
            Some(publisher.serve(request))
        });
        result.apply(&mut run.items);
        lost |= result.incomplete.iter().any(|text| text.contains("gone"));
        state = result.state.or(state);
        run.now = run.now.max(until);
        if run.random.u8(..3) == 0 {
            // Changes after the last checkpoint are delivered again.
            let options = run.options();
            follower = HistoryFollower::new(&url, StartFrom::Beginning, state.clone(), options).unwrap();
        }
    }
    let publisher = &run.publisher;
    if !lost {
        let (left, right) = (run.items, publisher.items());
        assert!(left == right, "seed {seed}: {:?}, not {:?}", left.keys(), right.keys());
        return;
    }
    // Items with changes in pages that still exist are as in the log.
    let first = publisher.first_of(publisher.oldest);
    let items = publisher.items();
    for change in publisher.log.iter().filter(|change| change.seq >= first) {
        let id = &change.item.id;
        assert_eq!(run.items.get(id), items.get(id), "seed {seed}, {id}");
    }
}

#[test]
fn the_follower_ends_with_the_items_of_the_log() {
    for seed in seeds(100) {
        run(seed);
    }
}

/// -00, section 4, and RFC 5005, section 4: permanent documents never change a byte.
#[test]
fn permanent_documents_never_change() {
    let mut run = RandomRun::new(7);
    let mut kept: BTreeMap<String, bytes::Bytes> = BTreeMap::new();
    for _ in 0..200 {
        run.change();
        let window = run.publisher.newest();
        let names = (1..run.publisher.sealed()).map(|number| number.to_string());
        for name in names.chain([format!("{}-{}", window.first, window.last)]) {
            let body = run.publisher.document(Syntax::Atom, &name).unwrap().body;
            let before = kept.entry(name).or_insert_with(|| body.clone());
            assert_eq!(*before, body);
        }
        for (name, before) in &kept {
            assert_eq!(run.publisher.document(Syntax::Atom, name).unwrap().body, before);
        }
    }
    // Each round has a window of its own, and archives come on top.
    assert!(kept.len() > 200);
}
