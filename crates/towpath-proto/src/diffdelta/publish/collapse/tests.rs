use proptest::prelude::*;

use super::*;
use crate::diffdelta::publish::testing::{TestSource, at};
use crate::item::Content;

fn item(id: &str, title: &str) -> Item {
    Item { title: Some(title.into()), ..Item::new(id) }
}

fn kinds(deltas: &[Delta]) -> Vec<(DeltaKind, &str)> {
    let mut kinds: Vec<(DeltaKind, &str)> = deltas.iter().map(|d| (d.kind, d.item.id.as_str())).collect();
    kinds.sort_by_key(|(_, id)| *id);
    kinds
}

/// Sections 2.1 and 2.3: only what differs between the two ends of the window is a delta.
#[test]
fn a_window_yields_the_differences_between_its_ends() {
    let mut p = TestSource::new("ab");
    for (id, title) in [("changed", "1"), ("gone", "1"), ("back", "1"), ("same", "1")] {
        p.put(item(id, title), at(1));
    }
    p.run(at(2));
    p.put(item("changed", "2"), at(3));
    p.put(item("gone", "last known"), at(3));
    p.delete("gone", at(4));
    // `back` ends as it began, and `flash` comes and goes: neither is a delta.
    p.put(item("back", "2"), at(3));
    p.put(item("back", "1"), at(4));
    p.put(item("new", "1"), at(3));
    p.put(item("flash", "1"), at(3));
    p.delete("flash", at(4));
    let deltas = p.window().into_deltas();
    assert_eq!(
        kinds(&deltas),
        [(DeltaKind::Updated, "changed"), (DeltaKind::Removed, "gone"), (DeltaKind::New, "new")]
    );
    let gone = deltas.iter().find(|d| d.kind == DeltaKind::Removed).unwrap();
    assert_eq!(gone.item.title.as_deref(), Some("last known"), "the whole last known version");
    assert_eq!((gone.observed, gone.removed_at), (at(3), Some(at(4))));
    p.run(at(5));
    // Back with its first content, yet new: readers saw its removal.
    p.put(item("gone", "1"), at(6));
    p.delete("new", at(6));
    let deltas = p.window().into_deltas();
    assert_eq!(kinds(&deltas), [(DeltaKind::New, "gone"), (DeltaKind::Removed, "new")]);
    assert_eq!(deltas.iter().find(|d| d.kind == DeltaKind::Removed).unwrap().item, item("new", "1"));
}

#[test]
fn a_window_is_bounded_by_changes_and_by_bytes() {
    let mut p = TestSource::new("ab");
    p.put(Item { content: Some(Content::new("text/plain", vec![b'x'; 9 << 20])), ..Item::new("big") }, at(1));
    assert!(!p.window().is_full());
    // Deleted items count too: their last version stays in memory until the mint.
    p.delete("big", at(2));
    p.put(Item { content: Some(Content::new("text/plain", vec![b'x'; 9 << 20])), ..Item::new("two") }, at(3));
    assert!(p.window().is_full());
}

#[test]
fn the_reason_is_the_weightiest_difference() {
    let base = Item {
        title: Some("title".into()),
        content: Some(Content::new("text/plain", "word ".repeat(100))),
        ..Item::new("a")
    };
    let later = Item { updated: Some(at(1)), ..base.clone() };
    assert_eq!(reason(&base, &later), ImpactReason::TimestampOnly);
    let tagged = Item { tags: vec!["t".into()], ..later };
    assert_eq!(reason(&base, &tagged), ImpactReason::MetadataOnly);
    let titled = Item { title: Some("other".into()), ..tagged };
    assert_eq!(reason(&base, &titled), ImpactReason::TitleOnly);
    let typo = base.content.as_ref().unwrap().text().unwrap().replacen("word", "wird", 1);
    let edited = Item { content: Some(Content::new("text/plain", typo)), ..titled };
    assert_eq!(reason(&base, &edited), ImpactReason::MinorEdit);
    let rewritten = Item { content: Some(Content::new("text/plain", "other")), ..edited };
    assert_eq!(reason(&base, &rewritten), ImpactReason::Substantive);
    let summarised = Item { summary: Some("s".into()), ..base.clone() };
    // One character, but all of the summary: a minor edit changes a tenth at most.
    assert_eq!(reason(&base, &summarised), ImpactReason::Substantive);
}

#[test]
fn the_digest_of_no_items_is_not_the_zero_cursor() {
    assert!(!StateDigest::default().cursor().is_zero());
}

proptest! {
    /// The digest depends on the live items only, not on their history. The deltas of successive windows lead
    /// from state to state, at any cut of the log.
    #[test]
    fn deltas_lead_from_state_to_state(
        steps in prop::collection::vec((0u8..6, 0u8..4, prop::bool::weighted(0.2)), 1..60)
    ) {
        let mut p = TestSource::new("ab");
        let mut state: HashMap<String, ContentHash> = HashMap::new();
        for (n, (id, version, cut)) in steps.into_iter().enumerate() {
            let (id, now) = (format!("id{id}"), at(n as i64));
            match version {
                0 => p.delete(&id, now),
                version => p.put(item(&id, &version.to_string()), now),
            }
            if cut {
                for delta in p.run(now) {
                    prop_assert_eq!(state.get(&delta.item.id).copied(), delta.before);
                    match delta.kind {
                        DeltaKind::Removed => { state.remove(&delta.item.id); }
                        _ => { state.insert(delta.item.id.clone(), delta.hash); }
                    }
                }
                for (id, hash) in &state {
                    prop_assert!(p.is_live(id));
                    let latest = p.log.iter().rev().find(|c| &c.item.id == id).unwrap();
                    prop_assert_eq!(latest.hash, *hash);
                }
                let live = p.log.iter().filter(|c| p.is_live(&c.item.id)).map(|c| &c.item.id);
                prop_assert_eq!(live.collect::<std::collections::HashSet<_>>().len(), state.len());
            }
        }
        let mut direct = StateDigest::default();
        let mut through = StateDigest::default();
        for (id, hash) in &state {
            direct.add(pair(id, hash));
            through.add(pair(id, &ContentHash([7; 32])));
        }
        // Over other hashes to the same ones: the digest must not depend on the way.
        for (id, hash) in &state {
            through.subtract(pair(id, &ContentHash([7; 32])));
            through.add(pair(id, hash));
        }
        prop_assert_eq!(direct, through);
        prop_assert_eq!(p.chain.state_digest_for_tests(), direct);
    }
}
