//! Stored format of a change.
//!
//! A header of fixed length is followed by the parts whose lengths it has. The content is stored raw, so that a
//! reader gets a slice of the stored value without a copy. Numbers are big endian, times as in `keys`.
//!
//! ```text
//! offset length
//!      0      1  format of the record: 1
//!      1      1  0 put, 1 patch, 2 delete
//!      2      1  flags of present parts: 1 content, 2 patch, 4 entry id
//!      3      1  zero
//!      4      4  length of the item's JSON, a
//!      8      4  length of the content's media type, b
//!     12      4  length of the content, c
//!     16      4  length of the patch's media type, d
//!     20      4  length of the patch, e
//!     24      4  length of the entry id, f
//!     28     12  modified
//!     40     12  created
//!     52      8  position of the item's first version
//!     60      8  position of the version before this one, or 0
//!     68     32  hash of the item
//!    100      a  the item without its content, as JSON
//!             b  the content's media type      c  the content
//!             d  the patch's media type        e  the patch         f  the entry id
//! ```

use std::ops::Range;

use bytes::Bytes;
use byteview::ByteView;
use fjall::Slice;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::item::{Content, ContentHash, Item};

use super::keys::{FieldReader, IdRow, TIME, read_time, time};
use crate::error::StorageError;

const FORMAT: u8 = 1;
const HEADER: usize = 100;
/// Offset of the position of the version before.
const PREVIOUS: usize = 60;
const HAS_CONTENT: u8 = 1;
const HAS_PATCH: u8 = 2;
const HAS_ENTRY_ID: u8 = 4;

/// Maximum length of a record, in bytes. The engine's own limit is four times that.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 30;

/// Record of a change that is not decided yet: its header has no times, positions and hash.
///
/// It is encoded on the caller's thread, so that the commit thread only fills in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordDraft(Bytes);

/// Fields of a change that are decided when it is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeMeta {
    pub(crate) modified: jiff::Timestamp,
    pub(crate) created: jiff::Timestamp,
    pub(crate) first_seq: Seq,
    pub(crate) previous: Option<Seq>,
    pub(crate) hash: ContentHash,
}

impl RecordDraft {
    /// Encodes a change. Fails where the record would exceed [`MAX_RECORD_BYTES`].
    pub(crate) fn new(
        op: Op,
        item: &Item,
        patch: Option<&Content>,
        entry_id: Option<&str>,
    ) -> Result<Self, String> {
        let json =
            serde_json::to_vec(item).map_err(|e| format!("the item cannot be encoded as JSON: {e}"))?;
        let (media_type, content) = type_and_bytes(item.content.as_ref());
        let (patch_type, patch_bytes) = type_and_bytes(patch);
        let parts = [&json, media_type, content, patch_type, patch_bytes, entry_id.unwrap_or("").as_bytes()];
        let length = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        if length > MAX_RECORD_BYTES {
            return Err(format!(
                "its record of {length} bytes exceeds the limit of {MAX_RECORD_BYTES} bytes"
            ));
        }
        // Exact, so that a large item is not copied while the vector grows.
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
        for part in parts {
            // The cast is lossless: no part is longer than the record, which is at most 1 GiB.
            bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
        }
        bytes.resize(HEADER, 0);
        for part in parts {
            bytes.extend_from_slice(part);
        }
        Ok(Self(bytes.into()))
    }

    /// Checks a draft that another node encoded.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, StorageError> {
        let mut fields = FieldReader { bytes: &bytes, what: "a record draft" };
        let [format, ..] = fields.take::<4>()?;
        if format != FORMAT {
            return Err(StorageError::Damaged(format!("a record draft has the unknown format {format}")));
        }
        let mut lengths = [0usize; 6];
        for length in &mut lengths {
            *length = u32::from_be_bytes(fields.take()?) as usize;
        }
        // `complete` splits at the header and would panic on a shorter draft.
        split(&bytes, lengths)?;
        Ok(Self(bytes))
    }

    /// Returns the encoded draft.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Length of the record.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Returns the complete record, with the decided fields in its header.
    pub(crate) fn complete(&self, meta: &ChangeMeta) -> Slice {
        let (blank, parts) = self.0.split_at(HEADER);
        let mut header = [0; HEADER];
        header[..28].copy_from_slice(&blank[..28]);
        header[28..40].copy_from_slice(&time(meta.modified));
        header[40..52].copy_from_slice(&time(meta.created));
        header[52..60].copy_from_slice(&meta.first_seq.to_be_bytes());
        // Positions start at 1, so that 0 can mean none.
        header[60..68].copy_from_slice(&meta.previous.unwrap_or(0).to_be_bytes());
        header[68..100].copy_from_slice(&meta.hash.0);
        // One allocation and one copy: the value goes to the engine as it is.
        ByteView::fused(&header, parts).into()
    }
}

fn type_and_bytes(content: Option<&Content>) -> (&[u8], &[u8]) {
    content.map_or((&[], &[]), |content| (content.media_type.as_bytes(), &content.bytes))
}

impl ChangeMeta {
    /// Returns the fields of a change that was decided elsewhere.
    pub(crate) fn of(change: &Change) -> Self {
        Self {
            modified: change.modified,
            created: change.created,
            first_seq: change.first_seq,
            previous: change.previous,
            hash: change.hash,
        }
    }

    /// Returns the id index row of a change with these fields.
    pub(crate) fn id_row(&self, seq: Seq, op: Op) -> IdRow {
        let hash = (op != Op::Delete).then_some(self.hash);
        IdRow { latest: seq, first: self.first_seq, created: self.created, hash }
    }
}

/// Converts a stored value without a copy.
pub(crate) fn bytes_of(value: Slice) -> Bytes {
    Bytes::from_owner(value)
}

/// Decodes the record that is stored at `seq`.
pub(crate) fn decode(seq: Seq, record: &Bytes) -> Result<Change, StorageError> {
    read(seq, record).map_err(|e| match e {
        StorageError::Damaged(how) => StorageError::Damaged(format!("the record of change {seq}: {how}")),
        other => other,
    })
}

/// Operation and earlier version of a record, without the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLinks {
    pub(crate) is_deletion: bool,
    pub(crate) previous: Option<Seq>,
}

/// Reads [`RecordLinks`].
pub(crate) fn links(record: &[u8]) -> Result<RecordLinks, StorageError> {
    let header = record.first_chunk::<HEADER>();
    let header = header.ok_or_else(|| StorageError::Damaged("a record is shorter than its header".into()))?;
    let mut previous = FieldReader { bytes: &header[PREVIOUS..], what: "the header" };
    let previous = Some(previous.number()?).filter(|previous| *previous != 0);
    Ok(RecordLinks { is_deletion: header[1] == 2, previous })
}

fn read(seq: Seq, record: &Bytes) -> Result<Change, StorageError> {
    let mut fields = FieldReader { bytes: record, what: "the header" };
    let [format, op, flags, _] = fields.take()?;
    if format != FORMAT {
        return Err(StorageError::Damaged(format!("format {format} is unknown")));
    }
    let op = match op {
        0 => Op::Put,
        1 => Op::Patch,
        2 => Op::Delete,
        other => return Err(StorageError::Damaged(format!("operation {other} is unknown"))),
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

    let mut item: Item = serde_json::from_slice(&record[json])
        .map_err(|e| StorageError::Damaged(format!("its item is not valid JSON: {e}")))?;
    if flags & HAS_CONTENT != 0 {
        // The content is a slice of the record: it keeps the whole value alive, but costs no copy.
        item.content = Some(Content { media_type: text(&record[media_type])?, bytes: record.slice(content) });
    }
    let patch = (flags & HAS_PATCH != 0)
        .then(|| {
            Ok::<_, StorageError>(Content {
                media_type: text(&record[patch_type])?,
                bytes: record.slice(patch),
            })
        })
        .transpose()?;
    let entry_id = (flags & HAS_ENTRY_ID != 0).then(|| text(&record[entry_id])).transpose()?;
    Ok(Change { seq, op, modified, created, first_seq, previous, item, patch, entry_id, hash })
}

/// Returns the places of the parts after the header.
fn split(record: &[u8], lengths: [usize; 6]) -> Result<[Range<usize>; 6], StorageError> {
    // Saturating: the lengths of a damaged record may be anything.
    let due = lengths.iter().fold(HEADER, |sum, length| sum.saturating_add(*length));
    if due != record.len() {
        return Err(StorageError::Damaged(format!("{} bytes, expected {due}", record.len())));
    }
    let mut start = HEADER;
    Ok(lengths.map(|length| {
        let part = start..start + length;
        start += length;
        part
    }))
}

fn text(bytes: &[u8]) -> Result<String, StorageError> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| StorageError::Damaged("a string in it is not UTF-8".into()))
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
            RecordDraft::new(change.op, &change.item, change.patch.as_ref(), change.entry_id.as_deref())
                .unwrap();
        bytes_of(draft.complete(&ChangeMeta::of(change)))
    }

    #[test]
    fn changes_roundtrip() {
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
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, place in 0usize..200, byte: u8) {
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
            assert!(matches!(decode(9, &record.slice(..cut)), Err(StorageError::Damaged(_))), "{cut}");
        }
        // Format, operation, both ends of a length, and the item's JSON.
        for (place, byte) in [(0, 2), (1, 3), (4, 0xff), (7, 0), (100, b'x')] {
            let mut bytes = record.to_vec();
            bytes[place] = byte;
            let error = decode(9, &bytes.into()).unwrap_err();
            assert!(error.to_string().contains("change 9"), "{error}");
        }
    }
}
