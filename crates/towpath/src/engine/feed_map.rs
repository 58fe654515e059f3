//! The feeds of an engine: found by name, and listed in the order of names. There may be a million.

use std::collections::HashMap;
use std::iter::FusedIterator;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use towpath_proto::FeedId;

use super::Feed;
use crate::config::FeedOrigin;

/// Feeds by name.
///
/// The sorted list is made when it is asked for, and kept. A feed that is new since then is put in its place, so that
/// neither a list nor a new feed costs the sorting of all others.
pub(super) struct FeedMap {
    by_id: RwLock<HashMap<FeedId, Arc<Feed>>>,
    /// Locked after `by_id`, and for moments only.
    unsorted: Mutex<Unsorted>,
    /// Locked before the others.
    sorted: Mutex<SortedFeeds>,
}

/// Changes that the sorted list does not have.
#[derive(Default)]
struct Unsorted {
    added: Vec<Arc<Feed>>,
    /// A feed was replaced or removed.
    is_anew: bool,
}

impl FeedMap {
    pub(super) fn new(feeds: HashMap<FeedId, Arc<Feed>>) -> Self {
        let unsorted = Mutex::new(Unsorted { added: Vec::new(), is_anew: true });
        Self { by_id: RwLock::new(feeds), unsorted, sorted: Mutex::new(SortedFeeds(Arc::default())) }
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Feed>> {
        self.by_id.read().get(id).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// Returns the number of feeds that were made over HTTP.
    pub(super) fn count_from_http(&self) -> usize {
        self.by_id.read().values().filter(|feed| feed.config.origin == FeedOrigin::Http).count()
    }

    /// Inserts a feed, in place of another of its name.
    pub(super) fn insert(&self, feed: Arc<Feed>) {
        let mut by_id = self.by_id.write();
        match by_id.insert(feed.id().clone(), feed.clone()) {
            // The list holds the old one, which only sorting it anew drops.
            Some(_) => self.unsorted.lock().is_anew = true,
            None => self.add_unsorted(feed),
        }
    }

    /// Returns the feed of this one's name, which is inserted if there is none.
    pub(super) fn get_or_insert(&self, feed: Arc<Feed>) -> Arc<Feed> {
        let mut by_id = self.by_id.write();
        if let Some(known) = by_id.get(feed.id()) {
            return known.clone();
        }
        by_id.insert(feed.id().clone(), feed.clone());
        self.add_unsorted(feed.clone());
        feed
    }

    pub(super) fn remove(&self, id: &FeedId) -> Option<Arc<Feed>> {
        let mut by_id = self.by_id.write();
        self.unsorted.lock().is_anew = true;
        by_id.remove(id)
    }

    /// Replaces all feeds by what `change` makes of them, at once.
    pub(super) fn replace(
        &self,
        change: impl FnOnce(&HashMap<FeedId, Arc<Feed>>) -> HashMap<FeedId, Arc<Feed>>,
    ) {
        let mut by_id = self.by_id.write();
        let new = change(&by_id);
        let old = std::mem::replace(&mut *by_id, new);
        self.unsorted.lock().is_anew = true;
        // Requests wait for the lock, and to free a hundred thousand feeds takes longer than to replace them.
        drop(by_id);
        drop(old);
    }

    /// Returns all feeds, sorted by name: lists and digests over them must not change with the map's random order.
    pub(super) fn sorted(&self) -> SortedFeeds {
        let mut sorted = self.sorted.lock();
        // Taken before the map is read: a feed that comes between the two is in both, which `with` allows for. The
        // other way round it would be in neither.
        let Unsorted { added, is_anew } = std::mem::take(&mut *self.unsorted.lock());
        if is_anew {
            let by_id = self.by_id.read();
            let mut feeds: Vec<_> =
                by_id.values().map(|feed| (SortKey::of(feed.id()), feed.clone())).collect();
            // Sorting takes long, and inserting a feed must not wait for it.
            drop(by_id);
            feeds.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            *sorted = SortedFeeds(Arc::new(feeds.into_iter().map(|(_, feed)| feed).collect()));
        } else if !added.is_empty() {
            // Moved out, so that this is the only owner and `with` need not copy the list.
            let known = std::mem::replace(&mut *sorted, SortedFeeds(Arc::default()));
            *sorted = known.with(added);
        }
        sorted.clone()
    }

    fn add_unsorted(&self, feed: Arc<Feed>) {
        let mut unsorted = self.unsorted.lock();
        if !unsorted.is_anew {
            unsorted.added.push(feed);
        }
    }
}

/// An id with zeros behind it, which sorts as the id does.
// Beside the feed in the list: to compare through the pointers would miss the cache twice each time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SortKey([u8; FeedId::MAX_LEN]);

impl SortKey {
    fn of(id: &FeedId) -> Self {
        let mut key = [0; FeedId::MAX_LEN];
        key[..id.as_str().len()].copy_from_slice(id.as_str().as_bytes());
        Self(key)
    }
}

/// All feeds at one moment, sorted by name.
#[derive(Clone)]
pub struct SortedFeeds(Arc<Vec<Arc<Feed>>>);

impl SortedFeeds {
    /// Puts new feeds in their places. It compares them only, and copies no other if nobody else has the list.
    fn with(self, mut added: Vec<Arc<Feed>>) -> Self {
        added.sort_unstable_by(|a, b| a.id().cmp(b.id()));
        let mut feeds = Vec::with_capacity(self.len() + added.len());
        let mut known = Arc::unwrap_or_clone(self.0).into_iter();
        for feed in added {
            let before = known.as_slice().partition_point(|other| other.id() < feed.id());
            feeds.extend(known.by_ref().take(before));
            // It was inserted while the list was sorted, which has it already.
            if known.as_slice().first().is_none_or(|other| other.id() != feed.id()) {
                feeds.push(feed);
            }
        }
        feeds.extend(known);
        Self(Arc::new(feeds))
    }
}

impl Deref for SortedFeeds {
    type Target = [Arc<Feed>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl IntoIterator for SortedFeeds {
    type Item = Arc<Feed>;
    type IntoIter = SortedFeedsIter;

    fn into_iter(self) -> Self::IntoIter {
        SortedFeedsIter { list: self, next: 0 }
    }
}

/// Iterator over a [`SortedFeeds`] that is passed on.
pub struct SortedFeedsIter {
    list: SortedFeeds,
    next: usize,
}

impl Iterator for SortedFeedsIter {
    type Item = Arc<Feed>;

    fn next(&mut self) -> Option<Self::Item> {
        let feed = self.list.get(self.next)?.clone();
        self.next += 1;
        Some(feed)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for SortedFeedsIter {}
impl FusedIterator for SortedFeedsIter {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::FeedConfig;

    fn feed(number: u8) -> Arc<Feed> {
        let id = FeedId::new(&format!("feed-{number:03}")).expect("a valid name");
        Arc::new(Feed::new(FeedConfig::unnamed(id)))
    }

    proptest! {
        /// The list equals the map, sorted, whatever was done to it, and has the map's own feeds.
        #[test]
        fn the_list_is_the_map_in_order(steps in prop::collection::vec((0_u8..5, any::<u8>()), 0..60)) {
            let map = FeedMap::new([(feed(7).id().clone(), feed(7))].into());
            for (step, number) in steps {
                match step {
                    0 => map.insert(feed(number)),
                    1 | 2 => drop(map.get_or_insert(feed(number))),
                    3 => drop(map.remove(feed(number).id())),
                    _ => map.replace(|feeds| {
                        feeds.iter().skip(1).map(|(id, feed)| (id.clone(), feed.clone())).collect()
                    }),
                }
                let listed = map.sorted();
                prop_assert!(listed.is_sorted_by(|a, b| a.id() < b.id()));
                prop_assert_eq!(listed.len(), map.len());
                for feed in listed {
                    prop_assert!(map.get(feed.id().as_str()).is_some_and(|known| Arc::ptr_eq(&known, &feed)));
                }
            }
        }
    }

    #[test]
    fn a_list_stays_as_it_was() {
        let map = FeedMap::new(HashMap::new());
        map.insert(feed(2));
        let before = map.sorted();
        map.insert(feed(1));
        map.insert(feed(3));
        assert_eq!((before.len(), map.sorted().len()), (1, 3));
        let again: Vec<_> = map.sorted().into_iter().map(|feed| feed.id().to_string()).collect();
        assert_eq!(again, ["feed-001", "feed-002", "feed-003"]);
    }
}
