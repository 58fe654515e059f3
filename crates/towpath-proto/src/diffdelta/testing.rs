//! What several tests share: arbitrary items, and a publisher in memory.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;
use crate::change::{Change, Op, Seq};
use crate::feed_id::FeedId;
use crate::item::{Author, Content, ContentHash, Item};
use crate::risk::Risk;
use jiff::Timestamp;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_770_000_000 + second).unwrap()
}

/// Texts with emoji, control characters, quotes, and now and then far too long.
pub(super) fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        3 => "[a-z <>&/\"\\\\\u{0}-\u{1f}\u{7f}\u{e000}😀é]{0,30}",
        1 => ("[a-z😀]{1,4}", 100usize..900).prop_map(|(t, n)| t.repeat(n)),
        1 => Just(String::new()),
    ]
}

fn times() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        3 => (0i64..4_000_000_000).prop_map(|s| Timestamp::from_second(s).unwrap()),
        1 => (0i64..4_000_000_000, 0i32..1_000_000_000).prop_map(|(s, n)| Timestamp::new(s, n).unwrap()),
        1 => Just(Timestamp::MIN),
        1 => Just(Timestamp::MAX),
    ]
}

fn contents() -> impl Strategy<Value = Content> {
    let types = prop_oneof![
        Just("text/html; charset=utf-8"),
        Just("text/plain"),
        Just("application/json"),
        Just("image/png"),
        Just("application/atom+xml"),
        Just(""),
    ];
    let bytes = prop_oneof![texts().prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..60),];
    (types, bytes).prop_map(|(media_type, bytes)| Content::new(media_type, bytes))
}

fn extras() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    let value =
        leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from));
    prop::collection::btree_map(any::<String>(), value, 0..3).prop_map(|m| m.into_iter().collect())
}

fn authors() -> impl Strategy<Value = Author> {
    (texts(), prop::option::of(texts()), prop::option::of(texts())).prop_map(|(name, email, url)| Author {
        name,
        email,
        url,
    })
}

fn urls() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("https://example.com/a?b=c#d".to_owned()),
        "https://example\\.com/[a-z|^ äéß{}%\\[\\]]{0,12}",
        texts(),
    ]
}

/// Items of every kind, with an id that can be kept.
pub(super) fn items() -> impl Strategy<Value = Item> {
    let ids = prop_oneof![
        "[a-z]{1,3}",
        "[^\u{0}]{1,300}",
        ("[a-z/\n\"😀]{1,4}", 60usize..100).prop_map(|(t, n)| t.repeat(n))
    ];
    (
        ids,
        prop::option::of(urls()),
        prop::option::of(texts()),
        prop::option::of(texts()),
        prop::option::of(contents()),
        prop::collection::vec(authors(), 0..3),
        prop::collection::vec(texts(), 0..3),
        (prop::option::of(times()), prop::option::of(times())),
        extras(),
    )
        .prop_map(|(id, url, title, summary, content, authors, tags, (published, updated), extra)| Item {
            id,
            url,
            title,
            summary,
            content,
            authors,
            tags,
            published,
            updated,
            extra,
        })
        .prop_filter("an id that can be kept", |item| item.check().is_ok())
}

/// A score that depends on the item alone.
pub(super) fn risk(item: &Item) -> Risk {
    let score = f64::from(item.content_hash().0[0]) / 255.0;
    Risk { score: (score * 100.0).round() / 100.0, reasons: vec!["test-rule".into(), "Not a reason".into()] }
}

pub(super) fn site() -> Site {
    Site::new("http://127.0.0.1:8080/")
}

pub(super) fn feed(name: &str) -> FeedId {
    FeedId::new(name).unwrap()
}

/// A feed's log, and one chain over it: a publisher in memory.
#[derive(Clone)]
pub(super) struct Publisher {
    pub(super) site: Site,
    pub(super) id: FeedId,
    pub(super) log: Vec<Change>,
    pub(super) chain: Chain,
    pub(super) latest: Vec<u8>,
    pub(super) head: Vec<u8>,
    /// Path and document, oldest first.
    pub(super) snapshots: Vec<(wire::Snapshot, Vec<u8>)>,
}

impl Publisher {
    pub(super) fn new(name: &str) -> Self {
        let mut publisher = Self {
            site: site(),
            id: feed(name),
            log: Vec::new(),
            chain: Chain::default(),
            latest: Vec::new(),
            head: Vec::new(),
            snapshots: Vec::new(),
        };
        publisher.carry(at(0));
        publisher
    }

    fn latest_version(&self, id: &str) -> Option<&Change> {
        self.log.iter().rev().find(|c| c.item.id == id)
    }

    pub(super) fn is_live(&self, id: &str) -> bool {
        self.latest_version(id).is_some_and(|c| c.op != Op::Delete)
    }

    fn append(&mut self, op: Op, item: Item, modified: Timestamp) {
        let seq = self.log.len() as Seq + 1;
        let previous = self.latest_version(&item.id).map(|c| c.seq);
        let hash = if op == Op::Delete { ContentHash::default() } else { item.content_hash() };
        self.log.push(Change {
            seq,
            op,
            modified,
            created: modified,
            first_seq: seq,
            previous,
            item,
            patch: None,
            entry_id: None,
            hash,
        });
    }

    pub(super) fn put(&mut self, item: Item, modified: Timestamp) {
        self.append(Op::Put, item, modified);
    }

    pub(super) fn delete(&mut self, id: &str, modified: Timestamp) {
        if self.is_live(id) {
            self.append(Op::Delete, Item::new(id), modified);
        }
    }

    pub(super) fn window(&self) -> Window {
        let mut window = Window::new();
        for change in self.log.iter().filter(|c| c.seq > self.chain.minted_seq) {
            let earlier = window.needs(change).map(|seq| self.log[seq as usize - 1].clone());
            window.add(change.clone(), earlier);
        }
        window
    }

    pub(super) fn source(&self) -> Source<'_> {
        Source { site: &self.site, id: &self.id, ttl_sec: 60 }
    }

    /// A successful run: mints where there is something to mint, else carries. Returns what was minted.
    pub(super) fn run(&mut self, now: Timestamp) -> Vec<Delta> {
        self.run_rendered(now).0
    }

    pub(super) fn run_rendered(&mut self, now: Timestamp) -> (Vec<Delta>, Vec<delta_item::Rendered>) {
        self.chain.health.succeeded(now);
        let deltas = self.window().into_deltas();
        if deltas.is_empty() && !self.chain.is_unborn() {
            self.carry(now);
            return (deltas, Vec::new());
        }
        let risk: &dyn Fn(&Item) -> Risk = &risk;
        let rendering = delta_item::Rendering { site: &self.site, source: &self.id, lang: "en-GB", risk };
        let upto = self.log.len() as Seq;
        let (published, rendered) = self.source().mint(&self.chain, upto, &deltas, &rendering, now);
        self.keep(published);
        (deltas, rendered)
    }

    pub(super) fn carry(&mut self, now: Timestamp) {
        let published = self.source().carry(&self.chain, &self.latest, now).unwrap();
        self.keep(published);
    }

    fn keep(&mut self, published: Published) {
        self.latest = published.latest.to_vec();
        self.head = published.head.to_vec();
        self.chain = published.chain;
        if let Some(snapshot) = published.snapshot {
            assert!(self.snapshots.iter().all(|(s, _)| s.url != snapshot.entry.url), "a name given twice");
            self.snapshots.push((snapshot.entry, self.latest.clone()));
        }
    }

    pub(super) fn index(&self) -> bytes::Bytes {
        discovery::archive_index(self.id.as_str(), self.snapshots.iter().map(|(s, _)| s.clone()).collect())
    }
}

/// Every place of a document, once for each shape of path.
pub(super) fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let path = format!("{path}/{name}");
                found.push(path.clone());
                places(value, &path, found);
            }
        }
        Value::Array(values) => {
            if let Some(first) = values.first() {
                found.push(format!("{path}/0"));
                places(first, &format!("{path}/0"), found);
            }
        }
        _ => {}
    }
}
