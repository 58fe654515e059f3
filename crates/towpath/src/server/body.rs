//! Bodies: what is sent, and reading what was sent within limits.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::Request;
use http::header::CONTENT_ENCODING;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use tokio::sync::mpsc;

use super::problem::Problem;

/// A whole body, or one that is made while it is sent.
pub(super) struct ReplyBody(Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>);

impl From<Bytes> for ReplyBody {
    fn from(bytes: Bytes) -> Self {
        Self(Either::Left(Full::new(bytes)))
    }
}

impl ReplyBody {
    /// What comes through a channel, as it comes; ends where the sender is dropped.
    pub(super) fn channel(mut chunks: mpsc::Receiver<Bytes>) -> Self {
        let frames =
            poll_fn(move |context| chunks.poll_recv(context).map(|chunk| Some(Ok(Frame::data(chunk?)))));
        Self(Either::Right(BodyExt::boxed_unsync(StreamBody::new(frames))))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::pin::Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.size_hint()
    }
}

/// How long a client may take to send a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a request's body of at most `limit` bytes.
pub(super) async fn read(request: Request<Incoming>, limit: usize) -> Result<Bytes, Problem> {
    // What is kept is what was meant, not how it came: a coding that is not undone here is refused.
    let codings = request.headers().get_all(CONTENT_ENCODING).iter();
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Problem::unsupported_coding("send the body without Content-Encoding"));
    }
    let collected =
        tokio::time::timeout(BODY_TIMEOUT, Limited::new(request.into_body(), limit).collect()).await;
    match collected {
        Err(_) => {
            Err(Problem::timeout(format!("the body took more than {} seconds", BODY_TIMEOUT.as_secs())))
        }
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            Err(Problem::too_large(format!("the body has more than {limit} bytes; split it")))
        }
        Ok(Err(e)) => Err(Problem::bad_request(format!("the body was cut off: {e}"))),
    }
}
