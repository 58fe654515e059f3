//! Whether what clients were told of a feed fits to the log that it has at the end: whether the log is linearizable.
//! A pure function; the log itself is the order, so that nothing has to be searched for.

use std::collections::HashMap;
use std::time::Duration;

/// What one client asked for, and what it was told.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// When it was sent and when the answer was there, on one clock.
    pub invoked: Duration,
    pub returned: Duration,
    /// Where the feed had to end, if anywhere.
    pub expected: Option<u64>,
    /// What each change is known by in the log. No two changes have the same.
    pub marks: Vec<String>,
    pub outcome: Outcome,
}

/// What a client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The changes are in the log, from this place on.
    At(u64),
    /// They are not, since the feed ended here.
    Conflict(u64),
    /// They are not and will not be.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// What does not fit together; nothing where all does. `log` has the marks of the places from 1 on.
pub fn check(log: &[String], attempts: &[Attempt]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut places: HashMap<&str, u64> = HashMap::new();
    for (place, mark) in (1..).zip(log) {
        if let Some(first) = places.insert(mark, place) {
            faults.push(format!("doubled: {mark} is at {first} and at {place}"));
        }
    }
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (number, attempt) in attempts.iter().enumerate() {
        known.extend(attempt.marks.iter().map(|mark| (mark.as_str(), number)));
    }
    let invented = log.iter().filter(|mark| !known.contains_key(mark.as_str()));
    faults.extend(invented.map(|mark| format!("invented: nobody has appended {mark}")));
    // Where each attempt's first change is, if it is there.
    let mut first = vec![None; attempts.len()];
    for (attempt, first) in attempts.iter().zip(&mut first) {
        match place_of(attempt, &places) {
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

/// Where a batch is: whole and in one piece, or nowhere.
fn place_of(attempt: &Attempt, places: &HashMap<&str, u64>) -> Result<Option<u64>, String> {
    let found: Vec<_> = attempt.marks.iter().map(|mark| places.get(mark.as_str()).copied()).collect();
    let Some(first) = found[0] else {
        return match found.iter().all(Option::is_none) {
            true => Ok(None),
            false => Err(format!("torn: only a part of {:?} is there: {found:?}", attempt.marks)),
        };
    };
    let whole = (first..).zip(&found).all(|(due, place)| *place == Some(due));
    if whole { Ok(Some(first)) } else { Err(format!("torn: {:?} is at {found:?}", attempt.marks)) }
}

/// Whether a client was told what is so.
fn check_outcome(attempt: &Attempt, found: Option<u64>) -> Option<String> {
    let Attempt { expected, marks, outcome, .. } = attempt;
    let fault = match (outcome, found) {
        (Outcome::At(place), None) => format!("lost: {marks:?} was acknowledged at {place} and is not there"),
        (Outcome::At(place), Some(found)) if found != *place => {
            format!("moved: {marks:?} was acknowledged at {place} and is at {found}")
        }
        (Outcome::Conflict(_) | Outcome::Refused, Some(found)) => {
            format!("undead: {marks:?} was refused ({outcome:?}) and is at {found}")
        }
        (_, Some(found)) if expected.is_some_and(|expected| found != expected + 1) => {
            format!("compare-and-append broken: {marks:?} expected {expected:?} and is at {found}")
        }
        (Outcome::Conflict(actual), None) if *expected == Some(*actual) => {
            format!("compare-and-append broken: {marks:?} was refused although the feed ended at {actual}")
        }
        _ => return None,
    };
    Some(fault)
}

/// What was acknowledged before another was sent has a lower place.
fn check_order(attempts: &[Attempt], first: &[Option<u64>]) -> Vec<String> {
    let mut there: Vec<(u64, &Attempt)> =
        attempts.iter().zip(first).filter_map(|(attempt, place)| Some(((*place)?, attempt))).collect();
    there.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    let mut faults = Vec::new();
    // The one that was acknowledged earliest of all with a higher place.
    let mut earliest: Option<(u64, &Attempt)> = None;
    for (place, attempt) in there {
        if let Some((later, other)) = earliest.filter(|(_, other)| other.returned < attempt.invoked) {
            faults.push(format!(
                "order: {:?} at {later} was acknowledged before {:?} at {place} was sent",
                other.marks, attempt.marks
            ));
        }
        let is_known = matches!(attempt.outcome, Outcome::At(_));
        if is_known && earliest.is_none_or(|(_, other)| attempt.returned < other.returned) {
            earliest = Some((place, attempt));
        }
    }
    faults
}

/// A conflict says where the feed ended: it did so at some time between question and answer.
fn check_conflicts(attempts: &[Attempt], first: &[Option<u64>], end: u64) -> Vec<String> {
    let there = || attempts.iter().zip(first).filter_map(|(attempt, place)| Some((attempt, (*place)?)));
    // By the time of the answer, the highest place that was acknowledged until then.
    let mut acknowledged: Vec<(Duration, u64)> = there()
        .filter(|(attempt, _)| matches!(attempt.outcome, Outcome::At(_)))
        .map(|(attempt, place)| (attempt.returned, place + attempt.marks.len() as u64 - 1))
        .collect();
    acknowledged.sort_unstable();
    raise(&mut acknowledged);
    // By place, when everything up to there had been sent at the earliest.
    let mut sent: Vec<(u64, Duration)> = there().map(|(attempt, place)| (place, attempt.invoked)).collect();
    sent.sort_unstable();
    raise(&mut sent);
    let mut faults = Vec::new();
    for attempt in attempts {
        let Outcome::Conflict(actual) = attempt.outcome else { continue };
        let before = acknowledged.partition_point(|(returned, _)| *returned < attempt.invoked);
        let least = before.checked_sub(1).map_or(0, |last| acknowledged[last].1);
        let until = sent.partition_point(|(place, _)| *place <= actual);
        let since = until.checked_sub(1).map_or(Duration::ZERO, |last| sent[last].1);
        if actual < least || actual > end || since > attempt.returned {
            let marks = &attempt.marks;
            faults.push(format!(
                "stale: {marks:?} was told that the feed ends at {actual}, and it did not then"
            ));
        }
    }
    faults
}

/// Makes the second of each pair the highest so far.
fn raise<K, V: Ord + Copy>(pairs: &mut [(K, V)]) {
    for n in 1..pairs.len() {
        pairs[n].1 = pairs[n].1.max(pairs[n - 1].1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(times: (u64, u64), expected: Option<u64>, marks: &[&str], outcome: Outcome) -> Attempt {
        Attempt {
            invoked: Duration::from_millis(times.0),
            returned: Duration::from_millis(times.1),
            expected,
            marks: marks.iter().map(|mark| (*mark).to_owned()).collect(),
            outcome,
        }
    }

    /// The faults of a history against a log, each by its first word.
    fn faults(log: &[&str], attempts: &[Attempt]) -> Vec<String> {
        let log: Vec<String> = log.iter().map(|mark| (*mark).to_owned()).collect();
        let said = check(&log, attempts);
        said.iter().map(|fault| fault.split(':').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_history_that_fits_has_no_faults() {
        let history = [
            attempt((0, 10), None, &["a", "b"], Outcome::At(1)),
            // At the same time as the one before, and first all the same.
            attempt((5, 30), Some(2), &["c"], Outcome::At(3)),
            attempt((5, 25), Some(2), &["x"], Outcome::Conflict(3)),
            attempt((31, 40), None, &["d"], Outcome::Unknown),
            attempt((31, 50), None, &["e"], Outcome::Unknown),
            attempt((32, 50), None, &["f"], Outcome::Refused),
            attempt((60, 70), Some(4), &["g"], Outcome::At(5)),
        ];
        assert_eq!(faults(&["a", "b", "c", "e", "g"], &history), [""; 0]);
        assert_eq!(faults(&[], &[]), [""; 0]);
    }

    #[test]
    fn a_lost_append_is_found() {
        let history =
            [attempt((0, 1), None, &["a"], Outcome::At(1)), attempt((2, 3), None, &["b"], Outcome::At(2))];
        assert_eq!(faults(&["a"], &history), ["lost"]);
        assert_eq!(faults(&["b"], &history), ["lost", "moved"]);
    }

    #[test]
    fn a_doubled_an_invented_and_an_undead_append_are_found() {
        let history = [
            attempt((0, 1), None, &["a"], Outcome::Unknown),
            attempt((0, 1), None, &["b"], Outcome::Refused),
        ];
        assert_eq!(faults(&["a"], &history), [""; 0]);
        assert_eq!(faults(&["a", "a"], &history), ["doubled"]);
        assert_eq!(faults(&["x", "a"], &history), ["invented"]);
        assert_eq!(faults(&["b"], &history), ["undead"]);
        // Told of a conflict with what is its own earlier success.
        let ghost = [attempt((0, 1), Some(0), &["a"], Outcome::Conflict(1))];
        assert_eq!(faults(&["a"], &ghost), ["undead"]);
    }

    #[test]
    fn a_broken_compare_and_append_is_found() {
        let first = attempt((0, 1), None, &["a"], Outcome::At(1));
        let wrong = attempt((2, 3), Some(0), &["b"], Outcome::At(2));
        assert_eq!(faults(&["a", "b"], &[first.clone(), wrong]), ["compare-and-append broken"]);
        // Nobody was told that it succeeded, and it must not have.
        let unknown = attempt((2, 3), Some(0), &["b"], Outcome::Unknown);
        assert_eq!(faults(&["a", "b"], &[first.clone(), unknown]), ["compare-and-append broken"]);
        let refused = attempt((2, 3), Some(1), &["b"], Outcome::Conflict(1));
        assert_eq!(faults(&["a"], &[first],), [""; 0]);
        let first = attempt((0, 1), None, &["a"], Outcome::At(1));
        assert_eq!(faults(&["a"], &[first, refused]), ["compare-and-append broken"]);
    }

    #[test]
    fn a_violation_of_the_order_is_found() {
        let history =
            [attempt((0, 1), None, &["a"], Outcome::At(2)), attempt((2, 3), None, &["b"], Outcome::At(1))];
        assert_eq!(faults(&["b", "a"], &history), ["order"]);
        // One that nobody was answered for is held to it as well, if it was sent too late.
        let late =
            [attempt((0, 1), None, &["a"], Outcome::At(2)), attempt((2, 3), None, &["b"], Outcome::Unknown)];
        assert_eq!(faults(&["b", "a"], &late), ["order"]);
        let beside =
            [attempt((0, 2), None, &["a"], Outcome::At(2)), attempt((2, 3), None, &["b"], Outcome::At(1))];
        assert_eq!(faults(&["b", "a"], &beside), [""; 0]);
    }

    #[test]
    fn a_batch_that_is_torn_is_found() {
        let history = [
            attempt((0, 9), None, &["a", "b"], Outcome::Unknown),
            attempt((0, 9), None, &["c"], Outcome::At(2)),
        ];
        assert_eq!(faults(&["a", "c", "b"], &history), ["torn"]);
        assert_eq!(faults(&["a", "c"], &history), ["torn"]);
        assert_eq!(faults(&["b", "c"], &history), ["torn"]);
    }

    #[test]
    fn a_conflict_with_what_was_no_more_or_not_yet_is_found() {
        let appended = [
            attempt((0, 1), None, &["a"], Outcome::At(1)),
            attempt((2, 3), None, &["b"], Outcome::At(2)),
            attempt((8, 9), None, &["c"], Outcome::At(3)),
        ];
        let with = |conflict| {
            [&appended[..], &[attempt((4, 5), Some(9), &["x"], Outcome::Conflict(conflict))]].concat()
        };
        assert_eq!(faults(&["a", "b", "c"], &with(2)), [""; 0]);
        for wrong in [1, 3, 4] {
            assert_eq!(faults(&["a", "b", "c"], &with(wrong)), ["stale"], "{wrong}");
        }
    }
}
