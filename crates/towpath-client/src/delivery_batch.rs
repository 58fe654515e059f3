//! Changes on their way to an output: batched by count, size and age, and delivered with their checkpoints.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use towpath_proto::follow::{
    DownloadEnd, Event, FeedReset, FileChange, FollowError, Followed, Follower, LargePart,
};

use super::clock::DriverClock;
use super::drive::{FollowNotice, FollowSummary, Output};
use super::fetch::Fetcher;
use super::large_files::{DownloadNews, FileStore, FolderFiles, LargeFiles, download};
use super::response_hints::ResponseHints;
use crate::stop::{Stop, stopped};

/// Maximum number of changes in a batch.
const BATCH_CHANGES: usize = 1000;
/// Maximum content of a batch in bytes; a single change may exceed it.
const BATCH_BYTES: usize = 4 << 20;
/// Maximum time that a change waits in a batch before delivery.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// Time that an output has to finish a delivery after the stop signal.
pub(super) const DELIVERY_GRACE: Duration = Duration::from_secs(5);

/// Changes of a follower that have not been delivered to the output.
pub(super) struct DeliveryBatch<'a, O> {
    pub(super) output: &'a mut O,
    stop: &'a Stop,
    changes: Vec<Followed>,
    bytes: usize,
    /// The last checkpoint, with the number of `changes` that it covers.
    checkpoint: Option<(Value, usize)>,
    since: Option<Instant>,
    /// Set when a delivery was abandoned. Later changes must not be delivered: they would leave a gap.
    pub(super) abandoned: bool,
    /// Set when an attempt failed; cleared by the driver.
    pub(super) has_failed: bool,
    large_files: LargeFiles,
    /// A change that waits for its file. Events after it are not taken before.
    awaiting: Option<Box<FileChange>>,
    /// Wait that the server of a file asked for, when its download gave up.
    pub(super) retry_after: Option<Duration>,
    summary: FollowSummary,
}

impl<'a, O: Output> DeliveryBatch<'a, O> {
    pub(super) fn new(output: &'a mut O, stop: &'a Stop) -> Self {
        Self {
            output,
            stop,
            changes: Vec::new(),
            bytes: 0,
            checkpoint: None,
            since: None,
            abandoned: false,
            has_failed: false,
            large_files: LargeFiles::default(),
            awaiting: None,
            retry_after: None,
            summary: FollowSummary::default(),
        }
    }

    /// Returns true if changes wait for delivery.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Time at which the batch must be delivered even if it is not full.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + BATCH_AGE)
    }

    /// Takes the follower's events, up to a change that waits for its file.
    pub(super) async fn take_events<F: Follower + ?Sized>(
        &mut self,
        follower: &mut F,
        hints: &ResponseHints,
    ) -> Result<(), O::Error> {
        // A follower may have many events queued: the batch is delivered in between, so memory stays bounded.
        while let Some(event) = follower.poll_event() {
            match without_bad_id(event) {
                Event::Reset(reset) => self.reset(reset).await?,
                Event::Large(part) => self.write_large(part).await?,
                // A download may take hours: what came before it is delivered now.
                Event::File(change) => {
                    self.deliver().await?;
                    self.awaiting = Some(change);
                    return Ok(());
                }
                // Delivered first: an output remembers what it has of the unit, which comes again.
                Event::Failed(mut error) => {
                    self.deliver().await?;
                    hints.explain(&mut error);
                    self.add(Event::Failed(error));
                }
                event => self.add(event),
            }
            let full = self.changes.len() >= BATCH_CHANGES || self.bytes >= BATCH_BYTES;
            if full || self.due().is_some_and(|due| Instant::now() >= due) {
                self.deliver().await?;
            }
            // Events that are left are not lost: their checkpoint is not stored, so they are fetched again.
            if *self.stop.borrow() {
                break;
            }
        }
        Ok(())
    }

    /// Delivers the changes so far, then the reset.
    async fn reset(&mut self, reset: FeedReset) -> Result<(), O::Error> {
        self.deliver().await?;
        self.summary.incomplete = true;
        self.output.notice(FollowNotice::Reset(reset.reason.clone()));
        if self.abandoned { Ok(()) } else { self.output.reset(reset).await }
    }

    /// Writes a part of a large content. A failure ends the follow: the change must not come without its file.
    async fn write_large(&mut self, part: LargePart) -> Result<(), O::Error> {
        if self.abandoned {
            return Ok(());
        }
        let Some(part) = self.output.store_part(part).await? else { return Ok(()) };
        if let Err(error) = self.large_files.take(part).await {
            self.abandon(FollowError::Usage(error.to_string()));
        }
        Ok(())
    }

    /// Returns true if a change waits for [`Self::fetch_file`].
    pub(super) fn awaits_file(&self) -> bool {
        self.awaiting.is_some() && !self.abandoned
    }

    /// Downloads the file that a change waits for, and adds the change. Not cancel-safe.
    pub(super) async fn fetch_file(
        &mut self,
        fetcher: &Fetcher,
        clock: &dyn DriverClock,
    ) -> Result<(), O::Error> {
        // Taken out before the first await. The caller does not cancel this, so it is not lost.
        let Some(change) = self.awaiting.take() else { return Ok(()) };
        let (end, url) = match self.output.files() {
            Some(files) => (self.download(&change, &*files, fetcher, clock).await?, files.url(&change)),
            None => match self.download(&change, &FolderFiles, fetcher, clock).await {
                Ok(end) => (end, FolderFiles.url(&change)),
                Err(error) => {
                    self.abandon(FollowError::Usage(error.to_string()));
                    return Ok(());
                }
            },
        };
        match end {
            // The file is continued by the next run. Nothing after this change may be delivered before it.
            None => self.abandoned = true,
            Some(DownloadEnd::Complete { size }) => {
                self.add(Event::Change(Box::new(change.downloaded(url, size))));
            }
            Some(DownloadEnd::Refused(why)) => {
                let id = &change.change.item.id;
                self.add(Event::Warning(format!("item {id:?} keeps the address of its file: {why}")));
                self.add(Event::Change(Box::new(change.change)));
            }
            Some(DownloadEnd::Failed { error, retry_after }) => {
                self.retry_after = retry_after;
                self.abandon(error);
            }
        }
        Ok(())
    }

    /// Downloads the file of a change; `None` if the stop signal ended it.
    async fn download<E: Send>(
        &mut self,
        change: &FileChange,
        files: &dyn FileStore<E>,
        fetcher: &Fetcher,
        clock: &dyn DriverClock,
    ) -> Result<Option<DownloadEnd>, E> {
        let output = &mut *self.output;
        let mut tell = |news| match news {
            DownloadNews::Failed(error) => output.notice(FollowNotice::Failed(error)),
            DownloadNews::Progress(text) => {
                tracing::info!(done = %text, "downloading");
                output.progress(&text);
            }
        };
        tokio::select! {
            downloaded = download(change, files, fetcher, clock, &mut tell) => downloaded.map(Some),
            () = stopped(self.stop) => Ok(None),
        }
    }

    /// Ends the follow. A change without its file would be incomplete, and changes after it would leave a gap.
    fn abandon(&mut self, error: FollowError) {
        self.add(Event::Failed(error));
        self.abandoned = true;
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Change(change) => {
                self.bytes += size(&change);
                self.changes.push(*change);
                self.since.get_or_insert_with(Instant::now);
            }
            Event::Checkpoint(state) => {
                // Later checkpoints replace earlier ones that wait: they cover the same changes and more.
                self.checkpoint = Some((state, self.changes.len()));
                self.since.get_or_insert_with(Instant::now);
            }
            // In order, by `take_events`.
            Event::Reset(_) | Event::Large(_) | Event::File(_) => {}
            Event::Warning(text) => self.output.notice(FollowNotice::Warning(text)),
            Event::Incomplete(text) => {
                self.summary.incomplete = true;
                self.output.notice(FollowNotice::Incomplete(text));
            }
            Event::Failed(error) => {
                self.has_failed = true;
                self.summary.failed = Some(error.clone());
                self.output.notice(FollowNotice::Failed(error));
            }
        }
    }

    /// Delivers all changes: those covered by the checkpoint together with it, then the rest.
    pub(super) async fn deliver(&mut self) -> Result<(), O::Error> {
        let mut covered = std::mem::take(&mut self.changes);
        (self.bytes, self.since) = (0, None);
        // Changes after the checkpoint are delivered apart: stored with it, a crash could repeat or lose them.
        if let Some((state, count)) = self.checkpoint.take() {
            let rest = covered.split_off(count);
            self.deliver_part(covered, Some(state)).await?;
            covered = rest;
        }
        if covered.is_empty() { Ok(()) } else { self.deliver_part(covered, None).await }
    }

    async fn deliver_part(&mut self, changes: Vec<Followed>, state: Option<Value>) -> Result<(), O::Error> {
        if self.abandoned {
            return Ok(());
        }
        let stop = self.stop;
        let stop_timeout = async {
            stopped(stop).await;
            tokio::time::sleep(DELIVERY_GRACE).await;
        };
        tokio::select! {
            delivered = self.output.deliver(changes, state) => delivered,
            // The reader of the output hangs. Its checkpoint was not stored, so the next run delivers these again.
            () = stop_timeout => {
                self.abandoned = true;
                Ok(())
            }
        }
    }

    /// Returns the result of the follow.
    pub(super) fn finish(self, stopped: bool) -> FollowSummary {
        FollowSummary { stopped, ..self.summary }
    }

    /// Fails a follower that waits for nothing, which would otherwise hang without a word.
    pub(super) fn fail_stuck(&mut self) {
        let why = "internal error: the follower has no pending request and is not finished";
        self.add(Event::Failed(FollowError::Usage(why.into())));
    }
}

/// Returns an event, or for a change of an item whose id no feed can hold, that the item is left out.
///
/// Here for all followers: such an item would fail every delivery, and nothing after it would arrive.
fn without_bad_id(event: Event) -> Event {
    let change: &Followed = match &event {
        Event::Change(change) => change,
        Event::File(file) => &file.change,
        _ => return event,
    };
    match change.item.check() {
        Ok(()) => event,
        Err(e) => Event::Incomplete(format!("{}: an item is left out: {e}", change.feed)),
    }
}

/// Approximate memory size of a change.
fn size(change: &Followed) -> usize {
    let content = change.item.content.as_ref().or(change.patch.as_ref());
    content.map_or(0, |content| content.bytes.len()) + change.item.summary.as_ref().map_or(0, String::len)
}
