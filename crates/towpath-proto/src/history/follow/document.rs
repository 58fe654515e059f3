//! A document in the form that the follower needs.

use std::cell::OnceCell;
use std::collections::HashMap;

use bytes::Bytes;
use jiff::Timestamp;

use crate::format::{self, DocumentLimits, FeedLink, FormatError, ReadOptions};
use crate::history::wire::{CURRENT, Predecessor, THIS};
use crate::item::Item;

/// A document as received.
#[derive(Debug, Clone)]
pub(super) struct FetchedDocument {
    /// URL of the response, after redirects.
    pub(super) url: String,
    pub(super) content_type: Option<String>,
    /// Links in the headers.
    pub(super) links: Vec<FeedLink>,
    pub(super) body: Bytes,
}

/// A version of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EntryVersion {
    /// The item; for a deletion only its id.
    pub(super) item: Item,
    /// Date of the version: our own `modified`, else `updated`; for a deletion its date.
    pub(super) rank: Option<Timestamp>,
    pub(super) is_deleted: bool,
    /// Digest of the item, once it was needed: hashing a long content costs more than reading it.
    digest: OnceCell<u64>,
}

/// Contents of a document.
#[derive(Debug)]
pub(super) struct DocumentContents {
    pub(super) predecessor: Predecessor,
    /// Permanent URL of this document (-00, section 4).
    pub(super) this: Option<String>,
    /// True for an archive document (RFC 5005, section 4); the newest document is at `current`.
    pub(super) is_archive: bool,
    /// True for a range of a log: its dates, which are our own `modified`, are in the order of publication.
    pub(super) is_log: bool,
    pub(super) current: Option<String>,
    /// Seconds for which the document is fresh.
    pub(super) ttl: Option<u64>,
    /// The last version of each entry, the oldest first as far as dates show.
    pub(super) versions: Vec<EntryVersion>,
    /// Parts that were skipped, items first.
    pub(super) problems: Vec<String>,
    /// Number of items that were left out.
    pub(super) left_out: usize,
    updated: Option<Timestamp>,
}

impl DocumentContents {
    pub(super) fn of(fetched: &FetchedDocument, limits: DocumentLimits) -> Result<Self, FormatError> {
        let options = ReadOptions {
            content_type: fetched.content_type.as_deref(),
            base_url: Some(&fetched.url),
            limits,
            ..ReadOptions::default()
        };
        let mut feed = format::read(&fetched.body, &options)?;
        // After the document's own: of one relation, the first link counts.
        feed.links.extend(fetched.links.iter().cloned());
        let is_log = !feed.modified.is_empty();
        let mut modified = vec![None; feed.items.len()];
        for (index, time) in std::mem::take(&mut feed.modified) {
            if let Some(entry) = modified.get_mut(index) {
                *entry = Some(time);
            }
        }
        let (predecessor, this) = (Predecessor::of(&feed), feed.link(THIS).map(str::to_owned));
        let items = std::mem::take(&mut feed.items).into_iter().zip(modified);
        // Documents list the newest entry first. Without dates their order is all that is known.
        let mut versions: Vec<EntryVersion> =
            items.rev().map(|(item, modified)| EntryVersion::of(modified.or(item.updated), item)).collect();
        // After the items: where dates decide nothing, a deletion wins over its entry.
        let deletions = std::mem::take(&mut feed.deleted).into_iter().rev();
        versions.extend(deletions.map(|deletion| EntryVersion::deleted(deletion.when, deletion.id)));
        // Sorted only if every version has a date: a mix would put undated ones at an arbitrary place.
        if versions.iter().all(|version| version.time().is_some()) {
            versions.sort_by_key(EntryVersion::time);
        }
        let (is_archive, current) = (feed.archive, feed.link(CURRENT).map(str::to_owned));
        let (updated, problems, left_out) = (feed.updated, feed.problems, feed.counts.left_out);
        let ttl = feed.ttl.map(|minutes| u64::from(minutes) * 60);
        Ok(Self {
            predecessor,
            this,
            is_archive,
            is_log,
            current,
            ttl,
            versions: last_of_each(versions),
            problems,
            left_out,
            updated,
        })
    }

    /// Reads a page as a document of one entry, whose id is `id`. Its links are not those of a feed.
    pub(super) fn of_page(
        fetched: &FetchedDocument,
        id: &str,
        limits: DocumentLimits,
    ) -> Result<Self, FormatError> {
        let content_type = fetched.content_type.as_deref();
        let options = ReadOptions { content_type, limits, ..ReadOptions::default() };
        let item = format::read_page(&fetched.body, &fetched.url, &options)?;
        let item = Item { id: id.to_owned(), ..item };
        Ok(Self {
            predecessor: Predecessor::Beginning,
            this: None,
            is_archive: false,
            is_log: false,
            current: None,
            ttl: None,
            versions: vec![EntryVersion::of(None, item)],
            problems: Vec::new(),
            left_out: 0,
            updated: None,
        })
    }

    /// Returns true if nothing shows that the document is not a log's: deletions are dated alike everywhere.
    pub(super) fn may_be_log(&self) -> bool {
        self.is_log || self.versions.iter().all(|version| version.is_deleted)
    }

    /// Returns the date of the newest version, if the document is a log's.
    pub(super) fn end_of_log(&self) -> Option<Timestamp> {
        self.versions.iter().filter_map(|version| version.rank).max().filter(|_| self.is_log)
    }

    /// Returns true if the whole document is older than a time.
    pub(super) fn is_before(&self, time: Timestamp) -> bool {
        // An undated version may be newer than any time, so its document is in range.
        let all = || self.versions.iter().all(|version| version.rank.is_some_and(|rank| rank < time));
        self.updated.is_some_and(|updated| updated < time) || !self.versions.is_empty() && all()
    }
}

impl EntryVersion {
    pub(super) fn of(rank: Option<Timestamp>, item: Item) -> Self {
        Self { item, rank, is_deleted: false, digest: OnceCell::new() }
    }

    pub(super) fn deleted(rank: Option<Timestamp>, id: String) -> Self {
        Self { is_deleted: true, ..Self::of(rank, Item::new(id)) }
    }

    /// Returns the first bytes of the item's hash; `None` for a deletion.
    // 64 bits suffice: a collision only hides one edit of one entry, and a million entries stay at 8 bytes each.
    pub(super) fn digest(&self) -> Option<u64> {
        let short_hash = || {
            let [a, b, c, d, e, f, g, h, ..] = self.item.content_hash().0;
            u64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        (!self.is_deleted).then(|| *self.digest.get_or_init(short_hash))
    }

    /// Returns the sort key.
    fn time(&self) -> Option<Timestamp> {
        self.rank.or(self.item.published)
    }
}

/// Returns the newest version of each entry.
///
/// "If multiple atom:entry elements with the same atom:id value appear in an Atom Feed Document, they represent the same
/// entry" (RFC 4287, section 4.1.1).
fn last_of_each(versions: Vec<EntryVersion>) -> Vec<EntryVersion> {
    let mut chosen: HashMap<&str, usize> = HashMap::with_capacity(versions.len());
    for (index, version) in versions.iter().enumerate() {
        let last = chosen.entry(&version.item.id).or_insert(index);
        // Only two dates can prove that the later place has the older version.
        let is_older = matches!((version.rank, versions[*last].rank), (Some(a), Some(b)) if a < b);
        if !is_older {
            *last = index;
        }
    }
    // The usual case: no id occurs twice, and nothing is moved.
    if chosen.len() == versions.len() {
        return versions;
    }
    let mut is_chosen = vec![false; versions.len()];
    chosen.into_values().for_each(|index| is_chosen[index] = true);
    versions
        .into_iter()
        .zip(is_chosen)
        .filter_map(|(version, is_chosen)| is_chosen.then_some(version))
        .collect()
}
