//! The rules about an archive and its snapshots.

use jiff::Timestamp;
use serde_json::Value;

use super::document::CheckedDocument;
use super::responses::text;
use super::{CheckStep, DiffDeltaChecker, FetchedResponse, MAX_SNAPSHOTS, rules};
use crate::diffdelta::wire::cursor::{Cursor, recompute};
use crate::diffdelta::wire::headers::IMMUTABLE;
use crate::diffdelta::wire::{ArchiveIndex, GLOBAL, SnapshotEntry};
use crate::format::jcs::Style;

impl DiffDeltaChecker {
    /// Checks that the stated cursor recomputes (section 3).
    fn check_cursor(&mut self, url: &str, body: &[u8], cursor: &str) {
        let computed = |style| recompute(body, style).map(|c| c.to_string());
        let (jcs, python) = (computed(Style::Jcs), computed(Style::Python));
        let holds = |c: &Result<String, _>| c.as_deref().is_ok_and(|c| c == cursor);
        let problem = (!holds(&jcs) && !holds(&python)).then(|| match &jcs {
            Ok(other) => format!("it states {cursor}, and its content gives {other}"),
            Err(e) => format!("it has no canonical form: {e}"),
        });
        self.record_at(rules::CANONICAL, url, problem);
        // A SHOULD: the cursor holds, but implementations of the other form cannot recompute it.
        let problem = (jcs != python).then(|| match &jcs {
            Ok(_) => "they write a number or a key differently".to_owned(),
            Err(e) => e.to_string(),
        });
        self.record_at(rules::JCS, url, problem);
    }

    pub(super) fn check_index(&mut self, response: &FetchedResponse) {
        let index = response
            .json(&self.limits)
            .and_then(|v| serde_json::from_value(v).map_err(|e: serde_json::Error| e.to_string()));
        let snapshots = match index {
            Ok(ArchiveIndex { snapshots, .. }) => snapshots,
            Err(problem) => {
                let why = format!("there is no archive index: {problem}");
                self.skip(rules::CHAIN, &why);
                self.skip(rules::FIRST, &why);
                return self.check_snapshot_by_path();
            }
        };
        self.check_content_type(response);
        if let Some(first) = snapshots.first() {
            let problem = (first.prev_cursor != Cursor::ZERO.to_string())
                .then(|| format!("it is {}", first.prev_cursor));
            self.record_at(rules::FIRST, &response.url, problem);
        }
        let broken = snapshots.windows(2).find(|pair| pair[1].prev_cursor != pair[0].cursor);
        let problem = broken.map(|pair| format!("{} follows on {}", pair[1].url, pair[0].url));
        self.record_at(rules::CHAIN, &response.url, problem);
        let time = |s: &SnapshotEntry| s.generated_at.parse::<Timestamp>().ok();
        let back = snapshots.windows(2).find(|pair| time(&pair[1]) < time(&pair[0]));
        let problem = back.map(|pair| {
            format!("{} has {}, after {}", pair[1].url, pair[1].generated_at, pair[0].generated_at)
        });
        self.record_at(rules::TIMES, &response.url, problem);
        let Some(subject) = &mut self.subject else { return };
        let cursor = subject.latest.as_ref().map(|l| text(&l.value, "cursor")).unwrap_or_default();
        // Section 5: a zero cursor states that no fetch ever succeeded, which the snapshots contradict.
        let is_reset = cursor.parse() == Ok(Cursor::ZERO) && !snapshots.is_empty();
        subject.has_snapshot = snapshots.iter().any(|s| s.cursor == cursor);
        let listed = subject.has_snapshot;
        let problem = is_reset.then(|| format!("the cursor is zero, after {} snapshots", snapshots.len()));
        self.record_at(rules::ZERO, &response.url, problem);
        // An archive grows for years. The newest snapshots show how the publisher works today.
        let newest = snapshots.len().saturating_sub(MAX_SNAPSHOTS);
        self.prepend(snapshots.into_iter().skip(newest).map(CheckStep::Snapshot).collect());
        if !listed {
            self.check_snapshot_by_path();
        }
    }

    /// Checks the snapshot at the path of section 1.3, for an archive without an index.
    fn check_snapshot_by_path(&mut self) {
        let Some(subject) = &self.subject else { return };
        let Some(latest) = &subject.latest else { return };
        let cursor = text(&latest.value, "cursor").to_owned();
        if cursor.parse() == Ok(Cursor::ZERO) {
            return;
        }
        // A carried document has the times of a later run, so the name of its snapshot is unknown.
        if latest.value.get("changed") != Some(&Value::Bool(true)) {
            let why = "the latest document is carried, and no index tells which snapshot minted it";
            for rule in [rules::CANONICAL, rules::JCS, rules::ARCHIVE, rules::ARCHIVE_SAME] {
                self.skip(rule, why);
            }
            return;
        }
        let generated_at = text(&latest.value, "generated_at").to_owned();
        let source = latest.value.get("source_id").and_then(Value::as_str);
        let source = source.unwrap_or(GLOBAL).to_owned();
        let (url, body) = (latest.url.clone(), latest.body.clone());
        self.check_cursor(&url, &body, &cursor);
        let Some(path) = archive_path(&source, &generated_at, &cursor) else {
            return self.skip(rules::ARCHIVE, "the document has no valid time or cursor");
        };
        let snapshot = SnapshotEntry {
            cursor,
            generated_at,
            prev_cursor: String::new(),
            sha256: String::new(),
            // Resolved against the URL of the index, `/archive/{source}/index.json`.
            url: format!("../..{path}"),
        };
        self.prepend(vec![CheckStep::Snapshot(snapshot)]);
    }

    pub(super) fn check_snapshot(&mut self, listed: &SnapshotEntry, response: &FetchedResponse) {
        let checked = match response.document(&self.limits, &self.schema) {
            Ok(document) => document,
            Err(problem) => return self.record(rules::ARCHIVE, Some(problem)),
        };
        let document = &checked.value;
        let url = response.url.as_str();
        self.check_content_type(response);
        self.check_cache_headers(rules::CACHE_ARCHIVE, IMMUTABLE, response);
        self.check_document(url, &response.body, &checked);
        self.check_cursor(url, &response.body, text(document, "cursor"));
        let source = document.get("source_id").and_then(Value::as_str).unwrap_or(GLOBAL);
        let path = archive_path(source, text(document, "generated_at"), text(document, "cursor"));
        let named = path.as_deref().is_some_and(|path| url.ends_with(path));
        let problem = (!named).then(|| format!("its name should end with {}", path.unwrap_or_default()));
        self.record_at(rules::ARCHIVE, url, problem);
        let hash = Cursor::of(&response.body);
        // Other publishers write the hash with its prefix.
        let stated = listed.sha256.trim_start_matches("sha256:");
        // An entry made by `check_snapshot_by_path` has no hash to compare.
        if !stated.is_empty() {
            let problem =
                (stated != hash.hex()).then(|| format!("the index says {stated}, and it is {}", hash.hex()));
            self.record_at(rules::HASH, url, problem);
        }
        self.compare_with_latest(listed, response, &checked);
    }

    pub(super) fn check_snapshot_later(&mut self, hash: Cursor, response: &FetchedResponse) {
        let problem = match response.succeeded() {
            Err(problem) => Some(problem),
            Ok(()) if Cursor::of(&response.body) != hash => {
                Some(format!("{}: another content than before", response.url))
            }
            Ok(()) => None,
        };
        self.record(rules::ARCHIVE_STAYS, problem);
    }

    /// Compares the snapshot of the latest document: equal bytes, or equal buckets if that is carried.
    fn compare_with_latest(
        &mut self,
        listed: &SnapshotEntry,
        response: &FetchedResponse,
        document: &CheckedDocument,
    ) {
        let Some(latest) = self.subject.as_ref().and_then(|s| s.latest.as_ref()) else { return };
        if latest.value.get("cursor") != document.value.get("cursor") {
            return;
        }
        let url = response.url.as_str();
        if latest.value.get("changed") == Some(&Value::Bool(true)) {
            let problem = latest.body != response.body;
            self.record_at(
                rules::ARCHIVE_SAME,
                url,
                problem.then(|| "it differs from latest.json".to_owned()),
            );
        } else {
            let problem = latest.has_other_buckets(document);
            let problem = problem.then(|| "latest.json has the same cursor and other buckets".to_owned());
            self.record_at(rules::CURSOR_SAME, url, problem);
        }
        let hash = Cursor::of(&response.body);
        // Requested again at once: a CDN that rewrites or expires snapshots shows it.
        self.prepend(vec![CheckStep::SnapshotLater(listed.clone(), hash)]);
    }
}

/// Returns the path of section 1.3: `/archive/{source_id}/{YYYY}/{MM}/{DD}/{YYYYMMDDTHHMMSSZ}_{cursor_hex}.json`.
fn archive_path(source: &str, generated_at: &str, cursor: &str) -> Option<String> {
    let time: Timestamp = generated_at.parse().ok()?;
    let stamp = Timestamp::from_second(time.as_second()).ok()?.to_string().replace(['-', ':'], "");
    let (year, month, day) = (stamp.get(..4)?, stamp.get(4..6)?, stamp.get(6..8)?);
    let cursor: Cursor = cursor.parse().ok()?;
    Some(format!("/archive/{source}/{year}/{month}/{day}/{stamp}_{}.json", cursor.short()))
}
