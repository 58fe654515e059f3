//! What each kind of answer means for a follower.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::Url;

use super::delivery::Delivery;
use super::locate::{Feed, Place, locate};
use super::plan::{Walk, ends_before, is_older, plan};
use super::state::is_zero;
use super::{Ask, DiffDeltaFollower, Kept, Next, TTL_BOUNDS};
use crate::asking::Asked;
use crate::diffdelta::cursor::{Proof, prove};
use crate::diffdelta::wire::{ArchiveIndex, Head, Latest, Snapshot};
use crate::follow::{Event, FollowError, ResponseHead, StartFrom};

/// How often an index may lag behind the latest document before it is disbelieved.
const MAX_LAGS: u32 = 6;

impl DiffDeltaFollower {
    fn take_ttl(&mut self, ttl_sec: u64) {
        if ttl_sec > 0 {
            self.ttl = ttl_sec.clamp(*TTL_BOUNDS.start(), *TTL_BOUNDS.end());
        }
    }

    fn take_manifest(&mut self, url: &str, body: &[u8]) -> Result<(), FollowError> {
        let manifest: Value = parse(url, body)?;
        let latest = manifest.pointer("/endpoints/diff_latest").and_then(Value::as_str);
        let latest = latest.ok_or_else(|| broken(url, "it has no endpoints.diff_latest (section 8)"))?;
        let joined = Url::parse(url).and_then(|base| base.join(latest));
        let joined = joined.map_err(|e| broken(url, format!("endpoints.diff_latest {latest:?}: {e}")))?;
        self.place = locate(joined.as_str()).map_err(|e| broken(url, e))?;
        self.next = match &self.place {
            Place::Feed(_) => Next::Ask(self.first()),
            Place::Manifest(_) => return Err(broken(url, "endpoints.diff_latest is a manifest again")),
        };
        Ok(())
    }

    fn take_head(&mut self, head: &ResponseHead, body: &[u8]) -> Result<(), FollowError> {
        let parsed: Head = parse(&head.url, body)?;
        self.take_ttl(parsed.ttl_sec);
        let etag = head.headers.get(ETAG).and_then(|e| e.to_str().ok());
        self.validator = etag.map(|etag| (etag.to_owned(), parsed.cursor.clone()));
        if let (Ok(base), Place::Feed(feed)) = (Url::parse(&head.url), &mut self.place)
            && !parsed.latest_url.is_empty()
        {
            let latest = base.join(&parsed.latest_url);
            feed.latest =
                latest.map_err(|e| broken(&head.url, format!("latest_url {:?}: {e}", parsed.latest_url)))?;
        }
        self.next = if self.state.cursor.as_deref() == Some(&parsed.cursor) {
            Next::Rest
        } else if self.begins_now() || (is_zero(&parsed.cursor) && self.state.cursor.is_none()) {
            self.begin_after(parsed.cursor.clone(), parsed.minted_at())
        } else {
            Next::Ask(Ask::Latest)
        };
        self.head = Some(parsed);
        Ok(())
    }

    /// Whether nothing was followed before and only what comes is wanted.
    fn begins_now(&self) -> bool {
        self.from == StartFrom::Now && self.state.cursor.is_none()
    }

    fn begin_after(&mut self, cursor: String, minted_at: Option<&str>) -> Next {
        self.state.cursor = Some(cursor);
        self.state.generated_at = minted_at.map(str::to_owned);
        self.checkpoint();
        Next::Rest
    }

    /// Section 2.2: a stored cursor that is not `prev_cursor` means a gap.
    fn take_latest(&mut self, head: &ResponseHead, body: &Bytes) -> Result<(), FollowError> {
        let document: Latest = parse(&head.url, body)?;
        self.take_ttl(document.ttl_sec);
        if matches!(&self.place, Place::Feed(Feed { head: None, .. })) {
            let etag = head.headers.get(ETAG).and_then(|e| e.to_str().ok());
            self.validator = etag.map(|etag| (etag.to_owned(), document.cursor.clone()));
        }
        let stored = self.state.cursor.as_deref();
        if stored == Some(&document.cursor) {
            self.next = Next::Rest;
        } else if self.begins_now() || (is_zero(&document.cursor) && stored.is_none()) {
            self.next = self.begin_after(document.cursor, None);
        } else if is_zero(&document.cursor) {
            return Err(broken(&head.url, "its cursor is zero, although it had another before (section 5)"));
        } else if is_older(&document.generated_at, &self.state) {
            // Of several servers at one address, or caches, one may be behind: that is neither new nor a gap.
            self.next = Next::Rest;
        } else {
            let follows_on = self.follows_on(&document) && self.is_sure(&document);
            self.latest = Some(Kept { document, body: body.clone(), url: head.url.clone() });
            self.next = if follows_on { Next::Walk } else { Next::Ask(Ask::Index) };
        }
        Ok(())
    }

    /// Whether a latest document is the very next after what was handed over, as far as cursors tell.
    fn follows_on(&self, document: &Latest) -> bool {
        let next = match &self.state.cursor {
            Some(cursor) => *cursor == document.prev_cursor,
            None => self.state.since.is_none() && is_zero(&document.prev_cursor),
        };
        next && document.changed && document.cursor != document.prev_cursor
    }

    /// Whether a document that [follows on](Self::follows_on) what was handed over does so for sure, or nothing
    /// can tell: its head says when the snapshot of its `prev_cursor` was made.
    fn is_sure(&self, document: &Latest) -> bool {
        let says_so = |head: &Head| {
            let before = head.prev_generated_at.as_ref();
            (&head.cursor, &head.generated_at) == (&document.cursor, &document.generated_at)
                && before.is_some()
                && before == self.state.generated_at.as_ref()
        };
        is_zero(&document.prev_cursor) || self.has_no_index || self.head.as_ref().is_some_and(says_so)
    }

    fn take_index(&mut self, head: &ResponseHead, body: &[u8]) -> Result<(), FollowError> {
        let url = head.url.as_str();
        let index = match read_index(head, body)? {
            Some(index) => index,
            None => return self.find_no_index(url),
        };
        self.has_no_index = false;
        let Some(kept) = &self.latest else { return Ok(()) };
        if lags(&index, &kept.document) || (self.lags < MAX_LAGS && ends_before(&index, &self.state)) {
            self.lags += 1;
            if self.lags < MAX_LAGS {
                return Err(broken(url, format!("it does not lead up to {} yet", kept.document.cursor)));
            }
            return self.do_without_index(&format!("the index at {url} does not lead up to it"));
        }
        self.lags = 0;
        let Walk { snapshots, gaps } = plan(index, &self.state);
        if self.state.since.is_some() && self.state.cursor.is_none() && snapshots.is_empty() {
            // Nothing is as late as what was asked for: begin after the latest.
            let cursor = kept.document.cursor.clone();
            self.next = self.begin_after(cursor, None);
            return Ok(());
        }
        self.outbox.extend(gaps.into_iter().map(Event::Incomplete));
        self.walk = snapshots.into();
        self.state.verified = true;
        self.next = Next::Walk;
        Ok(())
    }

    fn find_no_index(&mut self, url: &str) -> Result<(), FollowError> {
        self.has_no_index = true;
        self.do_without_index(&format!("there is no index at {url}"))
    }

    /// Without an archive index: hands over the latest document, whatever was missed before it.
    fn do_without_index(&mut self, why: &str) -> Result<(), FollowError> {
        let Some(kept) = self.latest.take() else { return Ok(()) };
        let cursor = &kept.document.cursor;
        let missed = match &self.state.cursor {
            _ if self.follows_on(&kept.document) => None,
            Some(stored) => {
                let lies = if kept.document.changed { "lies" } else { "may lie" };
                Some(Event::Incomplete(format!("what {lies} between {stored} and {cursor} is lost: {why}")))
            }
            None => Some(Event::Warning(format!("{}: only its latest changes can be had: {why}", kept.url))),
        };
        self.outbox.extend(missed);
        self.deliver_latest(kept)
    }

    fn deliver_latest(&mut self, kept: Kept) -> Result<(), FollowError> {
        // A carried document does not hash to its cursor: without an archive nothing proves it.
        if kept.document.changed {
            self.prove(&kept.url, &kept.body, &kept.document.cursor)?;
        }
        self.deliver(kept.document, &kept.url);
        Ok(())
    }

    /// Checks a document's cursor: see the module's text.
    fn prove(&mut self, url: &str, body: &[u8], cursor: &str) -> Result<(), FollowError> {
        match prove(body, cursor).map_err(|e| broken(url, e.to_string()))? {
            Proof::Jcs => self.state.verified = true,
            Proof::Python => {
                self.state.verified = true;
                if !std::mem::replace(&mut self.warned_python, true) {
                    let text =
                        format!("{url}: its cursor recomputes by Python's json.dumps, not by RFC 8785");
                    self.outbox.push_back(Event::Warning(text));
                }
            }
            Proof::Differs if self.state.verified => {
                return Err(broken(url, format!("its content is not what its cursor {cursor} stands for")));
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

    fn deliver(&mut self, document: Latest, url: &str) {
        let mut problems = Vec::new();
        let delivery = Delivery::new(document, url, &self.state, &mut problems);
        let problem = |p| Event::Warning(format!("{url}: {p}"));
        self.outbox.extend(problems.into_iter().map(problem));
        self.delivery = Some(delivery);
        self.next = Next::Walk;
    }

    fn take_snapshot(&mut self, url: &str, body: &[u8], listed: &Snapshot) -> Result<(), FollowError> {
        let expected = listed.sha256.strip_prefix("sha256:").unwrap_or(&listed.sha256);
        let actual = hex::encode(Sha256::digest(body));
        if !expected.is_empty() && expected != actual {
            return Err(broken(
                url,
                format!("its SHA-256 is {actual}, and the archive index says {expected}"),
            ));
        }
        let document: Latest = parse(url, body)?;
        if document.cursor != listed.cursor {
            let text =
                format!("its cursor is {}, and the archive index says {}", document.cursor, listed.cursor);
            return Err(broken(url, text));
        }
        self.prove(url, body, &document.cursor)?;
        self.deliver(document, url);
        Ok(())
    }

    /// A snapshot is gone. The last one's changes may still stand in the latest document.
    fn do_without_snapshot(&mut self, url: &str, gone: &Snapshot) -> Result<(), FollowError> {
        let text = format!("{url}: the snapshot of {} is gone", gone.cursor);
        let is_last = self.walk.is_empty();
        if let Some(mut kept) = self.latest.take_if(|kept| is_last && kept.document.cursor == gone.cursor) {
            let unproved = if kept.document.changed { "" } else { ", which nothing proves" };
            let text = format!("{text}; what it told stands in {}{unproved}", kept.url);
            self.outbox.push_back(Event::Warning(text));
            kept.document.generated_at.clone_from(&gone.generated_at);
            return self.deliver_latest(kept);
        }
        self.outbox.push_back(Event::Incomplete(text));
        self.state.cursor = Some(gone.cursor.clone());
        self.state.generated_at = Some(gone.generated_at.clone());
        self.state.partial = None;
        self.checkpoint();
        self.next = Next::Walk;
        Ok(())
    }

    /// All snapshots of the walk were handed over: is the latest document still to come?
    pub(super) fn end_walk(&mut self) -> Result<(), FollowError> {
        self.next = Next::Rest;
        match self.latest.take() {
            Some(kept) if self.follows_on(&kept.document) => self.deliver_latest(kept),
            _ => Ok(()),
        }
    }

    /// What a response's status means; `None` where the body counts.
    fn take_status(&mut self, asked: &Asked<Ask>, head: &ResponseHead) -> Option<Result<(), FollowError>> {
        let gone = matches!(head.status, 404 | 410);
        match (&asked.purpose, head.status) {
            (_, 200) => None,
            (Ask::Head(_) | Ask::Latest, 304) => {
                self.next = Next::Rest;
                Some(Ok(()))
            }
            (Ask::Head(_), _) if gone => {
                // Section 1 has no head for the global feed.
                self.head = None;
                if let Place::Feed(feed) = &mut self.place {
                    feed.head = None;
                }
                self.next = Next::Ask(Ask::Latest);
                Some(Ok(()))
            }
            (Ask::Index, 400..=499) if head.status != 429 => Some(self.find_no_index(&asked.url)),
            (Ask::Snapshot(snapshot), _) if gone => Some(self.do_without_snapshot(&asked.url, snapshot)),
            (_, status) => Some(Err(FollowError::Status { url: asked.url.clone(), status })),
        }
    }

    pub(super) fn take_response(
        &mut self,
        asked: Asked<Ask>,
        head: &ResponseHead,
        body: &Bytes,
    ) -> Result<(), FollowError> {
        if let Some(result) = self.take_status(&asked, head) {
            return result;
        }
        match asked.purpose {
            Ask::Manifest => self.take_manifest(&head.url, body),
            Ask::Head(_) => self.take_head(head, body),
            Ask::Latest => self.take_latest(head, body),
            Ask::Index => self.take_index(head, body),
            Ask::Snapshot(snapshot) => self.take_snapshot(&head.url, body, &snapshot),
        }
    }
}

/// Reads an archive index; `None` where what is there is something else: a page, JSON of another form.
fn read_index(head: &ResponseHead, body: &[u8]) -> Result<Option<ArchiveIndex>, FollowError> {
    let media_type = head.headers.get(CONTENT_TYPE).and_then(|t| t.to_str().ok());
    if media_type.is_some_and(|t| !t.contains("json")) {
        return Ok(None);
    }
    match serde_json::from_slice(body) {
        Ok(index) => Ok(Some(index)),
        Err(e) if e.is_data() => Ok(None),
        Err(e) => Err(broken(&head.url, e.to_string())),
    }
}

/// Whether an index, which may come from a cache, does not lead up to the latest document.
fn lags(index: &ArchiveIndex, latest: &Latest) -> bool {
    let leads_up = |s: &Snapshot| latest.changed && s.cursor == latest.prev_cursor;
    !index.snapshots.iter().any(|s| s.cursor == latest.cursor)
        && !index.snapshots.last().is_some_and(leads_up)
}

fn parse<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, FollowError> {
    serde_json::from_slice(body).map_err(|e| broken(url, e.to_string()))
}

fn broken(url: &str, reason: impl Into<String>) -> FollowError {
    FollowError::Protocol { url: url.to_owned(), reason: reason.into() }
}
