use proptest::prelude::*;
use serde_json::Value;

use super::testing::{TestSource, at, feed, items, site};
use super::*;
use crate::diffdelta::collapse::DeltaWindow;
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::{GlobalChain, GlobalPublisher, PendingDeltas, Proof, prove};
use crate::item::Item;

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

fn titled(id: &str, title: &str) -> Item {
    Item { title: Some(title.into()), ..Item::new(id) }
}

/// Sections 2.1 to 2.3: a mint changes the cursor, a carry does not. Head and latest agree on it.
fn check_invariants(p: &TestSource) {
    let (latest, head) = (json(&p.latest), json(&p.head));
    for name in ["cursor", "prev_cursor", "changed", "generated_at", "ttl_sec"] {
        assert_eq!(latest[name], head[name], "{name}");
    }
    assert_eq!(latest["changed"] == true, latest["cursor"] != latest["prev_cursor"]);
    assert_eq!(latest["cursor"], p.chain.cursor.to_string());
    assert_eq!(head["hash"], Cursor::of(&p.latest).to_string());
    assert_eq!(head["latest_url"], format!("/diff/{}/latest.json", p.id));
    assert_eq!(latest["cursor_basis"], "canonical_v1");
}

/// Section 2.2: the first successful run's `prev_cursor` is the zero cursor, also without items.
#[test]
fn the_first_success_mints_even_without_items() {
    let mut p = TestSource::new("ab");
    let never = json(&p.latest);
    assert_eq!(never["cursor"], Cursor::ZERO.to_string());
    assert_eq!(never["prev_cursor"], Cursor::ZERO.to_string());
    assert_eq!(never["changed"], false);
    assert_eq!(never["status"], "error");
    assert!(never["sources"]["ab"].get("last_ok_at").is_none());
    assert!(never["sources"]["ab"].get("stale_age_sec").is_none());
    check_invariants(&p);
    p.run(at(1));
    let first = json(&p.latest);
    assert_eq!(first["prev_cursor"], Cursor::ZERO.to_string());
    assert_eq!(first["changed"], true);
    assert_eq!(first["impact_reason"], "metadata_only");
    assert_eq!(first["sources"]["ab"]["impact_reason"], "metadata_only");
    assert_eq!(p.snapshots.len(), 1);
    check_invariants(&p);
    p.run(at(2));
    assert_eq!(p.snapshots.len(), 1, "the second run without items carries");
    check_invariants(&p);
}

/// Sections 1.3 and 2.2: the name and bytes of a snapshot, and its link to the one before.
#[test]
fn a_mint_writes_a_snapshot_and_a_carry_keeps_its_buckets() {
    let mut p = TestSource::new("ab");
    p.put(titled("a", "1"), at(1));
    p.run(at(1));
    let minted = json(&p.latest);
    let (entry, snapshot) = p.snapshots[0].clone();
    assert_eq!(snapshot, p.latest, "byte-identical");
    assert_eq!(entry.sha256, Cursor::of(&snapshot).hex());
    let name = format!("/archive/ab/2026/02/02/20260202T024001Z_{}.json", &entry.cursor[7..19]);
    assert_eq!(entry.url, name);
    // A replica at this state cannot rule out a later snapshot, and knows all earlier ones.
    for (stamp, may_come) in
        [("20260202T024001Z", true), ("20260202T024002Z", true), ("20260202T024000Z", false), ("x", false)]
    {
        assert_eq!(p.chain.may_publish_later(&format!("/archive/ab/2026/02/02/{stamp}_abc.json")), may_come);
    }
    assert!(DocumentChain::default().may_publish_later(&name));
    p.run(at(2));
    let carried = json(&p.latest);
    assert_eq!(carried["buckets"], minted["buckets"]);
    assert_eq!(carried["cursor"], minted["cursor"]);
    assert_ne!(carried["generated_at"], minted["generated_at"]);
    assert_eq!(carried["prev_hash"], Cursor::of(&snapshot).to_string());
    assert_eq!(carried["sources"]["ab"]["cursor"], minted["cursor"], "the real cursor");
    check_invariants(&p);
    assert_eq!(json(&p.head)["prev_generated_at"], entry.generated_at, "of the snapshot that is carried");
    p.put(titled("a", "2"), at(3));
    p.run(at(3));
    assert_eq!(json(&p.latest)["prev_cursor"], minted["cursor"]);
    assert_eq!(json(&p.head)["prev_generated_at"], entry.generated_at, "of the snapshot before");
    assert_eq!(p.snapshots[1].0.prev_cursor, entry.cursor);
    check_invariants(&p);
}

/// Section 3.2: equal changes give equal cursors, independent of the time of the runs.
#[test]
fn a_rerun_has_the_same_cursors() {
    let cursors = |delay: i64| {
        let mut p = TestSource::new("ab");
        p.put(titled("a", "1"), at(1));
        p.run(at(1 + delay));
        p.run(at(2 + delay));
        p.put(titled("a", "2"), at(3));
        p.delete("a", at(4));
        p.put(titled("b", "1"), at(4));
        p.run(at(4 + delay));
        p.snapshots.iter().map(|(s, _)| s.cursor.clone()).collect::<Vec<_>>()
    };
    assert_eq!(cursors(0), cursors(777));
}

/// Section 5: an error keeps the cursor, and the next success clears it. Neither mints.
#[test]
fn errors_keep_the_cursor_and_never_mint() {
    let mut p = TestSource::new("ab");
    p.put(titled("a", "1"), at(0));
    p.run(at(0));
    let cursor = p.chain.cursor;
    p.chain.health.failed("HTTP_503", Some(503));
    p.carry(at(100));
    let document = json(&p.latest);
    let status = &document["sources"]["ab"];
    assert_eq!(document["status"], "error");
    assert_eq!(document["changed"], false);
    assert_eq!(document["cursor"], cursor.to_string());
    assert_eq!(status["stale"], true);
    assert_eq!(status["stale_age_sec"], 100);
    assert_eq!(status["last_ok_at"], at(0).to_string());
    assert_eq!(status["error"], serde_json::json!({"code": "HTTP_503", "http_status": 503}));
    assert_eq!(status["cursor"], cursor.to_string());
    assert_eq!(status["prev_cursor"], cursor.to_string());
    check_invariants(&p);
    p.chain.health.disabled = true;
    p.carry(at(200));
    let document = json(&p.latest);
    assert_eq!(document["status"], "disabled");
    assert_eq!(document["sources"]["ab"]["stale"], true);
    assert_eq!(document["sources"]["ab"]["error"], serde_json::json!({"code": "DISABLED"}));
    p.run(at(300));
    let document = json(&p.latest);
    assert_eq!(document["status"], "ok");
    for gone in ["stale", "stale_age_sec", "last_ok_at", "error"] {
        assert!(document["sources"]["ab"].get(gone).is_none(), "{gone}");
    }
    assert_eq!((p.snapshots.len(), p.chain.cursor), (1, cursor));
}

/// Sections 4 and 9: buckets are sorted, an item is in a single bucket, and flagged items keep their change.
#[test]
fn buckets_are_sorted_and_flagged_is_exclusive() {
    let mut p = TestSource::new("ab");
    for n in 0..60 {
        // Repeated times and shuffled ids, so that time and id both decide the order.
        let published = at(n * 7 % 5);
        p.put(Item { published: Some(published), ..titled(&format!("{:02}", n * 17 % 60), "t") }, at(1));
    }
    p.run(at(1));
    let document = json(&p.latest);
    let mut seen = 0;
    for bucket in ["flagged", "new", "removed", "updated"] {
        let items = document["buckets"][bucket].as_array().unwrap();
        let keys: Vec<_> = items
            .iter()
            .map(|i| (i["published_at"].as_str(), i["source"].as_str(), i["id"].as_str()))
            .collect();
        assert!(keys.is_sorted(), "{bucket}");
        for item in items {
            let risky = item["risk"]["score"].as_f64().unwrap() >= 0.4;
            assert_eq!(risky, bucket == "flagged");
            assert_eq!(item["change"], "new");
        }
        seen += items.len();
    }
    assert_eq!(seen, 60);
    assert!(!document["buckets"]["flagged"].as_array().unwrap().is_empty());
    assert_eq!(document["sources"]["ab"]["delta_counts"]["new"], 60);
}

/// Section 1.3: no file name of a snapshot is used twice, even if the clock is set back.
#[test]
fn names_stay_distinct_and_times_never_go_back() {
    let mut chain = DocumentChain::default();
    let first = chain.name_time(Cursor::ZERO, at(5));
    let second = chain.name_time(Cursor::ZERO, at(5));
    let other = chain.name_time(Cursor([1; 32]), at(5));
    assert_eq!((first, second), (at(5), at(6)));
    // Another cursor is another file name: it needs no second of its own.
    assert_eq!(other, at(5));
    chain.generated_at = Some(at(9));
    assert_eq!(chain.name_time(Cursor::ZERO, at(2)), at(9));
}

#[test]
fn a_document_of_another_chain_is_not_carried() {
    let mut p = TestSource::new("ab");
    p.put(titled("a", "1"), at(1));
    p.run(at(1));
    // Too short for the stored range, and long enough but with other bytes there.
    for other in [&b""[..], &[b'x'; 100_000]] {
        assert!(p.source().carry(&p.chain, other, at(2)).is_err());
    }
}

#[test]
fn a_site_below_a_path_links_below_it() {
    let site = SiteUrl::new("https://example.com/data/");
    assert_eq!(site.link("/diff/x"), "/data/diff/x");
    assert_eq!(site.absolute("/diff/x"), "https://example.com/data/diff/x");
    assert_eq!(SiteUrl::new("http://h:1").link("/a"), "/a");
}

/// A document says something of every source, so where there are many, more deltas share one.
#[test]
fn the_limit_of_pending_deltas_grows_with_the_sources() {
    let mut source = TestSource::new("aa");
    (0..DeltaWindow::MAX_CHANGES).for_each(|number| source.put(titled(&format!("i{number}"), "1"), at(1)));
    let mut pending = PendingDeltas::new();
    pending.add(source.run_rendered(at(1)).1);
    let full = [0, 1, DeltaWindow::MAX_CHANGES, DeltaWindow::MAX_CHANGES + 1]
        .map(|sources| pending.is_full(sources));
    assert_eq!(full, [true, true, true, false]);
}

/// Section 1: the global feed merges the deltas of all sources, with its own chain.
#[test]
fn the_global_feed_follows_the_sources() {
    let (mut a, mut b) = (TestSource::new("aa"), TestSource::new("bb"));
    let (site, mut state, mut pending) = (site(), GlobalChain::default(), PendingDeltas::new());
    let global = GlobalPublisher { site: &site, ttl_sec: 1 };
    a.put(titled("x", "1"), at(1));
    a.put(titled("y", "1"), at(1));
    b.put(titled("x", "1"), at(1));
    pending.add(a.run_rendered(at(1)).1);
    pending.add(b.run_rendered(at(1)).1);
    let chains = [(a.source(), &a.chain), (b.source(), &b.chain)];
    let (published, next) =
        global.mint(&state, &chains, std::mem::take(&mut pending), Repeats::default(), at(1));
    state = next;
    let first = json(&published.latest);
    let count = |v: &Value| {
        v["buckets"].as_object().unwrap().values().map(|b| b.as_array().unwrap().len()).sum::<usize>()
    };
    assert_eq!(count(&first), 3);
    assert_eq!(first["sources"]["aa"]["cursor"], a.chain.cursor.to_string());
    assert_eq!(first["sources"]["aa"]["prev_cursor"], Cursor::ZERO.to_string());
    assert_eq!(first["sources_included"], serde_json::json!(["aa", "bb"]));
    // Raised from 1 to the schema's minimum.
    assert_eq!(first["ttl_sec"], 15);
    assert!(first.get("source_id").is_none() && first.get("status").is_none());
    assert!(published.snapshot.unwrap().path.starts_with("/archive/_global/2026/"));
    assert_eq!(prove(&published.latest, first["cursor"].as_str().unwrap()), Ok(Proof::Jcs));

    let before = a.chain.cursor;
    a.put(titled("x", "2"), at(2));
    a.delete("y", at(2));
    a.put(titled("z", "1"), at(2));
    a.run(at(2));
    a.put(titled("x", "3"), at(3));
    a.delete("z", at(3));
    a.run(at(3));
    // Simulates a crash before the global mint: the source's snapshots are read back.
    for (_, snapshot) in &a.snapshots[state.included[&feed("aa")].snapshots as usize..] {
        pending.recover(snapshot).unwrap();
    }
    let chains = [(a.source(), &a.chain), (b.source(), &b.chain)];
    let (published, next) = global.mint(&state, &chains, pending, Repeats::default(), at(3));
    let second = json(&published.latest);
    // x changed twice and counts once. z came and went between two global documents.
    assert_eq!(
        second["sources"]["aa"]["delta_counts"],
        serde_json::json!({"new": 0, "removed": 1, "updated": 1})
    );
    assert_eq!(second["sources"]["aa"]["prev_cursor"], before.to_string());
    assert_eq!(second["sources"]["bb"]["changed"], false);
    assert_eq!(second["prev_cursor"], first["cursor"]);
    assert_eq!(count(&second), 2);
    let chains = [(a.source(), &a.chain), (b.source(), &b.chain)];
    let (carried, _) = global.carry(&next, &chains, &published.latest, at(4)).unwrap();
    let third = json(&carried.latest);
    assert_eq!(third["cursor"], second["cursor"]);
    assert_eq!(third["prev_cursor"], second["cursor"]);
    assert_eq!(third["buckets"], second["buckets"]);
    assert_eq!(third["sources"]["aa"]["changed"], false);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sections 2.1 and 3.1: every cursor recomputes in both forms, and every chain is unbroken.
    #[test]
    fn every_minted_cursor_recomputes(batches in prop::collection::vec(prop::collection::vec(items(), 0..4), 1..4)) {
        let mut p = TestSource::new("ab");
        let mut now = 0;
        for batch in batches {
            now += 1;
            for item in batch {
                p.put(item, at(now));
            }
            p.run(at(now));
            check_invariants(&p);
        }
        let mut previous = Cursor::ZERO.to_string();
        for (entry, document) in &p.snapshots {
            for style in [crate::format::jcs::Style::Jcs, crate::format::jcs::Style::Python] {
                let cursor = crate::diffdelta::cursor::recompute(document, style).unwrap();
                prop_assert_eq!(cursor.to_string(), entry.cursor.clone());
            }
            prop_assert_eq!(&entry.prev_cursor, &previous);
            previous = entry.cursor.clone();
        }
    }
}

/// Readers who poll at `ttl_sec`, perhaps a cached copy, must all see `changed: true`.
#[test]
fn a_mint_is_fresh_until_ttl_and_caches_have_passed() {
    let mut p = TestSource::new("ab");
    assert!(!p.chain.is_fresh(300, at(0)), "nothing was minted");
    p.run(at(100));
    for (ttl_sec, last) in [(300, 459), (1, 174), (100_000, 3759)] {
        assert!(p.chain.is_fresh(ttl_sec, at(100)) && p.chain.is_fresh(ttl_sec, at(last)), "{ttl_sec}");
        assert!(!p.chain.is_fresh(ttl_sec, at(last + 1)) && !p.chain.is_fresh(ttl_sec, at(99)), "{ttl_sec}");
    }
}
