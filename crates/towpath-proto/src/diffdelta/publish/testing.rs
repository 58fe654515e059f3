//! Test helpers: arbitrary items, and a source in memory.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::collapse::{Delta, DeltaWindow};
use super::{DocumentChain, PublishedDocuments, Repeats, SiteUrl, SourcePublisher, delta_item, discovery};
use crate::change::{Change, Op, Seq};
use crate::diffdelta::wire::SnapshotEntry;
use crate::feed_id::FeedId;
use crate::item::{Author, Content, ContentHash, Item};
use crate::risk::Risk;
use jiff::Timestamp;

pub(in crate::diffdelta) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_770_000_000 + second).unwrap()
}

/// Texts with emoji, control characters and quotes; some far too long.
pub(in crate::diffdelta) fn texts() -> impl Strategy<Value = String> {
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
        // The extremes have years that RFC 3339 cannot write.
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

/// Items of every kind, with a valid id.
pub(in crate::diffdelta) fn items() -> impl Strategy<Value = Item> {
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
        .prop_filter("a valid id", |item| item.check().is_ok())
}

/// Returns a score that depends on the item alone.
pub(in crate::diffdelta) fn risk(item: &Item) -> Risk {
    let score = f64::from(item.content_hash().0[0]) / 255.0;
    // One reason that the schema allows, and one that the renderer must leave out.
    Risk { score: (score * 100.0).round() / 100.0, reasons: vec!["test-rule".into(), "Not a reason".into()] }
}

pub(in crate::diffdelta) fn site() -> SiteUrl {
    SiteUrl::new("http://127.0.0.1:8080/")
}

pub(in crate::diffdelta) fn feed(name: &str) -> FeedId {
    FeedId::new(name).unwrap()
}

/// A source in memory: a log, its chain and its documents.
#[derive(Clone)]
pub(in crate::diffdelta) struct TestSource {
    pub(in crate::diffdelta) site: SiteUrl,
    pub(in crate::diffdelta) id: FeedId,
    pub(in crate::diffdelta) log: Vec<Change>,
    pub(in crate::diffdelta) chain: DocumentChain,
    pub(in crate::diffdelta) latest: Vec<u8>,
    pub(in crate::diffdelta) head: Vec<u8>,
    /// Index entry and document, oldest first.
    pub(in crate::diffdelta) snapshots: Vec<(SnapshotEntry, Vec<u8>)>,
}

impl TestSource {
    pub(in crate::diffdelta) fn new(name: &str) -> Self {
        let mut publisher = Self {
            site: site(),
            id: feed(name),
            log: Vec::new(),
            chain: DocumentChain::default(),
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

    pub(in crate::diffdelta) fn is_live(&self, id: &str) -> bool {
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

    pub(in crate::diffdelta) fn put(&mut self, item: Item, modified: Timestamp) {
        self.append(Op::Put, item, modified);
    }

    pub(in crate::diffdelta) fn delete(&mut self, id: &str, modified: Timestamp) {
        if self.is_live(id) {
            self.append(Op::Delete, Item::new(id), modified);
        }
    }

    pub(in crate::diffdelta) fn window(&self) -> DeltaWindow {
        let mut window = DeltaWindow::new();
        for change in self.log.iter().filter(|c| c.seq > self.chain.minted_seq) {
            let earlier = window.missing_version(change).map(|seq| self.log[seq as usize - 1].clone());
            window.add(change.clone(), earlier);
        }
        window
    }

    pub(in crate::diffdelta) fn source(&self) -> SourcePublisher<'_> {
        SourcePublisher { site: &self.site, id: &self.id, ttl_sec: 60, about: Default::default() }
    }

    /// Performs a successful run: mints if there are deltas, else carries. Returns the deltas.
    pub(in crate::diffdelta) fn run(&mut self, now: Timestamp) -> Vec<Delta> {
        self.run_rendered(now).0
    }

    pub(in crate::diffdelta) fn run_rendered(
        &mut self,
        now: Timestamp,
    ) -> (Vec<Delta>, Vec<delta_item::RenderedItem>) {
        self.chain.health.succeeded(now);
        let deltas = self.window().into_deltas();
        // Section 2.2: the first success mints even without deltas.
        if deltas.is_empty() && !self.chain.is_unpublished() {
            self.carry(now);
            return (deltas, Vec::new());
        }
        let risk: &dyn Fn(&Item) -> Risk = &risk;
        let rendering = delta_item::ItemRenderer { site: &self.site, source: &self.id, lang: "en-GB", risk };
        let upto = self.log.len() as Seq;
        let repeats = Repeats::of(&self.chain, self.source().ttl_sec, &self.last_snapshot(), now);
        let rendered = rendering.render(&deltas);
        let published = self.source().mint(&self.chain, upto, (&deltas, &rendered), repeats, now);
        self.store(published);
        (deltas, rendered)
    }

    fn last_snapshot(&self) -> Vec<u8> {
        self.snapshots.last().map(|(_, document)| document.clone()).unwrap_or_default()
    }

    pub(in crate::diffdelta) fn carry(&mut self, now: Timestamp) {
        let published = self.source().carry(&self.chain, &self.latest, now).unwrap();
        self.store(published);
    }

    fn store(&mut self, published: PublishedDocuments) {
        self.latest = published.latest.to_vec();
        self.head = published.head.to_vec();
        self.chain = published.chain;
        if let Some(snapshot) = published.snapshot {
            assert!(
                self.snapshots.iter().all(|(s, _)| s.url != snapshot.entry.url),
                "a file name used twice"
            );
            self.snapshots.push((snapshot.entry, self.latest.clone()));
        }
    }

    pub(in crate::diffdelta) fn index(&self) -> bytes::Bytes {
        discovery::archive_index(self.id.as_str(), self.snapshots.iter().map(|(s, _)| s.clone()).collect())
    }
}

/// Collects the JSON pointers of a document. Of an array, only the first element is visited.
pub(in crate::diffdelta) fn places(value: &Value, path: &str, found: &mut Vec<String>) {
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
