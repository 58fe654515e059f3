//! What an archive and its snapshots show of the rules.

use jiff::Timestamp;
use serde_json::Value;

use super::judge::text;
use super::{DiffDeltaChecker, MAX_SNAPSHOTS, Response, Step, rules};
use crate::diffdelta::cursor::{Cursor, recompute};
use crate::diffdelta::headers::IMMUTABLE;
use crate::diffdelta::wire::{ArchiveIndex, GLOBAL, Snapshot};
use crate::format::jcs::Style;

impl DiffDeltaChecker {
    /// Section 3: recomputes the cursor of a document that states its own.
    fn note_cursor(&mut self, url: &str, body: &[u8], cursor: &str) {
        let computed = |style| recompute(body, style).map(|c| c.to_string());
        let (jcs, python) = (computed(Style::Jcs), computed(Style::Python));
        let holds = |c: &Result<String, _>| c.as_deref().is_ok_and(|c| c == cursor);
        let problem = (!holds(&jcs) && !holds(&python)).then(|| match &jcs {
            Ok(other) => format!("it states {cursor}, and its content gives {other}"),
            Err(e) => format!("it has no canonical form: {e}"),
        });
        self.note_at(rules::CANONICAL, url, problem);
        let problem = (jcs != python).then(|| match &jcs {
            Ok(_) => "they write a number or a key differently".to_owned(),
            Err(e) => e.to_string(),
        });
        self.note_at(rules::JCS, url, problem);
    }

    pub(super) fn judge_index(&mut self, response: &Response) {
        let index = response
            .json()
            .and_then(|v| serde_json::from_value(v).map_err(|e: serde_json::Error| e.to_string()));
        let snapshots = match index {
            Ok(ArchiveIndex { snapshots, .. }) => snapshots,
            Err(problem) => {
                let why = format!("there is no archive index: {problem}");
                self.skip(rules::CHAIN, &why);
                self.skip(rules::FIRST, &why);
                return self.look_for_the_snapshot();
            }
        };
        self.note_type(response);
        if let Some(first) = snapshots.first() {
            let problem = (first.prev_cursor != Cursor::ZERO.to_string())
                .then(|| format!("it is {}", first.prev_cursor));
            self.note_at(rules::FIRST, &response.url, problem);
        }
        let broken = snapshots.windows(2).find(|pair| pair[1].prev_cursor != pair[0].cursor);
        let problem = broken.map(|pair| format!("{} follows on {}", pair[1].url, pair[0].url));
        self.note_at(rules::CHAIN, &response.url, problem);
        let Some(subject) = &mut self.subject else { return };
        let cursor = subject.latest.as_ref().map(|l| text(&l.value, "cursor")).unwrap_or_default();
        let is_reset = cursor.parse() == Ok(Cursor::ZERO) && !snapshots.is_empty();
        subject.has_snapshot = snapshots.iter().any(|s| s.cursor == cursor);
        let listed = subject.has_snapshot;
        let problem = is_reset.then(|| format!("the cursor is zero, after {} snapshots", snapshots.len()));
        self.note_at(rules::ZERO, &response.url, problem);
        let newest = snapshots.len().saturating_sub(MAX_SNAPSHOTS);
        self.first(snapshots.into_iter().skip(newest).map(Step::Snapshot).collect());
        if !listed {
            self.look_for_the_snapshot();
        }
    }

    /// Without an index: the snapshot of a minted latest document is where section 1 says.
    fn look_for_the_snapshot(&mut self) {
        let Some(subject) = &self.subject else { return };
        let Some(latest) = &subject.latest else { return };
        let cursor = text(&latest.value, "cursor").to_owned();
        if cursor.parse() == Ok(Cursor::ZERO) {
            return;
        }
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
        self.note_cursor(&url, &body, &cursor);
        let Some(path) = archive_path(&source, &generated_at, &cursor) else {
            return self.skip(rules::ARCHIVE, "its time or its cursor is none");
        };
        let snapshot = Snapshot {
            cursor,
            generated_at,
            prev_cursor: String::new(),
            sha256: String::new(),
            url: format!("../..{path}"),
        };
        self.first(vec![Step::Snapshot(snapshot)]);
    }

    pub(super) fn judge_snapshot(&mut self, listed: &Snapshot, response: &Response) {
        let document = match response.json() {
            Ok(document) => document,
            Err(problem) => return self.note(rules::ARCHIVE, Some(problem)),
        };
        let url = response.url.as_str();
        self.note_type(response);
        self.note_cache(rules::CACHE_ARCHIVE, IMMUTABLE, response);
        self.note_document(url, &response.body, &document);
        self.note_cursor(url, &response.body, text(&document, "cursor"));
        let source = document.get("source_id").and_then(Value::as_str).unwrap_or(GLOBAL);
        let path = archive_path(source, text(&document, "generated_at"), text(&document, "cursor"));
        let named = path.as_deref().is_some_and(|path| url.ends_with(path));
        let problem = (!named).then(|| format!("its name should end with {}", path.unwrap_or_default()));
        self.note_at(rules::ARCHIVE, url, problem);
        let hash = Cursor::of(&response.body);
        let stated = listed.sha256.trim_start_matches("sha256:");
        if !stated.is_empty() {
            let problem =
                (stated != hash.hex()).then(|| format!("the index says {stated}, and it is {}", hash.hex()));
            self.note_at(rules::HASH, url, problem);
        }
        self.compare_with_latest(listed, response, &document);
    }

    pub(super) fn judge_snapshot_later(&mut self, hash: Cursor, response: &Response) {
        let problem = match response.json() {
            Err(problem) => Some(problem),
            Ok(_) if Cursor::of(&response.body) != hash => {
                Some(format!("{}: another content than before", response.url))
            }
            Ok(_) => None,
        };
        self.note(rules::ARCHIVE_STAYS, problem);
    }

    /// The snapshot of the latest document: the same bytes, or the same buckets where that is carried.
    fn compare_with_latest(&mut self, listed: &Snapshot, response: &Response, document: &Value) {
        let Some(latest) = self.subject.as_ref().and_then(|s| s.latest.as_ref()) else { return };
        if latest.value.get("cursor") != document.get("cursor") {
            return;
        }
        let url = response.url.as_str();
        if latest.value.get("changed") == Some(&Value::Bool(true)) {
            let problem = latest.body != response.body;
            self.note_at(rules::ARCHIVE_SAME, url, problem.then(|| "it differs from latest.json".to_owned()));
        } else {
            let problem = latest.value.get("buckets") != document.get("buckets");
            let problem = problem.then(|| "latest.json has the same cursor and other buckets".to_owned());
            self.note_at(rules::CURSOR_SAME, url, problem);
        }
        let hash = Cursor::of(&response.body);
        self.first(vec![Step::SnapshotLater(listed.clone(), hash)]);
    }
}

/// Section 1: `/archive/{source_id}/{YYYY}/{MM}/{DD}/{YYYYMMDDTHHMMSSZ}_{cursor_hex}.json`.
fn archive_path(source: &str, generated_at: &str, cursor: &str) -> Option<String> {
    let time: Timestamp = generated_at.parse().ok()?;
    let stamp = Timestamp::from_second(time.as_second()).ok()?.to_string().replace(['-', ':'], "");
    let (year, month, day) = (stamp.get(..4)?, stamp.get(4..6)?, stamp.get(6..8)?);
    let cursor: Cursor = cursor.parse().ok()?;
    Some(format!("/archive/{source}/{year}/{month}/{day}/{stamp}_{}.json", cursor.short()))
}
