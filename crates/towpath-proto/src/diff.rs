//! What changed between what is known of a source and what a poll found: a pure function.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::change::NewChange;
use crate::item::{ContentHash, Item};

/// What is known of one item: its content's hash, or `None` for an item that was deleted.
pub type Known = HashMap<String, Option<ContentHash>>;

/// What a polled document says about items that are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// It shows the latest items only; absence says nothing.
    Window,
    /// It shows every item; absence means removal.
    Complete,
}

/// When a complete listing that lost items is disbelieved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guard {
    /// The largest share of the known items that one poll may remove, from 0 to 1.
    pub max_removed: f64,
    /// Listings of fewer known items than this are always believed.
    pub min_items: usize,
}

impl Default for Guard {
    /// Half of the items, from 10 items on.
    fn default() -> Self {
        Self { max_removed: 0.5, min_items: 10 }
    }
}

/// What a poll changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Diff {
    /// New, updated and removed items in the order in which to append them: puts oldest first, then
    /// deletions in the order of their ids.
    pub changes: Vec<NewChange>,
    /// How many items are new, those that came back after a deletion included.
    pub new: usize,
    /// How many known items have another content.
    pub updated: usize,
    /// How many items are gone.
    pub removed: usize,
    /// How many items are as they were.
    pub unchanged: usize,
    /// What was left out, and why: duplicate ids, ids that cannot be kept.
    pub problems: Vec<String>,
}

/// Why a poll is disbelieved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the listing lost {removed} of {known} known items, more than the guard allows")]
pub struct GuardError {
    /// How many known items are missing.
    pub removed: usize,
    /// How many items are known.
    pub known: usize,
}

/// Compares a polled document's items with what is known.
///
/// `polled` is in the document's order; `newest_first` says which way that runs where dates do not tell.
/// Fails, and removes nothing, where `guard` disbelieves a complete listing.
pub fn diff(
    known: &Known,
    polled: Vec<Item>,
    newest_first: bool,
    listing: Listing,
    guard: Guard,
) -> Result<Diff, GuardError> {
    let mut found = Diff::default();
    let items = distinct(polled, &mut found.problems);
    let removed = match listing {
        Listing::Window => Vec::new(),
        Listing::Complete => missing(known, &items, guard)?,
    };
    for item in in_order(items, newest_first) {
        let hash = item.content_hash();
        match known.get(&item.id) {
            Some(Some(old)) if *old == hash => {
                found.unchanged += 1;
                continue;
            }
            Some(Some(_)) => found.updated += 1,
            Some(None) | None => found.new += 1,
        }
        found.changes.push(NewChange { hash: Some(hash), ..NewChange::put(item) });
    }
    found.removed = removed.len();
    found.changes.extend(removed.into_iter().map(NewChange::delete));
    Ok(found)
}

/// Leaves out items whose id cannot be kept, and of several with one id all but the last updated (the first
/// of those in the document where that is a tie).
fn distinct(polled: Vec<Item>, problems: &mut Vec<String>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::with_capacity(polled.len());
    let mut places: HashMap<String, usize> = HashMap::with_capacity(polled.len());
    for (index, item) in polled.into_iter().enumerate() {
        if let Err(e) = item.check() {
            problems.push(format!("item {} of the document: {e}", index + 1));
            continue;
        }
        let Some(&place) = places.get(&item.id) else {
            places.insert(item.id.clone(), items.len());
            items.push(item);
            continue;
        };
        if items[place] != item {
            problems.push(format!("item {} of the document: id {:?} stands there twice", index + 1, item.id));
        }
        if item.updated > items[place].updated {
            items[place] = item;
        }
    }
    items
}

/// The known live items that are not in `items`, in the order of their ids.
fn missing(known: &Known, items: &[Item], guard: Guard) -> Result<Vec<String>, GuardError> {
    let present: HashSet<&str> = items.iter().map(|i| i.id.as_str()).collect();
    let live = known.iter().filter(|(_, hash)| hash.is_some());
    let mut gone: Vec<String> =
        live.clone().map(|(id, _)| id).filter(|id| !present.contains(id.as_str())).cloned().collect();
    let known = live.count();
    if known >= guard.min_items && gone.len() as f64 > known as f64 * guard.max_removed {
        return Err(GuardError { removed: gone.len(), known });
    }
    gone.sort_unstable();
    Ok(gone)
}

/// Oldest first by date of publication; items without a date, and ties, by the document's order.
fn in_order(mut items: Vec<Item>, newest_first: bool) -> Vec<Item> {
    if newest_first {
        items.reverse();
    }
    let age = |item: &Item| item.published.or(item.updated).unwrap_or(Timestamp::MAX);
    items.sort_by_key(age);
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Op;

    fn item(id: &str, title: &str) -> Item {
        Item { title: Some(title.into()), ..Item::new(id) }
    }

    fn known(items: &[Item]) -> Known {
        items.iter().map(|i| (i.id.clone(), Some(i.content_hash()))).collect()
    }

    fn ops(diff: &Diff) -> Vec<(Op, &str)> {
        diff.changes.iter().map(|c| (c.op, c.item.id.as_str())).collect()
    }

    #[test]
    fn nothing_changes_when_nothing_changed() {
        let items = vec![item("a", "1"), item("b", "2")];
        let found = diff(&known(&items), items, true, Listing::Complete, Guard::default()).unwrap();
        assert_eq!((found.changes.len(), found.unchanged), (0, 2));
    }

    #[test]
    fn new_updated_and_removed() {
        let before = known(&[item("a", "1"), item("b", "2"), item("c", "3")]);
        let now = vec![item("d", "4"), item("b", "changed"), item("a", "1")];
        let found = diff(&before, now.clone(), true, Listing::Complete, Guard::default()).unwrap();
        assert_eq!(ops(&found), [(Op::Put, "b"), (Op::Put, "d"), (Op::Delete, "c")]);
        assert_eq!((found.new, found.updated, found.removed, found.unchanged), (1, 1, 1, 1));
        let found = diff(&before, now, true, Listing::Window, Guard::default()).unwrap();
        assert_eq!(ops(&found), [(Op::Put, "b"), (Op::Put, "d")]);
    }

    #[test]
    fn a_deleted_item_that_comes_back_is_new() {
        let before = Known::from([("a".to_owned(), None)]);
        let found = diff(&before, vec![item("a", "1")], true, Listing::Complete, Guard::default()).unwrap();
        assert_eq!((found.new, found.removed), (1, 0));
        let found = diff(&before, vec![], true, Listing::Complete, Guard::default()).unwrap();
        assert_eq!(found.removed, 0);
    }

    #[test]
    fn a_listing_that_lost_most_items_is_disbelieved() {
        let items: Vec<Item> = (0..20).map(|n| item(&format!("{n:02}"), "t")).collect();
        let before = known(&items);
        let error = diff(&before, items[..9].to_vec(), true, Listing::Complete, Guard::default());
        assert_eq!(error, Err(GuardError { removed: 11, known: 20 }));
        let half = diff(&before, items[..10].to_vec(), true, Listing::Complete, Guard::default()).unwrap();
        assert_eq!(half.removed, 10);
        let off = Guard { max_removed: 1.0, min_items: 0 };
        assert_eq!(diff(&before, vec![], true, Listing::Complete, off).unwrap().removed, 20);
    }

    #[test]
    fn duplicates_and_bad_ids_are_named() {
        let mut newer = item("a", "newer");
        newer.updated = Some("2024-01-01T00:00:00Z".parse().unwrap());
        let polled = vec![item("a", "1"), newer, item("", "no id"), item("a", "late")];
        let found = diff(&Known::new(), polled, true, Listing::Window, Guard::default()).unwrap();
        assert_eq!(found.changes.len(), 1);
        assert_eq!(found.changes[0].item.title.as_deref(), Some("newer"));
        assert_eq!(found.problems.len(), 3, "{:?}", found.problems);
    }

    #[test]
    fn oldest_first() {
        let dated = |id: &str, date: &str| Item { published: date.parse().ok(), ..Item::new(id) };
        let polled = vec![
            dated("undated2", ""),
            dated("undated1", ""),
            dated("new", "2024-02-01T00:00:00Z"),
            dated("old", "2024-01-01T00:00:00Z"),
        ];
        let found = diff(&Known::new(), polled, true, Listing::Window, Guard::default()).unwrap();
        let ids: Vec<&str> = found.changes.iter().map(|c| c.item.id.as_str()).collect();
        assert_eq!(ids, ["old", "new", "undated1", "undated2"]);
    }
}
