//! How fast a page of 50 items is answered when it has to be built.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run is to stop")]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::{Change, Op};
use towpath_proto::item::{Author, Content, Item};
use towpath_proto::smart::accept::{PageFormat, negotiate};
use towpath_proto::smart::cursor::{CursorKind, LogTag};
use towpath_proto::smart::events;
use towpath_proto::smart::plan::{Answer, Head, Read};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, Page, Pull, Step};
use towpath_proto::smart::query::{Limits, PullQuery};
use towpath_proto::smart::spec::By;

fn main() {
    divan::main();
}

const ITEMS: u64 = 10_000;

/// Items as of a news feed: a title, a summary, about 600 bytes of HTML, an author and three tags.
fn change(seq: u64) -> Change {
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
        base: "http://127.0.0.1:8080/feeds/news/items".into(),
        title: "News".into(),
        tag: LogTag::new("http://127.0.0.1:8080/feeds/news#1"),
        kind,
        limits: Limits::default(),
        links: Vec::new(),
        hub: None,
    }
}

fn read(log: &[Change], read: &Read) -> Answer {
    match read {
        Read::Head => Answer::Head(Head { seq: ITEMS, modified: log[log.len() - 1].modified, items: ITEMS }),
        Read::LastBefore(time) => Answer::Place(log.partition_point(|c| c.modified < *time) as u64),
        Read::Latest(id) => Answer::Item(log.iter().find(|c| c.item.id == *id).cloned().map(Box::new)),
        Read::Items { after, items, .. } => {
            let start = after.unwrap_or(0) as usize;
            Answer::Items(log[start..].iter().take(*items).cloned().collect())
        }
    }
}

fn page(log: &[Change], feed: &FeedSettings, query: PullQuery) -> (PullQuery, Page) {
    let mut pull = Pull::new(query, feed, log[0].modified);
    let mut step = pull.begin();
    loop {
        step = match step {
            Step::Read(what) => pull.handle_answer(read(log, &what), None).expect("the right answer"),
            Step::Wait { .. } => pull.handle_timeout(),
            Step::Page(page) => return (pull.query().clone(), *page),
        };
    }
}

/// The whole way from the query string to the response, reads from memory (copies of the items included).
#[divan::bench(args = [PageFormat::Json, PageFormat::Atom])]
fn answer_50(bencher: Bencher, format: PageFormat) {
    let log: Vec<Change> = (1..=ITEMS).map(change).collect();
    let feed = feed(CursorKind::Sequence);
    let query = format!("order=modified&since=cursor:{}", feed.tag.cursor(By::Modified, 5000));
    let accept = if format == PageFormat::Json { "application/json" } else { "application/atom+xml" };
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| {
        let query = PullQuery::parse(&query, &feed.limits).expect("a good query");
        let format = negotiate(Some(accept), false).expect("a known format");
        let (query, page) = page(&log, &feed, query);
        publish::respond(&feed, &query, &page, format)
    });
}

/// Only writing the page.
#[divan::bench(args = [PageFormat::Json, PageFormat::Atom])]
fn write_50(bencher: Bencher, format: PageFormat) {
    let log: Vec<Change> = (1..=ITEMS).map(change).collect();
    let feed = feed(CursorKind::Sequence);
    let query = PullQuery::parse("order=modified", &feed.limits).expect("a good query");
    let (query, page) = page(&log, &feed, query);
    let size = publish::respond(&feed, &query, &page, format).body().len();
    bencher.counter(BytesCount::new(size)).bench_local(|| publish::respond(&feed, &query, &page, format));
}

/// One Server-Sent Event.
#[divan::bench]
fn event(bencher: Bencher) {
    let (change, tag) = (change(1), feed(CursorKind::Sequence).tag);
    bencher.counter(ItemsCount::new(1_usize)).bench_local(|| {
        let mut out = Vec::with_capacity(2048);
        events::push_event(&mut out, &tag, &change);
        out
    });
}
