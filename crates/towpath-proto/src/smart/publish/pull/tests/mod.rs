//! Pull requests against a log in memory.

mod waiting;

use crate::change::NewChange;
use crate::item::{Content, Item};
use crate::smart::publish::cursor::{CursorKind, LogTag};
use crate::smart::publish::log_read::{LogRead, LogReadResult};
use crate::smart::publish::pull::{Pull, PullError, PullPage, PullStep};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, change, log, pull, settings, time};
use crate::smart::publish::toc::MAX_OFFSET;
use crate::smart::wire::spec::OrderBy;

fn ids(page: &PullPage) -> Vec<&str> {
    page.changes.iter().map(|change| change.item.id.as_str()).collect()
}

const BOTH: [CursorKind; 2] = [CursorKind::Sequence, CursorKind::Toc];
const TOC: CursorKind = CursorKind::Toc;

/// "Pull Interface": since, until and max, along every order.
#[test]
fn ranges_along_every_order() {
    let mut log = log(&[("a", 10), ("b", 20), ("c", 20), ("a", 30), ("-b", 40)]);
    let cases = [
        ("order=created", "abc", false),
        ("order=-created", "cba", false),
        ("order=modified", "cab", false),
        ("order=-modified&max=1", "b", true),
        ("order=created&max=2", "ab", true),
        ("order=created&since=id:a", "bc", false),
        ("order=created&until=id:c", "ab", false),
        ("order=created&since=id:a&until=id:c", "b", false),
        ("order=-created&since=id:b", "a", false),
        ("order=-created&until=id:a", "cb", false),
        ("order=created&until=id:c&max=1", "a", true),
        // An empty range is not an error.
        ("order=created&since=id:c&until=id:a", "", false),
        ("since=time:20", "cab", false),
        ("since=time:21", "ab", false),
        ("until=time:30", "ca", false),
        ("until=time:29", "c", false),
        // A time includes its whole second, at both ends.
        ("order=created&since=time:20&until=time:20", "bc", false),
        ("order=-created&since=time:20", "cba", false),
        ("order=-created&since=time:19", "a", false),
        ("order=-created&until=time:20", "cb", false),
        ("order=-created&until=time:21", "", false),
    ];
    for kind in BOTH {
        for (query, expected, more) in cases {
            let page = pull(&mut log, kind, &format!("{query}&timeout=0")).unwrap();
            assert_eq!(ids(&page).concat(), expected, "{query}");
            assert_eq!((page.more, page.total), (more, 3), "{query}");
            assert_eq!(page.last_cursor.is_some(), !expected.is_empty(), "{query}");
        }
    }
}

/// "Pull Interface": a feed MUST support the cursor type, and a cursor MUST be provided for the last item.
#[test]
fn cursors_lead_through_every_order() {
    let mut log = log(&[("a", 10), ("b", 20), ("c", 20), ("d", 20), ("a", 30), ("-b", 40), ("e", 40)]);
    for kind in BOTH {
        for (order, expected) in
            [("created", "abcde"), ("-created", "edcba"), ("modified", "cdabe"), ("-modified", "ebadc")]
        {
            let (mut seen, mut since) = (String::new(), String::new());
            loop {
                let page = pull(&mut log, kind, &format!("order={order}&max=1&timeout=0{since}")).unwrap();
                seen.push_str(&ids(&page).concat());
                let cursor = page.last_cursor.unwrap();
                since = format!("&since=cursor:{cursor}");
                let before = format!("order={order}&timeout=0&until=cursor:{cursor}");
                let before = pull(&mut log, kind, &before).unwrap();
                let until = seen.len() - usize::from(!page.changes.is_empty());
                if !page.more {
                    break;
                }
                assert_eq!(ids(&before).concat(), &seen[..until], "{kind:?} {order}");
            }
            assert_eq!(seen, expected, "{kind:?} {order}");
        }
    }
}

/// An empty page echoes the cursor that it was asked from, and no other position.
#[test]
fn an_empty_page_echoes() {
    let mut log = log(&[("a", 10)]);
    for kind in BOTH {
        let cursor = pull(&mut log, kind, "").unwrap().last_cursor.unwrap();
        let page = pull(&mut log, kind, &format!("since=cursor:{cursor}")).unwrap();
        assert_eq!((page.changes.len(), page.last_cursor), (0, Some(cursor)));
        assert_eq!(pull(&mut log, kind, "since=time:11").unwrap().last_cursor, None);
        assert_eq!(pull(&mut MemoryLog::default(), kind, "").unwrap().last_cursor, None);
    }
}

/// "Cursors": both kinds are understood whichever a feed gives out.
#[test]
fn both_kinds_of_cursor_are_understood() {
    let mut log = log(&[("a", 10), ("b", 10), ("c", 11)]);
    for (given, asked) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let cursor = pull(&mut log, given, "max=2").unwrap().last_cursor.unwrap();
        assert_eq!(cursor.contains('_'), given == TOC);
        let page = pull(&mut log, asked, &format!("since=cursor:{cursor}")).unwrap();
        assert_eq!(ids(&page), ["c"]);
    }
}

/// "Cursors": a checksum that does not match makes the spec `time:{T}`.
#[test]
fn a_second_that_changed_is_sent_again() {
    let mut log = log(&[("z", 5), ("a", 10), ("b", 10), ("c", 10), ("d", 11)]);
    let cursor = pull(&mut log, TOC, "max=3").unwrap().last_cursor.unwrap();
    assert_eq!(cursor, format!("10_1_{}", crc32fast::hash(b"a_b")));
    let query = format!("since=cursor:{cursor}");
    assert_eq!(ids(&pull(&mut log, TOC, &query).unwrap()), ["c", "d"]);
    log.append(NewChange::put(Item::new("a")), time(20));
    assert_eq!(ids(&pull(&mut log, TOC, &query).unwrap()), ["b", "c", "d", "a"]);
    // In the descending order it is time:{T} as well, inclusive.
    let query = format!("order=-modified&since=cursor:{cursor}");
    assert_eq!(ids(&pull(&mut log, TOC, &query).unwrap()), ["c", "b", "z"]);
    let query = format!("until=cursor:{cursor}");
    assert_eq!(ids(&pull(&mut log, TOC, &query).unwrap()), ["z", "b", "c"]);
}

/// Equal ids at equal offsets prove nothing if an item changed within the second.
#[test]
fn a_change_within_the_second_is_not_missed() {
    let mut log = log(&[("a", 10)]);
    let cursor = pull(&mut log, TOC, "").unwrap().last_cursor.unwrap();
    log.append(NewChange::put(Item { title: Some("new".into()), ..Item::new("a") }), time(10));
    let page = pull(&mut log, TOC, &format!("since=cursor:{cursor}")).unwrap();
    assert_eq!(page.changes[0].item.title.as_deref(), Some("new"));
    // The next request reaches the end.
    let cursor = page.last_cursor.unwrap();
    assert_eq!(pull(&mut log, TOC, &format!("since=cursor:{cursor}")).unwrap().changes.len(), 0);
}

/// The check of a cursor proves that it is of this log, so another replica has its position.
#[test]
fn a_replica_that_is_behind_sends_nothing_again() {
    let mut log = log(&[("a", 10), ("b", 20)]);
    let feed = settings(CursorKind::Sequence);
    let mut ask = |order: &str, seq| {
        let by = if order == "created" { OrderBy::Created } else { OrderBy::Modified };
        let text = format!("order={order}&since=cursor:{}", feed.tag.cursor(by, seq));
        let query = PullQuery::parse(&text, &feed.limits).unwrap();
        log.run(&mut Pull::new(query, &feed, time(100)).of_replica(true))
    };
    for order in ["modified", "-modified", "created"] {
        assert_eq!(ask(order, 3), Err(PullError::Behind(3)), "{order}");
        assert!(ask(order, 2).is_ok() && ask(order, 1).is_ok(), "{order}");
    }
    // A cursor of another log is none of this one, also on a replica.
    let other = LogTag::new("another").cursor(OrderBy::Modified, 3);
    let query = PullQuery::parse(&format!("since=cursor:{other}"), &feed.limits).unwrap();
    let page = log.run(&mut Pull::new(query, &feed, time(100)).of_replica(true)).unwrap();
    assert_eq!(ids(&page), ["a", "b"]);
}

/// Cursors of another feed or order, truncated, beyond the head or invented: without a time, everything is sent again.
#[test]
fn invalid_cursors_degrade_to_the_start() {
    let mut log = log(&[("a", 10), ("b", 20)]);
    let own = settings(CursorKind::Sequence).tag;
    let good = own.cursor(OrderBy::Modified, 1);
    let cases = [
        LogTag::new("http://example.com/feeds/b#1").cursor(OrderBy::Modified, 1),
        LogTag::new("http://other.example/feeds/a#1").cursor(OrderBy::Modified, 1),
        own.cursor(OrderBy::Created, 1),
        own.cursor(OrderBy::Modified, 3),
        own.cursor(OrderBy::Modified, u64::MAX),
        good[..good.len() - 1].to_owned(),
        "8f4a1546".into(),
        "99999999999999_0_0".into(),
        format!("{}_0_0", i64::MAX),
        "%00".into(),
        "x".repeat(5000),
    ];
    for kind in BOTH {
        for cursor in &cases {
            let page = pull(&mut log, kind, &format!("since=cursor:{cursor}")).unwrap();
            assert_eq!(ids(&page), ["a", "b"], "{cursor}");
            // A position of this log, or a time, is none of another log.
            let known = cursor == &own.cursor(OrderBy::Modified, 3)
                || cursor == &own.cursor(OrderBy::Modified, u64::MAX)
                || cursor.ends_with("_0_0");
            assert_eq!(page.reset, !known, "{cursor}");
            let descending = pull(&mut log, kind, &format!("order=-modified&since=cursor:{cursor}")).unwrap();
            assert!(!descending.reset);
            let empty = pull(&mut MemoryLog::default(), kind, &format!("since=cursor:{cursor}")).unwrap();
            assert_eq!(empty.last_cursor == Some(own.cursor(OrderBy::Modified, 0)), !known, "{cursor}");
        }
        assert_eq!(ids(&pull(&mut log, kind, &format!("since=cursor:{good}")).unwrap()), ["b"]);
        // "Cursors": "treat the position spec as if it were time:{T}", of the future too.
        for (time, expected) in [(10, vec!["a", "b"]), (11, vec!["b"]), (20, vec!["b"]), (21, vec![])] {
            let page = pull(&mut log, kind, &format!("timeout=0&since=cursor:{time}_0_1")).unwrap();
            assert_eq!(ids(&page), expected, "{time}");
        }
    }
}

/// Any number of items may share a second: the work for a cursor is bounded, and a client reaches the end.
#[test]
fn a_crowded_second_is_bounded_work() {
    let mut log = MemoryLog::default();
    let crowd = usize::try_from(MAX_OFFSET).unwrap() + 2000;
    for n in 0..crowd as u64 {
        log.changes.push(change(n + 1, &format!("i{n}"), 10));
    }
    let (mut seen, mut since) = (0, String::new());
    loop {
        log.read = 0;
        let page = pull(&mut log, TOC, &format!("max=1000&timeout=0{since}")).unwrap();
        // The second is counted at most twice: to read `since`, and to issue the next cursor.
        assert!(log.read <= 2 * crowd + 4000, "{}", log.read);
        seen += page.changes.len();
        let cursor = page.last_cursor.unwrap();
        assert_eq!(cursor.contains('_'), seen <= crowd - 2000, "{cursor}");
        since = format!("&since=cursor:{cursor}");
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, crowd);
    // An offset beyond the limit costs no count.
    log.read = 0;
    let page = pull(&mut log, TOC, "max=1&since=cursor:10_18446744073709551615_1").unwrap();
    assert_eq!(ids(&page), ["i0"]);
    assert!(log.read < 10, "{}", log.read);
}

/// Large items make smaller pages, and a client reaches all of them.
#[test]
fn a_page_has_a_limit_in_bytes() {
    let mut feed = settings(CursorKind::Sequence);
    feed.limits.page_bytes = 25_000;
    let mut log = MemoryLog::default();
    for n in 0..10 {
        // One item is larger than a page, and must be sent nevertheless.
        let content = Content::new("text/plain", vec![b'x'; if n == 5 { 100_000 } else { 10_000 }]);
        log.append(NewChange::put(Item { content: Some(content), ..Item::new(n.to_string()) }), time(n));
    }
    let (mut seen, mut pages, mut since) = (String::new(), 0, String::new());
    loop {
        let query = PullQuery::parse(&format!("timeout=0{since}"), &feed.limits).unwrap();
        let page = log.run(&mut Pull::new(query, &feed, time(100))).unwrap();
        seen.push_str(&ids(&page).concat());
        pages += 1;
        since = format!("&since=cursor:{}", page.last_cursor.unwrap());
        if !page.more {
            break;
        }
    }
    assert_eq!((seen.as_str(), pages), ("0123456789", 4));
}

#[test]
fn an_unknown_id_is_not_found() {
    let error = pull(&mut log(&[("a", 10)]), TOC, "order=created&since=id:b").unwrap_err();
    assert_eq!(error, PullError::UnknownId("b".into()));
}

/// "HTTP Pull": timeout. A request is held only if its range is open, and gets a response after an append.
#[test]
fn long_polls_wait_for_an_append() {
    let feed = settings(CursorKind::Sequence);
    let mut log = log(&[("a", 10)]);
    let cursor = feed.tag.cursor(OrderBy::Modified, 1);
    let start = |query: &str| Pull::new(PullQuery::parse(query, &feed.limits).unwrap(), &feed, time(100));
    let run = |log: &mut MemoryLog, pull: &mut Pull, mut step: PullStep| loop {
        match step {
            PullStep::Read(read) => step = pull.handle_read(log.answer(&read), None).unwrap(),
            other => return other,
        }
    };
    let mut waiting = start(&format!("since=cursor:{cursor}&timeout=7"));
    let step = waiting.begin();
    let step = run(&mut log, &mut waiting, step);
    let PullStep::Wait { after: 1, deadline } = step else { panic!("{step:?}") };
    assert_eq!(deadline, time(107));
    log.append(NewChange::put(Item::new("b")), time(50));
    let mut waiting = Pull::new(waiting.waiting_query(), &feed, time(101));
    let step = waiting.begin();
    let PullStep::Page(page) = run(&mut log, &mut waiting, step) else { panic!() };
    assert_eq!((ids(&page), page.total), (vec!["b"], 2));

    let last = feed.tag.cursor(OrderBy::Modified, 2);
    for query in ["timeout=0", "order=-modified", "until=time:90"] {
        let mut pull =
            start(&format!("{query}&since=cursor:{}", if query.contains('-') { &cursor } else { &last }));
        let step = pull.begin();
        let PullStep::Page(page) = run(&mut log, &mut pull, step) else { panic!("{query}") };
        assert_eq!((page.changes.len(), page.last_cursor.is_some()), (0, true), "{query}");
    }
}

#[test]
fn an_unexpected_read_result_is_an_error() {
    let feed = settings(CursorKind::Sequence);
    let mut pull = Pull::new(PullQuery::parse("", &feed.limits).unwrap(), &feed, time(1));
    assert!(matches!(pull.begin(), PullStep::Read(LogRead::Head)));
    assert_eq!(pull.handle_read(LogReadResult::Position(1), None).unwrap_err(), PullError::UnexpectedResult);
}

/// A log whose deletions up to a horizon were let go: c, then the horizon at 5, then b's deletion and e.
fn log_with_horizon() -> MemoryLog {
    let mut log = log(&[("a", 10), ("b", 20), ("c", 20), ("d", 20), ("-a", 30), ("-b", 40), ("e", 40)]);
    log.horizon = 5;
    log
}

/// Reads along a log from a cursor, an item at a time. Returns the ids, and whether a reset was told.
fn walk(log: &mut MemoryLog, kind: CursorKind, since: &str) -> (String, bool) {
    let (mut seen, mut reset, mut since) = (String::new(), false, since.to_owned());
    loop {
        let query = format!("order=modified&max=1&timeout=0&since=cursor:{since}");
        let page = pull(log, kind, &query).unwrap();
        reset |= page.reset;
        seen += &ids(&page).concat();
        since = page.last_cursor.unwrap();
        if !page.more {
            return (seen, reset);
        }
    }
}

/// A client behind the horizon is told to begin anew, once, and then gets every live item once.
#[test]
fn a_client_behind_the_horizon_begins_anew() {
    for kind in BOTH {
        let mut log = log_with_horizon();
        let tag = settings(kind).tag;
        for (seq, expected, reset) in
            [(0, "cdbe", false), (2, "cdbe", true), (4, "cdbe", true), (5, "be", false)]
        {
            let since = tag.cursor(OrderBy::Modified, seq);
            assert_eq!(walk(&mut log, kind, &since), (expected.to_owned(), reset), "{kind:?} {seq}");
        }
        // Items keep their places by creation, so nothing is missed there. A time is a choice.
        for query in [
            format!("order=created&since=cursor:{}", tag.cursor(OrderBy::Created, 2)),
            "since=time:20".into(),
        ] {
            assert!(!pull(&mut log, kind, &format!("{query}&timeout=0")).unwrap().reset, "{query}");
        }
    }
}

/// A cursor of a page in front of the horizon counts until the horizon moves over what comes after it.
#[test]
fn a_replay_goes_on_until_the_horizon_moves() {
    for kind in BOTH {
        let mut log = log_with_horizon();
        let first = pull(&mut log, kind, "order=modified&max=1&timeout=0").unwrap();
        assert_eq!((ids(&first).concat(), first.reset), ("c".to_owned(), false));
        let cursor = first.last_cursor.unwrap();
        assert_eq!(walk(&mut log, kind, &cursor), ("dbe".to_owned(), false));
        // Now b's deletion goes, of which this client may have had the item.
        log.horizon = 6;
        assert_eq!(walk(&mut log, kind, &cursor), ("cde".to_owned(), true), "{kind:?}");
    }
}
