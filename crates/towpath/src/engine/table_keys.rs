//! Keys of rows in the tables that several parts of the program share.
//!
//! Each part makes its keys itself, so its prefix must be no other's. `{…}` is a part that varies.
//!
//! | table | keys |
//! |---|---|
//! | `Sources` | `{feed}` (state of its source), `about/`, `control/`, `follow/`, `polls/`, `private/`, `publish-at/`, `push/`, `smart/identity` |
//! | `Chains` | `alerts`, `counted/`, `counts/`, `diffdelta/`, `export/`, `http-feed/`, `pings/`, `replication/`, `sink/`, `uploads/` |
//! | `Documents` | `attachment-chunks/`, `attachment-names/`, `attachments/`, documents of the protocols |
//!
//! Ids of feeds have no slash.

/// Encodes a number so that keys sort by it, also negative ones.
pub(crate) fn sortable(number: i64) -> [u8; 8] {
    // Flips the sign bit: negative numbers then come before the others as big-endian bytes.
    number.wrapping_sub(i64::MIN).cast_unsigned().to_be_bytes()
}

/// Decodes a number that [`sortable`] encoded.
pub(crate) fn from_sortable(bytes: [u8; 8]) -> i64 {
    u64::from_be_bytes(bytes).cast_signed().wrapping_add(i64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers() {
        let numbers = [i64::MIN, -86_400, -1, 0, 1, 86_400, i64::MAX];
        let keys = numbers.map(sortable);
        assert!(keys.is_sorted());
        assert_eq!(keys.map(from_sortable), numbers);
    }
}
