//! Handles the responses to a follower's requests.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use url::Url;

use super::archive_plan::is_older;
use super::archive_walk::MAX_LAGS;
use super::delivery::DocumentDelivery;
use super::state::{PollValidator, is_zero};
use super::{DiffDeltaFollower, DocumentRequest, HeldLatest, NextAction, TTL_BOUNDS};
use crate::diffdelta::wire::cursor::{Cursor, Proof, prove};
use crate::diffdelta::wire::locate::{DocumentLocation, FeedUrls, locate, source_of};
use crate::diffdelta::wire::{DeltaDocument, HeadDocument};
use crate::follow::html_answer::html_answer;
use crate::follow::single_request::SentRequest;
use crate::follow::{Event, FeedReset, FollowError, ResponseHead, StartFrom};
use crate::format::FormatError;
use crate::format::budget::Budget;
use crate::format::json_lists::check_lists;
use crate::format::json_value::read_value;

impl DiffDeltaFollower {
    fn set_ttl(&mut self, ttl_sec: u64) {
        // A document without `ttl_sec` reads as 0 and keeps the interval so far.
        if ttl_sec > 0 {
            self.ttl = ttl_sec.clamp(*TTL_BOUNDS.start(), *TTL_BOUNDS.end());
        }
    }

    fn handle_manifest(&mut self, url: &str, body: &[u8]) -> Result<(), FollowError> {
        let manifest = self.read(url, body, read_value)?;
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
        self.keep_validator(head, &parsed.cursor);
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
            self.set_older(0);
            NextAction::Rest
        } else if parsed.cursor.is_empty() && self.state.cursor.is_some() {
            // A source that is disabled later has no cursor any more, and nothing new.
            self.explain_unfetched(&head.url, None);
            NextAction::Rest
        } else if self.starts_now() || (is_zero(&parsed.cursor) && self.state.cursor.is_none()) {
            self.start_after(parsed.cursor.clone(), parsed.minted_at())
        } else {
            NextAction::Send(DocumentRequest::Latest)
        };
        self.head = Some(parsed);
        Ok(())
    }

    /// Returns the name of the feed in its changes, if its documents do not state it.
    fn feed_name(&self, url: &str) -> String {
        let named = match &self.location {
            DocumentLocation::Feed(feed) => source_of(&feed.latest),
            DocumentLocation::Manifest(_) => None,
        };
        named.unwrap_or_else(|| url.to_owned())
    }

    fn keep_validator(&mut self, head: &ResponseHead, cursor: &str) {
        let etag = head.headers.get(ETAG).and_then(|e| e.to_str().ok());
        let validator = etag.map(|etag| PollValidator { etag: etag.to_owned(), cursor: cursor.to_owned() });
        // With new content, the checkpoints of its delivery hold the validator.
        let is_due = self.state.validator != validator && self.state.cursor.as_deref() == Some(cursor);
        self.state.validator = validator;
        if is_due {
            self.checkpoint();
        }
    }

    /// Says once why a feed has no changes: its source was never fetched, or is disabled.
    fn explain_unfetched(&mut self, url: &str, status: Option<&str>) {
        if !std::mem::replace(&mut self.warned_unfetched, true) {
            let status = status.map(|status| format!(" (status {status:?})")).unwrap_or_default();
            let text =
                format!("{url}: no cursor, because its source was not fetched yet or is disabled{status}");
            self.outbox.push_back(Event::Warning(text));
        }
    }

    /// Returns true at the first poll of a follower that starts now.
    fn starts_now(&self) -> bool {
        self.from == StartFrom::Now && self.state.cursor.is_none()
    }

    pub(super) fn start_after(&mut self, cursor: String, minted_at: Option<&str>) -> NextAction {
        self.state.cursor = Some(cursor);
        self.state.generated_at = minted_at.map(str::to_owned);
        self.state.same_second = None;
        self.checkpoint();
        NextAction::Rest
    }

    /// Section 2.2: a stored cursor that is not `prev_cursor` means a gap.
    fn handle_latest(&mut self, head: &ResponseHead, body: &Bytes) -> Result<(), FollowError> {
        let mut document = self.read_document(&head.url, body)?;
        self.set_ttl(document.ttl_sec);
        if document.cursor.is_empty() || is_zero(&document.cursor) && document.status.is_some() {
            self.explain_unfetched(&head.url, document.status.as_deref());
            document.cursor = Cursor::ZERO.to_string();
        }
        // Without a head the latest document is what is polled, so its ETag is the validator.
        if matches!(&self.location, DocumentLocation::Feed(FeedUrls { head: None, .. })) {
            self.keep_validator(head, &document.cursor);
        }
        let stored = self.state.cursor.as_deref();
        if stored == Some(&document.cursor) {
            self.set_older(0);
            self.next = NextAction::Rest;
        } else if self.starts_now() || (is_zero(&document.cursor) && stored.is_none()) {
            self.next = self.start_after(document.cursor, None);
        } else if is_zero(&document.cursor) {
            return Err(protocol_error(
                &head.url,
                "the cursor is zero, although it was not before (section 5)",
            ));
        } else {
            let is_older = is_older(&document.generated_at, &self.state);
            self.set_older(if is_older { self.state.older.saturating_add(1) } else { 0 });
            let follows_state = self.follows_state(&document) && self.is_certain(&document);
            self.latest = Some(HeldLatest { document, body: body.clone(), url: head.url.clone() });
            self.next =
                if follows_state { NextAction::Walk } else { NextAction::Send(DocumentRequest::Index) };
        }
        Ok(())
    }

    /// Sets the number of passes in a row whose latest document was older than the delivered one.
    fn set_older(&mut self, older: u32) {
        if std::mem::replace(&mut self.state.older, older) != older {
            // Stored, so that one-shot follows count, too.
            self.checkpoint();
        }
    }

    /// Decides on a document that is older than the delivered one and does not follow it: true for an old copy.
    ///
    /// One of several servers or caches at a URL may lag, which is neither new content nor a gap. But a clock may
    /// have gone back, too. `first` is the cursor of the first document of the chain, if it is known.
    ///
    /// # Errors
    ///
    /// If the chain is the delivered one, and its documents have been older for several passes.
    pub(super) fn is_old_copy(&self, url: &str, first: Option<&str>) -> Result<bool, FollowError> {
        let is_same = self.state.origin.as_deref().zip(first).map(|(known, first)| known == first);
        let older = self.state.older;
        match is_same {
            Some(false) => Ok(false),
            _ if older < MAX_LAGS => Ok(true),
            Some(true) => Err(protocol_error(
                url,
                format!(
                    "its documents have been older than the delivered one for {older} polls: a server that lags, or a \
                     publisher that was restored; to accept them, follow without the state"
                ),
            )),
            None => Ok(false),
        }
    }

    /// Returns true if a latest document follows the delivered state, judged by cursors.
    pub(super) fn follows_state(&self, document: &DeltaDocument) -> bool {
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

    /// Reports that the publisher began anew: its chain starts at zero and lacks the stored cursor.
    pub(super) fn begin_anew(&mut self, url: &str, source: Option<String>) {
        let stored = self.state.latest_known().unwrap_or_default().to_owned();
        self.state.cursor = Some(Cursor::ZERO.to_string());
        (self.state.origin, self.state.older) = (None, 0);
        (self.state.generated_at, self.state.same_second, self.state.partial) = (None, None, None);
        let reason =
            format!("{url}: the publisher began anew: its archive starts at zero and never had {stored}");
        // The global feed is of several sources, and its reset of all of them.
        let followed = match &self.location {
            DocumentLocation::Feed(feed) => feed.latest.as_str(),
            DocumentLocation::Manifest(_) => url,
        };
        let feed = source.unwrap_or_else(|| self.feed_name(followed));
        self.outbox.push_back(Event::Reset(FeedReset { feed, reason }));
    }

    /// Delivers the latest document without an archive index, and reports a gap before it.
    pub(super) fn deliver_without_index(&mut self, why: &str) -> Result<(), FollowError> {
        let Some(held) = self.latest.take() else { return Ok(()) };
        let cursor = &held.document.cursor;
        let is_next = self.follows_state(&held.document) || self.state.delivered_of(cursor) > 0;
        let starts_chain = held.document.changed && is_zero(&held.document.prev_cursor);
        if !is_next
            && is_older(&held.document.generated_at, &self.state)
            && self.is_old_copy(&held.url, starts_chain.then_some(cursor.as_str()))?
        {
            self.next = NextAction::Rest;
            return Ok(());
        }
        self.state.older = 0;
        let missed = match self.state.latest_known().map(str::to_owned) {
            _ if is_next => None,
            // The first document of a chain, although one was followed before.
            Some(_) if starts_chain => {
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

    pub(super) fn deliver_latest(&mut self, held: HeldLatest) -> Result<(), FollowError> {
        // A carried document does not hash to its cursor. Only the snapshot of the cursor could prove it.
        if held.document.changed {
            self.prove(&held.url, &held.body, &held.document.cursor)?;
        }
        self.deliver(held.document, &held.url)
    }

    /// Verifies a document's cursor; see the module's documentation.
    pub(super) fn prove(&mut self, url: &str, body: &[u8], cursor: &str) -> Result<(), FollowError> {
        // A number beyond what both forms can write leaves the cursor unproved.
        match prove(without_mark(body), cursor).unwrap_or(Proof::Differs) {
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

    /// Reads a body within the limits.
    pub(super) fn read<T>(
        &self,
        url: &str,
        body: &[u8],
        read: impl FnOnce(&str, &mut Budget) -> Result<T, FormatError>,
    ) -> Result<T, FollowError> {
        let text = std::str::from_utf8(without_mark(body)).map_err(|e| protocol_error(url, e.to_string()))?;
        let mut budget = Budget::new(body.len(), self.limits.document);
        read(text, &mut budget).map_err(|e| protocol_error(url, e.to_string()))
    }

    /// Reads a feed document. Its items stay text.
    pub(super) fn read_document(&self, url: &str, body: &[u8]) -> Result<DeltaDocument, FollowError> {
        // An item of one byte takes 48, so they are counted first.
        self.read(url, body, |text, budget| check_lists(text, size_of::<Box<RawValue>>(), budget))?;
        parse(url, body)
    }

    pub(super) fn deliver(&mut self, document: DeltaDocument, url: &str) -> Result<(), FollowError> {
        let mut problems = Vec::new();
        let delivery = DocumentDelivery::new(
            document,
            &self.feed_name(url),
            &self.state,
            self.limits.document,
            &mut problems,
        )
        .map_err(|e| protocol_error(url, e.to_string()))?;
        self.outbox.extend(problems.into_iter().map(|problem| match problem {
            Event::Incomplete(text) => Event::Incomplete(format!("{url}: {text}")),
            Event::Warning(text) => Event::Warning(format!("{url}: {text}")),
            other => other,
        }));
        self.delivery = Some(delivery);
        self.next = NextAction::Walk;
        Ok(())
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
                self.set_older(0);
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
            // The index and the latest document could be read, so the 403 is the file's, as above.
            (DocumentRequest::Snapshot(snapshot), status)
                if gone || status == 403 && self.latest.is_some() =>
            {
                Some(self.handle_missing_snapshot(&sent.url, snapshot))
            }
            (_, status) => Some(Err(FollowError::status(sent.url.clone(), status))),
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
        let handled = match sent.purpose {
            DocumentRequest::Manifest => self.handle_manifest(&head.url, body),
            DocumentRequest::Head(_) => self.handle_head(head, body),
            DocumentRequest::Latest => self.handle_latest(head, body),
            DocumentRequest::Index => self.handle_index(head, body),
            DocumentRequest::Snapshot(snapshot) => self.handle_snapshot(&head.url, body, &snapshot),
        };
        handled.map_err(|error| match error {
            FollowError::Protocol { url, reason } => {
                let reason = html_answer(head.header(CONTENT_TYPE.as_str()), body).unwrap_or(reason);
                FollowError::Protocol { url, reason }
            }
            other => other,
        })
    }
}

/// Returns a body without a byte order mark. RFC 8259 forbids the mark, and lets readers ignore it (section 8.1).
pub(super) fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

pub(super) fn parse<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, FollowError> {
    serde_json::from_slice(without_mark(body)).map_err(|e| protocol_error(url, e.to_string()))
}

pub(super) fn protocol_error(url: &str, reason: impl Into<String>) -> FollowError {
    FollowError::Protocol { url: url.to_owned(), reason: reason.into() }
}
