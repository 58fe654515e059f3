//! What the SUP document costs a publisher of many feeds.

use divan::Bencher;
use towpath_proto::Timestamp;
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::RecentMoves;

fn main() {
    divan::main();
}

/// A million feeds of which `moved` moved within the last minute, and each other one within the last day.
fn million(moved: u64) -> (RecentMoves, Timestamp) {
    let start = 1_700_000_000;
    let mut moves = RecentMoves::default();
    let id = |number: u64| SupId::of(&format!("https://example.com/feeds/{number}/atom"));
    let rest = 1_000_000 - moved;
    for number in 0..rest {
        let second = start + (number * 86_000 / rest) as i64;
        moves.record(id(number), number, Timestamp::from_second(second).unwrap_or_default());
    }
    let now = Timestamp::from_second(start + 86_400).unwrap_or_default();
    (rest..1_000_000).for_each(|number| moves.record(id(number), number, now));
    (moves, now)
}

#[divan::bench(args = [0, 10_000, 100_000])]
fn a_document_for_a_minute(bencher: Bencher<'_, '_>, moved: u64) {
    let (moves, now) = million(moved);
    bencher.bench(|| moves.document(now, 60, "https://example.com/sup.json"));
}

#[divan::bench]
fn recording_a_move(bencher: Bencher<'_, '_>) {
    let (mut moves, now) = million(0);
    let id = SupId::of("https://example.com/feeds/1/atom");
    let mut seq = 0;
    bencher.bench_local(|| {
        seq += 1;
        moves.record(id, seq, now);
    });
}
