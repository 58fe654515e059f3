//! Keys and the small values of the indexes.
//!
//! Every key of a feed begins with the feed's number, so that one keyspace of the engine holds all feeds and
//! a feed's entries stand together. Numbers are big endian, so that bytes order as the numbers do.
//!
//! ```text
//! keyspace   key                              value
//! feeds      name                             number:4 seq:8 modified:12 items:8 live:8 [appended:12]
//! log        number:4 seq:8                   a record, see `record`
//! ids        number:4 id                      latest:8 first:8 created:12 [hash:32, unless deleted]
//! modified   number:4 latest:8                nothing
//! created    number:4 first:8                 latest:8
//! times      number:4 modified:12             seq:8 of the last change with that time
//! tables     table:1 key                      value
//! tables     0 1 key                          a replica's note (the number of the next feed stands under 0)
//! documents  1 key                            value (of `Table::Documents`)
//!
//! time: seconds:8 since 1970, the sign bit flipped, then nanoseconds:4
//! ```

use byteview::ByteView;
use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::Seq;
use towpath_proto::item::ContentHash;

use crate::{Head, StoreError, Table};

/// A feed's number: what stands for its name in every key.
pub(crate) type FeedNumber = u32;

/// What is kept of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Feed {
    pub(crate) number: FeedNumber,
    pub(crate) head: Head,
    /// When its last change was appended, by our clock. (Folders of the first versions do not have it: there
    /// it is the change's own time.)
    pub(crate) appended: Timestamp,
}

/// What is kept of an id: its latest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// The place of the latest version.
    pub(crate) latest: Seq,
    /// The place of the first.
    pub(crate) first: Seq,
    /// The time of the first.
    pub(crate) created: Timestamp,
    /// The hash of the latest; `None` where that is a deletion.
    pub(crate) hash: Option<ContentHash>,
}

/// The length of a time in a key or a value.
pub(crate) const TIME: usize = 12;

/// A time so that bytes order as times do.
pub(crate) fn time(time: Timestamp) -> [u8; TIME] {
    let nanoseconds = time.as_nanosecond();
    let seconds = nanoseconds.div_euclid(1_000_000_000) as i64;
    let rest = nanoseconds.rem_euclid(1_000_000_000) as u32;
    let mut bytes = [0; TIME];
    bytes[..8].copy_from_slice(&((seconds as u64) ^ (1 << 63)).to_be_bytes());
    bytes[8..].copy_from_slice(&rest.to_be_bytes());
    bytes
}

/// Reads [`time`].
pub(crate) fn read_time(bytes: [u8; TIME]) -> Result<Timestamp, StoreError> {
    let (seconds, rest) = bytes.split_at(8);
    let seconds = (u64_of(seconds) ^ (1 << 63)) as i64;
    let rest = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
    Timestamp::from_nanosecond(i128::from(seconds) * 1_000_000_000 + i128::from(rest))
        .map_err(|e| StoreError::Damaged(format!("a stored time is none: {e}")))
}

/// A key of `log`, `modified` and `created`.
pub(crate) fn place(feed: FeedNumber, seq: Seq) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&feed.to_be_bytes());
    key[4..].copy_from_slice(&seq.to_be_bytes());
    key
}

/// Reads the place out of [`place`].
pub(crate) fn read_place(key: &[u8]) -> Result<Seq, StoreError> {
    match key.len() {
        12 => Ok(u64_of(&key[4..])),
        length => Err(StoreError::Damaged(format!("a key of {length} bytes where 12 are due"))),
    }
}

/// A key of `ids`.
pub(crate) fn id(feed: FeedNumber, id: &str) -> Slice {
    ByteView::fused(&feed.to_be_bytes(), id.as_bytes()).into()
}

/// Reads the id out of [`id`].
pub(crate) fn read_id(key: &[u8]) -> Result<&str, StoreError> {
    let text = key.get(4..).and_then(|id| std::str::from_utf8(id).ok());
    text.ok_or_else(|| StoreError::Damaged("an id in the index of ids is not UTF-8".into()))
}

/// A key of `times`.
pub(crate) fn moment(feed: FeedNumber, modified: Timestamp) -> [u8; 4 + TIME] {
    let mut key = [0; 4 + TIME];
    key[..4].copy_from_slice(&feed.to_be_bytes());
    key[4..].copy_from_slice(&time(modified));
    key
}

/// A key of `tables` and `documents`.
pub(crate) fn entry(table: Table, key: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(1 + key.len());
    entry.push(tag(table));
    entry.extend_from_slice(key);
    entry
}

/// Under which key of `tables` the number of the next new feed stands.
pub(crate) const NEXT_FEED: &[u8] = &[0];

/// Under which key of `tables` a replica's note stands.
pub(crate) fn note(key: &[u8]) -> Vec<u8> {
    [&[0, 1], key].concat()
}

/// The table that a number stands for.
pub(crate) fn table(tag: u8) -> Option<Table> {
    let tables = [Table::Sources, Table::Chains, Table::Documents, Table::Subscriptions, Table::Leases];
    tables.into_iter().find(|table| self::tag(*table) == tag)
}

/// The number that stands for a table in keys.
pub(crate) fn tag(table: Table) -> u8 {
    match table {
        Table::Sources => 1,
        Table::Chains => 2,
        Table::Documents => 3,
        Table::Subscriptions => 4,
        Table::Leases => 5,
    }
}

impl Feed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(52);
        value.extend_from_slice(&self.number.to_be_bytes());
        value.extend_from_slice(&self.head.seq.to_be_bytes());
        value.extend_from_slice(&time(self.head.modified));
        value.extend_from_slice(&self.head.items.to_be_bytes());
        value.extend_from_slice(&self.head.live.to_be_bytes());
        value.extend_from_slice(&time(self.appended));
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, StoreError> {
        let mut fields = Fields { bytes: value, what: "a feed's head" };
        let number = u32::from_be_bytes(fields.take()?);
        let head = Head {
            seq: fields.number()?,
            modified: read_time(fields.take()?)?,
            items: fields.number()?,
            live: fields.number()?,
        };
        let appended = if fields.bytes.is_empty() { head.modified } else { read_time(fields.take()?)? };
        fields.end()?;
        Ok(Self { number, head, appended })
    }
}

impl Version {
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
            None => value[..28].into(),
        }
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, StoreError> {
        let mut fields = Fields { bytes: value, what: "an id's entry" };
        let (latest, first, created) = (fields.number()?, fields.number()?, read_time(fields.take()?)?);
        let hash = if fields.bytes.is_empty() { None } else { Some(ContentHash(fields.take()?)) };
        fields.end()?;
        Ok(Self { latest, first, created, hash })
    }
}

/// Reads a value's fields one after another.
pub(crate) struct Fields<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) what: &'static str,
}

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (first, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| self.damaged("too short"))?;
        self.bytes = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    pub(crate) fn end(&self) -> Result<(), StoreError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.damaged("too long")) }
    }

    fn damaged(&self, how: &str) -> StoreError {
        StoreError::Damaged(format!("{} is {how}", self.what))
    }
}

/// Reads a place that stands alone.
pub(crate) fn read_seq(value: &[u8]) -> Result<Seq, StoreError> {
    let mut fields = Fields { bytes: value, what: "a place" };
    let seq = fields.number()?;
    fields.end()?;
    Ok(seq)
}

/// The number in the first 8 of `bytes`, which are there.
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
        fn times_come_back_and_order_as_bytes(a in times(), b in times()) {
            prop_assert_eq!(read_time(time(a)).unwrap(), a);
            prop_assert_eq!(time(a).cmp(&time(b)), a.cmp(&b));
        }

        #[test]
        fn values_come_back(
            number: u32, seq: u64, at in times(), appended in times(), items: u64, hash: Option<[u8; 32]>,
            cut in 0usize..40,
        ) {
            let feed = Feed { number, head: Head { seq, modified: at, items, live: items / 2 }, appended };
            let value = feed.encode();
            prop_assert_eq!(Feed::decode(&value).unwrap(), feed);
            prop_assert_eq!(Feed::decode(&value[..40]).unwrap(), Feed { appended: at, ..feed });
            prop_assert!(Feed::decode(&value[..cut]).is_err());

            let version = Version { latest: seq, first: items, created: at, hash: hash.map(ContentHash) };
            prop_assert_eq!(Version::decode(&version.encode()).unwrap(), version);
            prop_assert_eq!(read_place(&place(number, seq)).unwrap(), seq);
            prop_assert_eq!(read_seq(&seq.to_be_bytes()).unwrap(), seq);
        }
    }

    #[test]
    fn an_entry_that_was_cut_off_is_damaged() {
        let version =
            Version { latest: 2, first: 1, created: Timestamp::UNIX_EPOCH, hash: Some(ContentHash([7; 32])) };
        let value = version.encode();
        for cut in (0..value.len()).filter(|cut| *cut != 28) {
            assert!(matches!(Version::decode(&value[..cut]), Err(StoreError::Damaged(_))), "{cut}");
        }
    }
}
