//! What is kept of every entry that was seen: enough to know a newer version when it comes.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

use super::reading::Version;
use crate::item::Item;

/// What is kept of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    /// When the last version was made, as far as its publisher says.
    rank: Option<Timestamp>,
    /// The first bytes of the item's hash; none of a deleted entry.
    digest: Option<u64>,
    /// The document that the last version stood in.
    slot: Slot,
}

/// Every entry that was seen, by its id. Deleted entries stay, so that a document that is read late does not
/// bring them back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<String>")]
pub(super) struct Memory {
    entries: HashMap<Box<str>, Known>,
}

/// What a version is beside what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing new.
    Known,
    /// An older version than the known one.
    Older,
    /// The entry is not known.
    New,
    /// A newer version.
    Newer,
}

/// A document's place in the order of documents, the oldest first. Documents that did not answer have theirs from
/// when they were noticed, so that it does not matter when they are read.
pub(super) type Slot = u64;

impl Memory {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the last version of an entry is known already.
    pub(super) fn has(&self, version: &Version) -> bool {
        self.entries.get(version.item.id.as_str()).is_some_and(|known| known.digest == digest(version))
    }

    /// Whether any version of an entry was seen.
    pub(super) fn knows(&self, version: &Version) -> bool {
        self.entries.contains_key(version.item.id.as_str())
    }

    /// Takes a version from the document at `slot`, where it is newer than what is known: "newest `updated`
    /// wins, a tie goes to the later document" (RFC 5005, section 4.2). Versions without dates are as old as the
    /// document, and those of a document that is `whole` are newer than all.
    pub(super) fn take(&mut self, version: &Version, slot: Slot, whole: bool) -> Verdict {
        let new = Known { rank: version.rank, digest: digest(version), slot };
        let Some(known) = self.entries.get_mut(version.item.id.as_str()) else {
            self.entries.insert(version.item.id.as_str().into(), new);
            return Verdict::New;
        };
        let is_newer = match (new.rank, known.rank) {
            _ if whole => true,
            (Some(new), Some(known)) if new != known => new > known,
            _ => slot > known.slot,
        };
        let is_same = new.digest == known.digest;
        if is_newer {
            *known = Known { rank: new.rank.or(known.rank), ..new };
        }
        match (is_same, is_newer) {
            (true, _) => Verdict::Known,
            (false, true) => Verdict::Newer,
            (false, false) => Verdict::Older,
        }
    }

    /// Forgets every entry that is not among `ids`; the result is those of them that were not deleted before.
    pub(super) fn keep_only(&mut self, ids: &HashSet<&str>) -> Vec<String> {
        let mut gone = Vec::new();
        self.entries.retain(|id, known| {
            let stays = ids.contains(&**id);
            if !stays && known.digest.is_some() {
                gone.push(id.to_string());
            }
            stays
        });
        gone.sort_unstable();
        gone
    }
}

fn digest(version: &Version) -> Option<u64> {
    (!version.gone).then(|| short_hash(&version.item))
}

fn short_hash(item: &Item) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = item.content_hash().0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl Serialize for Memory {
    /// A line for each entry: the digest in hex or `-`, the time or `-`, the document's place, the id.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let line = |id: &str, known: &Known| {
            let digest = known.digest.map_or_else(|| "-".to_owned(), |digest| format!("{digest:016x}"));
            let rank = known.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            format!("{digest} {rank} {} {id}", known.slot)
        };
        serializer.collect_seq(self.entries.iter().map(|(id, known)| line(id, known)))
    }
}

impl From<Vec<String>> for Memory {
    /// A line that is none is passed over: the entry is told again.
    fn from(lines: Vec<String>) -> Self {
        let entry = |line: &String| {
            let mut parts = line.splitn(4, ' ');
            let (digest, rank, slot, id) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let digest = match digest {
                "-" => None,
                hex => Some(u64::from_str_radix(hex, 16).ok()?),
            };
            Some((id.into(), Known { rank: rank.parse().ok(), digest, slot: slot.parse().ok()? }))
        };
        Self { entries: lines.iter().filter_map(entry).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(title: &str, second: Option<i64>) -> Version {
        let item = Item { title: Some(title.into()), ..Item::new("a b\n") };
        let rank = second.map(|second| Timestamp::from_second(second).unwrap());
        Version { item, rank, gone: title.is_empty() }
    }

    /// RFC 5005, section 4.2.
    #[test]
    fn the_newest_version_counts_and_a_tie_goes_to_the_later_document() {
        let mut memory = Memory::default();
        let mut take = |title, second, slot, whole| memory.take(&version(title, second), slot, whole);
        assert_eq!(take("one", Some(5), 4, false), Verdict::New);
        assert_eq!(take("old", Some(4), 5, false), Verdict::Older);
        assert_eq!(take("tie", Some(5), 3, false), Verdict::Older);
        assert_eq!(take("tie", Some(5), 5, false), Verdict::Newer);
        assert_eq!(take("tie", Some(6), 6, false), Verdict::Known);
        assert_eq!(take("old", Some(5), 7, false), Verdict::Older);
        assert_eq!(take("", Some(7), 8, false), Verdict::Newer);
        assert_eq!(take("late", Some(6), 2, false), Verdict::Older);
        assert_eq!(take("undated", None, 2, false), Verdict::Older);
        assert_eq!(take("undated", None, 9, false), Verdict::Newer);
        assert_eq!(take("ranked", Some(1), 9, true), Verdict::Newer);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut memory = Memory::default();
        memory.take(&version("one", Some(5)), 1, false);
        for (id, rank, gone) in [("é x", None, false), ("gone", Some(Timestamp::UNIX_EPOCH), true)] {
            memory.take(&Version { item: Item::new(id), rank, gone }, 2, false);
        }
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
        let broken: Memory = serde_json::from_str(r#"["", "x y 0 z", "- - 0 ok", "- - x no"]"#).unwrap();
        assert_eq!(broken.len(), 1);
    }
}
