//! Handles the responses to a follower's requests.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

use super::archive_plan::{ArchivePlan, ends_before, is_older, plan};
use super::delivery::DocumentDelivery;
use super::state::is_zero;
use super::{DiffDeltaFollower, DocumentRequest, HeldLatest, NextAction, TTL_BOUNDS};
use crate::diffdelta::wire::cursor::{Cursor, Proof, prove};
use crate::diffdelta::wire::locate::{DocumentLocation, FeedUrls, locate};
use crate::diffdelta::wire::{ArchiveIndex, DeltaDocument, HeadDocument, SnapshotEntry};
use crate::follow::single_request::SentRequest;
use crate::follow::{Event, FeedReset, FollowError, ResponseHead, StartFrom};

/// Number of times an index may lag behind the latest document before it is ignored.
// A lag fails the pass, and the backoff gives caches time to expire (60 seconds, section 6.4).
const MAX_LAGS: u32 = 6;

impl DiffDeltaFollower {
    fn set_ttl(&mut self, ttl_sec: u64) {
        // A document without `ttl_sec` reads as 0 and keeps the interval so far.
        if ttl_sec > 0 {
            self.ttl = ttl_sec.clamp(*TTL_BOUNDS.start(), *TTL_BOUNDS.end());
        }
    }

    fn handle_manifest(&mut self, url: &str, body: &[u8]) -> Result<(), FollowError> {
        let manifest: Value = parse(url, body)?;
        let latest = manifest.pointer("/endpoints/diff_latest").and_then(Value::as_str);
        let latest =
            latest.ok_or_else(|| protocol_error(url, "endpoints.diff_latest is missing (section 8)"))?;
        // Relative to the URL after redirects.
        let joined = Url::parse(url).and_then(|base| base.join(latest));
        let joined =
            joined.map_err(|e| protocol_error(url, format!("endpoints.diff_latest {latest:?}: {e}")))?;
        self.location = locate(joined.as_str()).map_err(|e| protocol_error(url, e))?;
        self.next = match &self.location {
            DocumentLocation::Feed(_) => NextAction::Send(self.first_request()),
            // A manifest that names manifests could lead the follower in a circle for ever.
            DocumentLocation::Manifest(_) => {
                return Err(protocol_error(url, "endpoints.diff_latest is itself a manifest"));
            }
        };
        Ok(())
    }

    fn handle_head(&mut self, head: &ResponseHead, body: &[u8]) -> Result<(), FollowError> {
        let parsed: HeadDocument = parse(&head.url, body)?;
        self.set_ttl(parsed.ttl_sec);
        let etag = head.headers.get(ETAG).and_then(|e| e.to_str().ok());
        self.validator = etag.map(|etag| (etag.to_owned(), parsed.cursor.clone()));
        if let (Ok(base), DocumentLocation::Feed(feed)) = (Url::parse(&head.url), &mut self.location)
            && !parsed.latest_url.is_empty()
        {
            let latest = base.join(&parsed.latest_url);
            feed.latest = latest
                .map_err(|e| protocol_error(&head.url, format!("latest_url {:?}: {e}", parsed.latest_url)))?;
        }
        // Section 2.3: by cursor. `changed` is relative to the previous run, which this follower may have
        // missed.
        self.next = if self.state.cursor.as_deref() == Some(&parsed.cursor) {
            NextAction::Rest
        } else if self.starts_now() || (is_zero(&parsed.cursor) && self.state.cursor.is_none()) {
            self.start_after(parsed.cursor.clone(), parsed.minted_at())
        } else {
            NextAction::Send(DocumentRequest::Latest)
        };
        self.head = Some(parsed);
        Ok(())
    }

    /// Returns true at the first poll of a follower that starts now.
    fn starts_now(&self) -> bool {
        self.from == StartFrom::Now && self.state.cursor.is_none()
    }

    fn start_after(&mut self, cursor: String, minted_at: Option<&str>) -> NextAction {
        self.state.cursor = Some(cursor);
        self.state.generated_at = minted_at.map(str::to_owned);
        self.checkpoint();
        NextAction::Rest
    }

    /// Section 2.2: a stored cursor that is not `prev_cursor` means a gap.
    fn handle_latest(&mut self, head: &ResponseHead, body: &Bytes) -> Result<(), FollowError> {
        let document: DeltaDocument = parse(&head.url, body)?;
        self.set_ttl(document.ttl_sec);
        // Without a head the latest document is what is polled, so its ETag is the validator.
        if matches!(&self.location, DocumentLocation::Feed(FeedUrls { head: None, .. })) {
            let etag = head.headers.get(ETAG).and_then(|e| e.to_str().ok());
            self.validator = etag.map(|etag| (etag.to_owned(), document.cursor.clone()));
        }
        let stored = self.state.cursor.as_deref();
        if stored == Some(&document.cursor) {
            self.next = NextAction::Rest;
        } else if self.starts_now() || (is_zero(&document.cursor) && stored.is_none()) {
            self.next = self.start_after(document.cursor, None);
        } else if is_zero(&document.cursor) {
            return Err(protocol_error(
                &head.url,
                "the cursor is zero, although it was not before (section 5)",
            ));
        } else if is_older(&document.generated_at, &self.state) {
            // One of several servers or caches at this URL lags. That is neither new content nor a gap.
            self.next = NextAction::Rest;
        } else {
            let follows_state = self.follows_state(&document) && self.is_certain(&document);
            self.latest = Some(HeldLatest { document, body: body.clone(), url: head.url.clone() });
            self.next =
                if follows_state { NextAction::Walk } else { NextAction::Send(DocumentRequest::Index) };
        }
        Ok(())
    }

    /// Returns true if a latest document follows the delivered state, judged by cursors.
    fn follows_state(&self, document: &DeltaDocument) -> bool {
        let next = match (&self.state.cursor, &self.state.partial) {
            (Some(cursor), _) => *cursor == document.prev_cursor,
            (None, Some(partial)) => partial.cursor == document.cursor,
            (None, None) => self.state.since.is_none() && is_zero(&document.prev_cursor),
        };
        // A carried document names itself as `prev_cursor`: it cannot tell what it follows.
        next && document.changed && document.cursor != document.prev_cursor
    }

    /// Returns true if a document that [`follows_state`](Self::follows_state) certainly does, or if nothing can tell.
    ///
    /// The head's `prev_generated_at` identifies the snapshot of `prev_cursor`. Without it, and with an archive
    /// index, the index decides.
    fn is_certain(&self, document: &DeltaDocument) -> bool {
        let is_stated = |head: &HeadDocument| {
            // The head must belong to this very document: a run may have come between the two requests.
            let before = head.prev_generated_at.as_ref();
            (&head.cursor, &head.generated_at) == (&document.cursor, &document.generated_at)
                && before.is_some()
                && before == self.state.generated_at.as_ref()
        };
        is_zero(&document.prev_cursor) || self.has_no_index || self.head.as_ref().is_some_and(is_stated)
    }

    fn handle_index(&mut self, head: &ResponseHead, body: &[u8]) -> Result<(), FollowError> {
        let url = head.url.as_str();
        let index = match read_index(head, body)? {
            Some(index) => index,
            None => return self.handle_missing_index(url),
        };
        self.has_no_index = false;
        let Some(held) = &self.latest else { return Ok(()) };
        if index_lags(&index, &held.document) || (self.lags < MAX_LAGS && ends_before(&index, &self.state)) {
            self.lags += 1;
            if self.lags < MAX_LAGS {
                return Err(protocol_error(
                    url,
                    format!("the index does not reach {} yet", held.document.cursor),
                ));
            }
            return self.deliver_without_index(&format!("the index at {url} does not reach it"));
        }
        // Reaching the document once is enough; a later lag starts counting anew.
        self.lags = 0;
        let ArchivePlan { snapshots, gaps, began_anew } = plan(index, &self.state);
        if self.state.since.is_some() && self.state.cursor.is_none() && snapshots.is_empty() {
            // No snapshot is as late as the requested start, so following begins after the latest document.
            let cursor = held.document.cursor.clone();
            self.next = self.start_after(cursor, None);
            return Ok(());
        }
        if began_anew {
            let source = self.latest.as_ref().and_then(|held| held.document.source_id.clone());
            self.begin_anew(url, source);
        }
        // Gaps are reported before the changes after them.
        self.outbox.extend(gaps.into_iter().map(Event::Incomplete));
        self.walk = snapshots.into();
        self.state.verified = true;
        self.next = NextAction::Walk;
        Ok(())
    }

    /// Reports that the publisher began anew: its chain starts at zero and lacks the stored cursor.
    fn begin_anew(&mut self, url: &str, source: Option<String>) {
        let stored = self.state.latest_known().unwrap_or_default().to_owned();
        self.state.cursor = Some(Cursor::ZERO.to_string());
        (self.state.generated_at, self.state.partial) = (None, None);
        let reason =
            format!("{url}: the publisher began anew: its archive starts at zero and never had {stored}");
        let feed = source.unwrap_or_else(|| url.to_owned());
        self.outbox.push_back(Event::Reset(FeedReset { feed, reason }));
    }

    fn handle_missing_index(&mut self, url: &str) -> Result<(), FollowError> {
        self.has_no_index = true;
        self.deliver_without_index(&format!("there is no index at {url}"))
    }

    /// Delivers the latest document without an archive index, and reports a gap before it.
    fn deliver_without_index(&mut self, why: &str) -> Result<(), FollowError> {
        let Some(held) = self.latest.take() else { return Ok(()) };
        let cursor = &held.document.cursor;
        let is_next = self.follows_state(&held.document) || self.state.delivered_of(cursor) > 0;
        let missed = match self.state.latest_known().map(str::to_owned) {
            _ if is_next => None,
            // The first document of a chain, although one was followed before.
            Some(_) if held.document.changed && is_zero(&held.document.prev_cursor) => {
                self.begin_anew(&held.url, held.document.source_id.clone());
                None
            }
            Some(stored) => {
                // A carried document does not name its predecessor. It may be the stored one: nothing lost.
                let lost = if held.document.changed { "are lost" } else { "may be lost" };
                Some(Event::Incomplete(format!("changes between {stored} and {cursor} {lost}: {why}")))
            }
            None => {
                Some(Event::Warning(format!("{}: only the latest changes are available: {why}", held.url)))
            }
        };
        self.outbox.extend(missed);
        self.deliver_latest(held)
    }

    fn deliver_latest(&mut self, held: HeldLatest) -> Result<(), FollowError> {
        // A carried document does not hash to its cursor. Only the snapshot of the cursor could prove it.
        if held.document.changed {
            self.prove(&held.url, &held.body, &held.document.cursor)?;
        }
        self.deliver(held.document, &held.url)
    }

    /// Verifies a document's cursor; see the module's documentation.
    fn prove(&mut self, url: &str, body: &[u8], cursor: &str) -> Result<(), FollowError> {
        match prove(body, cursor).map_err(|e| protocol_error(url, e.to_string()))? {
            Proof::Jcs => self.state.verified = true,
            Proof::Python => {
                self.state.verified = true;
                if !std::mem::replace(&mut self.warned_python, true) {
                    let text =
                        format!("{url}: its cursor recomputes by Python's json.dumps, not by RFC 8785");
                    self.outbox.push_back(Event::Warning(text));
                }
            }
            // A publisher whose cursors were proved once has been changed on its way, or is broken.
            Proof::Differs if self.state.verified => {
                return Err(protocol_error(url, format!("its content does not match its cursor {cursor}")));
            }
            Proof::Differs => {
                if !std::mem::replace(&mut self.warned_unproved, true) {
                    let text = format!("{url}: its cursor cannot be recomputed; following without proof");
                    self.outbox.push_back(Event::Warning(text));
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, document: DeltaDocument, url: &str) -> Result<(), FollowError> {
        let mut problems = Vec::new();
        let delivery = DocumentDelivery::new(document, url, &self.state, &mut problems)
            .map_err(|e| protocol_error(url, e.to_string()))?;
        let problem = |p| Event::Warning(format!("{url}: {p}"));
        self.outbox.extend(problems.into_iter().map(problem));
        self.delivery = Some(delivery);
        self.next = NextAction::Walk;
        Ok(())
    }

    fn handle_snapshot(&mut self, url: &str, body: &[u8], listed: &SnapshotEntry) -> Result<(), FollowError> {
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
        let document: DeltaDocument = parse(url, body)?;
        if document.cursor != listed.cursor {
            let text =
                format!("its cursor is {}, but the archive index states {}", document.cursor, listed.cursor);
            return Err(protocol_error(url, text));
        }
        self.prove(url, body, &document.cursor)?;
        self.deliver(document, url)
    }

    /// Handles a missing snapshot. The latest document may still have the changes of the last one.
    fn handle_missing_snapshot(&mut self, url: &str, gone: &SnapshotEntry) -> Result<(), FollowError> {
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
        self.state.cursor = Some(gone.cursor.clone());
        self.state.generated_at = Some(gone.generated_at.clone());
        self.state.partial = None;
        self.checkpoint();
        self.next = NextAction::Walk;
        Ok(())
    }

    /// Ends a walk: delivers the latest document if it comes after the last snapshot.
    pub(super) fn end_walk(&mut self) -> Result<(), FollowError> {
        self.next = NextAction::Rest;
        match self.latest.take() {
            Some(held) if self.follows_state(&held.document) => self.deliver_latest(held),
            _ => Ok(()),
        }
    }

    /// Handles a status without a document; returns `None` if the body is to be read.
    fn handle_status(
        &mut self,
        sent: &SentRequest<DocumentRequest>,
        head: &ResponseHead,
    ) -> Option<Result<(), FollowError>> {
        let gone = matches!(head.status, 404 | 410);
        match (&sent.purpose, head.status) {
            (_, 200) => None,
            // Only these two are ever sent with `If-None-Match`.
            (DocumentRequest::Head(_) | DocumentRequest::Latest, 304) => {
                self.next = NextAction::Rest;
                Some(Ok(()))
            }
            (DocumentRequest::Head(_), _) if gone => {
                // Section 1 has no head for the global feed.
                self.head = None;
                if let DocumentLocation::Feed(feed) = &mut self.location {
                    feed.head = None;
                }
                self.next = NextAction::Send(DocumentRequest::Latest);
                Some(Ok(()))
            }
            // Some sites answer 403 for missing files. 429 says nothing about the file.
            (DocumentRequest::Index, 400..=499) if head.status != 429 => {
                Some(self.handle_missing_index(&sent.url))
            }
            (DocumentRequest::Snapshot(snapshot), _) if gone => {
                Some(self.handle_missing_snapshot(&sent.url, snapshot))
            }
            (_, status) => Some(Err(FollowError::Status { url: sent.url.clone(), status })),
        }
    }

    pub(super) fn apply_response(
        &mut self,
        sent: SentRequest<DocumentRequest>,
        head: &ResponseHead,
        body: &Bytes,
    ) -> Result<(), FollowError> {
        if let Some(result) = self.handle_status(&sent, head) {
            return result;
        }
        match sent.purpose {
            DocumentRequest::Manifest => self.handle_manifest(&head.url, body),
            DocumentRequest::Head(_) => self.handle_head(head, body),
            DocumentRequest::Latest => self.handle_latest(head, body),
            DocumentRequest::Index => self.handle_index(head, body),
            DocumentRequest::Snapshot(snapshot) => self.handle_snapshot(&head.url, body, &snapshot),
        }
    }
}

/// Parses an archive index; `None` if the response is another document, such as an HTML page.
fn read_index(head: &ResponseHead, body: &[u8]) -> Result<Option<ArchiveIndex>, FollowError> {
    let media_type = head.headers.get(CONTENT_TYPE).and_then(|t| t.to_str().ok());
    // Sites with a catch-all route answer any path with 200 and HTML.
    if media_type.is_some_and(|t| !t.contains("json")) {
        return Ok(None);
    }
    match serde_json::from_slice(body) {
        Ok(index) => Ok(Some(index)),
        // Valid JSON of another form is not an index. Truncated JSON is a failed transfer and is retried.
        Err(e) if e.is_data() => Ok(None),
        Err(e) => Err(protocol_error(&head.url, e.to_string())),
    }
}

/// Returns true if an index does not reach the latest document, as a cached copy may not.
fn index_lags(index: &ArchiveIndex, latest: &DeltaDocument) -> bool {
    let leads_up = |s: &SnapshotEntry| latest.changed && s.cursor == latest.prev_cursor;
    // The index may lack the latest document itself: that one is at hand.
    !index.snapshots.iter().any(|s| s.cursor == latest.cursor)
        && !index.snapshots.last().is_some_and(leads_up)
}

fn parse<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, FollowError> {
    serde_json::from_slice(body).map_err(|e| protocol_error(url, e.to_string()))
}

fn protocol_error(url: &str, reason: impl Into<String>) -> FollowError {
    FollowError::Protocol { url: url.to_owned(), reason: reason.into() }
}
