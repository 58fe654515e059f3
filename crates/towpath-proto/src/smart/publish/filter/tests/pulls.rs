//! Pulls through a filter.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::change::{NewChange, Op};
use crate::item::Item;
use crate::smart::publish::cursor::CursorKind;
use crate::smart::publish::filter::{Filter, FilterView};
use crate::smart::publish::pull::{MAX_SCANNED, Pull, PullError, PullPage};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, change, settings, time};
use crate::smart::wire::spec::OrderBy;

fn view(log: &MemoryLog) -> FilterView {
    let filter = Filter { tags: vec!["x".into()], ..Filter::default() };
    let mut view = FilterView::new(filter, Box::new(|_| 0.0));
    view.apply(&log.changes);
    view
}

fn pull(log: &mut MemoryLog, kind: CursorKind, query: &str) -> Result<PullPage, PullError> {
    let (feed, view) = (settings(kind), view(log));
    let query = PullQuery::parse(query, &feed.limits)?;
    log.run_through(Some(&view), &mut Pull::new(query, &feed, time(1_000_000)))
}

fn tagged(id: &str, tag: &str) -> NewChange {
    NewChange::put(Item { tags: vec![tag.into()], ..Item::new(id) })
}

/// As Abstract: the same feed may be presented differently, but only by filtering, not by reordering.
#[test]
fn a_filter_hides_and_keeps_the_order() {
    let mut log = MemoryLog::default();
    for (id, tag) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "x"), ("a", "x"), ("c", "y")] {
        log.append(tagged(id, tag), time(10));
    }
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        for (order, expected) in
            [("created", "ace"), ("-created", "eca"), ("modified", "eac"), ("-modified", "cae")]
        {
            let (mut seen, mut since) = (String::new(), String::new());
            loop {
                let page = pull(&mut log, kind, &format!("order={order}&max=1&timeout=0{since}")).unwrap();
                assert_eq!(page.total, 3);
                for change in &page.changes {
                    // `c` was shown with its first tag, so its later version appears as a deletion.
                    assert_eq!(change.op == Op::Delete, change.item.id == "c");
                    seen.push_str(&change.item.id);
                }
                since = format!("&since=cursor:{}", page.last_cursor.unwrap());
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, expected, "{order}");
        }
    }
    // A hidden item is not a valid position either.
    let error = pull(&mut log, CursorKind::Sequence, "order=created&since=id:b").unwrap_err();
    assert_eq!(error, PullError::UnknownId("b".into()));
    assert!(pull(&mut log, CursorKind::Sequence, "order=created&since=id:a").is_ok());
}

/// A page reads a bounded number of hidden items, and the next page continues after them.
#[test]
fn hidden_items_are_bounded_work() {
    let mut log = MemoryLog::default();
    // Two pages of hidden items, and a rest for the third.
    let hidden = 2 * MAX_SCANNED as u64 + 700;
    log.changes.extend((1..=hidden).map(|seq| change(seq, &format!("i{seq}"), 10)));
    log.append(tagged("last", "x"), time(20));
    let (mut since, mut pages) = (String::new(), 0);
    loop {
        log.read = 0;
        let page = pull(&mut log, CursorKind::Sequence, &format!("max=5{since}")).unwrap();
        assert!(log.read <= MAX_SCANNED + 1000, "{}", log.read);
        pages += 1;
        if !page.changes.is_empty() {
            assert_eq!((page.changes[0].item.id.as_str(), page.more, page.total), ("last", false, 1));
            break;
        }
        assert!(page.more);
        since = format!("&since=cursor:{}", page.last_cursor.unwrap());
    }
    assert_eq!(pages, 3);
}

proptest! {
    /// A copy made through a filter has exactly the matching items; items that no longer match are deleted.
    #[test]
    fn a_copy_through_a_filter_is_exact(
        steps in prop::collection::vec((0..6_u8, prop_oneof![Just("x"), Just("y"), Just("-")], any::<bool>()), 1..60),
        toc: bool,
    ) {
        let kind = if toc { CursorKind::Toc } else { CursorKind::Sequence };
        let (mut log, mut copy, mut since) = (MemoryLog::default(), BTreeMap::new(), String::new());
        let (mut wanted, mut shown) = (BTreeMap::new(), BTreeSet::new());
        let mut poll = |log: &mut MemoryLog, copy: &mut BTreeMap<String, bool>| loop {
            let page = pull(log, kind, &format!("max=2&timeout=0{since}")).unwrap();
            copy.extend(page.changes.iter().map(|c| (c.item.id.clone(), c.op != Op::Delete)));
            if page.changes.is_empty() {
                return page.total;
            }
            since = format!("&since=cursor:{}", page.last_cursor.unwrap());
        };
        for (index, (n, tag, polls)) in steps.into_iter().enumerate() {
            let id = format!("i{n}");
            if tag != "-" {
                // Four changes in each second, so that T+O+C cursors have to count.
                log.append(tagged(&id, tag), time(index as i64 / 4));
            } else if log.latest(&id).is_some() {
                log.append(NewChange::delete(id.as_str()), time(index as i64 / 4));
            } else {
                continue;
            }
            if tag == "x" {
                shown.insert(id.clone());
            }
            wanted.insert(id, tag == "x");
            if polls {
                poll(&mut log, &mut copy);
            }
        }
        let total = poll(&mut log, &mut copy);
        wanted.retain(|id, _| shown.contains(id));
        prop_assert_eq!(copy, wanted);
        prop_assert_eq!(total, shown.len() as u64);
        prop_assert!(log.items(OrderBy::Created).len() >= shown.len());
    }
}
