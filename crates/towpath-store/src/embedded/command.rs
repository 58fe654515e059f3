//! A request to write, as a cluster's log carries it: what every node decides and applies alike.
//!
//! A put is carried as the record that will be stored, its place still blank, with its hash: checking, laying out
//! and hashing is done once, by the node that took it, and not again by each that applies it.
//!
//! ```text
//! command   1 feed·2  expected            count:4 changes     an append
//!           2 count:4 conditions          count:4 writes      writes to the tables
//! condition table:1 key·4 (0 | 1 value·4 | 2 sha-256:32)
//! expected  0 | 1 seq:8
//! change    op:1 flags:1 id·2 [modified:12] then
//!           put     hash:32 record·4
//!           patch   media-type·4 patch·4 [entry-id·4]
//!           delete  [entry-id·4]
//! write     table:1 key·4 (0 | 1 value·4)
//!
//! x·n: its length in n bytes, then x. Numbers are big endian, times as in `keys`.
//! ```

use bytes::{Buf, Bytes};
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, ContentHash};

use super::decide::{self, Kind, Prepared};
use super::demand::{Demand, Demanded};
use super::keys::{self, TIME, read_time, time};
use super::record::Draft;
use crate::{AppendError, Appended, Condition, Expected, StoreError, Table, Write};

const APPEND: u8 = 1;
const WRITE: u8 = 2;
const PUT: u8 = 0;
const PATCH: u8 = 1;
const DELETE: u8 = 2;
const HAS_MODIFIED: u8 = 1;
const HAS_ENTRY_ID: u8 = 2;

/// A request to write, checked as far as it can be before its place in the order is known.
#[derive(Debug)]
pub struct Command(pub(super) Request);

#[derive(Debug)]
pub(super) enum Request {
    Append { feed: FeedId, expected: Expected, changes: Vec<Prepared> },
    Write { writes: Vec<Write>, conditions: Vec<Demand> },
}

/// What became of a [`Command`].
#[derive(Debug)]
pub enum Outcome {
    /// Of an append.
    Append(Result<Appended, AppendError>),
    /// Of writes to the tables.
    Write(Result<(), StoreError>),
}

impl Command {
    /// An append. Fails with [`AppendError::Invalid`] where a change cannot be kept.
    pub fn append(feed: &FeedId, expected: Expected, changes: Vec<NewChange>) -> Result<Self, AppendError> {
        let (feed, changes) = (feed.clone(), decide::prepare(changes)?);
        Ok(Self(Request::Append { feed, expected, changes }))
    }

    /// Writes to the tables. Fails where a key is too long.
    pub fn write(writes: Vec<Write>, conditions: Vec<Condition>) -> Result<Self, StoreError> {
        decide::check_keys(&writes)?;
        let conditions = conditions.into_iter().map(|condition| Demand::from(condition).short()).collect();
        Ok(Self(Request::Write { writes, conditions }))
    }

    /// Appends the command to `to`, as drawn above.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match &self.0 {
            Request::Append { feed, expected, changes } => {
                to.push(APPEND);
                short(to, feed.as_str().as_bytes());
                match expected {
                    Expected::Any => to.push(0),
                    Expected::Last(seq) => {
                        to.push(1);
                        to.extend_from_slice(&seq.to_be_bytes());
                    }
                }
                count(to, changes.len());
                changes.iter().for_each(|prepared| change(to, prepared));
            }
            Request::Write { writes, conditions } => {
                to.push(WRITE);
                count(to, conditions.len());
                conditions.iter().for_each(|condition| demand(to, condition));
                count(to, writes.len());
                writes.iter().for_each(|one| write(to, one));
            }
        }
    }

    /// Takes one command off the beginning of `from`.
    pub fn decode(from: &mut Bytes) -> Result<Self, StoreError> {
        let mut reader = Reader(from);
        match reader.byte()? {
            APPEND => {
                let feed = FeedId::new(&reader.short_text()?).map_err(|e| damaged(&e.to_string()))?;
                let expected = if reader.flag()? { Expected::Last(reader.u64()?) } else { Expected::Any };
                let changes = reader.list(Reader::change)?;
                Ok(Self(Request::Append { feed, expected, changes }))
            }
            WRITE => {
                let conditions = reader.list(Reader::demand)?;
                let writes = reader.list(Reader::write)?;
                Ok(Self(Request::Write { writes, conditions }))
            }
            other => Err(damaged(&format!("a command of kind {other}, which is unknown"))),
        }
    }
}

fn count(to: &mut Vec<u8>, count: usize) {
    to.extend_from_slice(&(count as u32).to_be_bytes());
}

fn short(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    to.extend_from_slice(bytes);
}

fn long(to: &mut Vec<u8>, bytes: &[u8]) {
    count(to, bytes.len());
    to.extend_from_slice(bytes);
}

fn write(to: &mut Vec<u8>, write: &Write) {
    to.push(keys::tag(write.table));
    long(to, &write.key);
    to.push(write.value.is_some().into());
    if let Some(value) = &write.value {
        long(to, value);
    }
}

fn demand(to: &mut Vec<u8>, demand: &Demand) {
    to.push(keys::tag(demand.table));
    long(to, &demand.key);
    match &demand.value {
        Demanded::Nothing => to.push(0),
        Demanded::Value(value) => {
            to.push(1);
            long(to, value);
        }
        Demanded::Digest(digest) => {
            to.push(2);
            to.extend_from_slice(digest);
        }
    }
}

fn change(to: &mut Vec<u8>, change: &Prepared) {
    let (op, entry_id) = match &change.kind {
        // The record holds it already.
        Kind::Put { .. } => (PUT, None),
        Kind::Patch(_) => (PATCH, change.entry_id.as_ref()),
        Kind::Delete => (DELETE, change.entry_id.as_ref()),
    };
    let modified = if change.modified.is_some() { HAS_MODIFIED } else { 0 };
    to.extend_from_slice(&[op, modified | if entry_id.is_some() { HAS_ENTRY_ID } else { 0 }]);
    short(to, change.id.as_bytes());
    to.extend(change.modified.iter().flat_map(|modified| time(*modified)));
    match &change.kind {
        Kind::Put { draft, hash } => {
            to.extend_from_slice(&hash.0);
            long(to, draft.as_bytes());
        }
        Kind::Patch(patch) => {
            long(to, patch.media_type.as_bytes());
            long(to, &patch.bytes);
        }
        Kind::Delete => {}
    }
    if let Some(entry_id) = entry_id {
        long(to, entry_id.as_bytes());
    }
}

fn damaged(how: &str) -> StoreError {
    StoreError::Damaged(format!("a command of the log: {how}"))
}

/// Takes fields off the beginning of a message.
struct Reader<'a>(&'a mut Bytes);

impl Reader<'_> {
    fn bytes(&mut self, length: usize) -> Result<Bytes, StoreError> {
        if self.0.len() < length {
            return Err(damaged("it is cut off"));
        }
        Ok(self.0.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let array = self.0.first_chunk::<N>().copied().ok_or_else(|| damaged("it is cut off"))?;
        self.0.advance(N);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, StoreError> {
        self.array().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_be_bytes)
    }

    fn flag(&mut self) -> Result<bool, StoreError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(damaged(&format!("{other} where 0 or 1 is due"))),
        }
    }

    fn long(&mut self) -> Result<Bytes, StoreError> {
        let length = u32::from_be_bytes(self.array()?);
        self.bytes(length as usize)
    }

    fn long_text(&mut self) -> Result<String, StoreError> {
        text(&self.long()?)
    }

    fn short_text(&mut self) -> Result<String, StoreError> {
        let length = u16::from_be_bytes(self.array()?);
        text(&self.bytes(length.into())?)
    }

    fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let count = u32::from_be_bytes(self.array()?) as usize;
        // The count may be a lie: there is room at once for as many as may well be there.
        let mut list = Vec::with_capacity(count.min(self.0.len() / 64));
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }

    fn key(&mut self) -> Result<(Table, Vec<u8>), StoreError> {
        let tag = self.byte()?;
        let table = keys::table(tag).ok_or_else(|| damaged(&format!("table {tag} is unknown")))?;
        Ok((table, self.long()?.to_vec()))
    }

    fn write(&mut self) -> Result<Write, StoreError> {
        let (table, key) = self.key()?;
        let value = if self.flag()? { Some(self.long()?) } else { None };
        Ok(Write { table, key, value })
    }

    fn demand(&mut self) -> Result<Demand, StoreError> {
        let (table, key) = self.key()?;
        let value = match self.byte()? {
            0 => Demanded::Nothing,
            1 => Demanded::Value(self.long()?),
            2 => Demanded::Digest(self.array()?),
            other => return Err(damaged(&format!("{other} where 0, 1 or 2 is due"))),
        };
        Ok(Demand { table, key, value })
    }

    fn change(&mut self) -> Result<Prepared, StoreError> {
        let [op, flags] = self.array()?;
        let id = self.short_text()?;
        let modified = if flags & HAS_MODIFIED != 0 { Some(read_time(self.array::<TIME>()?)?) } else { None };
        let kind = match op {
            PUT => {
                let hash = ContentHash(self.array()?);
                Kind::Put { hash, draft: Draft::read(self.long()?)? }
            }
            PATCH => Kind::Patch(Content { media_type: self.long_text()?, bytes: self.long()? }),
            DELETE => Kind::Delete,
            other => return Err(damaged(&format!("operation {other} is unknown"))),
        };
        let entry_id = if flags & HAS_ENTRY_ID != 0 { Some(self.long_text()?) } else { None };
        Ok(Prepared { id, modified, entry_id, kind })
    }
}

fn text(bytes: &[u8]) -> Result<String, StoreError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| damaged("a text in it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use towpath_proto::item::Item;

    use super::*;

    fn all() -> Vec<Command> {
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
        let write = |value: Option<&'static [u8]>| Write {
            table: Table::Leases,
            key: b"k\0".to_vec(),
            value: value.map(Bytes::from_static),
        };
        let values = [None, Some(Bytes::from_static(b"short")), Some(vec![7; 33].into())];
        let conditions = values.map(|value| Condition { table: Table::Documents, key: vec![], value });
        vec![
            Command::append(&feed, Expected::Last(7), vec![put, patch, NewChange::delete("d")]).unwrap(),
            Command::append(&feed, Expected::Any, vec![]).unwrap(),
            Command::write(vec![write(None), write(Some(b"")), write(Some(b"v"))], conditions.into())
                .unwrap(),
        ]
    }

    fn encoded() -> Bytes {
        let mut bytes = Vec::new();
        all().iter().for_each(|command| command.encode(&mut bytes));
        bytes.into()
    }

    #[test]
    fn commands_come_back_one_after_another() {
        let mut bytes = encoded();
        for command in all() {
            let Request::Append { changes, .. } = &command.0 else {
                assert_eq!(format!("{:?}", Command::decode(&mut bytes).unwrap()), format!("{command:?}"));
                continue;
            };
            let read = Command::decode(&mut bytes).unwrap();
            let Request::Append { changes: found, .. } = &read.0 else { panic!("{read:?}") };
            assert_eq!(found.len(), changes.len());
            for (found, change) in found.iter().zip(changes) {
                assert_eq!((&found.id, found.modified), (&change.id, change.modified));
                assert_eq!(format!("{:?}", found.kind), format!("{:?}", change.kind));
            }
        }
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_command_that_is_cut_off_is_damaged() {
        let whole = encoded();
        for cut in 0..whole.len() {
            let mut rest = whole.slice(..cut);
            let read = (0..3).try_for_each(|_| Command::decode(&mut rest).map(drop));
            assert!(matches!(read, Err(StoreError::Damaged(_))), "{cut}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, place in 0usize..400, byte: u8) {
            drop(Command::decode(&mut bytes.into()));
            let mut message = encoded().to_vec();
            if let Some(at) = message.get_mut(place) {
                *at = byte;
            }
            let mut message = Bytes::from(message);
            while let Ok(command) = Command::decode(&mut message) {
                drop(command);
            }
        }
    }
}
