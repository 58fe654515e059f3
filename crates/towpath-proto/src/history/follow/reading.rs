//! A document as the follower sees it.

use std::collections::HashMap;

use bytes::Bytes;
use jiff::Timestamp;

use crate::format::{self, FormatError, ReadOptions};
use crate::history::wire::{CURRENT, THIS, Way};
use crate::item::Item;

/// A document as it came.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    /// The address that answered.
    pub(super) url: String,
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
}

/// One version of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Version {
    /// The item; of a deleted one its id.
    pub(super) item: Item,
    /// When the version was made: our own `modified`, else `updated`; of a deleted entry, when it was deleted.
    pub(super) rank: Option<Timestamp>,
    pub(super) gone: bool,
}

/// What a document says.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) way: Way,
    /// -00, section 4: where this very document stays.
    pub(super) this: Option<String>,
    /// It is an archive document (RFC 5005, section 4); the newest one is at `current`.
    pub(super) is_archive: bool,
    pub(super) current: Option<String>,
    /// Seconds for which it need not be asked for again.
    pub(super) ttl: Option<u64>,
    /// The last version of each entry, the oldest first as far as that can be told.
    pub(super) versions: Vec<Version>,
    /// What was left out.
    pub(super) problems: Vec<String>,
    updated: Option<Timestamp>,
}

impl Reading {
    pub(super) fn of(fetched: &Fetched) -> Result<Self, FormatError> {
        let options = ReadOptions {
            content_type: fetched.content_type.as_deref(),
            base_url: Some(&fetched.url),
            ..ReadOptions::default()
        };
        let mut feed = format::read(&fetched.body, &options)?;
        let mut modified = vec![None; feed.items.len()];
        for (index, time) in std::mem::take(&mut feed.modified) {
            if let Some(slot) = modified.get_mut(index) {
                *slot = Some(time);
            }
        }
        let (way, this) = (Way::of(&feed), feed.link(THIS).map(str::to_owned));
        let items = std::mem::take(&mut feed.items).into_iter().zip(modified);
        // Documents have the newest first.
        let mut versions: Vec<Version> = items
            .rev()
            .map(|(item, modified)| Version { rank: modified.or(item.updated), item, gone: false })
            .collect();
        let gone = std::mem::take(&mut feed.deleted).into_iter().rev();
        versions.extend(gone.map(|gone| Version { item: Item::new(gone.id), rank: gone.when, gone: true }));
        if versions.iter().all(|version| version.time().is_some()) {
            versions.sort_by_key(Version::time);
        }
        let (is_archive, current) = (feed.archive, feed.link(CURRENT).map(str::to_owned));
        let (updated, problems) = (feed.updated, feed.problems);
        let ttl = feed.ttl.map(|minutes| u64::from(minutes) * 60);
        Ok(Self { way, this, is_archive, current, ttl, versions: last_of_each(versions), problems, updated })
    }

    /// Whether everything in the document was made before a time.
    pub(super) fn is_before(&self, time: Timestamp) -> bool {
        let all = || self.versions.iter().all(|version| version.rank.is_some_and(|rank| rank < time));
        self.updated.is_some_and(|updated| updated < time) || !self.versions.is_empty() && all()
    }
}

impl Version {
    /// What to order by.
    fn time(&self) -> Option<Timestamp> {
        self.rank.or(self.item.published)
    }
}

/// "If multiple atom:entry elements with the same atom:id value appear in an Atom Feed Document, they represent
/// the same entry" (RFC 4287, section 4.1.1): the newest of them counts.
fn last_of_each(versions: Vec<Version>) -> Vec<Version> {
    let mut chosen: HashMap<&str, usize> = HashMap::with_capacity(versions.len());
    for (index, version) in versions.iter().enumerate() {
        let place = chosen.entry(&version.item.id).or_insert(index);
        let is_older = matches!((version.rank, versions[*place].rank), (Some(a), Some(b)) if a < b);
        if !is_older {
            *place = index;
        }
    }
    if chosen.len() == versions.len() {
        return versions;
    }
    let mut kept = vec![false; versions.len()];
    chosen.into_values().for_each(|index| kept[index] = true);
    versions.into_iter().zip(kept).filter_map(|(version, kept)| kept.then_some(version)).collect()
}
