//! Body of a callback's response, which counts for some requests only.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::callback::CallbackError;
use super::explain::{self, root_cause};
use super::http1::PooledBody;
use super::transport::TransportBody;

/// Maximum number of bytes read from a response body, so that its connection can be reused.
const MAX_RESPONSE_BYTES: usize = 16 << 10;
/// Longest time that a body is drained.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// Body of a response that has not been read. If it is dropped, its connection is closed.
pub struct UnreadBody(pub(super) BodySource);

/// Source of a body's pieces.
pub(super) enum BodySource {
    /// A pooled connection without TLS.
    Http1(PooledBody),
    /// A connection with TLS.
    Https(reqwest::Response),
    /// A simulated connection.
    Transport(TransportBody),
}

impl fmt::Debug for UnreadBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnreadBody")
    }
}

impl UnreadBody {
    /// Reads the body, up to 16 KiB.
    pub(super) async fn read(mut self) -> Result<Bytes, CallbackError> {
        let mut body = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            body.extend_from_slice(&piece);
            // A longer body is cheaper to abandon with its connection than to read.
            if body.len() > MAX_RESPONSE_BYTES {
                return Ok(body.freeze());
            }
        }
        if let BodySource::Http1(body) = self.0 {
            body.put_back().await;
        }
        Ok(body.freeze())
    }

    /// Reads a body that does not matter, for at most half a second, so that its connection can be reused.
    pub async fn drain(self) {
        // A body that breaks or does not end costs its connection, and nothing else.
        drop(self.read_to_show().await);
    }

    /// Reads a body that is only shown, for at most half a second; empty if it breaks or does not end.
    pub async fn read_to_show(self) -> Bytes {
        let read = timeout(DRAIN_TIME, self.read()).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, CallbackError> {
        match &mut self.0 {
            BodySource::Http1(body) => body.piece().await,
            BodySource::Https(response) => {
                response.chunk().await.map_err(|e| CallbackError::Connect(root_cause(&e)))
            }
            BodySource::Transport(pieces) => {
                let piece = pieces.next().await.transpose();
                piece.map_err(|e| CallbackError::Connect(explain::reason(&e)))
            }
        }
    }
}
