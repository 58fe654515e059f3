//! Walks forward along the pages, one at a time ("Consumer Algorithm").

use bytes::Bytes;
use crc32fast::Hasher;
use jiff::Timestamp;

use super::ReplicationOptions;
use super::crawl::VisitedPages;
use super::large::LargeContents;
use super::state::EntityPosition;
use crate::follow::{Event, Followed};
use crate::format::multipart::{Entity, EntityReader, LargeBody};
use crate::replication::wire::FeedPageHead;
use crate::replication::wire::ReplicationError;
use crate::replication::wire::entity::read_feed_entity;

/// Rule for skipping entities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SkipRule {
    /// Deliver every entity.
    Nothing,
    /// "Skip everything older than timestamp."
    Older(Timestamp),
    /// "First entity after content ID": skip through this entity.
    ///
    /// Its time must match too, because a reset publisher gives the same Content-IDs to other entities, and its
    /// checksum, because two publishers may have begun within one second. The time of a position that the user named
    /// is unknown.
    Through { content_id: String, modified: Option<Timestamp>, crc: Option<u32> },
    /// Skip through this position, on the page where following stopped.
    To(EntityPosition),
    /// Skip every existing entity.
    All,
}

/// Error that ends a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WalkError {
    /// The publisher violates the text; the attempt has failed.
    Broken(ReplicationError),
    /// The entity at the position is not in the feed.
    NoContentId,
    /// The part of the page that was read before has changed.
    Changed(ReplicationError),
    /// The feed ends before the position, perhaps on a lagging replica.
    Behind(ReplicationError),
}

impl From<ReplicationError> for WalkError {
    fn from(error: ReplicationError) -> Self {
        Self::Broken(error)
    }
}

/// A walk in progress, with the page that is being read.
#[derive(Debug)]
pub(super) struct ForwardWalk {
    feed: String,
    max_entity: usize,
    large: Option<LargeContents>,
    pub(super) skip: SkipRule,
    visited: VisitedPages,
    /// The page whose `next` led here.
    from: Option<FeedPageHead>,
    /// True if the page before the first one is known to be older than the start.
    proven: bool,
    /// True if the start's entity was met with other bytes.
    is_other: bool,
    /// The last entity that was read, delivered or skipped.
    pub(super) last: Option<EntityPosition>,
    page: Option<OpenPage>,
}

#[derive(Debug)]
struct OpenPage {
    head: FeedPageHead,
    entities: EntityReader,
    /// Checksum of the entities so far.
    checksum: Hasher,
    has_gone_backwards: bool,
}

impl ForwardWalk {
    pub(super) fn new(feed: &str, options: &ReplicationOptions, skip: SkipRule, proven: bool) -> Self {
        Self {
            feed: feed.to_owned(),
            max_entity: options.max_entity,
            // A walk reads one page at a time.
            large: options.large(0),
            skip,
            visited: VisitedPages::default(),
            from: None,
            proven,
            is_other: false,
            last: None,
            page: None,
        }
    }

    /// Begins a page. Checks its links against those of the previous page.
    pub(super) fn open(&mut self, head: FeedPageHead) -> Result<(), WalkError> {
        self.visited.visit(&head.own)?;
        // A missing prev is no contradiction: cleanup removes it from the oldest page.
        if let (Some(from), Some(prev)) = (&self.from, &head.prev)
            && *prev != from.own
        {
            let (from, back) = (from.own.clone(), prev.clone());
            return Err(ReplicationError::InconsistentLinks { from, rel: "next", back }.into());
        }
        let entities =
            EntityReader::new(&head.page.content_type, self.max_entity).map_err(ReplicationError::from)?;
        let entities = if self.large.is_some() { entities.pass_large() } else { entities };
        self.page = Some(OpenPage { head, entities, checksum: Hasher::new(), has_gone_backwards: false });
        Ok(())
    }

    /// Reads a piece of the page. Complete entities are delivered before an error after them.
    pub(super) fn read(
        &mut self,
        piece: Option<Bytes>,
        deliver: &mut impl FnMut(Event),
    ) -> Result<(), WalkError> {
        let Some(mut page) = self.page.take() else { return Ok(()) };
        match piece {
            Some(piece) => page.entities.push(piece),
            None => page.entities.finish(),
        }
        let result = self.read_entities(&mut page, deliver);
        self.page = Some(page);
        result
    }

    fn read_entities(
        &mut self,
        page: &mut OpenPage,
        deliver: &mut impl FnMut(Event),
    ) -> Result<(), WalkError> {
        let mut index = page.entities.index();
        loop {
            let entity = page.entities.poll_entity().map_err(ReplicationError::from);
            if let Some(large) = &self.large {
                large.pass_pieces(&mut page.entities, deliver);
            }
            let Some(entity) = entity? else { return Ok(()) };
            self.read_entity(page, &entity, index, deliver)?;
            index += 1;
        }
    }

    fn read_entity(
        &mut self,
        page: &mut OpenPage,
        entity: &Entity,
        index: u64,
        deliver: &mut impl FnMut(Event),
    ) -> Result<(), WalkError> {
        let large = page.entities.take_large();
        let checksum = checksum(entity, large.as_ref());
        page.checksum.combine(&checksum);
        let read = read_feed_entity(&self.feed, entity, large.as_ref(), index)?;
        let current = EntityPosition {
            page: page.head.own.clone(),
            entities: index + 1,
            crc: page.checksum.clone().finalize(),
            last_crc: Some(checksum.finalize()),
            content_id: read.content_id,
            modified: read.last_modified,
            etag: None,
        };
        // Compared across pages too: the previous entity may be on the previous page.
        let before = self.last.as_ref().map(|s| s.modified);
        let is_checked = self.skip == SkipRule::Nothing && !page.has_gone_backwards;
        if let Some(before) = before.filter(|b| is_checked && *b > current.modified) {
            page.has_gone_backwards = true;
            let error = ReplicationError::Backwards { index, before, after: current.modified };
            deliver(Event::Warning(format!("{}: {error}", current.page)));
        }
        let is_first = self.last.is_none();
        let mut delivered = self.apply_rule(&current, is_first, read.followed, deliver)?;
        if let (Some(contents), Some(large)) = (&self.large, &large) {
            contents.end(delivered.as_mut(), large, index, deliver)?;
        }
        self.last = Some(current);
        if let Some(followed) = delivered {
            deliver(Event::Change(Box::new(followed)));
        }
        Ok(())
    }

    /// Applies the skip rule to an entity; returns it if it is to be delivered.
    fn apply_rule(
        &mut self,
        current: &EntityPosition,
        is_first: bool,
        followed: Followed,
        deliver: &mut impl FnMut(Event),
    ) -> Result<Option<Followed>, WalkError> {
        match &self.skip {
            SkipRule::Nothing => Ok(Some(followed)),
            SkipRule::All => Ok(None),
            SkipRule::Older(time) => {
                let wanted = *time;
                // The first entity is the proof: if it is not older than the start, earlier ones may be
                // missing.
                if is_first && !self.proven && current.modified >= wanted {
                    let error = ReplicationError::NotOldEnough { first: current.modified, wanted };
                    deliver(Event::Incomplete(format!("{}: {error}", current.page)));
                }
                if current.modified < wanted {
                    return Ok(None);
                }
                self.skip = SkipRule::Nothing;
                Ok(Some(followed))
            }
            SkipRule::Through { content_id, modified, crc } => {
                // Retention never removes a later page alone: the log has entities older than the position.
                self.proven |= is_first && modified.is_some_and(|m| current.modified < m);
                let is_named =
                    *content_id == current.content_id && modified.is_none_or(|m| current.modified == m);
                let is_same = crc.is_none_or(|crc| current.last_crc == Some(crc));
                self.is_other |= is_named && !is_same;
                if is_named && is_same {
                    self.skip = SkipRule::Nothing;
                } else if modified.is_some_and(|m| current.modified > m) {
                    return Err(WalkError::NoContentId);
                }
                Ok(None)
            }
            SkipRule::To(position) if current.entities < position.entities => Ok(None),
            SkipRule::To(position) => {
                // States of earlier versions have no checksum of the last entity.
                let is_other = position.last_crc.is_some_and(|crc| current.last_crc != Some(crc));
                if position.content_id != current.content_id
                    || position.modified != current.modified
                    || is_other
                {
                    return Err(WalkError::Changed(ReplicationError::PageChanged {
                        index: current.entities - 1,
                    }));
                }
                // The last entity is the same, so following can continue; an earlier one was changed.
                if position.crc != current.crc {
                    let error = ReplicationError::PageChanged { index: current.entities - 1 };
                    deliver(Event::Incomplete(format!("{}: {error}", current.page)));
                }
                self.skip = SkipRule::Nothing;
                Ok(None)
            }
        }
    }

    /// Ends the page and returns its headers.
    pub(super) fn close(
        &mut self,
        deliver: &mut impl FnMut(Event),
    ) -> Result<Option<FeedPageHead>, WalkError> {
        self.read(None, deliver)?;
        let Some(page) = self.page.take() else { return Ok(None) };
        match &self.skip {
            SkipRule::To(position) => {
                let index = position.entities.saturating_sub(1);
                let error = ReplicationError::PageChanged { index };
                // A sealed page never grows. Only the newest one may have the missing entities later.
                let is_end = page.head.next.is_none();
                return Err(if is_end { WalkError::Behind(error) } else { WalkError::Changed(error) });
            }
            SkipRule::Through { content_id, modified, .. } if page.head.next.is_none() => {
                // Every entity is older, so a lagging replica may not have this one yet.
                let missing = || ReplicationError::MissingContentId(content_id.clone());
                return Err(modified.map_or(WalkError::NoContentId, |_| WalkError::Behind(missing())));
            }
            _ => {}
        }
        if let Some(last) = self.last.as_mut().filter(|s| s.page == page.head.own && page.head.next.is_none())
        {
            last.etag.clone_from(&page.head.etag);
        }
        self.from = Some(page.head.clone());
        Ok(Some(page.head))
    }

    /// Returns true if the feed has nothing as old as the start, or nothing older and the start's entity is another one.
    pub(super) fn begins_late(&self) -> bool {
        // An error at the first entity leaves no last one.
        !self.proven && (self.last.is_none() || self.is_other)
    }

    /// Returns true if the feed is known to have an entity older than the start.
    pub(super) fn has_older(&self) -> bool {
        self.proven
    }

    /// Returns true if the walk skips through an entity with a known checksum.
    pub(super) fn wants_checksum(&self) -> bool {
        matches!(self.skip, SkipRule::Through { crc: Some(_), .. })
    }

    /// Returns the URL of the page that is being read.
    pub(super) fn page_url(&self) -> Option<&str> {
        self.page.as_ref().map(|p| p.head.own.as_str())
    }
}

/// Returns the checksum of an entity.
fn checksum(entity: &Entity, large: Option<&LargeBody>) -> Hasher {
    let mut hasher = Hasher::new();
    for (name, value) in entity.headers.iter() {
        hasher.update(name.as_bytes());
        // Separators keep different headers from giving the same input.
        hasher.update(b":");
        hasher.update(value.as_bytes());
        hasher.update(b"\n");
    }
    match large {
        Some(large) => hasher.combine(&large.crc),
        None => hasher.update(&entity.body),
    }
    hasher
}
