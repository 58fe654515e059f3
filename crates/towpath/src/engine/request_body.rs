//! Bodies of requests, read within limits of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_RANGE, EXPECT, TRANSFER_ENCODING};
use http::{Method, Request};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use towpath_client::{BodyBudget, BodyShare};

use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::Engine;

/// Longest allowance for pauses that a sender saves up, in times of the grace.
const MAX_GRACES: u32 = 6;

/// Time that a body waits while others use the memory.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// Body of a request, read piece by piece.
///
/// A client that sends a byte at a time would hold its body's memory for ever, so there is a minimum rate.
pub(crate) struct BodyReader {
    body: Limited<Incoming>,
    limit: u64,
    min_rate: u32,
    grace: Duration,
    /// Time that the sender may still pause.
    allowance: Duration,
}

impl BodyReader {
    /// Begins to read a body of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// A body with a transfer or content coding, or one that is a part of a whole.
    pub(crate) fn new(engine: &Engine, request: Request<Incoming>, limit: u64) -> Result<Self, RouteError> {
        // The item's content is stored as it is, so a coding that is not decoded here would be published with it.
        let codings = request.headers().get_all(CONTENT_ENCODING).iter();
        if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(RouteError::unsupported_coding("send the body without Content-Encoding"));
        }
        // hyper ends the body by `chunked`, and leaves the codings before it to us (RFC 9112, section 6.1).
        let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            return Err(RouteError::new(
                RouteErrorKind::UnsupportedTransferCoding,
                "Transfer-Encoding can only be chunked",
            ));
        }
        // A part would be stored as the whole (RFC 9110, section 14.5).
        if request.method() == Method::PUT && request.headers().contains_key(CONTENT_RANGE) {
            return Err(RouteError::bad_request(
                "a PUT with Content-Range is not supported: send the whole content, or use a resumable upload at \
                 /feeds/{feed}/uploads",
            ));
        }
        let server = engine.server.load();
        let body = Limited::new(request.into_body(), usize::try_from(limit).unwrap_or(usize::MAX));
        let (min_rate, grace) = (server.min_rate, server.rate_grace);
        Ok(Self { body, limit, min_rate, grace, allowance: grace })
    }

    /// Returns the next piece; `None` at the end. Only the sender's pauses count, not the time that storing takes, and
    /// megabytes that came fast earn no pause of hours.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RouteError> {
        let begun = Instant::now();
        let piece = self.next_until(begun + self.allowance).await?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        let earned = Duration::from_secs_f64(length as f64 / f64::from(self.min_rate.max(1)));
        self.allowance = self.allowance.saturating_sub(begun.elapsed()) + earned;
        self.allowance = self.allowance.min(self.grace * MAX_GRACES);
        Ok(piece)
    }

    /// Adds the next piece to a body; false at the end.
    ///
    /// # Errors
    ///
    /// Memory that other bodies use, besides the errors of reading.
    pub(crate) async fn next_into(&mut self, whole: &mut WholeBody) -> Result<bool, RouteError> {
        let Some(piece) = self.next().await? else { return Ok(false) };
        if let Err(busy) = whole.push(&piece).await {
            whole.clear();
            self.skip().await;
            return Err(busy);
        }
        Ok(true)
    }

    /// Reads what is left and drops it. A connection that is closed on bytes that come is reset, and the sender would not
    /// see the answer.
    pub(crate) async fn skip(&mut self) {
        while let Ok(Some(_)) = self.next().await {}
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
                    return Ok(Some(data));
                }
                Some(Err(e)) if e.is::<LengthLimitError>() => {
                    return Err(too_long(self.limit));
                }
                Some(Err(e)) => return Err(RouteError::bad_request(format!("the body is incomplete: {e}"))),
            }
        }
    }
}

/// A body that is held in memory as a whole, with its share of the memory for all of them.
pub(crate) struct WholeBody {
    bytes: BytesMut,
    share: BodyShare,
    budget: BodyBudget,
}

impl WholeBody {
    pub(crate) fn new(engine: &Engine) -> Self {
        let budget = engine.body_memory.clone();
        Self { bytes: BytesMut::new(), share: budget.body(), budget }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    async fn push(&mut self, piece: &[u8]) -> Result<(), RouteError> {
        let busy =
            |_| RouteError::busy("other requests use the memory for bodies ([server] body_mib); retry");
        self.share.grow(piece.len() as u64, MEMORY_WAIT).await.map_err(busy)?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Drops the bytes, and gives their share back.
    fn clear(&mut self) {
        self.bytes = BytesMut::new();
        self.share = self.budget.body();
    }

    /// Returns the bytes. Their share is free again once they are dropped.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(SharedBytes { bytes: self.bytes.freeze(), _share: self.share })
    }
}

/// Owner of a body's bytes.
struct SharedBytes {
    bytes: Bytes,
    _share: BodyShare,
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn too_long(limit: u64) -> RouteError {
    RouteError::too_large(format!("the body has more than {limit} bytes; split it"))
}

/// Reads what a sender that does not wait for leave to send (RFC 9110, section 10.1.1) has on its way of a body that is too
/// long, up to a quarter more than the limit. A connection that is closed on it is reset, and the sender would not see the
/// answer.
pub(crate) async fn skip(engine: &Engine, request: Request<Incoming>, limit: usize) {
    if request.headers().contains_key(EXPECT) {
        return;
    }
    if let Ok(mut body) = BodyReader::new(engine, request, (limit + limit / 4) as u64) {
        body.skip().await;
    }
}

/// Reads a request's body of at most `limit` bytes.
pub(crate) async fn read(
    engine: &Engine,
    request: Request<Incoming>,
    limit: usize,
) -> Result<Bytes, RouteError> {
    if request.body().size_hint().exact().is_some_and(|length| length > limit as u64) {
        skip(engine, request, limit).await;
        return Err(too_long(limit as u64));
    }
    let mut body = BodyReader::new(engine, request, limit as u64)?;
    let mut received = WholeBody::new(engine);
    while body.next_into(&mut received).await? {}
    Ok(received.freeze())
}
