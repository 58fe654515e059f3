//! Which snapshots of an archive lead from what was handed over to the latest document.

use jiff::Timestamp;

use super::state::{State, is_zero};
use crate::diffdelta::wire::{ArchiveIndex, Snapshot};

/// A walk through an archive, oldest first. By order: a cursor may come back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// The snapshots to hand over.
    pub(super) snapshots: Vec<Snapshot>,
    /// What is missing and cannot be had, each for a person to read.
    pub(super) gaps: Vec<String>,
}

/// Plans the walk from `state` through an index.
pub(super) fn plan(mut index: ArchiveIndex, state: &State) -> Walk {
    let mut gaps = Vec::new();
    let first = match (&state.cursor, state.since) {
        (None, None) => 0,
        (None, Some(since)) => first_since(&index.snapshots, since),
        (Some(cursor), _) => place_after(&index.snapshots, cursor, state).unwrap_or_else(|| {
            gaps.push(format!(
                "the archive does not have {cursor} any more; what came between it and the oldest snapshot is lost"
            ));
            0
        }),
    };
    let snapshots = index.snapshots.split_off(first);
    for pair in snapshots.windows(2) {
        if pair[1].prev_cursor != pair[0].cursor {
            gaps.push(format!("the archive has nothing between {} and {}", pair[0].cursor, pair[1].cursor));
        }
    }
    Walk { snapshots, gaps }
}

/// Whether an index is older than what was handed over: a cache's old copy.
pub(super) fn ends_before(index: &ArchiveIndex, state: &State) -> bool {
    let Some(last) = index.snapshots.last() else { return false };
    // Of several in one second the last may be missing.
    let in_same_second = state.generated_at.as_ref() == Some(&last.generated_at);
    let has_ours = || index.snapshots.iter().any(|s| Some(&s.cursor) == state.cursor.as_ref());
    is_older(&last.generated_at, state) || in_same_second && !has_ours()
}

/// Whether something was made before what was handed over last.
pub(super) fn is_older(generated_at: &str, state: &State) -> bool {
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let handed = state.generated_at.as_deref().and_then(time);
    matches!((time(generated_at), handed), (Some(made), Some(handed)) if made < handed)
}

/// The place of the first snapshot after the one with this cursor: of several the one that was made when the
/// state says; without that the first, so that nothing is missed.
fn place_after(snapshots: &[Snapshot], cursor: &str, state: &State) -> Option<usize> {
    if is_zero(cursor) {
        return snapshots.first().is_none_or(|s| is_zero(&s.prev_cursor)).then_some(0);
    }
    let same = |s: &Snapshot| s.cursor == cursor;
    let exactly = |s: &Snapshot| same(s) && Some(&s.generated_at) == state.generated_at.as_ref();
    let found = snapshots.iter().position(exactly).or_else(|| snapshots.iter().position(same));
    // The snapshot itself may be dropped already: its successor is enough.
    found.map(|at| at + 1).or_else(|| snapshots.iter().position(|s| s.prev_cursor == cursor))
}

/// The place of the first snapshot that may hold changes of this time or later. Snapshots are stamped in whole
/// seconds; one without a readable time counts as later.
fn first_since(snapshots: &[Snapshot], since: Timestamp) -> usize {
    let before = |s: &Snapshot| {
        s.generated_at.parse::<Timestamp>().is_ok_and(|made| made.as_second() < since.as_second())
    };
    snapshots.iter().rposition(before).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(chain: &[(&str, &str)]) -> ArchiveIndex {
        let snapshots = chain.iter().enumerate().map(|(n, (prev, cursor))| Snapshot {
            cursor: (*cursor).into(),
            generated_at: format!("2026-01-01T00:00:{n:02}Z"),
            prev_cursor: (*prev).into(),
            sha256: String::new(),
            url: format!("/{n}"),
        });
        ArchiveIndex { snapshots: snapshots.collect(), source_id: "ab".into() }
    }

    fn urls(walk: &Walk) -> Vec<&str> {
        walk.snapshots.iter().map(|s| s.url.as_str()).collect()
    }

    fn at(cursor: &str, generated_at: Option<&str>) -> State {
        State {
            cursor: Some(cursor.into()),
            generated_at: generated_at.map(str::to_owned),
            ..State::default()
        }
    }

    #[test]
    fn a_cursor_that_came_back_is_found_by_its_time() {
        let chain = [("0", "a"), ("a", "b"), ("b", "a"), ("a", "c")];
        assert_eq!(urls(&plan(index(&chain), &at("a", Some("2026-01-01T00:00:02Z")))), ["/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("a", Some("2026-01-01T00:00:00Z")))), ["/1", "/2", "/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("a", None))), ["/1", "/2", "/3"]);
        assert_eq!(urls(&plan(index(&chain), &at("c", None))), [""; 0]);
        assert_eq!(urls(&plan(index(&chain), &State::default())).len(), 4);
    }

    #[test]
    fn what_is_lost_is_named() {
        let trimmed = [("b", "c"), ("c", "d"), ("x", "e")];
        let walk = plan(index(&trimmed), &at("b", None));
        assert_eq!(urls(&walk), ["/0", "/1", "/2"]);
        assert_eq!(walk.gaps, ["the archive has nothing between d and e"]);
        let walk = plan(index(&trimmed[..2]), &at("a", None));
        assert_eq!(urls(&walk), ["/0", "/1"]);
        assert!(walk.gaps[0].contains("does not have a any more"), "{:?}", walk.gaps);
        let zero = crate::diffdelta::Cursor::ZERO.to_string();
        assert_eq!(plan(index(&trimmed[..2]), &at(&zero, None)).gaps.len(), 1);
        assert_eq!(plan(index(&[(&zero, "a")]), &at(&zero, None)).gaps.len(), 0);
    }

    #[test]
    fn a_time_is_met_to_the_second() {
        let chain = [("0", "a"), ("a", "b"), ("b", "c")];
        let since = |time: &str| State { since: time.parse().ok(), ..State::default() };
        assert_eq!(urls(&plan(index(&chain), &since("2026-01-01T00:00:01.9Z"))), ["/1", "/2"]);
        assert_eq!(urls(&plan(index(&chain), &since("2026-01-01T00:00:03Z"))), [""; 0]);
        assert_eq!(urls(&plan(index(&chain), &since("2020-01-01T00:00:00Z"))).len(), 3);
    }
}
