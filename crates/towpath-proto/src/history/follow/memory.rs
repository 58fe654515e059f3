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

/// How a document stands to what was read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// It comes after all documents before: of equally old versions its own counts.
    Later,
    /// It is read late: of equally old versions the known one counts.
    Earlier,
    /// It is all that there is: its versions count whatever their age.
    Whole,
}

impl Memory {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the last version of an entry is known already.
    pub(super) fn has(&self, version: &Version) -> bool {
        self.entries.get(version.item.id.as_str()).is_some_and(|known| known.digest == digest(version))
    }

    /// Takes a version, where it is newer than what is known: "newest `updated` wins, a tie goes to the later
    /// document" (RFC 5005, section 4.2). Versions without dates are as old as the document.
    pub(super) fn take(&mut self, version: &Version, age: Age) -> Verdict {
        let new = Known { rank: version.rank, digest: digest(version) };
        let Some(known) = self.entries.get_mut(version.item.id.as_str()) else {
            self.entries.insert(version.item.id.as_str().into(), new);
            return Verdict::New;
        };
        let is_newer = match (new.rank, known.rank) {
            _ if age == Age::Whole => true,
            (Some(new), Some(known)) if new != known => new > known,
            _ => age == Age::Later,
        };
        if !is_newer {
            return if new.digest == known.digest { Verdict::Known } else { Verdict::Older };
        }
        let verdict = if new.digest == known.digest { Verdict::Known } else { Verdict::Newer };
        *known = Known { rank: new.rank.or(known.rank), ..new };
        verdict
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
    /// A line for each entry: the digest in hex or `-`, the time or `-`, the id.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let line = |(id, known): (&Box<str>, &Known)| {
            let digest = known.digest.map_or_else(|| "-".to_owned(), |digest| format!("{digest:016x}"));
            let rank = known.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            format!("{digest} {rank} {id}")
        };
        serializer.collect_seq(self.entries.iter().map(line))
    }
}

impl From<Vec<String>> for Memory {
    /// A line that is none is passed over: the entry is told again.
    fn from(lines: Vec<String>) -> Self {
        let entry = |line: &String| {
            let mut parts = line.splitn(3, ' ');
            let (digest, rank, id) = (parts.next()?, parts.next()?, parts.next()?);
            let digest = match digest {
                "-" => None,
                hex => Some(u64::from_str_radix(hex, 16).ok()?),
            };
            Some((id.into(), Known { rank: rank.parse().ok(), digest }))
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
        assert_eq!(memory.take(&version("one", Some(5)), Age::Later), Verdict::New);
        assert_eq!(memory.take(&version("old", Some(4)), Age::Later), Verdict::Older);
        assert_eq!(memory.take(&version("tie", Some(5)), Age::Earlier), Verdict::Older);
        assert_eq!(memory.take(&version("tie", Some(5)), Age::Later), Verdict::Newer);
        assert_eq!(memory.take(&version("tie", Some(6)), Age::Later), Verdict::Known);
        assert_eq!(memory.take(&version("old", Some(5)), Age::Later), Verdict::Older);
        assert_eq!(memory.take(&version("", Some(7)), Age::Later), Verdict::Newer);
        assert_eq!(memory.take(&version("late", Some(6)), Age::Earlier), Verdict::Older);
        assert_eq!(memory.take(&version("undated", None), Age::Earlier), Verdict::Older);
        assert_eq!(memory.take(&version("undated", None), Age::Later), Verdict::Newer);
        assert_eq!(memory.take(&version("ranked", Some(1)), Age::Whole), Verdict::Newer);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut memory = Memory::default();
        memory.take(&version("one", Some(5)), Age::Later);
        for (id, rank, gone) in [("é x", None, false), ("gone", Some(Timestamp::UNIX_EPOCH), true)] {
            memory.take(&Version { item: Item::new(id), rank, gone }, Age::Later);
        }
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
        let broken: Memory = serde_json::from_str(r#"["", "x y z", "- - ok"]"#).unwrap();
        assert_eq!(broken.len(), 1);
    }
}
