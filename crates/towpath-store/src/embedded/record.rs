//! A change as it is stored in the log.
//!
//! A header of fixed length, then what it counts, one after another. The content lies raw, so that it is
//! handed out as a slice of the stored value, without a copy. Numbers are big endian, times as in `keys`.
//!
//! ```text
//! offset length
//!      0      1  format of the record: 1
//!      1      1  0 put, 1 patch, 2 delete
//!      2      1  what is present: 1 content, 2 patch, 4 entry id
//!      3      1  zero
//!      4      4  length of the item's JSON, a
//!      8      4  length of the content's media type, b
//!     12      4  length of the content, c
//!     16      4  length of the patch's media type, d
//!     20      4  length of the patch, e
//!     24      4  length of the entry id, f
//!     28     12  modified
//!     40     12  created
//!     52      8  place of the item's first version
//!     60      8  place of the version before this one, or 0
//!     68     32  hash of the item
//!    100      a  the item without its content, as JSON
//!             b  the content's media type      c  the content
//!             d  the patch's media type        e  the patch         f  the entry id
//! ```

use bytes::Bytes;
use byteview::ByteView;
use fjall::Slice;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::item::{Content, ContentHash, Item};

use super::keys::{Fields, TIME, Version, read_time, time};
use crate::StoreError;

const FORMAT: u8 = 1;
const HEADER: usize = 100;
const HAS_CONTENT: u8 = 1;
const HAS_PATCH: u8 = 2;
const HAS_ENTRY_ID: u8 = 4;

/// The longest record, in bytes. The engine's own limit is four times that.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 30;

/// A record whose place in the order is not decided yet: its header, which is there, has no times, places and hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Draft(Bytes);

/// What of a change is decided when it is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) modified: jiff::Timestamp,
    pub(crate) created: jiff::Timestamp,
    pub(crate) first_seq: Seq,
    pub(crate) previous: Option<Seq>,
    pub(crate) hash: ContentHash,
}

impl Draft {
    /// Lays out a change; fails where it would be longer than [`MAX_RECORD_BYTES`].
    pub(crate) fn new(
        op: Op,
        item: &Item,
        patch: Option<&Content>,
        entry_id: Option<&str>,
    ) -> Result<Self, String> {
        let json = serde_json::to_vec(item).map_err(|e| format!("the item cannot be written: {e}"))?;
        let (media_type, content) = parts(item.content.as_ref());
        let (patch_type, patch_bytes) = parts(patch);
        let pieces = [&json, media_type, content, patch_type, patch_bytes, entry_id.unwrap_or("").as_bytes()];
        let length = HEADER + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if length > MAX_RECORD_BYTES {
            return Err(format!("it has {length} bytes, over the limit of {MAX_RECORD_BYTES}"));
        }
        let mut bytes = Vec::with_capacity(length);
        let present = [
            (item.content.is_some(), HAS_CONTENT),
            (patch.is_some(), HAS_PATCH),
            (entry_id.is_some(), HAS_ENTRY_ID),
        ];
        let flags = present.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum();
        let op = match op {
            Op::Put => 0,
            Op::Patch => 1,
            Op::Delete => 2,
        };
        bytes.extend_from_slice(&[FORMAT, op, flags, 0]);
        for piece in pieces {
            // No piece is longer than the record, which is shorter than 4 GiB.
            bytes.extend_from_slice(&(piece.len() as u32).to_be_bytes());
        }
        bytes.resize(HEADER, 0);
        for piece in pieces {
            bytes.extend_from_slice(piece);
        }
        Ok(Self(bytes.into()))
    }

    /// A draft that was laid out elsewhere.
    pub(crate) fn read(bytes: Bytes) -> Result<Self, StoreError> {
        let mut fields = Fields { bytes: &bytes, what: "a draft" };
        let [format, ..] = fields.take::<4>()?;
        if format != FORMAT {
            return Err(StoreError::Damaged(format!("a draft of format {format}, which is unknown")));
        }
        let mut lengths = [0usize; 6];
        for length in &mut lengths {
            *length = u32::from_be_bytes(fields.take()?) as usize;
        }
        split(&bytes, lengths)?;
        Ok(Self(bytes))
    }

    /// The draft as bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How long the record will be.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The record, its place now decided.
    pub(crate) fn at(&self, place: &Place) -> Slice {
        let (blank, pieces) = self.0.split_at(HEADER);
        let mut header = [0; HEADER];
        header[..28].copy_from_slice(&blank[..28]);
        header[28..40].copy_from_slice(&time(place.modified));
        header[40..52].copy_from_slice(&time(place.created));
        header[52..60].copy_from_slice(&place.first_seq.to_be_bytes());
        header[60..68].copy_from_slice(&place.previous.unwrap_or(0).to_be_bytes());
        header[68..100].copy_from_slice(&place.hash.0);
        ByteView::fused(&header, pieces).into()
    }
}

fn parts(content: Option<&Content>) -> (&[u8], &[u8]) {
    content.map_or((&[], &[]), |content| (content.media_type.as_bytes(), &content.bytes))
}

impl Place {
    /// The place of a change that was decided elsewhere.
    pub(crate) fn of(change: &Change) -> Self {
        Self {
            modified: change.modified,
            created: change.created,
            first_seq: change.first_seq,
            previous: change.previous,
            hash: change.hash,
        }
    }

    /// What the index of ids keeps of a change with this place.
    pub(crate) fn version(&self, seq: Seq, op: Op) -> Version {
        let hash = (op != Op::Delete).then_some(self.hash);
        Version { latest: seq, first: self.first_seq, created: self.created, hash }
    }
}

/// A stored value as bytes, without a copy.
pub(crate) fn bytes_of(value: Slice) -> Bytes {
    Bytes::from_owner(value)
}

/// Reads the record that is stored at `seq`.
pub(crate) fn decode(seq: Seq, record: &Bytes) -> Result<Change, StoreError> {
    read(seq, record).map_err(|e| match e {
        StoreError::Damaged(how) => StoreError::Damaged(format!("the record of change {seq}: {how}")),
        other => other,
    })
}

fn read(seq: Seq, record: &Bytes) -> Result<Change, StoreError> {
    let mut fields = Fields { bytes: record, what: "it" };
    let [format, op, flags, _] = fields.take()?;
    if format != FORMAT {
        return Err(StoreError::Damaged(format!("format {format} is unknown")));
    }
    let op = match op {
        0 => Op::Put,
        1 => Op::Patch,
        2 => Op::Delete,
        other => return Err(StoreError::Damaged(format!("operation {other} is unknown"))),
    };
    let mut lengths = [0usize; 6];
    for length in &mut lengths {
        *length = u32::from_be_bytes(fields.take()?) as usize;
    }
    let modified = read_time(fields.take::<TIME>()?)?;
    let created = read_time(fields.take::<TIME>()?)?;
    let first_seq = fields.number()?;
    let previous = Some(fields.number()?).filter(|previous| *previous != 0);
    let hash = ContentHash(fields.take()?);
    let [json, media_type, content, patch_type, patch, entry_id] = split(record, lengths)?;

    let mut item: Item = serde_json::from_slice(&json)
        .map_err(|e| StoreError::Damaged(format!("its item is not JSON: {e}")))?;
    if flags & HAS_CONTENT != 0 {
        item.content = Some(Content { media_type: text(&media_type)?, bytes: content });
    }
    let patch = (flags & HAS_PATCH != 0)
        .then(|| Ok::<_, StoreError>(Content { media_type: text(&patch_type)?, bytes: patch }))
        .transpose()?;
    let entry_id = (flags & HAS_ENTRY_ID != 0).then(|| text(&entry_id)).transpose()?;
    Ok(Change { seq, op, modified, created, first_seq, previous, item, patch, entry_id, hash })
}

/// The pieces behind the header, as slices of the record.
fn split(record: &Bytes, lengths: [usize; 6]) -> Result<[Bytes; 6], StoreError> {
    let due = lengths.iter().fold(HEADER, |sum, length| sum.saturating_add(*length));
    if due != record.len() {
        return Err(StoreError::Damaged(format!("{} bytes where {due} are due", record.len())));
    }
    let mut start = HEADER;
    Ok(lengths.map(|length| {
        let piece = record.slice(start..start + length);
        start += length;
        piece
    }))
}

fn text(bytes: &[u8]) -> Result<String, StoreError> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| StoreError::Damaged("a text in it is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn whole() -> Change {
        let mut item = Item::new("a/b\n\"c\"\0😀");
        item.title = Some("T".into());
        item.tags = vec!["x".into()];
        item.published = Some("2024-02-29T12:00:00.123456789Z".parse().unwrap());
        item.extra =
            json!({"n": 0.1, "big": 1.7976931348623157e308, "xml": ["<a/>"]}).as_object().unwrap().clone();
        item.content = Some(Content::new("application/json; charset=utf-8", "{\"a\":1}"));
        Change {
            seq: 9,
            op: Op::Patch,
            modified: "2024-03-01T00:00:00Z".parse().unwrap(),
            created: Timestamp::MIN,
            first_seq: 3,
            previous: Some(8),
            hash: item.content_hash(),
            item,
            patch: Some(Content::new("application/merge-patch+json", "")),
            entry_id: Some(String::new()),
        }
    }

    fn encode(change: &Change) -> Bytes {
        let draft =
            Draft::new(change.op, &change.item, change.patch.as_ref(), change.entry_id.as_deref()).unwrap();
        bytes_of(draft.at(&Place::of(change)))
    }

    #[test]
    fn changes_come_back() {
        let full = whole();
        assert_eq!(decode(9, &encode(&full)).unwrap(), full);
        let bare = Change {
            op: Op::Delete,
            item: Item::new("x"),
            previous: None,
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
            ..full
        };
        assert_eq!(decode(9, &encode(&bare)).unwrap(), bare);
    }

    #[test]
    fn content_is_a_slice_of_the_record() {
        let record = encode(&whole());
        let content = decode(9, &record).unwrap().item.content.unwrap().bytes;
        assert!(record.as_ptr_range().contains(&content.as_ptr()));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, place in 0usize..200, byte: u8) {
            drop(decode(1, &bytes.into()));
            let mut record = encode(&whole()).to_vec();
            if let Some(at) = record.get_mut(place) {
                *at = byte;
            }
            drop(decode(1, &record.into()));
        }
    }

    #[test]
    fn a_damaged_record_says_so() {
        let record = encode(&whole());
        for cut in 0..record.len() {
            assert!(matches!(decode(9, &record.slice(..cut)), Err(StoreError::Damaged(_))), "{cut}");
        }
        for (place, byte) in [(0, 2), (1, 3), (4, 0xff), (7, 0), (100, b'x')] {
            let mut bytes = record.to_vec();
            bytes[place] = byte;
            let error = decode(9, &bytes.into()).unwrap_err();
            assert!(error.to_string().contains("change 9"), "{error}");
        }
    }
}
