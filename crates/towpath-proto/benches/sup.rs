//! Cost of the SUP document for a publisher of many feeds.

use divan::Bencher;
use towpath_proto::Timestamp;
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::RecentUpdates;

fn main() {
    divan::main();
}

/// Returns the index of a million feeds: `recent` of them updated within the last minute, the others within the last day.
fn million(recent: u64) -> (RecentUpdates, Timestamp) {
    let start = 1_700_000_000;
    let mut updates = RecentUpdates::default();
    let id = |number: u64| SupId::of(&format!("https://example.com/feeds/{number}/atom"));
    let rest = 1_000_000 - recent;
    for number in 0..rest {
        // Up to 86,000 s of the day, so that no other feed is in the window of the last minute.
        let second = start + (number * 86_000 / rest) as i64;
        updates.record(id(number), number, Timestamp::from_second(second).unwrap_or_default());
    }
    let now = Timestamp::from_second(start + 86_400).unwrap_or_default();
    (rest..1_000_000).for_each(|number| updates.record(id(number), number, now));
    (updates, now)
}

#[divan::bench(args = [0, 10_000, 100_000])]
fn a_document_for_a_minute(bencher: Bencher<'_, '_>, moved: u64) {
    let (updates, now) = million(moved);
    bencher.bench(|| updates.document(now, 60, "https://example.com/sup.json"));
}

#[divan::bench]
fn recording_a_move(bencher: Bencher<'_, '_>) {
    let (mut updates, now) = million(0);
    let id = SupId::of("https://example.com/feeds/1/atom");
    let mut seq = 0;
    bencher.bench_local(|| {
        seq += 1;
        updates.record(id, seq, now);
    });
}
