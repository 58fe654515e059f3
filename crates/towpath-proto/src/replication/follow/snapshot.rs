//! "Snapshot Overview": the index, then its pages, several at a time.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;

use super::place::{SnapshotPlace, Start};
use super::{Phase, ReplicationFollower};
use crate::follow::{Event, FollowError, RequestId, ResponseHead};
use crate::format::multipart::EntityReader;
use crate::replication::ReplicationError;
use crate::replication::entity::read_snapshot_entity;
use crate::replication::snapshot::{GoesOn, SnapshotIndex, floor_to_second};
use crate::replication::wire::PageHead;

/// How far the reading of a snapshot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotProgress {
    /// Pages that were told whole.
    pub pages_done: u64,
    /// Pages of the snapshot.
    pub pages: u64,
    /// Entities told in this run.
    pub entities: u64,
}

/// A snapshot that is being read.
#[derive(Debug)]
pub(super) struct SnapshotWalk {
    pub(super) place: SnapshotPlace,
    pub(super) index: Option<SnapshotIndex>,
    /// The index's request and what of it has come.
    pub(super) index_request: Option<(RequestId, Vec<u8>)>,
    waiting: VecDeque<usize>,
    running: HashMap<RequestId, PageRead>,
    /// A page or the index could not be read; no further page is begun.
    pub(super) has_failed: bool,
    entities: u64,
}

#[derive(Debug)]
struct PageRead {
    number: usize,
    url: String,
    entities: Option<EntityReader>,
}

impl SnapshotWalk {
    pub(super) fn new(place: SnapshotPlace) -> Self {
        Self {
            place,
            index: None,
            index_request: None,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            has_failed: false,
            entities: 0,
        }
    }

    /// The index is there. Pages that were told of the same snapshot are not read again; another snapshot
    /// begins anew.
    pub(super) fn set_index(&mut self, index: SnapshotIndex) {
        if self.place.id != index.id {
            self.place.id.clone_from(&index.id);
            self.place.done.clear();
        }
        self.waiting = (0..index.pages.len()).filter(|n| !self.place.is_done(*n as u64)).collect();
        self.index = Some(index);
    }

    /// The next page to ask for, with at most `parallel` under way.
    pub(super) fn next_page(&mut self, parallel: usize) -> Option<(usize, String)> {
        if self.has_failed || self.running.len() >= parallel {
            return None;
        }
        let number = self.waiting.pop_front()?;
        Some((number, self.index.as_ref()?.pages.get(number)?.clone()))
    }

    pub(super) fn begin_page(&mut self, id: RequestId, number: usize, url: String) {
        self.running.insert(id, PageRead { number, url, entities: None });
    }

    /// The address of a page that is under way.
    pub(super) fn page_url(&self, id: RequestId) -> Option<&str> {
        self.running.get(&id).map(|page| page.url.as_str())
    }

    pub(super) fn open_page(
        &mut self,
        id: RequestId,
        headers: &HeaderMap,
        max_entity: usize,
    ) -> Result<(), ReplicationError> {
        let head = PageHead::parse(headers)?;
        if let Some(page) = self.running.get_mut(&id) {
            page.entities = Some(EntityReader::new(&head.content_type, max_entity)?);
        }
        Ok(())
    }

    /// A piece of a page, or its end. Entities that are whole with it are told before an error after them.
    pub(super) fn read_page(
        &mut self,
        id: RequestId,
        piece: Option<Bytes>,
        feed: &str,
        tell: &mut impl FnMut(Event),
    ) -> Result<(), ReplicationError> {
        let Some(page) = self.running.get_mut(&id) else { return Ok(()) };
        let Some(entities) = &mut page.entities else { return Ok(()) };
        match piece {
            Some(piece) => entities.push(piece),
            None => entities.finish(),
        }
        let mut index = entities.index();
        while let Some(entity) = entities.poll_entity()? {
            let position = format!("{}#{index}", page.url);
            let followed = read_snapshot_entity(feed, position, &entity, index)?;
            tell(Event::Change(Box::new(followed)));
            self.entities += 1;
            index += 1;
        }
        Ok(())
    }

    /// A page was told whole.
    pub(super) fn end_page(&mut self, id: RequestId) {
        if let Some(page) = self.running.remove(&id) {
            self.place.set_done(page.number as u64);
        }
    }

    /// A page or the index could not be read.
    pub(super) fn fail_page(&mut self, id: RequestId) {
        self.running.remove(&id);
        self.has_failed = true;
    }

    /// Whether nothing is under way and nothing will be.
    pub(super) fn is_still(&self) -> bool {
        self.index_request.is_none()
            && self.running.is_empty()
            && (self.has_failed || self.waiting.is_empty())
    }

    pub(super) fn progress(&self) -> SnapshotProgress {
        let pages_done = self.place.done.iter().map(|(first, last)| last - first + 1).sum();
        let pages = self.index.as_ref().map_or(0, |index| index.pages.len() as u64);
        SnapshotProgress { pages_done, pages, entities: self.entities }
    }
}

/// What the follower does with answers while it reads a snapshot.
impl ReplicationFollower {
    pub(super) fn snapshot_head(&mut self, now: Timestamp, id: RequestId, head: &ResponseHead) {
        let Phase::Snapshot(walk) = &mut self.phase else { return };
        let is_index = walk.index_request.as_ref().is_some_and(|(index, _)| *index == id);
        let url = walk.page_url(id).unwrap_or(&walk.place.index).to_owned();
        let result = match head.status {
            200 if is_index => Ok(()),
            200 => walk
                .open_page(id, &head.headers, self.options.max_entity)
                .map_err(|e| FollowError::Protocol { url, reason: e.to_string() }),
            status => Err(FollowError::Status { url, status }),
        };
        if let Err(error) = result {
            self.snapshot_failed(now, id, error);
        }
    }

    pub(super) fn snapshot_piece(&mut self, now: Timestamp, id: RequestId, piece: Option<Bytes>) {
        let Phase::Snapshot(walk) = &mut self.phase else { return };
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
        let result = walk.read_page(id, piece, &self.feed, &mut |event| events.push_back(event));
        match result {
            Err(error) => {
                self.snapshot_failed(now, id, FollowError::Protocol { url, reason: error.to_string() });
            }
            Ok(()) if is_end => {
                walk.end_page(id);
                self.place.snapshot = Some(walk.place.clone());
                self.checkpoint();
                self.snapshot_goes_on(now);
            }
            Ok(()) => {}
        }
    }

    fn snapshot_index(&mut self, now: Timestamp, id: RequestId) {
        let Phase::Snapshot(walk) = &mut self.phase else { return };
        let Some((_, body)) = walk.index_request.take() else { return };
        match SnapshotIndex::parse(&body) {
            Ok(index) => {
                walk.set_index(index);
                self.snapshot_goes_on(now);
            }
            Err(error) => {
                let url = walk.place.index.clone();
                self.snapshot_failed(now, id, FollowError::Protocol { url, reason: error.to_string() });
            }
        }
    }

    pub(super) fn snapshot_failed(&mut self, now: Timestamp, id: RequestId, error: FollowError) {
        let Phase::Snapshot(walk) = &mut self.phase else { return };
        walk.index_request.take_if(|(index, _)| *index == id);
        walk.fail_page(id);
        self.events.push_back(Event::Failed(error));
        self.snapshot_goes_on(now);
    }

    /// Asks for further pages, or goes over to the feed, or waits to try again.
    fn snapshot_goes_on(&mut self, now: Timestamp) {
        while let Phase::Snapshot(walk) = &mut self.phase
            && let Some((number, url)) = walk.next_page(self.options.parallel)
        {
            let id = self.ask(Method::GET, &url, None);
            if let Phase::Snapshot(walk) = &mut self.phase {
                walk.begin_page(id, number, url);
            }
        }
        let Phase::Snapshot(walk) = &mut self.phase else { return };
        if !walk.is_still() {
            return;
        }
        if walk.has_failed {
            return self.rest_after_failure(now);
        }
        let Some(index) = walk.index.take() else { return };
        let is_own_address = walk.place.index == self.url;
        self.place.snapshot = None;
        let time = floor_to_second(index.created_at);
        self.place.start = match index.goes_on {
            None => Start::Time(time),
            Some(GoesOn { page, after: Some(_) }) => Start::Snapshot { time, page },
            // Nothing came before, so everything comes after, whatever its time.
            Some(GoesOn { page, after: None }) => Start::Snapshot { time: Timestamp::UNIX_EPOCH, page },
        };
        self.place.feed = self.place.feed.take().or(index.feed.filter(|_| is_own_address));
        self.checkpoint();
        if is_own_address && self.place.feed.is_none() {
            let warning = format!("{}: the snapshot does not say which feed goes on from it", self.url);
            self.events.push_back(Event::Warning(warning));
            self.phase = Phase::Idle;
            self.finished = true;
            return;
        }
        self.failures = 0;
        self.begin();
    }
}
