//! Handles the responses while the follower reads a snapshot.

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;

use super::state::FollowStart;
use super::{FollowPhase, ReplicationFollower};
use crate::follow::{Event, FeedReset, FollowError, Now, RequestId, ResponseHead};
use crate::replication::wire::{Continuation, SnapshotIndex, floor_to_second};

impl ReplicationFollower {
    pub(super) fn snapshot_head(&mut self, now: Now, id: RequestId, head: &ResponseHead) {
        let FollowPhase::Snapshot(walk) = &mut self.phase else { return };
        let is_index = walk.index_request.as_ref().is_some_and(|(index, _)| *index == id);
        let url = walk.page_url(id).unwrap_or(&walk.checkpoint.index).to_owned();
        let result = match head.status {
            200 if is_index => Ok(()),
            404 | 410 if is_index && walk.checkpoint.is_linked => {
                return self.begin_without_snapshot(head.status);
            }
            200 => walk
                .open_page(id, &head.headers, &self.options)
                .map_err(|e| FollowError::Protocol { url, reason: e.to_string() }),
            status => Err(FollowError::status(url, status)),
        };
        if let Err(error) = result {
            self.snapshot_failed(now, id, error);
        }
    }

    /// Begins with the oldest page, because there is no snapshot of what was before it.
    fn begin_without_snapshot(&mut self, status: u16) {
        let Some(snapshot) = self.state.snapshot.take() else { return };
        if !snapshot.id.is_empty() {
            self.reset_snapshot(&snapshot.index, "its snapshot went away while it was read");
        }
        let text = format!(
            "{}: its first pages were removed, and {} answers {status}: only what its pages still have is delivered",
            self.entry(),
            snapshot.index
        );
        self.events.push_back(Event::Incomplete(text));
        self.without_snapshot = true;
        self.requests.clear();
        self.begin();
    }

    /// Voids what a snapshot had, of which the rest cannot be read: nothing tells what was deleted since.
    fn reset_snapshot(&mut self, index: &str, why: &str) {
        let reason = format!("{index}: {why}, and what was deleted meanwhile is unknown: its items are void");
        self.events.push_back(Event::Reset(FeedReset { feed: self.feed.clone(), reason }));
    }

    pub(super) fn snapshot_piece(&mut self, now: Now, id: RequestId, piece: Option<Bytes>) {
        let FollowPhase::Snapshot(walk) = &mut self.phase else { return };
        if let Some((index, body)) = &mut walk.index_request
            && *index == id
        {
            match piece {
                Some(piece) => body.extend_from_slice(&piece),
                None => self.snapshot_index(now, id),
            }
            return;
        }
        let Some(url) = walk.page_url(id).map(str::to_owned) else { return };
        let is_end = piece.is_none();
        let events = &mut self.events;
        let before = events.len();
        let mut deliver = |event| events.push_back(event);
        let result = walk.read_page(id, piece, &self.feed, &self.options, &mut deliver);
        let known = self.state.snapshot.as_mut().filter(|known| known.id != walk.checkpoint.id);
        if let Some(known) = known
            && events.len() > before
        {
            // Before the first entity. If a crash comes now, another snapshot must void what this one had.
            known.clone_from(&walk.checkpoint);
            events.insert(before, Event::Checkpoint(self.state.to_json()));
        }
        match result {
            Err(error) => {
                self.snapshot_failed(now, id, FollowError::Protocol { url, reason: error.to_string() });
            }
            Ok(()) if is_end => {
                walk.end_page(id);
                self.failures = 0;
                // A page is the unit of progress: one that failed halfway is delivered again from its start.
                self.state.snapshot = Some(walk.checkpoint.clone());
                self.checkpoint();
                self.continue_snapshot(now);
            }
            Ok(()) => {}
        }
    }

    fn snapshot_index(&mut self, now: Now, id: RequestId) {
        let FollowPhase::Snapshot(walk) = &mut self.phase else { return };
        let Some((_, body)) = walk.index_request.take() else { return };
        match SnapshotIndex::parse(&body) {
            Ok(index) => {
                let url = walk.checkpoint.index.clone();
                if walk.set_index(index) {
                    self.reset_snapshot(&url, "another snapshot is there now");
                }
                self.continue_snapshot(now);
            }
            Err(error) => {
                let url = walk.checkpoint.index.clone();
                self.snapshot_failed(now, id, FollowError::Protocol { url, reason: error.to_string() });
            }
        }
    }

    pub(super) fn snapshot_failed(&mut self, now: Now, id: RequestId, error: FollowError) {
        let FollowPhase::Snapshot(walk) = &mut self.phase else { return };
        walk.index_request.take_if(|(index, _)| *index == id);
        // Other pages in flight are still read; their entities need not be requested again.
        walk.fail_page(id);
        self.events.push_back(Event::Failed(error));
        self.continue_snapshot(now);
    }

    /// Requests further pages, or continues with the feed, or backs off.
    fn continue_snapshot(&mut self, now: Now) {
        while let FollowPhase::Snapshot(walk) = &mut self.phase
            && let Some((number, url)) = walk.next_page(self.options.parallel)
        {
            let id = self.send(Method::GET, &url, None);
            if let FollowPhase::Snapshot(walk) = &mut self.phase {
                walk.begin_page(id, number, url);
            }
        }
        let FollowPhase::Snapshot(walk) = &mut self.phase else { return };
        if !walk.is_idle() {
            return;
        }
        if walk.has_failed {
            return self.back_off(now);
        }
        let Some(index) = walk.index.take() else { return };
        let is_own_url = walk.checkpoint.index == self.url;
        let finished = walk.checkpoint.clone();
        self.state.snapshot = None;
        // Rounded down: the feed is followed from before the snapshot, so entities of that second are
        // delivered twice rather than lost.
        let time = floor_to_second(index.created_at);
        self.state.start = match index.continuation {
            None => FollowStart::Time(time),
            Some(Continuation { page, after: Some(_) }) => FollowStart::Snapshot { time, page },
            // The feed was empty, so every entity comes after the snapshot, whatever its time.
            Some(Continuation { page, after: None }) => {
                FollowStart::Snapshot { time: Timestamp::UNIX_EPOCH, page }
            }
        };
        self.state.feed = self.state.feed.take().or(index.feed.filter(|_| is_own_url));
        let has_no_feed = is_own_url && self.state.feed.is_none();
        // The next run reads the index again: it has nothing new until another snapshot is there.
        self.state.snapshot = Some(finished).filter(|_| has_no_feed);
        self.checkpoint();
        if has_no_feed {
            let warning = format!("{}: the snapshot does not name the feed that continues from it", self.url);
            self.events.push_back(Event::Warning(warning));
            self.phase = FollowPhase::Idle;
            self.finished = true;
            return;
        }
        // A complete snapshot is progress.
        self.failures = 0;
        self.begin();
    }
}
