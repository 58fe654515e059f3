//! Difference between the known items of a source and a polled document: a pure function.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::change::{NewChange, Op};
use crate::item::{ContentHash, Item};

/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 100;

/// Content hashes of the known items by id; `None` for a deleted item.
pub type KnownItems = HashMap<String, Option<ContentHash>>;

/// Meaning of an item's absence from a polled document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// The document shows only the latest items; absence has no meaning.
    Window,
    /// The document shows every item; absence means removal.
    Complete,
}

/// Guard against a complete listing that lost items by mistake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guard {
    /// Maximum share of the known items that a poll may remove, from 0 to 1.
    pub max_removed: f64,
    /// Minimum number of known items for the guard to apply.
    pub min_items: usize,
}

impl Default for Guard {
    /// Half of the items, from 10 items on.
    fn default() -> Self {
        Self { max_removed: 0.5, min_items: 10 }
    }
}

/// Order of the items in a polled document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentOrder {
    /// The newest item comes first, as feeds have it by convention.
    NewestFirst,
    /// Later items come later, as in a list that is appended to.
    OldestFirst,
}

/// Difference between a polled document and the known items.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Diff {
    /// New, updated and removed items in append order: puts oldest first, then deletions by id.
    pub changes: Vec<NewChange>,
    /// Number of new items, including items restored after a deletion.
    pub new: usize,
    /// Number of items with changed content.
    pub updated: usize,
    /// Number of removed items.
    pub removed: usize,
    /// Number of unchanged items.
    pub unchanged: usize,
    /// Items that were left out, with reasons: duplicate or invalid ids. The first hundred.
    pub problems: Vec<String>,
    /// Number of items that were left out.
    pub left_out: usize,
}

/// Error: a poll was rejected by the guard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the listing lost {removed} of {known} known items, more than the guard allows")]
pub struct GuardError {
    /// Number of missing items.
    pub removed: usize,
    /// Number of known items.
    pub known: usize,
}

/// Compares the items of a polled document with the known items.
///
/// `polled` is in document order; `order` gives its direction for items without distinct dates. Fails,
/// and removes nothing, if `guard` rejects a complete listing.
///
/// ```
/// use towpath_proto::Item;
/// use towpath_proto::diff::{DocumentOrder, Guard, KnownItems, Listing, diff};
///
/// let (kept, gone, new) = (Item::new("kept"), Item::new("gone"), Item::new("new"));
/// let known: KnownItems =
///     [&kept, &gone].into_iter().map(|item| (item.id.clone(), Some(item.content_hash()))).collect();
/// let found = diff(&known, vec![new, kept], DocumentOrder::NewestFirst, Listing::Complete, Guard::default())?;
/// assert_eq!((found.new, found.unchanged, found.removed), (1, 1, 1));
/// # Ok::<(), towpath_proto::diff::GuardError>(())
/// ```
pub fn diff(
    known: &KnownItems,
    polled: Vec<Item>,
    order: DocumentOrder,
    listing: Listing,
    guard: Guard,
) -> Result<Diff, GuardError> {
    let mut found = Diff::default();
    let items = distinct(polled, &mut found);
    // Judged first: a poll that the guard rejects must change nothing.
    let removed = match listing {
        Listing::Window => Vec::new(),
        Listing::Complete => missing(known, &items, guard)?,
    };
    let mut text = Vec::new();
    let mut changed = Vec::new();
    for item in items {
        let hash = item.content_hash_in(&mut text);
        match known.get(&item.id) {
            // Equal hashes mean equal content, so nothing is appended.
            Some(Some(old)) if *old == hash => {
                found.unchanged += 1;
                continue;
            }
            Some(Some(_)) => found.updated += 1,
            // To readers, an item that comes back after its deletion is new.
            Some(None) | None => found.new += 1,
        }
        changed.push(NewChange { hash: Some(hash), ..NewChange::put(item) });
    }
    // Only these are sorted: most items of most polls are unchanged.
    found.changes = in_order(changed, order);
    found.removed = removed.len();
    found.changes.extend(removed.into_iter().map(NewChange::delete));
    Ok(found)
}

/// Returns a published batch without the changes that change nothing: a put of an item as it is, a deletion of a
/// deleted item. `known` has the state of the batch's ids before it.
///
/// ```
/// use towpath_proto::diff::{KnownItems, without_unchanged};
/// use towpath_proto::{Item, NewChange};
///
/// let item = Item::new("first");
/// let known: KnownItems = [(item.id.clone(), Some(item.content_hash()))].into();
/// assert!(without_unchanged(known, vec![NewChange::put(item)]).is_empty());
/// ```
pub fn without_unchanged(known: KnownItems, changes: Vec<NewChange>) -> Vec<NewChange> {
    indexed_without_unchanged(known, changes).into_iter().map(|(_, change)| change).collect()
}

/// Does what [`without_unchanged`] does, and tells the index that each change had.
pub fn indexed_without_unchanged(mut known: KnownItems, changes: Vec<NewChange>) -> Vec<(usize, NewChange)> {
    // Ids whose state after a patch of this batch is unknown here: the patch is applied on append.
    let mut patched = HashSet::new();
    let mut is_change = |change: &mut NewChange| {
        let hash = match change.op {
            Op::Patch => {
                patched.insert(change.item.id.clone());
                return true;
            }
            Op::Put => Some(change.content_hash()),
            Op::Delete => None,
        };
        let id = &change.item.id;
        let was_patched = patched.remove(id);
        let before = known.insert(id.clone(), hash);
        was_patched || before != Some(hash)
    };
    let indexed = changes.into_iter().enumerate();
    indexed.filter_map(|(index, mut change)| is_change(&mut change).then_some((index, change))).collect()
}

impl Diff {
    /// Counts an item that is left out, and lists the reason unless the list is long already.
    fn leave_out(&mut self, reason: impl FnOnce() -> String) {
        self.left_out += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(reason());
        }
    }
}

/// Drops items with invalid ids. Of duplicates keeps the last updated one, or the first in the document if
/// tied.
fn distinct(polled: Vec<Item>, found: &mut Diff) -> Vec<Item> {
    // Indexes in `polled`, by the place of each id's first item. Borrowed ids: a copy of each costs more than its place.
    let mut kept: Vec<usize> = Vec::with_capacity(polled.len());
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(polled.len());
    for (index, item) in polled.iter().enumerate() {
        // A single bad item must not stop the whole feed.
        if let Err(e) = item.check() {
            found.leave_out(|| format!("item {} of the document: {e}", index + 1));
            continue;
        }
        let place = *places.entry(&item.id).or_insert(kept.len());
        let Some(other) = kept.get_mut(place) else {
            kept.push(index);
            continue;
        };
        // An exact repetition is harmless and common.
        if polled[*other] != *item {
            found.leave_out(|| format!("item {} of the document: duplicate id {:?}", index + 1, item.id));
        }
        // `None` is less than any date, so an undated copy never replaces another.
        if item.updated > polled[*other].updated {
            *other = index;
        }
    }
    if kept.len() == polled.len() {
        return polled;
    }
    let mut polled: Vec<Option<Item>> = polled.into_iter().map(Some).collect();
    kept.into_iter().filter_map(|index| polled[index].take()).collect()
}

/// Returns the known live items that are not in `items`, in the order of their ids.
fn missing(known: &KnownItems, items: &[Item], guard: Guard) -> Result<Vec<String>, GuardError> {
    let is_live = |item: &&Item| matches!(known.get(&item.id), Some(Some(_)));
    let live = known.iter().filter(|(_, hash)| hash.is_some());
    // The ids of `items` are distinct, so this many known items are in the document: usually all.
    if items.iter().filter(is_live).count() == live.clone().count() {
        return Ok(Vec::new());
    }
    let present: HashSet<&str> = items.iter().map(|i| i.id.as_str()).collect();
    let mut gone: Vec<String> =
        live.clone().map(|(id, _)| id).filter(|id| !present.contains(id.as_str())).cloned().collect();
    let known = live.count();
    // A truncated or broken listing must not delete a feed.
    if known >= guard.min_items && gone.len() as f64 > known as f64 * guard.max_removed {
        return Err(GuardError { removed: gone.len(), known });
    }
    // A hash map has no order, but the log needs the same order in every run.
    gone.sort_unstable();
    Ok(gone)
}

/// Sorts by date of publication, oldest first; items without a date, and ties, by document order.
fn in_order(mut changes: Vec<NewChange>, order: DocumentOrder) -> Vec<NewChange> {
    if order == DocumentOrder::NewestFirst {
        // The fallback order for items without dates: oldest first.
        changes.reverse();
    }
    // Items without a date may be new, so they come last. The sort is stable: ties keep their order.
    let age = |change: &NewChange| change.item.published.or(change.item.updated).unwrap_or(Timestamp::MAX);
    // With cached keys it needs no second list of changes.
    changes.sort_by_cached_key(age);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Content;

    fn item(id: &str, title: &str) -> Item {
        Item { title: Some(title.into()), ..Item::new(id) }
    }

    fn known(items: &[Item]) -> KnownItems {
        items.iter().map(|i| (i.id.clone(), Some(i.content_hash()))).collect()
    }

    fn ops(diff: &Diff) -> Vec<(Op, &str)> {
        diff.changes.iter().map(|c| (c.op, c.item.id.as_str())).collect()
    }

    #[test]
    fn nothing_changes_when_nothing_changed() {
        let items = vec![item("a", "1"), item("b", "2")];
        let found =
            diff(&known(&items), items, DocumentOrder::NewestFirst, Listing::Complete, Guard::default())
                .unwrap();
        assert_eq!((found.changes.len(), found.unchanged), (0, 2));
    }

    #[test]
    fn a_published_batch_keeps_only_changes() {
        let before = known(&[item("a", "1"), item("b", "2")]);
        let put = |id: &str, title: &str| NewChange::put(item(id, title));
        let patch = || NewChange::patch("a", Content::new("application/merge-patch+json", "{}"));
        let kept = |known: &KnownItems, batch: Vec<NewChange>| -> Vec<(Op, String)> {
            let kept = without_unchanged(known.clone(), batch);
            kept.into_iter().map(|change| (change.op, change.item.id)).collect()
        };
        let op = |op, id: &str| (op, id.to_owned());
        assert_eq!(kept(&before, vec![put("a", "1"), put("b", "3")]), [op(Op::Put, "b")]);
        // Against the state in the middle of the batch, not the one before it.
        let back = vec![put("a", "2"), put("a", "2"), put("a", "1")];
        assert_eq!(kept(&before, back), [op(Op::Put, "a"), op(Op::Put, "a")]);
        let deleted = vec![NewChange::delete("a"), NewChange::delete("a"), put("a", "1")];
        assert_eq!(kept(&before, deleted), [op(Op::Delete, "a"), op(Op::Put, "a")]);
        // A first deletion of an unknown id is a tombstone for readers who have the item from elsewhere.
        assert_eq!(kept(&before, vec![NewChange::delete("x")]), [op(Op::Delete, "x")]);
        assert_eq!(kept(&[("x".to_owned(), None)].into(), vec![NewChange::delete("x")]), []);
        // After a patch the state is known only on append.
        let patched = vec![patch(), put("a", "1"), put("a", "1")];
        assert_eq!(kept(&before, patched), [op(Op::Patch, "a"), op(Op::Put, "a")]);
    }

    #[test]
    fn new_updated_and_removed() {
        let before = known(&[item("a", "1"), item("b", "2"), item("c", "3")]);
        let now = vec![item("d", "4"), item("b", "changed"), item("a", "1")];
        let found =
            diff(&before, now.clone(), DocumentOrder::NewestFirst, Listing::Complete, Guard::default())
                .unwrap();
        assert_eq!(ops(&found), [(Op::Put, "b"), (Op::Put, "d"), (Op::Delete, "c")]);
        assert_eq!((found.new, found.updated, found.removed, found.unchanged), (1, 1, 1, 1));
        let found =
            diff(&before, now, DocumentOrder::NewestFirst, Listing::Window, Guard::default()).unwrap();
        assert_eq!(ops(&found), [(Op::Put, "b"), (Op::Put, "d")]);
    }

    #[test]
    fn a_deleted_item_that_comes_back_is_new() {
        let before = KnownItems::from([("a".to_owned(), None)]);
        let found = diff(
            &before,
            vec![item("a", "1")],
            DocumentOrder::NewestFirst,
            Listing::Complete,
            Guard::default(),
        )
        .unwrap();
        assert_eq!((found.new, found.removed), (1, 0));
        // It was deleted before, so it is not removed again.
        let found =
            diff(&before, vec![], DocumentOrder::NewestFirst, Listing::Complete, Guard::default()).unwrap();
        assert_eq!(found.removed, 0);
    }

    #[test]
    fn a_listing_that_lost_most_items_is_disbelieved() {
        let items: Vec<Item> = (0..20).map(|n| item(&format!("{n:02}"), "t")).collect();
        let before = known(&items);
        let error = diff(
            &before,
            items[..9].to_vec(),
            DocumentOrder::NewestFirst,
            Listing::Complete,
            Guard::default(),
        );
        assert_eq!(error, Err(GuardError { removed: 11, known: 20 }));
        // Exactly half is still believed.
        let half = diff(
            &before,
            items[..10].to_vec(),
            DocumentOrder::NewestFirst,
            Listing::Complete,
            Guard::default(),
        )
        .unwrap();
        assert_eq!(half.removed, 10);
        let off = Guard { max_removed: 1.0, min_items: 0 };
        assert_eq!(
            diff(&before, vec![], DocumentOrder::NewestFirst, Listing::Complete, off).unwrap().removed,
            20
        );
    }

    #[test]
    fn duplicates_and_bad_ids_are_named() {
        let mut newer = item("a", "newer");
        newer.updated = Some("2024-01-01T00:00:00Z".parse().unwrap());
        let polled = vec![item("a", "1"), newer, item("", "no id"), item("a", "late")];
        let found =
            diff(&KnownItems::new(), polled, DocumentOrder::NewestFirst, Listing::Window, Guard::default())
                .unwrap();
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
        let found =
            diff(&KnownItems::new(), polled, DocumentOrder::NewestFirst, Listing::Window, Guard::default())
                .unwrap();
        let ids: Vec<&str> = found.changes.iter().map(|c| c.item.id.as_str()).collect();
        assert_eq!(ids, ["old", "new", "undated1", "undated2"]);
    }
}
