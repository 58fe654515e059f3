//! Starts within a history: after any line, from now, and from a time.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde_json::Value;
use towpath_proto::follow::{FollowMode, Followed, StartFrom};
use towpath_proto::history::follow::{HistoryFollowOptions, HistoryFollower};
use towpath_proto::history::wire::Syntax;
use towpath_proto::{Item, Op, Timestamp};

use crate::histories::seeds;
use crate::publisher::HistoryPublisher;
use crate::web::{FollowResult, HistorySite, atom, drive, follow_from, link, once, site, start};

const FEED: &str = "http://a.example/feed";

/// Sites of other publishers: plain, -00, RFC 5005's archives, pages and complete documents.
fn foreign() -> Vec<(&'static str, HistorySite)> {
    let this = |number: u32, prev: &str, entries: &[(&str, &str, u32)]| {
        atom(&(link("this", &format!("/{number}")) + &link("prev", prev)), entries)
    };
    let archive = |prev: &str, entries: &[(&str, &str, u32)]| {
        atom(&format!("<fh:archive/>{}{prev}", link("current", "/feed")), entries)
    };
    let older = [("urn:c", "c1", 4), ("urn:a", "a2", 3)];
    let oldest = [("urn:b", "b1", 2), ("urn:a", "a1", 1)];
    let newest = [("urn:d", "d", 9), ("urn:a", "a3", 8)];
    let urls = |newest: String, older: String, oldest: String| {
        site(&[(FEED, newest), ("http://a.example/2", older), ("http://a.example/1", oldest)])
    };
    let next = |number: u32| link("next", &format!("/{number}"));
    let undated = "<rss version='2.0'><channel><title>f</title><item><guid>2</guid><title>b</title></item>\
                   <item><guid>1</guid><title>a</title></item></channel></rss>";
    vec![
        ("plain", site(&[(FEED, atom("", &[&newest[..], &older[..1]].concat()))])),
        ("undated", site(&[(FEED, undated.to_owned())])),
        ("complete", site(&[(FEED, atom("<fh:complete/>", &newest))])),
        ("-00", urls(this(3, "/2", &newest), this(2, "/1", &older), atom(&link("this", "/1"), &oldest))),
        (
            "archives",
            urls(
                atom(&link("prev-archive", "/2"), &newest),
                archive(&link("prev-archive", "/1"), &older),
                archive("", &oldest),
            ),
        ),
        ("pages", urls(atom(&next(2), &newest), atom(&next(1), &older), atom("", &oldest))),
    ]
}

#[test]
fn every_line_is_a_place_to_resume_from() {
    for (name, site) in foreign() {
        let all = follow_from(FEED, StartFrom::Beginning, None, &site).changes;
        assert!(all.len() >= 2, "{name}");
        let unique: HashSet<&str> = all.iter().map(|change| change.position.as_str()).collect();
        assert_eq!(unique.len(), all.len(), "{name}");
        for (index, change) in all.iter().enumerate() {
            let from = StartFrom::Position(change.position.clone());
            let rest = follow_from(FEED, from, None, &site);
            assert_eq!(rest.changes, all[index + 1..], "{name}: {}", change.position);
            assert!(rest.warnings.iter().all(|w| !w.contains("is gone")), "{name}: {:?}", rest.warnings);
            // A later pass has nothing more.
            assert_eq!(follow_from(FEED, StartFrom::Beginning, rest.state, &site).changes, [], "{name}");
        }
    }
}

/// The entry has a later version: what is left of its document is told, with a warning.
#[test]
fn an_entry_that_is_gone_is_named() {
    let before = site(&[(FEED, atom("", &[("urn:b", "b", 2), ("urn:a", "a", 1)]))]);
    let position = follow_from(FEED, StartFrom::Beginning, None, &before).changes[0].position.clone();
    let after = site(&[(FEED, atom("", &[("urn:a", "a2", 3), ("urn:b", "b", 2)]))]);
    let rest = follow_from(FEED, StartFrom::Position(position.clone()), None, &after);
    assert_eq!(rest.lines(), ["put urn:b b", "put urn:a a2"]);
    assert!(rest.warnings.iter().any(|text| text.contains(&position)), "{:?}", rest.warnings);
}

/// Our own publisher, whose log is divided into other documents while it grows.
struct GrowingLog {
    random: fastrand::Rng,
    publisher: HistoryPublisher,
    url: String,
    now: Timestamp,
}

impl GrowingLog {
    fn new(seed: u64, syntax: Syntax) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut publisher = HistoryPublisher::new(random.usize(1..12));
        publisher.header_links = random.bool();
        let url = format!("https://a.example/feeds/x/{}", syntax.name());
        Self { random, publisher, url, now: start() }
    }

    /// Appends a change whose title is its number.
    fn change(&mut self) {
        let id = format!("i {}", self.random.u8(..20));
        if self.publisher.items().contains_key(&id) && self.random.u8(..5) == 0 {
            self.publisher.append(Op::Delete, Item::new(id), self.now);
        } else {
            let title = Some((self.publisher.log.len() + 1).to_string());
            self.publisher.put(Item { title, ..Item::new(id) }, self.now);
        }
        // Several changes may share an instant.
        self.now += Duration::from_millis(u64::from(self.random.u8(..2)) * 700);
    }

    fn grow(&mut self, most: usize) {
        (0..self.random.usize(..most)).for_each(|_| self.change());
    }

    /// Runs passes from a start or a state until nothing is left; one response of `fails` is lost.
    fn follow(&mut self, from: StartFrom, state: Option<Value>, fails: u8) -> FollowResult {
        let mode = if fails == 0 { FollowMode::CatchUp } else { FollowMode::Continuous };
        let options = HistoryFollowOptions { mode, ..once() };
        let mut follower = HistoryFollower::new(&self.url, from, state, options).unwrap();
        let (publisher, random) = (&self.publisher, &mut self.random);
        let (mut now, until) = (self.now, self.now + Duration::from_secs(40));
        drive(&mut follower, &mut now, until, |request| {
            (fails == 0 || random.u8(..fails) > 0).then(|| publisher.serve(request))
        })
    }
}

fn applied(changes: &[Followed], items: &mut BTreeMap<String, Item>) {
    for change in changes {
        match change.op {
            Op::Delete => drop(items.remove(&change.item.id)),
            _ => drop(items.insert(change.item.id.clone(), change.item.clone())),
        }
    }
}

/// Returns a key for each change: a number for a put, an id and a time for a deletion.
fn keys(changes: &[Followed]) -> HashSet<String> {
    let key = |c: &Followed| match &c.item.title {
        Some(title) => title.clone(),
        None => format!("{} {:?}", c.item.id, c.modified),
    };
    changes.iter().map(key).collect()
}

#[test]
fn a_log_is_resumed_after_any_line_however_it_is_divided_by_then() {
    for seed in seeds(10) {
        for syntax in Syntax::ALL {
            let mut log = GrowingLog::new(seed, syntax);
            (0..5).for_each(|_| log.change());
            log.grow(60);
            let all = log.follow(StartFrom::Beginning, None, 0).changes;
            log.grow(40);
            for (index, change) in all.iter().enumerate() {
                let context = format!("seed {seed}, {}: {}", syntax.name(), change.position);
                let rest = log.follow(StartFrom::Position(change.position.clone()), None, 0);
                let mut copy = BTreeMap::new();
                applied(&all[..=index], &mut copy);
                applied(&rest.changes, &mut copy);
                assert!(copy == log.publisher.items(), "{context}: {:?}", rest.lines());
                // JSON Feed names no permanent document, so an entry with a later version is not found.
                if syntax == Syntax::JsonFeed && !rest.warnings.is_empty() {
                    continue;
                }
                let (before, after) = (keys(&all[..=index]), keys(&rest.changes));
                assert_eq!(before.intersection(&after).count(), 0, "{context}: {:?}", rest.lines());
                assert!(rest.changes.iter().all(|later| later.modified >= change.modified), "{context}");
            }
            // A document alone is the place before it.
            let document = |change: &Followed| change.position.split('#').next().unwrap().to_owned();
            let mut begun = HashSet::new();
            for (index, change) in all.iter().enumerate().filter(|(_, change)| begun.insert(document(change)))
            {
                let rest = log.follow(StartFrom::Position(document(change)), None, 0);
                let context = format!(
                    "seed {seed}, {}, {}: {:?} {:?}",
                    syntax.name(),
                    document(change),
                    rest.warnings,
                    rest.requests
                );
                let mut copy = BTreeMap::new();
                applied(&all[..index], &mut copy);
                applied(&rest.changes, &mut copy);
                assert!(copy == log.publisher.items(), "{context}");
                let is_missed = |text: &String| text.contains("all documents were read");
                assert!(syntax == Syntax::JsonFeed || !rest.warnings.iter().any(is_missed), "{context}");
            }
        }
    }
}

/// A follow from now or from a time is told nothing older, in none of its passes, and misses nothing.
#[test]
fn a_follow_that_begins_within_a_log_is_told_nothing_older() {
    for seed in seeds(30) {
        for (syntax, fails) in [(Syntax::Atom, 0), (Syntax::Rss, 0), (Syntax::JsonFeed, 0), (Syntax::Atom, 5)]
        {
            for from_now in [true, false] {
                let context = format!("seed {seed}, {}, {fails}, {from_now}", syntax.name());
                let mut log = GrowingLog::new(seed, syntax);
                (0..5).for_each(|_| log.change());
                log.grow(60);
                let (items, first) = (log.publisher.items(), log.publisher.log.len());
                let mut since = log.publisher.log[log.random.usize(..first)].modified;
                let mut copy = items;
                let mut from = StartFrom::Now;
                if !from_now {
                    from = StartFrom::Time(since);
                    copy.clear();
                } else {
                    since = log.publisher.log[first - 1].modified;
                }
                let (mut state, mut told, mut times) = (None, HashSet::new(), 0);
                for round in 0..6 {
                    // The first pass is whole, and the last ones are.
                    let fails = if (1..4).contains(&round) { fails } else { 0 };
                    let result = log.follow(from.clone(), state.clone(), fails);
                    state = result.state.or(state);
                    applied(&result.changes, &mut copy);
                    let keys = keys(&result.changes);
                    times += keys.len();
                    told.extend(keys);
                    let is_later = |change: &Followed| change.modified >= Some(since);
                    assert!(result.changes.iter().all(is_later), "{context}: {:?}", result.changes);
                    if from_now {
                        let number =
                            |c: &Followed| c.item.title.as_deref().map(|t| t.parse::<usize>().unwrap());
                        // Of the instant of the start, what a document has may be told if nothing else in it is known.
                        let is_new = |change: &Followed| {
                            change.modified == Some(since)
                                || number(change).is_none_or(|number| number > first)
                        };
                        assert!(result.changes.iter().all(is_new), "{context}: {:?}", result.changes);
                    }
                    if round < 3 {
                        log.grow(25);
                    }
                }
                assert!(fails > 0 || told.len() == times, "{context}: something was told twice");
                let left: BTreeMap<String, Item> = log.publisher.items();
                let changed = log.publisher.log.iter().filter(|c| from_now || c.modified >= since);
                for id in changed.map(|change| &change.item.id) {
                    assert_eq!(copy.get(id), left.get(id), "{context}: {id}");
                }
            }
        }
    }
}

/// A start from now costs what is new, although the log's documents are others by then.
#[test]
fn a_follow_from_now_never_reads_the_whole_log() {
    let mut log = GrowingLog::new(1, Syntax::Atom);
    log.publisher = HistoryPublisher::new(10);
    log.publisher.header_links = true;
    (0..1000).for_each(|_| log.change());
    let mut state = log.follow(StartFrom::Now, None, 0).state;
    for _ in 0..5 {
        (0..25).for_each(|_| log.change());
        let result = log.follow(StartFrom::Now, state.clone(), 0);
        assert!(result.requests.len() <= 6, "{:?}", result.requests);
        state = result.state;
    }
}
