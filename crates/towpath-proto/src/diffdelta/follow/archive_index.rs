//! Reads an archive index, ours or another publisher's: in any order, with any members missing.
//!
//! The text has no index (section 1.3 names the snapshots only), so publishers differ. Some list the URL and a time
//! alone, some the newest snapshot first.

use std::collections::HashMap;

use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use serde::Deserialize;

use super::responses::{protocol_error, without_mark};
use crate::diffdelta::wire::{DeltaDocument, SnapshotEntry};
use crate::follow::{FollowError, ResponseHead};
use crate::format::budget::Budget;
use crate::format::json_lists::check_lists;
use crate::format::{DocumentLimits, FormatError};

/// An archive index, oldest snapshot first. Missing members are empty.
#[derive(Debug)]
pub(super) struct ListedSnapshots {
    pub(super) snapshots: Vec<SnapshotEntry>,
    /// True if every entry states its cursor and that of the entry before it.
    pub(super) is_chained: bool,
    /// Number of entries without a URL.
    pub(super) without_url: usize,
}

#[derive(Deserialize)]
struct StatedIndex {
    snapshots: Vec<StatedEntry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatedEntry {
    cursor: Option<String>,
    generated_at: Option<String>,
    prev_cursor: Option<String>,
    sha256: Option<String>,
    url: Option<String>,
}

/// Parses an archive index; `None` if the response is another document, such as an HTML page.
///
/// # Errors
///
/// Truncated JSON, and an index beyond the limits.
pub(super) fn read_index(
    head: &ResponseHead,
    body: &[u8],
    limits: DocumentLimits,
) -> Result<Option<ListedSnapshots>, FollowError> {
    // Buckets and raw views of repositories serve JSON as text or bytes. Sites with a catch-all route answer any path
    // with 200 and HTML or a text.
    let is_json =
        head.headers.get(CONTENT_TYPE).and_then(|t| t.to_str().ok()).is_none_or(|t| t.contains("json"));
    if !is_json && !without_mark(body).trim_ascii_start().starts_with(b"{") {
        return Ok(None);
    }
    // An empty entry of three bytes takes forty times that, so entries are counted first.
    let text = std::str::from_utf8(without_mark(body)).unwrap_or_default();
    let mut budget = Budget::new(text.len(), limits);
    if let Err(error @ FormatError::Limit(_)) =
        check_lists(text, size_of::<StatedEntry>() + size_of::<SnapshotEntry>(), &mut budget)
    {
        return Err(protocol_error(&head.url, error.to_string()));
    }
    match serde_json::from_slice::<StatedIndex>(without_mark(body)) {
        Ok(index) => Ok(Some(listed(index))),
        // Valid JSON of another form is not an index. Truncated JSON is a failed transfer and is retried.
        Err(e) if e.is_data() => Ok(None),
        Err(e) => Err(protocol_error(&head.url, e.to_string())),
    }
}

fn listed(index: StatedIndex) -> ListedSnapshots {
    let total = index.snapshots.len();
    let mut snapshots: Vec<SnapshotEntry> = index.snapshots.into_iter().filter_map(entry).collect();
    let without_url = total - snapshots.len();
    let is_chained = snapshots.iter().all(|s| !s.cursor.is_empty() && !s.prev_cursor.is_empty());
    order(&mut snapshots);
    ListedSnapshots { snapshots, is_chained, without_url }
}

fn entry(stated: StatedEntry) -> Option<SnapshotEntry> {
    let url = stated.url.filter(|url| !url.is_empty())?;
    Some(SnapshotEntry {
        cursor: stated.cursor.unwrap_or_default(),
        generated_at: time_text(stated.generated_at.unwrap_or_default(), &url),
        prev_cursor: stated.prev_cursor.unwrap_or_default(),
        sha256: stated.sha256.unwrap_or_default(),
        url,
    })
}

/// Returns the time of an entry as documents state it, or else from the snapshot's file name (section 1.3).
fn time_text(stated: String, url: &str) -> String {
    if stated.contains('-') {
        return stated;
    }
    let name = url.rsplit('/').next().unwrap_or_default();
    let from_name = name.split('_').next().unwrap_or_default();
    // Publishers write the file name's compact form (20260205T120000Z) in the index, too.
    let time = |text: &str| text.parse::<Timestamp>().ok();
    time(&stated).or_else(|| time(from_name)).map_or(stated, |time| time.to_string())
}

/// Orders snapshots by time, or as listed or the other way round, if more of them follow on the one before.
fn order(snapshots: &mut Vec<SnapshotEntry>) {
    let time = |s: &SnapshotEntry| s.generated_at.parse::<Timestamp>().ok();
    if links(snapshots) + 1 >= snapshots.len() && snapshots.is_sorted_by_key(time) {
        return;
    }
    let listed = snapshots.clone();
    order_by_time(snapshots);
    // A publisher's clock may have gone back, and cursors tell the order for certain.
    if links(&listed) > links(snapshots) {
        *snapshots = listed;
    } else if listed.windows(2).filter(|pair| follows(&pair[1], &pair[0])).count() > links(snapshots) {
        *snapshots = listed.into_iter().rev().collect();
    }
}

/// Returns the number of snapshots that follow on the one before them.
fn links(snapshots: &[SnapshotEntry]) -> usize {
    snapshots.windows(2).filter(|pair| follows(&pair[0], &pair[1])).count()
}

fn follows(before: &SnapshotEntry, after: &SnapshotEntry) -> bool {
    !before.cursor.is_empty() && after.prev_cursor == before.cursor
}

/// Orders snapshots by time, and those of equal or unknown times by their cursors.
fn order_by_time(snapshots: &mut [SnapshotEntry]) {
    let time = |s: &SnapshotEntry| s.generated_at.parse::<Timestamp>().ok();
    let is_timed = snapshots.iter().all(|s| time(s).is_some());
    if is_timed && !snapshots.is_sorted_by_key(time) {
        // Newest first is turned round, so that snapshots of one second are, too.
        snapshots.reverse();
        snapshots.sort_by_cached_key(time);
    }
    for group in snapshots.chunk_by_mut(|a, b| !is_timed || time(a) == time(b)) {
        if !is_chain(group) {
            group.reverse();
            if !is_chain(group) {
                group.reverse();
                follow_cursors(group);
            }
        }
    }
}

/// Returns true if every snapshot follows on the one before it, by their cursors.
fn is_chain(snapshots: &[SnapshotEntry]) -> bool {
    snapshots.windows(2).all(|pair| pair[1].prev_cursor == pair[0].cursor)
}

/// Orders snapshots so that as many as possible follow on the one before.
fn follow_cursors(snapshots: &mut [SnapshotEntry]) {
    let mut after: HashMap<&str, Vec<usize>> = HashMap::new();
    // Reversed, because the last of a list is taken first.
    for (index, snapshot) in snapshots.iter().enumerate().rev() {
        after.entry(&snapshot.prev_cursor).or_default().push(index);
    }
    let is_listed: std::collections::HashSet<&str> = snapshots.iter().map(|s| s.cursor.as_str()).collect();
    let begins = |index: &usize| !is_listed.contains(snapshots[*index].prev_cursor.as_str());
    let (starts, rest): (Vec<usize>, Vec<usize>) = (0..snapshots.len()).partition(begins);
    let mut is_taken = vec![false; snapshots.len()];
    let mut ordered = Vec::with_capacity(snapshots.len());
    for start in starts.into_iter().chain(rest) {
        let mut next = Some(start);
        while let Some(index) = next.filter(|index| !is_taken[*index]) {
            is_taken[index] = true;
            ordered.push(snapshots[index].clone());
            let mut followers = after.get_mut(snapshots[index].cursor.as_str());
            next = followers.as_mut().and_then(|f| std::iter::from_fn(|| f.pop()).find(|&i| !is_taken[i]));
        }
    }
    snapshots.clone_from_slice(&ordered);
}

/// Returns true if an index does not reach the latest document, as a cached copy may not.
pub(super) fn index_lags(snapshots: &[SnapshotEntry], latest: &DeltaDocument) -> bool {
    let leads_up = |s: &SnapshotEntry| latest.changed && s.cursor == latest.prev_cursor;
    // The index may lack the latest document itself: that one is at hand.
    !snapshots.iter().any(|s| s.cursor == latest.cursor) && !snapshots.last().is_some_and(leads_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the order in which snapshots named by a letter are delivered.
    fn ordered(entries: &[(&str, &str, &str, &str)]) -> String {
        let stated = entries.iter().map(|(url, time, prev, cursor)| StatedEntry {
            cursor: Some((*cursor).into()),
            generated_at: Some((*time).into()),
            prev_cursor: Some((*prev).into()),
            sha256: None,
            url: Some((*url).into()),
        });
        listed(StatedIndex { snapshots: stated.collect() }).snapshots.into_iter().map(|s| s.url).collect()
    }

    #[test]
    fn snapshots_are_ordered_by_time_and_cursor() {
        let (t1, t2) = ("2026-01-01T00:00:01Z", "20260101T000002Z");
        let [a, b, c] = [("a", t1, "0", "1"), ("b", t1, "1", "2"), ("c", t2, "2", "3")];
        for entries in [[a, b, c], [c, b, a], [b, c, a], [b, a, c], [c, a, b], [a, c, b]] {
            assert_eq!(ordered(&entries), "abc", "{entries:?}");
        }
        // A cursor that came back within a second.
        let [a, b, c, d] =
            [("a", t1, "0", "1"), ("b", t1, "1", "2"), ("c", t1, "2", "1"), ("d", t1, "1", "3")];
        for entries in [[a, b, c, d], [d, c, b, a]] {
            assert_eq!(ordered(&entries), "abcd", "{entries:?}");
        }
        // The clock went back: the cursors tell.
        let [a, b, c] = [("a", t2, "0", "1"), ("b", t2, "1", "2"), ("c", t1, "2", "3")];
        for entries in [[a, b, c], [c, b, a]] {
            assert_eq!(ordered(&entries), "abc", "{entries:?}");
        }
        // Without times and with times that cannot be read.
        let [a, b, c] = [("a", "", "0", "1"), ("b", "once", "1", "2"), ("c", "", "2", "3")];
        for entries in [[a, b, c], [c, b, a], [b, c, a], [c, a, b]] {
            assert_eq!(ordered(&entries), "abc", "{entries:?}");
        }
        // Nothing but URLs: as listed.
        assert_eq!(ordered(&[("b", "", "", ""), ("a", "", "", "")]), "ba");
    }

    #[test]
    fn a_missing_time_is_read_from_the_file_name() {
        let url = "/archive/ab/2026/02/05/20260205T120000Z_9bab0adf65dd.json";
        assert_eq!(time_text(String::new(), url), "2026-02-05T12:00:00Z");
        assert_eq!(time_text("20260205T120001Z".into(), url), "2026-02-05T12:00:01Z");
        assert_eq!(time_text("2026-02-05T12:00:02.5Z".into(), url), "2026-02-05T12:00:02.5Z");
        assert_eq!(time_text(String::new(), "/a.json"), "");
    }
}
