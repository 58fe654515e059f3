//! Tests of result set management against a model: a plain list.

use proptest::prelude::*;

use super::*;
use crate::push::xmpp::wire::rsm::RsmBounds;

fn bounds(answer: &Element) -> RsmBounds {
    RsmBounds::read(answer.child("pubsub", ns::PUBSUB).unwrap().child("set", ns::RSM).unwrap())
}

fn items(harness: &mut ComponentHarness, node: &str, set: &str) -> (Vec<String>, RsmBounds) {
    let answer = harness.pubsub(
        "get",
        &format!("<items node='{node}'/><set xmlns='http://jabber.org/protocol/rsm'>{set}</set>"),
    );
    (item_ids(&answer), bounds(&answer))
}

/// Returns a log of puts and deletions of a few ids, and the order of its items.
fn harness(changes: &[(u8, bool)], kind: CursorKind) -> ComponentHarness {
    let mut harness = ComponentHarness::new(kind);
    for (id, gone) in changes {
        if *gone && harness.log.latest(&format!("i{id}")).is_some() {
            harness.append(NewChange::delete(format!("i{id}")));
        } else {
            harness.put(&format!("i{id}"), "x");
        }
    }
    harness
}

fn model(harness: &ComponentHarness, node: &str) -> Vec<String> {
    let by = if node.contains("created") {
        crate::smart::spec::OrderBy::Created
    } else {
        crate::smart::spec::OrderBy::Modified
    };
    let mut ids: Vec<String> = harness.log.items(by).into_iter().map(|change| change.item.id).collect();
    if node.contains("=-") {
        ids.reverse();
    }
    ids
}

const NODES: [&str; 4] = [
    "comments?order=created",
    "comments?order=modified",
    "comments?order=-created",
    "comments?order=-modified",
];

fn kinds() -> impl Strategy<Value = CursorKind> {
    prop_oneof![Just(CursorKind::Sequence), Just(CursorKind::Toc)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// XEP-0059, 2.3 and 2.4: pages of any size, in both directions, give the whole list in order.
    #[test]
    fn pages_are_the_whole_in_both_directions(
        changes in proptest::collection::vec((0_u8..12, any::<bool>()), 0..40),
        node in 0_usize..4, max in 1_usize..7, kind in kinds(),
    ) {
        let mut harness = harness(&changes, kind);
        let node = NODES[node];
        let whole = model(&harness, node);
        let (mut forward, mut set) = (Vec::new(), format!("<max>{max}</max>"));
        loop {
            let (ids, bounds) = items(&mut harness, node, &set);
            prop_assert_eq!(bounds.count, Some(whole.len() as u64));
            prop_assert_eq!(ids.is_empty(), bounds.first.is_none() && bounds.last.is_none());
            if let Some(index) = bounds.index {
                prop_assert_eq!(index as usize, forward.len());
            }
            forward.extend(ids);
            let Some(last) = bounds.last else { break };
            set = format!("<max>{max}</max><after>{last}</after>");
        }
        prop_assert_eq!(&forward, &whole);

        let (mut backward, mut set) = (Vec::<String>::new(), format!("<max>{max}</max><before/>"));
        loop {
            let (mut ids, bounds) = items(&mut harness, node, &set);
            if let Some(index) = bounds.index {
                prop_assert_eq!(index as usize + ids.len() + backward.len(), whole.len());
            }
            ids.append(&mut backward);
            backward = ids;
            let Some(first) = bounds.first else { break };
            set = format!("<max>{max}</max><before>{first}</before>");
        }
        prop_assert_eq!(&backward, &whole);
    }

    /// XEP-0059, 2.6: a page by index. "the responding entity MUST return an empty page" beyond the last item.
    #[test]
    fn a_page_by_index_begins_there(
        changes in proptest::collection::vec((0_u8..12, any::<bool>()), 0..40),
        node in 0_usize..4, index in 0_usize..14, max in 0_usize..7, kind in kinds(),
    ) {
        let mut harness = harness(&changes, kind);
        let node = NODES[node];
        let whole = model(&harness, node);
        let set = format!("<max>{max}</max><index>{index}</index>");
        let (ids, bounds) = items(&mut harness, node, &set);
        let rest = whole.get(index..).unwrap_or_default();
        prop_assert_eq!(&ids, &rest[..rest.len().min(max)]);
        prop_assert_eq!(bounds.index, (!ids.is_empty()).then_some(index as u64));
        prop_assert_eq!(bounds.count, Some(whole.len() as u64));
    }

    /// A range between two UIDs equals the list between them.
    #[test]
    fn a_range_is_what_stands_between(
        changes in proptest::collection::vec((0_u8..12, any::<bool>()), 1..40),
        node in 0_usize..4, ends in (0_usize..12, 0_usize..12),
    ) {
        let mut harness = harness(&changes, CursorKind::Sequence);
        let node = NODES[node];
        let whole = model(&harness, node);
        let uid = |harness: &mut ComponentHarness, index: usize| {
            let (_, bounds) = items(harness, node, &format!("<max>{}</max>", index + 1));
            bounds.last.unwrap()
        };
        let (from, to) = (ends.0.min(whole.len() - 1), ends.1.min(whole.len() - 1));
        let (after, before) = (uid(&mut harness, from), uid(&mut harness, to));
        let (ids, _) = items(&mut harness, node, &format!("<after>{after}</after><before>{before}</before>"));
        prop_assert_eq!(ids, whole.get(from + 1..to).unwrap_or_default());
        let (ids, _) = items(&mut harness, node, &format!("<max>2</max><after>{after}</after><before/>"));
        let rest = &whole[from + 1..];
        prop_assert_eq!(ids, &rest[rest.len().saturating_sub(2)..]);
    }
}

/// An index far from both ends would cost reading all items before it (XEP-0059, 2.6: "MAY return an error").
#[test]
fn an_index_far_from_both_ends_is_refused() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..20_100 {
        harness.log.append(NewChange::put(crate::item::Item::new(format!("i{number}"))), harness.now);
    }
    for index in [10_000, 10_101, 20_099] {
        let set = format!("<max>1</max><index>{index}</index>");
        assert_eq!(items(&mut harness, "comments?order=created", &set).0, [format!("i{index}")]);
    }
    let far = harness.pubsub(
        "get",
        "<items node='comments'/><set xmlns='http://jabber.org/protocol/rsm'><index>10050</index></set>",
    );
    assert_eq!(error_of(&far).0, "feature-not-implemented");
}

/// XEP-0060, 6.5.8: single items by id, several in one request.
#[test]
fn single_items_by_id() {
    let mut harness = harness(&[(1, false), (2, false), (3, false), (2, true)], CursorKind::Sequence);
    let mut ask = |ids: &[&str]| {
        let ids: String = ids.iter().map(|id| format!("<item id='{id}'/>")).collect();
        harness.pubsub("get", &format!("<items node='comments'>{ids}</items>"))
    };
    assert_eq!(item_ids(&ask(&["i3", "i1", "i3", "unknown"])), ["i3", "i1"]);
    // "stripped of content and marked as deleted"
    assert!(ask(&["i2"]).to_xml().contains("deleted-entry"));
    assert_eq!(error_of(&ask(&["unknown"])).0, "item-not-found");
}

/// XEP-0059, 2.7: "the requesting entity may request a page of size zero", which gets the count alone.
#[test]
fn counting_only() {
    let mut harness = harness(&[(1, false), (2, false), (1, true)], CursorKind::Sequence);
    let (ids, bounds) = items(&mut harness, NODES[0], "<max>0</max>");
    assert_eq!((ids.len(), bounds), (0, RsmBounds { count: Some(2), ..RsmBounds::default() }));
}

/// "The client can submit a UID containing any type (e.g. id or time)": inclusive for a time.
#[test]
fn other_kinds_of_positions() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for id in ["a", "b", "c", "d"] {
        harness.put(id, "x");
    }
    let (ids, _) = items(&mut harness, NODES[0], "<after>id:b</after>");
    assert_eq!(ids, ["c", "d"]);
    let (ids, _) = items(&mut harness, NODES[0], "<before>id:c</before>");
    assert_eq!(ids, ["a", "b"]);
    let (ids, _) = items(&mut harness, NODES[1], "<after>time:1000002</after>");
    assert_eq!(ids, ["b", "c", "d"]);
    let (ids, _) = items(&mut harness, NODES[1], "<before>time:1000002</before>");
    assert_eq!(ids, ["a", "b"]);
    // "processing SHOULD gracefully degrade": a malformed maximum is ignored.
    let (ids, _) = items(&mut harness, NODES[1], "<after>cursor:nonsense</after>");
    assert_eq!(ids.len(), 4);
}

/// "Items are never truly deleted, but stripped of content and marked as deleted."
#[test]
fn a_deleted_item_is_there_without_its_content() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.put("a", "secret text");
    harness.append(NewChange::delete("a"));
    let answer = harness.pubsub("get", "<items node='comments'/>");
    assert_eq!(item_ids(&answer), ["a"]);
    let xml = answer.to_xml();
    assert!(xml.contains("deleted-entry") && !xml.contains("secret text"), "{xml}");
}

/// A page is cut when the stanza is full, and paging continues from there in both directions.
#[test]
fn large_items_make_short_pages() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let mut harness = ComponentHarness::new(kind);
        for number in 0..20 {
            harness.put(&format!("i{number:02}"), &"x".repeat(if number == 7 { 200_000 } else { 20_000 }));
        }
        let whole = model(&harness, NODES[1]);
        let (mut forward, mut set, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let (ids, bounds) = items(&mut harness, NODES[1], &set);
            forward.extend(ids);
            pages += 1;
            let Some(last) = bounds.last else { break };
            set = format!("<after>{last}</after>");
        }
        assert_eq!(forward, whole);
        assert!(pages > 5);
        let (mut backward, mut set) = (Vec::new(), "<before/>".to_owned());
        loop {
            let (ids, bounds) = items(&mut harness, NODES[1], &set);
            backward.splice(0..0, ids);
            let Some(first) = bounds.first else { break };
            set = format!("<before>{first}</before>");
        }
        assert_eq!(backward, whole);
    }
}
