//! Write requests as a cluster's log carries them. Every node decides and applies the same commands.
//!
//! A put is carried as the record draft to store, with its hash. So the node that received it checks, encodes and
//! hashes the item once, and the nodes that apply it do not.
//!
//! ```text
//! command   1 feed·2  expected            count:4 changes     an append
//!           2 count:4 conditions          count:4 writes      table writes
//!           3 level:1                     raise of the cluster's feature level
//! condition table:1 key·4 (0 | 1 value·4 | 2 sha-256:32)
//! expected  0 | 1 seq:8 | 2 seq:8 | 3     any, the log's end, the item's version, no such item
//! change    op:1 flags:1 id·2 [modified:12] then
//!           put     hash:32 record·4
//!           patch   media-type·4 patch·4 [entry-id·4]
//!           delete  [entry-id·4]
//! write     table:1 key·4 (0 | 1 value·4)
//!
//! x·n: length of x in n bytes, then x. Numbers are big endian, times as in `keys`.
//! ```

use bytes::{Buf, Bytes};
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, ContentHash};

use super::decide::{self, PreparedChange, PreparedOp};
use super::keys::{self, TIME, read_time, time};
use super::precondition::{LoggedPrecondition, LoggedValue};
use super::record::RecordDraft;
use crate::error::StorageError;
use crate::{AppendError, Appended, Expected, Precondition, Table, TableWrite, WriteError};

// These numbers are in the logs of clusters: they never change.
const APPEND: u8 = 1;
const WRITE: u8 = 2;
const RAISE_LEVEL: u8 = 3;
const PUT: u8 = 0;
const PATCH: u8 = 1;
const DELETE: u8 = 2;
const HAS_MODIFIED: u8 = 1;
const HAS_ENTRY_ID: u8 = 2;

/// Feature level of clusters whose log has no raise.
pub const FIRST_LEVEL: u8 = 1;

/// Write request of the log, checked as far as is possible before it is decided.
#[derive(Debug)]
pub struct LogCommand(pub(super) CommandBody);

#[derive(Debug)]
pub(super) enum CommandBody {
    Append { feed: FeedId, expected: Expected, changes: Vec<PreparedChange> },
    Write { writes: Vec<TableWrite>, conditions: Vec<LoggedPrecondition> },
    RaiseLevel { level: u8 },
}

/// Decision on a [`LogCommand`].
#[derive(Debug)]
pub enum CommandResult {
    /// Decision on an append.
    Append(Result<Appended, AppendError>),
    /// Decision on table writes.
    Write(Result<(), WriteError>),
    /// Feature level after a raise, which takes effect only where it is the next one.
    Level(u8),
}

impl LogCommand {
    /// Creates an append.
    ///
    /// # Errors
    ///
    /// [`AppendError::Invalid`] if a change cannot be stored.
    pub fn append(feed: &FeedId, expected: Expected, changes: Vec<NewChange>) -> Result<Self, AppendError> {
        let (feed, changes) = (feed.clone(), decide::prepare(feed, changes)?);
        Ok(Self(CommandBody::Append { feed, expected, changes }))
    }

    /// Creates table writes.
    ///
    /// # Errors
    ///
    /// [`WriteError::KeyTooLong`].
    pub fn write(writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<Self, WriteError> {
        decide::check_keys(&writes)?;
        let conditions =
            conditions.into_iter().map(|condition| LoggedPrecondition::from(condition).shorten()).collect();
        Ok(Self(CommandBody::Write { writes, conditions }))
    }

    /// Creates the raise of a cluster to the next feature level.
    pub fn raise_level(level: u8) -> Self {
        Self(CommandBody::RaiseLevel { level })
    }

    /// Returns the feature level that a node needs to decide the command.
    pub fn level(&self) -> u8 {
        match &self.0 {
            CommandBody::Append { .. } | CommandBody::Write { .. } => FIRST_LEVEL,
            // A node without the level must not go on as if it had read the raise.
            CommandBody::RaiseLevel { level } => *level,
        }
    }

    /// Appends the encoded command to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match &self.0 {
            CommandBody::Append { feed, expected, changes } => {
                to.push(APPEND);
                short(to, feed.as_str().as_bytes());
                match expected {
                    Expected::Any => to.push(0),
                    Expected::Last(seq) => {
                        to.push(1);
                        to.extend_from_slice(&seq.to_be_bytes());
                    }
                    Expected::Version(Some(seq)) => {
                        to.push(2);
                        to.extend_from_slice(&seq.to_be_bytes());
                    }
                    Expected::Version(None) => to.push(3),
                }
                count(to, changes.len());
                changes.iter().for_each(|prepared| change(to, prepared));
            }
            CommandBody::Write { writes, conditions } => {
                to.push(WRITE);
                count(to, conditions.len());
                conditions.iter().for_each(|condition| precondition(to, condition));
                count(to, writes.len());
                writes.iter().for_each(|one| write(to, one));
            }
            CommandBody::RaiseLevel { level } => to.extend_from_slice(&[RAISE_LEVEL, *level]),
        }
    }

    /// Decodes one command from the beginning of `from`, and advances it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are damaged, or of a later version.
    pub fn decode(from: &mut Bytes) -> Result<Self, DecodeError> {
        // The bytes come from the log, which other versions of the program also write to. Each read is checked,
        // because a panic here would repeat on every node and after every restart.
        let mut reader = CommandReader(from);
        match reader.byte()? {
            APPEND => {
                let feed = FeedId::new(&reader.short_text()?).map_err(|e| damaged(&e.to_string()))?;
                let expected = reader.expected()?;
                let changes = reader.list(CommandReader::change)?;
                Ok(Self(CommandBody::Append { feed, expected, changes }))
            }
            WRITE => {
                let conditions = reader.list(CommandReader::precondition)?;
                let writes = reader.list(CommandReader::write)?;
                Ok(Self(CommandBody::Write { writes, conditions }))
            }
            RAISE_LEVEL => Ok(Self(CommandBody::RaiseLevel { level: reader.byte()? })),
            other => Err(damaged(&format!("the command kind {other} is unknown"))),
        }
    }
}

fn count(to: &mut Vec<u8>, count: usize) {
    to.extend_from_slice(&(count as u32).to_be_bytes());
}

fn short(to: &mut Vec<u8>, bytes: &[u8]) {
    // Lossless: feed names have at most 32 bytes, and checked ids at most 2048.
    to.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    to.extend_from_slice(bytes);
}

fn long(to: &mut Vec<u8>, bytes: &[u8]) {
    count(to, bytes.len());
    to.extend_from_slice(bytes);
}

fn write(to: &mut Vec<u8>, write: &TableWrite) {
    to.push(keys::tag(write.table));
    long(to, &write.key);
    to.push(write.value.is_some().into());
    if let Some(value) = &write.value {
        long(to, value);
    }
}

fn precondition(to: &mut Vec<u8>, condition: &LoggedPrecondition) {
    to.push(keys::tag(condition.table));
    long(to, &condition.key);
    match &condition.value {
        LoggedValue::Absent => to.push(0),
        LoggedValue::Value(value) => {
            to.push(1);
            long(to, value);
        }
        LoggedValue::Digest(digest) => {
            to.push(2);
            to.extend_from_slice(digest);
        }
    }
}

fn change(to: &mut Vec<u8>, change: &PreparedChange) {
    let (tag, entry_id) = match &change.op {
        // A put carries the entry id in its record draft.
        PreparedOp::Put { .. } => (PUT, None),
        PreparedOp::Patch(_) => (PATCH, change.entry_id.as_ref()),
        PreparedOp::Delete => (DELETE, change.entry_id.as_ref()),
    };
    let modified = if change.modified.is_some() { HAS_MODIFIED } else { 0 };
    // Without a time, the time of the message counts, which is equal on all nodes.
    to.extend_from_slice(&[tag, modified | if entry_id.is_some() { HAS_ENTRY_ID } else { 0 }]);
    short(to, change.id.as_bytes());
    to.extend(change.modified.iter().flat_map(|modified| time(*modified)));
    match &change.op {
        PreparedOp::Put { draft, hash } => {
            to.extend_from_slice(&hash.0);
            long(to, draft.as_bytes());
        }
        PreparedOp::Patch(patch) => {
            long(to, patch.media_type.as_bytes());
            long(to, &patch.bytes);
        }
        PreparedOp::Delete => {}
    }
    if let Some(entry_id) = entry_id {
        long(to, entry_id.as_bytes());
    }
}

/// A command's bytes that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode a command of the log: {reason}")]
pub struct DecodeError {
    reason: String,
}

impl From<StorageError> for DecodeError {
    fn from(error: StorageError) -> Self {
        damaged(&error.to_string())
    }
}

fn damaged(reason: &str) -> DecodeError {
    DecodeError { reason: reason.to_owned() }
}

/// Reader of a command's fields, which it takes off the beginning of a message.
struct CommandReader<'a>(&'a mut Bytes);

impl CommandReader<'_> {
    fn bytes(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if self.0.len() < length {
            return Err(damaged("it is truncated"));
        }
        Ok(self.0.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let array = self.0.first_chunk::<N>().copied().ok_or_else(|| damaged("it is truncated"))?;
        self.0.advance(N);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn expected(&mut self) -> Result<Expected, DecodeError> {
        match self.byte()? {
            0 => Ok(Expected::Any),
            1 => Ok(Expected::Last(self.u64()?)),
            2 => Ok(Expected::Version(Some(self.u64()?))),
            3 => Ok(Expected::Version(None)),
            other => Err(damaged(&format!("{other}, expected 0 to 3"))),
        }
    }

    fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(damaged(&format!("{other}, expected 0 or 1"))),
        }
    }

    fn long(&mut self) -> Result<Bytes, DecodeError> {
        let length = u32::from_be_bytes(self.array()?);
        self.bytes(length as usize)
    }

    fn long_text(&mut self) -> Result<String, DecodeError> {
        text(&self.long()?)
    }

    fn short_text(&mut self) -> Result<String, DecodeError> {
        let length = u16::from_be_bytes(self.array()?);
        text(&self.bytes(length.into())?)
    }

    fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = u32::from_be_bytes(self.array()?) as usize;
        // The count is not trusted: a damaged message must not reserve gigabytes.
        let mut list = Vec::with_capacity(count.min(self.0.len() / 64));
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }

    fn key(&mut self) -> Result<(Table, Vec<u8>), DecodeError> {
        let tag = self.byte()?;
        let table = keys::table(tag).ok_or_else(|| damaged(&format!("table {tag} is unknown")))?;
        Ok((table, self.long()?.to_vec()))
    }

    fn write(&mut self) -> Result<TableWrite, DecodeError> {
        let (table, key) = self.key()?;
        let value = if self.flag()? { Some(self.long()?) } else { None };
        Ok(TableWrite { table, key, value })
    }

    fn precondition(&mut self) -> Result<LoggedPrecondition, DecodeError> {
        let (table, key) = self.key()?;
        let value = match self.byte()? {
            0 => LoggedValue::Absent,
            1 => LoggedValue::Value(self.long()?),
            2 => LoggedValue::Digest(self.array()?),
            other => return Err(damaged(&format!("{other}, expected 0, 1 or 2"))),
        };
        Ok(LoggedPrecondition { table, key, value })
    }

    fn change(&mut self) -> Result<PreparedChange, DecodeError> {
        let [tag, flags] = self.array()?;
        let id = self.short_text()?;
        let modified = if flags & HAS_MODIFIED != 0 { Some(read_time(self.array::<TIME>()?)?) } else { None };
        let op = match tag {
            PUT => {
                // Not recomputed: the node that received the request is trusted, as part of the cluster.
                let hash = ContentHash(self.array()?);
                PreparedOp::Put { hash, draft: RecordDraft::decode(self.long()?)? }
            }
            PATCH => PreparedOp::Patch(Content { media_type: self.long_text()?, bytes: self.long()? }),
            DELETE => PreparedOp::Delete,
            other => return Err(damaged(&format!("operation {other} is unknown"))),
        };
        let entry_id = if flags & HAS_ENTRY_ID != 0 { Some(self.long_text()?) } else { None };
        Ok(PreparedChange { id, modified, entry_id, op })
    }
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| damaged("a string in it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use towpath_proto::item::Item;

    use super::*;

    fn all() -> Vec<LogCommand> {
        let feed = FeedId::new("f1").unwrap();
        let item =
            Item { title: Some("T".into()), content: Some(Content::new("a/b", "c")), ..Item::new("a\0é") };
        let put = NewChange { entry_id: Some("e".into()), ..NewChange::put(item) };
        let modified = Some("1969-01-01T00:00:00.5Z".parse().unwrap());
        let patch = NewChange {
            modified,
            entry_id: Some(String::new()),
            ..NewChange::patch("a", Content::new("m", "p"))
        };
        let write = |value: Option<&'static [u8]>| TableWrite {
            table: Table::Leases,
            key: b"k\0".to_vec(),
            value: value.map(Bytes::from_static),
        };
        // 33 bytes is the shortest value that is carried as its digest.
        let values = [None, Some(Bytes::from_static(b"short")), Some(vec![7; 33].into())];
        let conditions = values.map(|value| Precondition { table: Table::Documents, key: vec![], value });
        vec![
            LogCommand::append(&feed, Expected::Last(7), vec![put, patch, NewChange::delete("d")]).unwrap(),
            LogCommand::append(&feed, Expected::Any, vec![]).unwrap(),
            LogCommand::append(&feed, Expected::Version(Some(7)), vec![NewChange::delete("d")]).unwrap(),
            LogCommand::append(&feed, Expected::Version(None), vec![NewChange::delete("d")]).unwrap(),
            LogCommand::write(vec![write(None), write(Some(b"")), write(Some(b"v"))], conditions.into())
                .unwrap(),
        ]
    }

    fn encoded() -> Bytes {
        let mut bytes = Vec::new();
        all().iter().for_each(|command| command.encode(&mut bytes));
        bytes.into()
    }

    #[test]
    fn commands_roundtrip_in_sequence() {
        let mut bytes = encoded();
        for command in all() {
            let CommandBody::Append { changes, expected, .. } = &command.0 else {
                assert_eq!(format!("{:?}", LogCommand::decode(&mut bytes).unwrap()), format!("{command:?}"));
                continue;
            };
            let read = LogCommand::decode(&mut bytes).unwrap();
            let CommandBody::Append { changes: found, expected: read_expected, .. } = &read.0 else {
                panic!("{read:?}")
            };
            assert_eq!(read_expected, expected);
            assert_eq!(found.len(), changes.len());
            for (found, change) in found.iter().zip(changes) {
                assert_eq!((&found.id, found.modified), (&change.id, change.modified));
                assert_eq!(format!("{:?}", found.op), format!("{:?}", change.op));
            }
        }
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_truncated_command_is_an_error() {
        let whole = encoded();
        for cut in 0..whole.len() {
            let mut rest = whole.slice(..cut);
            // Commands before the cut are whole: only the last one must fail.
            let read = (0..all().len()).try_for_each(|_| LogCommand::decode(&mut rest).map(drop));
            assert!(read.is_err(), "{cut}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, place in 0usize..400, byte: u8) {
            drop(LogCommand::decode(&mut bytes.into()));
            // One wrong byte in a valid message reaches code that noise hardly ever does.
            let mut message = encoded().to_vec();
            if let Some(at) = message.get_mut(place) {
                *at = byte;
            }
            let mut message = Bytes::from(message);
            while let Ok(command) = LogCommand::decode(&mut message) {
                drop(command);
            }
        }
    }
}
