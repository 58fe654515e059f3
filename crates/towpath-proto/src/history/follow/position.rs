//! Positions of single entries: a resume point for each change.
//!
//! `{document}#{version}` names the place after a version of an entry, in the document that had it. `version` is a digest of
//! the entry's id, date and content. So the place is found in any document that has the version, also once the feed divides
//! its history otherwise. A URL alone is the place before a document.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::document::{DocumentContents, EntryVersion};
use super::pass::without_fragment;

/// The place after a version of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryPosition {
    /// URL of the document that had the version, without fragment.
    pub(super) document: String,
    version: VersionDigest,
}

/// Digest of a version of an entry: 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct VersionDigest(String);

impl VersionDigest {
    fn of(version: &EntryVersion) -> Self {
        let rank = version.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let digest = version.digest().map(|digest| digest.to_string()).unwrap_or_default();
        // Dates and numbers have no space, so different versions never give the same input.
        let text = format!("{rank} {digest} {}", version.item.id);
        Self(hex::encode(&Sha256::digest(text)[..8]))
    }
}

impl EntryPosition {
    /// Creates the position after a version in a document.
    pub(super) fn after(version: &EntryVersion, document: &str) -> Self {
        Self { document: without_fragment(document).to_owned(), version: VersionDigest::of(version) }
    }

    /// Returns true if this is the position after a version.
    pub(super) fn is_after(&self, version: &EntryVersion) -> bool {
        VersionDigest::of(version) == self.version
    }

    /// Returns the index of the version in a document that has it.
    pub(super) fn find(&self, document: &DocumentContents) -> Option<usize> {
        document.versions.iter().position(|version| self.is_after(version))
    }

    /// Returns true if the position is in the document at this URL.
    pub(super) fn is_in(&self, url: &str) -> bool {
        self.document == without_fragment(url)
    }
}

impl fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.document, self.version.0)
    }
}

impl FromStr for EntryPosition {
    type Err = ();

    /// Fails for any other text, such as the URL of a document.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (document, version) = text.rsplit_once('#').ok_or(())?;
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        if version.len() != 16 || !version.chars().all(is_digit) {
            return Err(());
        }
        Ok(Self { document: document.to_owned(), version: VersionDigest(version.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::item::Item;

    fn version(title: &str, rank: Option<Timestamp>) -> EntryVersion {
        if title.is_empty() {
            return EntryVersion::deleted(rank, "urn:a".into());
        }
        EntryVersion::of(rank, Item { title: Some(title.into()), ..Item::new("urn:a") })
    }

    #[test]
    fn positions_are_written_and_read() {
        for title in ["a", ""] {
            let position = EntryPosition::after(&version(title, None), "http://x/1?a=b#c");
            assert_eq!(position.to_string().parse(), Ok(position.clone()), "{position}");
            assert!(position.is_in("http://x/1?a=b") && !position.is_in("http://x/1"));
        }
        for none in
            ["", "http://x/1", "http://x/1#a", "http://x/1#0123456789ABCDEF", "http://x/1#0123456789abcdef0"]
        {
            assert_eq!(none.parse::<EntryPosition>(), Err(()), "{none}");
        }
    }

    #[test]
    fn each_version_has_its_own_digest() {
        let date = Some(Timestamp::UNIX_EPOCH);
        let versions = [
            version("a", None),
            version("b", None),
            version("a", date),
            version("", None),
            version("", date),
        ];
        let digests: std::collections::BTreeSet<String> =
            versions.iter().map(|version| VersionDigest::of(version).0).collect();
        assert_eq!(digests.len(), versions.len(), "{digests:?}");
    }
}
