//! The examples of the Smart Feeds text.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use towpath_proto::change::{Change, Op};
use towpath_proto::item::ContentHash;
use towpath_proto::smart::cursor::{CursorKind, LogTag};
use towpath_proto::smart::log_read::{LogRead, LogReadHead, LogReadResult};
use towpath_proto::smart::pull::{FeedSettings, Pull, PullStep};
use towpath_proto::smart::query::{PullLimits, PullQuery};
use towpath_proto::smart::wire::Collection;
use towpath_proto::{Item, Timestamp};

const BASE: &str = "http://example.com/articles/1/comments/?order=created";
const NEXT: &str = "http://example.com/articles/1/comments/?order=created&since=cursor%3A8f4a1546&max=50";
const ID: &str = "b204edf6-7a03-11e0-8617-837f7e2798e8";

/// HTTP Pull: both formats have the same items.
#[test]
fn the_pages_of_the_text() {
    let json = Collection::from_json(include_bytes!("data/smart/collection.json")).unwrap();
    let atom = Collection::from_atom(include_bytes!("data/smart/page.atom"), BASE).unwrap();
    assert_eq!(json.count, Some(1));
    for page in [json, atom] {
        assert_eq!((page.url.as_deref(), page.next.as_deref()), (Some(BASE), Some(NEXT)));
        assert_eq!((page.total, page.last_cursor.as_deref()), (Some(427), Some("8f4a1546")));
        assert_eq!((page.items[0].item.id.as_str(), page.items[0].deleted), (ID, false));
    }
}

fn change(seq: u64, id: &str, seconds: i64) -> Change {
    let modified = Timestamp::from_second(seconds).unwrap();
    Change {
        seq,
        op: Op::Put,
        modified,
        created: modified,
        first_seq: seq,
        previous: None,
        item: Item::new(id),
        patch: None,
        entry_id: None,
        hash: ContentHash::default(),
    }
}

/// Returns the cursor of the last item in a feed of these items.
fn last_cursor(changes: &[Change]) -> Option<String> {
    let feed = FeedSettings {
        name: "a".into(),
        base: "http://example.com/items".into(),
        title: "Vectors".into(),
        tag: LogTag::new("vectors"),
        kind: CursorKind::Toc,
        limits: PullLimits::default(),
        links: Vec::new(),
        hub: None,
    };
    let last = changes.last()?;
    let mut pull = Pull::new(PullQuery::parse("", &feed.limits).unwrap(), &feed, last.modified);
    let mut step = pull.begin();
    loop {
        let PullStep::Read(read) = step else { break };
        let answer = match read {
            LogRead::Head => {
                let (seq, modified) = (last.seq, last.modified);
                LogReadResult::Head(LogReadHead { seq, modified, items: seq, horizon: 0 })
            }
            LogRead::LastBefore(time) => {
                LogReadResult::Position(changes.iter().filter(|change| change.modified < time).count() as u64)
            }
            LogRead::Items { after, .. } => {
                let after = after.unwrap_or_default();
                LogReadResult::Items(changes.iter().filter(|change| change.seq > after).cloned().collect())
            }
            LogRead::Latest(_) => panic!("no id was asked for"),
        };
        step = pull.handle_read(answer, None).unwrap();
    }
    let PullStep::Page(page) = step else { panic!("{step:?}") };
    page.last_cursor
}

/// Cursors: T is the time, O the offset, C the CRC-32 of the ids joined by `_`.
#[test]
fn cursors_of_timestamp_offset_and_checksum() {
    let lines = include_str!("data/smart/toc.txt").lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let (seconds, cursor) = (words[0].parse().unwrap(), words[words.len() - 1]);
        let ids = &words[1..words.len() - 1];
        // Items of earlier seconds do not matter.
        let mut changes = vec![change(1, "before", seconds - 1)];
        changes.extend((2..).zip(ids).map(|(seq, id)| change(seq, id, seconds)));
        assert_eq!(last_cursor(&changes).as_deref(), Some(cursor), "{line}");
        count += 1;
    }
    // An emptied file of vectors would pass otherwise.
    assert_eq!(count, 3);
}
