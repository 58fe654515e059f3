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

/// Reads a request's body of at most `limit` bytes.
///
/// A client that sends a byte at a time would hold its body's memory for ever, so there is a minimum rate.
pub(crate) async fn read(
    engine: &Engine,
    request: Request<Incoming>,
    limit: usize,
) -> Result<Bytes, RouteError> {
    // The item's content is stored as it is, so a coding that is not decoded here would be published with it.
    let codings = request.headers().get_all(CONTENT_ENCODING).iter();
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(RouteError::unsupported_coding("send the body without Content-Encoding"));
    }
    let (min_rate, grace) = {
        let server = engine.server.load();
        (server.min_rate, server.rate_grace)
    };
    let mut body = Limited::new(request.into_body(), limit);
    let (start, mut received) = (Instant::now(), BytesMut::new());
    loop {
        let earned = Duration::from_secs_f64(received.len() as f64 / f64::from(min_rate.max(1)));
        let Ok(frame) = timeout_at(start + grace + earned, body.frame()).await else {
            return Err(RouteError::timeout(format!(
                "the body came with less than {min_rate} bytes per second ([server] min_rate)"
            )));
        };
        match frame {
            None => return Ok(received.freeze()),
            // Trailers are ignored.
            Some(Ok(frame)) => received.extend(frame.into_data().ok()),
            Some(Err(e)) if e.is::<LengthLimitError>() => {
                return Err(RouteError::too_large(format!("the body has more than {limit} bytes; split it")));
            }
            Some(Err(e)) => return Err(RouteError::bad_request(format!("the body is incomplete: {e}"))),
        }
    }
}
