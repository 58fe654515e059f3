//! Downloads of contents that publishers keep as files: sends the requests of a [`Download`] and stores what it says.

use std::time::{Duration, Instant};

use towpath_proto::follow::{
    BodyUse, ChunkUse, Download, DownloadEnd, DownloadStep, FileChange, FollowError, Request,
};

use super::file_store::{FilePart, FileStore, OpenedFile};
use crate::clock::{DriverActivity, DriverClock};
use crate::fetch::Fetcher;

/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Time until a file that another follow downloads is looked at again.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// A message about a download.
#[derive(Debug)]
pub(crate) enum DownloadNews {
    /// An attempt failed; another one follows.
    Failed(FollowError),
    /// Bytes so far.
    Progress(String),
}

/// Downloads the file of a change into a store, unless it is there already.
///
/// It continues what an earlier run has stored. When it returns [`DownloadEnd::Complete`], the file is durable.
///
/// # Errors
///
/// If the file cannot be stored. Then its change must not be delivered.
pub(crate) async fn download<E: Send>(
    change: &FileChange,
    files: &dyn FileStore<E>,
    fetcher: &Fetcher,
    clock: &dyn DriverClock,
    tell: &mut (dyn FnMut(DownloadNews) + Send),
) -> Result<DownloadEnd, E> {
    let part = loop {
        match files.open(change).await? {
            OpenedFile::Complete { size } => return Ok(DownloadEnd::Complete { size }),
            OpenedFile::Busy => clock.sleep_until(clock.now().after(BUSY_WAIT), DriverActivity::Busy).await,
            OpenedFile::Part(part) => break part,
        }
    };
    let download = Download::new(change.file.clone(), files.limit(change), change.folder.mode);
    RunningDownload { download, part, tell }.run(fetcher, clock).await
}

struct RunningDownload<'a, E> {
    download: Download,
    part: Box<dyn FilePart<E>>,
    tell: &'a mut (dyn FnMut(DownloadNews) + Send),
}

impl<E: Send> RunningDownload<'_, E> {
    async fn run(mut self, fetcher: &Fetcher, clock: &dyn DriverClock) -> Result<DownloadEnd, E> {
        let stored = self.part.stored().await?;
        if stored.length > 0 {
            self.download = self.download.resume(stored.length, stored.sha256, stored.etag);
        }
        let end = loop {
            match self.download.poll(clock.now()) {
                DownloadStep::End(end) => break end,
                DownloadStep::Wait(until) => clock.sleep_until(until, DriverActivity::Busy).await,
                DownloadStep::Fetch(request) => self.fetch(&request, fetcher, clock).await?,
            }
            if let Some(error) = self.download.take_failure() {
                (self.tell)(DownloadNews::Failed(error));
            }
        };
        match &end {
            DownloadEnd::Complete { .. } => self.part.keep().await?,
            DownloadEnd::Refused(_) => self.part.remove().await?,
            // A later attempt continues.
            DownloadEnd::Failed { .. } => {}
        }
        Ok(end)
    }

    /// Sends a request and stores its response.
    async fn fetch(
        &mut self,
        request: &Request,
        fetcher: &Fetcher,
        clock: &dyn DriverClock,
    ) -> Result<(), E> {
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
            BodyUse::Restart => self.part.restart(self.download.etag()).await?,
        }
        let mut told = Instant::now();
        let result = loop {
            match response.body.chunk().await {
                Ok(Some(chunk)) if self.download.handle_chunk(clock.now(), &chunk) == ChunkUse::Drop => {
                    return Ok(());
                }
                Ok(Some(chunk)) => self.part.write(chunk).await?,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                let text = progress(&self.download, &request.url);
                (self.tell)(DownloadNews::Progress(text));
            }
        };
        self.part.flush().await?;
        self.download.handle_end(clock.now(), result);
        Ok(())
    }
}

fn progress(download: &Download, url: &str) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let of = download.size().map(|size| format!(" of {}", mib(size))).unwrap_or_default();
    format!("{}: {}{of} MiB", crate::redact::url(url), mib(download.stored()))
}
