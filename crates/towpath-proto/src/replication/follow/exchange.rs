//! Requests and responses of the follower, handed to the part that waits for them.

use bytes::Bytes;

use super::{FollowPhase, ReplicationFollower};
use crate::follow::{Exchange, FollowError, Monotonic, Now, Request, RequestId, ResponseHead, TransferError};

/// Largest part of a problem document that is read, in bytes.
const MAX_PROBLEM: usize = 64 << 10;

impl Exchange for ReplicationFollower {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        let is_idle = self.is_idle();
        if is_idle {
            self.poll_sup_feed(now);
        }
        // The first call comes without a timer and starts at once.
        if is_idle && self.wake.is_none_or(|wake| wake <= now.monotonic) {
            self.begin();
        }
        let request = self.requests.pop_front();
        if request.is_none() && self.is_idle() { self.sup_request(now) } else { request }
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        if self.events_head(now, id, &head) || self.sup_head(now, id, &head) {
            return;
        }
        // A `Retry-After` on a success says nothing about failures.
        if head.status >= 400 {
            self.retry_after = head.retry_after(now.wall).or(self.retry_after);
        }
        if self.request == Some(id) {
            self.is_stale = head.is_stale();
        }
        match &mut self.phase {
            FollowPhase::Snapshot(_) => self.snapshot_head(now, id, &head),
            _ if self.request != Some(id) => {}
            FollowPhase::Crawl { .. } => self.crawl_head(now, &head),
            FollowPhase::Walk { .. } => self.walk_head(now, &head),
            FollowPhase::Probe { status, .. } => *status = head.status,
            FollowPhase::Idle => {}
        }
    }

    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes) {
        if self.events_piece(now, id, &chunk) || self.sup_piece(now, id, &chunk) {
            return;
        }
        match &mut self.phase {
            FollowPhase::Snapshot(_) => self.snapshot_piece(now, id, Some(chunk)),
            _ if self.request != Some(id) => {}
            FollowPhase::Walk { .. } => self.walk_piece(now, Some(chunk)),
            FollowPhase::Probe { body, .. } => {
                // A hostile server must not fill the memory with an error page.
                let room = MAX_PROBLEM.saturating_sub(body.len());
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            }
            FollowPhase::Crawl { .. } | FollowPhase::Idle => {}
        }
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        if self.events_end(now, id) || self.sup_end(now, id, &result) {
            return;
        }
        if let FollowPhase::Snapshot(walk) = &self.phase {
            // The index is the only request that is not a page.
            let url = walk.page_url(id).unwrap_or(&walk.checkpoint.index).to_owned();
            return match result {
                Ok(()) => self.snapshot_piece(now, id, None),
                Err(source) => self.snapshot_failed(now, id, FollowError::Transfer { url, source }),
            };
        }
        if self.request != Some(id) {
            return;
        }
        let (url, ended_early) = match &self.phase {
            FollowPhase::Crawl { url, answered, .. } => (url.clone(), !answered),
            FollowPhase::Walk { walk, url, .. } => (walk.page_url().unwrap_or(url).to_owned(), true),
            FollowPhase::Probe { .. } => (self.entry(), true),
            FollowPhase::Snapshot(_) | FollowPhase::Idle => return,
        };
        match result {
            Err(source) if ended_early => self.fail(now, FollowError::Transfer { url, source }),
            Ok(()) if matches!(self.phase, FollowPhase::Walk { .. }) => self.walk_piece(now, None),
            Ok(()) if matches!(self.phase, FollowPhase::Probe { .. }) => self.probe_end(now),
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        if self.finished {
            return None;
        }
        // A SUP document matters at the end of the feed only.
        let sup = if self.is_idle() { self.sup_timeout() } else { None };
        [self.wake, sup].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
