//! Reads a snapshot ("Snapshot Overview"): its index, then its pages, several at a time.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use http::HeaderMap;

use super::ReplicationOptions;
use super::state::SnapshotCheckpoint;
use crate::follow::{Event, RequestId};
use crate::format::multipart::EntityReader;
use crate::replication::wire::PageHead;
use crate::replication::wire::ReplicationError;
use crate::replication::wire::SnapshotIndex;
use crate::replication::wire::entity::read_snapshot_entity;

/// Progress of reading a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotProgress {
    /// Number of completely delivered pages.
    pub pages_done: u64,
    /// Number of pages of the snapshot.
    pub pages: u64,
    /// Number of entities delivered in this run.
    pub entities: u64,
}

/// A snapshot that is being read.
#[derive(Debug)]
pub(super) struct SnapshotReader {
    pub(super) checkpoint: SnapshotCheckpoint,
    pub(super) index: Option<SnapshotIndex>,
    /// The request for the index, and its body so far.
    pub(super) index_request: Option<(RequestId, Vec<u8>)>,
    waiting: VecDeque<usize>,
    running: HashMap<RequestId, SnapshotPageReader>,
    /// True if a page or the index failed; no further page is requested.
    pub(super) has_failed: bool,
    entities: u64,
}

#[derive(Debug)]
struct SnapshotPageReader {
    number: usize,
    url: String,
    entities: Option<EntityReader>,
}

impl SnapshotReader {
    pub(super) fn new(checkpoint: SnapshotCheckpoint) -> Self {
        Self {
            checkpoint,
            index: None,
            index_request: None,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            has_failed: false,
            entities: 0,
        }
    }

    /// Sets the index. Delivered pages of this snapshot are skipped; another snapshot is read from its start.
    ///
    /// Returns true if entities of another snapshot were delivered.
    pub(super) fn set_index(&mut self, index: SnapshotIndex) -> bool {
        // `latest` may have become another snapshot since the last run.
        let is_other = self.checkpoint.id != index.id;
        let is_replaced = is_other && !self.checkpoint.id.is_empty();
        if is_other {
            self.checkpoint.id.clone_from(&index.id);
            self.checkpoint.done.clear();
        }
        self.waiting = (0..index.pages.len()).filter(|n| !self.checkpoint.is_done(*n as u64)).collect();
        self.index = Some(index);
        is_replaced
    }

    /// Returns the next page to request, with at most `parallel` requests in flight.
    pub(super) fn next_page(&mut self, parallel: usize) -> Option<(usize, String)> {
        if self.has_failed || self.running.len() >= parallel {
            return None;
        }
        let number = self.waiting.pop_front()?;
        Some((number, self.index.as_ref()?.pages.get(number)?.clone()))
    }

    pub(super) fn begin_page(&mut self, id: RequestId, number: usize, url: String) {
        self.running.insert(id, SnapshotPageReader { number, url, entities: None });
    }

    /// Returns the URL of a page whose request is in flight.
    pub(super) fn page_url(&self, id: RequestId) -> Option<&str> {
        self.running.get(&id).map(|page| page.url.as_str())
    }

    pub(super) fn open_page(
        &mut self,
        id: RequestId,
        headers: &HeaderMap,
        options: &ReplicationOptions,
    ) -> Result<(), ReplicationError> {
        let head = PageHead::parse(headers)?;
        if let Some(page) = self.running.get_mut(&id) {
            let entities = EntityReader::new(&head.content_type, options.max_entity)?;
            let has_folder = options.large_base.is_some();
            page.entities = Some(if has_folder { entities.pass_large() } else { entities });
        }
        Ok(())
    }

    /// Reads a piece of a page, or its end. Complete entities are delivered before an error after them.
    pub(super) fn read_page(
        &mut self,
        id: RequestId,
        piece: Option<Bytes>,
        feed: &str,
        options: &ReplicationOptions,
        deliver: &mut impl FnMut(Event),
    ) -> Result<(), ReplicationError> {
        let Some(page) = self.running.get_mut(&id) else { return Ok(()) };
        let Some(entities) = &mut page.entities else { return Ok(()) };
        match piece {
            Some(piece) => entities.push(piece),
            None => entities.finish(),
        }
        // Pages are read side by side, each by a request.
        let contents = options.large(id.0);
        let mut index = entities.index();
        loop {
            let entity = entities.poll_entity();
            if let Some(contents) = &contents {
                contents.pass_pieces(entities, deliver);
            }
            let Some(entity) = entity? else { return Ok(()) };
            let large = entities.take_large();
            // Entities of a snapshot need no Content-ID, so page and number serve as the position.
            let position = format!("{}#{index}", page.url);
            let mut followed = read_snapshot_entity(feed, position, &entity, large.as_ref(), index)?;
            if let (Some(contents), Some(large)) = (&contents, &large) {
                contents.end(Some(&mut followed), large, index, deliver)?;
            }
            deliver(Event::Change(Box::new(followed)));
            self.entities += 1;
            index += 1;
        }
    }

    /// Records a completely delivered page.
    pub(super) fn end_page(&mut self, id: RequestId) {
        if let Some(page) = self.running.remove(&id) {
            self.checkpoint.set_done(page.number as u64);
        }
    }

    /// Records a failed page or index.
    pub(super) fn fail_page(&mut self, id: RequestId) {
        self.running.remove(&id);
        self.has_failed = true;
    }

    /// Returns true if no request is in flight and none will follow.
    pub(super) fn is_idle(&self) -> bool {
        self.index_request.is_none()
            && self.running.is_empty()
            && (self.has_failed || self.waiting.is_empty())
    }

    pub(super) fn progress(&self) -> SnapshotProgress {
        let pages_done = self.checkpoint.done.iter().map(|(first, last)| last - first + 1).sum();
        let pages = self.index.as_ref().map_or(0, |index| index.pages.len() as u64);
        SnapshotProgress { pages_done, pages, entities: self.entities }
    }
}
