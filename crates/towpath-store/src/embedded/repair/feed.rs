//! Building of one feed: its log, and every index from it.

use std::collections::BTreeMap;

use fjall::Readable as _;
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::item::Item;

use super::log::LogPlace;
use super::sources::FeedSource;
use super::writes::PendingWrites;
use super::{LostChange, RepairError, Salvage};
use crate::LogHead;
use crate::embedded::keys::{self, FeedRow, IdRow};
use crate::embedded::let_go::LetGoError;
use crate::embedded::record::{self, ChangeMeta, RecordDraft, bytes_of};
use crate::embedded::storage_engine::StorageEngine;
use crate::embedded::verify::VerifyProgress;
use crate::error::StorageError;

const WRONG_TIME: &str = "its time is not between those of its neighbours";

impl Salvage<'_> {
    /// Builds a feed, and lets go up to the last position that is lost.
    pub(super) fn build_feed(
        &mut self,
        source: &FeedSource,
        progress: &VerifyProgress,
    ) -> Result<(), RepairError> {
        // Without its row, nothing tells what was let go from what is missing.
        let horizon = source.horizon();
        let readable_from = horizon.unwrap_or(source.end);
        let mut build = FeedBuild::new(self.new, source, readable_from);
        self.read_log(source, readable_from, |place| {
            progress.add(1);
            build.take(place)
        })?;
        build.take_waiting()?;
        if build.last < source.end {
            // The log ends where its position says: a position is never given twice.
            let id = self.ids_of(source, &[source.end]).remove(&source.end);
            build.fill_end(id)?;
        }
        let row = build.finish(horizon.unwrap_or(0))?;
        let head = self.let_go_to(source, row, build.gap)?;
        if head.horizon > horizon.unwrap_or(0) {
            self.report.moved.push((source.name.clone(), head.horizon));
        }
        self.report.feeds += 1;
        self.report.changes += build.changes;
        self.report.mended += build.mended;
        self.name_lost(source, build.lost);
        Ok(())
    }

    fn let_go_to(&self, source: &FeedSource, mut row: FeedRow, to: Seq) -> Result<LogHead, RepairError> {
        loop {
            let end = StorageEngine::end_of_step(row.head, to);
            if end <= row.head.horizon {
                return Ok(row.head);
            }
            row = self.new.let_go(&source.name, row, end).map_err(|error| match error {
                LetGoError::Read(error) => RepairError::from(error),
                LetGoError::Write(reason) => RepairError::Write(reason),
            })?;
        }
    }

    /// Adds the changes that are lost to the report, with the ids that the old index has for them.
    fn name_lost(&mut self, source: &FeedSource, lost: BTreeMap<Seq, (Option<String>, String)>) {
        let unnamed: Vec<Seq> =
            lost.iter().filter(|(_, (id, _))| id.is_none()).map(|(seq, _)| *seq).collect();
        let mut ids = self.ids_of(source, &unnamed);
        let lost = lost.into_iter().map(|(position, (id, reason))| LostChange {
            feed: source.name.clone(),
            position,
            item: id.or_else(|| ids.remove(&position)),
            reason,
        });
        self.report.lost.extend(lost);
    }

    /// Returns the ids of latest versions at these positions, as the old index has them.
    fn ids_of(&self, source: &FeedSource, positions: &[Seq]) -> BTreeMap<Seq, String> {
        if positions.is_empty() {
            return BTreeMap::new();
        }
        let entries = self.snapshot.prefix(&self.old.ids, source.number.to_be_bytes());
        // The old index may be damaged as well. It only names what is lost, so what can be read of it is
        // enough.
        let rows = entries.map_while(|entry| entry.into_inner().ok());
        let found = rows.filter_map(|(key, value)| {
            let latest = IdRow::decode(&value).ok()?.latest;
            let id = keys::read_id(&key).ok()?;
            positions.binary_search(&latest).ok().map(|_| (latest, id.to_owned()))
        });
        found.collect()
    }
}

/// A feed of the new store that is being built.
struct FeedBuild<'a> {
    engine: &'a StorageEngine,
    source: &'a FeedSource,
    /// Position up to which earlier versions may have been let go.
    horizon: Seq,
    /// Last position that was read, and the last before the end that has no change.
    read: Seq,
    gap: Seq,
    writes: PendingWrites<'a>,
    /// Change that waits for the next one, which shows whose time is wrong.
    waiting: Option<Change>,
    last: Seq,
    modified: Timestamp,
    items: u64,
    live: u64,
    changes: u64,
    mended: u64,
    /// Positions that are lost, with the id where it is known, and the damage.
    lost: BTreeMap<Seq, (Option<String>, String)>,
}

impl<'a> FeedBuild<'a> {
    fn new(engine: &'a StorageEngine, source: &'a FeedSource, horizon: Seq) -> Self {
        Self {
            engine,
            source,
            horizon,
            read: 0,
            gap: 0,
            writes: PendingWrites::new(engine),
            waiting: None,
            last: 0,
            modified: Timestamp::MIN,
            items: 0,
            live: 0,
            changes: 0,
            mended: 0,
            lost: BTreeMap::new(),
        }
    }

    /// Takes the next position of the log.
    fn take(&mut self, (seq, place): LogPlace) -> Result<(), RepairError> {
        // Behind the horizon a missing position is a lost change. The log is let go up to it, so that readers
        // begin anew instead of missing the change in silence.
        if seq > self.read + 1 {
            self.gap = seq - 1;
        }
        self.read = seq;
        let change = match place {
            Ok(change) => change,
            Err(reason) => {
                self.lose(seq, None, reason);
                return Ok(());
            }
        };
        // Times never fall along a log. Where two neighbours are in the wrong order, the change before both
        // decides. If the later one fits behind it, the earlier one has the wrong time.
        if let Some(waiting) = self.waiting.take() {
            if waiting.modified <= change.modified {
                self.add(waiting)?;
            } else if change.modified >= self.modified {
                self.lose(waiting.seq, Some(waiting.item.id), WRONG_TIME.into());
            } else {
                self.waiting = Some(waiting);
                self.lose(seq, Some(change.item.id), WRONG_TIME.into());
                return Ok(());
            }
        }
        self.waiting = Some(change);
        Ok(())
    }

    fn take_waiting(&mut self) -> Result<(), RepairError> {
        self.waiting.take().map_or(Ok(()), |waiting| self.add(waiting))
    }

    fn lose(&mut self, seq: Seq, id: Option<String>, reason: String) {
        // The end of a log is filled and not let go: see `fill_end`.
        if seq < self.source.end {
            self.gap = self.gap.max(seq);
        }
        self.lost.insert(seq, (id, reason));
    }

    /// Adds a change, with links to what the new store has.
    fn add(&mut self, mut change: Change) -> Result<(), RepairError> {
        let (number, seq) = (self.source.number, change.seq);
        let key = keys::id(number, &change.item.id);
        let before = self.version(&key)?;
        // A change names the version that it replaced, so it tells the id of a lost one.
        if let Some((id, _)) = change.previous.and_then(|previous| self.lost.get_mut(&previous)) {
            *id = Some(change.item.id.clone());
        }
        let links = self.links(&change, before);
        if links != (change.previous, change.first_seq, change.created) {
            (change.previous, change.first_seq, change.created) = links;
            self.mended += 1;
        }
        let encoded =
            RecordDraft::new(change.op, &change.item, change.patch.as_ref(), change.entry_id.as_deref());
        let meta = ChangeMeta::of(&change);
        let record = encoded.map_err(RepairError::Write)?.complete(&meta);
        let (engine, writes) = (self.engine, &mut self.writes);
        let position = seq.to_be_bytes().to_vec();
        writes.put(&engine.log, &keys::position_key(number, seq), record.to_vec());
        // The index by modification has each item once, at its latest version.
        if let Some(before) = before {
            writes.remove(&engine.modified, &keys::position_key(number, before.latest));
        }
        writes.put(&engine.modified, &keys::position_key(number, seq), Vec::new());
        writes.put(&engine.created, &keys::position_key(number, change.first_seq), position.clone());
        writes.put(&engine.times, &keys::time_key(number, change.modified), position);
        writes.put(&engine.ids, &key, meta.id_row(seq, change.op).encode().to_vec());
        writes.flush_if_large()?;
        self.items += u64::from(before.is_none());
        self.live -= u64::from(before.is_some_and(|before| before.hash.is_some()));
        self.live += u64::from(change.op != Op::Delete);
        self.changes += 1;
        (self.last, self.modified) = (seq, change.modified);
        Ok(())
    }

    /// Returns the position of the version before a change, and position and time of the first one.
    fn links(&self, change: &Change, before: Option<IdRow>) -> (Option<Seq>, Seq, Timestamp) {
        if let Some(before) = before {
            return (Some(before.latest), before.first, before.created);
        }
        // An earlier version may have been let go, or be lost.
        let previous = change.previous.filter(|previous| {
            (*previous <= self.horizon || self.lost.contains_key(previous)) && change.first_seq <= *previous
        });
        match previous {
            Some(previous) => (Some(previous), change.first_seq, change.created),
            None => (None, change.seq, change.modified),
        }
    }

    fn version(&self, key: &[u8]) -> Result<Option<IdRow>, StorageError> {
        match self.writes.get(&self.engine.ids, key) {
            // Writes that are not flushed yet are newer than the engine's rows.
            Some(row) => row.map(IdRow::decode).transpose(),
            None => {
                let row = self.engine.ids.get(key).map_err(|e| StorageError::Read(e.to_string()))?;
                row.as_deref().map(IdRow::decode).transpose()
            }
        }
    }

    /// Gives the lost end of a log a change: the item as it was before, or its deletion.
    fn fill_end(&mut self, id: Option<String>) -> Result<(), RepairError> {
        self.writes.flush()?;
        let (number, seq) = (self.source.number, self.source.end);
        let id = id.unwrap_or_else(|| format!("lost-change-{seq}"));
        let before = self.version(&keys::id(number, &id))?;
        let key = before.map(|before| (before.latest, keys::position_key(number, before.latest)));
        let earlier = match key {
            Some((latest, key)) => {
                let record = self.engine.log.get(key).map_err(|e| StorageError::Read(e.to_string()))?;
                record.map(|record| record::decode(latest, &bytes_of(record))).transpose()?
            }
            None => None,
        };
        let named = self.source.row.map(|row| row.head.modified);
        let modified = named.filter(|modified| *modified >= self.modified).unwrap_or(self.modified);
        let (op, item) = match earlier {
            Some(earlier) if earlier.op != Op::Delete => (Op::Put, earlier.item),
            _ => (Op::Delete, Item::new(&id)),
        };
        let hash = if op == Op::Delete { Default::default() } else { item.content_hash() };
        // `add` gives it the links of its item.
        self.add(Change {
            seq,
            op,
            modified,
            created: modified,
            first_seq: seq,
            previous: None,
            item,
            patch: None,
            entry_id: None,
            hash,
        })
    }

    /// Writes the head, and returns the feed's row.
    fn finish(&mut self, horizon: Seq) -> Result<FeedRow, RepairError> {
        let Self { source, items, live, modified, .. } = *self;
        let head = LogHead { seq: self.last, modified, items, live, horizon };
        let appended = source.row.map_or(modified, |row| row.appended);
        let row = FeedRow { number: source.number, head, appended };
        let name = source.name.as_str();
        self.writes.put(&self.engine.feeds, name.as_bytes(), row.encode());
        self.writes.put(&self.engine.tables, &keys::feed_name(source.number), name.as_bytes().to_vec());
        self.writes.flush()?;
        Ok(row)
    }
}
