//! Sums of hashes, by which sets are compared without sorting them.

use jiff::Timestamp;
use towpath_proto::change::Seq;
use towpath_proto::item::ContentHash;
use xxhash_rust::xxh3::Xxh3;

use crate::embedded::keys;

/// Sum of the hashes of the members of a set. Two sets with equal sums are equal, but for one chance in 2¹²⁸.
// Damage is no adversary, so a fast hash will do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HashSum(u128);

impl HashSum {
    pub(super) fn add(&mut self, member: u128) {
        self.0 = self.0.wrapping_add(member);
    }

    pub(super) fn remove(&mut self, member: u128) {
        self.0 = self.0.wrapping_sub(member);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.add(other.0);
    }
}

/// Hash of a version of an item: its id, its position, and its item's first version.
pub(super) fn version(id: &[u8], seq: Seq, (first, created): (Seq, Timestamp)) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&seq.to_be_bytes());
    hasher.update(&first.to_be_bytes());
    hasher.update(&keys::time(created));
    hasher.update(id);
    hasher.digest128()
}

/// Hash of an item's latest version, with the hash of its content; `None` for a deletion.
pub(super) fn latest(version: u128, content: Option<&ContentHash>) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&version.to_be_bytes());
    hasher.update(content.map_or(&[], |hash| &hash.0));
    hasher.digest128()
}

/// Hash of an index entry that leads from a key to a position.
pub(super) fn entry(key: &[u8], seq: Seq) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&seq.to_be_bytes());
    hasher.update(key);
    hasher.digest128()
}
