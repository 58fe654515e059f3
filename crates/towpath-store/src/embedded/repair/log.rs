//! Reading of a damaged log: every change that can be read, and the positions of those that cannot.

use std::ops::ControlFlow;

use fjall::Readable as _;
use towpath_proto::change::{Change, Op, Seq};

use super::sources::FeedSource;
use super::{RepairError, Salvage};
use crate::embedded::engine_error::read_error;
use crate::embedded::keys;
use crate::embedded::record::{self, bytes_of};
use crate::error::StorageError;

/// A position of a log, with its change or the damage there.
pub(super) type LogPlace = (Seq, Result<Change, String>);

impl Salvage<'_> {
    /// Reads a log in its order. Positions that are missing up to `horizon` were let go, and are left out.
    pub(super) fn read_log(
        &self,
        source: &FeedSource,
        horizon: Seq,
        mut take: impl FnMut(LogPlace) -> Result<(), RepairError>,
    ) -> Result<(), RepairError> {
        let mut next = 1;
        while next <= source.end {
            let read = self.read_run(source, horizon, &mut next, &mut take)?;
            if read.is_continue() {
                for seq in next.max(horizon + 1)..=source.end {
                    take((seq, missing()))?;
                }
                return Ok(());
            }
            // Position by position past what cannot be read, until a run can begin again.
            while next <= source.end {
                let place = self.record(source, next);
                let is_readable = matches!(place, Some(Ok(_)));
                match place {
                    Some(place) => take((next, place))?,
                    None if next > horizon => take((next, missing()))?,
                    None => {}
                }
                next += 1;
                if is_readable {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads on from a position until the engine cannot.
    fn read_run(
        &self,
        source: &FeedSource,
        horizon: Seq,
        next: &mut Seq,
        take: &mut impl FnMut(LogPlace) -> Result<(), RepairError>,
    ) -> Result<ControlFlow<()>, RepairError> {
        let range = keys::position_key(source.number, *next)..=keys::position_key(source.number, source.end);
        for entry in self.snapshot.range(&self.old.log, range) {
            let Ok((key, value)) = entry.into_inner() else { return Ok(ControlFlow::Break(())) };
            let seq = keys::read_position(&key)?;
            for gap in (*next).max(horizon + 1)..seq {
                take((gap, missing()))?;
            }
            take((seq, decode(seq, value)))?;
            *next = seq + 1;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn record(&self, source: &FeedSource, seq: Seq) -> Option<Result<Change, String>> {
        let record = self.snapshot.get(&self.old.log, keys::position_key(source.number, seq));
        match record {
            Ok(record) => record.map(|record| decode(seq, record)),
            Err(error) => Some(Err(read_error(&error).to_string())),
        }
    }
}

fn missing() -> Result<Change, String> {
    Err("it is missing in the log".into())
}

/// Decodes a record, and compares its item with its hash.
fn decode(seq: Seq, record: fjall::Slice) -> Result<Change, String> {
    let change = record::decode(seq, &bytes_of(record)).map_err(|e: StorageError| e.to_string())?;
    // A tombstone has the default hash.
    let hash = if change.op == Op::Delete { Default::default() } else { change.item.content_hash() };
    if hash != change.hash {
        return Err("its hash does not match its item".into());
    }
    if change.op == Op::Patch && change.patch.is_none() {
        return Err("it is a patch without its patch".into());
    }
    Ok(change)
}
