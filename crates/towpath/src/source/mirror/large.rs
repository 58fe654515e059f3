//! Entities of Data Replication above the limit: files of the mirror that are written while the entity arrives.
//!
//! The change comes after the last part. It names its file by a URL that leads nowhere, and gets the file's address here.

use std::collections::HashMap;

use serde_json::Value;
use towpath_proto::follow::{Followed, LargePart, LargeStep};

use super::error::MirrorError;
use super::files::{MirrorFiles, checked_type};
use crate::engine::attachments::{Attachment, MirroredFile, MirroredPart, file_name};

/// Beginning of the URL by which a change names its file.
// Not http: a change with such a URL would wait for a download.
pub(super) const BASE: &str = "towpath-entity:/";

/// Entities that arrive, and those whose change is still to come.
#[derive(Default)]
pub(super) struct LargeEntities {
    /// By the number of their content.
    arriving: HashMap<u64, MirroredPart>,
    /// With their SHA-256.
    complete: Vec<(String, MirroredPart)>,
}

impl LargeEntities {
    /// Stores a part of an entity.
    pub(super) async fn take(&mut self, files: &MirrorFiles, part: LargePart) -> Result<(), MirrorError> {
        let number = part.number;
        match part.step {
            LargeStep::Write { offset, bytes } => {
                let limit = files.max_file();
                // Checked with each part: the length that a publisher announces may be wrong, or missing.
                if offset.saturating_add(bytes.len() as u64) > limit {
                    return Err(MirrorError::EntityTooLarge { limit });
                }
                // Also where parts came before: a response that broke off is read again from its first byte.
                if offset == 0 {
                    let mut begun = match self.arriving.remove(&number) {
                        Some(cut_off) => cut_off,
                        None => files.begin()?,
                    };
                    begun.restart(None).await?;
                    self.arriving.insert(number, begun);
                }
                if let Some(begun) = self.arriving.get_mut(&number) {
                    begun.write(bytes).await?;
                }
            }
            LargeStep::Keep(sha256) => {
                if let Some(mut whole) = self.arriving.remove(&number) {
                    whole.flush().await?;
                    self.complete.push((sha256, whole));
                }
            }
            LargeStep::Remove => {
                if let Some(part) = self.arriving.remove(&number) {
                    part.remove().await?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the file that a change names, and gives the change its address.
    pub(super) async fn place(
        &mut self,
        files: &MirrorFiles,
        change: &mut Followed,
    ) -> Result<(), MirrorError> {
        let Some(first) = change.item.extra.get_mut("attachments").and_then(|list| list.get_mut(0)) else {
            return Ok(());
        };
        let text = |name: &str| first.get(name).and_then(Value::as_str).map(str::to_owned);
        let named = text("url").and_then(|url| url.strip_prefix(BASE).map(str::to_owned));
        let found = named.and_then(|sha256| self.complete.iter().position(|(of, _)| *of == sha256));
        let Some(index) = found else { return Ok(()) };
        // By digest and not by order: redelivered changes have no part of their own.
        let (sha256, part) = self.complete.swap_remove(index);
        let (id, media_type) = (change.item.id.clone(), checked_type(text("media_type")));
        let file = Attachment::of_digest(&id, file_name(&id), &sha256);
        let url = files.keep(part, MirroredFile { item: id, file, media_type, size: None }).await?;
        if let Some(named) = first.get_mut("url") {
            *named = url.into();
        }
        Ok(())
    }

    /// Removes what is stored, when the follow ends. What a crash leaves goes at the next start, or within a day.
    pub(super) async fn clear(&mut self) {
        let complete = self.complete.drain(..).map(|(_, part)| part);
        for part in self.arriving.drain().map(|(_, part)| part).chain(complete) {
            if let Err(error) = part.remove().await {
                tracing::debug!(%error, "cannot remove a part of an entity now; it goes within a day");
            }
        }
    }
}
