//! A response's body, piece by piece, within the limits of its request.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use towpath_proto::follow::TransferError;

use super::coding::Decoded;

/// The body of a response, decoded. Nothing is read ahead of [`chunk`](Self::chunk): who does not ask for
/// more holds the publisher back.
#[derive(Debug)]
pub struct Body {
    state: State,
    limits: Limits,
    received: u64,
}

#[derive(Debug)]
enum State {
    Open(Decoded),
    Refused(TransferError),
    Over,
}

/// When to give up on a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes, decoded.
    pub(super) size: u64,
    /// Without a single byte.
    pub(super) stall: Duration,
    pub(super) deadline: Instant,
}

impl Body {
    pub(super) fn none(limits: Limits) -> Self {
        Self { state: State::Over, limits, received: 0 }
    }

    /// `announced` is the length that the headers tell, of the body as it is sent.
    pub(super) fn of(
        decoded: Result<Decoded, TransferError>,
        announced: Option<u64>,
        limits: Limits,
    ) -> Self {
        let state = match decoded {
            Err(error) => State::Refused(error),
            Ok(Decoded::Plain(_)) if announced.is_some_and(|length| length > limits.size) => {
                State::Refused(TransferError::TooLarge { limit: limits.size })
            }
            Ok(decoded) => State::Open(decoded),
        };
        Self { state, limits, received: 0 }
    }

    /// The next piece; `None` at the end. After an error the body is over.
    ///
    /// # Errors
    ///
    /// [`TransferError::Body`] where it was cut off or its compression is broken,
    /// [`TransferError::TooLarge`] and [`TransferError::Timeout`] where a limit was reached.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, TransferError> {
        match self.advance().await {
            Ok(Some(chunk)) => Ok(Some(chunk)),
            over => {
                self.state = State::Over;
                over
            }
        }
    }

    /// The rest of the body.
    ///
    /// # Errors
    ///
    /// As [`chunk`](Self::chunk).
    pub async fn collect(mut self) -> Result<Bytes, TransferError> {
        let Some(first) = self.chunk().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.chunk().await? else { return Ok(first) };
        let mut whole = [first, second].concat();
        while let Some(chunk) = self.chunk().await? {
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.into())
    }

    async fn advance(&mut self) -> Result<Option<Bytes>, TransferError> {
        let decoded = match &mut self.state {
            State::Open(decoded) => decoded,
            State::Refused(error) => return Err(error.clone()),
            State::Over => return Ok(None),
        };
        let left = self.limits.deadline.saturating_duration_since(Instant::now());
        let wait = self.limits.stall.min(left);
        let Ok(chunk) = timeout(wait, decoded.chunk()).await else {
            return Err(TransferError::Timeout(if wait < self.limits.stall {
                format!("the body was not complete in time, after {} bytes", self.received)
            } else {
                format!("the body stopped for {wait:?} after {} bytes", self.received)
            }));
        };
        let Some(chunk) = chunk? else { return Ok(None) };
        self.received = self.received.saturating_add(chunk.len() as u64);
        if self.received > self.limits.size {
            return Err(TransferError::TooLarge { limit: self.limits.size });
        }
        Ok(Some(chunk))
    }
}
