//! Following publishers whose clock goes back: cursors tell the order (section 2.2), and old copies are none of it.

use super::foreign::{ids, put};
use super::*;

/// Returns a publisher whose clock ran ahead for its first two mints, before and after it was corrected.
fn corrected(mints: i64) -> (TestSource, TestSource) {
    let mut p = TestSource::new("ab");
    for n in 0..2 {
        put(&mut p, &format!("early {n}"), 90_000 + n);
    }
    let before = p.clone();
    for n in 0..mints {
        put(&mut p, &format!("late {n}"), 100 + n);
    }
    (before, p)
}

/// A state that says nothing of the chain's first document, as those of earlier versions.
fn forget_origin(d: &mut Driver) {
    d.state.as_mut().unwrap().as_object_mut().unwrap().remove("origin");
}

#[test]
fn a_clock_that_goes_back_hides_nothing() {
    for has_archive in [true, false] {
        for mints in [1, 3] {
            let (before, after) = corrected(mints);
            let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
            d.has_archive = has_archive;
            d.pass(&before, at(90_010), &[]);
            d.notices.clear();
            d.changes.clear();
            // Without an archive, a gap before an older document may also be an old copy.
            let passes = if has_archive || mints == 1 { 1 } else { 6 };
            for pass in 1..=passes {
                assert_eq!((d.changes.len(), d.notices.len()), (0, 0), "{pass}: {:?}", d.notices);
                d.restart("/diff/ab");
                d.pass(&after, at(200), &[]);
            }
            let expected: &[&str] = match (has_archive, mints) {
                (true, 3) => &["late 0", "late 1", "late 2"],
                (false, 3) => &["late 2"],
                _ => &["late 0"],
            };
            assert_eq!(ids(&d), expected, "{:?}", d.notices);
            assert_eq!(d.notices.len(), usize::from(passes > 1), "{:?}", d.notices);
            assert_eq!(d.incomplete(), usize::from(passes > 1), "{:?}", d.notices);
            // The next document follows as usual.
            let mut later = after.clone();
            put(&mut later, "next", 300);
            d.pass(&later, at(100_000), &[]);
            assert_eq!(ids(&d).last(), Some(&"next"), "{:?}", d.notices);
        }
    }
}

#[test]
fn a_chain_that_begins_anew_with_an_earlier_clock_is_told() {
    for (has_archive, knows_origin) in [(true, true), (true, false), (false, true), (false, false)] {
        let (before, _) = corrected(0);
        let mut anew = TestSource::new("ab");
        put(&mut anew, "new", 100);
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.has_archive = has_archive;
        d.pass(&before, at(90_010), &[]);
        d.notices.clear();
        if !knows_origin {
            forget_origin(&mut d);
        }
        d.changes.clear();
        // Only the latest of two documents was seen without an archive.
        for pass in 1..=if knows_origin && has_archive { 1 } else { 6 } {
            assert_eq!((d.changes.len(), d.notices.len()), (0, 0), "{pass}: {:?}", d.notices);
            d.restart("/diff/ab");
            d.pass(&anew, at(200), &[]);
        }
        assert!(matches!(&d.notices[..], [Event::Reset(_)]), "{:?}", d.notices);
        assert_eq!(ids(&d), ["new"]);
    }
}

/// An old copy gives nothing, and one that stays is an error.
#[test]
fn an_old_copy_is_an_error_only_if_it_stays() {
    let mut p = three_mints();
    let before = p.clone();
    p.put(titled("a", "4"), at(40));
    p.run(at(40));
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    for n in 1..=8 {
        assert_eq!(d.failed(), 0, "{n}: {:?}", d.notices);
        d.restart("/diff/ab");
        // A copy now and then does not add up.
        let is_old = n % 4 != 0;
        d.pass(if is_old { &before } else { &p }, at(100), &[]);
    }
    for n in 1..=7 {
        d.restart("/diff/ab");
        d.pass(&before, at(100), &[]);
        assert_eq!(d.failed(), usize::try_from((n - 5).max(0)).unwrap(), "{n}: {:?}", d.notices);
    }
    assert_eq!((d.changes.len(), d.incomplete()), (4, 0), "{:?}", d.notices);
}

/// A cursor that came back (A, B, A): an old copy with B follows by its cursor alone.
#[test]
fn an_old_copy_that_follows_by_its_cursor_gives_nothing() {
    let mut p = TestSource::new("ab");
    for (n, version) in [(1, "1"), (2, "2"), (3, "1")] {
        p.put(titled("a", version), at(n * 10));
        p.run(at(n * 10));
    }
    let mut copies: Vec<TestSource> = vec![p.clone()];
    copies[0].snapshots.truncate(2);
    copies[0].latest = p.snapshots[1].1.clone();
    // The index may be a current one.
    let mut current = p.clone();
    current.latest.clone_from(&copies[0].latest);
    copies.push(current);
    for copy in &mut copies {
        copy.head = copy.latest.clone();
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.changes.len(), 3, "{:?}", d.notices);
        d.restart("/diff/ab");
        d.pass(copy, at(100), &[]);
        assert_eq!((d.changes.len(), d.notices.len()), (3, 0), "{:?}", d.notices);
    }
}
