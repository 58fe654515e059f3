//! Time and memory of reconstructing an archived feed of a million entries.
//!
//! With a thousand distinct ids, `max alloc` is the memory of reconstruction apart from the ids. With a million distinct
//! ids it is the total, including the state of the checkpoint.

use std::fmt::Write as _;

use bytes::Bytes;
use divan::{AllocProfiler, Bencher};
use http::{HeaderMap, HeaderValue, Method, header};
use towpath_proto::Timestamp;
use towpath_proto::follow::{Event, Exchange as _, FollowMode, Follower as _, Now, ResponseHead, StartFrom};
use towpath_proto::history::follow::{HistoryFollowOptions, HistoryFollower};

// Counts allocations, because the claim is constant memory.
#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const DOCUMENTS: u64 = 1000;
const ENTRIES: u64 = 1000;

/// Document `number`, from 1; the last is the newest. Entry n is a version of id n modulo `ids`.
fn document(number: u64, ids: u64) -> String {
    let mut text = String::with_capacity(512 << 10);
    text.push_str("<feed xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:f</id><title>f</title>");
    if number > 1 {
        let _ = write!(text, "<link rel=\"prev-archive\" href=\"/{}\"/>", number - 1);
    }
    // Newest first, as publishers write.
    for entry in ((number - 1) * ENTRIES..number * ENTRIES).rev() {
        let time = Timestamp::from_second(1_700_000_000 + entry as i64).unwrap_or_default();
        let _ = write!(
            text,
            "<entry><id>https://a.example/items/{}</id><title>Entry {entry}</title><updated>{time}</updated>\
             <link rel=\"alternate\" href=\"https://a.example/items/{entry}.html\"/><content type=\"html\">\
             &lt;p&gt;A paragraph that says what entry {entry} is about, at about the length of a headline \
             and a sentence after it, so that a document is not all names.&lt;/p&gt;</content></entry>",
            entry % ids
        );
    }
    text.push_str("</feed>");
    text
}

/// Follows the feed from its beginning, and returns the number of changes.
fn reconstruct(ids: u64, header_links: bool) -> u64 {
    let options = HistoryFollowOptions { mode: FollowMode::CatchUp, ..HistoryFollowOptions::default() };
    let url = format!("https://a.example/{DOCUMENTS}");
    let Ok(mut follower) = HistoryFollower::new(&url, StartFrom::Beginning, None, options) else { return 0 };
    let now = Timestamp::UNIX_EPOCH;
    let mut changes = 0;
    while !follower.is_finished() {
        while let Some(event) = follower.poll_event() {
            changes += u64::from(matches!(event, Event::Change(_)));
        }
        let Some(request) = follower.poll_request(Now::simulated(now)) else { continue };
        let number: u64 = request.url.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or_default();
        let mut headers = HeaderMap::new();
        let link = format!("</{}>; rel=prev-archive", number - 1);
        // Without this header the follower walks back by GET.
        if let Ok(link) = HeaderValue::from_str(&link)
            && header_links
            && number > 1
        {
            headers.insert(header::LINK, link);
        }
        follower.handle_head(
            Now::simulated(now),
            request.id,
            ResponseHead { status: 200, url: request.url.clone(), headers },
        );
        // A response to HEAD has no body.
        if request.method == Method::GET {
            follower.handle_chunk(Now::simulated(now), request.id, Bytes::from(document(number, ids)));
        }
        follower.handle_end(Now::simulated(now), request.id, Ok(()));
    }
    while let Some(event) = follower.poll_event() {
        changes += u64::from(matches!(event, Event::Change(_)));
    }
    // A follower that skips work must not look fast.
    assert_eq!(changes, DOCUMENTS * ENTRIES);
    changes
}

// A single sample: one run reads a million entries.
#[divan::bench(sample_count = 1, sample_size = 1, args = [1_000, 1_000_000])]
fn a_million_entries_way_back_by_head(bencher: Bencher<'_, '_>, distinct_ids: u64) {
    bencher.bench_local(|| reconstruct(distinct_ids, true));
}

#[divan::bench(sample_count = 1, sample_size = 1, args = [1_000, 1_000_000])]
fn a_million_entries_way_back_by_get(bencher: Bencher<'_, '_>, distinct_ids: u64) {
    bencher.bench_local(|| reconstruct(distinct_ids, false));
}

/// The share of making the documents in the above.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn the_documents_alone() -> usize {
    (1..=DOCUMENTS).map(|number| document(number, 1000).len()).sum()
}
