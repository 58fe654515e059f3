//! Bodies of requests, read within limits of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http::header::CONTENT_ENCODING;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::document::route_error::RouteError;
use crate::engine::Engine;

/// Longest allowance for pauses that the sender of a large body saves up, in times of the grace.
const MAX_GRACES: u32 = 6;

/// Body of a request, read piece by piece.
///
/// A client that sends a byte at a time would hold its body's memory for ever, so there is a minimum rate.
pub(crate) struct BodyReader {
    body: Limited<Incoming>,
    limit: u64,
    min_rate: u32,
    grace: Duration,
    start: Instant,
    received: u64,
    /// Time that the sender of a large body may still pause.
    allowance: Duration,
}

impl BodyReader {
    /// Begins to read a body of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// A body with a content coding, or one that is too long by its head.
    pub(crate) fn new(engine: &Engine, request: Request<Incoming>, limit: u64) -> Result<Self, RouteError> {
        // The item's content is stored as it is, so a coding that is not decoded here would be published with it.
        let codings = request.headers().get_all(CONTENT_ENCODING).iter();
        if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(RouteError::unsupported_coding("send the body without Content-Encoding"));
        }
        let server = engine.server.load();
        let body = Limited::new(request.into_body(), usize::try_from(limit).unwrap_or(usize::MAX));
        let (min_rate, grace) = (server.min_rate, server.rate_grace);
        Ok(Self { body, limit, min_rate, grace, start: Instant::now(), received: 0, allowance: grace })
    }

    /// Returns the next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RouteError> {
        let earned = Duration::from_secs_f64(self.received as f64 / f64::from(self.min_rate.max(1)));
        self.next_until(self.start + self.grace + earned).await
    }

    /// Returns the next piece of a large body. Only the sender's pauses count, not the time that storing takes, and gigabytes
    /// that came fast earn no pause of days.
    pub(crate) async fn next_of_large(&mut self) -> Result<Option<Bytes>, RouteError> {
        let begun = Instant::now();
        let piece = self.next_until(begun + self.allowance).await?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        let earned = Duration::from_secs_f64(length as f64 / f64::from(self.min_rate.max(1)));
        self.allowance = self.allowance.saturating_sub(begun.elapsed()) + earned;
        self.allowance = self.allowance.min(self.grace * MAX_GRACES);
        Ok(piece)
    }

    async fn next_until(&mut self, deadline: Instant) -> Result<Option<Bytes>, RouteError> {
        loop {
            let Ok(frame) = timeout_at(deadline, self.body.frame()).await else {
                return Err(RouteError::timeout(format!(
                    "the body came with less than {} bytes per second ([server] min_rate)",
                    self.min_rate
                )));
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    let Ok(data) = frame.into_data() else { continue };
                    self.received += data.len() as u64;
                    return Ok(Some(data));
                }
                Some(Err(e)) if e.is::<LengthLimitError>() => {
                    return Err(RouteError::too_large(format!(
                        "the body has more than {} bytes; split it",
                        self.limit
                    )));
                }
                Some(Err(e)) => return Err(RouteError::bad_request(format!("the body is incomplete: {e}"))),
            }
        }
    }
}

/// Reads a request's body of at most `limit` bytes.
pub(crate) async fn read(
    engine: &Engine,
    request: Request<Incoming>,
    limit: usize,
) -> Result<Bytes, RouteError> {
    let mut body = BodyReader::new(engine, request, limit as u64)?;
    let mut received = BytesMut::new();
    while let Some(piece) = body.next().await? {
        received.extend_from_slice(&piece);
    }
    Ok(received.freeze())
}
