//! Smart Feeds: published items parse identically in both formats, and are published again as the same bytes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::items::any_item;
use proptest::prelude::*;
use towpath_proto::change::{Change, Op};
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::cursor::{CursorKind, LogTag};
use towpath_proto::smart::publish::respond;
use towpath_proto::smart::pull::{FeedSettings, PullPage};
use towpath_proto::smart::query::{PullLimits, PullQuery};
use towpath_proto::smart::spec::OrderBy;
use towpath_proto::smart::wire::{Collection, CollectionError};
use towpath_proto::{Item, Timestamp};

fn feed() -> FeedSettings {
    FeedSettings {
        name: "a".into(),
        base: "http://example.com/feeds/a/items".into(),
        title: "Locks & <canals>".into(),
        tag: LogTag::new("a"),
        kind: CursorKind::Sequence,
        limits: PullLimits::default(),
        links: Vec::new(),
        hub: None,
    }
}

fn change(seq: u64, op: Op, item: Item) -> Change {
    let modified = Timestamp::from_second(1_700_000_000 + i64::try_from(seq).unwrap()).unwrap();
    let item = match op {
        // A tombstone keeps its id and dates, and loses its content.
        Op::Delete => Item { published: item.published, updated: item.updated, ..Item::new(item.id) },
        Op::Put | Op::Patch => item,
    };
    let (created, hash) = (modified, item.content_hash());
    Change {
        seq,
        op,
        modified,
        created,
        first_seq: seq,
        previous: None,
        item,
        patch: None,
        entry_id: None,
        hash,
    }
}

fn read(format: PageFormat, body: &[u8]) -> Result<Collection, CollectionError> {
    match format {
        PageFormat::Json | PageFormat::Lines => Collection::from_json(body),
        PageFormat::Atom => Collection::from_atom(body, "http://example.com/feeds/a/items?order=modified"),
    }
}

fn there_and_back(format: PageFormat, page: &PullPage) {
    let feed = feed();
    let query = PullQuery::parse("order=modified&max=7", &feed.limits).unwrap();
    let body = respond(&feed, &query, page, format).into_body();
    let text = String::from_utf8_lossy(&body);
    let found = read(format, &body).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(found.problems, Vec::<String>::new(), "{text}");
    assert_eq!((found.total, found.last_cursor.as_deref()), (Some(page.total), page.last_cursor.as_deref()));
    assert_eq!(found.url.as_deref(), Some("http://example.com/feeds/a/items?order=modified"));
    assert_eq!(found.items.len(), page.changes.len());
    let mut again = page.clone();
    for (object, change) in found.items.into_iter().zip(&mut again.changes) {
        assert_eq!(object.item, change.item, "{text}");
        assert_eq!((object.deleted, object.modified), (change.op == Op::Delete, Some(change.modified)));
        assert_eq!(object.cursor, Some(feed.tag.cursor(OrderBy::Modified, change.seq)));
        change.item = object.item;
    }
    assert_eq!(respond(&feed, &query, &again, format).into_body(), body);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn published_items_parse_identically(items in prop::collection::vec((any_item(), any::<bool>()), 0..4), more: bool) {
        let op = |gone| if gone { Op::Delete } else { Op::Put };
        let changes = (1..).zip(items).map(|(seq, (item, gone))| change(seq, op(gone), item));
        let changes: Vec<Change> = changes.collect();
        let last_cursor = (!changes.is_empty()).then(|| "8f4a1546".to_owned());
        let page = PullPage { changes, last_cursor, more, ..PullPage::empty(427, Timestamp::UNIX_EPOCH) };
        there_and_back(PageFormat::Json, &page);
        there_and_back(PageFormat::Atom, &page);
    }

    #[test]
    fn a_truncated_page_is_an_error(item in any_item(), cut in 0.0..1.0_f64) {
        let page = PullPage { changes: vec![change(1, Op::Put, item)], ..PullPage::empty(1, Timestamp::UNIX_EPOCH) };
        let feed = feed();
        let query = PullQuery::parse("", &feed.limits).unwrap();
        for format in [PageFormat::Json, PageFormat::Atom] {
            let body = respond(&feed, &query, &page, format).into_body();
            // Some bytes before the end, so that more than white space is missing.
            let end = body.len().saturating_sub(8);
            let cut = (end as f64 * cut) as usize;
            prop_assert!(read(format, &body[..cut]).is_err());
        }
    }
}
