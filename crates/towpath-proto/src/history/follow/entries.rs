//! Index of all entries: one record each, enough to recognise a newer version.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use super::document::EntryVersion;
use crate::diff::Listing;

/// Record of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EntryRecord {
    /// Date of the last version, if the publisher gives one.
    rank: Option<Timestamp>,
    /// The first bytes of the item's hash; `None` for a deleted entry.
    digest: Option<u64>,
    /// The document that had the last version.
    seq: DocumentSeq,
}

/// All entries by id. Deleted entries stay, so that a document that is read late does not restore them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<String>")]
pub(super) struct EntryIndex {
    entries: HashMap<Box<str>, EntryRecord>,
}

/// Status of a version compared with the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionStatus {
    /// The version is equal to the known one.
    Unchanged,
    /// The version is older than the known one.
    Older,
    /// The entry is unknown.
    New,
    /// The version is newer than the known one.
    Newer,
}

/// Sequence number of a document, the oldest first.
///
/// A document that failed has the number of its place in the chain, so the time at which it is read does not matter.
pub(super) type DocumentSeq = u64;

impl EntryIndex {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if this is the last known version of the entry.
    pub(super) fn has(&self, version: &EntryVersion) -> bool {
        self.entries.get(version.item.id.as_str()).is_some_and(|known| known.digest == version.digest())
    }

    /// Returns true if this is the last known version of the entry, by its date too: content may come back.
    pub(super) fn has_exactly(&self, version: &EntryVersion) -> bool {
        let known = self.entries.get(version.item.id.as_str());
        known.is_some_and(|known| known.rank == version.rank && known.digest == version.digest())
    }

    /// Returns true if any version of the entry is known.
    pub(super) fn has_id(&self, version: &EntryVersion) -> bool {
        self.entries.contains_key(version.item.id.as_str())
    }

    /// Returns true if the last known version of the entry is from document `seq` or an earlier one.
    pub(super) fn has_id_until(&self, version: &EntryVersion, seq: DocumentSeq) -> bool {
        self.entries.get(version.item.id.as_str()).is_some_and(|known| known.seq <= seq)
    }

    /// Updates the index with a version from document `seq`, if it is newer.
    ///
    /// The newest `updated` wins, and on a tie the later document (RFC 5005, section 4.2). A version without date is as
    /// old as its document. Versions of a complete document are newer than all others.
    pub(super) fn update(
        &mut self,
        version: &EntryVersion,
        seq: DocumentSeq,
        listing: Listing,
    ) -> VersionStatus {
        let new = EntryRecord { rank: version.rank, digest: version.digest(), seq };
        let Some(known) = self.entries.get_mut(version.item.id.as_str()) else {
            self.entries.insert(version.item.id.as_str().into(), new);
            return VersionStatus::New;
        };
        let is_newer = match (new.rank, known.rank) {
            // A complete document replaces everything, even by versions with older dates.
            _ if listing == Listing::Complete => true,
            (Some(new), Some(known)) if new != known => new > known,
            _ => seq > known.seq,
        };
        let is_same = new.digest == known.digest;
        if is_newer {
            // An undated version keeps the last date: a dated one from an older document must not win over it.
            *known = EntryRecord { rank: new.rank.or(known.rank), ..new };
        }
        match (is_same, is_newer) {
            (true, _) => VersionStatus::Unchanged,
            (false, true) => VersionStatus::Newer,
            (false, false) => VersionStatus::Older,
        }
    }

    /// Removes all entries except `ids`, and returns the removed ones that were not deleted before.
    pub(super) fn retain(&mut self, ids: &HashSet<&str>) -> Vec<String> {
        let mut removed = Vec::new();
        // Not kept as deleted: beside a complete document no older one is read that could restore it.
        self.entries.retain(|id, known| {
            let stays = ids.contains(&**id);
            if !stays && known.digest.is_some() {
                removed.push(id.to_string());
            }
            stays
        });
        // A hash map has no order; the deletions of one document are delivered in the same order in every run.
        removed.sort_unstable();
        removed
    }
}

impl Serialize for EntryIndex {
    /// Writes a line for each entry: the digest in hex or `-`, the time or `-`, the document's number, the id.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // One string per entry, because every checkpoint writes the whole index.
        let line = |id: &str, known: &EntryRecord| {
            let digest = known.digest.map_or_else(|| "-".to_owned(), |digest| format!("{digest:016x}"));
            let rank = known.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            format!("{digest} {rank} {} {id}", known.seq)
        };
        serializer.collect_seq(self.entries.iter().map(|(id, known)| line(id, known)))
    }
}

impl From<Vec<String>> for EntryIndex {
    /// Skips malformed lines: their entries are delivered again.
    fn from(lines: Vec<String>) -> Self {
        let entry = |line: &String| {
            // The id is the last part, because it may have spaces.
            let mut parts = line.splitn(4, ' ');
            let (digest, rank, seq, id) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let digest = match digest {
                "-" => None,
                hex => Some(u64::from_str_radix(hex, 16).ok()?),
            };
            // `-` is no timestamp, and so reads as no date.
            Some((id.into(), EntryRecord { rank: rank.parse().ok(), digest, seq: seq.parse().ok()? }))
        };
        Self { entries: lines.iter().filter_map(entry).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Item;

    fn version(title: &str, second: Option<i64>) -> EntryVersion {
        let rank = second.map(|second| Timestamp::from_second(second).unwrap());
        if title.is_empty() {
            return EntryVersion::deleted(rank, "a b\n".into());
        }
        EntryVersion::of(rank, Item { title: Some(title.into()), ..Item::new("a b\n") })
    }

    /// RFC 5005, section 4.2.
    #[test]
    fn the_newest_version_wins_and_on_a_tie_the_later_document() {
        let mut index = EntryIndex::default();
        let mut update = |title, second, seq, listing| index.update(&version(title, second), seq, listing);
        assert_eq!(update("one", Some(5), 4, Listing::Window), VersionStatus::New);
        // An older date loses, although its document is later.
        assert_eq!(update("old", Some(4), 5, Listing::Window), VersionStatus::Older);
        assert_eq!(update("tie", Some(5), 3, Listing::Window), VersionStatus::Older);
        assert_eq!(update("tie", Some(5), 5, Listing::Window), VersionStatus::Newer);
        // Nothing to deliver, but the later date is stored: the next line relies on it.
        assert_eq!(update("tie", Some(6), 6, Listing::Window), VersionStatus::Unchanged);
        assert_eq!(update("old", Some(5), 7, Listing::Window), VersionStatus::Older);
        assert_eq!(update("", Some(7), 8, Listing::Window), VersionStatus::Newer);
        assert_eq!(update("late", Some(6), 2, Listing::Window), VersionStatus::Older);
        assert_eq!(update("undated", None, 2, Listing::Window), VersionStatus::Older);
        assert_eq!(update("undated", None, 9, Listing::Window), VersionStatus::Newer);
        // A complete document wins against every date.
        assert_eq!(update("ranked", Some(1), 9, Listing::Complete), VersionStatus::Newer);
    }

    #[test]
    fn the_index_survives_serialisation() {
        let mut index = EntryIndex::default();
        index.update(&version("one", Some(5)), 1, Listing::Window);
        index.update(&EntryVersion::of(None, Item::new("é x")), 2, Listing::Window);
        index.update(&EntryVersion::deleted(Some(Timestamp::UNIX_EPOCH), "gone".into()), 2, Listing::Window);
        let text = serde_json::to_string(&index).unwrap();
        assert_eq!(serde_json::from_str::<EntryIndex>(&text).unwrap(), index);
        let broken: EntryIndex = serde_json::from_str(r#"["", "x y 0 z", "- - 0 ok", "- - x no"]"#).unwrap();
        assert_eq!(broken.len(), 1);
    }
}
