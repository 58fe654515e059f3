use http::{HeaderMap, HeaderValue};

use super::*;
use crate::change::Op;
use crate::diffdelta::publish::testing::{TestSource, at};
use crate::diffdelta::wire::cursor::Cursor;
use crate::follow::{Exchange as _, FollowMode, ResponseHead};
use crate::item::Item;

mod clocks;
mod driver;
mod foreign;
mod publishers;
mod random;

use driver::{BASE, Driver, ResponseFault, TestSite, answer};

fn titled(id: &str, title: &str) -> Item {
    Item { title: Some(title.into()), ..Item::new(id) }
}

/// Returns a publisher with three versions of item `a`, each with its mint.
fn three_mints() -> TestSource {
    let mut p = TestSource::new("ab");
    for n in 1..=3 {
        p.put(titled("a", &n.to_string()), at(n * 10));
        p.run(at(n * 10));
    }
    p
}

#[test]
fn every_url_form_leads_to_the_feed() {
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
        assert_eq!(d.changes.len(), 3, "{address}: {:?} {:?}", d.requests, d.notices);
    }
}

/// Sections 2.5 and 6.2: no poll before `ttl_sec` has passed, then a conditional one.
#[test]
fn polls_no_more_often_than_ttl_and_conditionally() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    let asked = d.requests.len();
    let next = d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
    // `ttl_sec` is 60. Up to a tenth is added, so that followers do not poll in step.
    assert!(next >= at(50 + 60) && next <= at(50 + 66), "{next}");
    d.pass(&p, at(50 + 59), &[]);
    assert_eq!(d.requests.len(), asked);
    let request = d.follower.poll_request(Now::simulated(next)).unwrap();
    assert_eq!(request.headers["if-none-match"], format!("\"{}\"", p.chain.cursor));
    assert_eq!(answer(&p, &request).0, 304);
    d.send(&p, next, &request, ResponseFault::None);
    d.pass(&p, next, &[]);
    assert_eq!((d.requests.len(), d.changes.len()), (asked, 3));
}

/// Section 2.2: a document that follows the stored cursor needs no archive.
#[test]
fn the_next_document_is_delivered_without_the_archive() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    d.requests.clear();
    p.delete("a", at(60));
    p.run(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!(d.requests, [format!("{BASE}/diff/ab/head.json"), format!("{BASE}/diff/ab/latest.json")]);
    assert_eq!(d.ops().last(), Some(&(Op::Delete, "a")));
    assert_eq!(d.changes.last().unwrap().item, titled("a", "3"), "the whole last known version");
    assert_eq!(d.changes.last().unwrap().modified, Some(at(60)));
}

/// The head identifies the last snapshot, minted or carried.
#[test]
fn a_start_from_now_needs_no_index() {
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
        assert!(d.requests.iter().all(|url| !url.contains("/archive/")), "{:?}", d.requests);
    }
}

/// Section 2.2: a gap is repaired from the archive, in its order, also before a carried document.
#[test]
fn a_gap_is_filled_from_the_archive() {
    for carried in [false, true] {
        let mut p = TestSource::new("ab");
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
        let titles: Vec<_> = d.changes.iter().map(|c| c.item.title.as_deref().unwrap()).collect();
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
        d.changes.len()
    };
    assert_eq!(started(StartFrom::Beginning), 3);
    assert_eq!(started(StartFrom::Now), 0);
    assert_eq!(started(StartFrom::Time(at(20))), 2);
    assert_eq!(started(StartFrom::Time(at(21))), 1);
    assert_eq!(started(StartFrom::Time(at(31))), 0);
    assert_eq!(started(StartFrom::Position(p.snapshots[0].0.cursor.clone())), 2);
    assert_eq!(started(StartFrom::Position(Cursor::ZERO.to_string())), 3);
}

/// The position of any line is a resume point: nothing after it is lost or repeated.
#[test]
fn every_change_has_a_position_to_resume_from() {
    for (has_archive, mints) in [(true, 3), (false, 1)] {
        let mut p = TestSource::new("ab");
        for n in 0..mints {
            for id in ["a", "b", "c", "d"] {
                p.put(titled(id, &n.to_string()), at(n * 10));
            }
            p.run(at(n * 10));
        }
        for carried in [false, true] {
            if carried {
                p.run(at(40));
            }
            let follow = |from| {
                let mut d = Driver::new("/diff/ab", from);
                d.has_archive = has_archive;
                d.pass(&p, at(50), &[]);
                assert_eq!(d.incomplete() + d.failed(), 0, "{:?}", d.notices);
                d.changes
            };
            let all = follow(StartFrom::Beginning);
            assert_eq!(all.len(), 4 * usize::try_from(mints).unwrap());
            for (index, change) in all.iter().enumerate() {
                let rest = follow(StartFrom::Position(change.position.clone()));
                assert_eq!(rest, all[index + 1..], "{}", change.position);
            }
            // A start from a time has the same positions.
            let later = follow(StartFrom::Time(at(5)));
            assert!(!has_archive || later == all[4..]);
        }
    }
    let unknown = StartFrom::Position(format!("{}/7", Cursor::of(b"{}")));
    let mut anew = Driver::new("/diff/ab", unknown);
    anew.pass(&three_mints(), at(50), &[]);
    assert!(matches!(&anew.notices[..], [Event::Reset(_)]), "{:?}", anew.notices);
}

/// Section 2.1: the zero cursor means no content yet. The first document then follows it.
#[test]
fn a_source_that_never_succeeded_has_no_changes() {
    for from in [StartFrom::Beginning, StartFrom::Now] {
        let mut p = TestSource::new("ab");
        let mut d = Driver::new("/diff/ab", from);
        d.pass(&p, at(0), &[]);
        assert_eq!((d.changes.len(), d.notices.len()), (0, 0));
        p.put(titled("a", "1"), at(1));
        p.run(at(1));
        d.pass(&p, at(100), &[]);
        assert_eq!(d.changes.len(), 1, "{:?}", d.requests);
    }
}

/// Section 5: the failure of a source is not a change.
#[test]
fn a_failing_source_is_no_change() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    p.chain.health.failed("TIMEOUT", None);
    p.carry(at(60));
    d.pass(&p, at(200), &[]);
    assert_eq!((d.changes.len(), d.notices.len()), (3, 0));
}

#[test]
fn a_hole_in_the_archive_is_reported_and_following_continues() {
    let mut p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Position(p.snapshots[0].0.cursor.clone()));
    p.snapshots.remove(1);
    let dropped = p.snapshots.remove(0);
    p.put(titled("b", "1"), at(40));
    p.run(at(40));
    d.pass(&p, at(50), &[]);
    assert_eq!(d.incomplete(), 1, "{:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
    // Then a snapshot that the index lists, but that is gone.
    p.snapshots.insert(0, (dropped.0, Vec::new()));
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    p.snapshots[0].0.url = "/archive/gone.json".into();
    d.index = Some(p.index());
    p.snapshots[0].0.url = "/elsewhere.json".into();
    d.pass(&p, at(60), &[]);
    assert_eq!(d.incomplete(), 2, "the hole and the missing snapshot: {:?}", d.notices);
    assert_eq!(d.ops(), [(Op::Put, "a"), (Op::Put, "b")]);
}

/// The publisher lost its data and publishes other items under the same address.
#[test]
fn a_publisher_that_began_anew_is_told_before_its_changes() {
    for has_archive in [true, false] {
        let mut d = Driver::new("/diff/ab", StartFrom::Now);
        d.has_archive = has_archive;
        let mut old = three_mints();
        d.pass(&old, at(50), &[]);
        old.put(titled("gone", "1"), at(60));
        old.run(at(60));
        d.pass(&old, at(1000), &[]);
        let state = d.state.clone();
        let mut new = TestSource::new("ab");
        for n in 1..=2 {
            // A latest document alone has no earlier ones.
            if has_archive || n == 1 {
                new.put(titled("new", &n.to_string()), at(2000 + n));
                new.run(at(2000 + n));
            }
        }
        d.changes.clear();
        // Killed before the first change: the state still is that of the old chain, so the reset is told again.
        for _ in 0..2 {
            d.notices.clear();
            d.changes.clear();
            d.state = state.clone();
            d.restart("/diff/ab");
            d.pass(&new, at(9000), &[]);
            assert!(matches!(&d.notices[..], [Event::Reset(reset)] if reset.feed == "ab"), "{:?}", d.notices);
            assert_eq!(d.changes.len(), if has_archive { 2 } else { 1 });
            assert!(d.changes.iter().all(|change| change.item.id == "new"));
        }
        d.notices.clear();
        d.restart("/diff/ab");
        d.pass(&new, at(20_000), &[]);
        assert_eq!((d.notices.len(), d.changes.len()), (0, if has_archive { 2 } else { 1 }), "told once");
    }
}

#[test]
fn a_tampered_snapshot_is_refused_until_it_is_restored() {
    let mut p = three_mints();
    let whole = p.snapshots[1].1.clone();
    let text = String::from_utf8(whole.clone()).unwrap();
    p.snapshots[1].1 = text.replace("\"title\":\"2\"", "\"title\":\"X\"").into_bytes();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.changes.len(), d.failed()), (1, 1), "the SHA-256: {:?}", d.notices);
    // An attacker who can also change the index still cannot match the cursor.
    p.snapshots[1].0.sha256 = Cursor::of(&p.snapshots[1].1).hex();
    d.pass(&p, at(500), &[]);
    assert_eq!((d.changes.len(), d.failed()), (1, 2), "the cursor: {:?}", d.notices);
    p.snapshots[1] = (p.snapshots[1].0.clone(), whole.clone());
    p.snapshots[1].0.sha256 = Cursor::of(&whole).hex();
    d.pass(&p, at(5000), &[]);
    assert_eq!(d.changes.len(), 3);
    assert_eq!(d.incomplete(), 0);
}

#[test]
fn once_ends_after_one_pass_and_after_one_failure() {
    let p = three_mints();
    for (fault, told) in [
        (ResponseFault::None, 3),
        (ResponseFault::Lost, 0),
        (ResponseFault::Unavailable, 0),
        (ResponseFault::Shortened, 0),
    ] {
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        let options = FollowOptions { mode: FollowMode::CatchUp, ..FollowOptions::default() };
        d.follower = DiffDeltaFollower::new(&format!("{BASE}/diff/ab"), options).unwrap();
        d.pass(&p, at(50), &[fault]);
        assert!(d.follower.is_finished());
        assert_eq!((d.changes.len(), d.failed()), (told, usize::from(told == 0)), "{fault:?}");
    }
}

/// Answers every request with a page, as a hotel's portal or a catch-all route does.
struct Portal;

impl TestSite for Portal {
    fn answer(&self, _: &Request) -> (u16, HeaderMap, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("text/html"));
        (200, headers, b"<!doctype html><title>Sign in</title><p>Room number".to_vec())
    }
}

#[test]
fn a_page_in_place_of_a_document_is_named() {
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&Portal, at(0), &[]);
    let [Event::Failed(error)] = d.notices.as_slice() else { panic!("{:?}", d.notices) };
    let text = error.to_string();
    assert!(text.contains("an HTML page (text/html), which begins \"Sign in Room number\"; give"), "{text}");
}

#[test]
fn failures_back_off_and_respect_retry_after() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut now = at(0);
    let waits = |d: &mut Driver, now: &mut Timestamp| -> Vec<i64> {
        let mut wait = |_| {
            let before = *now;
            d.pass(&p, before, &[ResponseFault::Unavailable]);
            *now = d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
            now.as_second() - before.as_second()
        };
        (0..4).map(&mut wait).collect()
    };
    assert_eq!(waits(&mut d, &mut now), [2, 4, 8, 16], "before the first response");
    d.pass(&p, now, &[]);
    now = d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
    let ttl = waits(&mut d, &mut now)[0];
    assert!(ttl >= 15, "{ttl}");
    let request = d.follower.poll_request(Now::simulated(now)).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("7200"));
    d.follower.handle_head(
        Now::simulated(now),
        request.id,
        ResponseHead { status: 429, url: request.url, headers },
    );
    d.follower.handle_end(Now::simulated(now), request.id, Ok(()));
    assert_eq!(
        d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap().as_second() - now.as_second(),
        7200
    );
}

/// A cached index that is older than the delivered state is not reported as a loss.
#[test]
fn a_lagging_index_is_requested_again() {
    let mut p = three_mints();
    p.run(at(35));
    let behind = p.snapshots.pop().unwrap();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    assert_eq!((d.changes.len(), d.failed(), d.incomplete()), (0, 1, 0), "{:?}", d.notices);
    p.snapshots.push(behind);
    d.pass(&p, at(500), &[]);
    assert_eq!((d.changes.len(), d.incomplete()), (3, 0));
}

/// A publisher that began anew within the second of the last delivered document looks like a lagging index. A follower that
/// read its chain from the beginning knows better, and is told at once.
#[test]
fn a_publisher_that_began_anew_within_the_second_is_told_at_once() {
    for (delivered, minted) in [(30, 30), (30, 31), (10, 30)] {
        let mut p = three_mints();
        if delivered == 10 {
            // All within one second.
            p = TestSource::new("ab");
            for n in 1..=3 {
                p.put(titled("a", &n.to_string()), at(30));
                p.run(at(30));
            }
        }
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(50), &[]);
        assert_eq!(d.changes.len(), 3);
        let mut anew = TestSource::new("ab");
        for second in [30, minted] {
            anew.put(titled("new", &second.to_string()), at(second));
            anew.run(at(second));
        }
        d.restart("/diff/ab");
        d.pass(&anew, at(51), &[]);
        assert!(matches!(&d.notices[..], [Event::Reset(_)]), "{delivered}, {minted}: {:?}", d.notices);
        assert_eq!(d.ops().last(), Some(&(Op::Put, "new")));
    }
}

/// Followers in other languages keep what they do not know of a state, and move the rest on.
#[test]
fn what_is_known_of_the_second_of_another_document_does_not_count() {
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut p = TestSource::new("ab");
    let mint = |p: &mut TestSource, second: i64| {
        p.put(titled("a", &p.snapshots.len().to_string()), at(second));
        p.run(at(second));
    };
    mint(&mut p, 10);
    d.pass(&p, at(11), &[]);
    let mut before = None;
    for _ in 0..2 {
        before = Some(p.clone());
        mint(&mut p, 30);
    }
    let mut state = d.state.clone().unwrap();
    assert!(state["same_second"].is_object());
    state["cursor"] = p.chain.cursor.to_string().into();
    state["generated_at"] = at(30).to_string().into();
    d.state = Some(state);
    d.restart("/diff/ab");
    d.pass(&before.unwrap(), at(50), &[]);
    assert!(matches!(&d.notices[..], [Event::Failed(_)]), "a lagging server: {:?}", d.notices);
}

/// A follower that knows nothing of the second counts the lags, over one-shot follows too, and is told after several.
#[test]
fn one_shot_follows_do_not_wait_for_a_lagging_index_for_ever() {
    let mut d = Driver::new("/diff/ab", StartFrom::Now);
    d.pass(&three_mints(), at(50), &[]);
    let mut anew = TestSource::new("ab");
    anew.put(titled("new", "x"), at(30));
    anew.run(at(30));
    for n in 1..=6 {
        assert_eq!(d.ops(), [], "{n}: {:?}", d.notices);
        d.restart("/diff/ab");
        d.notices.clear();
        d.pass(&anew, at(50 + n), &[]);
    }
    assert!(matches!(&d.notices[..], [Event::Reset(_)]), "{:?}", d.notices);
    assert_eq!(d.ops().last(), Some(&(Op::Put, "new")));
}

/// A lagging server of several at a URL gives neither changes nor gaps, even within the same second.
#[test]
fn a_lagging_server_gives_no_changes() {
    // Within a second it looks like a lagging index, which is accepted after several attempts.
    for (second, passes) in [(30, 3), (35, 10)] {
        let mut p = TestSource::new("ab");
        let mint = |p: &mut TestSource, second: i64| {
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
            assert_eq!((d.changes.len(), d.incomplete()), (3, 0), "{second}: {:?}", d.notices);
        }
        mint(&mut p, 90_000);
        d.pass(&p, at(100_000), &[]);
        assert_eq!((d.changes.len(), d.incomplete()), (4, 0), "{second}: {:?}", d.notices);
    }
}

/// A follower that gets on waits as after a first failure.
#[test]
fn each_document_ends_the_backoff() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut now = at(50);
    for mints in 1..=2 {
        // Head, latest document, index, and one snapshot.
        let mut faults = vec![ResponseFault::None; 4];
        faults.push(ResponseFault::Unavailable);
        d.pass(&p, now, &faults);
        assert_eq!((d.changes.len(), d.failed()), (mints, mints), "{:?}", d.notices);
        let until = d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        assert_eq!(until.as_second() - now.as_second(), 2, "{mints}");
        now = until;
    }
}

#[test]
fn an_invalid_state_or_url_is_a_usage_error() {
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
