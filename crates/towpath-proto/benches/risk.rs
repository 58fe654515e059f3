//! Cost of the risk scorer per item.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use towpath_proto::Item;
use towpath_proto::line::Line;
use towpath_proto::risk::Scorer;

fn main() {
    divan::main();
}

/// Entries of a public vulnerability catalogue, about 1.3 kB each, repeated.
fn catalogue(count: usize) -> Vec<Item> {
    let lines = include_str!("../tests/data/risk/harmless.ndjson").lines().filter(|l| l.contains("\"CVE-"));
    let items = lines.filter_map(|line| Some(Line::parse(line.as_bytes()).ok()?.into_change().ok()?.item));
    let items: Vec<Item> = items.collect();
    items.iter().cycle().take(count).cloned().collect()
}

fn size(item: &Item) -> usize {
    let texts = [&item.title, &item.summary, &item.url];
    let content = item.content.as_ref().map_or(0, |content| content.bytes.len());
    content + texts.into_iter().flatten().map(String::len).sum::<usize>()
}

#[divan::bench]
fn a_catalogue_of_1280_entries(bencher: Bencher<'_, '_>) {
    let (scorer, items) = (Scorer::default(), catalogue(1280));
    let bytes: usize = items.iter().map(size).sum();
    bencher
        .counter(ItemsCount::new(items.len()))
        .counter(BytesCount::new(bytes))
        .bench(|| items.iter().filter(|item| scorer.score(item).is_flagged()).count());
}

#[divan::bench]
fn a_page_of_html(bencher: Bencher<'_, '_>) {
    let page = "<p>A paragraph with a <a href=\"https://example.org/x\">link</a> and <b>bold</b> text.</p>\n"
        .repeat(100);
    let item = Item { summary: Some(page), ..Item::new("a") };
    let scorer = Scorer::default();
    bencher.counter(BytesCount::new(size(&item))).bench(|| scorer.score(&item));
}

// Beginnings of patterns, repeated: a naive matcher is quadratic here.
#[divan::bench(args = ["ignore all previous ", "http://", "<a href=http://a.b/>c.d", "ä "])]
fn a_hostile_text(bencher: Bencher<'_, '_>, piece: &str) {
    let item = Item { summary: Some(piece.repeat((256 << 10) / piece.len())), ..Item::new("a") };
    let scorer = Scorer::default();
    bencher.counter(BytesCount::new(size(&item))).bench(|| scorer.score(&item));
}
