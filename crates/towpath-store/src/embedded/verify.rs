//! Whether the indexes agree with the log.

use fjall::{Readable, Snapshot};
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::feed_id::FeedId;

use super::apply::{Engine, read_error};
use super::keys::{self, Feed, Version};
use super::read;
use super::record::{self, bytes_of};
use crate::StoreError;

/// At most so many problems are told in full.
const MAX_PROBLEMS: usize = 100;

/// What a check of the whole store found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// How many feeds there are.
    pub feeds: u64,
    /// How many changes their logs have.
    pub changes: u64,
    /// How many ids they have.
    pub items: u64,
    /// How many problems were found.
    pub problem_count: u64,
    /// The first hundred of them, each with its feed and place.
    pub problems: Vec<String>,
}

impl Verification {
    /// Whether everything agrees.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

impl Engine {
    /// Reads everything, in constant memory, from one snapshot.
    pub(crate) fn verify(&self) -> Result<Verification, StoreError> {
        let snapshot = self.db.snapshot();
        let mut found = Verification::default();
        // A replica may hold more of a log than it has applied, see `Engine::load`.
        let replica = self.is_replica()?;
        let mut numbers = Vec::new();
        for entry in snapshot.iter(&self.feeds) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let (name, feed) = (read::name(&key)?, Feed::decode(&value)?);
            numbers.push(feed.number);
            found.feeds += 1;
            let mut check =
                Check { engine: self, snapshot: &snapshot, replica, name: &name, feed, found: &mut found };
            check.log()?;
            check.indexes()?;
        }
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            found.tell("two feeds have one number".into());
        }
        Ok(found)
    }
}

impl Verification {
    fn tell(&mut self, problem: String) {
        self.problem_count += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// The check of one feed.
struct Check<'a> {
    engine: &'a Engine,
    snapshot: &'a Snapshot,
    replica: bool,
    name: &'a FeedId,
    feed: Feed,
    found: &'a mut Verification,
}

impl Check<'_> {
    fn expect(&mut self, holds: bool, seq: Seq, problem: &str) {
        if !holds {
            self.found.tell(format!("feed {}, change {seq}: {problem}", self.name));
        }
    }

    /// Every change of the log, and what the indexes say of it.
    fn log(&mut self) -> Result<(), StoreError> {
        let head = self.feed.head;
        let (mut last, mut modified) = (0, Timestamp::MIN);
        let (mut items, mut live, mut moments) = (0, 0, 0);
        let prefix = self.feed.number.to_be_bytes();
        for entry in self.snapshot.prefix(&self.engine.log, prefix) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let seq = keys::read_place(&key)?;
            if self.replica && seq > head.seq {
                break;
            }
            self.expect(seq == last + 1, seq, "the log is not dense before it");
            last = seq;
            self.found.changes += 1;
            let change = match record::decode(seq, &bytes_of(value)) {
                Ok(change) => change,
                Err(error) => {
                    self.expect(false, seq, &error.to_string());
                    continue;
                }
            };
            self.expect(change.modified >= modified, seq, "it was made before the one before it");
            if change.modified != modified || seq == 1 {
                moments += 1;
            }
            modified = change.modified;
            let is_latest = self.change(&change)?;
            items += u64::from(is_latest);
            live += u64::from(is_latest && change.op != Op::Delete);
        }
        self.expect(last == head.seq, last, &format!("the log ends here, and the head says {}", head.seq));
        self.expect(modified == head.modified, last, "the head has another time");
        let counts = (head.items, head.live);
        self.expect((items, live) == counts, last, &format!("{items} items, {live} live; head: {counts:?}"));
        let times = self.snapshot.prefix(&self.engine.times, prefix).count() as u64;
        self.expect(times == moments, last, &format!("{times} times in the index, {moments} in the log"));
        self.found.items += items;
        Ok(())
    }

    /// One change. Returns whether it is its item's latest version.
    fn change(&mut self, change: &Change) -> Result<bool, StoreError> {
        let (engine, number, seq) = (self.engine, self.feed.number, change.seq);
        let lives = change.op != Op::Delete;
        let hash = if lives { change.item.content_hash() } else { Default::default() };
        self.expect(hash == change.hash, seq, "its hash is not that of its item");
        let until = self.get(&engine.times, &keys::moment(number, change.modified))?;
        let until = until.as_deref().map(keys::read_seq).transpose()?;
        self.expect(until.is_some_and(|until| until >= seq), seq, "the index of times does not have it");
        self.previous(change)?;

        let key = keys::id(number, &change.item.id);
        let Some(version) = self.get(&engine.ids, &key)? else {
            self.expect(false, seq, "the index of ids does not have its id");
            return Ok(false);
        };
        let version = Version::decode(&version)?;
        let same = (version.first, version.created) == (change.first_seq, change.created);
        self.expect(same, seq, "the index of ids has another first version");
        self.expect(version.latest >= seq, seq, "the index of ids has an earlier version as the latest");
        let is_latest = version.latest == seq;
        let listed = self.get(&engine.modified, &keys::place(number, seq))?.is_some();
        self.expect(
            listed == is_latest,
            seq,
            "it is in the order of changes, and should not be, or the reverse",
        );
        if is_latest {
            self.expect(
                version.hash == lives.then_some(change.hash),
                seq,
                "the index of ids has another hash",
            );
            let created = self.get(&engine.created, &keys::place(number, version.first))?;
            let created = created.as_deref().map(keys::read_seq).transpose()?;
            self.expect(created == Some(seq), seq, "the order of creation has another version");
        }
        Ok(is_latest)
    }

    /// The version before a change.
    fn previous(&mut self, change: &Change) -> Result<(), StoreError> {
        let seq = change.seq;
        let Some(previous) = change.previous else {
            let first = (change.first_seq, change.created) == (seq, change.modified);
            self.expect(first, seq, "it is the first version of its item, and says otherwise");
            return Ok(());
        };
        let key = keys::place(self.feed.number, previous);
        let before = self.get(&self.engine.log, &key)?.map(bytes_of);
        let before = before.map(|record| record::decode(previous, &record)).transpose()?;
        let fits = previous < seq
            && before.is_some_and(|before| {
                before.item.id == change.item.id
                    && (before.first_seq, before.created) == (change.first_seq, change.created)
            });
        self.expect(fits, seq, "the version before it is not one of its item");
        Ok(())
    }

    /// That the indexes hold nothing more than what the log gave.
    fn indexes(&mut self) -> Result<(), StoreError> {
        let prefix = self.feed.number.to_be_bytes();
        let engine = self.engine;
        for (index, what) in
            [(&engine.ids, "ids"), (&engine.created, "created"), (&engine.modified, "modified")]
        {
            let count = self.snapshot.prefix(index, prefix).count() as u64;
            let problem = format!("the index {what} has {count} entries");
            self.expect(count == self.feed.head.items, self.feed.head.seq, &problem);
        }
        Ok(())
    }

    fn get(&self, keyspace: &fjall::Keyspace, key: &[u8]) -> Result<Option<fjall::Slice>, StoreError> {
        self.snapshot.get(keyspace, key).map_err(|e| read_error(&e))
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::item::Item;

    use super::*;
    use crate::embedded::{EmbeddedStore, Options};
    use crate::{Expected, Store};

    fn put(id: &str, title: &str) -> NewChange {
        NewChange::put(Item { title: Some(title.into()), ..Item::new(id) })
    }

    /// Every entry of every index, removed or put out of place, is missed.
    #[tokio::test]
    async fn every_difference_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path(), Options { reserve: 0, ..Options::default() }).unwrap();
        let feed = FeedId::new("f1").unwrap();
        let batch = vec![put("a", "1"), put("b", "1"), put("a", "2"), NewChange::delete("b"), put("c", "1")];
        store.append(&feed, Expected::Any, batch).await.unwrap();
        assert_eq!(
            store.verify().await.unwrap(),
            Verification { feeds: 1, changes: 5, items: 3, ..Default::default() }
        );

        let engine = store.engine().unwrap();
        let keyspaces = [&engine.log, &engine.ids, &engine.modified, &engine.created, &engine.times];
        for keyspace in keyspaces {
            let entries: Vec<_> = keyspace.iter().map(|entry| entry.into_inner().unwrap()).collect();
            assert!(!entries.is_empty());
            for (key, value) in entries {
                keyspace.remove(key.clone()).unwrap();
                assert!(!engine.verify().unwrap().is_sound(), "{} without {key:?}", keyspace.name());
                keyspace.insert(key, value).unwrap();
            }
            let more: Vec<u8> = match &**keyspace.name() {
                "times" => keys::moment(0, Timestamp::MAX).to_vec(),
                "ids" => keys::id(0, "more").to_vec(),
                _ => keys::place(0, 9).to_vec(),
            };
            keyspace.insert(more.clone(), 9u64.to_be_bytes()).unwrap();
            assert!(!engine.verify().unwrap().is_sound(), "{} with more", keyspace.name());
            keyspace.remove(more).unwrap();
            assert!(engine.verify().unwrap().is_sound(), "{} as it was", keyspace.name());
        }
        let (key, value) = engine.feeds.iter().next().unwrap().into_inner().unwrap();
        // Behind these bytes stands when the feed was last appended to, which no log says again.
        for place in 4..40 {
            let mut wrong = value.to_vec();
            wrong[place] ^= 1;
            engine.feeds.insert(key.clone(), wrong).unwrap();
            assert!(!engine.verify().is_ok_and(|found| found.is_sound()), "head with another byte {place}");
        }
    }
}
