//! Time to build and write a page of 50 items that is not cached.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run is to stop")]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::{Change, Op};
use towpath_proto::item::{Author, Content, Item};
use towpath_proto::smart::accept::{PageFormat, negotiate};
use towpath_proto::smart::cursor::{CursorKind, LogTag};
use towpath_proto::smart::events;
use towpath_proto::smart::log_read::{LogRead, LogReadHead, LogReadResult};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, Pull, PullPage, PullStep};
use towpath_proto::smart::query::{PullLimits, PullQuery};
use towpath_proto::smart::spec::OrderBy;

fn main() {
    divan::main();
}

const ITEMS: u64 = 10_000;

/// An item as in a news feed: a title, a summary, about 600 bytes of HTML, an author and three tags.
fn change(seq: u64) -> Change {
    // 700 ms apart: seconds of one and of two items, as T+O+C cursors must count.
    let modified = Timestamp::UNIX_EPOCH + SignedDuration::from_millis(1_700_000_000_000 + 700 * seq as i64);
    let html = "<p>The path beside the stream, that you follow it by &amp; \"beyond\".</p>".repeat(8);
    let item = Item {
        url: Some(format!("https://example.com/articles/{seq}")),
        title: Some(format!("Article {seq} about the path beside the stream")),
        summary: Some("What there is to know of the path, in one sentence that is not too long.".into()),
        content: Some(Content::new("text/html", html)),
        authors: vec![Author::named("Ann Author")],
        tags: vec!["path".into(), "stream".into(), "walking".into()],
        published: Some(modified),
        ..Item::new(format!("c859e306-38fb-49bb-b3c4-{seq:012}"))
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
}

fn feed(kind: CursorKind) -> FeedSettings {
    FeedSettings {
        name: "a".into(),
        base: "http://127.0.0.1:8080/feeds/news/items".into(),
        title: "News".into(),
        tag: LogTag::new("http://127.0.0.1:8080/feeds/news#1"),
        kind,
        limits: PullLimits::default(),
        links: Vec::new(),
        hub: None,
    }
}

fn read(log: &[Change], read: &LogRead) -> LogReadResult {
    match read {
        LogRead::Head => LogReadResult::Head(LogReadHead {
            seq: ITEMS,
            modified: log[log.len() - 1].modified,
            items: ITEMS,
            horizon: 0,
        }),
        LogRead::LastBefore(time) => {
            LogReadResult::Position(log.partition_point(|c| c.modified < *time) as u64)
        }
        LogRead::Latest(id) => {
            LogReadResult::Item(log.iter().find(|c| c.item.id == *id).cloned().map(Box::new))
        }
        // By modification the position is the index, because no item has a second version.
        LogRead::Items { after, items, .. } => {
            let start = after.unwrap_or(0) as usize;
            LogReadResult::Items(log[start..].iter().take(*items).cloned().collect())
        }
    }
}

fn page(log: &[Change], feed: &FeedSettings, query: PullQuery) -> (PullQuery, PullPage) {
    let mut pull = Pull::new(query, feed, log[0].modified);
    let mut step = pull.begin();
    loop {
        step = match step {
            PullStep::Read(what) => pull.handle_read(read(log, &what), None).expect("the right answer"),
            PullStep::Wait { .. } => pull.handle_timeout(),
            PullStep::Page(page) => return (pull.query().clone(), *page),
        };
    }
}

/// From the query string to the response, with reads from memory (including copies of the items).
#[divan::bench(args = [PageFormat::Json, PageFormat::Atom])]
fn answer_50(bencher: Bencher, format: PageFormat) {
    let log: Vec<Change> = (1..=ITEMS).map(change).collect();
    let feed = feed(CursorKind::Sequence);
    let query = format!("order=modified&since=cursor:{}", feed.tag.cursor(OrderBy::Modified, 5000));
    let accept = if format == PageFormat::Json { "application/json" } else { "application/atom+xml" };
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| {
        let query = PullQuery::parse(&query, &feed.limits).expect("a good query");
        let format = negotiate(Some(accept)).expect("a known format");
        let (query, page) = page(&log, &feed, query);
        publish::respond(&feed, &query, &page, format)
    });
}

/// Writing the page only.
#[divan::bench(args = [PageFormat::Json, PageFormat::Atom])]
fn write_50(bencher: Bencher, format: PageFormat) {
    let log: Vec<Change> = (1..=ITEMS).map(change).collect();
    let feed = feed(CursorKind::Sequence);
    let query = PullQuery::parse("order=modified", &feed.limits).expect("a good query");
    let (query, page) = page(&log, &feed, query);
    let size = publish::respond(&feed, &query, &page, format).body().len();
    bencher.counter(BytesCount::new(size)).bench_local(|| publish::respond(&feed, &query, &page, format));
}

/// Writes a single Server-Sent Event.
#[divan::bench]
fn event(bencher: Bencher) {
    let (change, tag) = (change(1), feed(CursorKind::Sequence).tag);
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| {
        let mut out = Vec::with_capacity(2048);
        let cursor = tag.cursor(OrderBy::Modified, change.seq);
        events::push_event(&mut out, &cursor, &change);
        out
    });
}
