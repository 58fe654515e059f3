//! Download of one file: decides what to request, how a response continues the file, and when to give up.
//!
//! The driver stores the bytes. It calls [`Download::poll`] for the next step. For each request it passes on the
//! response's head, its pieces and its end, and stores what it is told to. The digest is computed here, so a file is
//! complete only if its bytes are those that the publisher described.

mod content_range;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use sha2::{Digest as _, Sha256};

use self::content_range::ContentRange;
use super::backoff::Backoff;
use super::content_file::ContentFile;
use super::exchange::{FollowError, Request, RequestId, ResponseHead, TransferError};
use super::mode::FollowMode;
use super::time::{Monotonic, Now};

/// Waits after failures. Bytes that arrived begin the count anew.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(320));
/// Longest `Retry-After` that counts.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
/// Failures in a row after which a download that may give up does.
const MAX_FAILURES: u32 = 5;
/// Longest wait of a download that may give up.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Number of times that a whole file may be another one than described. The second try excludes a damaged part of an
/// earlier run.
const MAX_MISMATCHES: u32 = 2;

/// State of the download of one file.
#[derive(Debug, Clone)]
pub struct Download {
    file: ContentFile,
    limit: FileLimit,
    mode: FollowMode,
    stored: StoredPart,
    phase: Phase,
    /// Size of the file, once a response told it.
    reported_size: Option<u64>,
    /// Largest number of bytes stored since the last mismatch. A server that ignores `Range` makes no progress by
    /// sending the same bytes again.
    longest: u64,
    /// Failures in a row.
    failures: u32,
    mismatches: u32,
    /// The last failure, to be reported.
    failure: Option<FollowError>,
}

/// Limit of a file's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimit {
    /// Largest file, in bytes.
    pub bytes: u64,
    /// Name of the setting, for the message about a larger file.
    pub name: &'static str,
}

/// Beginning of the file, as the driver has stored it.
#[derive(Debug, Clone, Default)]
struct StoredPart {
    length: u64,
    sha256: Sha256,
    etag: Option<String>,
}

#[derive(Debug, Clone)]
enum Phase {
    /// The next step is to be chosen.
    Ready,
    /// Nothing is requested until then.
    Waiting(Monotonic),
    /// A request is in flight.
    Requested,
    /// The body is read.
    Receiving,
    Ended(DownloadEnd),
}

/// Next step of a download.
#[derive(Debug)]
pub enum DownloadStep {
    /// Send the request.
    Fetch(Request),
    /// Wait until then.
    Wait(Monotonic),
    /// The download has ended.
    End(DownloadEnd),
}

/// End of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadEnd {
    /// The stored bytes are the file.
    Complete {
        /// Their number.
        size: u64,
    },
    /// The file cannot be had, for this reason. Another attempt is useless.
    Refused(String),
    /// The download gave up. A later one may continue.
    Failed {
        /// The last failure.
        error: FollowError,
        /// Wait that the server asked for.
        retry_after: Option<Duration>,
    },
}

/// Use of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyUse {
    /// Store it behind what is stored.
    Append,
    /// Drop what is stored, then store it.
    Restart,
    /// Close the connection without reading it.
    Drop,
}

/// Use of a piece of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkUse {
    /// Store it.
    Store,
    /// Close the connection: neither this piece nor the rest is part of the file.
    Drop,
}

impl Download {
    /// Starts a download. With [`FollowMode::CatchUp`] it gives up after a few failures in a row.
    pub fn new(file: ContentFile, limit: FileLimit, mode: FollowMode) -> Self {
        let mut download = Self {
            file,
            limit,
            mode,
            stored: StoredPart::default(),
            phase: Phase::Ready,
            reported_size: None,
            longest: 0,
            failures: 0,
            mismatches: 0,
            failure: None,
        };
        download.refuse_size(download.file.size.unwrap_or_default());
        download
    }

    /// Continues with bytes that an earlier run stored: their number, digest and strong entity tag.
    #[must_use]
    pub fn resume(mut self, length: u64, sha256: Sha256, etag: Option<String>) -> Self {
        // A part that is too long is of another file, so the download starts from nothing.
        if length <= self.limit.bytes.min(self.size().unwrap_or(u64::MAX)) {
            self.stored = StoredPart { length, sha256, etag };
            self.longest = length;
        }
        self
    }

    /// Returns the number of bytes that are stored.
    pub fn stored(&self) -> u64 {
        self.stored.length
    }

    /// Returns the entity tag of the stored bytes, for [`Self::resume`].
    pub fn etag(&self) -> Option<&str> {
        self.stored.etag.as_deref()
    }

    /// Returns the size of the file, if it is known.
    pub fn size(&self) -> Option<u64> {
        self.file.size.or(self.reported_size)
    }

    /// Returns the last failure, once.
    pub fn take_failure(&mut self) -> Option<FollowError> {
        self.failure.take()
    }

    /// Returns the next step.
    pub fn poll(&mut self, now: Now) -> DownloadStep {
        match &self.phase {
            Phase::Ended(end) => return DownloadStep::End(end.clone()),
            Phase::Waiting(until) if *until > now.monotonic => return DownloadStep::Wait(*until),
            // A request that the driver dropped without an end is sent again.
            Phase::Ready | Phase::Waiting(_) | Phase::Requested | Phase::Receiving => {}
        }
        // Also before the first request: an earlier run may have stored everything and died before it compared
        // the digest.
        if self.size() == Some(self.stored.length) {
            self.compare(now);
            return self.poll(now);
        }
        self.phase = Phase::Requested;
        DownloadStep::Fetch(self.request())
    }

    fn request(&self) -> Request {
        let mut request = Request::get(RequestId(0), self.file.url.clone());
        // Pieces are checked here. Only a piece is in memory, so the memory budget need not know the size.
        (request.max_body, request.is_streamed) = (u64::MAX, true);
        // Ranges are of the encoded bytes (RFC 9110, section 14.1.2): a part could not be decoded alone.
        request = request.with(ACCEPT_ENCODING, "identity");
        if self.stored.length == 0 {
            return request;
        }
        request = request.with(RANGE, &format!("bytes={}-", self.stored.length));
        match &self.stored.etag {
            // If the file has changed, the server sends the new one with 200 (RFC 9110, section 13.1.5).
            // Without a tag only the digest at the end tells.
            Some(etag) => request.with(IF_RANGE, etag),
            None => request,
        }
    }

    /// Takes the head of a response.
    pub fn handle_head(&mut self, now: Now, head: &ResponseHead) -> BodyUse {
        if !matches!(self.phase, Phase::Requested) {
            return BodyUse::Drop;
        }
        match head.status {
            200 => self.begin(now, head),
            206 => self.go_on(now, head),
            416 if self.stored.length > 0 => {
                self.handle_past_the_end(now, head);
                BodyUse::Drop
            }
            status if is_permanent(status) => {
                self.refuse(format!("{}: the server answers {status}", self.file.url));
                BodyUse::Drop
            }
            status => {
                let error = FollowError::status(self.file.url.clone(), status);
                self.fail(now, error, head.retry_after(now.wall));
                BodyUse::Drop
            }
        }
    }

    /// Takes a response with the whole file.
    fn begin(&mut self, now: Now, head: &ResponseHead) -> BodyUse {
        let length = head.header(CONTENT_LENGTH.as_str()).and_then(|text| text.trim().parse().ok());
        if self.is_other_size(now, length) || self.refuse_size(length.unwrap_or_default()) {
            return BodyUse::Drop;
        }
        // Without a length only the end of the body tells the size.
        self.reported_size = length;
        self.stored = StoredPart { etag: strong_etag(head), ..StoredPart::default() };
        self.phase = Phase::Receiving;
        BodyUse::Restart
    }

    /// Takes a response with a part of the file.
    fn go_on(&mut self, now: Now, head: &ResponseHead) -> BodyUse {
        let range = head.header(CONTENT_RANGE.as_str()).and_then(ContentRange::parse);
        let total = range.and_then(|range| range.total);
        if self.is_other_size(now, total) || self.refuse_size(total.unwrap_or_default()) {
            return BodyUse::Drop;
        }
        let etag = strong_etag(head);
        // A server may ignore If-Range, and then sends a part of another version.
        let is_same = self.stored.etag.is_none() || etag.is_none() || self.stored.etag == etag;
        let start = range.and_then(|range| range.start);
        if self.stored.length == 0 || start != Some(self.stored.length) || !is_same {
            let reason =
                if is_same { "not the part that was requested" } else { "a part of another version" };
            self.drop_stored();
            self.fail(now, self.protocol_error(format!("the server sends {reason}")), None);
            return BodyUse::Drop;
        }
        self.reported_size = total.or(self.reported_size);
        self.stored.etag = self.stored.etag.take().or(etag);
        self.phase = Phase::Receiving;
        BodyUse::Append
    }

    /// Takes a response without a part, because the file ends before the requested one.
    fn handle_past_the_end(&mut self, now: Now, head: &ResponseHead) {
        let range = head.header(CONTENT_RANGE.as_str()).and_then(ContentRange::parse);
        let total = range.and_then(|range| range.total);
        if self.is_other_size(now, total) {
            return;
        }
        // Everything was stored, and only the end of an earlier response was missing (RFC 9110, section
        // 15.5.17).
        if total == Some(self.stored.length) {
            self.reported_size = total;
            self.phase = Phase::Ready;
            return;
        }
        self.drop_stored();
        self.fail(now, FollowError::status(self.file.url.clone(), head.status), None);
    }

    /// Takes a piece of the body.
    pub fn handle_chunk(&mut self, now: Now, chunk: &[u8]) -> ChunkUse {
        if !matches!(self.phase, Phase::Receiving) {
            return ChunkUse::Drop;
        }
        let length = self.stored.length.saturating_add(chunk.len() as u64);
        // Before the piece is stored: a server that goes on sending must not fill the disk.
        if self.size().is_some_and(|size| length > size) {
            self.mismatch(now, "the file is longer than described");
            return ChunkUse::Drop;
        }
        if self.refuse_size(length) {
            return ChunkUse::Drop;
        }
        self.stored.sha256.update(chunk);
        self.stored.length = length;
        // Bytes alone are no progress: see `longest`.
        if length > self.longest {
            self.longest = length;
            self.failures = 0;
        }
        ChunkUse::Store
    }

    /// Ends a response, complete or cut off, or a request without a response.
    pub fn handle_end(&mut self, now: Now, result: Result<(), TransferError>) {
        let is_body = matches!(self.phase, Phase::Receiving);
        if !is_body && !matches!(self.phase, Phase::Requested) {
            return;
        }
        match result {
            // `handle_head` has judged this response already.
            Ok(()) if !is_body => {}
            Ok(()) => self.end_body(now),
            // Publishers may name any address; one that is forbidden stays so.
            Err(error @ (TransferError::Address(_) | TransferError::Url(_))) => {
                self.refuse(format!("{}: {error}", self.file.url));
            }
            Err(source) => {
                let url = self.file.url.clone();
                self.fail(now, FollowError::Transfer { url, source }, None);
            }
        }
    }

    fn end_body(&mut self, now: Now) {
        let length = self.stored.length;
        match self.size() {
            None => {
                self.reported_size = Some(length);
                self.phase = Phase::Ready;
            }
            Some(size) if length == size => self.phase = Phase::Ready,
            // A server may send less than it was asked for, but not a part without bytes for ever.
            Some(size) => {
                let reason = format!("the body ended after {length} of {size} bytes");
                self.fail(now, self.protocol_error(reason), None);
            }
        }
    }

    /// Compares the digest of a whole file.
    fn compare(&mut self, now: Now) {
        let found = hex::encode(self.stored.sha256.clone().finalize());
        if found == self.file.sha256 {
            self.phase = Phase::Ended(DownloadEnd::Complete { size: self.stored.length });
        } else {
            self.mismatch(now, &format!("its SHA-256 is {found}, not {}", self.file.sha256));
        }
    }

    /// Handles a size that a response tells; true if it is not the described one.
    fn is_other_size(&mut self, now: Now, told: Option<u64>) -> bool {
        let Some((told, size)) = told.zip(self.file.size).filter(|(told, size)| told != size) else {
            return false;
        };
        self.mismatch(now, &format!("it has {told} bytes, not {size}"));
        true
    }

    /// Ends the download if the file is larger than allowed; true then.
    fn refuse_size(&mut self, size: u64) -> bool {
        let FileLimit { bytes, name } = self.limit;
        let is_too_large = size > bytes;
        if is_too_large {
            let url = &self.file.url;
            self.refuse(format!("{url}: the file is larger than {bytes} bytes (limit: {name})"));
        }
        is_too_large
    }

    /// Drops a file that is not the described one. It may have changed meanwhile, so it is tried once more.
    fn mismatch(&mut self, now: Now, reason: &str) {
        self.mismatches += 1;
        if self.mismatches >= MAX_MISMATCHES {
            return self.refuse(format!("{}: not the described file: {reason}", self.file.url));
        }
        self.drop_stored();
        self.longest = 0;
        self.fail(now, self.protocol_error(format!("not the described file: {reason}")), None);
    }

    fn drop_stored(&mut self) {
        self.stored = StoredPart::default();
        self.reported_size = None;
    }

    fn refuse(&mut self, reason: String) {
        self.phase = Phase::Ended(DownloadEnd::Refused(reason));
    }

    fn protocol_error(&self, reason: String) -> FollowError {
        FollowError::Protocol { url: self.file.url.clone(), reason }
    }

    fn fail(&mut self, now: Now, error: FollowError, retry_after: Option<Duration>) {
        self.failures = self.failures.saturating_add(1);
        let wait = BACKOFF.wait_or_longer(self.failures, retry_after, LONGEST_ASKED);
        if self.mode == FollowMode::CatchUp && (self.failures >= MAX_FAILURES || wait > LONGEST_WAIT) {
            self.phase = Phase::Ended(DownloadEnd::Failed { error, retry_after });
            return;
        }
        self.failure = Some(error);
        self.phase = Phase::Waiting(now.after(wait));
    }
}

/// Returns true for a status that a later request will not change: the file is gone, or cannot be requested so.
///
/// Credentials and limits of requests can: the operator mends the one, time the other.
fn is_permanent(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 403 | 407 | 408 | 421 | 425 | 429)
}

/// Returns the entity tag, if ranges of it may be combined (RFC 9110, section 13.1.5).
fn strong_etag(head: &ResponseHead) -> Option<String> {
    let etag = head.header(ETAG.as_str())?;
    (etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"')).then(|| etag.to_owned())
}
