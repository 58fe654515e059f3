//! Content of entities above the limit: passed on in parts for a file, which the change then names.

use std::sync::Arc;

use crate::change::Op;
use crate::follow::{Event, Followed, LargePart, LargeStep, add_file};
use crate::format::multipart::{EntityError, EntityReader, LargeBody};
use crate::replication::wire::ReplicationError;

/// Contents of one response, which arrive one after the other.
#[derive(Debug, Clone)]
pub(super) struct LargeContents {
    /// URL of the folder of files, with a slash at its end.
    pub(super) base: Arc<str>,
    /// Number of the contents of this response.
    pub(super) number: u64,
    /// Limit above which a content is large, in bytes.
    pub(super) limit: usize,
}

impl LargeContents {
    /// Passes the pieces that a reader has on to `deliver`.
    pub(super) fn pass_pieces(&self, entities: &mut EntityReader, deliver: &mut impl FnMut(Event)) {
        while let Some(piece) = entities.poll_piece() {
            deliver(self.part(LargeStep::Write { offset: piece.offset, bytes: piece.bytes }));
        }
    }

    /// Ends the content of entity `index`, and lets its change name the file. Without a change the file is not kept.
    ///
    /// # Errors
    ///
    /// [`EntityError::TooLarge`] for a change whose content cannot be a file, such as a patch.
    pub(super) fn end(
        &self,
        followed: Option<&mut Followed>,
        large: &LargeBody,
        index: u64,
        deliver: &mut impl FnMut(Event),
    ) -> Result<(), ReplicationError> {
        let Some(followed) = followed else {
            deliver(self.part(LargeStep::Remove));
            return Ok(());
        };
        let content = followed.item.content.take().filter(|_| followed.op == Op::Put);
        let content = content.ok_or(EntityError::TooLarge { index, limit: self.limit })?;
        add_file(&mut followed.item, &self.base, &large.sha256, content.media_type, large.length);
        deliver(self.part(LargeStep::Keep(large.sha256.clone())));
        Ok(())
    }

    fn part(&self, step: LargeStep) -> Event {
        Event::Large(LargePart { base: self.base.clone(), number: self.number, step })
    }
}
