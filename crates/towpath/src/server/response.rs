//! Responses as hyper takes them.

use bytes::Bytes;
use futures_util::stream::poll_fn;
use futures_util::{Stream, TryStreamExt as _};
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper::ext::ReasonPhrase;
use tokio::sync::mpsc;

use super::access_log::AccessRecord;
use super::problem::{CHECKSUM, CHECKSUM_MISMATCH};
use crate::document::prebuilt::Answer;

/// Failure of a body while it is sent. The connection ends with it, so that the client knows.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Body of a response: whole, or produced while it is sent.
pub(crate) struct ResponseBody {
    body: Either<Full<Bytes>, UnsyncBoxBody<Bytes, BodyError>>,
    /// Line of the access log, which is written when the body was sent or the client is gone.
    access: Option<Box<AccessRecord>>,
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self { body: Either::Left(Full::new(bytes)), access: None }
    }
}

impl ResponseBody {
    /// A body of the chunks of a channel, as they arrive. It ends when the sender is dropped.
    pub(crate) fn channel(mut chunks: mpsc::Receiver<Bytes>) -> Self {
        let frames =
            poll_fn(move |context| chunks.poll_recv(context).map(|chunk| Some(Ok(Frame::data(chunk?)))));
        Self { body: Either::Right(BodyExt::boxed_unsync(StreamBody::new(frames))), access: None }
    }

    /// A body of pieces that are read as the client takes them.
    pub(crate) fn stream(pieces: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Self {
        let frames = StreamBody::new(pieces.map_ok(Frame::data));
        Self { body: Either::Right(BodyExt::boxed_unsync(frames)), access: None }
    }

    /// Counts the bytes of the body in the record of its request.
    pub(super) fn count_in(&mut self, access: Option<Box<AccessRecord>>) {
        self.access = access;
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let frame = std::pin::Pin::new(&mut self.body).poll_frame(context);
        if let Some(access) = &mut self.access
            && let std::task::Poll::Ready(Some(Ok(frame))) = &frame
        {
            access.add_bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Converts an answer to hyper's response.
pub(super) fn respond(answer: Answer) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    if answer.status == CHECKSUM {
        // hyper would write `<none>`.
        response.extensions_mut().insert(ReasonPhrase::from_static(CHECKSUM_MISMATCH.as_bytes()));
    }
    response
}
