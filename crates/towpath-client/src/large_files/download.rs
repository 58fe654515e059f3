//! Downloads of contents that publishers keep as files: sends the requests of a [`Download`] and stores what it says.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::fs;
use towpath_proto::follow::{
    BodyUse, ChunkUse, Download, DownloadEnd, DownloadStep, FileChange, FollowError, Request,
};

use super::partial_file::{PartialFile, sync_names};
use super::{LargeFileError, folder_of};
use crate::clock::DriverClock;
use crate::fetch::Fetcher;

/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Time until a file that another follow downloads is looked at again.
const LOCKED_WAIT: Duration = Duration::from_secs(1);
/// Longest entity tag that is read from a file.
const MAX_ETAG: usize = 8 << 10;

/// A message about a download.
#[derive(Debug)]
pub(crate) enum DownloadNews {
    /// An attempt failed; another one follows.
    Failed(FollowError),
    /// Bytes so far.
    Progress(String),
}

/// Downloads the file of a change into its folder, unless it is there already.
///
/// It continues what an earlier run has stored. When it returns [`DownloadEnd::Complete`], the file is durable.
///
/// # Errors
///
/// If the file cannot be written. Then its change must not be delivered.
pub(crate) async fn download(
    change: &FileChange,
    fetcher: &Fetcher,
    clock: &dyn DriverClock,
    tell: &mut (dyn FnMut(DownloadNews) + Send),
) -> Result<DownloadEnd, LargeFileError> {
    let FileChange { file, folder, .. } = change;
    let path = folder_of(&folder.base);
    let name = &file.sha256;
    let partial = loop {
        let opened = PartialFile::open(&path, name).await?;
        // After the lock: whoever held it may have completed the file.
        if let Some(size) = size_of(&path.join(name), file.size).await? {
            if let Some(partial) = opened {
                partial.remove().await?;
            }
            // Another follow may have named it a moment ago.
            sync_names(&path).await.map_err(LargeFileError::at(&path))?;
            return Ok(DownloadEnd::Complete { size });
        }
        if let Some(partial) = opened {
            break partial;
        }
        clock.sleep_until(clock.now().after(LOCKED_WAIT), false).await;
    };
    let download = Download::new(file.clone(), folder.max_file, folder.once);
    let running = RunningDownload { download, partial, etag: path.join(format!("{name}.etag")), tell };
    running.run(fetcher, clock, &path, name).await
}

/// Returns the size of a complete file, unless it is missing or has another size than described.
async fn size_of(file: &Path, described: Option<u64>) -> Result<Option<u64>, LargeFileError> {
    match fs::metadata(file).await {
        Ok(found) if found.is_file() => {
            Ok(Some(found.len()).filter(|size| described.is_none_or(|described| described == *size)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LargeFileError::at(file)(error)),
    }
}

struct RunningDownload<'a> {
    download: Download,
    partial: PartialFile,
    /// File with the entity tag of the stored bytes, for a later run.
    etag: PathBuf,
    tell: &'a mut (dyn FnMut(DownloadNews) + Send),
}

impl RunningDownload<'_> {
    async fn run(
        mut self,
        fetcher: &Fetcher,
        clock: &dyn DriverClock,
        folder: &Path,
        name: &str,
    ) -> Result<DownloadEnd, LargeFileError> {
        let (length, sha256) = self.partial.digest().await?;
        if length > 0 {
            let etag = read_etag(&self.etag).await;
            self.download = self.download.resume(length, sha256, etag);
        }
        let end = loop {
            match self.download.poll(clock.now()) {
                DownloadStep::End(end) => break end,
                DownloadStep::Wait(until) => clock.sleep_until(until, false).await,
                DownloadStep::Fetch(request) => self.fetch(&request, fetcher, clock).await?,
            }
            if let Some(error) = self.download.take_failure() {
                (self.tell)(DownloadNews::Failed(error));
            }
        };
        match &end {
            DownloadEnd::Complete { .. } => self.partial.keep(folder, name).await?,
            DownloadEnd::Refused(_) => self.partial.remove().await?,
            // A later attempt continues.
            DownloadEnd::Failed { .. } => return Ok(end),
        }
        // A tag that is left behind is replaced, or belongs to no file.
        let _ = fs::remove_file(&self.etag).await;
        Ok(end)
    }

    /// Sends a request and stores its response.
    async fn fetch(
        &mut self,
        request: &Request,
        fetcher: &Fetcher,
        clock: &dyn DriverClock,
    ) -> Result<(), LargeFileError> {
        let mut response = match fetcher.fetch(request).await {
            Ok(response) => response,
            Err(error) => {
                self.download.handle_end(clock.now(), Err(error));
                return Ok(());
            }
        };
        match self.download.handle_head(clock.now(), &response.head) {
            BodyUse::Drop => return Ok(()),
            BodyUse::Append => {}
            BodyUse::Restart => {
                self.partial.clear().await?;
                let etag = self.download.etag().unwrap_or_default();
                fs::write(&self.etag, etag).await.map_err(LargeFileError::at(&self.etag))?;
            }
        }
        let mut told = Instant::now();
        let result = loop {
            match response.body.chunk().await {
                Ok(Some(chunk)) if self.download.handle_chunk(clock.now(), &chunk) == ChunkUse::Drop => {
                    return Ok(());
                }
                Ok(Some(chunk)) => self.partial.write(&chunk).await?,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                let text = progress(&self.download, &request.url);
                (self.tell)(DownloadNews::Progress(text));
            }
        };
        self.partial.flush().await?;
        self.download.handle_end(clock.now(), result);
        Ok(())
    }
}

fn progress(download: &Download, url: &str) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let of = download.size().map(|size| format!(" of {}", mib(size))).unwrap_or_default();
    format!("{}: {}{of} MiB", crate::redact::url(url), mib(download.stored()))
}

/// Reads the entity tag that an earlier run stored. Without it the digest alone tells a file that has changed.
async fn read_etag(path: &Path) -> Option<String> {
    fs::read_to_string(path).await.ok().filter(|etag| (1..=MAX_ETAG).contains(&etag.len()))
}
