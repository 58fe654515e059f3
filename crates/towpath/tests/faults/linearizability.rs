//! Checker of a feed's history: do the responses that clients got fit the final log, so that the log is linearizable?
//!
//! A pure function. The log itself is the order, so no order has to be searched for.

use std::collections::HashMap;
use std::time::Duration;

/// Request of a client, and its outcome.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Times of request and response, on one clock.
    pub invoked: Duration,
    pub returned: Duration,
    /// Expected head of the feed, if the request has such a precondition.
    pub expected: Option<u64>,
    /// Mark of each change in the log. No two changes have the same one.
    pub marks: Vec<String>,
    pub outcome: AttemptOutcome,
}

/// Outcome of a request, by the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The changes are in the log, from this position on.
    At(u64),
    /// The changes are not in the log: the feed's head was here.
    Conflict(u64),
    /// The changes are not in the log and never will be.
    Refused,
    /// No response: the changes may be in the log.
    Unknown,
}

/// Returns the contradictions, none if everything fits. `log` has the marks of the positions from 1 on.
pub fn check(log: &[String], attempts: &[Attempt]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut positions: HashMap<&str, u64> = HashMap::new();
    for (position, mark) in (1..).zip(log) {
        if let Some(first) = positions.insert(mark, position) {
            faults.push(format!("doubled: {mark} is at {first} and at {position}"));
        }
    }
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (number, attempt) in attempts.iter().enumerate() {
        known.extend(attempt.marks.iter().map(|mark| (mark.as_str(), number)));
    }
    let invented = log.iter().filter(|mark| !known.contains_key(mark.as_str()));
    faults.extend(invented.map(|mark| format!("invented: no client has appended {mark}")));
    // Position of each attempt's first change, if it is in the log.
    let mut first = vec![None; attempts.len()];
    for (attempt, first) in attempts.iter().zip(&mut first) {
        match position_of(attempt, &positions) {
            Ok(found) => {
                *first = found;
                faults.extend(check_outcome(attempt, found));
            }
            Err(fault) => faults.push(fault),
        }
    }
    faults.extend(check_order(attempts, &first));
    faults.extend(check_conflicts(attempts, &first, log.len() as u64));
    faults
}

/// Position of a batch, which must be whole and contiguous, or missing.
fn position_of(attempt: &Attempt, positions: &HashMap<&str, u64>) -> Result<Option<u64>, String> {
    let found: Vec<_> = attempt.marks.iter().map(|mark| positions.get(mark.as_str()).copied()).collect();
    let Some(first) = found[0] else {
        return match found.iter().all(Option::is_none) {
            true => Ok(None),
            false => Err(format!("torn: only a part of {:?} is there: {found:?}", attempt.marks)),
        };
    };
    let whole = (first..).zip(&found).all(|(due, position)| *position == Some(due));
    if whole { Ok(Some(first)) } else { Err(format!("torn: {:?} is at {found:?}", attempt.marks)) }
}

/// Checks the outcome against the log.
fn check_outcome(attempt: &Attempt, found: Option<u64>) -> Option<String> {
    let Attempt { expected, marks, outcome, .. } = attempt;
    let fault = match (outcome, found) {
        (AttemptOutcome::At(position), None) => {
            format!("lost: {marks:?} was acknowledged at {position} and is not there")
        }
        (AttemptOutcome::At(position), Some(found)) if found != *position => {
            format!("moved: {marks:?} was acknowledged at {position} and is at {found}")
        }
        (AttemptOutcome::Conflict(_) | AttemptOutcome::Refused, Some(found)) => {
            format!("undead: {marks:?} was refused ({outcome:?}) and is at {found}")
        }
        // A success without a response must have met its condition as well.
        (_, Some(found)) if expected.is_some_and(|expected| found != expected + 1) => {
            format!("compare-and-append broken: {marks:?} expected {expected:?} and is at {found}")
        }
        (AttemptOutcome::Conflict(actual), None) if *expected == Some(*actual) => {
            format!("compare-and-append broken: {marks:?} was refused although the feed ended at {actual}")
        }
        _ => return None,
    };
    Some(fault)
}

/// Checks that a change acknowledged before another was sent has a lower position.
fn check_order(attempts: &[Attempt], first: &[Option<u64>]) -> Vec<String> {
    let mut there: Vec<(u64, &Attempt)> =
        attempts.iter().zip(first).filter_map(|(attempt, position)| Some(((*position)?, attempt))).collect();
    there.sort_by_key(|(position, _)| std::cmp::Reverse(*position));
    let mut faults = Vec::new();
    // Earliest acknowledged attempt of all with a higher position.
    let mut earliest: Option<(u64, &Attempt)> = None;
    for (position, attempt) in there {
        if let Some((later, other)) = earliest.filter(|(_, other)| other.returned < attempt.invoked) {
            faults.push(format!(
                "order: {:?} at {later} was acknowledged before {:?} at {position} was sent",
                other.marks, attempt.marks
            ));
        }
        let is_known = matches!(attempt.outcome, AttemptOutcome::At(_));
        if is_known && earliest.is_none_or(|(_, other)| attempt.returned < other.returned) {
            earliest = Some((position, attempt));
        }
    }
    faults
}

/// Checks each conflict: the feed's head was at the reported position at some time between request and response.
fn check_conflicts(attempts: &[Attempt], first: &[Option<u64>], end: u64) -> Vec<String> {
    let there = || attempts.iter().zip(first).filter_map(|(attempt, position)| Some((attempt, (*position)?)));
    // By time of the response, the highest position that was acknowledged until then.
    let mut acknowledged: Vec<(Duration, u64)> = there()
        .filter(|(attempt, _)| matches!(attempt.outcome, AttemptOutcome::At(_)))
        .map(|(attempt, position)| (attempt.returned, position + attempt.marks.len() as u64 - 1))
        .collect();
    acknowledged.sort_unstable();
    raise(&mut acknowledged);
    // By position, the earliest time at which everything up to there had been sent.
    let mut sent: Vec<(u64, Duration)> =
        there().map(|(attempt, position)| (position, attempt.invoked)).collect();
    sent.sort_unstable();
    raise(&mut sent);
    let mut faults = Vec::new();
    for attempt in attempts {
        let AttemptOutcome::Conflict(actual) = attempt.outcome else { continue };
        let before = acknowledged.partition_point(|(returned, _)| *returned < attempt.invoked);
        let least = before.checked_sub(1).map_or(0, |last| acknowledged[last].1);
        let until = sent.partition_point(|(position, _)| *position <= actual);
        let since = until.checked_sub(1).map_or(Duration::ZERO, |last| sent[last].1);
        if actual < least || actual > end || since > attempt.returned {
            let marks = &attempt.marks;
            faults.push(format!(
                "stale: {marks:?} was received that the feed ends at {actual}, and it did not then"
            ));
        }
    }
    faults
}

/// Replaces the second of each pair by the highest so far.
fn raise<K, V: Ord + Copy>(pairs: &mut [(K, V)]) {
    for n in 1..pairs.len() {
        pairs[n].1 = pairs[n].1.max(pairs[n - 1].1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(times: (u64, u64), expected: Option<u64>, marks: &[&str], outcome: AttemptOutcome) -> Attempt {
        Attempt {
            invoked: Duration::from_millis(times.0),
            returned: Duration::from_millis(times.1),
            expected,
            marks: marks.iter().map(|mark| (*mark).to_owned()).collect(),
            outcome,
        }
    }

    /// Contradictions of a history and a log, each by its first word.
    fn faults(log: &[&str], attempts: &[Attempt]) -> Vec<String> {
        let log: Vec<String> = log.iter().map(|mark| (*mark).to_owned()).collect();
        let said = check(&log, attempts);
        said.iter().map(|fault| fault.split(':').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_history_that_fits_has_no_faults() {
        let history = [
            attempt((0, 10), None, &["a", "b"], AttemptOutcome::At(1)),
            // Concurrent with the one before, and first all the same.
            attempt((5, 30), Some(2), &["c"], AttemptOutcome::At(3)),
            attempt((5, 25), Some(2), &["x"], AttemptOutcome::Conflict(3)),
            attempt((31, 40), None, &["d"], AttemptOutcome::Unknown),
            attempt((31, 50), None, &["e"], AttemptOutcome::Unknown),
            attempt((32, 50), None, &["f"], AttemptOutcome::Refused),
            attempt((60, 70), Some(4), &["g"], AttemptOutcome::At(5)),
        ];
        assert_eq!(faults(&["a", "b", "c", "e", "g"], &history), [""; 0]);
        assert_eq!(faults(&[], &[]), [""; 0]);
    }

    #[test]
    fn a_lost_append_is_found() {
        let history = [
            attempt((0, 1), None, &["a"], AttemptOutcome::At(1)),
            attempt((2, 3), None, &["b"], AttemptOutcome::At(2)),
        ];
        assert_eq!(faults(&["a"], &history), ["lost"]);
        assert_eq!(faults(&["b"], &history), ["lost", "moved"]);
    }

    #[test]
    fn a_duplicate_an_invented_and_a_revived_append_are_found() {
        let history = [
            attempt((0, 1), None, &["a"], AttemptOutcome::Unknown),
            attempt((0, 1), None, &["b"], AttemptOutcome::Refused),
        ];
        assert_eq!(faults(&["a"], &history), [""; 0]);
        assert_eq!(faults(&["a", "a"], &history), ["doubled"]);
        assert_eq!(faults(&["x", "a"], &history), ["invented"]);
        assert_eq!(faults(&["b"], &history), ["undead"]);
        // A conflict caused by the request's own earlier success.
        let ghost = [attempt((0, 1), Some(0), &["a"], AttemptOutcome::Conflict(1))];
        assert_eq!(faults(&["a"], &ghost), ["undead"]);
    }

    #[test]
    fn a_broken_compare_and_append_is_found() {
        let first = attempt((0, 1), None, &["a"], AttemptOutcome::At(1));
        let wrong = attempt((2, 3), Some(0), &["b"], AttemptOutcome::At(2));
        assert_eq!(faults(&["a", "b"], &[first.clone(), wrong]), ["compare-and-append broken"]);
        // Its success was not reported, but it must not have succeeded.
        let unknown = attempt((2, 3), Some(0), &["b"], AttemptOutcome::Unknown);
        assert_eq!(faults(&["a", "b"], &[first.clone(), unknown]), ["compare-and-append broken"]);
        let refused = attempt((2, 3), Some(1), &["b"], AttemptOutcome::Conflict(1));
        assert_eq!(faults(&["a"], &[first],), [""; 0]);
        let first = attempt((0, 1), None, &["a"], AttemptOutcome::At(1));
        assert_eq!(faults(&["a"], &[first, refused]), ["compare-and-append broken"]);
    }

    #[test]
    fn a_violation_of_the_order_is_found() {
        let history = [
            attempt((0, 1), None, &["a"], AttemptOutcome::At(2)),
            attempt((2, 3), None, &["b"], AttemptOutcome::At(1)),
        ];
        assert_eq!(faults(&["b", "a"], &history), ["order"]);
        // An attempt without a response must fit as well, if it was sent too late.
        let late = [
            attempt((0, 1), None, &["a"], AttemptOutcome::At(2)),
            attempt((2, 3), None, &["b"], AttemptOutcome::Unknown),
        ];
        assert_eq!(faults(&["b", "a"], &late), ["order"]);
        let beside = [
            attempt((0, 2), None, &["a"], AttemptOutcome::At(2)),
            attempt((2, 3), None, &["b"], AttemptOutcome::At(1)),
        ];
        assert_eq!(faults(&["b", "a"], &beside), [""; 0]);
    }

    #[test]
    fn a_batch_that_is_torn_is_found() {
        let history = [
            attempt((0, 9), None, &["a", "b"], AttemptOutcome::Unknown),
            attempt((0, 9), None, &["c"], AttemptOutcome::At(2)),
        ];
        assert_eq!(faults(&["a", "c", "b"], &history), ["torn"]);
        assert_eq!(faults(&["a", "c"], &history), ["torn"]);
        assert_eq!(faults(&["b", "c"], &history), ["torn"]);
    }

    #[test]
    fn a_conflict_with_a_past_or_future_head_is_found() {
        let appended = [
            attempt((0, 1), None, &["a"], AttemptOutcome::At(1)),
            attempt((2, 3), None, &["b"], AttemptOutcome::At(2)),
            attempt((8, 9), None, &["c"], AttemptOutcome::At(3)),
        ];
        let with = |conflict| {
            [&appended[..], &[attempt((4, 5), Some(9), &["x"], AttemptOutcome::Conflict(conflict))]].concat()
        };
        assert_eq!(faults(&["a", "b", "c"], &with(2)), [""; 0]);
        for wrong in [1, 3, 4] {
            assert_eq!(faults(&["a", "b", "c"], &with(wrong)), ["stale"], "{wrong}");
        }
    }
}
