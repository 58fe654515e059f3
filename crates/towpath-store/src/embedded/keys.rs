//! Stored format of keys and of index values.
//!
//! Every key of a feed begins with the feed's number: one keyspace holds all feeds, and a feed's entries are
//! adjacent. Numbers are big endian, so that bytes sort like the numbers.
//!
//! ```text
//! keyspace   key                              value
//! feeds      name                             number:4 seq:8 modified:12 items:8 live:8 [appended:12 [horizon:8]]
//! log        number:4 seq:8                   a record, see `record`
//! ids        number:4 id                      latest:8 first:8 created:12 [hash:32, unless deleted]
//! modified   number:4 latest:8                nothing
//! created    number:4 first:8                 latest:8
//! times      number:4 modified:12             seq:8 of the last change with that time
//! tables     table:1 key                      value
//! tables     0                                next feed number:4
//! tables     0 1 key                          metadata of a replica
//! tables     0 2                              number of the last commit:8, which `journal_mark` compares
//! tables     0 3 number:4                     name of the feed, for the repair of a folder whose `feeds` is lost
//! tables     0 4                              feature level of a replica's cluster:1
//! documents  1 key                            value (of `Table::Documents`)
//!
//! time: seconds:8 since 1970, the sign bit flipped, then nanoseconds:4
//! ```

use byteview::ByteView;
use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::Seq;
use towpath_proto::item::ContentHash;

use super::command::FIRST_LEVEL;
use crate::error::StorageError;
use crate::{LogHead, Table};

/// Number of a feed, which stands for its name in every key.
pub(crate) type FeedNumber = u32;

/// Row of a feed: its number and its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeedRow {
    pub(crate) number: FeedNumber,
    pub(crate) head: LogHead,
    /// Time of the last append, by our clock. Rows of the first versions lack it: there it is the time of the
    /// last change.
    pub(crate) appended: Timestamp,
}

/// Row of an id: its latest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRow {
    /// Position of the latest version.
    pub(crate) latest: Seq,
    /// Position of the first version.
    pub(crate) first: Seq,
    /// Time of the first version.
    pub(crate) created: Timestamp,
    /// Content hash of the latest version; `None` for a tombstone.
    pub(crate) hash: Option<ContentHash>,
}

/// Length of an encoded time.
pub(crate) const TIME: usize = 12;

/// Encodes a time so that bytes sort like times.
pub(crate) fn time(time: Timestamp) -> [u8; TIME] {
    let nanoseconds = time.as_nanosecond();
    // Euclidean division keeps the nanoseconds positive for times before 1970.
    let seconds = nanoseconds.div_euclid(1_000_000_000) as i64;
    let rest = nanoseconds.rem_euclid(1_000_000_000) as u32;
    let mut bytes = [0; TIME];
    // With the sign bit flipped, times before 1970 sort before later ones.
    bytes[..8].copy_from_slice(&((seconds as u64) ^ (1 << 63)).to_be_bytes());
    bytes[8..].copy_from_slice(&rest.to_be_bytes());
    bytes
}

/// Decodes [`time`].
pub(crate) fn read_time(bytes: [u8; TIME]) -> Result<Timestamp, StorageError> {
    let (seconds, rest) = bytes.split_at(8);
    let seconds = (u64_of(seconds) ^ (1 << 63)) as i64;
    let rest = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
    Timestamp::from_nanosecond(i128::from(seconds) * 1_000_000_000 + i128::from(rest))
        .map_err(|e| StorageError::Damaged(format!("a stored time is out of range: {e}")))
}

/// Key of `log`, `modified` and `created`.
pub(crate) fn position_key(feed: FeedNumber, seq: Seq) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&feed.to_be_bytes());
    key[4..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// Decodes the position in a [`position_key`].
pub(crate) fn read_position(key: &[u8]) -> Result<Seq, StorageError> {
    match key.len() {
        12 => Ok(u64_of(&key[4..])),
        length => Err(StorageError::Damaged(format!("a key of {length} bytes, expected 12"))),
    }
}

/// Key of `ids`.
pub(crate) fn id(feed: FeedNumber, id: &str) -> Slice {
    // The id comes last, unescaped: no part of the key follows that it could run into.
    ByteView::fused(&feed.to_be_bytes(), id.as_bytes()).into()
}

/// Decodes the id in an [`id`].
pub(crate) fn read_id(key: &[u8]) -> Result<&str, StorageError> {
    let text = key.get(4..).and_then(|id| std::str::from_utf8(id).ok());
    text.ok_or_else(|| StorageError::Damaged("an id in the id index is not UTF-8".into()))
}

/// Key of `times`.
pub(crate) fn time_key(feed: FeedNumber, modified: Timestamp) -> [u8; 4 + TIME] {
    let mut key = [0; 4 + TIME];
    key[..4].copy_from_slice(&feed.to_be_bytes());
    key[4..].copy_from_slice(&time(modified));
    key
}

/// Key of `tables` and `documents`.
pub(crate) fn entry(table: Table, key: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(1 + key.len());
    entry.push(tag(table));
    entry.extend_from_slice(key);
    entry
}

/// Key of `tables` for the number of the next new feed.
pub(crate) const NEXT_FEED: &[u8] = &[0];

/// Key of `tables` for the number of the last commit.
pub(crate) const COMMIT: &[u8] = &[0, 2];

/// Prefix of keys of `tables` for the names of feeds.
pub(crate) const FEED_NAMES: &[u8] = &[0, 3];

/// Key of `tables` for the name of a feed.
pub(crate) fn feed_name(number: FeedNumber) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [0, 3, a, b, c, d]
}

/// Returns the row of a feed as the first format has it, if its log is whole.
pub(crate) fn without_empty_horizon(row: &[u8]) -> &[u8] {
    match row.split_last_chunk::<8>() {
        Some((first, [0, 0, 0, 0, 0, 0, 0, 0])) if first.len() == 52 => first,
        _ => row,
    }
}

/// Key of `tables` for the feature level of a cluster.
pub(crate) const LEVEL: &[u8] = &[0, 4];

/// Key of `tables` for metadata of a replica.
pub(crate) fn metadata(key: &[u8]) -> Vec<u8> {
    [&[0, 1], key].concat()
}

/// Returns the table of a tag.
pub(crate) fn table(tag: u8) -> Option<Table> {
    let tables = [Table::Sources, Table::Chains, Table::Documents, Table::Subscriptions, Table::Leases];
    tables.into_iter().find(|table| self::tag(*table) == tag)
}

/// Returns the tag of a table in keys and commands.
pub(crate) fn tag(table: Table) -> u8 {
    match table {
        // These numbers are in stored keys and in logs of clusters: they never change.
        Table::Sources => 1,
        Table::Chains => 2,
        Table::Documents => 3,
        Table::Subscriptions => 4,
        Table::Leases => 5,
    }
}

impl FeedRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(60);
        value.extend_from_slice(&self.number.to_be_bytes());
        value.extend_from_slice(&self.head.seq.to_be_bytes());
        value.extend_from_slice(&time(self.head.modified));
        value.extend_from_slice(&self.head.items.to_be_bytes());
        value.extend_from_slice(&self.head.live.to_be_bytes());
        value.extend_from_slice(&time(self.appended));
        value.extend_from_slice(&self.head.horizon.to_be_bytes());
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, StorageError> {
        let mut fields = FieldReader { bytes: value, what: "a feed row" };
        let number = u32::from_be_bytes(fields.take()?);
        let mut head = LogHead {
            seq: fields.number()?,
            modified: read_time(fields.take()?)?,
            items: fields.number()?,
            live: fields.number()?,
            horizon: 0,
        };
        // Rows of the first versions end here.
        let appended = if fields.bytes.is_empty() { head.modified } else { read_time(fields.take()?)? };
        // Rows of format 1 end here.
        head.horizon = if fields.bytes.is_empty() { 0 } else { fields.number()? };
        fields.end()?;
        Ok(Self { number, head, appended })
    }
}

impl IdRow {
    pub(crate) fn encode(&self) -> Slice {
        let mut value = [0; 60];
        value[..8].copy_from_slice(&self.latest.to_be_bytes());
        value[8..16].copy_from_slice(&self.first.to_be_bytes());
        value[16..28].copy_from_slice(&time(self.created));
        match &self.hash {
            Some(hash) => {
                value[28..].copy_from_slice(&hash.0);
                value.into()
            }
            // A tombstone has no hash, and saves the space of one.
            None => value[..28].into(),
        }
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, StorageError> {
        let mut fields = FieldReader { bytes: value, what: "an id row" };
        let (latest, first, created) = (fields.number()?, fields.number()?, read_time(fields.take()?)?);
        let hash = if fields.bytes.is_empty() { None } else { Some(ContentHash(fields.take()?)) };
        fields.end()?;
        Ok(Self { latest, first, created, hash })
    }
}

/// Reader of a value's fields. `what` names the value in errors.
pub(crate) struct FieldReader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) what: &'static str,
}

impl FieldReader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], StorageError> {
        let (first, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.damaged("too short"))?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StorageError> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    pub(crate) fn end(&self) -> Result<(), StorageError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.damaged("too long")) }
    }

    fn damaged(&self, how: &str) -> StorageError {
        StorageError::Damaged(format!("{} is {how}", self.what))
    }
}

/// Decodes the feature level of a cluster.
pub(crate) fn read_level(value: Option<&[u8]>) -> Result<u8, StorageError> {
    match value {
        None => Ok(FIRST_LEVEL),
        Some([level]) => Ok(*level),
        Some(_) => Err(StorageError::Damaged("the feature level has an unexpected length".into())),
    }
}

/// Decodes a value that is one position.
pub(crate) fn read_seq(value: &[u8]) -> Result<Seq, StorageError> {
    let mut fields = FieldReader { bytes: value, what: "a position" };
    let seq = fields.number()?;
    fields.end()?;
    Ok(seq)
}

/// Decodes the number in the first 8 bytes; the caller has checked that they exist.
fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times() -> impl Strategy<Value = Timestamp> {
        let range = Timestamp::MIN.as_nanosecond()..=Timestamp::MAX.as_nanosecond();
        range.prop_map(|n| Timestamp::from_nanosecond(n).unwrap())
    }

    proptest! {
        #[test]
        fn times_roundtrip_and_sort_as_bytes(a in times(), b in times()) {
            prop_assert_eq!(read_time(time(a)).unwrap(), a);
            prop_assert_eq!(time(a).cmp(&time(b)), a.cmp(&b));
        }

        #[test]
        fn values_roundtrip(
            number: u32, seq: u64, at in times(), appended in times(), items: u64, hash: Option<[u8; 32]>,
            horizon: u64, cut in 0usize..40,
        ) {
            let feed = FeedRow { number, head: LogHead { seq, modified: at, items, live: items / 2, horizon }, appended };
            let value = feed.encode();
            prop_assert_eq!(FeedRow::decode(&value).unwrap(), feed);
            // A row of the first versions, without the time of the last append.
            let whole = FeedRow { head: LogHead { horizon: 0, ..feed.head }, ..feed };
            prop_assert_eq!(FeedRow::decode(&value[..40]).unwrap(), FeedRow { appended: at, ..whole });
            prop_assert_eq!(FeedRow::decode(&value[..52]).unwrap(), whole);
            prop_assert!(FeedRow::decode(&value[..cut]).is_err());

            let version = IdRow { latest: seq, first: items, created: at, hash: hash.map(ContentHash) };
            prop_assert_eq!(IdRow::decode(&version.encode()).unwrap(), version);
            prop_assert_eq!(read_position(&position_key(number, seq)).unwrap(), seq);
            prop_assert_eq!(read_seq(&seq.to_be_bytes()).unwrap(), seq);
        }
    }

    #[test]
    fn a_truncated_row_is_damaged() {
        let version =
            IdRow { latest: 2, first: 1, created: Timestamp::UNIX_EPOCH, hash: Some(ContentHash([7; 32])) };
        let value = version.encode();
        // 28 bytes are a whole row: that of a tombstone.
        for cut in (0..value.len()).filter(|cut| *cut != 28) {
            assert!(matches!(IdRow::decode(&value[..cut]), Err(StorageError::Damaged(_))), "{cut}");
        }
    }
}
