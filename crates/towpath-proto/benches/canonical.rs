//! Canonicalises and hashes a DiffDelta document of about 1.5 MB, compared with plain serialising and hashing.
//!
//! `verify_text` is a follower's work for a document. It should take at most twice the time of `serialise`.
//! `mint` is a publisher's work for a run with changes, including rendering; `carry` for a run without.

use divan::{Bencher, black_box};
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use towpath_proto::diffdelta::delta_item::ItemRenderer;
use towpath_proto::diffdelta::{
    Cursor, DeltaWindow, DocumentChain, PublishedDocuments, Repeats, SiteUrl, SourcePublisher, cursor,
};
use towpath_proto::format::jcs::Style;
use towpath_proto::risk::Risk;
use towpath_proto::{Change, Content, FeedId, Item, Op};

fn main() {
    divan::main();
}

/// Number of items in a document of 1.5 MB.
const ITEMS: u64 = 1000;

fn changes() -> Vec<Change> {
    // A constant time: every run mints the same bytes.
    let modified = Timestamp::UNIX_EPOCH;
    let change = |seq: u64| {
        // Quotes, a dash and an accent take the paths that escape, or must not.
        let text = format!("<p>Item {seq} says \"something\" — with <b>mark-up</b> and é.</p>").repeat(9);
        let item = Item {
            url: Some(format!("https://example.com/items/{seq}")),
            title: Some(format!("The title of item {seq}")),
            content: Some(Content::new("text/html; charset=utf-8", text)),
            ..Item::new(format!("item-{seq}"))
        };
        let hash = item.content_hash();
        Change {
            seq,
            op: Op::Put,
            modified,
            created: modified,
            first_seq: seq,
            previous: None,
            item,
            patch: None,
            entry_id: None,
            hash,
        }
    };
    (1..=ITEMS).map(change).collect()
}

struct BenchSource {
    site: SiteUrl,
    id: FeedId,
}

impl BenchSource {
    fn new() -> Self {
        let id = FeedId::new("bench").unwrap_or_else(|e| unreachable!("{e}"));
        Self { site: SiteUrl::new("http://127.0.0.1:8080"), id }
    }

    fn source(&self) -> SourcePublisher<'_> {
        SourcePublisher { site: &self.site, id: &self.id, ttl_sec: 60, about: Default::default() }
    }

    fn mint(&self, changes: Vec<Change>) -> PublishedDocuments {
        let mut window = DeltaWindow::new();
        changes.into_iter().for_each(|c| window.add(c, None));
        let rendering =
            ItemRenderer { site: &self.site, source: &self.id, lang: "en", risk: &|_| Risk::default() };
        let deltas = window.into_deltas();
        let rendered = rendering.render(&deltas);
        self.source().mint(
            &DocumentChain::default(),
            ITEMS,
            (&deltas, &rendered),
            Repeats::default(),
            Timestamp::UNIX_EPOCH,
        )
    }
}

fn document() -> Vec<u8> {
    BenchSource::new().mint(changes()).latest.to_vec()
}

fn size(document: &[u8]) -> divan::counter::BytesCount {
    divan::counter::BytesCount::new(document.len())
}

/// The reference: `serde_json::to_vec` of the parsed document, and its SHA-256.
#[divan::bench]
fn serialise(bencher: Bencher) {
    let document = document();
    let value: Value = serde_json::from_slice(&document).unwrap_or_default();
    bencher.counter(size(&document)).bench(|| {
        let text = serde_json::to_vec(black_box(&value)).unwrap_or_default();
        Sha256::digest(text)
    });
}

/// Canonicalises and hashes a text whose keys are sorted already.
#[divan::bench]
fn verify_text(bencher: Bencher) {
    let document = document();
    bencher.counter(size(&document)).bench(|| cursor::recompute(black_box(&document), Style::Jcs));
}

/// Canonicalises and hashes a text with white space and with all keys in reverse order.
#[divan::bench]
fn verify_unordered_text(bencher: Bencher) {
    let document = document();
    let value: Value = serde_json::from_slice(&document).unwrap_or_default();
    // Not in canonical form, so a fast path for canonical text does not apply.
    let text = serde_json::to_vec_pretty(&Reversed(&value)).unwrap_or_default();
    bencher.counter(size(&text)).bench(|| cursor::recompute(black_box(&text), Style::Python));
}

/// Renders 1,000 items, then hashes and writes the document.
#[divan::bench]
fn mint(bencher: Bencher) {
    let publisher = BenchSource::new();
    // The changes are consumed, so they are made outside the measured time.
    bencher.with_inputs(changes).bench_values(|changes| publisher.mint(changes));
}

/// A run without changes.
#[divan::bench]
fn carry(bencher: Bencher) {
    let publisher = BenchSource::new();
    let minted = publisher.mint(changes());
    bencher
        .counter(size(&minted.latest))
        .bench(|| publisher.source().carry(&minted.chain, black_box(&minted.latest), Timestamp::UNIX_EPOCH));
}

/// The SHA-256 alone.
#[divan::bench]
fn hash(bencher: Bencher) {
    let document = document();
    bencher.counter(size(&document)).bench(|| Cursor::of(black_box(&document)));
}

/// A value whose objects are written with their keys in reverse order.
struct Reversed<'a>(&'a Value);

impl serde::Serialize for Reversed<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(members) => {
                serializer.collect_map(members.iter().rev().map(|(name, value)| (name, Reversed(value))))
            }
            Value::Array(values) => serializer.collect_seq(values.iter().map(Reversed)),
            other => other.serialize(serializer),
        }
    }
}
