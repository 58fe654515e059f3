use http::{HeaderMap, HeaderValue};

use super::*;
use crate::change::Op;
use crate::diffdelta::Cursor;
use crate::diffdelta::testing::{Publisher, at};
use crate::item::Item;

mod driver;
mod foreign;
mod random;

use driver::{BASE, Driver, Fault, answer};

fn titled(id: &str, title: &str) -> Item {
    Item { title: Some(title.into()), ..Item::new(id) }
}

/// A publisher whose item `a` went through three versions, one mint each.
fn three_mints() -> Publisher {
    let mut p = Publisher::new("ab");
    for n in 1..=3 {
        p.put(titled("a", &n.to_string()), at(n * 10));
        p.run(at(n * 10));
    }
    p
}

#[test]
fn every_address_leads_to_the_feed() {
    let p = three_mints();
    for address in [
        "",
        "/",
        "/.well-known/diffdelta.json",
        "/diff/ab",
        "/diff/ab/",
        "/diff/ab/head.json",
        "/diff/ab/latest.json",
        "/diff/source/ab",
        "/diff/source/ab/latest.json",
    ] {
        let mut d = Driver::new(address, StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.told.len(), 3, "{address}: {:?} {:?}", d.asked, d.notices);
    }
}

/// Sections 2.5 and 6.2: no poll before `ttl_sec` is over, and then a 304 without a body.
#[test]
fn polls_no_more_often_than_ttl_and_conditionally() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    let asked = d.asked.len();
    let next = d.follower.poll_timeout().unwrap();
    assert!(next >= at(50 + 60) && next <= at(50 + 66), "{next}");
    d.pass(&p, at(50 + 59), &[]);
    assert_eq!(d.asked.len(), asked);
    let request = d.follower.poll_request(next).unwrap();
    assert_eq!(request.headers["if-none-match"], format!("\"{}\"", p.chain.cursor));
    assert_eq!(answer(&p, &request).0, 304);
    d.send(&p, next, &request, Fault::None);
    d.pass(&p, next, &[]);
    assert_eq!((d.asked.len(), d.told.len()), (asked, 3));
}

/// Section 2.2: a document that follows on the stored cursor needs no archive.
#[test]
fn the_next_document_is_taken_as_it_is() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    d.asked.clear();
    p.delete("a", at(60));
    p.run(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!(d.asked, [format!("{BASE}/diff/ab/head.json"), format!("{BASE}/diff/ab/latest.json")]);
    assert_eq!(d.ops().last(), Some(&(Op::Delete, "a")));
    assert_eq!(d.told.last().unwrap().item, titled("a", "3"), "whole, as last known");
    assert_eq!(d.told.last().unwrap().modified, Some(at(60)));
}

/// The head tells which snapshot is the last, minted or carried.
#[test]
fn who_begins_now_needs_no_index() {
    for carried in [false, true] {
        let mut p = three_mints();
        if carried {
            p.run(at(40));
        }
        let mut d = Driver::new("/diff/ab", StartFrom::Now);
        d.pass(&p, at(50), &[]);
        p.put(titled("b", "1"), at(60));
        p.run(at(60));
        d.pass(&p, at(200), &[]);
        assert_eq!(d.ops(), [(Op::Put, "b")]);
        assert!(d.asked.iter().all(|url| !url.contains("/archive/")), "{:?}", d.asked);
    }
}

/// Section 2.2: a gap is repaired through the archive, in its order, also behind a carried document.
#[test]
fn a_gap_is_filled_from_the_archive() {
    for carried in [false, true] {
        let mut p = Publisher::new("ab");
        p.put(titled("a", "0"), at(1));
        p.run(at(1));
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(1), &[]);
        for n in 1..=3 {
            p.put(titled("a", &n.to_string()), at(n * 10));
            p.run(at(n * 10));
        }
        if carried {
            p.run(at(40));
        }
        d.pass(&p, at(100), &[]);
        let titles: Vec<_> = d.told.iter().map(|c| c.item.title.as_deref().unwrap()).collect();
        assert_eq!(titles, ["0", "1", "2", "3"]);
        assert!(d.notices.is_empty(), "{:?}", d.notices);
        assert_eq!(d.state.as_ref().unwrap()["cursor"], p.chain.cursor.to_string());
    }
}

#[test]
fn all_four_starts() {
    let mut p = three_mints();
    p.run(at(40));
    let started = |from: StartFrom| {
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.state.as_ref().unwrap()["cursor"], p.chain.cursor.to_string());
        d.told.len()
    };
    assert_eq!(started(StartFrom::Beginning), 3);
    assert_eq!(started(StartFrom::Now), 0);
    assert_eq!(started(StartFrom::Time(at(20))), 2);
    assert_eq!(started(StartFrom::Time(at(21))), 1);
    assert_eq!(started(StartFrom::Time(at(31))), 0);
    assert_eq!(started(StartFrom::Position(p.snapshots[0].0.cursor.clone())), 2);
    assert_eq!(started(StartFrom::Position(Cursor::ZERO.to_string())), 3);
}

/// Section 2.1: the zero cursor says that there is nothing yet; the first document then follows on it.
#[test]
fn a_source_that_never_succeeded_has_nothing_to_tell() {
    for from in [StartFrom::Beginning, StartFrom::Now] {
        let mut p = Publisher::new("ab");
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(0), &[]);
        assert_eq!((d.told.len(), d.notices.len()), (0, 0));
        p.put(titled("a", "1"), at(1));
        p.run(at(1));
        d.pass(&p, at(100), &[]);
        assert_eq!(d.told.len(), 1, "{:?}", d.asked);
    }
}

/// Section 5: an error or a disabled source is no change.
#[test]
fn a_failing_source_is_no_change() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    p.chain.health.failed("TIMEOUT", None);
    p.carry(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!((d.told.len(), d.notices.len()), (3, 0));
}

#[test]
fn what_the_archive_lost_is_reported_and_following_goes_on() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Position(p.snapshots[0].0.cursor.clone()));
    p.snapshots.remove(1);
    let dropped = p.snapshots.remove(0);
    p.put(titled("b", "1"), at(40));
    p.run(at(40));
    d.pass(&p, at(50), &[]);
    assert_eq!(d.incomplete(), 1, "{:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
    // A snapshot that the index lists and that is gone all the same.
    p.snapshots.insert(0, (dropped.0, Vec::new()));
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    p.snapshots[0].0.url = "/archive/gone.json".into();
    d.index = Some(p.index());
    p.snapshots[0].0.url = "/elsewhere.json".into();
    d.pass(&p, at(60), &[]);
    assert_eq!(d.incomplete(), 2, "the hole and the missing snapshot: {:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
}

#[test]
fn a_tampered_snapshot_is_refused_until_it_is_whole_again() {
    let mut p = three_mints();
    let whole = p.snapshots[1].1.clone();
    let text = String::from_utf8(whole.clone()).unwrap();
    p.snapshots[1].1 = text.replace("\"title\":\"2\"", "\"title\":\"X\"").into_bytes();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.told.len(), d.failed()), (1, 1), "the SHA-256: {:?}", d.notices);
    // Somebody who can change the index as well still cannot change what a cursor stands for.
    p.snapshots[1].0.sha256 = Cursor::of(&p.snapshots[1].1).hex();
    d.pass(&p, at(500), &[]);
    assert_eq!((d.told.len(), d.failed()), (1, 2), "the cursor: {:?}", d.notices);
    p.snapshots[1] = (p.snapshots[1].0.clone(), whole.clone());
    p.snapshots[1].0.sha256 = Cursor::of(&whole).hex();
    d.pass(&p, at(5000), &[]);
    assert_eq!(d.told.len(), 3);
    assert_eq!(d.incomplete(), 0);
}

#[test]
fn once_ends_after_one_pass_and_after_one_failure() {
    let p = three_mints();
    for (fault, told) in [(Fault::None, 3), (Fault::Lost, 0), (Fault::Unavailable, 0), (Fault::Shortened, 0)]
    {
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        let options = FollowOptions { once: true, ..FollowOptions::default() };
        d.follower = DiffDeltaFollower::new(&format!("{BASE}/diff/ab"), options).unwrap();
        d.pass(&p, at(50), &[fault]);
        assert!(d.follower.is_finished());
        assert_eq!((d.told.len(), d.failed()), (told, usize::from(told == 0)), "{fault:?}");
    }
}

#[test]
fn failures_are_retried_later_and_later_or_when_the_publisher_says() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut now = at(0);
    let waits = |d: &mut Driver, now: &mut Timestamp| -> Vec<i64> {
        let mut wait = |_| {
            let before = *now;
            d.pass(&p, before, &[Fault::Unavailable]);
            *now = d.follower.poll_timeout().unwrap();
            now.as_second() - before.as_second()
        };
        (0..4).map(&mut wait).collect()
    };
    assert_eq!(waits(&mut d, &mut now), [2, 4, 8, 16], "nothing is known of the publisher yet");
    d.pass(&p, now, &[]);
    now = d.follower.poll_timeout().unwrap();
    let ttl = waits(&mut d, &mut now)[0];
    assert!(ttl >= 15, "{ttl}");
    let request = d.follower.poll_request(now).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("7200"));
    d.follower.handle_head(now, request.id, ResponseHead { status: 429, url: request.url, headers });
    d.follower.handle_end(now, request.id, Ok(()));
    assert_eq!(d.follower.poll_timeout().unwrap().as_second() - now.as_second(), 7200);
}

/// An index from a cache, older than what was handed over, is not taken for a loss.
#[test]
fn an_index_that_lags_is_asked_again() {
    let mut p = three_mints();
    p.run(at(35));
    let behind = p.snapshots.pop().unwrap();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.told.len(), d.failed(), d.incomplete()), (0, 1, 0), "{:?}", d.notices);
    p.snapshots.push(behind);
    d.pass(&p, at(500), &[]);
    assert_eq!((d.told.len(), d.incomplete()), (3, 0));
}

/// Of several servers at one address one may be behind: that is neither news nor a gap, within a second neither.
#[test]
fn a_server_that_is_behind_is_no_news() {
    // Within a second it cannot be told from an index that lags, which is believed in the end.
    for (second, passes) in [(30, 3), (35, 10)] {
        let mut p = Publisher::new("ab");
        let mint = |p: &mut Publisher, second: i64| {
            p.put(titled("a", &p.snapshots.len().to_string()), at(second));
            p.run(at(second));
        };
        mint(&mut p, 10);
        mint(&mut p, 30);
        let before = p.clone();
        mint(&mut p, second);
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        for n in 1..=passes {
            d.pass(&before, at(n * 4000), &[]);
            assert_eq!((d.told.len(), d.incomplete()), (3, 0), "{second}: {:?}", d.notices);
        }
        mint(&mut p, 90_000);
        d.pass(&p, at(100_000), &[]);
        assert_eq!((d.told.len(), d.incomplete()), (4, 0), "{second}: {:?}", d.notices);
    }
}

#[test]
fn a_state_or_an_address_that_is_none_is_the_users_fault() {
    let options = FollowOptions { state: Some(serde_json::json!({"cursor": 7})), ..FollowOptions::default() };
    assert!(matches!(DiffDeltaFollower::new("http://h/diff/ab", options), Err(FollowError::Usage(_))));
    // Section 2.1: `sha256:<64-char lowercase hex>`.
    for position in
        ["garbage", "1700000000", "<1@feed>", "sha256:ab", &Cursor::ZERO.to_string().to_uppercase()]
    {
        let from = StartFrom::Position(position.to_owned());
        let options = FollowOptions { from, ..FollowOptions::default() };
        let refused = DiffDeltaFollower::new("http://h/diff/ab", options).err();
        assert!(matches!(refused, Some(FollowError::Usage(_))), "{position}: {refused:?}");
    }
    let options = FollowOptions::default();
    assert!(matches!(DiffDeltaFollower::new("nowhere", options), Err(FollowError::Usage(_))));
}
