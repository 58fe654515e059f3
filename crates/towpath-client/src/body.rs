//! A response body, read chunk by chunk within the limits of its request.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use towpath_proto::follow::TransferError;

use super::coding::DecodedBody;
use super::memory_budget::BodyShare;

/// The decoded body of a response.
///
/// Nothing is read ahead of [`chunk`](Self::chunk): a caller that stops reading applies backpressure to the
/// publisher through TCP.
#[derive(Debug)]
pub struct StreamingBody {
    state: BodyState,
    limits: BodyLimits,
    received: u64,
    /// Memory of the body, if its reader collects it.
    share: Option<BodyShare>,
}

#[derive(Debug)]
enum BodyState {
    Open(DecodedBody),
    Rejected(TransferError),
    Done,
}

/// Size and time limits of one body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimits {
    /// Maximum size in bytes, after decoding.
    pub(super) size: u64,
    /// Maximum time without a single byte.
    pub(super) stall: Duration,
    /// Time that is left to wait for bytes, in all.
    pub(super) left: Duration,
}

impl StreamingBody {
    pub(super) fn empty(limits: BodyLimits) -> Self {
        Self { state: BodyState::Done, limits, received: 0, share: None }
    }

    /// Body of a response. `content_length` is the length in the headers, of the encoded body. A body that is collected
    /// has a share of the memory.
    pub(super) fn new(
        decoded: Result<DecodedBody, TransferError>,
        content_length: Option<u64>,
        limits: BodyLimits,
        share: Option<BodyShare>,
    ) -> Self {
        let state = match decoded {
            Err(error) => BodyState::Rejected(error),
            // An encoded body may be longer or shorter than its Content-Length: only the count of decoded bytes decides.
            Ok(DecodedBody::Identity(_)) if content_length.is_some_and(|length| length > limits.size) => {
                BodyState::Rejected(TransferError::TooLarge { limit: limits.size })
            }
            Ok(decoded) => BodyState::Open(decoded),
        };
        Self { state, limits, received: 0, share }
    }

    /// Reads the next chunk; `None` at the end and after an error.
    ///
    /// # Errors
    ///
    /// [`TransferError::Body`] if the body is truncated or its content coding is damaged,
    /// [`TransferError::Coding`] if its coding is unknown, [`TransferError::TooLarge`] and
    /// [`TransferError::Timeout`] if it exceeds a limit.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, TransferError> {
        match self.read().await {
            Ok(Some(chunk)) => Ok(Some(chunk)),
            // After an error or the end the decoder must not be polled again.
            ended => {
                self.state = BodyState::Done;
                ended
            }
        }
    }

    /// Returns the body's share of the memory budget, to be held as long as its bytes.
    pub fn take_share(&mut self) -> Option<BodyShare> {
        self.share.take()
    }

    /// Reads the rest of the body.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk).
    pub async fn collect(&mut self) -> Result<Bytes, TransferError> {
        // A body that arrived as one chunk is returned without a copy.
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let mut whole = [first, second].concat();
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.into())
    }

    async fn read(&mut self) -> Result<Option<Bytes>, TransferError> {
        let decoded = match &mut self.state {
            BodyState::Open(decoded) => decoded,
            BodyState::Rejected(error) => return Err(error.clone()),
            BodyState::Done => return Ok(None),
        };
        // Two limits: a stalled connection is noticed early, and a slow trickle ends when no time is left.
        let wait = self.limits.stall.min(self.limits.left);
        let began = Instant::now();
        let waited = timeout(wait, decoded.chunk()).await;
        // Only waits count. A caller that works on a chunk for an hour is no fault of the publisher.
        self.limits.left = self.limits.left.saturating_sub(began.elapsed());
        let Ok(chunk) = waited else {
            return Err(TransferError::Timeout(if wait < self.limits.stall {
                format!("the body was not complete in time, after {} bytes", self.received)
            } else {
                format!("the body stopped for {wait:?} after {} bytes", self.received)
            }));
        };
        let Some(chunk) = chunk? else { return Ok(None) };
        self.received = self.received.saturating_add(chunk.len() as u64);
        // Counts decoded bytes: a compressed body of a few kilobytes may expand to gigabytes.
        if self.received > self.limits.size {
            return Err(TransferError::TooLarge { limit: self.limits.size });
        }
        if let Some(share) = &mut self.share {
            share.grow(chunk.len() as u64, self.limits.stall).await?;
        }
        Ok(Some(chunk))
    }
}
