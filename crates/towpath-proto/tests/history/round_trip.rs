//! Round trip: publish, follow, publish again yields identical items.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use towpath_proto::follow::StartFrom;
use towpath_proto::history::follow::HistoryFollower;
use towpath_proto::history::wire::Syntax;
use towpath_proto::{Item, Op};

use crate::common::items::any_item;
use crate::publisher::HistoryPublisher;
use crate::web::{FollowResult, drive, once, start};

fn follow(publisher: &HistoryPublisher, syntax: Syntax) -> FollowResult {
    let url = publisher.info.newest_url(syntax);
    let mut follower = HistoryFollower::new(&url, StartFrom::Beginning, None, once()).unwrap();
    let result = drive(&mut follower, &mut start(), start(), |request| Some(publisher.serve(request)));
    assert_eq!((&result.incomplete, &result.failed), (&vec![], &vec![]));
    result
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn items_come_back(
        items in prop::collection::vec((any_item(), 0..4_u8), 0..24), page in 1_usize..6, syntax in 0..3_usize,
    ) {
        let syntax = Syntax::ALL[syntax];
        let mut first = HistoryPublisher::new(page);
        for (number, (item, op)) in items.into_iter().enumerate() {
            let op = if op == 0 { Op::Delete } else { Op::Put };
            first.append(op, item, start() + Duration::from_secs(number as u64));
        }
        // Other page boundaries, which must not matter.
        let mut second = HistoryPublisher::new(page + 1);
        let result = follow(&first, syntax);
        for change in &result.changes {
            second.append(change.op, change.item.clone(), change.modified.unwrap());
        }
        let expected = first.items();
        let mut items: BTreeMap<String, Item> = BTreeMap::new();
        result.apply(&mut items);
        prop_assert_eq!(&items, &expected);
        let mut items = BTreeMap::new();
        follow(&second, syntax).apply(&mut items);
        prop_assert_eq!(&items, &expected);
    }
}
