//! Selects the snapshots between the delivered state and the latest document.

use jiff::Timestamp;

use super::state::{DiffDeltaFollowState, is_zero};
use crate::diffdelta::wire::SnapshotEntry;

/// The snapshots to deliver, oldest first, in index order, because a cursor may come back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ArchivePlan {
    /// The snapshots to deliver.
    pub(super) snapshots: Vec<SnapshotEntry>,
    /// Descriptions of missing changes that cannot be recovered.
    pub(super) gaps: Vec<String>,
    /// True if the chain is whole from its start and never had the stored cursor: the publisher began anew.
    pub(super) began_anew: bool,
    /// True if the place of the delivered state is known, or nothing was delivered.
    pub(super) is_placed: bool,
}

/// Selects the snapshots of an index, oldest first, that come after `state`.
pub(super) fn plan(mut listed: Vec<SnapshotEntry>, state: &DiffDeltaFollowState) -> ArchivePlan {
    let mut gaps = Vec::new();
    let mut began_anew = false;
    let first = match (&state.cursor, &state.partial) {
        (None, None) => state.since.map_or(Some(0), |since| Some(first_since(&listed, since))),
        (None, Some(partial)) => first_within(&listed, &partial.cursor, state.since)
            // Without cursors only the documents tell which of them was delivered in part.
            .or_else(|| listed.iter().any(|s| s.cursor.is_empty()).then_some(0)),
        (Some(cursor), _) => first_after(&listed, cursor, state).or_else(|| first_later(&listed, state)),
    };
    let is_placed = first.is_some();
    let first = first.unwrap_or_else(|| {
        began_anew = listed.first().is_some_and(|s| is_zero(&s.prev_cursor));
        let known = state.latest_known().filter(|_| !began_anew);
        // Section 1.3 forbids deletion, yet a publisher may trim its archive.
        gaps.extend(known.map(|cursor| {
            format!("the archive no longer has {cursor}; changes between it and the oldest snapshot are lost")
        }));
        0
    });
    let snapshots = listed.split_off(first);
    // Section 2.2: a `prev_cursor` that is not the cursor before it means a missed run.
    for pair in snapshots.windows(2) {
        let is_stated = !pair[1].prev_cursor.is_empty() && !pair[0].cursor.is_empty();
        if is_stated && pair[1].prev_cursor != pair[0].cursor {
            gaps.push(format!("the archive has nothing between {} and {}", pair[0].cursor, pair[1].cursor));
        }
    }
    ArchivePlan { snapshots, gaps, began_anew, is_placed }
}

/// Returns the cursor of the first document of a chain, if an index has it.
pub(super) fn origin(snapshots: &[SnapshotEntry]) -> Option<&str> {
    snapshots.first().filter(|s| is_zero(&s.prev_cursor)).map(|s| s.cursor.as_str())
}

/// Returns true if an entry is the snapshot of this cursor and time.
pub(super) fn is_snapshot(entry: &SnapshotEntry, cursor: &str, generated_at: &str) -> bool {
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let is_same_time = entry.generated_at == generated_at
        || time(generated_at).is_some_and(|made| time(&entry.generated_at) == Some(made));
    entry.cursor == cursor && is_same_time
}

/// Returns true if an index is older than the delivered state, as a cached copy may be.
pub(super) fn ends_before(snapshots: &[SnapshotEntry], state: &DiffDeltaFollowState) -> bool {
    let Some(last) = snapshots.last() else { return false };
    // An index with the delivered snapshot is no older copy, whatever the times: a clock may have gone back since.
    if let (Some(cursor), Some(time)) = (&state.cursor, &state.generated_at)
        && snapshots.iter().any(|s| is_snapshot(s, cursor, time))
    {
        return false;
    }
    // Several snapshots may have the same second, and the index may lack the last of them. One whose last snapshot never
    // stood before that is another chain's: the publisher began anew within the second.
    let in_same_second = state.generated_at.as_ref() == Some(&last.generated_at);
    let has_ours = || snapshots.iter().any(|s| Some(&s.cursor) == state.cursor.as_ref());
    is_older(&last.generated_at, state) || in_same_second && state.may_precede(&last.cursor) && !has_ours()
}

/// Returns true if a time is before that of the delivered state.
pub(super) fn is_older(generated_at: &str, state: &DiffDeltaFollowState) -> bool {
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let handed = state.generated_at.as_deref().and_then(time);
    // Without two valid times nothing is older. Foreign publishers may write any text.
    matches!((time(generated_at), handed), (Some(made), Some(handed)) if made < handed)
}

/// Returns the index of the first snapshot after the one with this cursor.
///
/// Of several with the cursor, the one with the stored time counts, or else the first, so nothing is missed.
fn first_after(snapshots: &[SnapshotEntry], cursor: &str, state: &DiffDeltaFollowState) -> Option<usize> {
    if is_zero(cursor) {
        // The chain starts at zero: if the oldest entry does not, its start was trimmed. One that states nothing is judged
        // by its document.
        let begins = |s: &SnapshotEntry| s.prev_cursor.is_empty() || is_zero(&s.prev_cursor);
        return snapshots.first().is_none_or(begins).then_some(0);
    }
    let same = |s: &SnapshotEntry| s.cursor == cursor;
    let exactly = |s: &SnapshotEntry| same(s) && Some(&s.generated_at) == state.generated_at.as_ref();
    let found = snapshots.iter().position(exactly).or_else(|| snapshots.iter().position(same));
    // The snapshot itself may be removed already. Its successor names it.
    found.map(|at| at + 1).or_else(|| snapshots.iter().position(|s| s.prev_cursor == cursor))
}

/// Returns the index of the snapshot that was delivered in part.
///
/// Of several with the cursor the first counts, so nothing is missed. After a start time there is always a place.
fn first_within(snapshots: &[SnapshotEntry], cursor: &str, since: Option<Timestamp>) -> Option<usize> {
    let from = since.map(|since| first_since(snapshots, since));
    let found = snapshots.iter().skip(from.unwrap_or(0)).position(|s| s.cursor == cursor);
    found.map(|at| at + from.unwrap_or(0)).or(from)
}

/// Returns the index of the first snapshot later than the delivered one; `None` if the entries state their cursors.
fn first_later(snapshots: &[SnapshotEntry], state: &DiffDeltaFollowState) -> Option<usize> {
    let is_needed = snapshots.iter().any(|s| s.cursor.is_empty());
    let delivered: Timestamp = state.generated_at.as_ref().filter(|_| is_needed)?.parse().ok()?;
    let later = |s: &SnapshotEntry| s.generated_at.parse::<Timestamp>().is_ok_and(|time| time > delivered);
    Some(snapshots.iter().position(later).unwrap_or(snapshots.len()))
}

/// Returns the index of the first snapshot that may have changes of this time or later.
///
/// Snapshots have whole seconds. One without a valid time counts as later.
fn first_since(snapshots: &[SnapshotEntry], since: Timestamp) -> usize {
    let before = |s: &SnapshotEntry| {
        s.generated_at.parse::<Timestamp>().is_ok_and(|made| made.as_second() < since.as_second())
    };
    snapshots.iter().rposition(before).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(chain: &[(&str, &str)]) -> Vec<SnapshotEntry> {
        let snapshots = chain.iter().enumerate().map(|(n, (prev, cursor))| SnapshotEntry {
            cursor: (*cursor).into(),
            generated_at: format!("2026-01-01T00:00:{n:02}Z"),
            prev_cursor: (*prev).into(),
            sha256: String::new(),
            url: format!("/{n}"),
        });
        snapshots.collect()
    }

    fn urls(walk: &ArchivePlan) -> Vec<&str> {
        walk.snapshots.iter().map(|s| s.url.as_str()).collect()
    }

    fn at(cursor: &str, generated_at: Option<&str>) -> DiffDeltaFollowState {
        DiffDeltaFollowState {
            cursor: Some(cursor.into()),
            generated_at: generated_at.map(str::to_owned),
            ..DiffDeltaFollowState::default()
        }
    }

    #[test]
    fn a_cursor_that_came_back_is_found_by_its_time() {
        let chain = [("0", "a"), ("a", "b"), ("b", "a"), ("a", "c")];
        assert_eq!(urls(&plan(index(&chain), &at("a", Some("2026-01-01T00:00:02Z")))), ["/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("a", Some("2026-01-01T00:00:00Z")))), ["/1", "/2", "/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("a", None))), ["/1", "/2", "/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("c", None))), [""; 0]);
        assert_eq!(urls(&plan(index(&chain), &DiffDeltaFollowState::default())).len(), 4);
    }

    #[test]
    fn lost_changes_are_reported() {
        // The last entry follows x, which is not listed: one snapshot is missing before it.
        let trimmed = [("b", "c"), ("c", "d"), ("x", "e")];
        let walk = plan(index(&trimmed), &at("b", None));
        assert_eq!(urls(&walk), ["/0", "/1", "/2"]);
        assert_eq!(walk.gaps, ["the archive has nothing between d and e"]);
        let walk = plan(index(&trimmed[..2]), &at("a", None));
        assert_eq!(urls(&walk), ["/0", "/1"]);
        assert!(walk.gaps[0].contains("no longer has a"), "{:?}", walk.gaps);
        let zero = crate::diffdelta::wire::cursor::Cursor::ZERO.to_string();
        // The zero cursor precedes the first snapshot, and here that one is no longer listed.
        assert_eq!(plan(index(&trimmed[..2]), &at(&zero, None)).gaps.len(), 1);
        assert_eq!(plan(index(&[(&zero, "a")]), &at(&zero, None)).gaps.len(), 0);
    }

    #[test]
    fn a_whole_chain_without_the_stored_cursor_is_another_one() {
        let zero = crate::diffdelta::wire::cursor::Cursor::ZERO.to_string();
        let walk = plan(index(&[(&zero, "x"), ("x", "y")]), &at("b", None));
        assert_eq!((urls(&walk), walk.gaps.len(), walk.began_anew), (vec!["/0", "/1"], 0, true));
        for known in ["x", "y", zero.as_str()] {
            assert!(!plan(index(&[(&zero, "x"), ("x", "y")]), &at(known, None)).began_anew, "{known}");
        }
        assert!(!plan(index(&[("a", "x"), ("x", "y")]), &at("b", None)).began_anew, "its start was trimmed");
    }

    #[test]
    fn a_start_time_is_compared_in_whole_seconds() {
        let chain = [("0", "a"), ("a", "b"), ("b", "c")];
        let since =
            |time: &str| DiffDeltaFollowState { since: time.parse().ok(), ..DiffDeltaFollowState::default() };
        assert_eq!(urls(&plan(index(&chain), &since("2026-01-01T00:00:01.9Z"))), ["/1", "/2"]);
        assert_eq!(urls(&plan(index(&chain), &since("2026-01-01T00:00:03Z"))), [""; 0]);
        assert_eq!(urls(&plan(index(&chain), &since("2020-01-01T00:00:00Z"))).len(), 3);
    }
}
