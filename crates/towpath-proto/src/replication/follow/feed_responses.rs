//! Handles the responses while the follower crawls and walks along the feed's pages.

use bytes::Bytes;
use http::Method;
use jiff::SignedDuration;

use super::crawl::{CrawlGoal, CrawlStep};
use super::state::{FollowStart, SnapshotCheckpoint};
use super::walk::{ForwardWalk, SkipRule, WalkError};
use super::{FollowPhase, ReplicationFollower};
use crate::follow::{Event, FeedReset, FollowError, Now, ResponseHead};
use crate::replication::wire::{FeedPageHead, ReplicationError, says_empty, says_json};

/// Time for which a feed that ends before the position is taken for a lagging replica.
const MAX_REPLICA_LAG: SignedDuration = SignedDuration::from_secs(30);
/// Reason of the failures meanwhile.
const ENDS_EARLY: &str = "the feed ends before the last entity that was delivered: this server is behind, or the publisher \
                          began anew, which counts after 30 s; ask again";

impl ReplicationFollower {
    pub(super) fn crawl_head(&mut self, now: Now, head: &ResponseHead) {
        let FollowPhase::Crawl { crawl, url, answered, .. } = &mut self.phase else { return };
        *answered = true;
        let (url, is_entry) = (url.clone(), !crawl.has_begun());
        match head.status {
            // A user may pass the URL of a snapshot's index in place of the feed.
            200 if is_entry && says_json(head) => self.enter_snapshot(url),
            200 => match FeedPageHead::parse(&head.url, &head.headers) {
                Ok(page) => self.crawl_page(now, &url, page),
                Err(error) => self.fail_protocol(now, &url, &error),
            },
            // Some publishers answer an empty feed with 204, since a page cannot be empty.
            204 if is_entry => self.handle_empty_feed(now),
            404 if is_entry => {
                // HEAD has no body, and only the body tells an empty feed from a missing one.
                self.request = Some(self.send(Method::GET, &url, None));
                self.phase = FollowPhase::Probe { status: 404, body: Vec::new() };
            }
            405 | 501 if !self.without_head => {
                self.without_head = true;
                self.head(&url);
            }
            // Cleanup may remove a page during the crawl. A single restart finds the new oldest page; more
            // would never end.
            404 | 410 if !is_entry && !self.restarted => {
                self.restarted = true;
                self.begin();
            }
            // HEAD alone may fail for a page.
            403 | 404 | 410 if !is_entry && !self.without_head => {
                self.without_head = true;
                self.head(&url);
            }
            // Some publishers answer 403 for missing pages. A lagging replica may have the page later.
            403 | 404 | 410 if !is_entry && !self.is_stale => {
                self.start_after_missing_page(&url, head.status);
            }
            // Not every publisher that answers HEAD with an error does so with GET.
            400 | 403 | 500 if is_entry && !self.without_head => {
                self.request = Some(self.send(Method::GET, &url, None));
                self.phase = FollowPhase::Probe { status: head.status, body: Vec::new() };
            }
            status => self.fail(now, FollowError::status(url, status)),
        }
    }

    /// Starts at the last page of the crawl, whose `prev` leads to a missing page.
    fn start_after_missing_page(&mut self, missing: &str, status: u16) {
        let FollowPhase::Crawl { crawl, skip, .. } = &mut self.phase else { return };
        let Some(page) = crawl.end_early() else { return };
        // From a time, the first entity tells whether something is missing; after a Content-ID, that one does.
        let (proven, is_whole) = (!matches!(skip, SkipRule::Older(_)), *skip == SkipRule::Nothing);
        let snapshot = self.linked_snapshot(&page);
        if is_whole && snapshot.is_none() {
            let own = &page.own;
            let text =
                format!("{own}: its prev {missing} answers {status}: what was before this page is missing");
            self.events.push_back(Event::Incomplete(text));
        }
        self.begin_walk(page.own, proven, snapshot);
    }

    /// Switches to a snapshot, because the URL is that of its index.
    fn enter_snapshot(&mut self, index: String) {
        self.state.snapshot = Some(SnapshotCheckpoint { index, ..Default::default() });
        self.begin();
    }

    fn crawl_page(&mut self, now: Now, url: &str, page: FeedPageHead) {
        let snapshot = self.linked_snapshot(&page);
        let FollowPhase::Crawl { crawl, url: current, answered, .. } = &mut self.phase else { return };
        match crawl.step(page) {
            Ok(CrawlStep::Back(prev)) => {
                current.clone_from(&prev);
                *answered = false;
                self.head(&prev);
            }
            Ok(CrawlStep::Start { page, proven }) => self.begin_walk(page, proven, snapshot),
            Err(error) => self.fail_protocol(now, url, &error),
        }
    }

    /// Returns the snapshot to begin with: the oldest page names it, and following starts at the beginning.
    fn linked_snapshot(&self, page: &FeedPageHead) -> Option<String> {
        let is_start = (&self.state.position, &self.state.start) == (&None, &FollowStart::Beginning);
        page.snapshot.clone().filter(|_| page.prev.is_none() && is_start && !self.without_snapshot)
    }

    /// Begins at the end of a crawl: with the snapshot, if there is one, else with a walk from this page.
    fn begin_walk(&mut self, page: String, proven: bool, snapshot: Option<String>) {
        if let Some(index) = snapshot {
            self.state.snapshot = Some(SnapshotCheckpoint { index, is_linked: true, ..Default::default() });
            return self.begin();
        }
        let FollowPhase::Crawl { crawl, skip, .. } = &self.phase else { return };
        // The snapshot was taken with this page as the last one, so all later changes are on it or after it, and the
        // crawl has gone back to it.
        let is_within = |known: &str| self.state.position.is_none() && crawl.has_visited(known);
        let proven = proven
            || matches!(&self.state.start, FollowStart::Snapshot { page: known, .. } if is_within(known));
        let walk = ForwardWalk::new(&self.feed, &self.options, skip.clone(), proven);
        self.walk(walk, page, None, false);
    }

    pub(super) fn walk_head(&mut self, now: Now, head: &ResponseHead) {
        let FollowPhase::Walk { walk, url, is_resumed } = &mut self.phase else { return };
        let url = url.clone();
        if matches!(head.status, 200 | 304) {
            self.tail.note(head);
        }
        match head.status {
            200 => match FeedPageHead::parse(&head.url, &head.headers) {
                Ok(page) => {
                    let next = page.next.clone();
                    match walk.open(page) {
                        Ok(()) => self.request_ahead(next),
                        Err(error) => self.handle_walk_error(now, error),
                    }
                }
                Err(error) => self.fail_protocol(now, &url, &error),
            },
            // The usual poll: a single conditional request.
            304 if *is_resumed => {
                self.request = None;
                self.state.behind_since = None;
                self.wait_at_end(now);
            }
            404 if *is_resumed => {
                if self.may_be_lagging(now) {
                    return self.wait_for_replica(now, FollowError::status(url, 404));
                }
                self.says_reset = head.is_reset();
                self.crawl();
            }
            // Retention removed the page. Its entities may be on no page any more, which the crawl reports.
            410 if *is_resumed => self.crawl(),
            404 | 410 if !self.restarted => {
                self.restarted = true;
                self.crawl();
            }
            status => self.fail(now, FollowError::status(url, status)),
        }
    }

    /// Requests the next page while this one is read, so that the publisher can build and send it meanwhile.
    fn request_ahead(&mut self, next: Option<String>) {
        let Some(next) = next else { return };
        let after = self.request;
        self.ahead = Some(self.send(Method::GET, &next, None));
        if let Some(request) = self.requests.back_mut() {
            // The driver sends it when the current response has begun, so pages stay in order.
            request.after = after;
        }
    }

    /// Reads a piece of a page, or its end, and updates the position.
    pub(super) fn walk_piece(&mut self, now: Now, piece: Option<Bytes>) {
        let FollowPhase::Walk { walk, .. } = &mut self.phase else { return };
        let events = &mut self.events;
        let before = events.len();
        let mut deliver = |event| events.push_back(event);
        let (head, result) = match piece {
            Some(piece) => (None, walk.read(Some(piece), &mut deliver)),
            None => match walk.close(&mut deliver) {
                Ok(head) => (head, Ok(())),
                Err(error) => (None, Err(error)),
            },
        };
        // A part of a large content is no place to resume from.
        let has_events = self.events.range(before..).any(|event| !matches!(event, Event::Large(_)));
        let has_changes = self.events.range(before..).any(|event| matches!(event, Event::Change(_)));
        if walk.skip == SkipRule::Nothing
            && let Some(last) = &walk.last
        {
            self.state.position = Some(last.clone());
        }
        if has_changes {
            self.record_progress();
        }
        if let Err(error) = result {
            // Checkpoint before the failure: complete entities are not delivered twice.
            if has_events {
                self.checkpoint();
            }
            return self.handle_walk_error(now, error);
        }
        match head {
            Some(head) => self.end_of_page(now, head),
            None if has_events => self.checkpoint(),
            None => {}
        }
    }

    fn end_of_page(&mut self, now: Now, head: FeedPageHead) {
        let FollowPhase::Walk { walk, url, is_resumed } = &mut self.phase else { return };
        if walk.skip == SkipRule::Nothing {
            self.state.behind_since = None;
        }
        if let Some(next) = head.next {
            url.clone_from(&next);
            *is_resumed = false;
            self.checkpoint();
            self.request = self.ahead.take().or_else(|| Some(self.send(Method::GET, &next, None)));
            return;
        }
        // Entities appended from now on are delivered whatever their time, unless the start is in the future.
        if !matches!(walk.skip, SkipRule::Older(time) if time > now.wall) {
            self.state.position.clone_from(&walk.last);
        }
        self.checkpoint();
        self.wait_at_end(now);
    }

    fn handle_walk_error(&mut self, now: Now, error: WalkError) {
        let FollowPhase::Walk { walk, url, .. } = &self.phase else { return };
        let url = walk.page_url().unwrap_or(url).to_owned();
        match error {
            WalkError::Broken(error) => self.fail_protocol(now, &url, &error),
            WalkError::Changed(error) => {
                self.is_replaced = true;
                self.handle_changed_page(&url, &error);
            }
            WalkError::Behind(_) if self.may_be_lagging(now) => {
                self.wait_for_replica(now, FollowError::Protocol { url, reason: ENDS_EARLY.into() });
            }
            WalkError::Behind(ReplicationError::MissingContentId(_)) => {
                self.handle_missing_content_id(now, &url);
            }
            WalkError::Behind(error) => self.handle_changed_page(&url, &error),
            WalkError::NoContentId => self.handle_missing_content_id(now, &url),
        }
    }

    fn handle_changed_page(&mut self, url: &str, error: &ReplicationError) {
        // From now on a missing entity is explained, and need not wait for a replica.
        self.is_changed = true;
        self.events.push_back(Event::Incomplete(format!("{url}: {error}")));
        self.crawl();
    }

    /// Returns true if missing entities may be due to a lagging replica.
    ///
    /// That holds for [`MAX_REPLICA_LAG`], and as long as the responses state a lag.
    fn may_be_lagging(&mut self, now: Now) -> bool {
        // A persisted time in the future comes from a wrong clock. Waiting starts again.
        let since = self.state.behind_since.filter(|since| *since <= now.wall).unwrap_or(now.wall);
        self.state.behind_since = Some(since);
        !self.is_changed && (self.is_stale || now.wall.duration_since(since) < MAX_REPLICA_LAG)
    }

    fn wait_for_replica(&mut self, now: Now, error: FollowError) {
        self.checkpoint();
        self.fail(now, error);
    }

    /// Handles a "missing content ID": continues at least once from its time, or fails if that is unknown.
    fn handle_missing_content_id(&mut self, now: Now, url: &str) {
        match (&self.state.position, &self.state.start) {
            (Some(_), _) if self.has_begun_anew() => {
                self.begin_anew(url);
                self.crawl();
            }
            (Some(position), _) if self.may_be_renewed() => {
                // The feed has older entities, so the log is the same one: an entity of that name counts.
                let (content_id, modified) = (position.content_id.clone(), Some(position.modified));
                let goal = CrawlGoal::Time(position.modified);
                self.crawl_to(goal, SkipRule::Through { content_id, modified, crc: None });
            }
            (Some(position), _) => {
                let error = ReplicationError::MissingContentId(position.content_id.clone());
                let modified = position.modified;
                self.events.push_back(Event::Incomplete(format!("{url}: {error}")));
                self.crawl_to(CrawlGoal::Time(modified), SkipRule::Older(modified));
            }
            (None, FollowStart::Id(id)) => {
                let error = ReplicationError::MissingContentId(id.clone());
                self.fail(now, FollowError::Usage(format!("{url}: {error}")));
                self.finished = true;
            }
            _ => self.crawl(),
        }
    }

    /// Returns true if the position's entity was looked for with its checksum.
    fn may_be_renewed(&self) -> bool {
        matches!(&self.phase, FollowPhase::Walk { walk, .. } if walk.wants_checksum())
    }

    /// Returns true if the position cannot have been removed by retention: the log is another one.
    fn has_begun_anew(&self) -> bool {
        let FollowPhase::Walk { walk, .. } = &self.phase else { return self.says_reset };
        // A publisher that only renamed an entity still has the older ones.
        self.says_reset || (self.is_changed && walk.begins_late()) || (self.is_replaced && !walk.has_older())
    }

    /// Reports that the publisher began anew, and starts at its beginning.
    pub(super) fn begin_anew(&mut self, url: &str) {
        let Some(position) = self.state.position.take() else { return };
        self.state.start = FollowStart::Beginning;
        self.state.behind_since = None;
        let id = position.content_id;
        let reason = format!("{url}: the publisher began anew: its log never had the entity {id}");
        self.events.push_back(Event::Reset(FeedReset { feed: self.feed.clone(), reason }));
    }

    pub(super) fn probe_end(&mut self, now: Now) {
        let FollowPhase::Probe { status, body } = &self.phase else { return };
        match *status {
            204 => self.handle_empty_feed(now),
            404 if says_empty(body) => self.handle_empty_feed(now),
            // The feed was published meanwhile.
            200 if !self.restarted => {
                self.restarted = true;
                self.begin();
            }
            // HEAD was answered with an error twice, and GET with the page.
            200 if !self.without_head => {
                self.without_head = true;
                self.begin();
            }
            status => {
                let url = self.entry();
                self.fail(now, FollowError::status(url, status));
            }
        }
    }
}
