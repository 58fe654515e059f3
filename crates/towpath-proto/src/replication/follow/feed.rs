//! What the follower does with answers while it crawls and walks along the feed's pages.

use bytes::Bytes;
use http::Method;
use jiff::{SignedDuration, Timestamp};

use super::crawl::{Goal, Step};
use super::place::{SnapshotPlace, Start};
use super::walk::{Halt, Skip, Walk};
use super::{Phase, ReplicationFollower};
use crate::follow::{Event, FollowError, ResponseHead};
use crate::replication::ReplicationError;
use crate::replication::publish;
use crate::replication::wire::FeedPageHead;

/// How long a feed may end before the position until it is believed.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

impl ReplicationFollower {
    pub(super) fn crawl_head(&mut self, now: Timestamp, head: &ResponseHead) {
        let Phase::Crawl { crawl, url, answered, .. } = &mut self.phase else { return };
        *answered = true;
        let (url, is_entry) = (url.clone(), !crawl.is_under_way());
        match head.status {
            200 if is_entry && is_json(head) => self.enter_snapshot(url),
            200 => match FeedPageHead::parse(&head.url, &head.headers) {
                Ok(page) => self.crawl_page(now, &url, page),
                Err(error) => self.fail_protocol(now, &url, &error),
            },
            204 if is_entry => self.handle_empty(now),
            404 if is_entry => {
                self.request = Some(self.ask(Method::GET, &url, None));
                self.phase = Phase::Probe { status: 404, body: Vec::new() };
            }
            405 | 501 if !self.without_head => {
                self.without_head = true;
                self.head(&url);
            }
            404 | 410 if !is_entry && !self.restarted => {
                self.restarted = true;
                self.begin();
            }
            status => self.fail(now, FollowError::Status { url, status }),
        }
    }

    /// The address is that of a snapshot's index.
    fn enter_snapshot(&mut self, index: String) {
        self.place.snapshot = Some(SnapshotPlace { index, ..Default::default() });
        self.begin();
    }

    fn crawl_page(&mut self, now: Timestamp, url: &str, page: FeedPageHead) {
        let Phase::Crawl { crawl, skip, url: place, answered } = &mut self.phase else { return };
        match crawl.step(page) {
            Ok(Step::Back(prev)) => {
                place.clone_from(&prev);
                *answered = false;
                self.head(&prev);
            }
            Ok(Step::Start { page, proven }) => {
                let is_first = |known: &String| self.place.position.is_none() && *known == page;
                let proven = proven
                    || matches!(&self.place.start, Start::Snapshot { page: known, .. } if is_first(known));
                let walk = Walk::new(&self.feed, self.options.max_entity, skip.clone(), proven);
                self.walk(walk, page, None, false);
            }
            Err(error) => self.fail_protocol(now, url, &error),
        }
    }

    pub(super) fn walk_head(&mut self, now: Timestamp, head: &ResponseHead) {
        let Phase::Walk { walk, url, is_resumed } = &mut self.phase else { return };
        let url = url.clone();
        match head.status {
            200 => match FeedPageHead::parse(&head.url, &head.headers) {
                Ok(page) => {
                    let next = page.next.clone();
                    match walk.open(page) {
                        Ok(()) => self.ask_ahead(next),
                        Err(halt) => self.halt(now, halt),
                    }
                }
                Err(error) => self.fail_protocol(now, &url, &error),
            },
            304 if *is_resumed => {
                self.request = None;
                self.place.behind_since = None;
                self.rest_at_end(now);
            }
            404 if *is_resumed => {
                if self.may_be_behind(now) {
                    return self.wait_for_more(now, FollowError::Status { url, status: 404 });
                }
                self.crawl();
            }
            410 if *is_resumed => self.crawl(),
            404 | 410 if !self.restarted => {
                self.restarted = true;
                self.crawl();
            }
            status => self.fail(now, FollowError::Status { url, status }),
        }
    }

    /// Has the next page made and sent while this one is read.
    fn ask_ahead(&mut self, next: Option<String>) {
        let Some(next) = next else { return };
        let after = self.request;
        self.ahead = Some(self.ask(Method::GET, &next, None));
        if let Some(request) = self.requests.back_mut() {
            request.after = after;
        }
    }

    /// Reads a piece of a page, or its end; keeps the position.
    pub(super) fn walk_piece(&mut self, now: Timestamp, piece: Option<Bytes>) {
        let Phase::Walk { walk, .. } = &mut self.phase else { return };
        let events = &mut self.events;
        let told = events.len();
        let mut tell = |event| events.push_back(event);
        let (head, result) = match piece {
            Some(piece) => (None, walk.read(Some(piece), &mut tell)),
            None => match walk.close(&mut tell) {
                Ok(head) => (head, Ok(())),
                Err(halt) => (None, Err(halt)),
            },
        };
        let is_news = self.events.len() > told;
        let is_told = self.events.range(told..).any(|event| matches!(event, Event::Change(_)));
        if walk.skip == Skip::Nothing
            && let Some(seen) = &walk.seen
        {
            self.place.position = Some(seen.clone());
        }
        if is_told {
            self.got_on();
        }
        if let Err(halt) = result {
            if is_news {
                self.checkpoint();
            }
            return self.halt(now, halt);
        }
        match head {
            Some(head) => self.end_of_page(now, head),
            None if is_news => self.checkpoint(),
            None => {}
        }
    }

    fn end_of_page(&mut self, now: Timestamp, head: FeedPageHead) {
        let Phase::Walk { walk, url, is_resumed } = &mut self.phase else { return };
        if walk.skip == Skip::Nothing {
            self.place.behind_since = None;
        }
        if let Some(next) = head.next {
            url.clone_from(&next);
            *is_resumed = false;
            self.checkpoint();
            self.request = self.ahead.take().or_else(|| Some(self.ask(Method::GET, &next, None)));
            return;
        }
        // What is appended from now on is told, whatever its time says, unless the start lies ahead.
        if !matches!(walk.skip, Skip::Older(time) if time > now) {
            self.place.position.clone_from(&walk.seen);
        }
        self.checkpoint();
        self.rest_at_end(now);
    }

    fn halt(&mut self, now: Timestamp, halt: Halt) {
        let Phase::Walk { walk, url, .. } = &self.phase else { return };
        let url = walk.page_url().unwrap_or(url).to_owned();
        match halt {
            Halt::Broken(error) => self.fail_protocol(now, &url, &error),
            Halt::Changed(error) => {
                self.is_changed = true;
                self.events.push_back(Event::Incomplete(format!("{url}: {error}")));
                self.crawl();
            }
            Halt::Behind(error) if self.may_be_behind(now) => {
                self.wait_for_more(now, FollowError::Protocol { url, reason: error.to_string() });
            }
            Halt::Behind(ReplicationError::MissingContentId(_)) => self.without_content_id(now, &url),
            Halt::Behind(error) => self.halt(now, Halt::Changed(error)),
            Halt::NoContentId => self.without_content_id(now, &url),
        }
    }

    /// What was read before is not there. Whether that may be because the server is behind others at its address: such
    /// a one is not believed for a while, and not at all as long as it says so itself.
    fn may_be_behind(&mut self, now: Timestamp) -> bool {
        let since = *self.place.behind_since.get_or_insert(now);
        !self.is_changed && (self.is_stale || now.duration_since(since) < PATIENCE)
    }

    fn wait_for_more(&mut self, now: Timestamp, error: FollowError) {
        self.checkpoint();
        self.fail(now, error);
    }

    /// "Missing content ID": at least once from its time on; nothing can be done where that is not known.
    fn without_content_id(&mut self, now: Timestamp, url: &str) {
        match (&self.place.position, &self.place.start) {
            (Some(position), _) => {
                let error = ReplicationError::MissingContentId(position.content_id.clone());
                let modified = position.modified;
                self.events.push_back(Event::Incomplete(format!("{url}: {error}")));
                self.crawl_to(Goal::Time(modified), Skip::Older(modified));
            }
            (None, Start::Id(id)) => {
                let error = ReplicationError::MissingContentId(id.clone());
                self.fail(now, FollowError::Usage(format!("{url}: {error}")));
                self.finished = true;
            }
            _ => self.crawl(),
        }
    }

    pub(super) fn probe_end(&mut self, now: Timestamp) {
        let Phase::Probe { status, body } = &self.phase else { return };
        match *status {
            204 => self.handle_empty(now),
            404 if publish::says_empty(body) => self.handle_empty(now),
            // It was published meanwhile.
            200 if !self.restarted => {
                self.restarted = true;
                self.begin();
            }
            status => {
                let url = self.entry();
                self.fail(now, FollowError::Status { url, status });
            }
        }
    }
}

fn is_json(head: &ResponseHead) -> bool {
    let media_type = head.header("content-type").and_then(|t| t.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}
