//! "Consumer Algorithm": forward along the pages, one page at a time.

use bytes::Bytes;
use jiff::Timestamp;

use super::crawl::Visited;
use super::place::Position;
use crate::follow::{Event, Followed};
use crate::format::multipart::{Entity, EntityReader};
use crate::replication::ReplicationError;
use crate::replication::entity::read_feed_entity;
use crate::replication::wire::FeedPageHead;

/// What is read and not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Skip {
    /// Nothing.
    Nothing,
    /// "Skip everything older than timestamp."
    Older(Timestamp),
    /// "First entity after content ID": everything up to this entity, whose time must be the same too, or it is
    /// another one. Of the time of a position that the user named nothing is known.
    Through { content_id: String, modified: Option<Timestamp> },
    /// Everything up to this place on the page where following stopped.
    To(Position),
    /// Everything that is there.
    All,
}

/// Why a walk cannot go on and must begin elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Halt {
    /// The publisher's fault; the attempt has failed.
    Broken(ReplicationError),
    /// The remembered entity is not in the feed.
    NoContentId,
    /// What was read of the page before is not there any more.
    Changed(ReplicationError),
    /// The feed ends before what was read of it: it may not be there yet.
    Behind(ReplicationError),
}

impl From<ReplicationError> for Halt {
    fn from(error: ReplicationError) -> Self {
        Self::Broken(error)
    }
}

/// A walk under way: what of the feed was read, and the page that is being read.
#[derive(Debug)]
pub(super) struct Walk {
    feed: String,
    max_entity: usize,
    pub(super) skip: Skip,
    visited: Visited,
    /// The page whose `next` led here.
    from: Option<FeedPageHead>,
    /// The page before the first one is known to be older than the time asked for.
    proven: bool,
    /// The last entity that was read, whether told or not.
    pub(super) seen: Option<Position>,
    page: Option<Page>,
}

#[derive(Debug)]
struct Page {
    head: FeedPageHead,
    entities: EntityReader,
    crc: u32,
    went_backwards: bool,
}

impl Walk {
    pub(super) fn new(feed: &str, max_entity: usize, skip: Skip, proven: bool) -> Self {
        let visited = Visited::default();
        Self { feed: feed.to_owned(), max_entity, skip, visited, from: None, proven, seen: None, page: None }
    }

    /// A page begins. Checks its links against those of the page before.
    pub(super) fn open(&mut self, head: FeedPageHead) -> Result<(), Halt> {
        self.visited.visit(&head.own)?;
        if let (Some(from), Some(prev)) = (&self.from, &head.prev)
            && *prev != from.own
        {
            let (from, back) = (from.own.clone(), prev.clone());
            return Err(ReplicationError::InconsistentLinks { from, rel: "next", back }.into());
        }
        let entities =
            EntityReader::new(&head.page.content_type, self.max_entity).map_err(ReplicationError::from)?;
        self.page = Some(Page { head, entities, crc: 0, went_backwards: false });
        Ok(())
    }

    /// A piece of the page. Entities that are whole with it are told before an error that follows them.
    pub(super) fn read(&mut self, piece: Option<Bytes>, tell: &mut impl FnMut(Event)) -> Result<(), Halt> {
        let Some(mut page) = self.page.take() else { return Ok(()) };
        match piece {
            Some(piece) => page.entities.push(piece),
            None => page.entities.finish(),
        }
        let result = self.read_entities(&mut page, tell);
        self.page = Some(page);
        result
    }

    fn read_entities(&mut self, page: &mut Page, tell: &mut impl FnMut(Event)) -> Result<(), Halt> {
        let mut index = page.entities.index();
        while let Some(entity) = page.entities.poll_entity().map_err(ReplicationError::from)? {
            self.read_entity(page, &entity, index, tell)?;
            index += 1;
        }
        Ok(())
    }

    fn read_entity(
        &mut self,
        page: &mut Page,
        entity: &Entity,
        index: u64,
        tell: &mut impl FnMut(Event),
    ) -> Result<(), Halt> {
        page.crc = checksum(page.crc, entity);
        let read = read_feed_entity(&self.feed, entity, index)?;
        let seen = Position {
            page: page.head.own.clone(),
            entities: index + 1,
            crc: page.crc,
            content_id: read.content_id,
            modified: read.last_modified,
            etag: None,
        };
        let before = self.seen.as_ref().map(|s| s.modified);
        let watched = self.skip == Skip::Nothing && !page.went_backwards;
        if let Some(before) = before.filter(|b| watched && *b > seen.modified) {
            page.went_backwards = true;
            let error = ReplicationError::Backwards { index, before, after: seen.modified };
            tell(Event::Warning(format!("{}: {error}", seen.page)));
        }
        let is_first = self.seen.is_none();
        let told = self.take(&seen, is_first, read.followed, tell)?;
        self.seen = Some(seen);
        if let Some(followed) = told {
            tell(Event::Change(Box::new(followed)));
        }
        Ok(())
    }

    /// Whether an entity is told or skipped.
    fn take(
        &mut self,
        seen: &Position,
        is_first: bool,
        followed: Followed,
        tell: &mut impl FnMut(Event),
    ) -> Result<Option<Followed>, Halt> {
        match &self.skip {
            Skip::Nothing => Ok(Some(followed)),
            Skip::All => Ok(None),
            Skip::Older(time) => {
                let wanted = *time;
                if is_first && !self.proven && seen.modified >= wanted {
                    let error = ReplicationError::NotOldEnough { first: seen.modified, wanted };
                    tell(Event::Incomplete(format!("{}: {error}", seen.page)));
                }
                if seen.modified < wanted {
                    return Ok(None);
                }
                self.skip = Skip::Nothing;
                Ok(Some(followed))
            }
            Skip::Through { content_id, modified } => {
                if *content_id == seen.content_id && modified.is_none_or(|m| seen.modified == m) {
                    self.skip = Skip::Nothing;
                } else if modified.is_some_and(|m| seen.modified > m) {
                    return Err(Halt::NoContentId);
                }
                Ok(None)
            }
            Skip::To(place) if seen.entities < place.entities => Ok(None),
            Skip::To(place) => {
                if place.content_id != seen.content_id || place.modified != seen.modified {
                    return Err(Halt::Changed(ReplicationError::PageChanged { index: seen.entities - 1 }));
                }
                if place.crc != seen.crc {
                    let error = ReplicationError::PageChanged { index: seen.entities - 1 };
                    tell(Event::Incomplete(format!("{}: {error}", seen.page)));
                }
                self.skip = Skip::Nothing;
                Ok(None)
            }
        }
    }

    /// The page has ended. Returns its headers.
    pub(super) fn close(&mut self, tell: &mut impl FnMut(Event)) -> Result<Option<FeedPageHead>, Halt> {
        self.read(None, tell)?;
        let Some(page) = self.page.take() else { return Ok(None) };
        match &self.skip {
            Skip::To(place) => {
                let index = place.entities.saturating_sub(1);
                let error = ReplicationError::PageChanged { index };
                let is_end = page.head.next.is_none();
                return Err(if is_end { Halt::Behind(error) } else { Halt::Changed(error) });
            }
            Skip::Through { content_id, modified } if page.head.next.is_none() => {
                // All of it is older: the entity may not be there yet.
                let missing = || ReplicationError::MissingContentId(content_id.clone());
                return Err(modified.map_or(Halt::NoContentId, |_| Halt::Behind(missing())));
            }
            _ => {}
        }
        if let Some(seen) = self.seen.as_mut().filter(|s| s.page == page.head.own && page.head.next.is_none())
        {
            seen.etag.clone_from(&page.head.etag);
        }
        self.from = Some(page.head.clone());
        Ok(Some(page.head))
    }

    /// The address of the page that is being read.
    pub(super) fn page_url(&self) -> Option<&str> {
        self.page.as_ref().map(|p| p.head.own.as_str())
    }
}

/// The checksum of a page's entities, with one more.
fn checksum(crc: u32, entity: &Entity) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    for (name, value) in entity.headers.iter() {
        hasher.update(name.as_bytes());
        hasher.update(b":");
        hasher.update(value.as_bytes());
        hasher.update(b"\n");
    }
    hasher.update(&entity.body);
    hasher.finalize()
}
