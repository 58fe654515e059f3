//! Copies of contents that a mirrored feed keeps as files: kept beside the log of the mirror, as if they had been
//! published there.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use towpath_client::{FilePart, FileStore, OpenedFile, StoredBytes};
use towpath_proto::Content;
use towpath_proto::follow::{FileChange, FileLimit};
use url::Url;

use super::error::MirrorError;
use crate::engine::attachments::{
    Attachment, MirroredFile, MirroredPart, OpenedMirror, Upload, file_name, max_size, open_mirrored,
};
use crate::engine::roles::{self, Lease};
use crate::engine::{Engine, Feed};

/// Files of a mirror.
#[derive(Clone)]
pub(super) struct MirrorFiles {
    engine: Arc<Engine>,
    feed: Arc<Feed>,
    lease: Lease,
    kept: KeptUploads,
}

/// Uploads whose items are still to be appended.
type KeptUploads = Arc<Mutex<Vec<Upload>>>;

impl MirrorFiles {
    /// Returns the files of a mirror that copies them.
    pub(super) fn of(engine: &Arc<Engine>, feed: &Arc<Feed>, lease: &Lease) -> Option<Self> {
        let source = feed.config.source.as_ref()?;
        let (engine, feed, lease) = (engine.clone(), feed.clone(), lease.clone());
        source.large_content.then(|| Self { engine, feed, lease, kept: KeptUploads::default() })
    }

    /// Begins a file whose item is not known yet.
    pub(super) fn begin(&self) -> Result<MirroredPart, MirrorError> {
        self.engine.check_room(0).map_err(|source| {
            let url = format!("an entity of feed {}", self.feed.id());
            MirrorError::Room { url, source }
        })?;
        // Without a name: the item comes after its last byte, and only then the digest is known.
        Ok(MirroredPart::nameless(&self.engine, self.feed.id()))
    }

    /// Keeps a file, whose item is still to be appended. Returns its address.
    pub(super) async fn keep(
        &self,
        mut part: MirroredPart,
        file: MirroredFile,
    ) -> Result<String, MirrorError> {
        let url = self.address(&file.file);
        part.name(file);
        let upload = part.keep().await?;
        self.kept.lock().push(upload);
        Ok(url)
    }

    fn address(&self, file: &Attachment) -> String {
        format!("{}{}", self.engine.base_url, file.path(self.feed.id()))
    }

    /// Returns the largest file, in bytes.
    pub(super) fn max_file(&self) -> u64 {
        max_size(&self.engine)
    }

    /// Ends the downloads of items that are appended.
    pub(super) async fn finish(&self, appended: &[String]) {
        let is_appended = |upload: &mut Upload| appended.contains(&upload.row.item);
        // Taken out first: the lock must not be held over writes to the store.
        let ended: Vec<Upload> = self.kept.lock().extract_if(.., is_appended).collect();
        for mut upload in ended {
            if let Err(e) = upload.finish(self.engine.store.as_ref()).await {
                tracing::debug!(feed = %upload.feed, error = %e, "cannot end a download now; it is done within a day");
            }
        }
    }
}

/// Returns the file of a change as the mirror keeps it.
pub(super) fn mirrored_file(change: &FileChange) -> MirroredFile {
    let (id, described) = (&change.change.item.id, change.described());
    let name = described.title.or_else(|| name_in(&change.file.url));
    let name = file_name(name.as_ref().unwrap_or(id));
    MirroredFile {
        item: id.clone(),
        file: Attachment::of_digest(id, name, &change.file.sha256),
        media_type: checked_type(described.media_type),
        size: change.file.size,
    }
}

/// Returns a media type that can be a header.
pub(super) fn checked_type(media_type: Option<String>) -> String {
    let is_valid = |media_type: &String| Content::new(media_type.as_str(), Bytes::new()).check_type().is_ok();
    // The publisher's word becomes a header here: a line break in it would be a header of the publisher's.
    media_type.filter(is_valid).unwrap_or_else(|| "application/octet-stream".to_owned())
}

/// Returns the last part of a URL's path.
fn name_in(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let last = url.path_segments()?.next_back().filter(|last| !last.is_empty())?;
    Some(percent_decode_str(last).decode_utf8_lossy().into_owned())
}

#[async_trait]
impl FileStore<MirrorError> for MirrorFiles {
    fn limit(&self, _: &FileChange) -> FileLimit {
        FileLimit { bytes: self.max_file(), name: "[server] large_content_mib" }
    }

    fn url(&self, change: &FileChange) -> String {
        self.address(&mirrored_file(change).file)
    }

    async fn open(&self, change: &FileChange) -> Result<OpenedFile<MirrorError>, MirrorError> {
        let Self { engine, feed, lease, .. } = self;
        // If another node has taken over the mirror, it downloads the file.
        // Two nodes that write one download would each find its row changed, and fail in turn.
        roles::check(lease)?;
        match open_mirrored(engine, feed.id(), &mirrored_file(change)).await? {
            OpenedMirror::Complete { size, upload } => {
                self.kept.lock().extend(upload);
                Ok(OpenedFile::Complete { size })
            }
            OpenedMirror::Part(mut part) => {
                let size = change.file.size.unwrap_or_default();
                // A larger file is refused without a byte.
                if size <= self.limit(change).bytes {
                    // What an earlier attempt has stored takes no room once more.
                    engine.check_room(size.saturating_sub(part.stored()?.0)).map_err(|source| {
                        let url = towpath_client::redact::url(&change.file.url);
                        MirrorError::Room { url, source }
                    })?;
                    part.copy_from_feed().await?;
                }
                Ok(OpenedFile::Part(Box::new(DownloadedPart { part, kept: self.kept.clone() })))
            }
        }
    }
}

/// File of a mirror, while it is downloaded.
struct DownloadedPart {
    part: MirroredPart,
    kept: KeptUploads,
}

#[async_trait]
impl FilePart<MirrorError> for DownloadedPart {
    async fn stored(&mut self) -> Result<StoredBytes, MirrorError> {
        let (length, sha256, etag) = self.part.stored()?;
        Ok(StoredBytes { length, sha256, etag })
    }

    async fn restart(&mut self, etag: Option<&str>) -> Result<(), MirrorError> {
        Ok(self.part.restart(etag).await?)
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), MirrorError> {
        Ok(self.part.write(bytes).await?)
    }

    async fn flush(&mut self) -> Result<(), MirrorError> {
        Ok(self.part.flush().await?)
    }

    async fn keep(self: Box<Self>) -> Result<(), MirrorError> {
        let Self { part, kept } = *self;
        let upload = part.keep().await?;
        // Ended once its item is appended. A crash in between leaves the row, and the next attempt finds the file by
        // it.
        kept.lock().push(upload);
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), MirrorError> {
        Ok(self.part.remove().await?)
    }
}
