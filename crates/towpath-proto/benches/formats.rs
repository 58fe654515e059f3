//! Throughput of parsing and writing feeds, in MB/s, compared with feed-rs on equal documents.
//!
//! `cargo bench -p towpath-proto --bench formats`; the ratio of the medians is what counts.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot make its input fails")]

use divan::Bencher;
use divan::counter::BytesCount;
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::{ReadOptions, atom, json_feed, read, rss};
use towpath_proto::{Author, Content, Item, Timestamp};

fn main() {
    divan::main();
}

/// Style of a document's entries.
#[derive(Debug, Clone, Copy)]
enum EntryStyle {
    /// Blog: 2 kB of escaped HTML in each entry.
    Articles,
    /// Catalogue: title, summary and a few dates in each entry.
    Records,
    /// Blog with XHTML contents.
    Xhtml,
}

const KINDS: [EntryStyle; 3] = [EntryStyle::Articles, EntryStyle::Records, EntryStyle::Xhtml];
const ENTRIES: usize = 500;

fn item(kind: EntryStyle, number: usize) -> Item {
    let day = "2025-01-24T09:00:00Z".parse::<Timestamp>().unwrap();
    let mut item = Item::new(format!("tag:blog.example,2025:{number}"));
    item.url = Some(format!("https://blog.example/2025/01/{number}?from=feed&n={number}"));
    item.title = Some(format!("Lock {number} & its keepers"));
    item.updated = Some(day);
    item.published = Some(day);
    item.authors =
        vec![Author { name: "Ann Keeper".into(), email: None, url: Some("https://ann.example/".into()) }];
    item.tags = vec!["locks".into(), "canals".into()];
    item.summary = Some("What happened at the lock, who was there & why it took so long.".into());
    // Mark-up, quotes and a line end, which the writers must escape.
    let paragraph = "<p>The <a href=\"https://example.org/lock\">lock</a> was closed for <em>three</em> weeks; \
        boats had to wait, or go round by the long pound, which few of them did that winter.</p>\n";
    match kind {
        EntryStyle::Articles => item.content = Some(Content::new("text/html", paragraph.repeat(11))),
        EntryStyle::Records => {}
        EntryStyle::Xhtml => {
            let div = format!("<div xmlns=\"http://www.w3.org/1999/xhtml\">{}</div>", paragraph.repeat(11));
            item.content = Some(Content::new("application/xhtml+xml", div));
        }
    }
    item
}

fn items(kind: EntryStyle) -> Vec<Item> {
    (0..ENTRIES).map(|n| item(kind, n)).collect()
}

fn head() -> DocumentHead<'static> {
    DocumentHead::new("https://blog.example/feed", "A blog", "2025-01-24T09:00:00Z".parse().unwrap())
}

fn entries(items: &[Item]) -> impl Iterator<Item = DocumentEntry<'_>> {
    items.iter().map(|item| DocumentEntry::new(item, "2025-01-24T09:00:00Z".parse().unwrap()))
}

/// Writes a document as other publishers do: without our own namespaces.
fn atom_document(kind: EntryStyle) -> String {
    atom::write(&head(), entries(&items(kind)))
}

fn bench_read(bencher: Bencher<'_, '_>, document: &str) {
    bencher
        .counter(BytesCount::of_str(document))
        // `black_box`, so that the optimiser knows nothing of the document.
        .bench(|| read(divan::black_box(document).as_bytes(), &ReadOptions::default()).unwrap());
}

fn bench_feed_rs(bencher: Bencher<'_, '_>, document: &str) {
    bencher
        .counter(BytesCount::of_str(document))
        .bench(|| feed_rs::parser::parse(divan::black_box(document).as_bytes()).unwrap());
}

#[divan::bench(args = KINDS)]
fn atom_towpath(bencher: Bencher<'_, '_>, kind: EntryStyle) {
    bench_read(bencher, &atom_document(kind));
}

#[divan::bench(args = KINDS)]
fn atom_feed_rs(bencher: Bencher<'_, '_>, kind: EntryStyle) {
    bench_feed_rs(bencher, &atom_document(kind));
}

#[divan::bench]
fn rss_towpath(bencher: Bencher<'_, '_>) {
    bench_read(bencher, &rss::write(&head(), entries(&items(EntryStyle::Articles))));
}

#[divan::bench]
fn rss_feed_rs(bencher: Bencher<'_, '_>) {
    bench_feed_rs(bencher, &rss::write(&head(), entries(&items(EntryStyle::Articles))));
}

#[divan::bench]
fn json_feed_towpath(bencher: Bencher<'_, '_>) {
    bench_read(bencher, &json_feed::write(&head(), entries(&items(EntryStyle::Articles))));
}

#[divan::bench]
fn json_feed_feed_rs(bencher: Bencher<'_, '_>) {
    bench_feed_rs(bencher, &json_feed::write(&head(), entries(&items(EntryStyle::Articles))));
}

#[divan::bench(args = KINDS)]
fn write_atom(bencher: Bencher<'_, '_>, kind: EntryStyle) {
    let items = items(kind);
    // Written once for its length, outside the measured time.
    let length = atom_document(kind).len();
    bencher.counter(BytesCount::new(length)).bench(|| atom::write(&head(), entries(&items)));
}
