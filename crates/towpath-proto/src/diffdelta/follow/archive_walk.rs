//! Handles archive indexes and snapshots: the walk through what the latest document does not have.

use sha2::{Digest, Sha256};

use super::archive_index::{ListedSnapshots, index_lags, read_index};
use super::archive_plan::{ArchivePlan, ends_before, is_older, is_snapshot, origin, plan};
use super::responses::protocol_error;
use super::{DiffDeltaFollower, NextAction};
use crate::diffdelta::wire::{DeltaDocument, SnapshotEntry};
use crate::follow::{Event, FollowError, ResponseHead};

/// Number of times an index may lag behind the latest document before it is ignored.
// A lag fails the pass, and the backoff gives caches time to expire (60 seconds, section 6.4).
pub(super) const MAX_LAGS: u32 = 6;

impl DiffDeltaFollower {
    pub(super) fn handle_index(&mut self, head: &ResponseHead, body: &[u8]) -> Result<(), FollowError> {
        let url = head.url.as_str();
        let ListedSnapshots { snapshots: listed, is_chained, without_url } =
            match read_index(head, body, self.limits.document)? {
                Some(index) => index,
                None => return self.handle_missing_index(url),
            };
        (self.has_no_index, self.is_index_chained) = (false, is_chained);
        if without_url > 0 {
            let text = format!("{url}: {without_url} snapshots without a URL are left out");
            self.outbox.push_back(Event::Warning(text));
        }
        let Some(held) = &self.latest else { return Ok(()) };
        // Without cursors nothing tells whether the index lags. The documents tell what is missing.
        let is_older = is_older(&held.document.generated_at, &self.state);
        let ends_before = is_chained && ends_before(&listed, &self.state);
        if is_older && ends_before && self.is_old_copy(url, origin(&listed))? {
            (self.next, self.latest) = (NextAction::Rest, None);
            return Ok(());
        }
        let is_behind = ends_before && !is_older && self.state.lags < MAX_LAGS;
        let lags = is_chained && index_lags(&listed, &held.document) || is_behind;
        if lags {
            self.state.lags += 1;
            if self.state.lags < MAX_LAGS {
                let reason = format!("the index does not reach {} yet", held.document.cursor);
                self.checkpoint();
                return Err(protocol_error(url, reason));
            }
        } else {
            // Reaching the document once is enough; a later lag starts counting anew.
            self.state.lags = 0;
        }
        self.walk_index(url, listed, lags)
    }

    /// Walks what an index lists after the delivered state. `lags`: the index does not reach the latest document, for good.
    fn walk_index(&mut self, url: &str, listed: Vec<SnapshotEntry>, lags: bool) -> Result<(), FollowError> {
        let Some(held) = &self.latest else { return Ok(()) };
        let first = origin(&listed).map(str::to_owned);
        let is_held = |s: &SnapshotEntry| {
            held.document.changed && is_snapshot(s, &held.document.cursor, &held.document.generated_at)
        };
        let lists_held = listed.iter().any(is_held);
        let ArchivePlan { snapshots, gaps, began_anew, is_placed } = plan(listed, &self.state);
        if lags && !is_placed {
            // An old copy without the delivered snapshot tells nothing.
            return self.deliver_without_index(&format!("the index at {url} does not reach it"));
        }
        // Only the documents say what follows an index without cursors, or one that lags.
        self.is_index_chained &= !lags;
        let is_old = lists_held && !snapshots.iter().any(is_held);
        let starts_later = self.state.since.is_some() && self.state.cursor.is_none();
        if self.is_index_chained && starts_later && snapshots.is_empty() {
            // No snapshot is as late as the requested start, so following begins after the latest document.
            let cursor = held.document.cursor.clone();
            self.next = self.start_after(cursor, None);
            return Ok(());
        }
        if is_old {
            // The state is beyond it: a cursor came back, and its server lags.
            self.latest = None;
        }
        if began_anew {
            let source = self.latest.as_ref().and_then(|held| held.document.source_id.clone());
            self.begin_anew(url, source);
        }
        // Gaps are reported before the changes after them.
        self.outbox.extend(gaps.into_iter().map(Event::Incomplete));
        self.walk = snapshots.into();
        self.state.older = 0;
        if is_placed || began_anew {
            self.state.origin = first.or(self.state.origin.take());
        }
        self.state.verified |= self.is_index_chained || lags;
        self.state.has_index = true;
        self.next = NextAction::Walk;
        Ok(())
    }

    pub(super) fn handle_missing_index(&mut self, url: &str) -> Result<(), FollowError> {
        // A page for maintenance or a deployment hides it for minutes, and only the index leads to what was missed.
        if self.state.has_index && self.state.lags < MAX_LAGS {
            self.state.lags += 1;
            self.checkpoint();
            return Err(protocol_error(url, "the index, which was there before, is missing".to_owned()));
        }
        self.has_no_index = true;
        self.deliver_without_index(&format!("there is no index at {url}"))
    }

    pub(super) fn handle_snapshot(
        &mut self,
        url: &str,
        body: &[u8],
        listed: &SnapshotEntry,
    ) -> Result<(), FollowError> {
        // Other publishers write the hash with its prefix.
        let expected = listed.sha256.strip_prefix("sha256:").unwrap_or(&listed.sha256);
        let actual = hex::encode(Sha256::digest(body));
        // An entry without a hash is accepted: the cursor still proves the content.
        if !expected.is_empty() && expected != actual {
            return Err(protocol_error(
                url,
                format!("its SHA-256 is {actual}, but the archive index states {expected}"),
            ));
        }
        let document = self.read_document(url, body)?;
        if listed.cursor.is_empty() {
            if self.state.cursor.as_ref() == Some(&document.cursor) {
                // The latest document of an earlier pass was this one.
                self.next = NextAction::Walk;
                return Ok(());
            }
            self.report_gap_before(&document);
        } else if document.cursor != listed.cursor {
            let text =
                format!("its cursor is {}, but the archive index states {}", document.cursor, listed.cursor);
            return Err(protocol_error(url, text));
        }
        self.prove(url, body, &document.cursor)?;
        self.deliver(document, url)
    }

    /// Handles a missing snapshot. The latest document may still have the changes of the last one.
    pub(super) fn handle_missing_snapshot(
        &mut self,
        url: &str,
        gone: &SnapshotEntry,
    ) -> Result<(), FollowError> {
        let text = format!("{url}: the snapshot of {} is gone", gone.cursor);
        let is_last = self.walk.is_empty();
        if let Some(mut held) = self.latest.take_if(|held| is_last && held.document.cursor == gone.cursor) {
            let unproved = if held.document.changed { "" } else { ", unproved" };
            let text = format!("{text}; its changes are taken from {}{unproved}", held.url);
            self.outbox.push_back(Event::Warning(text));
            // The position is that of the missing snapshot, so that the next index lookup finds it.
            held.document.generated_at.clone_from(&gone.generated_at);
            return self.deliver_latest(held);
        }
        self.outbox.push_back(Event::Incomplete(text));
        // Counts as delivered. Otherwise the missing snapshot would be requested forever.
        if !gone.cursor.is_empty() {
            self.state.cursor = Some(gone.cursor.clone());
        }
        self.state.generated_at = Some(gone.generated_at.clone());
        (self.state.same_second, self.state.partial) = (None, None);
        self.checkpoint();
        self.next = NextAction::Walk;
        Ok(())
    }

    /// Ends a walk: delivers the latest document if it comes after the last snapshot.
    pub(super) fn end_walk(&mut self) -> Result<(), FollowError> {
        self.next = NextAction::Rest;
        match self.latest.take() {
            Some(held) if self.follows_state(&held.document) => self.deliver_latest(held),
            Some(held)
                if !self.is_index_chained && self.state.cursor.as_ref() != Some(&held.document.cursor) =>
            {
                self.latest = Some(held);
                self.deliver_without_index("the archive index does not reach it")
            }
            _ => Ok(()),
        }
    }

    /// Reports a gap before a snapshot whose place in the chain the archive index does not state.
    fn report_gap_before(&mut self, document: &DeltaDocument) {
        let Some(delivered) = self.state.cursor.as_ref().filter(|_| document.changed) else { return };
        if *delivered != document.prev_cursor {
            let text = format!("the archive has nothing between {delivered} and {}", document.cursor);
            self.outbox.push_back(Event::Incomplete(text));
        }
    }
}
