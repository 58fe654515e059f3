//! Files that a mirror downloads: uploads that are found again by their item and their SHA-256, and so go on after a
//! restart, on this node or another.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use sha2::Sha256;
use towpath_proto::FeedId;
use towpath_store::{Store, Table};

use super::upload::{Download, prefix};
use super::writer::{ByteCounting, UploadBuffer};
use super::{Attachment, KeptFile, Stage, Upload, list, record, size};
use crate::engine::Engine;
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// File of a mirrored item, as its publisher describes it.
#[derive(Debug, Clone)]
pub(crate) struct MirroredFile {
    /// Id of the item.
    pub(crate) item: String,
    /// The file as it is to be kept.
    pub(crate) file: Attachment,
    pub(crate) media_type: String,
    pub(crate) size: Option<u64>,
}

/// A file that a mirror asks for.
pub(crate) enum OpenedMirror {
    /// It is kept already.
    Complete {
        size: u64,
        /// Its download, if its item was not appended yet.
        upload: Option<Upload>,
    },
    /// It is to be downloaded.
    Part(MirroredPart),
}

/// Finds a file of a mirrored item, or what an earlier run has stored of it.
pub(crate) async fn open(
    engine: &Arc<Engine>,
    feed: &FeedId,
    wanted: &MirroredFile,
) -> Result<OpenedMirror, StoreError> {
    let store = engine.store.as_ref();
    let mut upload = find(store, feed, wanted).await?;
    let kept = size(store, feed, &wanted.file.key).await?;
    // By digest and length: a file whose description changed is read again.
    if let Some(size) = kept.filter(|size| wanted.size.is_none_or(|described| described == *size)) {
        match &mut upload {
            // Its item may take a while to come: until then nobody removes the file.
            Some(kept) if matches!(kept.row.stage, Stage::Stored { is_new: true, .. }) => {
                kept.touch(store, engine.now()).await?;
            }
            Some(needless) => {
                needless.remove(store).await?;
                upload = None;
            }
            None => {}
        }
        return Ok(OpenedMirror::Complete { size, upload });
    }
    if let Some(mut upload) = upload.filter(|upload| upload.row.stage == Stage::Receiving) {
        upload.touch(store, engine.now()).await?;
        return Ok(OpenedMirror::Part(MirroredPart::new(engine, upload)));
    }
    Ok(OpenedMirror::Part(MirroredPart::new(engine, new_upload(engine, feed, wanted))))
}

fn new_upload(engine: &Engine, feed: &FeedId, wanted: &MirroredFile) -> Upload {
    let MirroredFile { item, file, media_type, size } = wanted;
    let mut upload = Upload::new(feed, item, file.name.clone(), media_type.clone(), engine.now());
    upload.row.length = *size;
    upload.row.download = Some(Download { sha256: file.sha256().to_owned(), etag: None });
    upload
}

/// Finds the download of a file.
// A mirror takes no other uploads, and has one download at a time: there are few rows.
async fn find(store: &dyn Store, feed: &FeedId, wanted: &MirroredFile) -> Result<Option<Upload>, StoreError> {
    let prefix = prefix(Some(feed));
    let mut scan = TableScan::new(store, Table::Chains, &prefix);
    while let Some(page) = scan.next().await? {
        for (key, value) in page {
            let upload = Upload::of_entry(&key, value)?;
            let download = upload.row.download.as_ref();
            if download.is_some_and(|download| download.sha256 == wanted.file.sha256())
                && upload.row.item == wanted.item
                && upload.row.stage != Stage::Removing
            {
                return Ok(Some(upload));
            }
        }
    }
    Ok(None)
}

/// A file that a mirror downloads.
pub(crate) struct MirroredPart {
    engine: Arc<Engine>,
    upload: Upload,
    /// Bytes that are not stored yet; `None` between responses.
    buffer: Option<UploadBuffer>,
}

impl MirroredPart {
    fn new(engine: &Arc<Engine>, upload: Upload) -> Self {
        Self { engine: engine.clone(), upload, buffer: None }
    }

    /// Begins a file whose item and digest are known at its end. It does not outlast the process.
    pub(crate) fn nameless(engine: &Arc<Engine>, feed: &FeedId) -> Self {
        let mut upload = Upload::new(feed, "", String::new(), String::new(), engine.now());
        upload.row.download = Some(Download { sha256: String::new(), etag: None });
        upload.row.run.clone_from(&engine.instance);
        Self::new(engine, upload)
    }

    /// Names a file that was begun without a name.
    pub(crate) fn name(&mut self, file: MirroredFile) {
        let row = &mut self.upload.row;
        row.download = Some(Download { sha256: file.file.sha256().to_owned(), etag: None });
        (row.item, row.name, row.media_type) = (file.item, file.file.name, file.media_type);
    }

    /// Copies the file of another item of the feed that has the same bytes, if there is one and nothing is stored.
    pub(crate) async fn copy_from_feed(&mut self) -> Result<(), StoreError> {
        let Some(download) = self.upload.row.download.as_ref().filter(|_| self.upload.row.offset == 0) else {
            return Ok(());
        };
        let (store, feed) = (self.engine.store.clone(), self.upload.feed.clone());
        let files = list(store.as_ref(), &feed).await?;
        let Some(same) = files.iter().find(|file| file.sha256() == download.sha256) else { return Ok(()) };
        match record(store.as_ref(), &feed, &same.key).await? {
            None => return Ok(()),
            Some(KeptFile::Whole(content)) => {
                self.restart(None).await?;
                self.write(content.bytes).await?;
            }
            Some(KeptFile::Chunked(file)) => {
                self.restart(None).await?;
                let size = file.size;
                let mut pieces = Box::pin(file.stream(store, feed, 0, size));
                while let Some(piece) = pieces.try_next().await? {
                    self.write(piece).await?;
                }
            }
        }
        self.flush().await
    }

    /// Returns the number of bytes that are stored, their digest, and the entity tag of the file that they are from.
    pub(crate) fn stored(&self) -> Result<(u64, Sha256, Option<String>), StoreError> {
        let etag = self.upload.row.download.as_ref().and_then(|download| download.etag.clone());
        Ok((self.upload.row.offset, self.upload.digest()?, etag))
    }

    /// Drops what is stored, for bytes of a file with this entity tag.
    pub(crate) async fn restart(&mut self, etag: Option<&str>) -> Result<(), StoreError> {
        let store = self.engine.store.as_ref();
        self.buffer = None;
        if self.upload.row.reached > 0 {
            let fresh = self.upload.anew(self.engine.now());
            // With another id: chunks behind the end of a shorter file would be lost track of.
            self.upload.remove(store).await?;
            self.upload = fresh;
        }
        if let Some(download) = &mut self.upload.row.download {
            download.etag = etag.map(str::to_owned);
        }
        self.upload.save(store).await
    }

    /// Takes bytes, and stores them if they are enough for a write.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let Self { engine, upload, buffer } = self;
        let store = engine.store.as_ref();
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => buffer.insert(UploadBuffer::open(store, upload, ByteCounting::AtOnce).await?),
        };
        buffer.push(store, upload, bytes, engine.now()).await
    }

    /// Stores what was given.
    pub(crate) async fn flush(&mut self) -> Result<(), StoreError> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        buffer.end(self.engine.store.as_ref(), &mut self.upload, self.engine.now()).await
    }

    /// Keeps the whole file. Its item is still to be appended, and then its upload is to be finished.
    pub(crate) async fn keep(mut self) -> Result<Upload, StoreError> {
        self.upload.keep(self.engine.store.as_ref()).await?;
        Ok(self.upload)
    }

    /// Removes what is stored.
    pub(crate) async fn remove(mut self) -> Result<(), StoreError> {
        if self.upload.is_saved() { self.upload.remove(self.engine.store.as_ref()).await } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::Timestamp;
    use sha2::Digest as _;
    use towpath_store::memory::MemoryStore;

    use super::*;
    use crate::config::Config;

    async fn engine() -> Arc<Engine> {
        let store = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
        Engine::open(Config::parse("", Path::new("")).unwrap(), store).await.unwrap().0
    }

    fn feed() -> FeedId {
        FeedId::new("films").unwrap()
    }

    fn content() -> Bytes {
        (0..6_000_000_u32).map(|n| (n / 7 % 251) as u8).collect::<Vec<u8>>().into()
    }

    fn wanted(item: &str) -> MirroredFile {
        let sha256 = hex::encode(Sha256::digest(content()));
        let file = Attachment::of_digest(item, "film.mp4".into(), &sha256);
        let size = Some(content().len() as u64);
        MirroredFile { item: item.into(), file, media_type: "video/mp4".into(), size }
    }

    async fn part(engine: &Arc<Engine>, item: &str) -> MirroredPart {
        match open(engine, &feed(), &wanted(item)).await.unwrap() {
            OpenedMirror::Part(part) => part,
            OpenedMirror::Complete { size, .. } => panic!("complete: {size}"),
        }
    }

    async fn complete(engine: &Arc<Engine>, item: &str) -> Option<Upload> {
        match open(engine, &feed(), &wanted(item)).await.unwrap() {
            OpenedMirror::Complete { size, upload } => {
                assert_eq!(size, content().len() as u64);
                upload
            }
            OpenedMirror::Part(part) => panic!("{:?}", part.stored().unwrap().0),
        }
    }

    /// Returns the numbers of rows of files, and of uploads.
    async fn rows(engine: &Engine) -> (usize, usize) {
        let count =
            async |table, prefix: &[u8]| engine.store.scan(table, prefix, None, 1000).await.unwrap().len();
        (count(Table::Documents, b"attachment").await, count(Table::Chains, b"uploads/").await)
    }

    #[tokio::test]
    async fn a_download_goes_on_in_a_later_run() {
        let engine = engine().await;
        let store = engine.store.as_ref();
        let mut first = part(&engine, "a").await;
        first.restart(Some("\"one\"")).await.unwrap();
        for (from, end) in [(0, 700_001), (700_001, 700_002), (700_002, 2_000_000)] {
            first.write(content().slice(from..end)).await.unwrap();
            first.flush().await.unwrap();
        }
        // Not flushed: it is not counted.
        first.write(content().slice(2_000_000..2_000_001)).await.unwrap();
        drop(first);
        let mut second = part(&engine, "a").await;
        let (length, sha256, etag) = second.stored().unwrap();
        assert_eq!((length, etag.as_deref()), (2_000_000, Some("\"one\"")));
        assert_eq!(sha256.finalize(), Sha256::digest(content().slice(..2_000_000)));
        second.write(content().slice(2_000_000..)).await.unwrap();
        second.flush().await.unwrap();
        second.keep().await.unwrap();
        // A crash came before its item was appended.
        let mut kept = complete(&engine, "a").await.unwrap();
        kept.finish(store).await.unwrap();
        assert!(complete(&engine, "a").await.is_none());
        assert_eq!(rows(&engine).await, (12 + 2, 0));
    }

    #[tokio::test]
    async fn what_is_dropped_leaves_nothing() {
        let engine = engine().await;
        part(&engine, "a").await.remove().await.unwrap();
        assert_eq!(rows(&engine).await, (0, 0));
        let mut part = part(&engine, "a").await;
        part.restart(None).await.unwrap();
        part.write(content()).await.unwrap();
        part.flush().await.unwrap();
        assert_eq!(rows(&engine).await, (12, 1));
        // Another version of the file, which is shorter.
        part.restart(None).await.unwrap();
        assert_eq!((rows(&engine).await, part.stored().unwrap().0), ((0, 1), 0));
        part.write(content().slice(..10)).await.unwrap();
        part.flush().await.unwrap();
        part.remove().await.unwrap();
        assert_eq!(rows(&engine).await, (0, 0));
    }

    #[tokio::test]
    async fn the_file_of_another_item_is_copied() {
        let engine = engine().await;
        let mut first = part(&engine, "a").await;
        first.restart(None).await.unwrap();
        first.write(content()).await.unwrap();
        first.flush().await.unwrap();
        first.keep().await.unwrap().finish(engine.store.as_ref()).await.unwrap();
        let mut second = part(&engine, "b").await;
        second.copy_from_feed().await.unwrap();
        let (length, sha256, etag) = second.stored().unwrap();
        assert_eq!((length, etag), (content().len() as u64, None));
        assert_eq!(sha256.finalize(), Sha256::digest(content()));
        second.keep().await.unwrap().finish(engine.store.as_ref()).await.unwrap();
        super::super::forget(&engine, &feed(), &["a".into()]).await.unwrap();
        assert!(complete(&engine, "b").await.is_none());
        assert_eq!(rows(&engine).await, (12 + 2, 0));
    }
}
